"""Engine `native`: this project's own runtime, `glm5-runtime serve`.

Called by pod planning. `tests/contract` feeds every command that comes out of here to the runtime's own parser.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from glm5_operator.api import names
from glm5_operator.api.common import format_duration
from glm5_operator.api.known import KNOWN_MODELS
from glm5_operator.plan.adapters import adapter_args
from glm5_operator.plan.engine import NPU_ENV, EnginePod, http_check

if TYPE_CHECKING:
    from glm5_operator.api.service import KVCacheSpec
    from glm5_operator.plan.engine import EngineInput

_VERSION: Final = re.compile(
    r"glm-?(" + "|".join(re.escape(name.removeprefix("GLM-")) for name in KNOWN_MODELS) + r")(?![.\d])", re.IGNORECASE
)
"""GLM-5.1 and smaller models named after it. A checkpoint without a chat template of its own doesn't tell 5 from 5.1, nor 5.2 from 5.3."""


_KV_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "int8": "int8", "int4": "int4"}


def native_pod(given: EngineInput) -> EnginePod:
    """The runtime takes the card it was given (`--device auto`) or says what it lacks; GLM5_DEVICE=cpu is the user's word for the CPU."""
    sizing = given.sizing
    args = [
        f"--model={given.model_path}",
        f"--served-model-name={given.spec.served_name}",
        "--host=0.0.0.0",
        f"--port={names.ENGINE_PORT}",
        f"--max-sequences={sizing.max_sequences}",
        f"--max-batched-tokens={sizing.max_batched_tokens}",
        f"--drain-timeout={format_duration(given.spec.drain_timeout)}",
    ]
    args += _parallel_args(given)
    args += _cache_args(given.spec.kv_cache)
    args += adapter_args(given.spec)
    if sizing.speculative_tokens:
        args.append(f"--speculative-tokens={sizing.speculative_tokens}")
    if sizing.max_tokens is not None:
        args.append(f"--max-model-len={sizing.max_tokens}")
    if version := model_version(given.spec.model.name):
        args.append(f"--model-version={version}")
    threads = max(1, sizing.cpu_millis // 1000 // sizing.shape.cards)  # of each of its processes, one a card
    return EnginePod(
        command=["glm5-runtime", "serve"],
        args=args,
        env={**NPU_ENV, "OMP_NUM_THREADS": str(threads)},
        api_key_env=names.API_KEY_ENV,
        startup=http_check("/health/ready"),
        readiness=http_check("/health/ready"),
        liveness=http_check("/health"),
        scratch={"tmp": "1Gi", "home": "4Gi"},
    )


def model_version(name: str) -> str:
    """The version of GLM-5 that a model's name says, such as 5.1; empty when it says none."""
    found = _VERSION.match(name)
    return found[1] if found else ""


def _parallel_args(given: EngineInput) -> list[str]:
    """One process a card; the first starts the others."""
    shape = given.sizing.shape
    sizes = {"--tensor-parallel-size": shape.tensor, "--data-parallel-size": shape.data}
    args = [f"{flag}={size}" for flag, size in sizes.items() if size > 1]
    return [*args, "--enable-expert-parallel"] if shape.cards > 1 and given.sizing.expert > 1 else args


def _cache_args(stated: KVCacheSpec | None) -> list[str]:
    if stated is None:
        return []
    args = []
    if stated.page_size is not None:
        args.append(f"--page-size={stated.page_size}")
    if stated.dtype is not None:
        args.append(f"--kv-cache-dtype={_KV_DTYPES[stated.dtype]}")
    if stated.prefix_cache is not None:
        args.append(f"--prefix-cache={'on' if stated.prefix_cache else 'off'}")
    return args
