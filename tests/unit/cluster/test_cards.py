"""`python -m tests.cluster kind card`: what it writes into the file of a worker's cards, and which words it refuses."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from tests.cluster import cli
from tests.cluster.devices import NodeDevices
from tests.cluster.errors import ClusterError


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cards of the only worker of a cluster."""
    path = tmp_path / "node.json"
    NodeDevices.idle("A2").write(path)
    monkeypatch.setattr(cli, "_kind", lambda _: SimpleNamespace(workers=("glm5-worker",), cards=lambda _: path))
    return path


def card(*words: str) -> None:
    CliRunner().invoke(cli.app, ["kind", "card", *words], catch_exceptions=False)


def test_a_card_is_made_sick_and_well_again_and_the_others_stay(file: Path) -> None:
    well = NodeDevices.read(file)

    card("glm5-worker", "3", "4", "--health", "Critical", "--code", "80E01801", "--reset", "stays_sick")

    sick = NodeDevices.read(file)
    assert {device.physical: device.codes for device in sick.devices if device.health == "Critical"} == {3: ("80E01801",), 4: ("80E01801",)}
    assert sick.reset.mode == "stays_sick"

    card("glm5-worker", "3", "4", "--health", "OK", "--reset", "ok")

    assert NodeDevices.read(file) == well


@pytest.mark.parametrize(
    ("words", "said"),
    [(("glm5-worker9", "0"), "no worker glm5-worker9 .* it has glm5-worker$"), (("glm5-worker", "8"), "no card 8 .* it has 0 to 7")],
)
def test_a_worker_or_card_that_is_not_there_is_named_with_those_that_are(file: Path, words: tuple[str, ...], said: str) -> None:
    before = file.read_text()

    with pytest.raises(ClusterError, match=said):
        card(*words, "--health", "Alarm")

    assert file.read_text() == before
