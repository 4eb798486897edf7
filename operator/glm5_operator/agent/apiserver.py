"""The agent's requests to the API server: apply its part of the AscendNode's status, and watch that object for a reset that is asked for.

Called by `loop`. By httpx alone, since the Kubernetes client would double the agent's memory.
"""

from __future__ import annotations

import random
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import httpx
import orjson

from glm5_operator.api import names
from glm5_operator.api.common import InvalidObjectError
from glm5_operator.api.node import AscendNode

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from glm5_operator.agent.settings import Api
    from glm5_operator.api.node import ResetReport
    from glm5_operator.api.node_facts import NodeFactsReport

PATH: Final = f"/apis/{names.API_VERSION}/{names.NODE_PLURAL}"
WATCH_SECONDS: Final = (240, 360)
"""A watch is opened anew after a time in this range, so that 2,000 agents don't do it together."""
SILENCE: Final = 150.0
"""Seconds without a byte after which a watch counts as dead: the API server sends a bookmark about every minute."""
GONE: Final = 410


class ApiError(Exception):
    """The API server refused or gave no answer; `status` is None when there was none."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


@dataclass(frozen=True, slots=True)
class ApiServer:
    """The API server, as the agent's service account sees it."""

    settings: Api
    client: httpx.AsyncClient

    @classmethod
    def connect(cls, settings: Api, environ: Mapping[str, str]) -> ApiServer:
        """From settings, or what each pod is told in its environment.

        Raises:
            ApiError: Neither says where it is, or the authority can't be read.
        """
        url = settings.url
        if not url:
            host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
            if not host:
                raise ApiError("no API server: neither GLM5_AGENT_API_URL nor KUBERNETES_SERVICE_HOST is set")
            url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
        try:
            # Not httpx's own: it would load all public authorities, 5 MB, to believe none of them.
            trust = ssl.create_default_context(cafile=settings.authority) if url.startswith("https") else False
        except OSError as problem:
            raise ApiError(f"{settings.authority}: {problem}") from problem
        limits = httpx.Limits(max_connections=4, max_keepalive_connections=2)
        return cls(settings, httpx.AsyncClient(base_url=url, verify=trust, timeout=settings.timeout, trust_env=False, limits=limits))

    async def write(self, node: str, facts: NodeFactsReport, resets: tuple[ResetReport, ...]) -> None:
        """Apply the agent's part of the status; the rest of the object stays as it is.

        Raises:
            ApiError: It wasn't taken. 404: the operator has made no such AscendNode (yet).
        """
        status: dict[str, Any] = {"facts": facts.model_dump(mode="json", by_alias=True, exclude_none=True)}
        if resets:
            status["resets"] = [report.model_dump(mode="json", by_alias=True, exclude_none=True) for report in resets]
        body = {"apiVersion": names.API_VERSION, "kind": names.NODE_KIND, "metadata": {"name": node}, "status": status}
        await self._send(
            "PATCH",
            f"{PATH}/{node}/status",
            params={"fieldManager": names.AGENT_FIELD_MANAGER, "force": "true"},
            content=orjson.dumps(body),
            headers={"content-type": "application/apply-patch+yaml"},
        )

    async def watch(self, node: str) -> AsyncIterator[AscendNode]:
        """The object now, and after each change, until the watch ends; objects of a version that can't be read are passed over.

        Raises:
            ApiError: There is no such object, or the connection was lost.
        """
        now = (await self._send("GET", f"{PATH}/{node}")).json()
        if (parsed := _parse(now)) is not None:
            yield parsed
        params = {
            "watch": "true",
            "fieldSelector": f"metadata.name={node}",
            "resourceVersion": now["metadata"]["resourceVersion"],
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(random.randint(*WATCH_SECONDS)),  # noqa: S311 - spreads load, guards nothing
        }
        timeout = httpx.Timeout(self.settings.timeout, read=SILENCE)
        try:
            async with self.client.stream("GET", PATH, params=params, headers=self._headers(), timeout=timeout) as answer:
                if answer.is_error:
                    await answer.aread()
                    raise _refused(answer)
                async for line in answer.aiter_lines():
                    event = orjson.loads(line) if line else {}
                    if event.get("type") == "ERROR":
                        raise ApiError(f"the watch ended: {event['object'].get('message')}", event["object"].get("code", GONE))
                    if event.get("type") in {"ADDED", "MODIFIED"} and (parsed := _parse(event["object"])) is not None:
                        yield parsed
        except (httpx.HTTPError, orjson.JSONDecodeError) as problem:
            raise ApiError(f"watching {node}: {str(problem) or type(problem).__name__}") from problem

    async def close(self) -> None:
        """Let go of all connections."""
        await self.client.aclose()

    async def _send(self, method: str, path: str, **more: Any) -> httpx.Response:  # noqa: ANN401 - httpx's own arguments
        headers = {**more.pop("headers", {}), **self._headers()}
        try:
            answer = await self.client.request(method, path, headers=headers, **more)
        except httpx.HTTPError as problem:
            raise ApiError(f"{method} {path}: {str(problem) or type(problem).__name__}") from problem
        if answer.is_error:
            raise _refused(answer)
        return answer

    def _headers(self) -> dict[str, str]:
        """With the token of now: kubelet replaces the file long before it runs out."""
        try:
            return {"authorization": f"Bearer {Path(self.settings.token).read_text().strip()}"}
        except OSError as problem:
            raise ApiError(f"{self.settings.token}: {problem.strerror}") from problem


def _parse(raw: dict[str, Any]) -> AscendNode | None:
    try:
        return AscendNode.parse(raw)
    except InvalidObjectError:
        return None


def _refused(answer: httpx.Response) -> ApiError:
    try:
        message = answer.json()["message"]
    except (ValueError, KeyError, TypeError):
        message = answer.text[:200]
    return ApiError(f"{answer.request.method} {answer.request.url.path}: {answer.status_code} {message}", answer.status_code)
