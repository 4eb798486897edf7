"""The file with a fake node's cards: what Python writes, Python and Go read back."""

from pathlib import Path

import pytest

from tests.cluster.devices import NodeDevices, Process


@pytest.mark.parametrize(("product", "count", "modules"), [("A2", 8, 8), ("A3", 16, 8)])
def test_an_idle_node_has_all_cards_of_its_product(product: str, count: int, modules: int) -> None:
    node = NodeDevices.idle(product)
    assert [device.physical for device in node.devices] == list(range(count))
    assert len({device.npu for device in node.devices}) == modules
    assert len({device.bus for device in node.devices}) == count
    assert all(0 < device.hbm_used < 4000 for device in node.devices), "an idle card's HBM is never empty"


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "node.json"
    node = NodeDevices.idle("A3").change(3, 4, health="Alarm", codes=("80E01801",), information=("x",), processes=(Process(7, "p", 9),))
    node.write(path)
    assert NodeDevices.read(path) == node
    assert [device.physical for device in node.devices if device.health == "Alarm"] == [3, 4]
    assert list(tmp_path.iterdir()) == [path], "the draft was renamed, not left"


def test_a_lost_card_is_absent_and_the_others_keep_their_ids(tmp_path: Path) -> None:
    node = NodeDevices.idle("A2").only({0, 7})
    node.write(tmp_path / "n.json")
    assert [device.physical for device in NodeDevices.read(tmp_path / "n.json").devices] == [0, 7]


def test_a_field_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(TypeError, match="temprature"):
        NodeDevices.idle("A2").change(0, temprature=90)
