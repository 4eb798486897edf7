"""Each step of an adapter on its way into a service, and the same step by an operator that has just started. Pure."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from glm5_operator.api.deploy import DeploymentReport, DeploySpec
from glm5_operator.plan.facts import Finding
from glm5_operator.status.adapters import PodAnswer, read_answer
from glm5_operator.status.deployment import Evaluated, Seen, Step, advance
from tests.support.clock import at

Json = dict[str, Any]
SHA, OTHER = "a" * 64, "b" * 64
LIVE = frozenset({"p", "q"})
LISTED: Json = {"name": "support", "state": "Loaded", "sha256": SHA, "share": 1.0}


def deploy(**fields: object) -> DeploySpec:
    return DeploySpec.model_validate({"service": "chat", "adapter": "support", **fields})


EVALUATE: Json = {"source": "pvc://data/held.jsonl"}
PLAIN, EVALUATED = deploy(), deploy(evaluate=EVALUATE)
CANARY = deploy(canary={"share": 0.1, "time": "5m"})
WHOLE = deploy(evaluate=EVALUATE, canary={})


def pod(
    name: str = "p",
    state: str = "Loaded",
    sha256: str = SHA,
    *,
    mine: tuple[int, int] = (0, 0),
    base: tuple[int, int] = (0, 0),
    message: str = "",
    share: float = 1.0,
) -> PodAnswer:
    entry = {
        "name": "support",
        "sha256": sha256,
        "state": state,
        "message": message,
        "share": share,
        "requests": mine[0],
        "failures": mine[1],
    }
    return read_answer(name, name, {"adapters": [entry], "base": {"requests": base[0], "failures": base[1]}})


def step(wanted: DeploySpec, before: Json, seen: Seen, now: datetime) -> Step:
    """One step, and the same by an operator that knows only what the API server keeps."""
    if before:
        DeploymentReport.model_validate(before)
    kept: Json = json.loads(json.dumps(before))
    found = advance(wanted, SHA, kept, seen, now)
    assert kept == before, "what is given isn't written to"
    assert found == advance(wanted, SHA, json.loads(json.dumps(before)), seen, now)
    DeploymentReport.model_validate(found.report)
    return found


def serving(*pods: PodAnswer, evaluated: Evaluated | None = None) -> Seen:
    return Seen(None, ready=True, pods=pods or (pod(),), live=LIVE, evaluated=evaluated or Evaluated(), listed=(LISTED,))


def in_phase(phase: str, wanted: DeploySpec = PLAIN, **more: object) -> Json:
    """A report of a deployment that has been in a phase since twelve o'clock."""
    share = {"Canary": 0.1, "Deployed": 1.0}.get(phase, 0.0)
    since = at().strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"phase": phase, "since": since, "began": since, "service": wanted.service, "adapter": wanted.adapter, "share": share, **more}


def after(seconds: float) -> datetime:
    return at() + timedelta(seconds=seconds)


# --- waiting ----------------------------------------------------------------------------------------------------------------


def test_it_waits_for_a_service_that_can_take_it_and_says_why() -> None:
    found = step(PLAIN, {}, Seen(Finding("ServiceNotFound", "there is no GLM5Service chat")), after(0))

    assert (found.report["phase"], found.report["reason"]) == ("Waiting", "ServiceNotFound")
    assert found.report["message"] == "there is no GLM5Service chat"
    assert found.report["share"] == 0.0


def test_it_waits_until_the_service_serves() -> None:
    assert step(PLAIN, {}, Seen(ready=False), after(0)).report["reason"] == "ServiceNotReady"


def test_then_it_is_loaded_first_of_all_without_a_share() -> None:
    found = step(WHOLE, in_phase("Waiting", reason="ServiceNotReady", message="…"), serving(), after(9))

    assert (found.report["phase"], found.report["share"]) == ("Loading", 0.0)
    assert found.report["began"] == found.report["since"]
    assert "reason" not in found.report
    assert not found.evaluates


@pytest.mark.parametrize("phase", ["Loading", "Evaluating", "Canary", "Deployed"])
def test_a_service_that_has_gone_sends_it_back_to_the_beginning(phase: str) -> None:
    before = in_phase(phase, WHOLE, evaluation={"loss": 1.0})

    found = step(WHOLE, before, Seen(Finding("ServiceNotFound", "gone")), after(9))

    assert (found.report["phase"], found.report["share"]) == ("Waiting", 0.0)
    assert "evaluation" not in found.report, "another service is another model"
    assert "began" not in found.report
    assert not found.evaluates


def test_while_it_waits_nothing_moves_the_time() -> None:
    before = in_phase("Waiting", reason="ServiceNotReady", message="x")
    del before["began"]

    assert step(PLAIN, before, Seen(ready=False), after(500)).report["since"] == before["since"]


def test_another_service_or_name_in_the_spec_begins_anew() -> None:
    before = in_phase("RolledBack") | {"adapter": "old"}

    assert step(PLAIN, before, Seen(ready=False), after(0)).report["phase"] == "Waiting"


# --- loading ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "pods",
    [
        (pod(), pod("q", "Loading", "")),
        (pod(), pod("q", sha256=OTHER)),
        (pod(), PodAnswer("q", "q")),
        (pod(), PodAnswer("q", "q", {})),
    ],
    ids=["one loads", "one has other weights", "one is silent", "one has not seen the file"],
)
def test_one_pod_without_it_keeps_it_from_going_on(pods: tuple[PodAnswer, ...]) -> None:
    found = step(PLAIN, in_phase("Loading"), serving(*pods), after(600))

    assert found.report["phase"] == "Loading"
    assert found.report["message"] == "1 of 2 ready pods have it"


def test_pods_that_say_nothing_at_all_are_asked_more_seldom() -> None:
    found = step(PLAIN, in_phase("Loading"), serving(PodAnswer("p", "p"), PodAnswer("q", "q")), after(1))

    assert "let the operator reach the engine's port" in found.report["message"]
    assert found.again == timedelta(seconds=30)


def test_no_ready_pod_is_not_every_pod() -> None:
    assert step(PLAIN, in_phase("Loading"), Seen(ready=False, live=LIVE), after(1)).report["phase"] == "Loading"


def test_with_every_pod_it_goes_where_the_spec_says() -> None:
    seen = serving(pod(), pod("q"))

    assert step(PLAIN, in_phase("Loading"), seen, after(1)).report["phase"] == "Deployed"
    assert step(CANARY, in_phase("Loading"), seen, after(1)).report["phase"] == "Canary"
    evaluating = step(WHOLE, in_phase("Loading"), seen, after(1))
    assert (evaluating.report["phase"], evaluating.report["share"], evaluating.evaluates) == ("Evaluating", 0.0, True)


def test_a_refusal_may_pass_within_a_minute_and_then_it_is_taken_out() -> None:
    seen = serving(pod(), pod("q", "Failed", "", message="rank 64 is above --max-lora-rank 16"))

    early, late = (step(PLAIN, in_phase("Loading"), seen, after(seconds)) for seconds in (59, 60))

    assert early.report["phase"] == "Loading"
    assert "rank 64" in early.report["message"]
    assert (late.report["phase"], late.report["reason"]) == ("RolledBack", "LoadFailed")
    assert late.report["message"] == "pod q: rank 64 is above --max-lora-rank 16"


# --- evaluating -------------------------------------------------------------------------------------------------------------


def word(loss: object = 1.0, base: object = 2.0, exact: object = None, base_exact: object = None) -> Json:
    return {
        "outcome": "Succeeded",
        "rows": 7,
        "adapter": {"loss": loss, "exact_match": exact},
        "base": {"loss": base, "exact_match": base_exact},
    }


def judged(found: Json, *, canary: bool = False, **evaluate: object) -> Step:
    wanted = deploy(evaluate={**EVALUATE, **evaluate}, **({"canary": {}} if canary else {}))
    return step(wanted, in_phase("Evaluating"), serving(evaluated=Evaluated("Succeeded", found)), after(30))


@pytest.mark.parametrize("state", ["Absent", "Running"])
def test_until_the_evaluation_ends_it_stays(state: str) -> None:
    found = step(EVALUATED, in_phase("Evaluating"), serving(evaluated=Evaluated(state)), after(3000))

    assert (found.report["phase"], found.evaluates) == ("Evaluating", True)


@pytest.mark.parametrize(
    ("found", "evaluate"),
    [
        (word(1.0, 2.0), {}),
        (word(2.0, 2.0), {}),
        (word(2.1, 2.0), {"tolerance": 0.1}),
        (word(1.0, 2.0, 0.5, 0.5), {}),
        (word(1.0, 2.0, 0.5, 0.1), {"leastExactMatch": 0.5}),
    ],
    ids=["better", "as good", "within the tolerance", "as many right", "just enough right"],
)
def test_an_adapter_that_is_not_worse_goes_on(found: Json, evaluate: Json) -> None:
    assert judged(found, **evaluate).report["phase"] == "Deployed"
    canary = judged(found, canary=True, **evaluate)
    assert (canary.report["phase"], canary.report["share"]) == ("Canary", 0.1)
    assert canary.report["evaluation"]["rows"] == 7
    assert not canary.evaluates


@pytest.mark.parametrize(
    ("found", "evaluate", "reason", "says"),
    [
        (word(2.01, 2.0), {}, "WorseLoss", "its loss is 2.01, without it 2"),
        (word(2.2, 2.0), {"tolerance": 0.1}, "WorseLoss", "0.1 more is allowed"),
        (
            word(1.0, 2.0, 0.4, 0.1),
            {"leastExactMatch": 0.5},
            "ExactMatchTooLow",
            "40.0% of its answers are exactly right, and 50.0% must be",
        ),
        (word(1.0, 2.0, None), {"leastExactMatch": 0.5}, "ExactMatchTooLow", "no answer"),
        (word(1.0, 2.0, 0.4, 0.5), {}, "WorseExactMatch", "40.0% of its answers are exactly right, without it 50.0%"),
        (word(None, 2.0), {}, "EvaluationFailed", "no finite loss"),
        (word(float("nan"), 2.0), {}, "EvaluationFailed", "no finite loss"),
        (word("1.0", 2.0), {}, "EvaluationFailed", "no finite loss"),
        ({"adapter": 3}, {}, "EvaluationFailed", "no finite loss"),
    ],
)
def test_a_worse_one_is_taken_out_with_its_numbers(found: Json, evaluate: Json, reason: str, says: str) -> None:
    back = judged(found, canary=True, **evaluate)

    assert (back.report["phase"], back.report["reason"], back.report["share"]) == ("RolledBack", reason, 0.0)
    assert says in back.report["message"]
    assert not back.evaluates


def test_an_evaluation_that_failed_takes_it_out() -> None:
    failed = Evaluated("Failed", message="pod e, exit code 3: line 7 is no JSON")

    found = step(EVALUATED, in_phase("Evaluating"), serving(evaluated=failed), after(30))

    assert (found.report["phase"], found.report["reason"]) == ("RolledBack", "EvaluationFailed")
    assert "line 7" in found.report["message"]


def test_an_evaluation_whose_words_are_lost_is_begun_anew() -> None:
    lost = step(EVALUATED, in_phase("Evaluating"), serving(evaluated=Evaluated("Lost")), after(30))
    again = step(EVALUATED, lost.report, serving(), after(32))

    assert (lost.report["phase"], lost.evaluates) == ("Evaluating", False)
    assert (again.report["phase"], again.evaluates) == ("Evaluating", True)


# --- canary -----------------------------------------------------------------------------------------------------------------


def canary(requests: int, failures: int, others: tuple[int, int] = (100, 0), seconds: float = 300, **fields: object) -> Step:
    """A canary in which so much was counted, after so many seconds."""
    wanted = deploy(canary={"share": 0.1, "time": "5m", **fields})
    begun = step(wanted, in_phase("Loading"), serving(pod(mine=(1000, 900), base=(1000, 0))), after(0))
    assert begun.report["phase"] == "Canary"
    counted = pod(mine=(1000 + requests, 900 + failures), base=(1000 + others[0], others[1]))
    return step(wanted, begun.report, serving(counted), after(seconds))


def test_it_goes_to_all_when_its_time_is_over_and_nothing_was_wrong() -> None:
    early, late = canary(10, 0, seconds=299), canary(10, 0)

    assert (early.report["phase"], early.report["share"]) == ("Canary", 0.1)
    assert early.again is not None
    assert early.report["message"] == "0 of its 10 requests failed, 0 of 100 without it"
    assert (late.report["phase"], late.report["share"]) == ("Deployed", 1.0)


@pytest.mark.parametrize(
    ("requests", "failures", "others", "seconds", "phase"),
    [
        (10, 2, (100, 0), 10, "Canary"),
        (10, 3, (100, 0), 10, "RolledBack"),
        (10, 3, (100, 30), 10, "Canary"),
        (10, 2, (100, 0), 300, "RolledBack"),
        (1000, 20, (100, 0), 300, "Deployed"),
        (1000, 21, (100, 0), 300, "RolledBack"),
        (10, 3, (0, 0), 10, "RolledBack"),
    ],
    ids=["too few to tell", "early", "others fail too", "at the end one counts", "just allowed", "just not", "nothing to compare with"],
)
def test_more_failures_than_without_it_end_it(requests: int, failures: int, others: tuple[int, int], seconds: float, phase: str) -> None:
    found = canary(requests, failures, others, seconds)

    assert found.report["phase"] == phase
    if phase == "RolledBack":
        assert found.report["reason"] == "TooManyFailures"
        assert f"{failures} of its {requests} requests failed, {others[1]} of {others[0]} without it" in found.report["message"]
        assert found.report["share"] == 0.0


def test_how_many_more_may_fail_is_the_users_choice() -> None:
    assert canary(10, 3, mostFailures=0.3).report["phase"] == "Deployed"
    assert canary(1000, 1, mostFailures=0).report["phase"] == "RolledBack"


def test_without_a_request_nothing_is_known_and_it_goes_on_until_one_came() -> None:
    found = canary(0, 0, seconds=9999)

    assert found.report["phase"] == "Canary"
    assert "waits for 1 requests" in found.report["message"]
    assert canary(0, 0, leastRequests=0).report["phase"] == "Deployed"


def test_a_silent_pod_keeps_it_from_ending_well() -> None:
    wanted = deploy(canary={"time": "1s"})
    begun = step(wanted, in_phase("Loading"), serving(), after(0))
    some = step(wanted, begun.report, serving(pod(mine=(5, 0))), after(0.5))

    for pods in ((pod(mine=(5, 0)), PodAnswer("q", "q")), ()):
        found = step(wanted, some.report, Seen(None, ready=True, pods=pods, live=LIVE), after(60))
        assert found.report["phase"] == "Canary"


def test_restarts_of_pods_hide_no_failure() -> None:
    wanted = deploy(canary={"time": "5m"})
    report = step(wanted, in_phase("Loading"), serving(), after(0)).report
    for second, mine in enumerate([(5, 1), (1, 1), (1, 1), (2, 1), (0, 0), (1, 1)], start=1):
        found = step(wanted, report, serving(pod(mine=mine, base=(50, 0))), after(second))
        report = found.report

    assert (report["phase"], report["reason"]) == ("RolledBack", "TooManyFailures")
    assert "3 of its 8 requests failed" in report["message"]


# --- its share in every pod -------------------------------------------------------------------------------------------------


def finishing(wanted: DeploySpec, *pods: PodAnswer, share: float = 1.0) -> Step:
    """The last step before Deployed, and the one after it: what it had to do is not done again."""
    phase = "Evaluating" if wanted.evaluate else "Canary" if wanted.canary else "Loading"
    before = in_phase(phase, wanted)
    there = Seen(None, ready=True, pods=(pod(share=share),), live=LIVE, share=share, listed=({**LISTED, "share": share},))
    seen = replace(there, pods=pods, evaluated=Evaluated("Succeeded", word()))
    first = step(wanted, before, seen, after(900))
    assert (first.report["phase"], first.report["share"], first.evaluates) == (phase, 1.0, False)
    later = step(wanted, first.report, replace(there, pods=pods), after(902))
    assert (later.report["message"], later.evaluates) == (first.report["message"], False)
    done = step(wanted, first.report, there, after(904))
    assert (done.report["phase"], done.report["share"]) == ("Deployed", 1.0)
    return first


AT_ONCE = deploy(canary={"time": "1s", "leastRequests": 0})


@pytest.mark.parametrize("wanted", [PLAIN, EVALUATED, AT_ONCE], ids=["loaded", "evaluated", "tried"])
def test_it_is_deployed_when_every_ready_pod_has_taken_up_its_share(wanted: DeploySpec) -> None:
    found = finishing(wanted, pod(share=0.1), pod("q"))

    assert found.report["message"] == "waits for 1 of 2 pods to take up the share"
    assert found.again == timedelta(seconds=2)


def test_the_share_that_a_newer_deployment_leaves_is_all_that_it_waits_for() -> None:
    finishing(PLAIN, pod(share=1.0), share=0.9)


@pytest.mark.parametrize(
    ("listed", "says"),
    [
        ((), "says nothing of support"),
        (({**LISTED, "message": "waits for 1 of 2 pods to take up the share"},), "waits for 1 of 2 pods to take up the share"),
        (({**LISTED, "share": 0.1},), "waits for GLM5Service chat to list its share"),
    ],
)
def test_it_is_deployed_only_when_the_services_own_status_says_the_same(listed: tuple[Json, ...], says: str) -> None:
    found = step(PLAIN, in_phase("Loading"), replace(serving(), listed=listed), after(9))

    assert (found.report["phase"], found.report["share"], says in found.report["message"]) == ("Loading", 1.0, True)


def test_a_pod_that_came_meanwhile_and_refuses_is_named() -> None:
    found = finishing(EVALUATED, pod(), pod("q", "Failed", "", message="rank 64"))

    assert found.report["message"] == "waits for 1 of 2 pods to take up the share: pod q: rank 64"


# --- the ends ---------------------------------------------------------------------------------------------------------------


def test_what_was_rolled_back_stays_so_whatever_is_seen() -> None:
    before = in_phase("RolledBack", reason="WorseLoss", message="…")

    for seen in (serving(), Seen(Finding("ServiceNotFound", "gone")), serving(evaluated=Evaluated("Succeeded", word()))):
        assert step(WHOLE, before, seen, after(9999)) == Step(before)


def test_what_is_deployed_stays_so_while_the_service_takes_it() -> None:
    before = in_phase("Deployed", message="…")

    for seen in (serving(), Seen(ready=False, live=LIVE), serving(pod(state="Loading"))):
        assert step(WHOLE, before, seen, after(9999)) == Step(before)


def test_the_whole_way_one_step_at_a_time() -> None:
    report, phases = {}, []  # type: ignore[var-annotated]
    views = [
        Seen(Finding("ServiceNotFound", "create it")),
        Seen(ready=False),
        serving(),
        serving(pod(state="Loading", sha256="")),
        serving(),
        serving(evaluated=Evaluated("Running")),
        serving(evaluated=Evaluated("Succeeded", word())),
        serving(pod(mine=(3, 0))),
        serving(pod(mine=(9, 0))),
    ]
    for number, seen in enumerate(views):
        report = step(WHOLE, report, seen, after(100 * number)).report
        phases.append(report["phase"])

    assert phases == ["Waiting", "Waiting", "Loading", "Loading", "Evaluating", "Evaluating", "Canary", "Canary", "Canary"]
    report = step(WHOLE, report, serving(pod(mine=(9, 0))), after(2000)).report
    assert (report["phase"], report["share"]) == ("Deployed", 1.0)
    assert report["began"] == "2026-11-29T12:03:20Z", "the order of deployments is that in which they began"
    assert "loss 1, without it 2" in report["message"]


@pytest.mark.parametrize("phase", ["RolledBack", "Deployed"])
def test_a_deployment_that_was_removed_and_set_anew_with_other_values_begins_anew(phase: str) -> None:
    before = step(PLAIN, {}, Seen(ready=False), after(0)).report | {"phase": phase, "reason": "WorseLoss", "share": 1.0}

    assert step(WHOLE, before, Seen(ready=False), after(9)).report["phase"] == "Waiting"
    assert step(PLAIN, before, Seen(ready=False), after(9)).report["phase"] == phase


def test_a_report_of_an_operator_that_kept_no_digest_goes_on() -> None:
    assert step(PLAIN, in_phase("Deployed"), serving(), after(9)).report["phase"] == "Deployed"


def test_why_a_write_failed_is_not_told_of_a_later_pass() -> None:
    before = in_phase("Evaluating", EVALUATED, reason="QuotaExceeded", message="asked 1, limit 0")

    found = step(EVALUATED, before, serving(evaluated=Evaluated("Running")), after(9)).report
    assert ("reason" in found, found["message"]) == (False, "the evaluation runs")
