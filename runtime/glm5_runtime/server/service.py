"""What one server process holds: settings, the loaded model, its state. Shared by all endpoints, owned by `process`."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

from pydantic import ValidationError

from glm5_runtime.server.adapters_file import AdaptersFile
from glm5_runtime.server.aside import Aside
from glm5_runtime.server.body import BodyClock, parse_object, read_body
from glm5_runtime.server.counts import Counts
from glm5_runtime.server.errors import ApiError, bad_request, from_validation, unsupported
from glm5_runtime.server.generation import Generation, Route
from glm5_runtime.server.grammar_compiler import Grammars
from glm5_runtime.server.health import EngineWatch, Patience
from glm5_runtime.server.metrics import Metrics
from glm5_runtime.server.protocol import MAX_FIELDS, SamplingFields
from glm5_runtime.server.sse import while_connected

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from starlette.requests import Request

    from glm5_runtime.engine.adapters import AdapterStore
    from glm5_runtime.server.account import Account, Listener
    from glm5_runtime.server.generation import EnginePort
    from glm5_runtime.server.params import Limits, SamplingDefaults
    from glm5_runtime.server.protocol import RequestBody
    from glm5_runtime.text.template import ChatTemplate
    from glm5_runtime.text.tokens import TextTokenizer

logger = logging.getLogger(__name__)
Body = TypeVar("Body", bound="RequestBody")
T = TypeVar("T")
_SHOWN_NAMES = 5
_NEUTRAL: Mapping[str, float] = {"best_of": 1, "length_penalty": 1.0}
_COUNTS = frozenset({"thinking_token_budget", "prompt_logprobs", "truncate_prompt_tokens", "truncate"})  # where 0 is a wish too


@dataclass(frozen=True)
class ServerSettings:
    """Settings of the HTTP side; every field but the key is a flag of `glm5-runtime serve`."""

    model_name: str  # what clients call the model
    model_dir: Path
    host: str = "127.0.0.1"
    port: int = 8000
    max_request_bytes: int = 16 * 1024 * 1024  # a million-token context is about 5 MB of text
    drain_timeout: float = 300.0  # seconds that running requests get after SIGTERM
    chat_template: str = "auto"
    model_version: str | None = None  # which built-in template to take when the checkpoint has none
    device: str = "cpu"  # told by the metrics
    audit_log: str | None = None  # a file, or - for standard output
    post_inference_hooks: tuple[str, ...] = ()  # commands and URLs
    api_key: str | None = None  # from the environment only: a flag would show in `ps`
    patience: Patience = field(default_factory=Patience)
    lora_dir: Path | None = None  # the folder within which adapters may be loaded at run time
    adapters_file: Path | None = None  # says which adapters are loaded, and what share of the requests each answers


@dataclass(frozen=True)
class Loaded:
    """The model side, complete only after loading."""

    engine: EnginePort
    tokenizer: TextTokenizer
    template: ChatTemplate
    limits: Limits
    defaults: SamplingDefaults
    adapters: AdapterStore | None = None


class Service:
    """State of the server. `loaded` is None until the model is there; `draining` never goes back."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.loaded: Loaded | None = None
        self.draining = False
        self._bodies = BodyClock()
        self.active = 0
        self._aside = Aside()
        self.changing_adapters = asyncio.Lock()  # one at a time: a load keeps a thread for as long as its file takes
        self.counts = Counts()
        self.counts.begin(settings.model_name)
        self.adapters_file: AdaptersFile | None = None
        if settings.adapters_file is not None:
            file = settings.adapters_file
            self.adapters_file = AdaptersFile(file, settings.model_name, settings.lora_dir, self.changing_adapters, self.counts)
        self.idle = asyncio.Event()
        self.idle.set()
        self.watch = EngineWatch(settings.patience)
        self.listeners: list[Listener] = []  # told of each request when it has ended
        self.metrics = Metrics(
            settings.model_name, lambda: self.loaded.engine.stats() if self.loaded else None, self.counts, device=settings.device
        )

    def attach(self, loaded: Loaded) -> None:
        """The model is loaded and its engine started: requests are served from now on."""
        self.loaded = loaded
        for adapter in loaded.adapters.loaded if loaded.adapters is not None else ():
            self.counts.begin(adapter.name)
        self.grammars = Grammars(loaded.tokenizer, loaded.limits)
        self.watch.attach(loaded.engine)

    def drain(self) -> None:
        """From now on new requests are refused, and those whose body isn't there yet get a few seconds for it."""
        self.draining = True
        self._bodies.hurry()

    @property
    def model(self) -> Loaded:
        """The loaded model; the guard lets no request through before."""
        assert self.loaded is not None
        return self.loaded

    def generation(self, public_id: str, account: Account, body: SamplingFields) -> Generation:
        """A run of engine requests for this body. Its engine ids are unique even when clients repeat theirs."""
        account.request_id, account.model = public_id, body.model or self.settings.model_name
        own_id = public_id.partition("-")[2]  # the client's, if it gave one: the same on every endpoint
        return Generation(
            f"{public_id}-{uuid4().hex[:8]}",
            self.model.engine,
            self.metrics,
            self.watch.saw,
            account,
            route=lambda: self._route(account.model, own_id, shares=body.canary),
        )

    def _route(self, asked: str, own_id: str, *, shares: bool) -> Route:
        """What answers a request for `asked`. The one place where a name becomes an adapter, and where shares of the requests are given."""
        if asked != self.settings.model_name:
            return Route(asked, asked)
        chosen = self.adapters_file.share_of(own_id) if shares and self.adapters_file is not None else None
        return Route(asked, "") if chosen is None else Route(chosen, chosen)

    def no_such_model(self, name: str) -> ApiError:
        """404, with the names that there are."""
        store = self.model.adapters
        names = [self.settings.model_name, *(adapter.name for adapter in (store.loaded if store is not None else ()))]
        shown = ", ".join(map(repr, names[:_SHOWN_NAMES])) + (", …" if len(names) > _SHOWN_NAMES else "")
        return ApiError(404, f"the model {name[:80]!r} does not exist; this server has {shown}", param="model", code="model_not_found")

    async def read(self, request: Request, understand: Callable[[dict[str, Any]], T]) -> T:
        """What `understand` makes of the JSON body of a request, or ClientGone. A large one is parsed and understood in a thread."""
        body = await read_body(request, self.settings.max_request_bytes, self._bodies)
        try:
            tier = request.headers.get("x-context-tier")
            given = {} if tier is None else {"context_tier": tier}
            return await while_connected(request.receive, self._aside.run(len(body), lambda: understand(given | parse_object(body))))
        except ApiError as error:
            if error.status == 429:
                self.metrics.rejected("queue_full")
            raise

    def validate(self, raw: dict[str, Any], kind: type[Body], refused: Mapping[str, str]) -> Body:
        """`raw` as a checked request body; raises ApiError 400 or, for an unknown model, 404. Runs in any thread."""
        if len(raw) > MAX_FIELDS:
            raise bad_request(f"the request has {len(raw)} fields; at most {MAX_FIELDS} are read")
        for name, why in refused.items():
            value = raw.get(name)
            is_wish = bool(value) or (name in _COUNTS and value == 0 and value is not False)
            if is_wish and value != _NEUTRAL.get(name):
                raise unsupported(name, why)
        try:
            body = kind.model_validate({key: value for key, value in raw.items() if key not in refused})
        except ValidationError as error:
            raise from_validation(error) from None
        if body.model is not None and body.model != self.settings.model_name:
            store = self.model.adapters
            if store is None or not store.has(body.model):
                raise self.no_such_model(body.model)
        if isinstance(body, SamplingFields) and body.stream_options is not None and not body.stream:
            raise ApiError(400, "stream_options is only allowed with stream: true", param="stream_options")
        if body.model_extra:
            names = [name[:40] for name in islice(body.model_extra, _SHOWN_NAMES)]
            logger.debug("request has %d unknown fields, ignored: %s", len(body.model_extra), names)
        return body


def public_id(prefix: str, asked: str | None) -> str:
    """The id of a reply: the client's own when it sent one."""
    return f"{prefix}-{asked or uuid4().hex}"
