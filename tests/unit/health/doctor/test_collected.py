"""Facts from files that people collected: outputs of npu-smi whatever their names, version files, listings of /dev."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm5_operator.health.doctor.collected import facts_of
from glm5_operator.health.doctor.diagnose import diagnose
from glm5_operator.health.doctor.evidence import Evidence, Text

OUTPUTS = Path(__file__).parents[3] / "fixtures" / "npu-smi"

LISTING = """\
total 0
crw-rw---- 1 HwHiAiUser HwHiAiUser 236,   0 Nov 29 10:00 /dev/davinci0
crw------- 1 root       root       236,   1 Nov 29 10:00 /dev/davinci1
crw-rw---- 1 HwHiAiUser HwHiAiUser 237,   0 Nov 29 10:00 davinci_manager
drwxr-xr-x 2 root root 60 Nov 29 10:00 /dev/davinci_folder
"""


def output(name: str, where: str = "a.txt") -> Text:
    return Text(where, (OUTPUTS / name).read_text())


@pytest.mark.parametrize(
    ("name", "product", "cards"),
    [
        ("info_910b3_8card_idle_24.1.rc1.txt", "A2", 8),
        ("info_910b2c_16card_loaded_24.1.rc1.txt", "A2", 16),
        ("info_a3_8npu_16die_partial_25.3.rc1.txt", "A3", None),
        ("synthetic_info_910b3_npu3_missing.txt", "A2", 7),
    ],
)
def test_a_table_of_npu_smi_is_read_whatever_its_file_is_called(name: str, product: str, cards: int | None) -> None:
    facts = facts_of([output(name)])
    assert facts is not None
    assert facts.product == product
    assert cards in (None, len(facts.cards))
    assert {card.health for card in facts.cards} == {"OK"}


def test_a_sick_card_of_a_collected_table_is_diagnosed() -> None:
    told = diagnose(Evidence(facts=facts_of([output("synthetic_info_910b3_npu3_alarm.txt")])))
    assert [(one.name, one.evidence) for one in told] == [("CardFault", ("card 3 (NPU 3 chip 0): Alarm",))]


def test_version_files_are_known_by_their_names() -> None:
    texts = [
        Text("x/driver/version.info", "Version=24.1.rc1\n"),
        Text("x/ascend_toolkit_install.info", "package_name=Ascend-cann-toolkit\nversion=9.1.0\n"),
    ]
    facts = facts_of(texts)
    assert facts is not None
    assert (facts.driver, facts.cann, facts.cards) == ("24.1.rc1", "9.1.0", ())
    (told,) = diagnose(Evidence(facts=facts))
    assert told.evidence == ("found driver 24.1.rc1, need 25.2 or later for CANN 9.1.0",)


def test_a_listing_of_dev_tells_owner_and_mode() -> None:
    facts = facts_of([Text("ls.txt", LISTING)])
    assert facts is not None
    assert facts.host is not None
    assert [(node.path, node.owner, node.mode) for node in facts.host.device_nodes or ()] == [
        ("/dev/davinci0", "1000:1000", "0660"),
        ("/dev/davinci1", "0:0", "0600"),
        ("/dev/davinci_manager", "1000:1000", "0660"),
    ]
    (told,) = diagnose(Evidence(facts=facts))
    assert (told.name, told.evidence) == ("DeviceNodesClosed", ("permission: /dev/davinci1 (owner 0:0, mode 0600)",))


def test_texts_of_nothing_we_know_are_no_facts() -> None:
    assert facts_of([Text("engine.log", "hello npu-smi\n"), Text("a", "")]) is None
