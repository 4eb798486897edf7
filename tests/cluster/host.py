"""What starting a Docker daemon of our own changes on this host, and setting it back. Used by engine.py.

A stopped dockerd leaves its packet filter chains, a FORWARD policy of DROP and IP forwarding behind; a second or third kind
cluster needs more inotify instances than the usual 128 (its kubelets end with "too many open files").
"""

from dataclasses import dataclass
from pathlib import Path

from tests.cluster import netfilter
from tests.cluster.shell import run

_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_INOTIFY = Path("/proc/sys/fs/inotify/max_user_instances")
_ENOUGH_INOTIFY = 1024


@dataclass(frozen=True, slots=True)
class HostState:
    """The host's settings at one time; JSON-able."""

    rules: str
    forwarding: str
    inotify: str

    @classmethod
    def take(cls) -> "HostState":
        """The state now."""
        return cls(run("iptables-save"), _FORWARDING.read_text().strip(), _INOTIFY.read_text().strip())

    def restore(self) -> None:
        """Take away what Docker left, and set the rest as it was."""
        for call in netfilter.removals(self.rules, run("iptables-save")):
            run("iptables", *call)
        for file, value in ((_FORWARDING, self.forwarding), (_INOTIFY, self.inotify)):
            if file.read_text().strip() != value:
                file.write_text(value)


def prepare() -> None:
    """Allow as many inotify instances as several clusters need."""
    if int(_INOTIFY.read_text()) < _ENOUGH_INOTIFY:
        _INOTIFY.write_text(str(_ENOUGH_INOTIFY))
