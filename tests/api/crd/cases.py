"""One row a CEL rule: a document that the API server takes and one that it refuses because of this rule and no other."""

from __future__ import annotations

from tests.api.crd.case import Case
from tests.api.crd.deploy_cases import DEPLOY_CASES
from tests.api.crd.documents import REMOVED, TINY, Json, pool, service
from tests.api.crd.finetune_cases import FINETUNE_CASES

DIGEST = "sha256:" + "0123456789abcdef" * 4


def _image(reference: str) -> Json:
    return service({"engine": {"image": reference}})


def _source(source: str) -> Json:
    return service({"model": {"source": source}})


def _pod(template: Json) -> Json:
    return service({"podTemplate": template})


def _held(document: Json, cards: int) -> Json:
    return {**document, "status": {"cardsHeld": cards}}


SERVICE_CASES = [
    Case("service-name", service(name="a" * 63), service(name="glm.5.prod"), "at most 63 lower-case letters"),
    Case(
        "native-no-pipeline",
        service(TINY, {"parallelism": {"tensor": 2}}),
        service(TINY, {"parallelism": {"pipeline": 2}}),
        "set engine.name to vllm",
    ),
    Case(
        "native-data-spreads-experts",
        service(TINY, {"parallelism": {"tensor": 1, "data": 2, "expert": 2}}),
        service(TINY, {"parallelism": {"tensor": 1, "data": 2}}),
        "or use replicas",
    ),
    Case(
        "native-weights",
        service(TINY, {"model": {"weights": "w8a8"}}),
        service(TINY, {"model": {"weights": "w4a8c8"}}),
        "bf16, w8a8 and w4a8",
    ),
    Case(
        "cache-bits-native", service(TINY, {"kvCache": {"dtype": "int4"}}), service({"kvCache": {"dtype": "int8"}}), "are engine native's"
    ),
    Case("other-model-parallelism", service(TINY), service(TINY, {"parallelism": {"tensor": REMOVED}}), "state parallelism.tensor"),
    Case("other-model-memory", service(TINY), service(TINY, {"model": {"memory": REMOVED}}), "state model.memory"),
    Case(
        "context-of-model",
        service({"context": {"maxTokens": 202752}}),
        service({"context": {"maxTokens": 202753}}),
        "GLM-5.1 takes at most 202752",
    ),
    Case(
        "heads-of-model",
        service({"parallelism": {"tensor": 16}}),
        service({"parallelism": {"tensor": 12}}),
        "divide the model's 64 attention heads",
    ),
    Case(
        "speculative-batch",
        service({"context": {"maxSequences": 16, "maxBatchedTokens": 64}, "speculative": {"tokens": 3}}),
        service({"context": {"maxSequences": 16, "maxBatchedTokens": 63}, "speculative": {"tokens": 3}}),
        "maxSequences x (1 + speculative.tokens)",
    ),
    Case(
        "model-name",
        service(TINY, {"model": {"name": "My_Model-1.2"}}),
        service(TINY, {"model": {"name": "org/model"}}),
        "belongs into model.source",
    ),
    Case(
        "served-name",
        service({"model": {"servedName": "zai-org/GLM-5.1"}}),
        service({"model": {"servedName": "GLM 5.1"}}),
        "without spaces",
    ),
    Case("memory", service(TINY, {"model": {"memory": "256Mi"}}), service(TINY, {"model": {"memory": 64}}), "at least 256Mi"),
    Case("source-scheme", _source("pvc://weights"), _source("s3://bucket/GLM-5.1"), "must start with pvc://"),
    Case("source-pvc", _source("pvc://glm.weights/a/b"), _source("pvc://Weights/GLM-5.1"), "pvc://CLAIM/PATH"),
    Case("source-absolute", _source("hostpath:///data/GLM-5.1"), _source("hostpath://data/GLM-5.1"), "three slashes"),
    Case("source-path", _source("image:///models/GLM-5.1..old"), _source("image:///models/../etc"), "may not contain `..`"),
    Case("image-form", _image("registry.example:5000/a/b_c:1"), _image("http://registry.example/glm5:1"), "no scheme"),
    Case(
        "image-pinned",
        _image("registry.example:5000/glm5-runtime:0.1.0"),
        _image("registry.example:5000/glm5-runtime"),
        "without a tag means `latest`",
    ),
    Case(
        "image-not-latest",
        _image(f"registry.example/glm5:latest@{DIGEST}"),
        _image("registry.example/glm5:latest-910b"),
        "name a version or date tag, or a digest",
    ),
    Case("image-version", _image("quay.io/ascend/vllm-ascend:glm5-a3"), _image("quay.io/ascend/vllm-ascend:stable"), "contain a digit"),
    Case(
        "image-digest", _image(f"registry.example/glm5@{DIGEST}"), _image(f"registry.example/glm5@{DIGEST[:-1]}"), "64 hexadecimal digits"
    ),
    Case(
        "args-owned",
        service({"engine": {"args": ["--max-model-length-note=8"]}}),
        service({"engine": {"args": ["--max-model-len=8"]}}),
        "from a field of the spec",
    ),
    Case(
        "args-no-secret",
        service({"engine": {"args": ["--seed", "1"]}}),
        service({"engine": {"args": ["--api-key", "k"]}}),
        "auth.secretRef",
    ),
    Case(
        "env-name",
        service({"engine": {"env": [{"name": "_A1", "value": "x"}]}}),
        service({"engine": {"env": [{"name": "1A"}]}}),
        "not beginning with a digit",
    ),
    Case(
        "env-reserved",
        service({"engine": {"env": [{"name": "GLM5_API_KEY_FILE"}]}}),
        service({"engine": {"env": [{"name": "GLM5_API_KEY"}]}}),
        "auth.secretRef",
    ),
    Case(
        "expert-parallelism",
        service({"parallelism": {"tensor": 8, "data": 2, "expert": 16}}),
        service({"parallelism": {"tensor": 8, "data": 2, "expert": 8}}),
        "tensor x data",
    ),
    Case(
        "batch-holds-sequences",
        service({"context": {"maxSequences": 16, "maxBatchedTokens": 16}}),
        service({"context": {"maxSequences": 16, "maxBatchedTokens": 15}}),
        "at least maxSequences:",
    ),
    Case(
        "recreate-has-no-surge",
        service({"rollout": {"strategy": "Recreate"}}),
        service({"rollout": {"strategy": "Recreate", "maxSurge": 1}}),
        "strategy to Surge",
    ),
    Case(
        "rollout-moves",
        service({"rollout": {"maxSurge": 0}}),
        service({"rollout": {"maxSurge": 0, "maxUnavailable": 0}}),
        "set maxUnavailable to 1",
    ),
    Case("drain-timeout", service({"drain": {"timeout": "2h"}}), service({"drain": {"timeout": "2h1s"}}), "between 1s and 2h"),
    Case("startup-timeout", service({"startup": {"timeout": "10s"}}), service({"startup": {"timeout": "9s"}}), "between 10s and 24h"),
    Case(
        "secret-name",
        service({"auth": {"secretRef": {"name": "api.key", "key": "k"}}}),
        service({"auth": {"secretRef": {"name": "Key", "key": "k"}}}),
        "name of a Secret",
    ),
    Case(
        "secret-key",
        service({"auth": {"secretRef": {"name": "a", "key": "_k.1"}}}),
        service({"auth": {"secretRef": {"name": "a", "key": "a/b"}}}),
        "key of the Secret",
    ),
    Case("pool-ref", service({"pool": "a3-night"}), service({"pool": "A3"}), "name of an NPUPool"),
    Case("pod-no-node-name", _pod({"spec": {"hostNetwork": True}}), _pod({"spec": {"nodeName": "n1"}}), "select nodes in the NPUPool"),
    Case(
        "pod-no-own-pool",
        _pod({"spec": {"nodeSelector": {"disk": "nvme"}}}),
        _pod({"spec": {"nodeSelector": {"glm5.dev/pool": "training"}}}),
        "with spec.pool",
    ),
    Case(
        "pod-no-own-labels",
        _pod({"metadata": {"labels": {"team": "a"}}}),
        _pod({"metadata": {"labels": {"glm5.dev/serving": "true"}}}),
        "prefix of your own",
    ),
    Case(
        "pod-no-token",
        _pod({"spec": {"automountServiceAccountToken": False}}),
        _pod({"spec": {"automountServiceAccountToken": True}}),
        "must be false",
    ),
    Case("pod-restarts", _pod({"spec": {"restartPolicy": "Always"}}), _pod({"spec": {"restartPolicy": "Never"}}), "must be Always"),
    Case(
        "pool-held",
        before=_held(service(), 16),
        accepted=service({"replicas": 0}),
        rejected=service({"pool": "other"}),
        says="set replicas to 0 and wait",
    ),
]


def _health(**fields: str) -> Json:
    return pool({"health": fields})


def _loan(keep: str) -> Json:
    return pool({"lend": [{"pool": "training", "nodes": 1, "keep": keep}]})


def _thermal(sustain: str) -> Json:
    return pool({"health": {"thermal": [{"temperature": 85, "sustain": sustain}]}})


POOL_CASES = [
    Case("pool-name", pool(name="a" * 63), pool(name="a.b"), "value of glm5.dev/pool"),
    Case(
        "pool-selects-one-way",
        pool({"nodeSelector": REMOVED, "nodeNames": ["n1"]}),
        pool({"nodeNames": ["n1"]}),
        "nodeSelector or nodeNames",
    ),
    Case(
        "pool-role-fixed",
        before=pool(name="fixed"),
        accepted=pool({"taint": True}, name="fixed"),
        rejected=pool({"role": "Training"}, name="fixed"),
        says="create another one",
    ),
    Case(
        "pool-selector-own-label",
        pool({"nodeSelector": {"glm5.device/x": "1"}}),
        pool({"nodeSelector": {"glm5.dev/pool": "inference"}}),
        "select by other labels",
    ),
    Case("pool-selector-values", pool({"nodeSelector": {"npu": ""}}), pool({"nodeSelector": {"npu": "-a3"}}), "must be label values"),
    Case(
        "pool-node-names",
        pool({"nodeSelector": REMOVED, "nodeNames": ["node-1.rack-2"]}),
        pool({"nodeSelector": REMOVED, "nodeNames": ["Node 1"]}),
        "kubectl get nodes",
    ),
    Case("pool-namespaces", pool({"namespaces": ["prod", "test"]}), pool({"namespaces": ["*"]}), "leave the field out"),
    Case("pool-resource", pool({"resourceName": "huawei.com/Ascend910"}), pool({"resourceName": "Ascend910"}), "huawei.com/Ascend910"),
    Case("loan-keep", _loan("0s"), _loan("168h1s"), "between 0s and 168h"),
    Case("thermal-sustain", _thermal("24h"), _thermal("24h1s"), "between 0s and 24h"),
    Case("health-window", _health(window="1m"), _health(window="59s"), "between 1m and 168h"),
    Case("health-debounce", _health(debounce="0s"), _health(debounce="25h"), "between 0s and 24h"),
    Case("health-verify", _health(verify="1s"), _health(verify="0s"), "between 1s and 24h"),
    Case("health-drain", _health(drain="24h"), _health(drain="24h1s"), "between 1s and 24h"),
]

CASES = SERVICE_CASES + POOL_CASES + FINETUNE_CASES + DEPLOY_CASES
