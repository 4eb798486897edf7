"""The CEL rules of GLM5FinetuneJob, each with a message that says what to change. `rules` takes them into its table.

What is allowed and only unwise (`advice` of the planner) is a condition and no rule; what needs a second object or a fact is the planner's.
"""

from __future__ import annotations

from typing import Final

from .cel import SUBDOMAIN, Rule, duration, quoted
from .known import CONTEXT_LIMIT, KNOWN_MODELS

TARGETS: Final = (
    "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "experts", "q", "v",
)  # fmt: skip
"""Modules that take an adapter; q and v are what other models call q_b_proj and kv_b_proj."""

FIXED: Final = (
    "model", "method", "data", "lora", "rl", "training", "evaluation", "pool", "parallelism", "checkpoint", "output", "merge",
)  # fmt: skip
"""Fields that the checkpoints of a run depend on, so that they can't change under it."""

_KNOWN: Final = quoted(KNOWN_MODELS)
_BAD_PATH: Final = r"^[a-z]+:///?[^\\n]*(//|/\\.\\.?(/|$)|[\\s\\\\])"
_OPTIONAL: Final = ("lora", "rl", "training", "evaluation", "merge")
_UNCHANGED: Final = " && ".join(
    f"(has(self.spec.{name}) ? has(oldSelf.spec.{name}) && self.spec.{name} == oldSelf.spec.{name} : !has(oldSelf.spec.{name}))"
    if name in _OPTIONAL
    else f"self.spec.{name} == oldSelf.spec.{name}"
    for name in FIXED
)


def _job_rules() -> tuple[Rule, ...]:
    limits = " && ".join(f"(self.model.name != '{name}' || self.data.maxLength <= {limit})" for name, limit in CONTEXT_LIMIT.items())
    return (
        Rule(
            "finetune-name",
            "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')",
            "metadata.name must be at most 63 lower-case letters, digits and dashes, start with a letter and end with a letter or digit: "
            "Jobs and labels are named after it",
        ),
        Rule(
            "finetune-fixed",
            f"!has(self.status) || !has(self.status.startTime) || ({_UNCHANGED})",
            f"{', '.join(FIXED)} can't change once the job has started: create another job; policy and podTemplate can change",
            ".spec",
        ),
        Rule(
            "finetune-section",
            "self.method != 'full' || !has(self.lora)",
            "the section lora belongs to methods that train an adapter: remove it, or set method to lora",
            ".lora",
        ),
        Rule(
            "finetune-merge",
            "self.method != 'full' || !has(self.merge)",
            "merge belongs to methods where there is an adapter to merge: remove it, or set method to lora",
            ".merge",
        ),
        *_rl_rules(),
        Rule(
            "finetune-memory",
            f"self.model.name in {_KNOWN} || has(self.model.memory)",
            "the memory of this model isn't known: state model.memory, the main memory of one node's pod",
            ".model.memory",
        ),
        Rule(
            "finetune-length-of-model",
            f"!has(self.data.maxLength) || ({limits})",
            "data.maxLength is above what the model takes: "
            + ", ".join(f"{name} at most {limit}" for name, limit in CONTEXT_LIMIT.items()),
            ".data.maxLength",
        ),
        Rule(
            "finetune-batch-reaches-cards",
            "self.?training.?batchTokens.hasValue()"
            " || self.?training.?batchSize.orValue(8) >= self.parallelism.?nodes.orValue(1) * self.parallelism.npusPerNode",
            "training.batchSize (default 8) counts the rows of all cards together: set at least nodes x npusPerNode, one a card",
            ".training.batchSize",
        ),
        Rule(
            "finetune-folders",
            "self.output != self.checkpoint.storage && self.output != self.model.source && self.checkpoint.storage != self.model.source",
            "output, checkpoint.storage and model.source must be three folders: a run writes to the first two and reads the third",
            ".output",
        ),
    )


def _rl_rules() -> tuple[Rule, ...]:
    by_rewards = "self.method in ['grpo', 'ppo']"
    return (
        Rule(
            "finetune-rl",
            f"({by_rewards}) == has(self.rl)",
            "methods grpo and ppo need the section rl, and no other method has it: add it, remove it, or change method",
            ".rl",
        ),
        Rule(
            "finetune-rl-card",
            f"!({by_rewards}) || self.parallelism.?nodes.orValue(1) * self.parallelism.npusPerNode == 1",
            "methods grpo and ppo run on one card: set parallelism.npusPerNode to 1, and nodes to 1 or leave it out",
            ".parallelism",
        ),
        Rule(
            "finetune-rl-rows",
            f"!({by_rewards}) || (self.?evaluation.?share.orValue(0.0) == 0.0 && !self.?training.?batchTokens.hasValue())",
            "with methods grpo and ppo no rows are held back, and a batch is so many prompts: remove evaluation and training.batchTokens",
            ".method",
        ),
        Rule(
            "finetune-rl-packing",
            f"!({by_rewards}) || !self.?training.?packing.orValue(false)",
            "with methods grpo and ppo a batch is so many prompts, each by itself: remove training.packing",
            ".training.packing",
        ),
        Rule(
            "finetune-rl-dropout",
            f"!({by_rewards}) || self.?lora.?dropout.orValue(0.0) == 0.0",
            "with methods grpo and ppo nothing is dropped, or probabilities would differ by chance: remove lora.dropout",
            ".lora.dropout",
        ),
        Rule(
            "finetune-grpo",
            "self.method != 'grpo' || !has(self.rl) || (self.rl.?group.orValue(8) > 1 && !has(self.rl.gamma) && !has(self.rl.lam)"
            " && !has(self.rl.valueWeight) && !has(self.rl.valueClip))",
            "grpo compares answers of a group and has no values: let rl.group be 2 or more, without gamma, lam, valueWeight and valueClip",
            ".rl",
        ),
        Rule(
            "finetune-ppo",
            "self.method != 'ppo' || !has(self.rl) || !has(self.rl.divideBySpread)",
            "rl.divideBySpread belongs to method grpo: remove it",
            ".rl.divideBySpread",
        ),
        Rule(
            "reward-rule",
            "self.kind == 'rule' ? (self.?rule.orValue('exact') != 'regex' || has(self.pattern)) : (!has(self.rule) && !has(self.pattern))",
            "reward.rule and reward.pattern belong to kind rule, and rule regex needs a pattern",
            ".rule",
        ),
        Rule(
            "reward-http",
            "self.kind == 'http' ? has(self.url) : (!has(self.url) && !has(self.timeout) && !has(self.retries))",
            "reward.url, timeout and retries belong to kind http, which needs a url",
            ".url",
        ),
        Rule("reward-url", "self.matches('^https?://[^/ ]+(/[^ ]*)?$')", "reward.url must be http://HOST:PORT/PATH or https://HOST/PATH"),
    )


def _data_rules() -> tuple[Rule, ...]:
    return (
        Rule(
            "data-scheme",
            "self.matches('^(pvc|hostpath)://')",
            "data.source must start with pvc:// (pvc://CLAIM/FILE) or hostpath:// (hostpath:///ABSOLUTE/FILE)",
        ),
        Rule(
            "data-file",
            f"!self.matches('^(pvc|hostpath)://') || self.matches('^(pvc://{SUBDOMAIN}|hostpath://)/[^/](.*[^/])?$')",
            "data.source must name a file: pvc://CLAIM/FILE with a PersistentVolumeClaim of the job's namespace, or hostpath:///ABSOLUTE/FILE",
        ),
        Rule(
            "data-path",
            f"!self.matches('{_BAD_PATH}')",
            "the path of data.source may not contain `..`, `.`, `//`, backslashes or spaces: write it out",
        ),
        Rule(
            "data-length",
            "self % 16 == 0",
            "data.maxLength must be a multiple of 16: rows are padded to one",
        ),
    )


def _section_rules() -> tuple[Rule, ...]:
    return (
        Rule("lora-rank", "self % 16 == 0", "lora.rank must be a multiple of 16: what the cards' matrix units take without padding"),
        Rule(
            "lora-alpha",
            "!has(self.alpha) || self.alpha >= double(self.?rank.orValue(16))",
            "lora.alpha must be at least lora.rank (default 16), or the adapter is scaled down: raise alpha, or leave it out",
            ".alpha",
        ),
        Rule(
            "lora-targets",
            f"self.all(name, name in {quoted(TARGETS)})",
            f"lora.targets are modules of the model that take an adapter: {', '.join(TARGETS)}",
        ),
        Rule("lora-dropout", "self < 1.0", "lora.dropout is a share of the inputs: 0 or more and less than 1"),
        Rule(
            "training-accumulation",
            "self <= 4",
            "training.gradientAccumulation is at most 4: lower batchSize, or take more cards",
        ),
        Rule(
            "training-end",
            "!has(self.epochs) || !has(self.steps)",
            "training.epochs and training.steps both say when to end: keep one",
            ".steps",
        ),
        Rule(
            "training-batch",
            "!has(self.batchSize) || !has(self.batchTokens)",
            "training.batchSize and training.batchTokens both say how large a batch is: keep one",
            ".batchTokens",
        ),
        Rule("training-rate", "self > 0.0", "training.learningRate must be above 0 and at most 1, for example 2e-4"),
        Rule("training-warmup", "self < 1.0", "training.warmup is a share of the steps: 0 or more and less than 1, for example 0.03"),
        Rule("training-decay", "self < 1.0", "training.weightDecay must be 0 or more and less than 1, for example 0.01"),
        Rule(
            "training-clip", "self > 0.0", "training.clip must be above 0: the length that a longer gradient is shortened to, for example 1"
        ),
        Rule(
            "evaluation-patience",
            "!has(self.patience) || self.share > 0.0",
            "evaluation.patience needs rows to judge by: set evaluation.share above 0",
            ".patience",
        ),
        Rule(
            "storage-claim",
            f"self.matches('^pvc://{SUBDOMAIN}(/.*)?$')",
            "checkpoint.storage must be pvc://CLAIM or pvc://CLAIM/FOLDER, where CLAIM is a PersistentVolumeClaim of the job's namespace",
        ),
        Rule(
            "storage-path",
            f"!self.matches('{_BAD_PATH}')",
            "the path of checkpoint.storage may not contain `..`, `.`, `//`, backslashes or spaces: write it out",
        ),
        Rule(
            "output-folder",
            f"self.matches('^pvc://{SUBDOMAIN}/[^/](.*[^/])?$')",
            "output must be pvc://CLAIM/FOLDER: the folder is made, and CLAIM is a PersistentVolumeClaim of the job's namespace",
        ),
        Rule(
            "output-path",
            f"!self.matches('{_BAD_PATH}')",
            "the path of output may not contain `..`, `.`, `//`, backslashes or spaces: write it out",
        ),
        duration("policy-deadline", "1m", "8760h"),
        duration("policy-ttl", "0s", "8760h"),
        Rule(
            "pod-never-restarts",
            "!has(self.spec) || !has(self.spec.restartPolicy) || self.spec.restartPolicy == 'Never'",
            "spec.restartPolicy must be Never (or absent): a rank that failed ends its attempt, and the next one begins with all ranks",
        ),
    )


FINETUNE_RULES: Final = (*_job_rules(), *_data_rules(), *_section_rules())
