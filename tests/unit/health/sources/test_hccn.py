"""hccn_tool's answers: a port that is down is not a port that couldn't be asked."""

import pytest

from glm5_operator.health.sources import hccn
from glm5_operator.health.sources.reading import ToolErrorKind
from tests.unit.health.sources.npusmi.files import text_of


@pytest.mark.parametrize(
    ("text", "link", "complete"),
    [
        (text_of("hccn_link_up"), "Up", True),
        (text_of("hccn_link_down"), "Down", True),
        ("link status: TRAINING\n", "Unknown", True),
        ("link status: up\n", "Unknown", True),
        ("link status: U", None, False),
        ("link status:\n", None, False),
        ("link status: UP\nlink status: DOWN\n", None, False),
        ("", None, False),
        ("sh: hccn_tool: not found\n", None, False),
    ],
)
def test_a_link_is_up_or_down_or_nobody_knows(text: str, link: str | None, complete: bool) -> None:
    reading = hccn.parse_link(text)

    assert (reading.link, reading.complete) == (link, complete)


def test_nothing_printed_is_an_error_and_a_stranger_is_a_problem() -> None:
    nothing, stranger = hccn.parse_link(""), hccn.parse_link("Cmd execute failed!\n")

    assert nothing.error is not None
    assert nothing.error.kind == ToolErrorKind.EMPTY
    assert [(problem.line_number, problem.line) for problem in stranger.problems] == [(1, "Cmd execute failed!")]


@pytest.mark.parametrize(
    ("word", "healthy"), [("Success", True), ("Init", None), ("Socket failed", False), ("Receive timeout", False), ("Unreachable", False)]
)
def test_a_net_without_an_address_to_detect_is_neither_well_nor_sick(word: str, healthy: bool | None) -> None:
    reading = hccn.parse_net_health(f"net health status: {word}\n")

    assert (reading.status, reading.healthy) == (word, healthy)


def test_an_address_is_one_or_absent() -> None:
    assert hccn.parse_address(text_of("hccn_ip")).address == "10.20.11.24"
    wrong = hccn.parse_address("ipaddr:10.20.11.999\nnetmask:NA\n")
    assert (wrong.address, wrong.netmask) == (None, None)
    assert [problem.line_number for problem in wrong.problems] == [1]


@pytest.mark.parametrize(("switch", "enabled"), [("0", False), ("1", True), ("2", None), ("", None)])
def test_the_tls_switch_is_what_stands_in_the_first_brackets(switch: str, enabled: bool | None) -> None:
    reading = hccn.parse_tls(text_of("hccn_tls").replace("tls switch[0]", f"tls switch[{switch}]"))

    assert reading.enabled is enabled
    assert reading.complete == (enabled is not None)


def test_an_optical_module_tells_each_lanes_power_and_its_limits() -> None:
    reading = hccn.parse_optical(text_of("hccn_optical"))

    assert reading.rx_power[1] == (1, 0.0054)
    assert (reading.rx_power_low, reading.temperature, reading.temperature_high) == (0.1445, 47, 70)
    assert dict(reading.fields)["Rx Los Flag"] == "0xff"


def test_a_quantity_in_another_unit_is_absent_and_told() -> None:
    reading = hccn.parse_optical(text_of("hccn_optical").replace("47 C", "117 F"))

    assert reading.temperature is None
    assert [problem.reason for problem in reading.problems] == ["temperature isn't in C"]


def test_a_ping_that_loses_packets_says_how_many() -> None:
    text = text_of("hccn_ping_ok").replace("3 received, 0.00%", "1 received, 66.67%")

    assert hccn.parse_ping(text_of("hccn_ping_ok")).loss == 0
    assert (hccn.parse_ping(text).received, hccn.parse_ping(text).loss) == (1, 66.67)
    assert hccn.parse_ping("device 3 PING 10.20.11.16\n").received is None


def test_routes_have_an_interface_and_perhaps_a_gateway() -> None:
    text = text_of("hccn_route").replace("192.168.1.0     *  ", "0.0.0.0         10.20.11.1")
    routes = hccn.parse_route(text).routes

    assert [route.interface for route in routes] == ["eth3", "lo", "end3v0", "end3v0"]
    assert [route.gateway for route in routes] == [None, None, "10.20.11.1", None]


def test_changes_of_the_link_are_newest_first_on_tools_of_both_spellings() -> None:
    text = text_of("hccn_link_stat")
    newer = hccn.parse_link_history(text.replace("[devid 0]", "[device 0]"))

    assert newer == hccn.parse_link_history(text)
    assert (newer.ups, [change.up for change in newer.changes]) == (2, [False, True, False, True])
    assert newer.changes[0].time == "Tue Aug  1 14:44:40 2022"


def test_the_configuration_file_numbers_its_addresses() -> None:
    conf = hccn.parse_hccn_conf(
        "# comment\naddress_0=10.0.0.1\n\ngateway_0=10.0.0.254\naddress_1=10.0.0\nIPv6address_1=fe80::1\nnonsense\n"
    )

    assert conf.addresses == ((0, "10.0.0.1"),)
    assert dict(conf.fields)["gateway_0"] == "10.0.0.254"
    assert [problem.line_number for problem in conf.problems] == [5, 7]
