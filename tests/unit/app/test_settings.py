"""Settings from an environment. Pure."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from glm5_operator import settings
from glm5_operator.agent import settings as agent_settings
from tests.support.image_tags import IMAGES

ROOT = Path(__file__).parents[3]


def test_without_variables_every_setting_has_its_default() -> None:
    assert settings.load({}) == settings.Settings()


def test_values_are_read_with_their_types() -> None:
    loaded = settings.load(
        {
            "GLM5_OPERATOR_QUEUE_WORKERS": "3",
            "GLM5_OPERATOR_QUEUE_SETTLE": " 0.5 ",
            "GLM5_OPERATOR_LEASE_ENABLED": "False",
            "GLM5_OPERATOR_SCOPE_NAMESPACES": "a, b,",
            "GLM5_OPERATOR_LOG_LEVEL": "debug",
            "PATH": "/bin",
        }
    )

    assert loaded.queue.workers == 3
    assert loaded.queue.settle == 0.5
    assert loaded.lease.enabled is False
    assert loaded.scope.namespaces == ("a", "b")
    assert loaded.log.level == "debug"


@pytest.mark.parametrize("name", ["NATIVE_IMAGE", "VLLM_IMAGE"])
@pytest.mark.parametrize(("image", "taken"), IMAGES.items())
def test_a_sites_image_is_taken_by_the_rule_of_the_crds(name: str, image: str, taken: bool) -> None:
    environment = {f"GLM5_OPERATOR_SITE_{name}": image}

    if taken or image.endswith("\n"):  # settings are stripped
        assert image.strip() in dataclasses.astuple(settings.load(environment).site)
    else:
        with pytest.raises(settings.SettingsError, match=f"GLM5_OPERATOR_SITE_{name}"):
            settings.load(environment)


def test_an_empty_image_means_that_services_name_theirs() -> None:
    assert settings.load({"GLM5_OPERATOR_SITE_NATIVE_IMAGE": ""}).site.native_image == ""


def test_flags_win_over_the_environment() -> None:
    loaded = settings.load({"GLM5_OPERATOR_QUEUE_WORKERS": "3"}, {"GLM5_OPERATOR_QUEUE_WORKERS": "5"})

    assert loaded.queue.workers == 5


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("QUEUE_WORKERS", "many", "whole number"),
        ("QUEUE_WORKERS", "0", "between 1 and 64"),
        ("QUEUE_WORKERS", "2.5", "whole number"),
        ("QUEUE_SETTLE", "nan", "between"),
        ("QUEUE_SETTLE", "x", "a number"),
        ("LEASE_ENABLED", "yes", "true or false"),
        ("LOG_LEVEL", "loud", "one of debug, info"),
        ("SCOPE_NAMESPACES", "good,Bad_One", "Bad_One"),
        ("QUEUE_WORKRES", "3", "no such setting"),
        ("LEASE_RENEW", "4", "at most a third"),
        ("WATCH_DEAD_AFTER", "50", "at least twice"),
        ("QUEUE_BACKOFF_MAX", "1", ""),
    ],
)
def test_a_wrong_value_is_a_fault_that_says_what_is_right(name: str, value: str, words: str) -> None:
    extra = {"GLM5_OPERATOR_QUEUE_BACKOFF_BASE": "30"} if name == "QUEUE_BACKOFF_MAX" else {}
    with pytest.raises(settings.SettingsError) as caught:
        settings.load({f"GLM5_OPERATOR_{name}": value, **extra})

    assert len(caught.value.faults) == 1
    assert words in caught.value.faults[0]


def test_all_faults_are_reported_together() -> None:
    wrong = {"GLM5_OPERATOR_QUEUE_WORKERS": "x", "GLM5_OPERATOR_ADMIN_PORT": "-1", "GLM5_OPERATOR_NONSENSE": "1"}

    with pytest.raises(settings.SettingsError) as caught:
        settings.load(wrong)

    assert len(caught.value.faults) == 3


def test_settings_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        settings.load({}).queue.workers = 1  # type: ignore[misc]


def test_the_settings_page_is_what_the_code_says() -> None:
    assert (ROOT / "docs/settings.md").read_text() == settings.docs_table() + agent_settings.docs_table()


def test_every_setting_states_meaning_and_reason() -> None:
    for group in dataclasses.fields(settings.Settings):
        kind = group.default_factory
        assert isinstance(kind, type)
        for item in dataclasses.fields(kind):
            assert item.metadata["meaning"].endswith("."), (group.name, item.name)
            assert item.metadata["why"].endswith("."), (group.name, item.name)
