"""A DeepSpeed JSON in terms of our training file: what it says of the optimisation is taken over, the rest is named.

Asked by `config` where a training file has `deepspeed: FILE`. As in transformers, "auto" leaves a value to the training file, and a number
that differs from one there is an error. Keys and their meaning are those of DeepSpeed 0.18.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

_AUTO = "auto"


def _keys(text: str) -> frozenset[str]:
    return frozenset(text.split())


_ELSEWHERE = _keys(
    "steps_per_print wall_clock_breakdown memory_breakdown dump_state prescale_gradients gradient_predivide_factor communication_data_type"
    " seq_parallel_communication_data_type seq_parallel_comm_data_type sparse_gradients disable_allgather zero_allow_untested_optimizer"
    " zero_force_ds_cpu_optimizer dataloader_drop_last vocabulary_size graph_harvesting use_data_before_expert_parallelism comms_logger"
    " flops_profiler tensorboard wandb csv_monitor comet aio checkpoint data_types autotuning nebula compile hybrid_engine"
)
"""About speed, memory, logs and files of DeepSpeed's own."""
_OTHER_TRAINING = _keys(
    "amp sparse_attention curriculum_learning data_efficiency progressive_layer_drop compression_training quantize_training eigenvalue"
    " elasticity pipeline tensor_parallel sequence_parallel_size"
)
"""What would be learned otherwise, or by other numbers of rows: refused where it is switched on."""
_PLACEMENT = _keys(
    "offload_param offload_optimizer zenflow overlap_comm contiguous_gradients reduce_scatter reduce_bucket_size allgather_partitions"
    " allgather_bucket_size use_multi_rank_bucket_allreduce load_from_fp32_weights elastic_checkpoint sub_group_size cpu_offload"
    " cpu_offload_param cpu_offload_params cpu_offload_use_pin_memory prefetch_bucket_size param_persistence_threshold"
    " model_persistence_threshold max_live_parameters max_reuse_distance gather_16bit_weights_on_model_save module_granularity_threshold"
    " use_all_reduce_for_fetch_params allgather_sequential partition_stream_chunk_size gather_fp16_weights_on_model_save"
    " ignore_unused_parameters legacy_stage1 round_robin_gradients zero_hpz_partition_size zero_quantized_weights"
    " zero_quantized_nontrainable_weights zero_quantized_gradients zeropp_loco_param mics_shard_size mics_hierarchical_params_gather"
    " memory_efficient_linear pipeline_loading_checkpoint override_module_apply log_trace_cache_warnings enable_sanity_checks"
    " save_muon_momentum_buffer_in_memory leaf_module"
)
"""Of zero_optimization, those of stage 3 also with stage3_ in front: how DeepSpeed divides and moves what FSDP does its own way."""
_SCALING = _keys(
    "auto_cast loss_scale initial_scale_power loss_scale_window hysteresis consecutive_hysteresis min_loss_scale fused_mode"
    " fp16_master_weights_and_grads immediate_grad_update bf16_master_weights_and_grads bf16_optimizer_states check_grad_overflow"
)
_RECOMPUTING = _keys(
    "partition_activations cpu_checkpointing contiguous_memory_optimization number_checkpoints synchronize_checkpoint_boundary profile"
)
_OPTIMIZERS = {"adam", "adamw"}
_SCHEDULES = {"WarmupLR": "constant", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
_SMALL = 1e-3
"""A least share of the rate that counts as the zero that ours ends with: DeepSpeed's default is 1e-4."""


@dataclass
class Taken:
    """What a DeepSpeed JSON says, in terms of the section `training`."""

    training: dict[str, Any] = field(default_factory=dict)
    origins: dict[str, str] = field(default_factory=dict)
    """For each field the key that said it."""
    ignored: list[str] = field(default_factory=list)
    """Keys without a meaning here."""
    notes: list[str] = field(default_factory=list)
    """What is done in another way than DeepSpeed would."""
    faults: list[str] = field(default_factory=list)

    def put(self, name: str, value: object, key: str) -> None:
        """A field's value, unless it is left to the training file."""
        if value not in (None, _AUTO):
            self.training[name], self.origins[name] = value, key

    @property
    def warnings(self) -> list[str]:
        """For the log."""
        named = [f"deepspeed: ignored, without a meaning here: {', '.join(self.ignored)}"] if self.ignored else []
        return named + [f"deepspeed: {note}" for note in self.notes]


def read_deepspeed(path: Path, stated: Mapping[str, Any], ranks: int) -> Taken:
    """`stated`: the training file's own section `training`. `ranks`: by which a batch for each card is multiplied. Faults are returned."""
    try:
        raw = json.loads(path.read_text())
    except (OSError, ValueError, RecursionError) as error:
        return Taken(faults=[f"not readable as JSON ({error})"])
    if not isinstance(raw, dict):
        return Taken(faults=["holds no JSON object"])
    return take(raw, stated, ranks)


def take(raw: Mapping[str, Any], stated: Mapping[str, Any], ranks: int) -> Taken:
    """The same of what was read."""
    taken = Taken()
    sections = {
        "bf16": _SCALING | {"enabled"},
        "bfloat16": _SCALING | {"enabled"},
        "fp16": _SCALING | {"enabled"},
        "zero_optimization": _PLACEMENT | {f"stage3_{name}" for name in _PLACEMENT} | {"stage"},
        "activation_checkpointing": _RECOMPUTING,
        "optimizer": frozenset({"type", "params", "legacy_fusion"}),
        "scheduler": frozenset({"type", "params"}),
    }
    found = {name: _section(raw, name, taken) for name in sections}
    plain = {"train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"}
    _name_unknown(raw, {*sections, *plain, *_ELSEWHERE, *_OTHER_TRAINING}, "", taken)
    for name, known in sections.items():
        _name_unknown(found[name], known, f"{name}.", taken)
    taken.ignored += [key for key in raw if key in _ELSEWHERE]
    taken.faults += [f"{key}: not supported here; remove it or switch it off" for key in raw if key in _OTHER_TRAINING and _is_on(raw[key])]

    _batch(raw, stated, ranks, taken)
    taken.put("clip", raw.get("gradient_clipping"), "gradient_clipping")
    _dtype({name: found[name] for name in ("bf16", "bfloat16", "fp16") if name in raw}, taken)
    _sharding(found["zero_optimization"], taken)
    if raw.get("activation_checkpointing") not in (None, _AUTO):
        taken.put("activation_checkpointing", True, "activation_checkpointing")
        _ignore(found["activation_checkpointing"], _RECOMPUTING, "activation_checkpointing.", taken)
    _optimizer(found["optimizer"], taken)
    _scheduler(found["scheduler"], taken)
    _compare(stated, taken)
    return taken


def _section(raw: Mapping[str, Any], name: str, taken: Taken) -> Mapping[str, Any]:
    value = raw.get(name)
    if value is None or value == _AUTO:
        return {}
    if not isinstance(value, dict):
        taken.faults.append(f"{name}: is {value!r}, expected an object")
        return {}
    return value


def _name_unknown(section: Mapping[str, Any], known: Iterable[str], prefix: str, taken: Taken) -> None:
    names = list(known)
    for key in section:
        if key not in names:
            near = get_close_matches(key, names, 1)
            taken.faults.append(f"{prefix}{key}: unknown" + (f"; is {near[0]} meant?" if near else "; remove it or correct its name"))


def _ignore(section: Mapping[str, Any], names: Iterable[str], prefix: str, taken: Taken) -> None:
    taken.ignored += [f"{prefix}{key}" for key in section if key in names]


def _is_on(value: object) -> bool:
    return bool(value.get("enabled", True)) if isinstance(value, dict) else value not in (None, False, 0, 1, _AUTO)


def _batch(raw: Mapping[str, Any], stated: Mapping[str, Any], ranks: int, taken: Taken) -> None:
    """DeepSpeed's whole batch is that of a card, times pieces, times cards; ours is said as a whole."""
    whole, each, pieces = (raw.get(key) for key in ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"))
    taken.put("gradient_accumulation", pieces, "gradient_accumulation_steps")
    if each in (None, _AUTO):
        taken.put("batch_size", whole, "train_batch_size")
        return
    if whole not in (None, _AUTO):
        taken.put("batch_size", whole, "train_batch_size")
        taken.notes.append("train_micro_batch_size_per_gpu follows from train_batch_size, gradient_accumulation_steps and the cards")
        return
    pieces = stated.get("gradient_accumulation", 1) if pieces in (None, _AUTO) else pieces
    if not all(isinstance(number, int) and number > 0 for number in (each, pieces)):
        taken.faults.append(f"train_micro_batch_size_per_gpu: {each!r} rows in {pieces!r} pieces; both are whole numbers above zero")
        return
    taken.put("batch_size", each * pieces * ranks, f"train_micro_batch_size_per_gpu in {pieces} pieces on {ranks} cards")


def _dtype(sections: Mapping[str, Mapping[str, Any]], taken: Taken) -> None:
    """With neither switched on DeepSpeed computes in fp32."""
    switches = {name: section.get("enabled", False) for name, section in sections.items()}
    for name, section in sections.items():
        _ignore(section, _SCALING, f"{name}.", taken)
    if wrong := [name for name, value in switches.items() if value not in (True, False, _AUTO)]:
        taken.faults.append(f"{wrong[0]}.enabled: is {switches[wrong[0]]!r}, expected true, false or {_AUTO!r}")
    kinds = {"fp16" if name == "fp16" else "bf16" for name, value in switches.items() if value is True}
    if len(kinds) > 1:
        taken.faults.append("bf16.enabled and fp16.enabled: both are true; keep one")
    elif kinds:
        kind = kinds.pop()
        taken.put("dtype", kind, f"{kind}.enabled")
    elif switches and not wrong and _AUTO not in switches.values():
        taken.put("dtype", "fp32", ", ".join(f"{name}.enabled" for name in switches))


def _sharding(section: Mapping[str, Any], taken: Taken) -> None:
    stage = section.get("stage")
    if stage in (0, 1, 2, 3) and not isinstance(stage, bool):
        taken.put("sharding", "ddp" if stage == 0 else "fsdp", "zero_optimization.stage")
        if stage in (1, 2):
            taken.notes.append(f"zero_optimization.stage {stage} becomes sharding fsdp, which divides the weights too")
    elif stage not in (None, _AUTO):
        taken.faults.append(f"zero_optimization.stage: is {stage!r}, expected 0 to 3")
    _ignore(section, set(section) - {"stage"}, "zero_optimization.", taken)


def _optimizer(section: Mapping[str, Any], taken: Taken) -> None:
    kind, params = section.get("type"), _section(section, "params", taken)
    if kind not in (None, _AUTO) and str(kind).lower() not in _OPTIMIZERS:
        taken.faults.append(f"optimizer.type: {kind!r} is not supported here; AdamW is")
        return
    off = {name for name in ("adam_w_mode", "bias_correction") if params.get(name, True) is False}
    off |= {"amsgrad"} if params.get("amsgrad") is True else set()
    taken.faults += [f"optimizer.params.{name}: AdamW with this changed is not supported here; remove it" for name in sorted(off)]
    names = {"lr": "learning_rate", "betas": "betas", "eps": "epsilon", "weight_decay": "weight_decay"}
    without = {"torch_adam", "adam_w_mode", "bias_correction", "amsgrad", "fused", "foreach"}
    _name_unknown(params, {*names, *without}, "optimizer.params.", taken)
    _ignore(params, without - off, "optimizer.params.", taken)
    _ignore(section, {"legacy_fusion"}, "optimizer.", taken)
    betas = params.get("betas")
    if isinstance(betas, list) and _AUTO in betas:  # as transformers writes it when only one is left open
        taken.faults.append("optimizer.params.betas: two numbers, or 'auto' for both")
        return
    for name, own in names.items():
        taken.put(own, params.get(name), f"optimizer.params.{name}")


def _scheduler(section: Mapping[str, Any], taken: Taken) -> None:
    kind, params = section.get("type"), _section(section, "params", taken)
    if kind in (None, _AUTO):
        return
    if not isinstance(kind, str) or kind not in _SCHEDULES:
        taken.faults.append(f"scheduler.type: {kind!r} is not supported here; {', '.join(_SCHEDULES)} are")
        return
    taken.put("schedule", _SCHEDULES[kind], "scheduler.type")
    names = {"warmup_num_steps": "warmup_steps"}
    if kind != "WarmupCosineLR":
        names["warmup_max_lr"] = "learning_rate"  # DeepSpeed's schedule writes it over the optimiser's
    if kind != "WarmupLR":
        names["total_num_steps"] = "steps"
    least = {"warmup_min_ratio", "cos_min_ratio"} if kind == "WarmupCosineLR" else {"warmup_min_lr"}
    _name_unknown(params, {*names, *least, "warmup_type", "last_batch_iteration"}, "scheduler.params.", taken)
    _ignore(params, {"last_batch_iteration"}, "scheduler.params.", taken)
    for name, own in names.items():
        taken.put(own, params.get(name), f"scheduler.params.{name}")
    for name in sorted(least & set(params)):
        value, zero = params[name], 0 if name == "warmup_min_lr" else _SMALL
        if isinstance(value, int | float) and value > zero:
            taken.faults.append(f"scheduler.params.{name}: {value} is not supported here; the rate begins at zero and ends there")
    if params.get("warmup_type", "log") != "linear":
        taken.notes.append("the rate rises along a line (scheduler.params.warmup_type linear)")


def _compare(stated: Mapping[str, Any], taken: Taken) -> None:
    """A field that both say must be the same."""
    for name, value in taken.training.items():
        if name in stated and stated[name] != value:
            both = f"{stated[name]!r} in the training file and {value!r} here"
            taken.faults.append(f"{taken.origins[name]}: training.{name} is {both}; keep one, or say {_AUTO!r} here")
    for name, other in (("steps", "epochs"), ("warmup_steps", "warmup"), ("batch_size", "batch_tokens")):
        if name in taken.training and stated.get(other) is not None:
            taken.faults.append(
                f"{taken.origins[name]}: the training file says the same by training.{other}; keep one, or say {_AUTO!r} here"
            )
