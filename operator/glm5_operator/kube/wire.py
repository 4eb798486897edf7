"""JSON as the API server speaks it, bytes to objects and back.

Used by the rest of `kube`; `app` and the command line raise the limit. orjson reads 1,024 levels of nesting and writes 254; the API server
takes 10,000, and keeps them in fields that have no schema of their own (podTemplate). One such object must not keep all others of its
list from being read, so what is too deep for orjson goes through the standard library, for which Python's limit is raised.
"""

from __future__ import annotations

import json
import sys
from typing import Any, Final

import orjson

MOST_LEVELS: Final = 10_000
"""Of Go's encoding/json, which the API server reads with."""


def allow_depth() -> None:
    """Let the standard library's JSON (kopf's too) follow whatever the API server lets in."""
    sys.setrecursionlimit(2 * MOST_LEVELS)


def decode(raw: bytes) -> Any:  # noqa: ANN401 - JSON
    """Read JSON.

    Raises:
        ValueError: It isn't JSON.
    """
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        return json.loads(raw)


def encode(value: object) -> bytes:
    """Write JSON with sorted keys, so that equal values give equal bytes."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
    except orjson.JSONEncodeError:
        return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
