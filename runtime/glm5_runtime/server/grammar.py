"""From what a request says about the form of its answer to a grammar that llguidance reads. Pure.

Called by the endpoints, compiled by `grammar_compiler`. A JSON schema, regex, choice or Lark grammar of the client stays a grammar of its
own, so that its names and options meet none of ours. Tool calls have GLM's form, which `parsers` reads, and its markers are single tokens.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from llguidance import LLMatcher

from glm5_runtime.server import grammar_trial
from glm5_runtime.server.errors import ApiError, bad_request
from glm5_runtime.server.parsers import CALL, END_CALL, END_KEY, END_VALUE, KEY, VALUE, kinds, resolved

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from glm5_runtime.server.protocol import FunctionDef, ResponseFormat, StructuredFields

MAX_GRAMMAR_BYTES = 256 * 1024
_WHITESPACE = r"\x20|\n[\x20\t]{0,16}"  # a blank or a new, indented line: a model that is at a loss would else write blanks for ever
_TEXT = "TEXT: /(.|\\n)*/"
_CALL_MARKERS = (CALL, END_CALL, KEY, END_KEY, VALUE, END_VALUE)


@dataclass(frozen=True)
class Grammar:
    """A grammar as llguidance's JSON, and the request's field to blame for it."""

    text: str
    field: str


def answer_grammar(body: StructuredFields) -> Grammar | None:
    """The form that the answer must have, from whichever field says so; raises ApiError 400 when several do."""
    outputs = body.structured_outputs
    wishes: list[tuple[str, object, Callable[[Any], str]]] = [
        ("guided_json", body.guided_json, _schema),
        ("guided_regex", body.guided_regex, LLMatcher.grammar_from_regex),
        ("guided_choice", body.guided_choice, _choice),
        ("guided_grammar", body.guided_grammar, _lark),
    ]
    if outputs is not None:
        wishes += [
            ("structured_outputs.json", outputs.json_schema, _schema),
            ("structured_outputs.regex", outputs.regex, LLMatcher.grammar_from_regex),
            ("structured_outputs.choice", outputs.choice, _choice),
            ("structured_outputs.grammar", outputs.grammar, _lark),
            ("structured_outputs.json_object", {"type": "object"} if outputs.json_object else None, _schema),
        ]
    if body.response_format is not None:
        wishes += _of_response_format(body.response_format)
    given = [wish for wish in wishes if wish[1] is not None]
    if not given:
        return None
    if len(given) > 1:
        names = " and ".join(field for field, _, _ in given)
        raise bad_request(f"{names} both say what the answer must look like; give one of them", given[-1][0])
    field, value, build = given[0]
    if isinstance(value, str):
        _of_bounded_size(value, field)
    try:
        return Grammar(_of_bounded_size(build(value), field), field)
    except (ValueError, RecursionError) as error:
        raise bad_request(f"{field}: {str(error)[:200]}", field) from None


def _of_response_format(asked: ResponseFormat) -> list[tuple[str, object, Callable[[Any], str]]]:
    match asked.type:
        case "json_object":
            return [("response_format", {"type": "object"}, _schema)]
        case "json_schema":
            if asked.json_schema is None:
                raise bad_request("response_format.json_schema is missing; it holds name and schema", "response_format.json_schema")
            # Without `strict` OpenAI promises a best effort: what the grammar can't express is left to the model.
            lenient = not asked.json_schema.strict
            return [("response_format.json_schema.schema", asked.json_schema.schema_, lambda schema: _schema(schema, lenient=lenient))]
        case "structural_tag":
            why = "response_format structural_tag is not supported; use tools with tool_choice, or structured_outputs.grammar"
            raise ApiError(400, why, param="response_format", code="unsupported_parameter")
    return []


def tool_grammar(
    functions: Sequence[FunctionDef], token_of: Callable[[str], int | None], *, several: bool, opened: bool, answer: Grammar | None = None
) -> Grammar:
    """One call of a function or, with `several`, some.

    `opened`: the first `<tool_call>` stands before the grammar begins. `answer`: what may stand there instead of calls. A function without
    a schema of its parameters takes any arguments when it isn't strict, else none.
    """
    marker = {text: _token(text, token_of) for text in _CALL_MARKERS}
    rest = f"call {marker[END_CALL]}"
    more = f" ({marker[CALL]} {rest})*" if several else ""
    calls = f"{'' if opened else marker[CALL] + ' '}{rest}{more}"
    lines = [f"start: {calls}" + (" | @answer" if answer else ""), _TEXT]
    lines.append("call: " + " | ".join(f"tool_{index}" for index in range(len(functions))))
    for index, function in enumerate(functions):
        lines += _tool(f"tool_{index}", function, marker)
    grammars: list[dict[str, Any]] = [{"name": "calls", "lark_grammar": "\n".join(lines)}]
    if answer:
        grammars += [entry | {"name": "answer"} for entry in json.loads(answer.text)["grammars"]]
    return Grammar(_of_bounded_size(json.dumps({"grammars": grammars}, ensure_ascii=False), "tools"), "tools")


def _tool(rule: str, function: FunctionDef, marker: Mapping[str, str]) -> list[str]:
    """Rules of one function: its arguments in the order of its schema, those not required may be left out."""

    def pair(key: str, value: str) -> str:
        return f"{marker[KEY]} {key} {marker[END_KEY]} {marker[VALUE]} {value} {marker[END_VALUE]}"

    schema, strict = function.parameters or {}, bool(function.strict)
    properties, required = schema.get("properties"), schema.get("required")
    properties = properties if isinstance(properties, dict) else {}
    required = [key for key in required if isinstance(key, str)] if isinstance(required, list) else []
    keys, needed, size = list(dict.fromkeys([*properties, *required])), set(required), 0
    used = [f"{rule}_{place}{'' if key in needed else '?'}" for place, key in enumerate(keys)]
    lines = []
    if not keys and schema.get("additionalProperties", not strict):
        used, lines = [f"{rule}_any*"], [f"{rule}_any: {pair('TEXT', 'TEXT')}"]
    for place, key in enumerate(keys):
        lines.append(f"{rule}_{place}: {pair(_literal(key), f'{rule}_{place}_value')}")
        lines.append(f"{rule}_{place}_value: {_value(properties.get(key), schema, strict=strict)}")
        size += len(lines[-1])
        if size > MAX_GRAMMAR_BYTES:  # shared definitions stand in each value: stop before they have multiplied
            raise bad_request(f"tools: the parameters of {function.name} are too large to be held to; send a smaller schema", "tools")
    return [f"{rule}: {_literal(function.name)} {' '.join(used)}", *lines]


def _value(schema: object, root: Mapping[str, Any], *, strict: bool) -> str:
    """The right-hand side of an argument's value."""
    found = resolved(schema, root)
    possible = kinds(schema, root)
    if "string" not in possible and possible and isinstance(found, dict):
        shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
        return f"%json {json.dumps(shared | found | {'x-guidance': _options(lenient=not strict)}, ensure_ascii=False)}"
    values = [found["const"]] if isinstance(found, dict) and "const" in found else found.get("enum") if isinstance(found, dict) else None
    if isinstance(values, list) and values and all(isinstance(value, str) and value for value in values):
        return " | ".join(_literal(value) for value in values)
    return "TEXT"


def _schema(schema: dict[str, Any] | str, *, lenient: bool = False) -> str:
    if isinstance(schema, str):
        schema = json.loads(schema)
        if not isinstance(schema, dict):
            raise ValueError("must be a JSON schema, an object")
    return LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=_options(lenient=lenient))


def _options(*, lenient: bool = False) -> Any:  # noqa: ANN401 - llguidance's own typed dict is not exported
    return {"whitespace_pattern": _WHITESPACE, "lenient": lenient, "coerce_one_of": lenient}


def _choice(choices: Sequence[str]) -> str:
    return _one("lark_grammar", "start: " + " | ".join(_literal(choice) for choice in choices))


def _lark(grammar: str) -> str:
    """Lark, or GBNF and its relatives, which the trial makes Lark of: that has no bound (250,000 empty lines take minutes)."""
    return _one(grammar_trial.LARK_OR_GBNF, grammar)


def _one(kind: str, text: str) -> str:
    return json.dumps({"grammars": [{kind: text}]}, ensure_ascii=False)


def _literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _token(text: str, token_of: Callable[[str], int | None]) -> str:
    token = token_of(text)
    if token is None:
        raise bad_request(f"this model's tokenizer has no {text}, so calls can't be forced; use tool_choice auto", "tool_choice")
    return f"<[{token}]>"


def _of_bounded_size(text: str, field: str) -> str:
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_GRAMMAR_BYTES:
        raise bad_request(f"{field}: the grammar has {size} bytes, at most {MAX_GRAMMAR_BYTES} are taken", field)
    return text
