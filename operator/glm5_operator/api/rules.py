"""The CEL rules of the CRDs: what one object shows by itself to be wrong, each with a message that says what to change.

The models name rules by id; `schema.py` writes them into the CRDs; `tests/api/crd` holds an accepted and a rejected object for each.
What needs a second object or a fact (free cards, the pool's product) is no rule here but a Stalled condition from the planner.
"""

from __future__ import annotations

from typing import Any, Final

from glm5_operator import images

from .cel import LABEL, SUBDOMAIN, Rule, duration, quoted
from .common import QUANTITY_PATTERN
from .deploy_rules import DEPLOY_RULES, service_rules
from .finetune_rules import FINETUNE_RULES
from .known import ATTENTION_HEADS, CONTEXT_LIMIT, KNOWN_MODELS
from .names import API_KEY_ENV, DEVICE_ENV, GROUP, POOL_LABEL, VLLM_API_KEY_ENV


def validations(*ids: str) -> dict[str, Any]:
    """Schema fragment that attaches the named rules to a field or a model."""
    return {"x-kubernetes-validations": [RULES[one].schema() for one in ids]}


_KNOWN = quoted(KNOWN_MODELS)
_NAMES = ", ".join(KNOWN_MODELS)
# The engine in effect: planned as `vllm` for a known model and `native` for any other when the user names none.
_NATIVE = f"self.?engine.?name.orValue(self.model.name in {_KNOWN} ? 'vllm' : 'native') == 'native'"
_TENSOR = "self.?tensor.orValue(1)"
_DATA = "self.?data.orValue(1)"

# Flags that the operator sets from a field; a second value in args would win silently or stop the engine.
# vLLM takes underscores for dashes.
_OWNED_FLAGS = (
    "model|host|port|served-model-name|max-model-len|max-sequences|max-num-seqs|max-batched-tokens|max-num-batched-tokens"
    "|tensor-parallel-size|tp|pipeline-parallel-size|pp|data-parallel-size|dp|(no-)?enable-expert-parallel|quantization|q|block-size"
    "|page-size|prefix-cache|speculative-tokens|kv-cache-dtype|(no-)?enable-prefix-caching|speculative-config|drain-timeout|shutdown-timeout"
).replace("-", "[-_]")
_RESERVED_ENV = (API_KEY_ENV, VLLM_API_KEY_ENV, *DEVICE_ENV)


def _pod_rules() -> tuple[Rule, ...]:
    """Rules of a podTemplate; the CRD describes just the fields they read, so the rest of a pod passes unseen."""
    return (
        Rule(
            "pod-no-node-name",
            "!has(self.spec) || !has(self.spec.nodeName)",
            "spec.nodeName bypasses the scheduler and the card allocation: remove it, and select nodes in the NPUPool",
        ),
        Rule(
            "pod-no-own-pool",
            f"!has(self.spec) || !has(self.spec.nodeSelector) || self.spec.nodeSelector.all(key, !key.startsWith('{GROUP}/'))",
            f"spec.nodeSelector keys of {GROUP}/ belong to the operator: choose the pool with spec.pool",
        ),
        Rule(
            "pod-no-own-labels",
            f"!has(self.metadata) || !has(self.metadata.labels) || self.metadata.labels.all(key, !key.startsWith('{GROUP}/'))",
            f"metadata.labels of {GROUP}/ belong to the operator and select the pods of an object: use a prefix of your own",
        ),
        Rule(
            "pod-no-token",
            "!has(self.spec) || !has(self.spec.automountServiceAccountToken) || !self.spec.automountServiceAccountToken",
            "spec.automountServiceAccountToken must be false (or absent): pods run without credentials for the API server",
        ),
        Rule(
            "pod-restarts",
            "!has(self.spec) || !has(self.spec.restartPolicy) || self.spec.restartPolicy == 'Always'",
            "spec.restartPolicy must be Always (or absent): a service's pods are kept running",
        ),
    )


def _service_rules() -> tuple[Rule, ...]:
    return (
        Rule(
            "service-name",
            "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",
            "metadata.name must be at most 63 lower-case letters, digits and dashes, start with a letter and end with a letter or digit: "
            "Services and labels are named after it",
        ),
        Rule(
            "pool-held",
            "self.spec.pool == oldSelf.spec.pool || self.?status.?cardsHeld.orValue(0) == 0",
            "pool can't change while pods of this service hold cards: set replicas to 0 and wait until status.cardsHeld is 0",
            ".spec.pool",
        ),
        Rule(
            "native-no-pipeline",
            f"!({_NATIVE}) || self.?parallelism.?pipeline.orValue(1) == 1",
            "engine native divides layers and doesn't line them up: raise parallelism.tensor, not pipeline, or set engine.name to vllm",
            ".parallelism.pipeline",
        ),
        Rule(
            "native-data-spreads-experts",
            f"!({_NATIVE}) || self.?parallelism.?data.orValue(1) == 1 || self.?parallelism.?expert.orValue(1) > 1",
            "engine native with parallelism.data spreads its experts: set parallelism.expert to tensor x data, or use replicas",
            ".parallelism.expert",
        ),
        Rule(
            "native-weights",
            f"!({_NATIVE}) || self.model.weights in ['bf16', 'w8a8', 'w4a8']",
            "engine native reads bf16, w8a8 and w4a8 weights: set model.weights to one of them, or engine.name to vllm",
            ".model.weights",
        ),
        Rule(
            "cache-bits-native",
            f"({_NATIVE}) || !(self.?kvCache.?dtype.orValue('bf16') in ['int8', 'int4'])",
            "kvCache.dtype int8 and int4 are engine native's; with engine vllm an 8-bit cache comes with weights of a c8 form",
            ".kvCache.dtype",
        ),
        Rule(
            "other-model-parallelism",
            f"self.model.name in {_KNOWN} || (has(self.parallelism) && has(self.parallelism.tensor))",
            f"only {_NAMES} (spelled so) have a recipe: state parallelism.tensor for any other model, 1 for one card",
            ".parallelism",
        ),
        Rule(
            "other-model-memory",
            f"self.model.name in {_KNOWN} || has(self.model.memory)",
            f"only {_NAMES} (spelled so) have a recipe: state model.memory for any other model, the memory of one replica's pod",
            ".model.memory",
        ),
        Rule(
            "context-of-model",
            "!has(self.context) || !has(self.context.maxTokens) || ("
            + " && ".join(f"(self.model.name != '{name}' || self.context.maxTokens <= {limit})" for name, limit in CONTEXT_LIMIT.items())
            + ")",
            "context.maxTokens is above what the model was trained for: "
            + ", ".join(f"{name} takes at most {limit}" for name, limit in CONTEXT_LIMIT.items()),
            ".context.maxTokens",
        ),
        Rule(
            "heads-of-model",
            f"!(self.model.name in {_KNOWN}) || {ATTENTION_HEADS} % self.?parallelism.?tensor.orValue(1) == 0",
            f"parallelism.tensor must divide the model's {ATTENTION_HEADS} attention heads: 1, 2, 4, 8, 16, 32 or 64",
            ".parallelism.tensor",
        ),
        Rule(
            "speculative-batch",
            "!has(self.speculative) || self.speculative.tokens == 0 || !has(self.context) || !has(self.context.maxBatchedTokens) || "
            "self.context.maxBatchedTokens >= self.context.?maxSequences.orValue(1) * (1 + self.speculative.tokens)",
            "context.maxBatchedTokens must be at least maxSequences x (1 + speculative.tokens), or running sequences wait for each other",
            ".context.maxBatchedTokens",
        ),
    )


def _model_rules() -> tuple[Rule, ...]:
    return (
        Rule(
            "model-name",
            "self.matches('^[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?$')",
            "model.name must be letters, digits, dots, dashes and underscores, for example GLM-5.1; a path belongs into model.source",
        ),
        Rule(
            "served-name",
            "self.matches('^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$')",
            "model.servedName must be letters, digits and . _ : / - without spaces: clients send it as `model`",
        ),
        Rule(
            "memory",
            "type(self) == int ? self >= 268435456 : "
            f"self.matches('{QUANTITY_PATTERN}') && quantity(self).compareTo(quantity('256Mi')) >= 0",
            "model.memory must be a quantity of at least 256Mi, for example 4Gi",
        ),
        Rule(
            "source-scheme",
            "self.matches('^(pvc|hostpath|image)://')",
            "model.source must start with pvc:// (pvc://CLAIM/PATH), hostpath:// (hostpath:///ABSOLUTE/PATH) or image:// (image:///PATH)",
        ),
        Rule(
            "source-pvc",
            f"!self.startsWith('pvc:') || self.matches('^pvc://{SUBDOMAIN}(/.*)?$')",
            "model.source of a volume must be pvc://CLAIM/PATH, where CLAIM is a PersistentVolumeClaim of the service's namespace",
        ),
        Rule(
            "source-absolute",
            "!self.matches('^(hostpath|image):') || self.matches('^[a-z]+:///[^/]')",
            "model.source of a host or image path needs three slashes and an absolute path below /, for example hostpath:///data/GLM-5.1",
        ),
        Rule(
            "source-path",
            r"!self.matches('^[a-z]+:///?[^\\n]*(//|/\\.\\.?(/|$)|[\\s\\\\])')",
            "the path of model.source may not contain `..`, `.`, `//`, backslashes or spaces: write it out",
        ),
    )


def _engine_rules() -> tuple[Rule, ...]:
    return (
        Rule("image-form", f"self.matches('{images.REFERENCE}')", images.NO_REFERENCE),
        Rule("image-pinned", f"self.matches('{images.PINNED}')", images.NO_TAG),
        Rule("image-not-latest", f"self.contains('@') || !self.matches('{images.MOVING}')", images.MOVING_TAG),
        Rule(
            "image-version",
            f"self.contains('@') || !self.matches('{images.TAGGED}') || self.matches('{images.VERSIONED}')",
            images.NO_VERSION,
        ),
        Rule("image-digest", f"!self.contains('@') || self.matches('{images.DIGEST}')", images.NO_DIGEST),
        Rule(
            "args-owned",
            f"self.all(arg, !arg.matches('^--?({_OWNED_FLAGS})(=|$)'))",
            "the operator sets this flag from a field of the spec: use model, context, parallelism, kvCache, speculative or drain "
            "instead (host, port and model path are fixed)",
        ),
        Rule(
            "args-no-secret",
            "self.all(arg, !arg.matches('^--?(api[-_]key|hf[-_]token)(=|$)'))",
            "a secret in args can be read by everyone who sees the pod: put it into a Secret and name it in auth.secretRef",
        ),
        Rule(
            "env-name",
            "self.matches('^[A-Za-z_][A-Za-z0-9_]*$')",
            "an environment variable's name is letters, digits and underscores, not beginning with a digit",
        ),
        Rule(
            "env-reserved",
            f"!(self in {quoted(_RESERVED_ENV)})",
            f"{', '.join(_RESERVED_ENV)} are set by the operator or the device plugin: remove it; the API key comes from auth.secretRef",
        ),
    )


def _shape_rules() -> tuple[Rule, ...]:
    return (
        Rule(
            "expert-parallelism",
            f"!has(self.expert) || self.expert == 1 || self.expert == {_TENSOR} * {_DATA}",
            "parallelism.expert must be 1 (off) or tensor x data: experts are spread over all cards of a pipeline stage",
            ".expert",
        ),
        Rule(
            "batch-holds-sequences",
            "!has(self.maxBatchedTokens) || !has(self.maxSequences) || self.maxBatchedTokens >= self.maxSequences",
            "context.maxBatchedTokens must be at least maxSequences: each running sequence produces one token a step",
            ".maxBatchedTokens",
        ),
        Rule(
            "recreate-has-no-surge",
            "self.?strategy.orValue('Surge') != 'Recreate' || (!has(self.maxSurge) && !has(self.maxUnavailable))",
            "rollout.strategy Recreate stops all replicas first: remove maxSurge and maxUnavailable, or set strategy to Surge",
            ".strategy",
        ),
        Rule(
            "rollout-moves",
            "self.?maxSurge.orValue(1) > 0 || self.?maxUnavailable.orValue(1) > 0",
            "rollout.maxSurge and maxUnavailable can't both be 0: set maxUnavailable to 1 where no card is spare",
            ".maxUnavailable",
        ),
        duration("drain-timeout", "1s", "2h"),
        duration("startup-timeout", "10s", "24h"),
        duration("thermal-sustain", "0s", "24h"),
        duration("loan-keep", "0s", "168h"),
        duration("health-window", "1m", "168h"),
        duration("health-debounce", "0s", "24h"),
        duration("health-verify", "1s", "24h"),
        duration("health-drain", "1s", "24h"),
        Rule(
            "secret-name",
            f"self.matches('^{SUBDOMAIN}$')",
            "auth.secretRef.name must be the name of a Secret in the service's namespace",
        ),
        Rule(
            "secret-key",
            "self.matches('^[-._a-zA-Z0-9]+$')",
            "auth.secretRef.key must be a key of the Secret: letters, digits and - . _",
        ),
        Rule(
            "pool-ref",
            f"self.matches('^{LABEL}$')",
            "pool must be the name of an NPUPool: lower-case letters, digits and dashes",
        ),
    )


def _pool_rules() -> tuple[Rule, ...]:
    return (
        Rule(
            "pool-name",
            f"self.metadata.name.matches('^{LABEL}$') && self.metadata.name.size() <= 63",
            f"metadata.name must be at most 63 lower-case letters, digits and dashes: nodes carry it as the value of {POOL_LABEL}",
        ),
        Rule(
            "pool-selects-one-way",
            "has(self.nodeSelector) != has(self.nodeNames)",
            "a pool names its nodes one way: set nodeSelector or nodeNames, and not both",
        ),
        Rule(
            "pool-role-fixed",
            "self == oldSelf",
            "role can't change: cards must be drained and reset in between; delete this pool and create another one",
        ),
        Rule(
            "pool-selector-own-label",
            f"self.all(key, !key.startsWith('{GROUP}/'))",
            f"nodeSelector keys of {GROUP}/ are set by the operator from the pool itself: select by other labels of the nodes",
        ),
        Rule(
            "pool-selector-values",
            r"self.all(key, self[key].matches('^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$'))",
            "nodeSelector values must be label values: at most 63 letters, digits and - _ . between them",
        ),
        Rule(
            "pool-node-names",
            f"self.all(name, name.matches('^{SUBDOMAIN}$'))",
            "nodeNames must be names of nodes as `kubectl get nodes` prints them",
        ),
        Rule(
            "pool-namespaces",
            f"self.all(name, name.matches('^{LABEL}$'))",
            "namespaces must be names of namespaces; leave the field out to open the pool to every namespace",
        ),
        Rule(
            "pool-resource",
            rf"self.matches('^{SUBDOMAIN}/[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$') && !self.matches('^([^/]*\\.)?kubernetes\\.io/')",
            "resourceName must be an extended resource with its domain, for example huawei.com/Ascend910",
        ),
    )


RULES: Final = {
    rule.id: rule
    for rule in (
        *_service_rules(),
        *_model_rules(),
        *_engine_rules(),
        *_shape_rules(),
        *_pod_rules(),
        *_pool_rules(),
        *FINETUNE_RULES,
        *DEPLOY_RULES,
        *service_rules(_NATIVE),
    )
}
"""All rules by id."""

POD_RULES: Final = tuple(rule.id for rule in _pod_rules())
TRAINER_POD_RULES: Final = ("pod-never-restarts", *(name for name in POD_RULES if name != "pod-restarts"))
IMAGE_RULES: Final = ("image-form", "image-pinned", "image-not-latest", "image-version", "image-digest")
