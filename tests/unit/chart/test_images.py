"""Image references: registry, tag and digest in every combination, in our pods and in what engine pods will get (case E03)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.chart import Chart, RefusedError, containers, environment
from tests.support.image_tags import TAGS

HEX = "0123456789abcdef" * 4
NATIVE, VLLM = "GLM5_OPERATOR_SITE_NATIVE_IMAGE", "GLM5_OPERATOR_SITE_VLLM_IMAGE"


def own_images(documents: list[dict[str, Any]]) -> set[str]:
    return {container["image"] for container in containers(documents)}


@pytest.mark.parametrize(
    ("image", "reference"),
    [
        ({}, "glm5-operator:0.1.0"),
        ({"tag": "2026.11.29"}, "glm5-operator:2026.11.29"),
        ({"registry": "reg.local:5000"}, "reg.local:5000/glm5-operator:0.1.0"),
        ({"registry": "reg.local:5000/"}, "reg.local:5000/glm5-operator:0.1.0"),
        ({"registry": "reg.local/team", "repository": "a/b"}, "reg.local/team/a/b:0.1.0"),
        ({"repository": "reg.local:5000/a/b", "tag": "", "digest": f"sha256:{HEX}"}, f"reg.local:5000/a/b@sha256:{HEX}"),
        ({"repository": "reg.local:5000/a/b", "digest": HEX}, f"reg.local:5000/a/b@sha256:{HEX}"),
        ({"tag": "v1", "digest": HEX}, f"glm5-operator:v1@sha256:{HEX}"),
        ({"tag": f"sha256:{HEX}"}, f"glm5-operator@sha256:{HEX}"),
        ({"tag": None, "digest": None, "registry": None, "repository": None}, "glm5-operator:0.1.0"),
    ],
)
def test_every_pod_of_the_chart_uses_the_reference_that_registry_tag_and_digest_make(
    chart: Chart, image: dict[str, Any], reference: str
) -> None:
    assert own_images(chart.render({"image": image})) == {reference}


@pytest.mark.parametrize("engine", ["native", "vllm"])
@pytest.mark.parametrize(
    ("image", "ending"),
    [
        ({"repository": "a/b", "tag": "v9"}, "a/b:v9"),
        ({"repository": "a/b", "tag": "", "digest": HEX}, f"a/b@sha256:{HEX}"),
        ({"repository": "a/b", "tag": "v9", "digest": f"sha256:{HEX}"}, f"a/b:v9@sha256:{HEX}"),
        ({"repository": "a/b", "tag": f"sha256:{HEX}"}, f"a/b@sha256:{HEX}"),
    ],
)
def test_images_of_engines_reach_the_operator_by_the_same_rules(chart: Chart, engine: str, image: dict[str, Any], ending: str) -> None:
    env = environment(chart.render({"engines": {engine: {"image": {"registry": "reg.local:5000", **image}}}}))
    assert env[NATIVE if engine == "native" else VLLM] == f"reg.local:5000/{ending}"


def test_a_global_registry_replaces_every_registry(chart: Chart) -> None:
    documents = chart.render({"global": {"imageRegistry": "mirror.local:5000/x"}, "image": {"repository": "reg.local:5000/a/b"}})
    assert own_images(documents) == {"mirror.local:5000/x/a/b:0.1.0"}
    assert environment(documents)[NATIVE] == "mirror.local:5000/x/glm5-runtime:0.1.0"
    assert environment(documents)[VLLM] == "mirror.local:5000/x/ascend/vllm-ascend:v0.23.0"


@pytest.mark.parametrize("path", ["image", "engines.native.image", "engines.vllm.image"])
@pytest.mark.parametrize(("tag", "why"), [("latest-910b", "says nothing about what runs tomorrow"), ("stable", "has no digit")])
def test_a_tag_that_moves_is_refused_with_its_path(chart: Chart, path: str, tag: str, why: str) -> None:
    with pytest.raises(RefusedError, match=rf"{path}\.tag: {tag} {why}"):
        chart.render(None, "--set", f"{path}.tag={tag}")


@pytest.mark.parametrize(("tag", "taken"), TAGS.items())
def test_the_chart_takes_the_tags_that_the_crds_take(chart: Chart, tag: str, taken: bool) -> None:
    if taken:
        assert own_images(chart.render({"image": {"tag": tag}})) == {f"glm5-operator:{tag}"}
    else:
        with pytest.raises(RefusedError, match=rf"image\.tag: {tag} "):
            chart.render({"image": {"tag": tag}})
    assert own_images(chart.render({"image": {"tag": tag, "digest": HEX}})) == {f"glm5-operator:{tag}@sha256:{HEX}"}


def test_a_digest_in_the_tag_beside_another_digest_is_refused(chart: Chart) -> None:
    with pytest.raises(RefusedError, match=r"image\.tag holds a digest and image\.digest is set too"):
        chart.render({"image": {"tag": f"sha256:{HEX}", "digest": HEX}})


@pytest.mark.parametrize(
    ("image", "at"),
    [
        ({"digest": "sha256:abc"}, "/image/digest"),
        ({"digest": f"sha256:sha256:{HEX}"}, "/image/digest"),
        ({"digest": f"md5:{HEX}"}, "/image/digest"),
        ({"tag": "sha256:abc"}, "/image/tag"),
        ({"tag": "a/b"}, "/image/tag"),
        ({"repository": "a:v1"}, "/image/repository"),
        ({"repository": f"a@sha256:{HEX}"}, "/image/repository"),
        ({"repository": "Upper/Case"}, "/image/repository"),
        ({"registry": "https://reg.local"}, "/image/registry"),
        ({"pullPolicy": "always"}, "/image/pullPolicy"),
    ],
)
def test_what_cannot_become_a_reference_is_refused_with_its_path(chart: Chart, image: dict[str, Any], at: str) -> None:
    with pytest.raises(RefusedError, match=f"at '{at}'"):
        chart.render({"image": image})


@pytest.mark.parametrize(("text", "tag"), [("'20260916'", "20260916"), ("12e4567", "12e4567"), ("'1.10'", "1.10"), ("v1", "v1")])
def test_a_tag_that_looks_like_a_number_keeps_its_digits(chart: Chart, text: str, tag: str) -> None:
    assert own_images(chart.render(f"image: {{tag: {text}}}\n")) == {f"glm5-operator:{tag}"}


@pytest.mark.parametrize("tag", ["20260916", "12e4", "0123"])
def test_a_tag_given_by_set_keeps_its_digits(chart: Chart, tag: str) -> None:
    assert own_images(chart.render(None, "--set", f"image.tag={tag}")) == {f"glm5-operator:{tag}"}


@pytest.mark.parametrize("text", ["20260916", "12e4", "1.10", "012"])
def test_a_tag_that_yaml_has_turned_into_a_number_is_refused_because_its_digits_may_be_lost(chart: Chart, text: str) -> None:
    with pytest.raises(RefusedError, match=r"image[./]tag"):
        chart.render(f"image: {{tag: {text}}}\n")
