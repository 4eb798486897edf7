"""GET /openapi.json: what the endpoints take and give, generated from the request models. Pure; served by `app`, fuzzed by tests.

Written here by hand is only what the models leave to code: messages, prompts, one text or several, the dialects of /generate.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema

from glm5_runtime.server.adapters import LoadAdapter, UnloadAdapter
from glm5_runtime.server.protocol import (
    MAX_STOPS,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerateRequest,
    TokenizeRequest,
)
from glm5_runtime.text.messages import ROLES

Schema = dict[str, Any]
_MODELS = (ChatRequest, CompletionRequest, GenerateRequest, TokenizeRequest, DetokenizeRequest, LoadAdapter, UnloadAdapter)
_TEXT: Schema = {"type": "string"}
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
_PROMPT: Schema = {"anyOf": [_TEXT, _IDS]}
_MESSAGE: Schema = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"enum": list(ROLES)},
        "content": {
            "anyOf": [
                _TEXT,
                {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "required": ["type", "text"],
                        "properties": {"type": {"const": "text"}, "text": _TEXT},
                    },
                },
            ]
        },
        "reasoning_content": _TEXT,
        "tool_call_id": _TEXT,
        "tool_calls": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["function"],
                "properties": {
                    "id": _TEXT,
                    "type": {"const": "function"},
                    "function": {
                        "type": "object",
                        "required": ["name", "arguments"],
                        "properties": {"name": _TEXT, "arguments": {"anyOf": [_TEXT, {"type": "object"}]}},
                    },
                },
            },
        },
    },
}
_BY_HAND: dict[str, Schema] = {
    "messages": {"type": "array", "minItems": 1, "items": _MESSAGE},
    "tokens": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    "stop": {"type": ["string", "array"], "minLength": 1, "maxItems": MAX_STOPS},  # besides what the model says of a list's items
}
_ERROR: Schema = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_BLOCKS: Schema = {
    "type": "array",
    "items": {
        "anyOf": [
            {"type": "object", "required": ["type", "text"], "properties": {"type": {"const": "text"}, "text": _TEXT}},
            {
                "type": "object",
                "required": ["type", "name", "input"],
                "properties": {"type": {"const": "tool_use"}, "id": _TEXT, "name": _TEXT, "input": {"type": "object"}},
            },
            {
                "type": "object",
                "required": ["type", "tool_use_id"],
                "properties": {"type": {"const": "tool_result"}, "tool_use_id": _TEXT, "content": _TEXT},
            },
            {"type": "object", "required": ["type", "thinking"], "properties": {"type": {"const": "thinking"}, "thinking": _TEXT}},
        ]
    },
}
_MESSAGES_REQUEST: Schema = {
    "type": "object",
    "required": ["max_tokens", "messages"],
    "properties": {
        "model": _TEXT,
        "max_tokens": {"type": "integer", "minimum": 0},
        "messages": {
            "type": "array",
            "minItems": 1,
            "items": {
                "type": "object",
                "required": ["role", "content"],
                "properties": {"role": {"enum": ["user", "assistant"]}, "content": {"anyOf": [_TEXT, _BLOCKS]}},
            },
        },
        "system": {"anyOf": [_TEXT, _BLOCKS]},
        "stop_sequences": {"type": "array", "items": _TEXT, "maxItems": MAX_STOPS},
        "stream": {"type": "boolean"},
        "temperature": {"type": "number", "minimum": 0, "maximum": 2},
        "top_p": {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        "top_k": {"type": "integer", "minimum": -1},
        "thinking": {"type": "object", "properties": {"type": {"enum": ["enabled", "disabled", "adaptive"]}}},
        "tool_choice": {"type": "object", "required": ["type"], "properties": {"type": {"enum": ["auto", "any", "tool", "none"]}}},
        "tools": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "input_schema"],
                "properties": {"name": _TEXT, "description": _TEXT, "input_schema": {"type": "object"}},
            },
        },
    },
}
_MESSAGES_ERROR: Schema = {
    "type": "object",
    "required": ["type", "error"],
    "properties": {
        "type": {"const": "error"},
        "error": {"type": "object", "required": ["type", "message"], "properties": {"type": _TEXT, "message": _TEXT}},
    },
}
_VERDICT: Schema = {"type": "object", "required": ["status"], "properties": {"status": _TEXT, "reason": _TEXT, "message": _TEXT}}
_STREAM: Schema = {"text/event-stream": {}}
_PLAIN: Schema = {"text/plain": {}}


def document() -> Schema:
    """The whole document, OpenAPI 3.1."""
    return {
        "openapi": "3.1.0",
        "info": {"title": "GLM-5 runtime", "version": version("glm5-ascend")},
        "security": [{}, {"key": []}],
        "paths": {**_posts(), **_gets()},
        "components": {
            "schemas": _schemas() | {"Error": _ERROR, "MessagesRequest": _MESSAGES_REQUEST},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
            "responses": {
                "Error": _json("A refusal or a failure; `param` names the field.", _ref("Error")),
                "MessagesError": _json("A refusal or a failure.", _MESSAGES_ERROR),
            },
        },
    }


def _posts() -> Schema:
    tokenized: Schema = {
        "type": "object",
        "required": ["count", "max_model_len", "tokens"],
        "properties": {"count": {"type": "integer"}, "max_model_len": {"type": "integer"}, "tokens": {"type": "array"}},
    }
    detokenized: Schema = {"type": "object", "required": ["prompt"], "properties": {"prompt": _TEXT}}
    said: Schema = {"type": "object", "required": ["id", "type", "role", "model", "content", "stop_reason", "usage"]}
    counted: Schema = {"type": "object", "required": ["input_tokens"], "properties": {"input_tokens": {"type": "integer"}}}
    generated: Schema = {**_STREAM, "application/x-ndjson": {}}
    return {
        "/v1/chat/completions": _post("Answer a conversation.", _ref("ChatRequest"), _answer("chat.completion"), _STREAM),
        "/v1/completions": _post("Continue a text.", _ref("CompletionRequest"), _answer("text_completion"), _STREAM),
        "/generate": _post("Continue a text, in older dialects.", _dialects(), {"type": "object"}, generated),
        "/generate_stream": _post("The same, always as a stream.", _dialects(), {"type": "object"}, generated),
        "/v1/messages": _post("Answer a conversation, in Anthropic's words.", _ref("MessagesRequest"), said, _STREAM, "MessagesError"),
        "/v1/messages/count_tokens": _post("Count its tokens.", _ref("MessagesRequest"), counted, {}, "MessagesError"),
        "/v1/load_lora_adapter": _post("Check an adapter and serve it.", _ref("LoadAdapter"), {}, _PLAIN),
        "/v1/unload_lora_adapter": _post("Take an adapter's name away.", _ref("UnloadAdapter"), {}, _PLAIN),
        "/tokenize": _post("Text to ids.", {"anyOf": [_ref("TokenizeRequest"), _ref("ChatRequest")]}, tokenized, {}),
        "/detokenize": _post("Ids to text.", _ref("DetokenizeRequest"), detokenized, {}),
    }


def _gets() -> Schema:
    model: Schema = {"type": "object", "required": ["id", "object"], "properties": {"id": _TEXT}}
    models: Schema = {"type": "object", "required": ["data"], "properties": {"data": {"type": "array", "items": model}}}
    one = _get("One model.", model)
    one["get"]["parameters"] = [{"name": "model", "in": "path", "required": True, "schema": _TEXT}]
    return {
        "/v1/models": _get("The models.", models),
        "/v1/models/{model}": one,
        "/version": _get("The version.", {"type": "object", "required": ["version"]}),
        "/load": _get("Requests under way.", {"type": "object", "required": ["server_load"]}),
        "/openapi.json": _get("This document.", {"type": "object", "required": ["openapi"]}),
        "/health": _get("Liveness.", _VERDICT, {"503": _json("Restart the process.", _VERDICT)}),
        "/health/ready": _get("Readiness.", _VERDICT, {"503": _json("Send requests elsewhere.", _VERDICT)}),
        "/health/adapters": _get(
            "The adapters, and what each has answered.", {"type": "object", "required": ["model", "adapters", "base"]}
        ),
        "/metrics": {"get": {"summary": "Prometheus metrics.", "responses": {"200": {"description": "", "content": {"text/plain": {}}}}}},
    }


def _post(summary: str, body: Schema, answer: Schema, streams: Schema, failure: str = "Error") -> Schema:
    content = {"application/json": {"schema": answer}} | streams
    return {
        "post": {
            "summary": summary,
            "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
            "responses": {
                "200": {"description": "The answer.", "content": content},
                "default": {"$ref": f"#/components/responses/{failure}"},
            },
        }
    }


def _get(summary: str, answer: Schema, others: Schema | None = None) -> Schema:
    failures = others or {"default": {"$ref": "#/components/responses/Error"}}
    return {"get": {"summary": summary, "responses": {"200": _json("The answer.", answer)} | failures}}


def _json(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer(kind: str) -> Schema:
    properties = {"object": {"const": kind}, "choices": {"type": "array"}, "usage": {"type": "object"}}
    return {"type": "object", "required": ["id", "object", "created", "model", "choices", "usage"], "properties": properties}


def _dialects() -> Schema:
    """Bodies of /generate: parameters flat or nested, under OpenAI's or older names."""
    parameters: Schema = _ref("GenerateRequest") | {"properties": {"max_new_tokens": {"type": "integer", "minimum": 0}}}
    forms = (("prompt", _PROMPT, "parameters"), ("inputs", _PROMPT, "parameters"), ("text", _TEXT, "sampling_params"))
    return {
        "anyOf": [
            {"type": "object", "required": [prompt], "properties": {prompt: schema, name: parameters, "stream": {"type": "boolean"}}}
            for prompt, schema, name in (*forms, ("input_ids", _IDS, "sampling_params"))
        ]
    }


def _schemas() -> Schema:
    """The request models, with what they leave to code."""
    _, generated = models_json_schema([(model, "validation") for model in _MODELS], ref_template="#/components/schemas/{model}")
    schemas: Schema = generated["$defs"]
    for schema in schemas.values():
        for name in schema.get("properties", {}).keys() & _BY_HAND.keys():
            schema["properties"][name] |= _BY_HAND[name]
    several = {"type": "array", "minItems": 1, "items": _PROMPT}
    schemas["CompletionRequest"]["properties"]["prompt"] |= {"anyOf": [*_PROMPT["anyOf"], several]}
    schemas["GenerateRequest"]["properties"].pop("prompt")  # `_dialects` names it in the client's words
    schemas["GenerateRequest"].pop("required")
    return schemas
