"""Bodies of /generate: four dialects of clients older than OpenAI's API → one flat body with OpenAI's names. Pure; used by `generate`.

| prompt in | dialect |
| --- | --- |
| `prompt`, with `max_new_tokens` | our own first one |
| `prompt`, else | vLLM's demonstration server, which MindIE copies |
| `inputs` | TGI's, which MindIE copies, too |
| `text` or `input_ids` | SGLang's |

A parameter that we know and can't honour is refused, one that nobody knows is ignored, as on the other endpoints.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto
from typing import TYPE_CHECKING, Any

from glm5_runtime.server.errors import bad_request
from glm5_runtime.server.protocol import REFUSED_ALWAYS, GenerateRequest

if TYPE_CHECKING:
    from glm5_runtime.server.service import Service

_PROMPTS = ("prompt", "inputs", "text", "input_ids")
_NESTED = ("parameters", "sampling_params")
_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "stop_sequences": "stop", "random_seed": "seed"}
_NAMES |= {"json_schema": "guided_json", "regex": "guided_regex", "ebnf": "guided_grammar"}  # SGLang's
_TGI_GRAMMARS = {"json": "guided_json", "regex": "guided_regex"}
_SWITCHES = ("do_sample", "return_full_text", "details")  # ours to read: they are no fields of a body
_ONE_ANSWER = "this dialect gives one answer; use /v1/completions"
REFUSED = REFUSED_ALWAYS | {
    "best_of": _ONE_ANSWER,
    "decoder_input_details": "use /v1/completions with echo and logprobs",
    "top_n_tokens": "use /v1/completions with logprobs",
    "return_logprob": "use /v1/completions with logprobs",
    "watermark": "answers are not marked",
    "typical_p": "use top_p or min_p",
    "truncate": "a prompt is never cut silently; send one that fits",
    "adapter_id": "send the name of a loaded adapter as model",
    "lora_path": "send the name of a loaded adapter as model",
    "batch_size": "send one request for each prompt",
    "timeout": "close the connection to stop a request",
}


class Dialect(Enum):
    """Whose words a client speaks; SGLang's replies are ours with one part more, so it is told apart no further."""

    OWN = auto()
    VLLM = auto()
    TGI = auto()


@dataclass(frozen=True)
class Asked:
    """A checked request of any dialect. `full_text`: the prompt stands in front of the answer. `details`: TGI's, on request."""

    dialect: Dialect
    body: GenerateRequest
    full_text: bool
    details: bool


def understand(service: Service, raw: dict[str, Any], *, always_stream: bool) -> Asked:
    """The checked request; raises ApiError 400 naming the field."""
    given = [name for name in _PROMPTS if name in raw]
    if len(given) != 1:
        raise bad_request(f"give exactly one of {', '.join(_PROMPTS)}; got {', '.join(given) or 'none'}", given[1] if given else "prompt")
    flat, switches = _flatten(raw)
    own = given[0] != "prompt" or "max_new_tokens" in raw or any("max_new_tokens" in raw.get(name, ()) for name in _NESTED)
    dialect = Dialect.TGI if given[0] == "inputs" else Dialect.OWN if own else Dialect.VLLM
    flat["prompt"] = raw[given[0]]
    if always_stream:
        flat["stream"] = True
    wants_greedy = dialect is Dialect.TGI and not {"temperature", "top_p", "top_k"} & flat.keys()  # as TGI has it
    if not switches.get("do_sample", not wants_greedy):
        flat["temperature"] = 0.0
    body = service.validate(flat, GenerateRequest, REFUSED)
    if body.n != 1 and dialect is not Dialect.VLLM:
        raise bad_request(f"n is not supported: {_ONE_ANSWER}", "n")
    if len(body.prompt) != 1:
        raise bad_request("this endpoint takes one prompt; use /v1/completions for several", "prompt")
    if switches.get("details") and dialect is not Dialect.TGI:
        raise bad_request("details belongs to inputs (TGI); use /v1/completions with logprobs", "details")
    return Asked(dialect, body, switches.get("return_full_text", dialect is Dialect.VLLM), switches.get("details", False))


def _flatten(raw: dict[str, Any]) -> tuple[dict[str, Any], dict[str, bool]]:
    """Top-level and nested parameters under one set of names, and the switches among them; the same name twice is an error."""
    flat: dict[str, Any] = {}
    layers: list[dict[str, Any]] = [{key: value for key, value in raw.items() if key not in {*_PROMPTS, *_NESTED}}]
    for name in _NESTED:
        nested = raw.get(name)
        if nested is None:
            continue
        if not isinstance(nested, dict):
            raise bad_request(f"{name} must be an object", name)
        layers.append(nested)
    for layer in layers:
        for key, value in layer.items():
            name = _NAMES.get(key, key)
            if value is None:
                continue
            if name in flat:
                raise bad_request(f"{key} is given twice", key)
            flat[name] = value
    if grammar := flat.pop("grammar", None):
        kind = _TGI_GRAMMARS.get(str(grammar.get("type"))) if isinstance(grammar, dict) else None
        if kind is None:
            raise bad_request(f"grammar must be an object with value and type, one of {', '.join(_TGI_GRAMMARS)}", "grammar")
        flat[kind] = grammar.get("value")
    switches = {name: flat.pop(name) for name in _SWITCHES if name in flat}
    for name, value in switches.items():
        if not isinstance(value, bool):
            raise bad_request(f"{name} must be true or false", name)
    return flat, switches
