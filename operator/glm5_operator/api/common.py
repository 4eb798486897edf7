"""What all API objects share: the model base, metadata, conditions, durations and quantities.

Used by the object models and by everyone who reads them. Does no I/O and reads no clock.
"""

import re
from collections.abc import Mapping
from datetime import timedelta
from decimal import ROUND_CEILING, Decimal
from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, PlainSerializer, ValidationError, WithJsonSchema
from pydantic.alias_generators import to_camel

DURATION_PATTERN: Final = r"^([0-9]{1,9}h)?([0-9]{1,9}m)?([0-9]{1,9}s)?([0-9]{1,9}ms)?$"
QUANTITY_PATTERN: Final = r"^([0-9]{1,15}(?:[.][0-9]{1,9})?)(k|M|G|T|P|Ki|Mi|Gi|Ti|Pi)?$"
_UNITS: Final = {
    "": 1,
    **{unit: 1000**power for power, unit in enumerate(("k", "M", "G", "T", "P"), start=1)},
    **{unit: 1024**power for power, unit in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi"), start=1)},
}


class InvalidObjectError(ValueError):
    """A document is not a valid object of its kind; `faults` names each field and what is wrong with it."""

    def __init__(self, kind: str, faults: tuple[tuple[str, str], ...]) -> None:
        super().__init__("; ".join(f"{path}: {message}" for path, message in faults))
        self.kind = kind
        self.faults = faults


def parse_duration(text: str) -> timedelta:
    """Read `1h30m`, `300s` or `500ms`: whole numbers with units, largest first."""
    match = re.fullmatch(DURATION_PATTERN, text)
    if match is None or not text:
        raise ValueError("must be whole numbers with a unit of h, m, s or ms, largest first, for example 300s or 1h30m")
    hours, minutes, seconds, millis = (int((part or "0").rstrip("hms")) for part in match.groups())
    return timedelta(hours=hours, minutes=minutes, seconds=seconds, milliseconds=millis)


def format_duration(value: timedelta) -> str:
    """Write a duration in seconds, and milliseconds where it isn't whole."""
    seconds, millis = divmod(value // timedelta(milliseconds=1), 1000)
    return f"{seconds}s{millis}ms" if millis else f"{seconds}s"


def _duration(value: object) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if isinstance(value, str):
        return parse_duration(value)
    raise ValueError("must be a string with a unit, for example 300s")


def quantity_bytes(text: str) -> int:
    """Value of a Kubernetes quantity such as `64Gi`, rounded up to a whole number."""
    match = re.fullmatch(QUANTITY_PATTERN, text)
    if match is None:
        raise ValueError("must be a quantity such as 64Gi or 500M")
    number, unit = match.groups()
    return int((Decimal(number) * _UNITS[unit or ""]).to_integral_value(ROUND_CEILING))


def _quantity(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        value = str(value)
    if not isinstance(value, str):
        raise ValueError("must be a quantity such as 64Gi")
    quantity_bytes(value)
    return value


Duration = Annotated[
    timedelta,
    BeforeValidator(_duration),
    PlainSerializer(format_duration, return_type=str),
    WithJsonSchema({"type": "string", "maxLength": 40}),  # form and bounds are a rule of each field: a pattern's message helps nobody
]
"""A length of time; in JSON a string with units."""

Quantity = Annotated[
    str,
    BeforeValidator(_quantity),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "anyOf": [{"type": "integer"}, {"type": "string"}], "maxLength": 32}),
]
"""A Kubernetes quantity; `quantity_bytes` gives its value."""


class Model(BaseModel):
    """Base of all API models: immutable, camelCase in JSON, unknown fields refused, no silent conversion of types."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        populate_by_name=True,
        use_attribute_docstrings=True,
    )


class StatusModel(Model):
    """Base of what the operator writes: a field of a newer version is passed over, so that an old status never hides a good spec."""

    model_config = ConfigDict(extra="ignore")


class ObjectMeta(BaseModel):
    """The part of an object's metadata that the operator reads; the rest is the API server's business."""

    model_config = ConfigDict(frozen=True, extra="ignore", alias_generator=to_camel, populate_by_name=True)

    name: str
    namespace: str | None = None
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    labels: Mapping[str, str] = Field(default_factory=dict)
    annotations: Mapping[str, str] = Field(default_factory=dict)
    creation_timestamp: str = ""
    deletion_timestamp: str | None = None


class Condition(StatusModel):
    """One observed fact about the object, in the form that kubectl wait, Flux and Argo CD read."""

    type: Annotated[str, Field(min_length=1, max_length=63)]
    """What is stated: Ready, Reconciling, Stalled, or one that explains them."""
    status: Literal["True", "False", "Unknown"]
    """Whether it holds."""
    observed_generation: Annotated[int, Field(ge=0)] = 0
    """The metadata.generation this was computed from; older than the object's means: not yet looked at."""
    last_transition_time: Annotated[str, Field(max_length=40, json_schema_extra={"format": "date-time"})]
    """When `status` last changed."""
    reason: Annotated[str, Field(min_length=1, max_length=128)]
    """Why, in one CamelCase word that scripts can rely on."""
    message: Annotated[str, Field(max_length=32768)] = ""
    """Why, in words, with what to change."""


class ApiObject(Model):
    """Base of the kinds: reads what the API server sends."""

    metadata: ObjectMeta

    @classmethod
    def parse(cls, resource: Mapping[str, Any]) -> Self:
        """Read a plain JSON object; raises InvalidObjectError with every fault and its path.

        Names are taken as the API server takes them: `maxTokens`, never `max_tokens`.
        """
        try:
            return cls.model_validate(resource, by_alias=True, by_name=False)
        except ValidationError as error:
            raise InvalidObjectError(cls.__name__, faults_of(error)) from error

    def manifest(self) -> dict[str, JsonValue]:
        """The object as plain JSON, only with what was set."""
        return self.model_dump(mode="json", by_alias=True, exclude_unset=True)


def faults_of(error: ValidationError) -> tuple[tuple[str, str], ...]:
    """Each fault as (path, what is wrong), in words that follow a path."""
    return tuple(
        _fault(details["type"], details["loc"], details["msg"]) for details in error.errors(include_url=False, include_input=False)
    )


def _fault(kind: str, location: tuple[int | str, ...], message: str) -> tuple[str, str]:
    if kind == "recursion_depth_exceeded":  # pydantic ends at 255 levels, and names them all
        return _path(location[:2]), "is nested too deeply to be read; take out what no pod has"
    return _path(location), _sentence(message)


def _path(location: tuple[int | str, ...]) -> str:
    path = ""
    for part in location:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".") or "object"


def _sentence(message: str) -> str:
    text = message.removeprefix("Value error, ").removeprefix("Input ")
    return "is not a field" if text == "Extra inputs are not permitted" else text[:1].lower() + text[1:]
