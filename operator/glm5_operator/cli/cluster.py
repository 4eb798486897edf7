"""The command line's way to a cluster: opens `kube.client`, and turns its errors into ours.

Used by `deploy` and `status`. Holds no requests of its own.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from glm5_operator.cli.errors import CliError, ExitCode, FaultsError
from glm5_operator.kube import errors
from glm5_operator.kube.client import Client, CredentialsError, credentials_source, load_configuration
from glm5_operator.kube.wire import allow_depth
from glm5_operator.metrics import Metrics
from glm5_operator.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine

Json = dict[str, Any]
Result = TypeVar("Result")

INSTALL: Final = "install the operator: helm install glm5 charts/glm5-operator -n glm5-system --create-namespace"
_CREDENTIALS: Final = "give --kubeconfig or set KUBECONFIG; `kubectl cluster-info` must answer"


def check_kubeconfig(path: str | None) -> None:
    """Fail early when a named file isn't there: the client library would go on without credentials."""
    if path is not None and not Path(path).is_file():
        raise CliError(ExitCode.INPUT, "no such file", where=f"--kubeconfig {path}", remedy="check the path")


def run(work: Coroutine[Any, Any, Result]) -> Result:
    """Run a coroutine to its end; whatever the cluster answers badly becomes a CliError."""
    allow_depth()
    try:
        return asyncio.run(work)
    except errors.InvalidError as error:
        faults = [CliError(ExitCode.REFUSED, cause) for cause in error.causes] or [CliError(ExitCode.REFUSED, error.message)]
        raise FaultsError(ExitCode.REFUSED, faults) from error
    except errors.FieldConflictError as error:
        remedy = "change it there, or take it over with --force-conflicts"
        raise CliError(ExitCode.REFUSED, f"another tool owns a field: {'; '.join(error.causes) or error.message}", remedy=remedy) from error
    except errors.UnavailableError as error:
        raise CliError(ExitCode.UNREACHABLE, error.message, remedy=_CREDENTIALS) from error
    except errors.UnauthorizedError as error:
        raise CliError(ExitCode.UNREACHABLE, "the API server doesn't take these credentials", remedy=_CREDENTIALS) from error
    except errors.KubeError as error:
        raise CliError(ExitCode.REFUSED, error.message) from error


@asynccontextmanager
async def connected(kubeconfig: str | None) -> AsyncIterator[Client]:
    """A client for the cluster of the kubeconfig; raises when our kinds aren't served there."""
    try:
        configuration = await load_configuration(kubeconfig)
    except CredentialsError as error:
        raise CliError(ExitCode.UNREACHABLE, str(error), remedy=_CREDENTIALS) from error
    client = Client(configuration, Settings().api, Metrics())
    try:
        yield client
    except errors.NotKubernetesError as error:
        remedy = f"check the server URL in kubeconfig {credentials_source(kubeconfig)}"
        raise CliError(
            ExitCode.UNREACHABLE, f"not a Kubernetes API server? {error.message}", where=client.configuration.host, remedy=remedy
        ) from error
    finally:
        await client.close()


async def require_api(client: Client, path: str) -> None:
    """Fail with what to install when the cluster doesn't serve our kinds."""
    try:
        answer = await client.raw_get(path)
    except errors.NotFoundError as error:
        raise CliError(ExitCode.UNREACHABLE, "the cluster has no GLM5Service kind", remedy=INSTALL) from error
    if not str(answer["kind"]).endswith("List"):
        raise errors.NotKubernetesError(f"it answers with kind {answer['kind']!r}")


def condition(resource: Json, kind: str) -> Json:
    """A condition of an object's status; empty when it has none of that type."""
    conditions = (resource.get("status") or {}).get("conditions") or []
    return next((found for found in conditions if found.get("type") == kind), {})
