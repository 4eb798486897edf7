"""Flags of `glm5-runtime serve` that need more than a line: what `--help` says of each.

Every one arrives as text: pydantic checks all of them together (`cli.ServeArguments`) and names each fault.
"""

from __future__ import annotations

from typing import Annotated

import typer

VERSIONS = ("5", "5.1", "5.2", "5.3")
MAX_MEM = "ASCEND_MAX_MEM"
DEVICE = "GLM5_DEVICE"
Text = str | None
DTYPES = ("auto", "bfloat16", "float16", "float32")
PageSize = Annotated[
    Text, typer.Option(metavar="N", help="Tokens in a cache page; small pages waste less and share more beginnings. [default: 16]")
]
CacheType = Annotated[
    Text,
    typer.Option(
        metavar="auto|bfloat16|float16|float32|int8|int4",
        autocompletion=lambda: (*DTYPES, "int8", "int4"),
        help="Type of the cache; auto: --dtype. int8 and int4 hold about twice and three times as much as bfloat16. [default: auto]",
    ),
]
SparseKV = Annotated[
    Text,
    typer.Option(
        metavar="off|on|RATIO",
        help="Beyond 8192 tokens look at the last 4096 and a sample of the others; on is 0.25. Less is found. [default: off]",
    ),
]
AuditLog = Annotated[
    Text, typer.Option(metavar="PATH|-", help="One JSON line a request, without content, to a file or standard output. [default: none]")
]
Hooks = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COMMAND|URL", help="Gets one JSON object for each request that was computed; may be given several times. [default: none]"
    ),
]
CheckWeights = Annotated[
    bool, typer.Option("--check-weights", help="Look for NaN and infinite numbers while the weights load, and name the tensor.")
]
EnableLora = Annotated[bool, typer.Option("--enable-lora", help="Serve LoRA adapters beside the model.")]
MaxLoras = Annotated[Text, typer.Option(metavar="N", help="Adapters that may be loaded at the same time. [default: 8]")]
MaxLoraRank = Annotated[Text, typer.Option(metavar="N", help="Largest rank of an adapter. [default: 16]")]
LoraModules = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=DIR", help="An adapter to load at start; may be given several times. [default: none]"),
]
LoraDir = Annotated[
    Text,
    typer.Option(metavar="DIR", help="Folder within which /v1/load_lora_adapter may load adapters; without it none. [default: none]"),
]
AdaptersFile = Annotated[
    Text,
    typer.Option(
        metavar="FILE",
        help="JSON that says which adapters are loaded, and what share of the model's requests each answers; followed while it changes."
        " [default: none]",
    ),
]
Device = Annotated[
    Text,
    typer.Option(
        metavar="auto|cpu|npu|cuda",
        autocompletion=lambda: ("auto", "cpu", "npu", "cuda"),
        envvar=DEVICE,
        show_envvar=False,
        help="Where the model runs; auto: NPU, else CUDA, else CPU, but never beside a card that is held and can't be used."
        " [default: GLM5_DEVICE, else auto]",
    ),
]
ModelVersion = Annotated[
    Text,
    typer.Option(
        metavar="|".join(VERSIONS),
        autocompletion=lambda: VERSIONS,
        help="GLM version, for the chat template of a checkpoint without one. [default: guessed from the folder]",
    ),
]
MemoryFraction = Annotated[
    Text, typer.Option(metavar="N", help="Share of the device's memory that may be in use; a container's limit counts. [default: 0.9]")
]
MemoryReserve = Annotated[Text, typer.Option(metavar="SIZE", help="Memory of the device that stays free besides. [default: 0]")]
MemoryLimit = Annotated[
    Text,
    typer.Option(
        metavar="SIZE",
        envvar=MAX_MEM,
        show_envvar=False,
        help="Most memory of the device that this process uses, such as 28G. [default: ASCEND_MAX_MEM, else none]",
    ),
]
ContextTiers = Annotated[
    Text,
    typer.Option(metavar="4k:0.5,16k,…", help="Classes of requests by length, and the share that each has to itself. [default: none]"),
]
SpeculativeTokens = Annotated[
    Text, typer.Option(metavar="N", help="Tokens guessed ahead and checked in one step; the text stays the same. [default: 0]")
]
SpeculativeMethod = Annotated[
    Text,
    typer.Option(
        metavar="auto|mtp|ngram", help="Who guesses: the checkpoint's MTP layer, or the text where it repeats itself. [default: auto]"
    ),
]
TensorParallel = Annotated[
    Text, typer.Option(metavar="N", help="Processes, each with a card of its own, that hold one model between them. [default: 1]")
]
DataParallel = Annotated[
    Text,
    typer.Option(metavar="N", help="Groups of such processes with sequences of their own, which share the experts. [default: 1]"),
]
ExpertParallel = Annotated[
    bool, typer.Option("--enable-expert-parallel", help="Deal the experts out whole over all processes instead of dividing each.")
]
