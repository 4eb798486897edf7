"""Engine `native`: this project's own runtime, `glm5-runtime serve`.

Called by pod planning. `tests/contract` feeds every command that comes out of here to the runtime's own parser.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5_operator.api import names
from glm5_operator.api.common import format_duration
from glm5_operator.plan.engine import NPU_ENV, EnginePod, http_check

if TYPE_CHECKING:
    from glm5_operator.plan.engine import EngineInput


def native_pod(given: EngineInput) -> EnginePod:
    """The runtime finds its card itself (`--device auto`), so the same command runs on CPU and NPU."""
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
    if sizing.max_tokens is not None:
        args.append(f"--max-model-len={sizing.max_tokens}")
    threads = max(1, sizing.cpu_millis // 1000)
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
