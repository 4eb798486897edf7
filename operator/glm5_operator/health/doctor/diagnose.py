"""What is wrong with a node, by all that is known of it: facts, pods, logs, events. Called by `glm5 doctor`, live and on collected files.

Pure. It never concludes from what is absent in a collection, only from what was read.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from glm5_operator.health.doctor.evidence import Diagnosis, Text
from glm5_operator.health.doctor.mindcluster_troubles import mindcluster_troubles
from glm5_operator.health.doctor.node_troubles import node_troubles
from glm5_operator.health.doctor.pains import MOST_LINES, pains
from glm5_operator.health.doctor.pod_troubles import pod_texts, pod_troubles
from glm5_operator.health.sources.runtime_errors import evidence as error_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from glm5_operator.health.doctor.evidence import Evidence


_LONG_LINE: Final = re.compile(r"([^\n]{2048})(?=[^\n])")
"""A log that is one line of megabytes is read in pieces: patterns look for the rest of a trouble up to the end of its line."""


def diagnose(evidence: Evidence) -> tuple[Diagnosis, ...]:
    """All troubles; the same trouble in several places is told once, with all of them as evidence."""
    found = [*_lacking(evidence), *node_troubles(evidence), *mindcluster_troubles(evidence)]
    for pod in evidence.pods:
        found += pod_troubles(pod)
    said = [text for pod in evidence.pods for text in pod_texts(pod)]
    found += _text_troubles([*_outputs(evidence), *said, *evidence.texts])
    return _joined(found)


def _outputs(evidence: Evidence) -> Iterator[Text]:
    if evidence.facts is not None and evidence.facts.tool.message:
        yield Text("npu-smi", evidence.facts.tool.message)


def _text_troubles(texts: Iterable[Text]) -> Iterator[Diagnosis]:
    for text in texts:
        logged = _LONG_LINE.sub("\\1\n", text.text)
        known = [(pain, lines) for pain in pains() if (lines := pain.lines(logged))]
        for pain, lines in known:
            yield Diagnosis(pain.name, pain.cause, tuple(f"{text.where}: {line}" for line in lines), pain.fix, pain.certain, pain.links)
        code = error_of(logged)
        if (
            code is not None
            and code.known
            and not code.general
            and not any(code.line in line or line in code.line for _, lines in known for line in lines)
        ):
            yield Diagnosis(f"Error{code.code}", f"{code.meaning} ({code.kind.lower()})", (f"{text.where}: {code.line}",), code.fix)


def _lacking(evidence: Evidence) -> Iterator[Diagnosis]:
    if evidence.lacking:
        yield Diagnosis(
            "NpuLacks",
            "the runtime finds no usable NPU in its container",
            evidence.lacking,
            "repair what is named, in that order",
            "vendor",
        )


def _joined(found: Iterable[Diagnosis]) -> tuple[Diagnosis, ...]:
    """By name, in the order of first appearance; of much evidence the first few are shown and the rest is counted."""
    joined: dict[str, Diagnosis] = {}
    for one in found:
        known = joined.get(one.name)
        joined[one.name] = one if known is None else replace(known, evidence=(*known.evidence, *one.evidence))
    return tuple(replace(one, evidence=_shown(one.evidence)) for one in joined.values())


def _shown(evidence: tuple[str, ...]) -> tuple[str, ...]:
    lines = tuple(dict.fromkeys(evidence))
    most = 2 * MOST_LINES
    return lines if len(lines) <= most + 1 else (*lines[:most], f"and {len(lines) - most} more")
