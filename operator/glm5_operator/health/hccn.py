"""hccn_tool's text and /etc/hccn.conf, read into typed values. Called by the agent and the command line; rules as for `npusmi`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .reading import Reading


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


def parse_link(text: str) -> LinkReading:
    """`hccn_tool -i N -link -g`."""
    return LinkReading()


def parse_net_health(text: str) -> NetHealthReading:
    """`hccn_tool -i N -net_health -g`."""
    return NetHealthReading()


def parse_address(text: str) -> AddressReading:
    """`hccn_tool -i N -ip -g`."""
    return AddressReading()


def parse_tls(text: str) -> TlsReading:
    """`hccn_tool -i N -tls -g`."""
    return TlsReading()


def parse_optical(text: str) -> OpticalReading:
    """`hccn_tool -i N -optical -g`."""
    return OpticalReading()


def parse_ping(text: str) -> PingReading:
    """`hccn_tool -i N -ping -g address X`."""
    return PingReading()


def parse_route(text: str) -> RouteReading:
    """`hccn_tool -i N -route -g`."""
    return RouteReading()


def parse_link_history(text: str) -> LinkHistory:
    """`hccn_tool -i N -link_stat -g`."""
    return LinkHistory()


def parse_hccn_conf(text: str) -> HccnConf:
    """/etc/hccn.conf."""
    return HccnConf()
