"""hccn_tool's text and /etc/hccn.conf, read into typed values. Called by the agent and the command line; rules as for `npusmi`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from .npusmi.pairs import entries
from .npusmi.text import ABSENT, ID, Line, Notes, note_strangers, split, take_error
from .reading import Reading

if TYPE_CHECKING:
    from .reading import ToolError

_LINK: Final = re.compile(r"link status: *(\S+)")
_NET_HEALTH: Final = re.compile(r"net health status: *(\S.*)")
_TLS_DEVICE: Final = re.compile(r"dev_id:([0-9]{1,6})")
_TLS_FLAG: Final = r"\[([01])\]"
_TLS_DAYS: Final = re.compile(r"tls alarm time threshold\[([0-9]{1,6})\] *days")
_QUANTITY: Final = re.compile(r"(-?[0-9]{1,9}(?:\.[0-9]{1,9})?) *(C|mV|mW|mA|dB|nm)")
_POWER: Final = re.compile(r"([TR]x) Power([0-9])")
_PING: Final = re.compile(r"device ([0-9]{1,6}) PING (\S+)")
_REPLY: Final = re.compile(r"recv seq=[0-9]{1,9},time=([0-9]{1,9}(?:\.[0-9]{1,9})?)ms")
_PACKETS: Final = re.compile(r"([0-9]{1,9}) packets transmitted, ([0-9]{1,9}) received, ([0-9]{1,3}(?:\.[0-9]{1,6})?)% packet loss")
_HISTORY: Final = re.compile(r"\[(?:devid|device) ([0-9]{1,6})\] *(.*)")
_CHANGE: Final = re.compile(r"(.+?) +LINK (UP|DOWN)")
_CONF: Final = re.compile(r"([A-Za-z][A-Za-z0-9_]*?)(?:_([0-9]{1,6}))?=(.*)")
_ROUTE_COLUMNS: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReading(Reading):
    """`-link -g`; None when no status was printed, Unknown for a word that isn't documented."""

    link: Literal["Up", "Down", "Unknown"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NetHealthReading(Reading):
    """`-net_health -g`: the words as printed (Success, Init, Socket failed, Receive timeout, …)."""

    status: str | None = None

    @property
    def healthy(self) -> bool | None:
        """Success; None for Init (no address to detect is set) and when nothing was read."""
        if self.status is None or self.status.casefold() in {"init", "unknown"}:
            return None
        return self.status.casefold() == "success"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressReading(Reading):
    """`-ip -g`."""

    address: str | None = None
    netmask: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsReading(Reading):
    """`-tls -g`; `days` is the alarm threshold of the certificate."""

    device: int | None = None
    enabled: bool | None = None
    preconfigured: bool | None = None
    days: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OpticalReading(Reading):
    """`-optical -g`: °C, mV, mW; a lane's power by its number; `fields` has every printed line."""

    present: bool | None = None
    temperature: float | None = None
    temperature_high: float | None = None
    vcc: float | None = None
    tx_power: tuple[tuple[int, float], ...] = ()
    rx_power: tuple[tuple[int, float], ...] = ()
    tx_power_low: float | None = None
    rx_power_low: float | None = None
    fields: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PingReading(Reading):
    """`-ping -g address X`; loss in percent, times in ms."""

    device: int | None = None
    address: str | None = None
    sent: int | None = None
    received: int | None = None
    loss: float | None = None
    times: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Route:
    """One row of the routing table; gateway None for `*`."""

    destination: str
    gateway: str | None
    mask: str
    flags: str
    interface: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RouteReading(Reading):
    """`-route -g`."""

    routes: tuple[Route, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkChange:
    """One record, time as printed by the card's own clock."""

    time: str
    up: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkHistory(Reading):
    """`-link_stat -g`: newest first; `ups` counts since the driver started."""

    device: int | None = None
    now: str | None = None
    ups: int | None = None
    changes: tuple[LinkChange, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HccnConf(Reading):
    """/etc/hccn.conf: addresses and masks by device number; `fields` has every line."""

    addresses: tuple[tuple[int, str], ...] = ()
    netmasks: tuple[tuple[int, str], ...] = ()
    fields: tuple[tuple[str, str], ...] = ()


def _open(text: str) -> tuple[Notes, ToolError | None, list[Line]]:
    """Notes, the tool's error, and the lines that are all there and not blank."""
    error, lines = take_error(split(text))
    notes = Notes()
    return notes, error, [line for line in lines if line.text and notes.whole(line)]


def _one(text: str, pattern: re.Pattern[str], what: str) -> tuple[Notes, ToolError | None, str | None]:
    """The one value that the answer has; a problem for any other line, and for none."""
    notes, error, lines = _open(text)
    found = [(line, match) for line in lines if (match := pattern.fullmatch(line.text.strip()))]
    note_strangers(notes, (line for line in lines if not pattern.fullmatch(line.text.strip())))
    if len(found) > 1:
        notes.add(found[1][0], f"{what} stands here a second time")
    elif error is None and not found and not notes.found:
        notes.add(None, f"it says nothing on {what}")
    return notes, error, found[0][1][1] if len(found) == 1 else None


def parse_link(text: str) -> LinkReading:
    """`hccn_tool -i N -link -g`."""
    notes, error, word = _one(text, _LINK, "the link")
    link: Literal["Up", "Down", "Unknown"] | None = None
    if word is not None:
        link = "Up" if word == "UP" else "Down" if word == "DOWN" else "Unknown"
    return LinkReading(problems=notes.problems, error=error, link=link)


def parse_net_health(text: str) -> NetHealthReading:
    """`hccn_tool -i N -net_health -g`."""
    notes, error, word = _one(text, _NET_HEALTH, "the net's health")
    return NetHealthReading(problems=notes.problems, error=error, status=word)


def _ip(notes: Notes, line: Line, text: str) -> str | None:
    if text in ABSENT:
        return None
    try:
        return str(ipaddress.ip_address(text))
    except ValueError:
        notes.add(line, f"{text[:60]!r} is no address")
        return None


def parse_address(text: str) -> AddressReading:
    """`hccn_tool -i N -ip -g`."""
    notes, error, lines = _open(text)
    values: dict[str, str | None] = {}
    for line in lines:
        key, _, value = line.text.strip().partition(":")
        if key in ("ipaddr", "netmask"):
            values[key] = _ip(notes, line, value.strip())
        else:
            notes.add(line, "no such line is known here")
    if error is None and not values and not notes.found:
        notes.add(None, "it names no address")
    return AddressReading(problems=notes.problems, error=error, address=values.get("ipaddr"), netmask=values.get("netmask"))


def parse_tls(text: str) -> TlsReading:
    """`hccn_tool -i N -tls -g`."""
    notes, error, lines = _open(text)
    line = next((line for line in lines if "tls switch" in line.text), None)
    switch = re.search(rf"tls switch{_TLS_FLAG}", line.text) if line else None
    note_strangers(notes, (other for other in lines if not other.text.strip().startswith(("dev_id", "tls"))))
    if line is None or switch is None:
        if error is None and not notes.found:
            notes.add(line, "it says nothing on the TLS switch")
        return TlsReading(problems=notes.problems, error=error)
    device, days = _TLS_DEVICE.search(line.text), _TLS_DAYS.search(line.text)
    preset = re.search(rf"tls preconfigured{_TLS_FLAG}", line.text)
    return TlsReading(
        problems=notes.problems,
        error=error,
        device=int(device[1]) if device else None,
        enabled=switch[1] == "1",
        preconfigured=preset[1] == "1" if preset else None,
        days=int(days[1]) if days else None,
    )


def parse_optical(text: str) -> OpticalReading:
    """`hccn_tool -i N -optical -g`."""
    error, lines = take_error(split(text))
    notes = Notes()
    rows = (line for line in lines if line.text.strip() != "optical info:")
    fields = {entry.key: entry for entry in entries(notes, rows)}
    if error is None and not fields and not notes.found:
        notes.add(None, "it says nothing on an optical module")

    def quantity(key: str, unit: str) -> float | None:
        if key not in fields or fields[key].word is None:
            return None
        match = _QUANTITY.fullmatch(fields[key].value)
        if not match or match[2] != unit:
            notes.add(fields[key].line, f"{key} isn't in {unit}")
            return None
        return float(match[1])

    powers: dict[str, list[tuple[int, float]]] = {"Tx": [], "Rx": []}
    for key in fields:
        lane = _POWER.fullmatch(key)
        power = quantity(key, "mW") if lane else None
        if lane and power is not None:
            powers[lane[1]].append((int(lane[2]), power))
    present = fields["present"].value if "present" in fields else None
    return OpticalReading(
        error=error,
        present={"present": True, "not present": False}.get(present or ""),
        temperature=quantity("temperature", "C"),
        temperature_high=quantity("Temp High Thres", "C"),
        vcc=quantity("Vcc", "mV"),
        tx_power=tuple(powers["Tx"]),
        rx_power=tuple(powers["Rx"]),
        tx_power_low=quantity("TxPower Low Thres", "mW"),
        rx_power_low=quantity("RxPower Low Thres", "mW"),
        fields=tuple((key, entry.value) for key, entry in fields.items()),
        problems=notes.problems,  # last: reading the quantities finds some
    )


def parse_ping(text: str) -> PingReading:
    """`hccn_tool -i N -ping -g address X`."""
    notes, error, lines = _open(text)
    head: re.Match[str] | None = None
    packets: re.Match[str] | None = None
    times: list[float] = []
    for line in lines:
        row = line.text.strip()
        if match := _PING.fullmatch(row):
            head = match
        elif match := _PACKETS.fullmatch(row):
            packets = match
        elif match := _REPLY.fullmatch(row):
            times.append(float(match[1]))
        else:
            notes.add(line, "no such line is known here")
    if error is None and packets is None and not notes.found:
        notes.add(None, "it doesn't say how many came back")
    return PingReading(
        problems=notes.problems,
        error=error,
        device=int(head[1]) if head else None,
        address=head[2] if head else None,
        sent=int(packets[1]) if packets else None,
        received=int(packets[2]) if packets else None,
        loss=float(packets[3]) if packets else None,
        times=tuple(times),
    )


def parse_route(text: str) -> RouteReading:
    """`hccn_tool -i N -route -g`."""
    notes, error, lines = _open(text)
    routes: list[Route] = []
    headed = False
    for line in lines:
        words = line.text.split()
        if words[0] == "Destination":
            headed = True
        elif headed and len(words) == _ROUTE_COLUMNS:
            routes.append(Route(words[0], None if words[1] == "*" else words[1], words[2], words[3], words[7]))
        elif line.text.strip() != "Routing table:":
            notes.add(line, "no row of a routing table")
    if error is None and not headed and not notes.found:
        notes.add(None, "there is no routing table")
    return RouteReading(problems=notes.problems, error=error, routes=tuple(routes))


def parse_link_history(text: str) -> LinkHistory:
    """`hccn_tool -i N -link_stat -g`."""
    notes, error, lines = _open(text)
    device: int | None = None
    fields: dict[str, str] = {}
    changes: list[LinkChange] = []
    ups: int | None = None
    for line in lines:
        match = _HISTORY.fullmatch(line.text.strip())
        if match is None:
            notes.add(line, "no line of a device")
            continue
        device = int(match[1])
        if change := _CHANGE.fullmatch(match[2]):
            changes.append(LinkChange(change[1], change[2] == "UP"))
            continue
        key, colon, value = match[2].partition(":")
        if not colon:
            notes.add(line, "neither a value nor a change of the link")
        elif key.strip() == "link up count":
            ups = notes.integer(line, value.strip(), "count of links", (0, 2**32))
        fields[key.strip()] = value.strip()
    if error is None and device is None and not notes.found:
        notes.add(None, "there is no record")
    return LinkHistory(
        problems=notes.problems, error=error, device=device, now=fields.get("current time") or None, ups=ups, changes=tuple(changes)
    )


def parse_hccn_conf(text: str) -> HccnConf:
    """/etc/hccn.conf. An empty file is an answer too; its last line needs no end."""
    notes = Notes()
    addresses: list[tuple[int, str]] = []
    netmasks: list[tuple[int, str]] = []
    fields: list[tuple[str, str]] = []
    for line in split(text):
        row = line.text.strip()
        if not row or row.startswith("#"):
            continue
        match = _CONF.fullmatch(row)
        if not match:
            notes.add(line, "this is no `key=value`")
            continue
        key, number, value = match[1], match[2], match[3].strip()
        fields.append((row.partition("=")[0], value))
        chosen = {"address": addresses, "netmask": netmasks}.get(key)
        device = notes.integer(line, number, "device number", ID) if number else None
        if chosen is not None and device is not None and (address := _ip(notes, line, value)) is not None:
            chosen.append((device, address))
    return HccnConf(problems=notes.problems, addresses=tuple(addresses), netmasks=tuple(netmasks), fields=tuple(fields))
