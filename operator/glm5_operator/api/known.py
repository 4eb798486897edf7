"""The GLM-5 models that the API knows by name, and the facts about them that a rule of the API needs.

Read by the rules of the CRD and by the planner. Sizes, cards and flags are the planner's recipes, not here.
"""

from __future__ import annotations

from typing import Final

KNOWN_MODELS: Final = ("GLM-5", "GLM-5.1", "GLM-5.2", "GLM-5.3")
"""Models whose cards, parallelism and memory are derived; any other name must state them."""

CONTEXT_LIMIT: Final = {"GLM-5": 202752, "GLM-5.1": 202752, "GLM-5.2": 1048576, "GLM-5.3": 1048576}
"""`max_position_embeddings` of each checkpoint, in tokens."""

LONGEST_CONTEXT: Final = max(CONTEXT_LIMIT.values())
ATTENTION_HEADS: Final = 64
"""Heads of every known model; tensor parallelism splits them evenly."""
