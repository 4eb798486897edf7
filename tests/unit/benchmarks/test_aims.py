"""The figures that the engine is held to, by the names under which their consumers look them up."""

from __future__ import annotations

import re

from benchmarks.engine.__main__ import AIMS, title

NAMES = [
    *("decode1_x", "decode16_x", "decode64_x", "long_8k_x", "long_32k_x", "long_growth", "prefill_x", "prefill_mem"),
    *("http_share", "prefix_ttft", "kv_int8_x", "kv_int4_x", "adapters_share", "scheduler_ms"),
]


def test_there_is_an_aim_for_each_of_the_14_figures_and_no_other() -> None:
    assert list(AIMS) == NAMES
    assert all(re.fullmatch(r"[≥≤] \d+(\.\d+)?", aim) for aim in AIMS.values())


def test_a_figure_with_an_aim_keeps_its_name_and_another_is_told_with_its_part() -> None:
    assert [title("prefill", name) for name in NAMES] == NAMES
    assert title("prefill", "tokens/s") == "prefill: tokens/s"
