"""`glm5 doctor`: what is wrong with nodes, their pods and logs: cause, evidence, fix. On a cluster, or on collected files without one.

Called by `node_commands`. Gathers and prints; `health.diagnose` judges.
"""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from glm5_operator.api.common import InvalidObjectError
from glm5_operator.cli import bundle, gather, output
from glm5_operator.cli.errors import CliError, ExitCode
from glm5_operator.cli.nodes import NO_NODES
from glm5_operator.health.doctor.diagnose import diagnose

if TYPE_CHECKING:
    from glm5_operator.cli.gather import Collected
    from glm5_operator.health.doctor.evidence import Diagnosis

_CERTAIN = {
    "vendor": "the vendor's documents or maintainers say so",
    "reporter": "it helped people who had this",
    "advice": "our advice; nobody has confirmed it",
}
Told = list[tuple[str, "tuple[Diagnosis, ...]"]]


def run_doctor(node: str | None, source: str | None, target: str | None, kubeconfig: str | None, form: output.Format) -> None:
    """Gather, judge, print, and write a bundle where one is wanted; troubles end the command with STALLED.

    Args:
        node: only this one, with logs and events of its pods.
        source: folder or archive instead of a cluster.
        target: file of the bundle.
        kubeconfig: credentials.
        form: of the output.
    """
    collected = bundle.read(source) if source is not None else gather.from_cluster(node, kubeconfig)
    if source is not None and node is not None:
        known = ", ".join(one.node for one in collected if one.node)
        collected = [one for one in collected if one.node == node]
        if not collected:
            raise CliError(ExitCode.INPUT, f"nothing of a node {node}", where=source, remedy=f"it tells of {known or 'no node by name'}")
    told = [(one.node, _judged(one, live=source is None)) for one in collected]
    data = _as_data(told)
    if form is output.Format.JSON:
        output.write_json(data)
    elif form is output.Format.YAML:
        output.write_yaml([data])
    else:
        _print(told)
    if target is not None:
        about = {"glm5": version("glm5-ascend"), "collected": datetime.now(UTC).isoformat(timespec="seconds"), "from": source or "cluster"}
        bundle.write(target, collected, data, about)
        output.note(f"wrote {target}: logs may still hold what nobody else should read; look before you send it on")
    troubles = sum(len(found) for _, found in told)
    if troubles:
        raise CliError(ExitCode.STALLED, f"{troubles} trouble{'s' * (troubles > 1)} found")
    output.note(f"nothing wrong found on {len(told)} node{'s' * (len(told) != 1)}" if told else NO_NODES)


def _judged(found: Collected, *, live: bool) -> tuple[Diagnosis, ...]:
    try:
        return diagnose(gather.evidence_of(found, live=live))
    except InvalidObjectError as error:
        raise CliError(
            ExitCode.INPUT,
            f"is of another version: {error}",
            where=f"objects of {found.node or 'a node'}",
            remedy="use the CLI of its version",
        ) from error


def _as_data(told: Told) -> dict[str, Any]:
    entries = [{"node": node, "troubles": [_plain(one) for one in found]} for node, found in told]
    return {"nodes": entries}


def _plain(one: Diagnosis) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(one).items()}


def _print(told: Told) -> None:
    """Paragraphs: three long texts don't fit beside each other in a table."""
    for node, found in told:
        for one in found:
            lines = [f"{node or 'no node'}: {one.name}", f"  cause     {one.cause}"]
            lines += [f"  {'evidence' if not number else '':<8}  {line}" for number, line in enumerate(one.evidence)]
            lines += [f"  fix       {one.fix}", f"  certain   {_CERTAIN[one.certain]}"]
            lines += [f"  see       {', '.join(one.links)}"] if one.links else []
            output.write_lines([*lines, ""])
