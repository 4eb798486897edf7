"""What pod planning needs to know of an engine: its command, environment, checks and rights. Each engine is a module that fills this.

Called by `pod`, filled by `native` and `vllm`. Must not know Deployments or pools.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from glm5_operator.api import names

if TYPE_CHECKING:
    from datetime import timedelta

    from glm5_operator.api.service import GLM5ServiceSpec
    from glm5_operator.plan.facts import Manifest
    from glm5_operator.plan.sizing import Sizing

HOME_DIR: Final = "/home/engine"
CHECK_SECONDS: Final = 5

# Environment of facts that hold for every process on NPUs, whatever the engine.
NPU_ENV: Final = {
    "HCCL_OP_EXPANSION_MODE": "AIV",
    "HCCL_BUFFSIZE": "200",
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
    "OMP_PROC_BIND": "false",
    "OMP_NUM_THREADS": "1",
    # CANN's logs go to the container's output; as files they would fill the read-only root's only writable places.
    "ASCEND_SLOG_PRINT_TO_STDOUT": "1",
}


@dataclass(frozen=True, slots=True)
class EngineInput:
    """What an engine's command is made from."""

    spec: GLM5ServiceSpec
    sizing: Sizing
    model_path: str
    startup: timedelta


@dataclass(frozen=True, slots=True)
class EnginePod:
    """An engine's part of the pod.

    Attributes:
        command: the program.
        args: its arguments.
        env: variables by name; the user's replace them.
        api_key_env: the variable that the engine reads its key from.
        startup: the check (without thresholds) that passes once a token was produced.
        startup_period: seconds between two such checks.
        startup_check_timeout: seconds that one may take.
        readiness: the check that takes a stuck or dead engine out of traffic.
        liveness: the check that a busy engine passes and a stuck or dead one doesn't.
        check_timeout: seconds that a readiness check may take.
        security: container security context, laid over the restricted one.
        pod_security: the same of the pod.
        scratch: size limits of the writable places.
    """

    command: list[str]
    args: list[str]
    env: dict[str, str]
    api_key_env: str
    startup: Manifest
    readiness: Manifest
    liveness: Manifest
    startup_period: int = CHECK_SECONDS
    startup_check_timeout: int = CHECK_SECONDS
    check_timeout: int = CHECK_SECONDS
    security: Manifest = field(default_factory=dict)
    pod_security: Manifest = field(default_factory=dict)
    scratch: dict[str, str] = field(default_factory=dict)


def http_check(path: str) -> Manifest:
    """A check over HTTP on the engine's port."""
    return {"httpGet": {"path": path, "port": names.ENGINE_PORT_NAME}}
