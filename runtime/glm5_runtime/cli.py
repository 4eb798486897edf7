"""The command line `glm5-runtime`: reads arguments strictly, picks the device, starts the server.

`parse_serve` is the contract with whoever writes such a command (the operator's plan): flags in, checked arguments out, all faults at once.
Imports neither torch nor the server before the arguments are right and the environment for torch is set.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urlsplit

import typer
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from glm5_runtime import device as devices
from glm5_runtime.config import (
    LEAST_SAMPLE,
    MAX_DRAFTS,
    MAX_RANKS,
    ConfigError,
    ContextTier,
    EngineConfig,
    ModelConfig,
    complete_tiers,
    parallel_faults,
    parse_tiers,
)
from glm5_runtime.options import (
    VERSIONS,
    AuditLog,
    CacheType,
    CheckWeights,
    ContextTiers,
    DataParallel,
    Device,
    EnableLora,
    ExpertParallel,
    Hooks,
    LoraDir,
    LoraModules,
    MaxLoraRank,
    MaxLoras,
    MemoryFraction,
    MemoryLimit,
    MemoryReserve,
    ModelVersion,
    PageSize,
    SparseKV,
    SpeculativeMethod,
    SpeculativeTokens,
    TensorParallel,
    Text,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

API_KEY = "GLM5_API_KEY"
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
MODEL_NAME = r"[A-Za-z0-9][A-Za-z0-9._/:-]{0,127}"
_TEMPLATES = ("auto", *VERSIONS)

app = typer.Typer(name="glm5-runtime", help="Serve a GLM-5 checkpoint.", no_args_is_help=True, pretty_exceptions_enable=False)


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
        given = {"--lora-modules": arguments.lora_modules, "--lora-dir": arguments.lora_dir}
        return [f"{flag}: needs --enable-lora" for flag, value in given.items() if value]
    names = [name for name, _ in arguments.lora_modules or ()]
    faults = [f"--lora-modules: {name} is there twice" for name in sorted({name for name in names if names.count(name) > 1})]
    if arguments.served_model_name in names:
        faults.append(f"--lora-modules: {arguments.served_model_name} is the name of the model itself")
    if len(names) > arguments.max_loras:
        faults.append(f"--lora-modules: {len(names)} adapters are more than --max-loras {arguments.max_loras}")
    return faults


def parse_serve(argv: Sequence[str]) -> ServeArguments:
    """The checked arguments of a `serve …` command line; raises ArgumentFaults. Touches no file."""
    group = typer.main.get_command(app)
    name, *rest = argv or [""]
    command = getattr(group, "commands", {}).get(name)
    if command is None:
        raise ArgumentFaults([f"unknown command {name!r}"])
    try:
        with command.make_context(name, list(rest)) as context:
            return check_arguments(context.params)
    except ArgumentFaults:
        raise
    except Exception as error:  # click's own errors: unknown flag, flag without a value
        raise ArgumentFaults([getattr(error, "message", str(error))]) from error


def check_files(folder: Path, chat_template: str, max_model_len: int | None, tiers: tuple[ContextTier, ...] = ()) -> list[str]:
    """What is wrong with the files that the arguments name."""
    if not folder.is_dir():
        return [f"--model: {folder} is not a folder; name the folder that holds config.json and the safetensors files"]
    faults: list[str] = []
    try:
        longest = ModelConfig.from_dir(folder).max_model_len
        if max_model_len is not None and max_model_len > longest:
            faults.append(f"--max-model-len: {max_model_len} is more than the checkpoint's {longest}")
        else:
            complete_tiers(tiers, max_model_len or longest)
    except ConfigError as error:
        faults.append(str(error) if str(error).startswith("--") else f"--model: {error}")
    if not (folder / "tokenizer.json").is_file():
        faults.append(f"--model: {folder}/tokenizer.json is missing")
    if not any(folder.glob("*.safetensors")):
        faults.append(f"--model: {folder} holds no *.safetensors file")
    if chat_template not in _TEMPLATES and not Path(chat_template).is_file():
        faults.append(f"--chat-template: {chat_template} is neither a file nor one of {', '.join(_TEMPLATES)}")
    return faults


def check_ranks(arguments: ServeArguments) -> list[str]:
    """What stands against so many processes; reads the checkpoint's config.json, whose own faults are `check_files`'s to tell."""
    tensor, data = arguments.tensor_parallel_size, arguments.data_parallel_size
    try:
        config = ModelConfig.from_dir(arguments.model)
    except ConfigError:
        return []
    return parallel_faults(config, tensor, data, spread_experts=arguments.enable_expert_parallel, adapters=arguments.enable_lora)


def read_key(environ: Mapping[str, str]) -> str | None:
    """The API key, if one is set. A key that is set and empty is a mistake, not an open door."""
    raw = environ.get(API_KEY)
    if raw is None:
        return None
    key = raw.strip()  # Secrets made from files end in a newline
    if not key or not key.isascii() or any(character.isspace() for character in key):
        raise ArgumentFaults([f"{API_KEY}: must be printable ASCII without blanks; unset it to serve without a key"])
    return key


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"glm5-runtime {version('glm5-ascend')}")
        raise typer.Exit


@app.callback()
def _root(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and end.")
    ] = False,
) -> None:
    """Serve a GLM-5 checkpoint on CPU, NPU or CUDA."""


@app.command()
def serve(  # noqa: PLR0917 - typer makes one option of each argument
    model: Annotated[
        Text, typer.Option(metavar="DIR", help="Folder of the checkpoint: config.json, tokenizer.json, *.safetensors. Required.")
    ] = None,
    served_model_name: Annotated[
        Text, typer.Option(metavar="NAME", help="What clients call the model. [default: the folder's name]")
    ] = None,
    host: Annotated[Text, typer.Option(metavar="ADDRESS", help="Address to listen on; 0.0.0.0 is all. [default: 127.0.0.1]")] = None,
    port: Annotated[Text, typer.Option(metavar="N", help="TCP port. [default: 8000]")] = None,
    device: Device = None,
    dtype: Annotated[
        Text,
        typer.Option(
            metavar="auto|bfloat16|float16|float32",
            help="Type of weights and cache; auto: the checkpoint's, float32 on CPU. [default: auto]",
        ),
    ] = None,
    page_size: PageSize = None,
    kv_cache_dtype: CacheType = None,
    sparse_kv: SparseKV = None,
    max_model_len: Annotated[
        Text, typer.Option(metavar="N", help="Longest prompt plus answer, tokens. [default: the checkpoint's]")
    ] = None,
    max_sequences: Annotated[Text, typer.Option(metavar="N", help="Requests decoded side by side. [default: 16]")] = None,
    max_batched_tokens: Annotated[
        Text, typer.Option(metavar="N", help="Tokens computed in one step, prompts and answers. [default: 2048]")
    ] = None,
    max_queue: Annotated[Text, typer.Option(metavar="N", help="Requests that may wait; one more gets 429. [default: 256]")] = None,
    max_request_bytes: Annotated[
        Text, typer.Option(metavar="N", help="Largest request body, bytes; a larger one gets 413. [default: 16777216]")
    ] = None,
    drain_timeout: Annotated[
        Text, typer.Option(metavar="DURATION", help="Time that running requests get after SIGTERM (h, m, s, ms). [default: 300s]")
    ] = None,
    chat_template: Annotated[
        Text,
        typer.Option(metavar="auto|5|5.1|5.2|5.3|PATH", help="auto: the checkpoint's own, else by the model's version. [default: auto]"),
    ] = None,
    model_version: ModelVersion = None,
    speculative_tokens: SpeculativeTokens = None,
    speculative_method: SpeculativeMethod = None,
    memory_fraction: MemoryFraction = None,
    memory_reserve: MemoryReserve = None,
    memory_limit: MemoryLimit = None,
    context_tiers: ContextTiers = None,
    prefix_cache: Annotated[
        Text, typer.Option(metavar="on|off", help="Compute the beginning that prompts have in common once. [default: on]")
    ] = None,
    tensor_parallel_size: TensorParallel = None,
    data_parallel_size: DataParallel = None,
    enable_expert_parallel: ExpertParallel = False,
    check_weights: CheckWeights = False,
    enable_lora: EnableLora = False,
    max_loras: MaxLoras = None,
    max_lora_rank: MaxLoraRank = None,
    lora_modules: LoraModules = None,
    lora_dir: LoraDir = None,
    seed: Annotated[Text, typer.Option(metavar="N", help="Seed for requests that bring none. [default: 0]")] = None,
    log_level: Annotated[
        Text, typer.Option(metavar="debug|info|warning|error", help="Least important line in the log. [default: info]")
    ] = None,
    audit_log: AuditLog = None,
    post_inference_hook: Hooks = None,
) -> None:
    """Serve one model over HTTP: OpenAI's endpoints, /generate, /health, /metrics.

    The API key, if any, is read from GLM5_API_KEY.
    """
    given = dict(locals())
    try:
        arguments, key = _checked(given)
        facts = devices.read_host(os.environ)
        choice = devices.choose(arguments.device, facts)
    except (ArgumentFaults, devices.DeviceUnusable) as error:
        typer.echo(f"glm5-runtime serve can't start:\n{error}", err=True)
        raise typer.Exit(2) from None
    os.environ.update(devices.environment(choice, facts, os.environ))
    sys.exit(_serve(arguments, key, choice))


def _checked(given: Mapping[str, Any]) -> tuple[ServeArguments, str | None]:
    """Arguments, files and key; one ArgumentFaults for all that is wrong."""
    faults: list[str] = []
    arguments, key = None, None
    try:
        arguments = check_arguments(given)
        faults += check_files(arguments.model, arguments.chat_template, arguments.max_model_len, arguments.context_tiers or ())
        faults += check_ranks(arguments)
        folders = [("lora-modules", path) for _, path in arguments.lora_modules or ()]
        folders += [("lora-dir", arguments.lora_dir)] if arguments.lora_dir is not None else []
        faults += [f"--{flag}: {path} is not a folder" for flag, path in folders if not path.is_dir()]
    except ArgumentFaults as found:
        faults += found.faults
        if given["model"] is not None:
            faults += check_files(Path(given["model"]), given["chat_template"] or "auto", None)
    try:
        key = read_key(os.environ)
    except ArgumentFaults as found:
        faults += found.faults
    if faults or arguments is None:
        raise ArgumentFaults(faults)
    return arguments, key


def _serve(arguments: ServeArguments, key: str | None, choice: devices.Choice) -> int:
    from glm5_runtime.server import logs, process  # keeps `--help` and argument errors instant
    from glm5_runtime.server.service import ServerSettings

    logs.set_up(arguments.log_level)
    logs.say(f"device={choice.device} reason={choice.reason!r}")
    settings = ServerSettings(
        model_name=arguments.served_model_name,
        model_dir=arguments.model,
        host=arguments.host,
        port=arguments.port,
        max_request_bytes=arguments.max_request_bytes,
        drain_timeout=arguments.drain_timeout,
        chat_template=arguments.chat_template,
        model_version=arguments.model_version,
        device=choice.device,
        api_key=key,
        audit_log=arguments.audit_log,
        post_inference_hooks=arguments.post_inference_hook or (),
        lora_dir=arguments.lora_dir,
    )
    engine = EngineConfig(
        device=choice.device,
        dtype=arguments.dtype,
        page_size=arguments.page_size,
        kv_cache_dtype=arguments.kv_cache_dtype,
        sparse_kv=arguments.sparse_kv,
        max_model_len=arguments.max_model_len,
        max_sequences=arguments.max_sequences,
        max_batched_tokens=arguments.max_batched_tokens,
        max_queue=arguments.max_queue,
        memory_fraction=arguments.memory_fraction,
        memory_reserve=arguments.memory_reserve,
        memory_limit=arguments.memory_limit,
        context_tiers=arguments.context_tiers or (),
        prefix_cache=arguments.prefix_cache == "on",
        speculative_tokens=arguments.speculative_tokens,
        speculative_method=arguments.speculative_method,
        tensor_parallel_size=arguments.tensor_parallel_size,
        data_parallel_size=arguments.data_parallel_size,
        enable_expert_parallel=arguments.enable_expert_parallel,
        check_weights=arguments.check_weights,
        max_loras=arguments.max_loras if arguments.enable_lora else 0,
        max_lora_rank=arguments.max_lora_rank,
        lora_modules=arguments.lora_modules or (),
        served_model_name=arguments.served_model_name,
        seed=arguments.seed,
    )
    return process.serve(settings, engine)


@app.command()
def doctor(
    output: Annotated[Literal["table", "json"], typer.Option(help="For people, or one JSON object.")] = "table",
) -> None:
    """Say what this machine's stack supports: driver, CANN, torch, cards, and each NPU operator, run on the card if there is one.

    Exit code: 0 all operators run in their kernels and agree with the reference, 1 some don't, 3 no NPU is usable here.
    """
    from glm5_runtime import doctor as examination  # keeps `--help` instant

    report = examination.examine(os.environ)
    typer.echo(json.dumps(report, indent=2) if output == "json" else examination.as_table(report))
    raise typer.Exit(report["exit_code"])


@app.command()
def quantize(
    model: Annotated[Path, typer.Option(metavar="DIR", help="Checkpoint in bf16, fp16 or fp32.")],
    output: Annotated[Path, typer.Option(metavar="DIR", help="Folder to make; it must not exist.")],
    scheme: Annotated[
        Literal["w8a8", "w4a8"], typer.Option(help="All linear layers in int8, or routed experts in 4 bits and the rest in int8.")
    ] = "w8a8",
    keep: Annotated[
        list[str] | None, typer.Option(metavar="PATTERN", help="Tensors that stay as they are, such as 'model.layers.0.*'; several times.")
    ] = None,
    check: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Text to measure on how far the result is from the model in fp32; both must fit in memory."),
    ] = None,
) -> None:
    """Make a W8A8 or W4A8 checkpoint in ModelSlim's layout by rounding, without calibration data.

    Works file by file, so any model fits in memory. A run that is interrupted leaves no output.
    """
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    from glm5_runtime.tools import command  # keeps `--help` instant

    raise typer.Exit(command.quantize(model, output, scheme, keep or [], check))


def main() -> None:
    """Entry point of the console script."""
    app()


if __name__ == "__main__":
    main()
