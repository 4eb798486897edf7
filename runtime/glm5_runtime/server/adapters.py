"""POST /v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them, the adapters' cards in /v1/models, and /health/adapters.

A request names a loaded adapter as its model. Only folders within --lora-dir are loaded; the engine's store checks what is in them. Names
of the file of --adapters-file belong to `adapters_file`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field
from starlette.responses import PlainTextResponse

from glm5_runtime.engine.errors import EngineDead
from glm5_runtime.server.adapter_entries import Name, Sha256, State, within
from glm5_runtime.server.counts import Count
from glm5_runtime.server.errors import ApiError, bad_request
from glm5_runtime.server.protocol import RequestBody, Text
from glm5_runtime.server.sse import JsonReply

if TYPE_CHECKING:
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response

    from glm5_runtime.engine.adapters import AdapterStore
    from glm5_runtime.server.service import Service

_REFUSED = {"load_inplace": "unload the adapter first; requests under way finish on the old one"}


class LoadAdapter(RequestBody):
    """Body of /v1/load_lora_adapter. `lora_path` is absolute or within --lora-dir; `sha256` is what adapter_model.safetensors must have."""

    lora_name: Name
    lora_path: Annotated[Text, Field(min_length=1, max_length=1024)]
    sha256: Sha256 | None = None


class UnloadAdapter(RequestBody):
    """Body of /v1/unload_lora_adapter."""

    lora_name: Name


async def load(request: Request) -> Response:
    """Check an adapter and serve it under its name."""
    service: Service = request.app.state.service
    body = await service.read(request, lambda raw: service.validate(raw, LoadAdapter, _REFUSED))
    store = _store(service)
    if body.lora_name == service.settings.model_name:
        raise bad_request(f"lora_name is {body.lora_name!r}, the name of the model itself", "lora_name")
    _check_free(service, body.lora_name)
    root = service.settings.lora_dir
    if root is None:
        raise ApiError(403, "adapters can't be loaded at run time: start the server with --lora-dir", param="lora_path", code="forbidden")
    from glm5_runtime.model.adapter_files import AdapterError  # noqa: PLC0415 - brings torch, which is loaded by now

    try:
        async with service.changing_adapters:
            _check_free(service, body.lora_name)  # again: the file may have asked for it meanwhile
            adapter = await asyncio.to_thread(lambda: store.load(body.lora_name, _within(root, body.lora_path), body.sha256))
    except AdapterError as error:
        raise bad_request(str(error).replace(f"{root.resolve()}/", ""), "lora_path") from error
    except EngineDead as dead:
        raise ApiError(503, f"the engine has stopped ({dead}); a restart follows", code="engine_dead", retry_after=30) from dead
    service.counts.begin(adapter.name)
    return PlainTextResponse(f"Success: LoRA adapter {adapter.name!r} added successfully.\nsha256: {adapter.sha256}\n")


def _within(root: Path, asked: str) -> Path:
    folder = within(root, asked)
    if folder is None:
        raise bad_request("lora_path must name a folder within the one that the server was given by --lora-dir", "lora_path")
    return folder


def _check_free(service: Service, name: str) -> None:
    if service.adapters_file is not None and service.adapters_file.wants(name):
        raise _of_the_file(name)


def _of_the_file(name: str) -> ApiError:
    return bad_request(f"the adapter {name!r} belongs to the file of --adapters-file; change its entry there", "lora_name")


async def unload(request: Request) -> Response:
    """Take an adapter's name away; requests that run on it finish."""
    service: Service = request.app.state.service
    body = await service.read(request, lambda raw: service.validate(raw, UnloadAdapter, {}))
    store = _store(service)
    if service.adapters_file is not None and service.adapters_file.keeps(body.lora_name):
        raise _of_the_file(body.lora_name)
    from glm5_runtime.engine.adapters import UnknownAdapter  # noqa: PLC0415 - brings torch, which is loaded by now

    try:
        async with service.changing_adapters:
            await asyncio.to_thread(store.unload, body.lora_name)
    except UnknownAdapter:
        raise ApiError(404, f"the adapter {body.lora_name!r} is not loaded", param="lora_name", code="model_not_found") from None
    return PlainTextResponse(f"Success: LoRA adapter {body.lora_name!r} removed successfully.\n")


def _store(service: Service) -> AdapterStore:
    store = service.model.adapters
    if store is None:
        raise ApiError(404, "this server takes no adapters: start it with --enable-lora", code="adapters_disabled")
    return store


async def health(request: Request) -> Response:
    """What has become of each adapter, and what it and the model have answered."""
    service: Service = request.app.state.service
    store = service.loaded.adapters if service.loaded is not None else None
    kept = service.adapters_file.states if service.adapters_file is not None else []
    names = {state.name for state in kept}
    others = [State(each.name, each.sha256, "Loaded") for each in (store.loaded if store is not None else ()) if each.name not in names]
    told = [state.as_json() | _counted(service, state.name) for state in (*kept, *others)]
    model = service.settings.model_name
    return JsonReply({"model": model, "adapters": told, "base": _counted(service, model)})


def _counted(service: Service, name: str) -> dict[str, int]:
    count = service.counts.by_name.get(name, Count())
    return {"requests": count.requests, "failures": count.failures}


def cards(service: Service) -> list[dict[str, Any]]:
    """The loaded adapters as /v1/models shows them."""
    store = service.model.adapters
    return [
        {
            "id": adapter.name,
            "object": "model",
            "created": int(adapter.loaded),
            "owned_by": "glm5",
            "root": str(adapter.path),
            "parent": service.settings.model_name,
            "max_model_len": service.model.limits.max_model_len,
            "sha256": adapter.sha256,
        }
        for adapter in (store.loaded if store is not None else ())
    ]
