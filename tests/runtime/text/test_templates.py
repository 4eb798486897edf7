"""Chat templates: GLM-5's rules by version, the tiny model's prompts byte for byte, checkpoints' own templates, what may not happen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from glm5_runtime.text.errors import ConversationError
from glm5_runtime.text.messages import normalise
from glm5_runtime.text.template import BUILT_IN, ChatTemplate, TemplateError, built_in, find_template, opens_thinking
from tests.support.serving import EXPECTED, TINY

PROMPTS = [row for row in EXPECTED if row["kind"] != "text"]
TOOL = {"type": "function", "function": {"name": "f", "description": "<é & 中>", "strict": True, "parameters": {"type": "object"}}}
DEFERRED = {"type": "function", "function": {"name": "later", "defer_loading": True}}


def render(version: str, messages: Sequence[dict[str, Any]], *, tools: Sequence[dict[str, Any]] | None = None, **options: object) -> str:
    return built_in(version).render(normalise(list(messages)), tools=tools, options=options)


def user(text: str = "q") -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str | None = "a", **fields: object) -> dict[str, Any]:
    return {"role": "assistant", "content": text} | fields


def calls(*names: str) -> dict[str, Any]:
    functions = [{"id": f"id-{name}", "type": "function", "function": {"name": name, "arguments": "{}"}} for name in names]
    return {"role": "assistant", "content": None, "tool_calls": functions}


def result(name: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"id-{name}", "content": f"from {name}"}


def test_every_prompt_of_the_reference_runs_comes_out_byte_for_byte() -> None:
    for row in PROMPTS:
        options: dict[str, object] = {} if row["kind"] == "think" else {"enable_thinking": False}
        assert render("5", [user(row["question"])], tools=row.get("tools"), **options) == row["prompt"]


# One row for each rule and version. H: what stands in front of the conversation.
H = {
    "5": "[gMASK]<sop>",
    "5.1": "[gMASK]<sop>",
    "5.2": "[gMASK]<sop><|system|>Reasoning Effort: Max",
    "5.3": "[gMASK]<sop><|system|>Reasoning Effort: Max",
}
RULES: list[tuple[str, dict[str, Any], dict[str, str]]] = [
    ("generation prompt", {"messages": [user()]}, dict.fromkeys(BUILT_IN, "{H}<|user|>q<|assistant|><think>")),
    (
        "thinking off",
        {"messages": [user()], "enable_thinking": False},
        {
            "5": "{H}<|user|>q<|assistant|></think>",
            "5.1": "{H}<|user|>q<|assistant|></think>",
            "5.2": "[gMASK]<sop><|user|>q<|assistant|><think></think>",
            "5.3": "{H}<|user|>q<|assistant|><think>",  # can't be switched off
        },
    ),
    (
        "system message",
        {"messages": [{"role": "system", "content": "s"}, user()]},
        dict.fromkeys(BUILT_IN, "{H}<|system|>s<|user|>q<|assistant|><think>"),
    ),
    (
        "past turn without reasoning",
        {"messages": [user(), answer(" a\n"), user("r")]},
        {
            "5": "{H}<|user|>q<|assistant|></think>a<|user|>r<|assistant|><think>",
            "5.1": "{H}<|user|>q<|assistant|></think>a<|user|>r<|assistant|><think>",
            "5.2": "{H}<|user|>q<|assistant|><think></think>a<|user|>r<|assistant|><think>",
            "5.3": "{H}<|user|>q<|assistant|><think></think>a<|user|>r<|assistant|><think>",
        },
    ),
    (
        "past reasoning by default",
        {"messages": [user(), answer(reasoning="why"), user("r")]},
        {
            "5": "{H}<|user|>q<|assistant|></think>a<|user|>r<|assistant|><think>",
            "5.1": "{H}<|user|>q<|assistant|></think>a<|user|>r<|assistant|><think>",
            "5.2": "{H}<|user|>q<|assistant|><think></think>a<|user|>r<|assistant|><think>",
            "5.3": "{H}<|user|>q<|assistant|><think>why</think>a<|user|>r<|assistant|><think>",
        },
    ),
    (
        "past reasoning kept",
        {"messages": [user(), answer(reasoning_content="why"), user("r")], "clear_thinking": False},
        dict.fromkeys(BUILT_IN, "{H}<|user|>q<|assistant|><think>why</think>a<|user|>r<|assistant|><think>"),
    ),
    (
        "past reasoning cleared",
        {"messages": [user(), answer("<think>why</think>a"), user("r")], "clear_thinking": True},
        {
            "5": "{H}<|user|>q<|assistant|></think>a<|user|>r<|assistant|><think>",
            "5.1": "{H}<|user|>q<|assistant|></think>a<|user|>r<|assistant|><think>",
            "5.2": "{H}<|user|>q<|assistant|><think></think>a<|user|>r<|assistant|><think>",
            "5.3": "{H}<|user|>q<|assistant|><think></think>a<|user|>r<|assistant|><think>",
        },
    ),
    (
        "reasoning after the last user message",
        {"messages": [user(), calls("f") | {"reasoning": "why"}, result("f")]},
        dict.fromkeys(
            BUILT_IN,
            "{H}<|user|>q<|assistant|><think>why</think><tool_call>f</tool_call>"
            "<|observation|><tool_response>from f</tool_response><|assistant|><think>",
        ),
    ),
    (
        "no reasoning after the last user message, and null content is no text",
        {"messages": [user(), calls("f"), result("f")]},
        {
            version: "{H}<|user|>q<|assistant|>"
            + ("</think>" if version == "5" else "<think></think>")
            + "<tool_call>f</tool_call><|observation|><tool_response>from f</tool_response><|assistant|><think>"
            for version in BUILT_IN
        },
    ),
    (
        "results in another order than the calls",
        {"messages": [user(), calls("f", "g"), result("g"), result("f")], "clear_thinking": True},
        {
            version: "{H}<|user|>q<|assistant|>"
            + ("</think>" if version == "5" else "<think></think>")
            + "<tool_call>f</tool_call><tool_call>g</tool_call><|observation|>"
            + (
                "<tool_response>from f</tool_response><tool_response>from g</tool_response>"
                if version == "5.3"
                else "<tool_response>from g</tool_response><tool_response>from f</tool_response>"
            )
            + "<|assistant|><think>"
            for version in BUILT_IN
        },
    ),
]


@pytest.mark.parametrize("version", BUILT_IN)
@pytest.mark.parametrize(("given", "prompts"), [rule[1:] for rule in RULES], ids=[rule[0] for rule in RULES])
def test_rules_by_version(version: str, given: dict[str, Any], prompts: dict[str, str]) -> None:
    assert render(version, **given) == prompts[version].replace("{H}", H[version])


@pytest.mark.parametrize(
    ("version", "effort", "shown"),
    [
        *(("5", effort, None) for effort in ("low", "high", "max")),
        ("5.2", "high", "High"),
        ("5.2", "low", "Max"),
        ("5.3", "low", "Low"),
        ("5.3", "high", "High"),
        ("5.3", "medium", "Max"),
    ],
)
def test_reasoning_effort_is_said_as_the_version_says_it(version: str, effort: str, shown: str | None) -> None:
    prompt = render(version, [user()], reasoning_effort=effort)

    assert prompt.startswith("[gMASK]<sop><|user|>" if shown is None else f"[gMASK]<sop><|system|>Reasoning Effort: {shown}<|user|>")


@pytest.mark.parametrize(
    ("version", "lines"),
    [
        ("5", [json.dumps(TOOL, ensure_ascii=False), json.dumps(DEFERRED)]),
        ("5.1", ['{"name": "f", "description": "<é & 中>", "parameters": {"type": "object"}}', '{"name": "later"}']),
        ("5.2", ['{"name": "f", "description": "<é & 中>", "parameters": {"type": "object"}}', '{"name": "later"}']),
        ("5.3", ['{"name": "f", "description": "<é & 中>", "parameters": {"type": "object"}}']),
    ],
)
def test_tools_are_written_one_a_line_as_the_version_does(version: str, lines: list[str]) -> None:
    prompt = render(version, [user()], tools=[TOOL, DEFERRED])

    assert prompt.partition("<tools>\n")[2].partition("</tools>")[0] == "\n".join([*lines, ""]).partition("<tools>\n")[0]


def test_arguments_of_past_calls_are_raw_strings_or_json() -> None:
    call = calls("f")
    call["tool_calls"][0]["function"]["arguments"] = '{"s": "<a> é", "n": 1.5, "l": ["x", null], "b": true}'

    prompt = render("5", [user(), call])

    assert (
        "<tool_call>f<arg_key>s</arg_key><arg_value><a> é</arg_value><arg_key>n</arg_key><arg_value>1.5</arg_value>"
        '<arg_key>l</arg_key><arg_value>["x", null]</arg_value><arg_key>b</arg_key><arg_value>true</arg_value></tool_call>'
    ) in prompt


@pytest.mark.parametrize("version", BUILT_IN)
@pytest.mark.parametrize("text", ["one, two", "one, two \n", "  one"])
def test_a_continued_answer_ends_the_prompt_with_its_own_text(version: str, text: str) -> None:
    prompt = built_in(version).render(normalise([user("one"), answer(text)]), continue_last=True)

    assert prompt.endswith("</think>" + text.lstrip())
    assert not opens_thinking(prompt)


@pytest.mark.parametrize(
    ("prompt", "inside"),
    [
        ("<|user|>q<|assistant|><think>", True),
        ("<|user|>q<|assistant|></think>", False),
        ("<|user|>q<|assistant|><think></think>", False),
        ("<|user|>what is <think>?<|assistant|></think>", False),
        ("<|user|>what is </think>?<|assistant|><think>", True),
    ],
)
def test_whether_the_prompt_opens_a_thinking_block_is_read_from_its_last_turn(prompt: str, inside: bool) -> None:
    assert opens_thinking(prompt) is inside


# Which template is taken


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        shutil.copy(TINY / name, folder / name)
    return folder


def write_config(folder: Path, **fields: object) -> None:
    stored = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(stored | fields))


def test_the_checkpoints_own_template_comes_first_and_the_jinja_file_before_the_json(checkpoint: Path) -> None:
    stored = json.loads((checkpoint / "tokenizer_config.json").read_text())

    (checkpoint / "tokenizer_config.json").write_text(json.dumps(stored | {"chat_template": "from json"}))
    assert find_template(checkpoint, "auto").render([user()]) == "from json"

    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "from list"}]
    (checkpoint / "tokenizer_config.json").write_text(json.dumps(stored | {"chat_template": named}))
    assert find_template(checkpoint, "auto").render([user()]) == "from list"

    (checkpoint / "chat_template.jinja").write_text("from file")
    assert find_template(checkpoint, "auto").render([user()]) == "from file"
    assert find_template(checkpoint, "5.2").origin == "built-in 5.2"


@pytest.mark.parametrize(
    ("fields", "version"),
    [
        ({}, "5"),
        ({"_name_or_path": "zai-org/GLM-5.1"}, "5.1"),
        ({"_name_or_path": "/models/glm-5.3-w8a8"}, "5.3"),
        ({"rope_parameters": {"rope_theta": 8_000_000, "rope_type": "default"}}, "5.2"),
    ],
)
def test_the_version_of_a_checkpoint_without_a_template_is_guessed_and_the_log_says_so(
    checkpoint: Path, fields: dict[str, object], version: str, caplog: pytest.LogCaptureFixture
) -> None:
    write_config(checkpoint, **fields)

    assert find_template(checkpoint, "auto").origin == f"built-in {version}"
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"guessed GLM-{version}" in record.getMessage()
    assert "--model-version" in record.getMessage()


def test_a_version_that_is_told_wins_over_the_folder_and_never_over_the_checkpoints_own_template(
    checkpoint: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_config(checkpoint, _name_or_path="zai-org/GLM-5.1")

    assert find_template(checkpoint, "auto", "5.3").origin == "built-in 5.3"
    (checkpoint / "chat_template.jinja").write_text("from file")
    assert find_template(checkpoint, "auto", "5.3").render([user()]) == "from file"
    assert not caplog.records


def test_a_template_that_cannot_be_used_is_said_at_start(checkpoint: Path) -> None:
    (checkpoint / "bad.jinja").write_text("line one\n{% if %}")

    with pytest.raises(TemplateError, match="line 2"):
        find_template(checkpoint, str(checkpoint / "bad.jinja"))
    with pytest.raises(TemplateError, match=r"nowhere\.jinja"):
        find_template(checkpoint, "nowhere.jinja")


# What a template may do


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ messages.append(1) }}",
        "{{ raise_exception('roles must alternate') }}",
        "{{ messages[0].content.missing.deeper }}",
        "{{ 1 / 0 }}",
        "{% for i in range(100000000) %}x{% endfor %}",
    ],
)
def test_a_template_that_fails_or_reaches_out_is_a_refusal(source: str) -> None:
    with pytest.raises(ConversationError) as caught:
        ChatTemplate.compile(source, "test").render([user()])

    assert caught.value.field == "messages"


def test_a_refusal_by_the_template_reaches_the_client_in_its_words() -> None:
    template = ChatTemplate.compile("{{ raise_exception('roles must alternate') }}", "test")

    with pytest.raises(ConversationError, match="roles must alternate"):
        template.render([user()])
