"""The arguments of `glm5-runtime serve`: types, ranges and what contradicts each other. Touches no file, imports no torch."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from glm5_runtime.config import LEAST_SAMPLE, MAX_DRAFTS, MAX_RANKS, ContextTier, parse_tiers

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}"


class ArgumentFaults(Exception):  # noqa: N818 - a list of them
    """Arguments that can't be used, one line each."""

    def __init__(self, faults: Sequence[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = tuple(faults)


def _seconds(value: object) -> object:
    """`300s`, `5m`, `1m30s`, `500ms` → seconds."""
    parts = re.findall(r"(\d+(?:\.\d+)?)(ms|s|m|h)", value) if isinstance(value, str) else []
    if not parts or "".join(number + unit for number, unit in parts) != value:
        raise ValueError("must be a duration such as 300s, 5m or 500ms")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _ratio(value: object) -> float | None:
    """`off`, `on`, or a share of the tokens."""
    named: dict[object, float | None] = {"off": None, "on": 0.25, None: None}
    if value in named:
        return named[value]
    try:
        ratio = float(str(value))
    except ValueError:
        ratio = 0.0
    if not LEAST_SAMPLE <= ratio <= 1:
        raise ValueError(f"must be off, on, or a share from {LEAST_SAMPLE} to 1: with less, what the prompt said is no longer found")
    return ratio


def _hook(value: str) -> str:
    """A URL or the command line of a program that there is; a shell never sees it."""
    if value.startswith(("http://", "https://")):
        if not urlsplit(value).hostname:
            raise ValueError("must be a URL such as http://host/path, or a command")
        return value
    try:
        words = shlex.split(value)
    except ValueError as error:
        raise ValueError(f"can't be read as a command line: {error}") from None
    if not words or shutil.which(words[0]) is None:
        raise ValueError(f"there is no program {words[0] if words else ''!r} to run; give a URL or a command line")
    return value


def _bytes(value: object) -> object:
    """`28G`, `28GB`, `2Gi`, `1000000` → bytes."""
    match = re.fullmatch(r"(\d{1,15}(?:\.\d{1,6})?)([KMGT]?)(i?)B?", value) if isinstance(value, str) else None
    if match is None or (match[3] and not match[2]):
        raise ValueError("must be an amount of memory such as 28G, 28Gi or a number of bytes")
    size = int(float(match[1]) * (1024 if match[3] else 1000) ** ("KMGT".index(match[2]) + 1 if match[2] else 0))
    if 0 < size < 1 << 20:
        raise ValueError(f"{value} would be {size} bytes; name the unit, as in 28G")
    return size


def _named_folder(value: object) -> object:
    """`support=/adapters/support` → name and folder."""
    name, equals, path = value.partition("=") if isinstance(value, str) else ("", "", "")
    if not equals or not path or not re.fullmatch(MODEL_NAME, name):
        raise ValueError("must be a name and a folder, such as support=/adapters/support")
    return name, Path(path)


def _tiers(value: object) -> object:
    return parse_tiers(value) if isinstance(value, str) else value


class ServeArguments(BaseModel):
    """Checked arguments of `serve`. Field names are the flags' with underscores."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Path
    served_model_name: str = Field(pattern=f"^{MODEL_NAME}$")
    host: str = Field("127.0.0.1", min_length=1)
    port: int = Field(8000, ge=1, le=65535)
    device: Literal["auto", "cpu", "npu", "cuda"] = "auto"
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    page_size: int = Field(16, ge=1, le=1024)
    kv_cache_dtype: Literal["auto", "bfloat16", "float16", "float32", "int8", "int4"] = "auto"
    sparse_kv: Annotated[float | None, BeforeValidator(_ratio)] = None
    max_model_len: int | None = Field(None, ge=1)
    max_sequences: int = Field(16, ge=1, le=4096)
    max_batched_tokens: int = Field(2048, ge=1)
    max_queue: int = Field(256, ge=0, le=100_000)
    max_request_bytes: int = Field(16 * 1024 * 1024, ge=1024)
    drain_timeout: Annotated[float, BeforeValidator(_seconds), Field(ge=0, le=86_400)] = 300.0
    chat_template: str = "auto"
    model_version: Literal["5", "5.1", "5.2", "5.3"] | None = None
    memory_fraction: float = Field(0.9, gt=0, le=1)
    memory_reserve: Annotated[int, BeforeValidator(_bytes)] = 0
    memory_limit: Annotated[int, BeforeValidator(_bytes), Field(ge=1)] | None = None
    context_tiers: Annotated[tuple[ContextTier, ...] | None, BeforeValidator(_tiers)] = None
    prefix_cache: Literal["on", "off"] = "on"
    speculative_tokens: int = Field(0, ge=0, le=MAX_DRAFTS)
    speculative_method: Literal["auto", "mtp", "ngram"] = "auto"
    tensor_parallel_size: int = Field(1, ge=1, le=MAX_RANKS)
    data_parallel_size: int = Field(1, ge=1, le=MAX_RANKS)
    enable_expert_parallel: bool = False
    check_weights: bool = False
    enable_lora: bool = False
    max_loras: int = Field(8, ge=1, le=256)
    max_lora_rank: int = Field(16, ge=1, le=1024)
    lora_modules: tuple[Annotated[tuple[str, Path], BeforeValidator(_named_folder)], ...] | None = None
    lora_dir: Path | None = None
    adapters_file: Path | None = None
    seed: int = Field(0, ge=0, le=2**63 - 1)
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    audit_log: str | None = Field(None, min_length=1)
    post_inference_hook: tuple[Annotated[str, AfterValidator(_hook)], ...] | None = None


def check_arguments(given: Mapping[str, Any]) -> ServeArguments:
    """Types and ranges of all arguments together; touches no file. Raises ArgumentFaults."""
    values = {name: value for name, value in given.items() if value is not None}
    if "served_model_name" not in values and "model" in values:
        values["served_model_name"] = Path(values["model"]).resolve().name
    try:
        arguments = ServeArguments.model_validate(values)
    except ValidationError as error:
        faults = [(f"--{str(fault['loc'][0]).replace('_', '-')}", fault["msg"].removeprefix("Value error, ")) for fault in error.errors()]
        missing_name = "--served-model-name"  # follows from --model; saying both would send the user two ways
        told = [(flag, text) for flag, text in faults if flag != missing_name or "model" in values]
        raise ArgumentFaults([f"{flag}: {text}" for flag, text in told]) from None
    if len(arguments.context_tiers or ()) >= arguments.max_sequences:
        why = f"too many for --max-sequences {arguments.max_sequences}: each needs one, and longer requests too"
        raise ArgumentFaults([f"--context-tiers: {why}"])
    least = arguments.max_sequences * (1 + arguments.speculative_tokens)  # each sequence needs a token a step, and its guesses
    if arguments.max_batched_tokens < least:
        of = " times (1 + --speculative-tokens)" if arguments.speculative_tokens else ""
        raise ArgumentFaults([f"--max-batched-tokens: {arguments.max_batched_tokens} is less than --max-sequences{of} {least}"])
    if unfit := _adapter_faults(arguments):
        raise ArgumentFaults(unfit)
    return arguments


def _adapter_faults(arguments: ServeArguments) -> list[str]:
    if not arguments.enable_lora:
        given = {"--lora-modules": arguments.lora_modules, "--lora-dir": arguments.lora_dir, "--adapters-file": arguments.adapters_file}
        return [f"{flag}: needs --enable-lora" for flag, value in given.items() if value]
    names = [name for name, _ in arguments.lora_modules or ()]
    faults = [f"--lora-modules: {name} is there twice" for name in sorted({name for name in names if names.count(name) > 1})]
    if arguments.served_model_name in names:
        faults.append(f"--lora-modules: {arguments.served_model_name} is the name of the model itself")
    if len(names) > arguments.max_loras:
        faults.append(f"--lora-modules: {len(names)} adapters are more than --max-loras {arguments.max_loras}")
    return faults
