"""What the operator tells of nodes and cards as metrics: counts, whose number grows with nodes and not with cards.

Real: cache, facts, view, remedy, prometheus_client. Faked: the edge that writes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from glm5_operator.controllers.remedies import Remedies
from glm5_operator.metrics import Metrics
from tests.unit.controllers.test_node import Bed, a_pool, facts, remembering

Json = dict[str, Any]


def measured(bed: Bed) -> Metrics:
    """The bed's controller counts into these from now on."""
    metrics = Metrics()
    bed.controller = replace(bed.controller, remedies=Remedies(metrics))
    return metrics


def lines(metrics: Metrics, *names: str) -> list[str]:
    return [line for line in metrics.exposition().decode().splitlines() if line.partition("{")[0] in names]


async def test_cards_are_counted_by_health_and_each_node_says_how_many_its_agent_told_of() -> None:
    bed = Bed()
    metrics = measured(bed)
    await bed.look()
    assert lines(metrics, "glm5_node_cards", "glm5_cards") == ['glm5_node_cards{node="npu-0"} 0.0']

    report = facts("Critical")
    report["cards"][5] |= {"health": "Unknown", "stale": True}
    report["cards"][6] |= {"health": "Unknown", "stale": True}
    report["cards"][7] |= {"health": "Warning"}
    bed.told(report | {"missing": [6]})
    await bed.look(1)

    assert lines(metrics, "glm5_node_cards") == ['glm5_node_cards{node="npu-0"} 8.0']
    assert sorted(lines(metrics, "glm5_cards")) == [
        'glm5_cards{health="Faulty",pool="inference"} 1.0',
        'glm5_cards{health="Missing",pool="inference"} 1.0',
        'glm5_cards{health="Unknown",pool="inference"} 1.0',
        'glm5_cards{health="Well",pool="inference"} 5.0',
    ]
    assert "glm5_card_" not in metrics.exposition().decode(), "single cards are told by their node's agent"


async def test_a_remedy_that_is_only_said_is_no_node_in_remedy_to_an_alert() -> None:
    for mode, dry in (("DryRun", "true"), ("Auto", "false")):
        bed = Bed(pool=a_pool(mode=mode))
        metrics = measured(bed)
        await bed.look()
        bed.told(facts("Critical", holder=""))
        await bed.look(1)

        (line,) = lines(metrics, "glm5_nodes_in_remedy")
        assert f'dry="{dry}"' in line


def test_a_new_leader_knows_how_many_cards_a_node_has_and_whether_its_remedy_is_only_said() -> None:
    node, ascend_node = remembering("npu-1", "Quarantined")
    ascend_node["status"]["remedy"]["dryRun"] = True
    bed = Bed(node, ascend_node)
    metrics = measured(bed)

    bed.controller.remedies.learn(bed.cache)

    assert lines(metrics, "glm5_nodes_in_remedy", "glm5_node_cards") == [
        'glm5_nodes_in_remedy{dry="true",pool="inference",state="Quarantined"} 1.0',
        'glm5_node_cards{node="npu-1"} 8.0',
    ]
