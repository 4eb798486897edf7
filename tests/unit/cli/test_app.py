"""The small commands, and what all commands share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from glm5_operator.api.schema import crds
from glm5_operator.cli.app import PRODUCTS
from glm5_operator.cli.errors import CliError, ExitCode, FaultsError
from glm5_operator.plan.facts import Product
from tests.unit.cli.support import glm5


def test_the_version_is_printed_in_each_form() -> None:
    assert glm5("version").stdout.startswith("glm5 0.1.0 (API glm5.dev/v1alpha1)")
    assert glm5("--version").stdout == glm5("version").stdout
    data = json.loads(glm5("version", "-o", "json").stdout)
    assert data == yaml.safe_load(glm5("version", "--output", "yaml").stdout) == {"version": "0.1.0", "apiVersion": "glm5.dev/v1alpha1"}


def test_the_crds_are_printed_as_one_stream_for_kubectl() -> None:
    assert list(yaml.safe_load_all(glm5("crds").stdout)) == list(crds().values())


@pytest.mark.parametrize(
    "command", ["plan", "deploy", "inference", "status", "nodes", "node release", "doctor", "compat", "crds", "version"]
)
def test_every_command_explains_itself(command: str) -> None:
    assert "Usage: " in glm5(*command.split(), "--help").stdout


def test_the_exit_codes_of_the_help_are_those_of_the_program() -> None:
    text = " ".join(glm5("--help").stdout.split())
    for code in set(ExitCode) - {ExitCode.OK, ExitCode.BUG}:
        assert f"{int(code)} " in text, code


def test_an_error_is_one_line_with_place_and_remedy() -> None:
    error = CliError(ExitCode.INPUT, "is\nwrong", where="a.yaml: spec.x", remedy="change it")
    assert str(error) == "error: a.yaml: spec.x: is wrong; change it"


def test_several_errors_are_a_line_each() -> None:
    one = CliError(ExitCode.INPUT, "a")
    assert str(FaultsError(ExitCode.INPUT, [one, one])) == "error: a\nerror: a"


def test_help_and_completion_import_neither_the_cluster_client_nor_the_models() -> None:
    probe = (
        "import sys\nfrom glm5_operator.cli.app import app\n"
        "print(sorted({'kubernetes', 'aiohttp', 'pydantic', 'httpx', 'yaml', 'kopf', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (("glm5", "plan", "--product", ""), ["A2", "A3", "310P", "950"]),
        (("glm5", "inference", "--device", "c"), ["cpu", "cuda"]),
        (("glm5-runtime", "serve", "--device", ""), ["auto", "cpu", "npu", "cuda"]),
        (("glm5-runtime", "serve", "--kv-cache-dtype", "i"), ["int8", "int4"]),
    ],
)
def test_the_shell_completes_values(typed: tuple[str, ...], offered: list[str]) -> None:
    program = Path(sys.executable).with_name(typed[0])
    variable = f"_{typed[0].upper().replace('-', '_')}_COMPLETE"
    words = {"COMP_WORDS": " ".join(typed), "COMP_CWORD": str(len(typed) - 1), variable: "complete_bash"}
    done = subprocess.run([program], env={**os.environ, **words}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == offered


def test_the_products_that_are_offered_are_all_there_are() -> None:
    assert list(PRODUCTS) == list(Product)
