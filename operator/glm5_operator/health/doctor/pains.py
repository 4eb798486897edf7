"""Known troubles that a text shows (`pains.yaml`): which patterns, why, and what to do.

Called by `diagnose` with logs, events and outputs of tools. Holds no troubles itself: a new one is a change of data.
"""

from __future__ import annotations

import re  # noqa: TC003 - pydantic needs it at run time
from functools import cache
from importlib import resources
from typing import Annotated, Final, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

Certain = Literal["vendor", "reporter", "advice"]

MOST_LINES: Final = 3
"""Of a text that are shown for one trouble."""
LINE_CHARACTERS: Final = 240


class Pain(BaseModel):
    """One trouble; the fields are explained in pains.yaml."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Annotated[str, Field(pattern="^[A-Z][A-Za-z]+$")]
    when: Annotated[tuple[re.Pattern[str], ...], Field(strict=False, min_length=1)]
    cause: str
    fix: str
    certain: Certain
    links: Annotated[tuple[str, ...], Field(strict=False)] = ()

    def lines(self, text: str) -> tuple[str, ...]:
        """Lines of the text that show it, each once."""
        found: dict[str, None] = {}
        for pattern in self.when:
            after = 0
            while after < len(text) and (match := pattern.search(text, after)):  # on from the line's end: some logs are one long line
                start = text.rfind("\n", 0, match.start()) + 1
                end = text.find("\n", match.start())
                after = end + 1 if end >= 0 else len(text)
                found[text[start:after].strip()[:LINE_CHARACTERS]] = None
                if len(found) == MOST_LINES:
                    return tuple(found)
        return tuple(found)


class _Pains(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    pains: tuple[Pain, ...]


@cache
def pains() -> tuple[Pain, ...]:
    """All of them, in the file's order."""
    text = (resources.files("glm5_operator.health.doctor") / "pains.yaml").read_text(encoding="utf-8")
    return _Pains.model_validate(yaml.safe_load(text)).pains
