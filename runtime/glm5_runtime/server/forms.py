"""What restricts the tokens of an answer: response_format and its relatives, forced and strict tool calls, the budget of thinking.

Called by the generating endpoints with a checked body; `grammar` writes the grammars, `grammar_compiler` prepares them. An answer's form
begins behind its thinking. With tools on offer and a form for the answer, the model may still call instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from glm5_runtime.server.errors import bad_request
from glm5_runtime.server.grammar import answer_grammar, tool_grammar
from glm5_runtime.server.parsers import CALL, END_THINK
from glm5_runtime.text.template import opens_thinking

if TYPE_CHECKING:
    from glm5_runtime.engine.constraint import ConstraintFactory
    from glm5_runtime.server.grammar import Grammar
    from glm5_runtime.server.grammar_compiler import Grammars
    from glm5_runtime.server.protocol import ChatRequest, FunctionDef, StructuredFields


async def answer_form(grammars: Grammars, body: StructuredFields) -> ConstraintFactory | None:
    """The constraint of a raw answer, None when anything goes; raises ApiError 400 naming the field."""
    grammar = answer_grammar(body)
    return None if grammar is None else await _constraint(grammars, body, grammar)


async def chat_form(grammars: Grammars, body: ChatRequest, prompt: str) -> ConstraintFactory | None:
    """The constraint of a chat's answer behind this prompt, None when anything goes; raises ApiError 400 naming the field."""
    form = await _form(grammars, body)
    if not opens_thinking(prompt) or (form is None and body.thinking_token_budget is None):
        return form
    field = "thinking_token_budget" if form is None else "structured output"
    return grammars.after(END_THINK, form, field=field, may_end=form is None, budget=body.thinking_token_budget)


async def _form(grammars: Grammars, body: ChatRequest) -> ConstraintFactory | None:
    answer = answer_grammar(body)
    offered = [tool.function for tool in body.tools] if body.tool_choice != "none" else []
    token_of = grammars.token_of
    if isinstance(body.tool_choice, dict) or body.tool_choice == "required":
        wanted = _forced(body.tool_choice, offered)
        one = isinstance(body.tool_choice, dict) or not body.parallel_tool_calls
        return await _constraint(grammars, body, tool_grammar(wanted, token_of, several=not one, opened=False))
    strict = any(function.strict for function in offered)
    if answer is not None and not offered:
        return await _constraint(grammars, body, answer)
    if answer is None and not strict:
        return None
    opened = answer is None
    allowed = [function if function.strict else function.model_copy(update={"parameters": None}) for function in offered]
    calls = tool_grammar(allowed, token_of, several=body.parallel_tool_calls, opened=opened, answer=answer)
    form = await _constraint(grammars, body, calls)
    return grammars.after(CALL, form, field="tools", may_end=True) if opened else form


def _forced(choice: str | dict[str, Any], offered: list[FunctionDef]) -> list[FunctionDef]:
    """The functions of which one must be called."""
    if not offered:
        raise bad_request("tool_choice forces a call, but there are no tools", "tool_choice")
    if isinstance(choice, str):
        return offered
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise bad_request('tool_choice must be none, auto, required or {"type": "function", "function": {"name": …}}', "tool_choice")
    named = [function for function in offered if function.name == name]
    if not named:
        raise bad_request("tool_choice names a function that is not among the tools", "tool_choice.function.name")
    return named


async def _constraint(grammars: Grammars, body: StructuredFields, grammar: Grammar) -> ConstraintFactory:
    if body.ignore_eos:
        raise bad_request(f"ignore_eos can't be used with {grammar.field}: an answer that is complete can only end", "ignore_eos")
    return await grammars.constraint(grammar)
