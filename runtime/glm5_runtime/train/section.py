"""What all sections of the training file have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Section(BaseModel):
    """Decoded strictly, and never changed afterwards."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)
