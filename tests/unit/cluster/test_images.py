"""What goes into an image build, and what is refused where no registry can be reached."""

import tomllib
from pathlib import Path

import pytest

from tests.cluster import images, site_packages
from tests.cluster.engine import Engine
from tests.cluster.errors import UnavailableError
from tests.cluster.images import ImageOptions
from tests.unit.cluster.conftest import ScriptedDocker

ROOT = Path(__file__).parents[3]
INDEX = "https://index.example/cpu"
NO_REGISTRY = (1, "toomanyrequests: You have reached your pull rate limit.")


def test_the_variables_of_make_images_reach_the_build(docker: ScriptedDocker, monkeypatch: pytest.MonkeyPatch) -> None:
    variables = {
        "TORCH_INDEX_URL": INDEX,
        "RUNTIME_EXTRA": "npu",
        "OPERATOR_BASE": "python:slim",
        "RUNTIME_BASE": "cann:9",
        "PLATFORM": "linux/arm64",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert images.build(Engine(), "runtime") == "glm5-runtime:0.1.0"
    (call,) = docker.calls("build")
    for name in ("TORCH_INDEX_URL", "RUNTIME_EXTRA", "OPERATOR_BASE", "RUNTIME_BASE"):
        assert f"--build-arg {name}={variables[name]}" in call
    assert "--build-arg RUNTIME_PACKAGES=all" in call
    assert "--platform linux/arm64" in call


def test_an_image_of_other_variables_is_built_anew(docker: ScriptedDocker) -> None:
    images.build(Engine(), "runtime", ImageOptions())
    images.build(Engine(), "runtime", ImageOptions(torch_index=INDEX))
    first, second = (next(word for word in call.split() if word.startswith("dev.glm5.content=")) for call in docker.calls("build"))
    assert first != second


@pytest.mark.parametrize("asked", [ImageOptions(platform="linux/arm64"), ImageOptions(runtime_extra="npu")], ids=["platform", "extra"])
def test_what_a_base_made_here_cannot_give_is_refused_with_the_registrys_words(docker: ScriptedDocker, asked: ImageOptions) -> None:
    docker.answer(manifest=NO_REGISTRY)
    with pytest.raises(UnavailableError, match=r"(PLATFORM|RUNTIME_EXTRA)=.*pull rate limit.*RUNTIME_BASE"):
        images.build(Engine(), "runtime", asked)


def test_a_runtime_image_without_torch_says_so_in_its_tag() -> None:
    assert images.reference("runtime", with_torch=False) == "glm5-runtime:0.1.0-without-torch"
    assert images.reference("operator", with_torch=False) == "glm5-operator:0.1.0"


def test_one_variable_names_torchs_index_for_images_and_mounted_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_INDEX_URL", INDEX)
    assert images.ImageOptions.of_environment().torch_index == site_packages.torch_index() == INDEX
    assert not any(line.startswith("nvidia-") for line in site_packages.requirement_lines(site_packages.torch_index()))


def test_torch_npu_is_installed_as_pinned_and_brings_no_second_torch() -> None:
    pinned = (ROOT / "requirements" / "npu.txt").read_text().split()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert [pin.replace("-", "_") for pin in pinned] == extras["npu"]
    others = (ROOT / "requirements" / "runtime.txt").read_text().splitlines()
    # its wheel requires exactly this torch, and by its description pyyaml and setuptools
    assert [line for line in others if line.startswith("torch==")] == [pinned[0].replace("torch-npu", "torch")]
    assert {"pyyaml", "setuptools"} <= {line.split("==")[0] for line in others}
    installs = [line for line in (ROOT / "Dockerfile").read_text().replace("\\\n", " ").split("&&") if "pip install" in line]
    assert all("--no-deps" in line for line in installs)
