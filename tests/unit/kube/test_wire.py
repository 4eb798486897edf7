"""JSON of any depth that the API server takes. Real: orjson, the standard library, Python's limits (in a process of its own)."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from glm5_operator.kube import wire

READ_AND_WRITE = """
from glm5_operator.kube import wire
wire.allow_depth()
raw = b'{"a":' * DEPTH + b"1" + b"}" * DEPTH
assert wire.encode(wire.decode(raw)) == raw
"""


@pytest.mark.parametrize("depth", [255, 1_025, wire.MOST_LEVELS])
def test_what_the_api_server_takes_is_read_and_written_at_any_depth(depth: int) -> None:
    script = READ_AND_WRITE.replace("DEPTH", str(depth))

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr[-1000:]


def test_equal_values_give_equal_bytes_also_where_they_are_deep() -> None:
    deep: object = 1
    for _ in range(300):
        deep = {"b": deep, "a": "é"}
    same = json.loads(json.dumps(deep), object_pairs_hook=lambda pairs: dict(reversed(pairs)))

    assert wire.encode(deep) == wire.encode(same)


def test_what_is_no_json_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="Expecting value"):
        wire.decode(b"<html>")
