"""The table of versions: what fits, what can't, and that nothing is invented where the table is silent."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm5_operator.plan.compat import Verdict, Versions, check, mismatches, of_image, table
from glm5_operator.plan.facts import Product

FITS, MISMATCH, UNKNOWN = Verdict.FITS, Verdict.MISMATCH, Verdict.UNKNOWN


@pytest.mark.parametrize(
    ("found", "verdict", "sentence"),
    [
        (Versions("23.0.5", "9.1.0"), MISMATCH, "found driver 23.0.5, need 25.2 or later for CANN 9.1.0"),
        (Versions("24.1.rc1", "9.1.0"), MISMATCH, "found driver 24.1.rc1, need 25.2 or later for CANN 9.1.0"),
        (Versions("25.0.RC1.1", "9.1.0"), MISMATCH, "found driver 25.0.RC1.1, need 25.2 or later for CANN 9.1.0"),
        (Versions("25.0.RC1.1", "9.0.0"), FITS, "driver 25.0.RC1.1 fits CANN 9.0.0"),
        (Versions("25.7.RC1", "9.1.0"), FITS, "driver 25.7.RC1 fits CANN 9.1.0"),
        (Versions("25.5.1", "9.0.0-beta.2"), FITS, "driver 25.5.1 fits CANN 9.0.0-beta.2"),
        (Versions("27.0.0", "9.1.0"), UNKNOWN, "driver 27.0.0 beside CANN 9.1.0: the table has 25.2, 25.3, 25.5, 26.0, 26.1"),
        (Versions("25.2.0", "8.2.RC1"), UNKNOWN, "driver 25.2.0 beside CANN 8.2.RC1: the table has no row of that CANN"),
        (Versions("V100R001C84", "9.1.0"), UNKNOWN, ""),
        (Versions(cann="9.1.0", torch_npu="2.10.0.post4"), FITS, "torch_npu 2.10.0.post4 fits CANN 9.1.0"),
        (
            Versions(cann="9.1.0", torch_npu="2.9.0.post2"),
            MISMATCH,
            "found torch_npu 2.9.0.post2, need 2.12.0, 2.11.0, 2.10.0.post4, 2.9.0.post6, 2.7.1.post8 for CANN 9.1.0",
        ),
        (Versions(cann="9.1.0", torch_npu="2.13.0"), UNKNOWN, ""),
        (Versions(cann="8.5.1", torch_npu="2.9.0"), FITS, ""),
        (Versions(cann="8.5.1", torch_npu="2.10.0.post4"), UNKNOWN, ""),
        (Versions(torch="2.12.0+cpu", torch_npu="2.12.0"), FITS, ""),
        (Versions(torch="2.10.0", torch_npu="2.12.0"), MISMATCH, "found torch_npu 2.12.0, need 2.10.0 for torch 2.10.0"),
        (Versions(torch="2.12.0", python="3.9.2"), MISMATCH, "found Python 3.9.2, need 3.10 to 3.14 for torch 2.12.0"),
        (Versions(torch="2.4.0", python="3.12"), MISMATCH, "found Python 3.12, need 3.8 to 3.11 for torch 2.4.0"),
        (Versions(mindcluster="26.1.0", driver="26.1.0"), FITS, ""),
        (Versions(mindcluster="7.3.0", cann="9.1.0"), UNKNOWN, "MindCluster 7.3.0 beside CANN 9.1.0: it was tested with 8.5"),
        (Versions(vllm_ascend="0.23.0", cann="9.0.0"), MISMATCH, "found CANN 9.0.0, need 9.1.0 for vllm-ascend 0.23.0"),
        (Versions(vllm_ascend="0.26.0rc1", cann="9.1.0"), UNKNOWN, ""),
    ],
)
def test_a_pair_of_versions_is_judged_by_the_table(found: Versions, verdict: Verdict, sentence: str) -> None:
    checks = check(found)
    assert [one.verdict for one in checks] == [verdict]
    assert sentence in ("", checks[0].sentence)
    assert checks[0].source


def test_what_nobody_could_read_is_no_pair_at_all() -> None:
    assert check(Versions()) == check(Versions(cann="9.1.0")) == check(Versions(driver="23.0.5")) == ()


@given(st.builds(Versions, *[st.text(max_size=12) for _ in range(7)]))
def test_any_text_is_judged_without_an_error(found: Versions) -> None:
    assert all(one.sentence for one in check(found))


@pytest.mark.parametrize(
    ("image", "engine", "found"),
    [
        ("quay.io/ascend/vllm-ascend:v0.23.0-a3", "vllm", Versions("", "9.1.0", "2.10.0.post4", "2.10.0", "", "", "0.23.0", Product.A3)),
        ("registry.example:5000/vllm-ascend:v0.11.0", "vllm", Versions("", "8.3.RC2", "2.7.1.post1", "2.7.1", "", "", "0.11.0")),
        ("quay.io/ascend/vllm-ascend:glm5-a3", "vllm", Versions(chip=Product.A3)),
        ("quay.io/ascend/cann:9.1.0-910b-ubuntu22.04-py3.12", "", Versions(cann="9.1.0", python="3.12", chip=Product.A2)),
        ("x/verl:v0.8.0-cann9.0.0-torch_npu2.9.0.post2-a3-py3.11", "", Versions("", "9.0.0", "2.9.0.post2", "", "3.11", chip=Product.A3)),
        ("x/ms-swift:v4.3.0-A2-py311-CANN9.0.0-ubuntu22.04", "", Versions(cann="9.0.0", python="3.11", chip=Product.A2)),
        ("glm5-runtime:0.1.0", "native", Versions("", "9.1.0", "2.12.0", "2.12.0")),
        ("registry.example:5000/team/glm5-runtime:0.1.0", "", Versions("", "9.1.0", "2.12.0", "2.12.0")),
        ("mine:1", "native", Versions("", "9.1.0", "2.12.0", "2.12.0")),
        ("registry.example:5000/mine@sha256:" + "0" * 64, "", Versions()),
    ],
)
def test_an_image_tells_its_stack_by_its_reference(image: str, engine: str, found: Versions) -> None:
    assert of_image(image, engine) == found


def test_every_set_of_the_table_fits_itself() -> None:
    sets = {f"vllm-ascend {name}": known for name, known in table().vllm_ascend.releases.items()} | {"runtime": table().runtime}
    wrong = {
        name: [one.sentence for one in mismatches(Versions(cann=known.cann, torch=known.torch, torch_npu=known.torch_npu))]
        for name, known in sets.items()
    }
    assert {name: said for name, said in wrong.items() if said} == {}


def test_each_torch_npu_of_the_table_has_a_row_of_pythons() -> None:
    torches = {".".join(name.split(".")[:2]) for row in table().torch_npu.cann.values() for name in row}
    assert torches - set(table().python.torch) == {"2.0"}  # the source says nothing of it
