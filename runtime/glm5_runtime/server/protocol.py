"""Request bodies of the POST endpoints as pydantic models: every field, its type and its limit.

The field list is vLLM's. Policy, the same on every endpoint:
- null equals absent (`body.parse_object` drops nulls before validation);
- a field nobody knows is ignored and its name logged at debug level, as vLLM does: clients send vendor extras all the time;
- a field we know and can't honour is refused with 400 (`REFUSED_*`), never ignored;
- values outside the limits below are refused with 400 naming the field.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PlainValidator

MAX_CHOICES = 128  # OpenAI's own limit of n
MAX_STOPS = 16
MAX_LOGPROBS = 20
MAX_BIASED = 1024
MAX_STOP_IDS = 128
MAX_TOOLS = 1024  # OpenAI takes 128; agents with many tool servers send some hundreds
MAX_CHOICES_GUIDED = 4096  # strings of guided_choice
MAX_OPTIONS = 64  # of chat_template_kwargs
MAX_FIELDS = 256  # of a body, unknown ones included; we know about 60

_NO_BEAMS = "only sampling is available; leave it out"

REFUSED_ALWAYS = {
    "thinking_token_budget": "there is no thinking here; use /v1/chat/completions",
    "guided_whitespace_pattern": "blanks in JSON are bounded as they are; use guided_grammar",
    "use_beam_search": _NO_BEAMS,
    "length_penalty": _NO_BEAMS,
    "allowed_token_ids": "tokens can't be restricted to a list; use logit_bias",
    "bad_words": "use logit_bias with -100",
    "logits_processors": "there is no such extension point",
    "truncate_prompt_tokens": "a prompt is never cut silently; send one that fits",
    "prompt_logprobs": "use echo with logprobs on /v1/completions",
    "prompt_embeds": "only text and token ids are read",
    "chat_template": "the template belongs to the server (--chat-template)",
    "return_token_ids": "token ids are not part of any reply; use logprobs",
}
REFUSED_IN_CHAT = {name: why for name, why in REFUSED_ALWAYS.items() if name != "thinking_token_budget"} | {
    "functions": "it is deprecated; use tools",
    "function_call": "it is deprecated; use tool_choice",
    "documents": "put the documents into a message",
    "echo": "it belongs to /v1/completions",
    "mm_processor_kwargs": "only text is read",
    "audio": "only text is produced",
}
REFUSED_IN_COMPLETIONS = REFUSED_ALWAYS | {"suffix": "the model does not fill in the middle", "best_of": "use n"}

Text = Annotated[str, Field(strict=True)]
StopString = Annotated[str, Field(strict=True, min_length=1, max_length=256)]


def _one_or_several(value: object) -> object:
    """A single stop string is a list of one; a union in the type would report every fault once for each branch."""
    return [value] if isinstance(value, str) else value


def _prompts(value: object) -> object:
    """A text, token ids, or a list of either → a list of prompts."""
    if isinstance(value, str) or _are_ids(value):
        return [value]
    if isinstance(value, list) and value and all(isinstance(item, str) or _are_ids(item) for item in value):
        return value
    raise ValueError("must be a text, a list of token ids, or a list of either, and not empty")


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(type(item) is int for item in value)


def _ids(value: object) -> object:
    """Token ids; looked at here, because pydantic would collect a fault for each of a million wrong ones."""
    if value == [] or _are_ids(value):
        return value
    raise ValueError("must be a list of token ids")


def _at_most(limit: int) -> BeforeValidator:
    """Refuses a longer list or object before its entries are looked at: pydantic would collect a million faults first."""

    def check(value: object) -> object:
        if isinstance(value, list | dict) and len(value) > limit:
            raise ValueError(f"has {len(value)} entries; at most {limit} are taken")
        return value

    return BeforeValidator(check)


Stops = Annotated[list[StopString], _at_most(MAX_STOPS), BeforeValidator(_one_or_several)]
Choices = Annotated[list[Annotated[str, Field(strict=True, min_length=1)]], Field(min_length=1), _at_most(MAX_CHOICES_GUIDED)]
Prompts = Annotated[list[str | list[int]], PlainValidator(_prompts)]


class StreamOptions(BaseModel):
    """What a stream tells besides text."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class RequestBody(BaseModel):
    """What every body has."""

    model_config = ConfigDict(extra="allow", frozen=True)

    model: Text | None = None


class SamplingFields(RequestBody):
    """Fields that all generating endpoints share. None means the checkpoint's generation_config, else neutral."""

    stream: bool = False
    stream_options: StreamOptions | None = None
    n: int = Field(1, ge=1, le=MAX_CHOICES)
    max_tokens: int | None = Field(None, ge=0, le=2**31)
    min_tokens: int = Field(0, ge=0, le=2**31 - 1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1, le=2**31 - 1)
    min_p: float = Field(0.0, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=1e-3, le=10)  # the engine's own least
    frequency_penalty: float = Field(0.0, ge=-2, le=2)
    presence_penalty: float = Field(0.0, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(2**63), le=2**63 - 1)
    stop: Stops = Field(default_factory=list)
    stop_token_ids: Annotated[list[int], _at_most(MAX_STOP_IDS)] = Field(default_factory=list)
    logit_bias: Annotated[dict[str, Annotated[float, Field(ge=-100, le=100)]], _at_most(MAX_BIASED)] = Field(default_factory=dict)
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    priority: int = Field(0, ge=-(2**31), le=2**31 - 1)  # the lower comes first, as in vLLM
    context_tier: Annotated[str, Field(strict=True, max_length=64)] | None = None  # also the header X-Context-Tier
    request_id: Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9._:-]{1,64}$")] | None = None
    user: Text | None = None
    cache_salt: Annotated[str, Field(strict=True, max_length=256)] | None = None
    canary: bool = True  # false: the model itself answers a request that names it, whatever share of them adapters have


class FunctionDef(BaseModel):
    """The callable part of a tool."""

    model_config = ConfigDict(extra="allow")

    name: Annotated[str, Field(strict=True, pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    description: Text | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None  # true: arguments keep to the schema, whatever tool_choice is


class ToolDef(BaseModel):
    """One entry of `tools`."""

    model_config = ConfigDict(extra="allow")

    type: Literal["function"]
    function: FunctionDef


class JsonSchemaFormat(BaseModel):
    """`response_format.json_schema`. Not `strict`: what of the schema can't be held is left to the model, as at OpenAI."""

    model_config = ConfigDict(extra="allow")

    name: Text | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """`response_format`."""

    model_config = ConfigDict(extra="allow")

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    json_schema: JsonSchemaFormat | None = None


class StructuredOutputs(BaseModel):
    """vLLM's `structured_outputs`; what else it has there is refused, not ignored."""

    model_config = ConfigDict(extra="forbid")

    json_schema: dict[str, Any] | Text | None = Field(None, alias="json")
    regex: Text | None = None
    choice: Choices | None = None
    grammar: Text | None = None
    json_object: bool | None = None


class StructuredFields(SamplingFields):
    """What an answer must look like; at most one of these says so."""

    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    guided_json: dict[str, Any] | Text | None = None
    guided_regex: Text | None = None
    guided_choice: Choices | None = None
    guided_grammar: Text | None = None


class Thinking(BaseModel):
    """Z.ai's own switch of thinking."""

    type: Literal["enabled", "disabled"]
    clear_thinking: bool | None = None


class ChatRequest(StructuredFields):
    """Body of /v1/chat/completions. Messages are read by `messages`, which names what is wrong in them."""

    messages: list[Any] = Field(min_length=1)
    max_completion_tokens: int | None = Field(None, ge=0, le=2**31)
    logprobs: bool = False
    top_logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    tools: Annotated[list[ToolDef], _at_most(MAX_TOOLS)] = Field(default_factory=list)
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    parallel_tool_calls: bool = True
    thinking_token_budget: int | None = Field(None, ge=0, le=2**31 - 1)
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    include_reasoning: bool = True
    enable_thinking: bool | None = None
    clear_thinking: bool | None = None
    thinking: Thinking | None = None
    chat_template_kwargs: Annotated[dict[str, Any], _at_most(MAX_OPTIONS)] = Field(default_factory=dict)
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    add_special_tokens: bool = False  # templates write their own


class CompletionRequest(StructuredFields):
    """Body of /v1/completions. `prompt` is a text or token ids, or a list of either; here always the list."""

    prompt: Prompts
    echo: bool = False
    logprobs: int | None = Field(None, ge=0, le=MAX_LOGPROBS)
    add_special_tokens: bool = True


class GenerateRequest(StructuredFields):
    """Body of /generate after `dialects` has made one flat object of whichever was sent; one prompt."""

    prompt: Prompts
    add_special_tokens: bool = True


class TokenizeRequest(RequestBody):
    """Body of /tokenize with a raw text; one with `messages` is a ChatRequest."""

    prompt: Text
    add_special_tokens: bool = True
    return_token_strs: bool = False


class DetokenizeRequest(RequestBody):
    """Body of /detokenize."""

    tokens: Annotated[list[Any], BeforeValidator(_ids)]
