"""The words of `glm5-runtime doctor --compute` are those that the operator knows, and the command that it writes is one that there is."""

from __future__ import annotations

import ast
import inspect

import typer

from glm5_operator.api.pool import NPUPool
from glm5_operator.plan.compute_check import LONGEST_SECONDS, CheckInput, compute_check_pod
from glm5_operator.plan.facts import Finding, Site
from glm5_operator.status.compute_check import _OUTCOMES
from glm5_runtime import cli, doctor


def test_both_sides_have_the_same_words() -> None:
    calls = [node for node in ast.walk(ast.parse(inspect.getsource(doctor.compute))) if isinstance(node, ast.Call)]
    said = {ast.literal_eval(call.args[0]) for call in calls if getattr(call.func, "id", "") == "_outcome"}

    assert said == _OUTCOMES.keys()
    assert doctor._COMPUTE_SECONDS < LONGEST_SECONDS, "a hang is told before kubelet ends the pod"


def test_the_runtimes_parser_takes_the_pods_command() -> None:
    document = {"apiVersion": "glm5.dev/v1alpha1", "kind": "NPUPool", "metadata": {"name": "p"}, "spec": {"role": "Inference"}}
    document["spec"] |= {"nodeNames": ["n"]}  # type: ignore[operator]
    pod = compute_check_pod(CheckInput("n", "1", NPUPool.parse(document), "huawei.com/Ascend910", 1, "glm5-system", Site()))
    assert not isinstance(pod, Finding)
    (container,) = pod["spec"]["containers"]
    program, name = container["command"]
    assert program == "glm5-runtime"

    command = typer.main.get_command(cli.app).commands[name]  # type: ignore[attr-defined]
    with command.make_context(name, list(container["args"])) as context:
        assert context.params["compute"] is True
        assert str(context.params["result"]) == "/dev/termination-log"
