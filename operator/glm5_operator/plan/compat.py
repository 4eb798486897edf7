"""Whether driver, CANN, torch_npu, torch, Python, MindCluster and vllm-ascend fit together, by a table (`compat.yaml`).

Called by planning, which keeps what can't work from starting, by doctor and by `glm5 compat`. Knows no versions itself. What no row of the
table speaks of, and what nobody could read, is unknown: that warns and never blocks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from functools import cache, lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Final

import yaml
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

from glm5_operator.plan.facts import Product

if TYPE_CHECKING:
    from collections.abc import Iterable

_NUMBERS: Final = re.compile(r"\d+")
_CHIPS: Final = {"a2": Product.A2, "a3": Product.A3, "910b": Product.A2, "310p": Product.ATLAS_310P, "950dt": Product.A5, "950": Product.A5}


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", alias_generator=to_camel)


_Range = Annotated[tuple[str, str], Field(strict=False)]


class _Drivers(_Data):
    source: str
    cann: dict[str, tuple[str, ...]]
    aliases: dict[str, str]


class _TorchNpu(_Data):
    source: str
    cann: dict[str, tuple[str, ...]]


class _Python(_Data):
    source: str
    torch: dict[str, _Range]


class _MindClusterRelease(_Data):
    cann: tuple[str, ...]
    driver: tuple[str, ...] = ()


class _MindCluster(_Data):
    source: str
    releases: dict[str, _MindClusterRelease]


class Set(_Data):
    """Versions that belong together; empty where the table doesn't say."""

    cann: str
    torch: str
    torch_npu: str = ""
    vllm: str = ""
    python: _Range | None = None


class _VllmAscend(_Data):
    source: str
    releases: dict[str, Set]


class Table(_Data):
    """The whole of compat.yaml."""

    drivers: _Drivers
    torch_npu: _TorchNpu
    python: _Python
    mindcluster: _MindCluster
    vllm_ascend: _VllmAscend
    runtime: Set


@dataclass(frozen=True, slots=True)
class Versions:
    """What was found; empty for what wasn't.

    Attributes:
        driver: HDK, for example 25.2.0.
        cann: for example 9.1.0 or 8.3.RC1.
        torch_npu: for example 2.10.0.post4.
        torch: for example 2.10.0.
        python: for example 3.11.9.
        mindcluster: for example 26.1.0.
        vllm_ascend: for example 0.23.0.
        chip: product that an image is built for; None when nothing says.
    """

    driver: str = ""
    cann: str = ""
    torch_npu: str = ""
    torch: str = ""
    python: str = ""
    mindcluster: str = ""
    vllm_ascend: str = ""
    chip: Product | None = None

    def over(self, other: Versions) -> Versions:
        """These, and what they leave out from `other`."""
        stated = {field.name: value for field in fields(self) if (value := getattr(self, field.name))}
        return replace(other, **stated)


class Verdict(StrEnum):
    """What the table says of a pair."""

    FITS = "Fits"
    MISMATCH = "Mismatch"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One pair of the stack.

    Attributes:
        found: the part that would have to change, as `driver 24.1.rc1`.
        beside: what it has to fit, as `CANN 9.1.0`.
        verdict: what the table says.
        need: which versions fit; for Unknown, why nothing can be said.
        source: where the table has it from.
    """

    found: str
    beside: str
    verdict: Verdict
    need: str
    source: str

    @property
    def sentence(self) -> str:
        """In one line."""
        if self.verdict is Verdict.MISMATCH:
            return f"found {self.found}, need {self.need} for {self.beside}"
        return f"{self.found} fits {self.beside}" if self.verdict is Verdict.FITS else f"{self.found} beside {self.beside}: {self.need}"


@cache
def table() -> Table:
    """The table, read once."""
    text = (resources.files("glm5_operator.plan") / "compat.yaml").read_text(encoding="utf-8")
    return Table.model_validate(yaml.load(text, Loader=yaml.BaseLoader))  # noqa: S506 - BaseLoader makes text only: 2.10 is no number


def check(found: Versions) -> tuple[Check, ...]:
    """All pairs of which both halves were found."""
    checks = (_driver(found), _torch_npu(found), _torch(found), _python(found), *_mindcluster(found), *_vllm_ascend(found))
    return tuple(one for one in checks if one is not None)


def mismatches(found: Versions) -> tuple[Check, ...]:
    """The pairs that can't work."""
    return tuple(one for one in check(found) if one.verdict is Verdict.MISMATCH)


@lru_cache(maxsize=256)  # every plan of every service asks
def of_image(image: str, engine: str = "") -> Versions:
    """What an image's reference tells of its content: the engine's known sets, and words of its tag as vendors write them.

    Args:
        image: the reference.
        engine: `native` or `vllm`, where an engine of ours runs it; a tag of the native engine's image doesn't name its stack, and the
            runtime is made for one set only (docs/decisions/0007).
    """
    name, _, tag = image.partition("@")[0].rpartition(":")
    chip = next((product for word, product in _CHIPS.items() if re.search(rf"(?:^|[-_.]){word}(?:$|[-_.])", tag.lower())), None)
    stated = Versions(
        cann=_word(tag, r"cann[-_]?(\d+\.\d+(?:\.\w+)?)") or (_word(tag, r"^(\d+\.\d+\.\w+)-") if name.endswith("/cann") else ""),
        torch_npu=_word(tag, r"torch_npu[-_]?(\d+\.\d+\.\d+(?:\.post\d+)?)"),
        python=_word(tag, r"py(?:thon)?[-_]?(3\.\d+)") or _word(tag, r"py3(\d\d)(?!\d)", "3."),
        chip=chip,
    )
    release = _word(tag, r"^v?(\d+\.\d+\.\d+(?:rc\d+)?)") if name.endswith("vllm-ascend") else ""
    if release:
        known = table().vllm_ascend.releases.get(release)
        return stated.over(replace(_stack(known), vllm_ascend=release))
    is_ours = engine == "native" or name.rpartition("/")[2] == "glm5-runtime"
    return stated.over(_stack(table().runtime)) if is_ours else stated


def unfit(image: Versions, driver: str, product: Product | None = None) -> Check | None:
    """Why an image can't run on a node with this driver and these cards; None when it can, or when nobody knows."""
    if image.chip and product and image.chip is not product:
        return Check(f"an image for {image.chip}", f"{product} cards", Verdict.MISMATCH, f"one for {product}", "the image's tag")
    fault = _driver(replace(image, driver=driver))
    return fault if fault is not None and fault.verdict is Verdict.MISMATCH else None


def _stack(known: Set | None) -> Versions:
    return Versions() if known is None else Versions(cann=known.cann, torch=known.torch, torch_npu=known.torch_npu)


def _driver(found: Versions) -> Check | None:
    if not (found.driver and found.cann):
        return None
    tested = row_of(table().drivers.cann, found.cann)
    names = (f"driver {found.driver}", f"CANN {found.cann}")
    source = table().drivers.source
    family = ".".join(map(str, _numbers(found.driver)[:2]))
    family = table().drivers.aliases.get(family, family)
    if not tested or not family:
        why = "the table has no row of that CANN" if family else "no version can be read from that"
        return Check(*names, Verdict.UNKNOWN, why, source)
    if family in tested:
        return Check(*names, Verdict.FITS, _listed(tested), source)
    if _numbers(family) < _numbers(tested[0]):
        return Check(*names, Verdict.MISMATCH, f"{tested[0]} or later", source)
    return Check(*names, Verdict.UNKNOWN, f"the table has {_listed(tested)}", source)


def _torch_npu(found: Versions) -> Check | None:
    if not (found.torch_npu and found.cann):
        return None
    source, built = table().torch_npu.source, row_of(table().torch_npu.cann, found.cann)
    names = (f"torch_npu {found.torch_npu}", f"CANN {found.cann}")
    wanted = _plain(found.torch_npu)
    if wanted in built:
        return Check(*names, Verdict.FITS, _listed(built), source)
    elsewhere = any(wanted in row for row in table().torch_npu.cann.values())
    exact = any(name.lower() == found.cann.lower() for name in table().torch_npu.cann)  # else the row is of another release of its family
    if not built or not elsewhere or not exact:
        return Check(*names, Verdict.UNKNOWN, f"the table has {_listed(built)}" if built else "the table has no row of that CANN", source)
    return Check(*names, Verdict.MISMATCH, _listed(built), source)


def _torch(found: Versions) -> Check | None:
    if not (found.torch and found.torch_npu):
        return None
    base, have = _numbers(found.torch_npu)[:3], _numbers(_plain(found.torch))[:3]
    names = (f"torch_npu {found.torch_npu}", f"torch {found.torch}")
    if len(base) < 3 or len(have) < 3:
        return Check(*names, Verdict.UNKNOWN, "no version can be read from that", table().torch_npu.source)
    need = ".".join(map(str, have))
    return Check(*names, Verdict.FITS if base == have else Verdict.MISMATCH, need, table().torch_npu.source)


def _python(found: Versions) -> Check | None:
    if not (found.python and found.torch):
        return None
    names, source = (f"Python {found.python}", f"torch {found.torch}"), table().python.source
    bounds = table().python.torch.get(".".join(map(str, _numbers(found.torch)[:2])))
    if bounds is None or len(_numbers(found.python)) < 2:
        return Check(*names, Verdict.UNKNOWN, "the table has no row of that torch" if bounds is None else "no version can be read", source)
    return Check(*names, _within(found.python, bounds), f"{bounds[0]} to {bounds[1]}", source)


def _mindcluster(found: Versions) -> Iterable[Check]:
    if not found.mindcluster:
        return
    release = table().mindcluster.releases.get(".".join(map(str, _numbers(found.mindcluster)[:2])))
    name, source = f"MindCluster {found.mindcluster}", table().mindcluster.source
    for what, version, known in (
        ("CANN", found.cann, release.cann if release else ()),
        ("driver", found.driver, release.driver if release else ()),
    ):
        if version and known:
            family = ".".join(map(str, _numbers(version)[:2]))
            # MindCluster reports health and gives out cards; beside another CANN it still does, so nothing here keeps work from starting.
            fits = table().drivers.aliases.get(family, family) in known
            verdict = Verdict.FITS if fits else Verdict.UNKNOWN
            yield Check(name, f"{what} {version}", verdict, f"it was tested with {_listed(known)}", source)
        elif version and release is None:
            yield Check(name, f"{what} {version}", Verdict.UNKNOWN, "the table has no row of that MindCluster", source)


def _vllm_ascend(found: Versions) -> Iterable[Check]:
    if not found.vllm_ascend:
        return
    name, source = f"vllm-ascend {found.vllm_ascend}", table().vllm_ascend.source
    known = table().vllm_ascend.releases.get(found.vllm_ascend.removeprefix("v"))
    if known is None:
        yield Check(name, "the rest", Verdict.UNKNOWN, "the table has no row of that vllm-ascend", source)
        return
    for what, have, need in (
        ("CANN", found.cann, known.cann),
        ("torch", found.torch, known.torch),
        ("torch_npu", found.torch_npu, known.torch_npu),
    ):
        if have and need:
            verdict = Verdict.FITS if _plain(have) == need else Verdict.MISMATCH
            yield Check(f"{what} {have}", name, verdict, need, source)
    if found.python and known.python:
        yield Check(f"Python {found.python}", name, _within(found.python, known.python), " to ".join(known.python), source)


def _within(version: str, bounds: tuple[str, str]) -> Verdict:
    return Verdict.FITS if _numbers(bounds[0]) <= _numbers(version)[:2] <= _numbers(bounds[1]) else Verdict.MISMATCH


def row_of(rows: dict[str, tuple[str, ...]], version: str) -> tuple[str, ...]:
    """The row of a release, else the one of its family: a patch or release candidate behaves as its neighbours."""
    exact = next((row for name, row in rows.items() if name.lower() == version.lower()), None)
    if exact is not None:
        return exact
    family = _numbers(version)[:2]
    return next((row for name, row in rows.items() if len(family) == 2 and _numbers(name)[:2] == family), ())


def _numbers(version: str) -> tuple[int, ...]:
    """Leading numbers: 24.1.rc1 is (24, 1)."""
    found: list[int] = []
    for part in version.strip().lower().removeprefix("v").split("."):
        if not part.isascii() or not part.isdigit() or len(part) > 6:
            digits = _NUMBERS.match(part)
            if digits and len(digits[0]) <= 6 and digits[0].isascii():
                found.append(int(digits[0]))
            break
        found.append(int(part))
    return tuple(found)


def _plain(version: str) -> str:
    """Without the part of a local build: 2.12.0+cpu is 2.12.0."""
    return version.strip().partition("+")[0]


def _listed(versions: Iterable[str]) -> str:
    return ", ".join(versions)


def _word(tag: str, pattern: str, prefix: str = "") -> str:
    found = re.search(pattern, tag, re.IGNORECASE)
    return f"{prefix}{found[1]}" if found else ""
