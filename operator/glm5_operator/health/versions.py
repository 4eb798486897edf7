"""Version files of the driver and of CANN. Called by the agent and the command line with the files' text."""

from __future__ import annotations

from dataclasses import dataclass

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


def parse_version_file(text: str) -> VersionFile:
    """driver/version.info, firmware/version.info, ascend_toolkit_install.info, version.cfg."""
    return VersionFile()
