"""Links, the watch, and the version."""

import pytest

from glm5_operator.health.sources.npusmi import parse_topology, parse_version, parse_watch
from tests.unit.health.sources.npusmi.files import text_of


def topology(labels: list[str], rows: list[list[str]], affinity: str = "") -> str:
    head = "\t   " + "".join(f"{label:<11}" for label in labels) + ("CPU Affinity" if affinity else "") + "\n"
    return head + "".join(
        f"{label:<11}" + "".join(f"{cell:<11}" for cell in row) + affinity + "\n" for label, row in zip(labels, rows, strict=True)
    )


def test_an_a2_server_is_joined_by_hccs_and_tells_the_cores_near_each_card() -> None:
    found = parse_topology(text_of("topo_910b3_8card"))

    assert found.ids == tuple(range(8))
    assert found.hccs is True
    assert len(found.links) == 56
    assert dict(found.cpus)[7] == "48-71"


@pytest.mark.parametrize(
    ("link", "hccs"), [("HCCS", True), ("HCCS_SW", True), ("SYS", False), ("PHB", False), ("SIO", False), ("NA", None)]
)
def test_only_a_link_that_is_known_not_to_be_hccs_means_that_there_is_none(link: str, hccs: bool | None) -> None:
    found = parse_topology(topology(["Phy-ID0", "Phy-ID1"], [["X", link], [link, "X"]]))

    assert found.links == ((0, 1, link), (1, 0, link))
    assert found.hccs is hccs


def test_network_cards_are_no_npus() -> None:
    text = topology(["NPU0", "NPU1", "NIC0"], [["X", "UB", "PIX"], ["UB", "X", "NA"], ["PIX", "NA", "X"]], "0-23") + "\nNIC0: ens3f0\n"
    found = parse_topology(text)

    assert found.complete
    assert (found.ids, found.links) == ((0, 1), ((0, 1, "UB"), (1, 0, "UB")))
    assert found.hccs is False


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("NPU3       HCCS", "NPU3       WARP"),
        ("NPU3       HCCS", "NPU3       X   "),
        ("NPU3 ", "CPU3 "),
        ("NPU3       HCCS", "NPU3           "),
    ],
)
def test_a_row_that_cannot_be_read_is_left_out_and_told(old: str, new: str) -> None:
    text = text_of("topo_910b3_8card")
    head, rows = text.split("\n", 1)
    found = parse_topology(f"{head}\n{rows.replace(old, new, 1)}")

    assert 3 not in {row for row, _, _ in found.links}
    assert [problem.line_number for problem in found.problems] == [5]


def test_a_topology_that_is_cut_is_told_and_says_nothing_on_hccs() -> None:
    text = topology(["NPU0", "NPU1"], [["X", "PHB"], ["PHB", "X"]])
    found = parse_topology(text[: text.index("NPU1       PHB")])

    assert found.problems
    assert found.hccs is None


def test_a_card_alone_has_no_links() -> None:
    found = parse_topology(topology(["NPU0"], [["X"]]))

    assert (found.ids, found.links, found.complete, found.hccs) == ((0,), (), True, None)


def test_the_watch_tells_what_was_asked_for() -> None:
    every, two = parse_watch(text_of("watch_950_all")), parse_watch(text_of("watch_950_pt"))

    assert dict(every.rows[7].values)["Ctrl Cpu(%)"] == 14
    assert dict(every.rows[0].values)["Pwr(W)"] == 290.4
    assert [dict(row.values) for row in two.rows] == [
        {"Pwr(W)": 280.8, "Temp(C)": 84},
        {"Pwr(W)": 280.9, "Temp(C)": 84},
        {"Pwr(W)": 280.8, "Temp(C)": 83},
    ]


def test_the_watch_of_older_products_names_the_chip_and_may_know_no_power() -> None:
    text = "NpuID(Idx)  ChipId(Idx) Pwr(W)      Temp(C)\n0           0           166.9       38\n0           1           -           NA\n"

    assert [(row.npu, row.chip, row.values) for row in parse_watch(text).rows] == [
        (0, 0, (("Pwr(W)", 166.9), ("Temp(C)", 38))),
        (0, 1, (("Pwr(W)", None), ("Temp(C)", None))),
    ]


@pytest.mark.parametrize("row", ["0 1\n", "x 280.8 84\n", "0 280.8 hot\n"])
def test_a_line_of_the_watch_that_cannot_be_read_is_told(row: str) -> None:
    found = parse_watch("NpuID(Idx)  Pwr(W)      Temp(C)\n" + row)

    assert [problem.line_number for problem in found.problems] == [2]


def test_a_version_is_what_stands_behind_the_colon() -> None:
    assert parse_version(text_of("version")).version == "25.5.2"
    assert not parse_version("npu-smi version: 25.5").complete
    assert not parse_version("version 25\n").complete
