"""Which packet filter rules a Docker daemon left, as calls that take them away. Pure; used by host.py."""

import shlex


def removals(before: str, after: str) -> list[list[str]]:
    """The iptables calls that take away Docker's chains and rules which are in `after` and were not in `before`.

    Rules of anyone else stay, also those that came in between.
    """
    known = set(_by_table(before))
    rules: list[list[str]] = []
    chains: list[list[str]] = []
    for table, line in _by_table(after):
        if (table, line) in known or (table, line.split(" [")[0]) in {(t, k.split(" [")[0]) for t, k in known if k.startswith(":")}:
            continue
        if line.startswith("-A ") and "DOCKER" in line:
            rules.append(["-t", table, "-D", *shlex.split(line)[1:]])
        elif line.startswith(":DOCKER"):
            chains.append(["-t", table, "-X", line[1:].split()[0]])
    if ":FORWARD DROP" in after and ":FORWARD DROP" not in before:
        chains.append(["-P", "FORWARD", "ACCEPT"])
    return rules + chains


def _by_table(text: str) -> list[tuple[str, str]]:
    lines: list[tuple[str, str]] = []
    table = ""
    for line in text.splitlines():
        if line.startswith("*"):
            table = line[1:].strip()
        elif line.startswith((":", "-A")):
            lines.append((table, line.strip()))
    return lines
