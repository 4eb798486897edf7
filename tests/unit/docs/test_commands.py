"""Commands that the documentation shows exist with the options shown: our own programs, and the chart's values after --set."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest
import typer.main

from glm5_operator.cli.app import app as operator_cli
from glm5_runtime.cli import app as runtime_cli
from tests.cluster.cli import app as cluster_cli
from tests.support.chart import default_values
from tests.unit.docs.test_docs import FENCE, pages

PROGRAMS = {
    "glm5": typer.main.get_command(operator_cli),
    "glm5-runtime": typer.main.get_command(runtime_cli),
    "python -m tests.cluster": typer.main.get_command(cluster_cli),
}
WORD = re.compile(r"[a-z][a-z|-]*$")
SHOWN = re.compile(rf"(?:^|`|\$ |/|kubectl )((?:{'|'.join(PROGRAMS)}) [^`\n#]+)", re.MULTILINE)


def shown() -> Iterator[tuple[str, str]]:
    """Each of our commands in a code block or between backticks, with its page."""
    for page in pages():
        for line in SHOWN.findall(page.read_text()):
            yield page.name, line.strip()


def faults(line: str) -> list[str]:
    """Words of a command line that its program doesn't know."""
    program = max((name for name in PROGRAMS if line.startswith(f"{name} ")), key=len)
    command: click.Command = PROGRAMS[program]
    words = [word.strip("[]") for word in line.removeprefix(program).split()]
    while words and hasattr(command, "commands") and WORD.match(words[0]):
        choices = words.pop(0).split("|")
        if unknown := [name for name in choices if name not in command.commands]:
            return unknown
        command = command.commands[choices[0]]
    options = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)} | {"--help"}
    given = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    return [option for option in given if option not in options]


def test_our_commands_exist_with_the_options_that_are_shown() -> None:
    found = list(shown())
    assert {line.split()[0] for _, line in found} == {"glm5", "glm5-runtime", "python"}
    assert [(page, line, wrong) for page, line in found if (wrong := faults(line))] == []


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ("glm5 plan -f chat.yaml --product A3", []),
        ("glm5 plan -f chat.yaml --card A3", ["--card"]),
        ("glm5 apply -f chat.yaml", ["apply"]),
        ("glm5-runtime serve --model DIR --nodes 2", ["--nodes"]),
        ("python -m tests.cluster api down", []),
        ("python -m tests.cluster api up|stop", ["stop"]),
        ("python -m tests.cluster images [--show]", ["--show"]),
    ],
)
def test_a_wrong_word_is_found(line: str, wrong: list[str]) -> None:
    assert faults(line) == wrong


def test_values_that_are_set_in_commands_exist() -> None:
    blocks = [text for page in pages() for _, text in FENCE.findall(page.read_text())]
    given = {key for text in blocks for key in re.findall(r"--set (\S+?)=", text)}
    named = {key for page in pages() for key in re.findall(r"`([a-z]\w*(?:\.\w+)+)=\w+`", page.read_text())}

    def known(path: str) -> bool:
        values: object = default_values()
        for key in path.split("."):
            if not isinstance(values, dict) or key not in values:
                return False
            values = values[key]
        return True

    assert given
    assert named
    assert [path for path in given | named if not known(path)] == []
