"""Version files of the driver and of CANN. Called by the agent and the command line with the files' text."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from .npusmi.text import Line, Notes, split
from .reading import Reading


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionFile(Reading):
    """A `key=value` file.

    Attributes:
        version: the release, for example 23.0.7 or 8.3.RC2; None when the file names none.
        inner: `Innerversion`, Huawei's build name.
        package: `package_name`; of CANN's files only.
        architecture: `arch`; of CANN's files only.
        path: where it is installed; of CANN's files only.
        fields: every line that could be read.
    """

    version: str | None = None
    inner: str | None = None
    package: str | None = None
    architecture: str | None = None
    path: str | None = None
    fields: tuple[tuple[str, str], ...] = ()


_PAIR: Final = re.compile(r"([A-Za-z][\w.\-]*) *= *(.*)", re.ASCII)
_VERSION: Final = re.compile(r"[0-9A-Za-z][0-9A-Za-z.\-+_]*")


def parse_version_file(text: str) -> VersionFile:
    """driver/version.info, firmware/version.info, ascend_toolkit_install.info, version.cfg. The last line needs no end.

    The keys' case differs between packages (`Version`, `version`; `Innerversion`, `innerversion`). The first of two equal keys counts.
    """
    notes = Notes()
    fields: dict[str, str] = {}
    versions: list[tuple[Line, str]] = []
    for line in split(text):
        row = line.text.strip()
        if not row or row.startswith(("#", "[")):
            continue
        pair = _PAIR.fullmatch(row)
        if not pair:
            notes.add(line, "this is no `key=value`")
            continue
        key, value = pair[1], pair[2].strip()
        if key.casefold() in ("version", "package_version"):
            versions.append((line, value))
        if key.casefold() in {known.casefold() for known in fields}:
            notes.add(line, f"{key} stands here a second time")
            continue
        fields[key] = value
    version = next((value for _, value in versions if _VERSION.fullmatch(value)), None)
    if version is None:
        notes.add(versions[0][0] if versions else None, "it names no version")
    by_key = {key.casefold(): value for key, value in fields.items()}
    return VersionFile(
        problems=notes.problems,
        version=version,
        inner=by_key.get("innerversion"),
        package=by_key.get("package_name"),
        architecture=by_key.get("arch"),
        path=by_key.get("path"),
        fields=tuple(fields.items()),
    )
