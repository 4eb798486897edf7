"""Tables: whole in a pipe, folded on a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from glm5_operator.cli import output

ENDPOINT = "http://a-service-with-quite-a-long-name-api.production.svc:8000/v1"
ROWS = [("chat", ENDPOINT, ""), ("other", None, "InsufficientCards: " + "no node has 16 free; " * 20)]
COLUMNS = ("NAME", "ENDPOINT", "WHY NOT")


def test_in_a_pipe_each_row_is_one_line_and_a_long_reason_pads_no_other(capsys: pytest.CaptureFixture[str]) -> None:
    output.write_table(COLUMNS, ROWS, title="GLM5Services")

    title, head, chat, other, between = capsys.readouterr().out.splitlines()
    assert (title, head.split()) == ("GLM5Services", ["NAME", "ENDPOINT", "WHY", "NOT"])
    assert (chat.split(), other.split(maxsplit=1)) == (["chat", ENDPOINT], ["other", ROWS[1][2].strip()])
    assert between == "", "another table may follow"
    assert max(len(line) for line in (title, head, chat)) < 100


def test_on_a_terminal_an_endpoint_that_is_too_long_goes_on_below_instead_of_being_cut() -> None:
    ours, theirs = os.openpty()
    script = f"from glm5_operator.cli import output; output.write_table({COLUMNS!r}, {ROWS!r})"
    subprocess.run([sys.executable, "-c", script], stdout=theirs, env={**os.environ, "COLUMNS": "60", "NO_COLOR": "1"}, check=True)
    os.close(theirs)
    text = re.sub(r"\x1b\[[0-9;]*m", "", os.read(ours, 65536).decode())
    os.close(ours)
    lines = text.splitlines()
    start = lines[1].index("ENDPOINT")
    end = lines[1].index("WHY NOT")
    assert ENDPOINT in "".join(line[start:end].strip() for line in lines)
    assert "…" not in text
