"""Version files of driver, firmware and CANN."""

import pytest

from glm5_operator.health.sources.versions import parse_version_file
from tests.unit.health.sources.npusmi.files import text_of


def test_the_drivers_and_canns_files_name_their_release_and_their_build() -> None:
    driver, cann = parse_version_file(text_of("driver_version.info")), parse_version_file(text_of("ascend_toolkit_install.info"))

    assert (driver.version, driver.inner, driver.package) == ("23.0.7", "V100R001C15SPC012B220", None)
    assert (cann.version, cann.package, cann.architecture) == ("8.3.RC2", "Ascend-cann-toolkit", "aarch64")


@pytest.mark.parametrize(
    "text", ["", "\n", "Version=\n", "Version=unknown (see log)\n", "ascendhal_version=7.35.19\n", "<xml/>\n", "=23\n"]
)
def test_a_file_that_names_no_version_has_none_and_says_so(text: str) -> None:
    found = parse_version_file(text)

    assert found.version is None
    assert found.problems


def test_a_file_without_a_last_newline_is_whole() -> None:
    assert parse_version_file("Version=24.1.rc3").version == "24.1.rc3"


def test_of_two_versions_the_first_counts_and_the_second_is_told() -> None:
    found = parse_version_file("Version=24.1\nversion=23.0\n")

    assert found.version == "24.1"
    assert [problem.line_number for problem in found.problems] == [2]


def test_the_package_version_stands_in_where_there_is_no_other() -> None:
    assert parse_version_file("package_version=23.0.7\n").version == "23.0.7"
