"""`glm5-runtime serve`: checks arguments, files and key together, picks the device, starts the server.

Imports neither torch nor the server before the arguments are right and the environment for torch is set.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from glm5_runtime import device as devices
from glm5_runtime.cli.arguments import ArgumentFaults, ServeArguments, check_arguments
from glm5_runtime.config import ConfigError, ContextTier, EngineConfig, ModelConfig, complete_tiers, parallel_faults
from glm5_runtime.options import (
    DTYPES,
    VERSIONS,
    AdaptersFile,
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
    from collections.abc import Mapping

API_KEY = "GLM5_API_KEY"
_TEMPLATES = ("auto", *VERSIONS)


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
    return parallel_faults(config, tensor, data, spread_experts=arguments.enable_expert_parallel)


def read_key(environ: Mapping[str, str]) -> str | None:
    """The API key, if one is set. A key that is set and empty is a mistake, not an open door."""
    raw = environ.get(API_KEY)
    if raw is None:
        return None
    key = raw.strip()  # Secrets made from files end in a newline
    if not key or not key.isascii() or any(character.isspace() for character in key):
        raise ArgumentFaults([f"{API_KEY}: must be printable ASCII without blanks; unset it to serve without a key"])
    return key


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
            metavar="|".join(DTYPES),
            autocompletion=lambda: DTYPES,
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
    adapters_file: AdaptersFile = None,
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
        raise typer.Exit(getattr(error, "exit_code", 2)) from None
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
        adapters_file=arguments.adapters_file,
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
