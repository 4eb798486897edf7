"""How sick cards of a pool are treated: part of an NPUPool's spec."""

from datetime import timedelta
from typing import Annotated, Literal

from pydantic import Field

from .common import Duration, Model
from .rules import validations

Mode = Literal["Off", "DryRun", "Auto"]
ThermalAction = Literal["Alert", "Reset"]


class ThermalRule(Model):
    """A card that is hot and busy for long is treated as faulty."""

    temperature: Annotated[int, Field(ge=40, le=120)]
    """°C, above which it counts."""
    utilisation: Annotated[int, Field(ge=0, le=100)] = 0
    """Percent of AI cores in use, above which it counts; 0 counts always."""
    sustain: Annotated[Duration, Field(json_schema_extra=validations("thermal-sustain"))] = timedelta(minutes=5)
    """For how long both must hold."""
    action: ThermalAction = "Alert"
    """Alert: a condition and an event. Reset: the remedy of a fault that asks for a reset."""


class HealthPolicy(Model):
    """What is done about sick cards, and how much of it at most."""

    mode: Mode | None = None
    """Off: facts are shown, nothing is graded. DryRun: the status says what would be done. Auto: it is done. Default: DryRun."""
    resets: Annotated[int, Field(ge=0, le=24)] | None = None
    """Resets of a node in `window` at most; the next fault that asks for one ends in quarantine. Default: 2."""
    window: Duration | None = Field(default=None, json_schema_extra=validations("health-window"))
    """Time over which resets and faults are counted. Default: 24h."""
    nodes_in_remedy: Annotated[int, Field(ge=1, le=1024)] | None = None
    """Nodes of the pool out of service at once, at most; the others wait, quiesced. Default: 1."""
    debounce: Duration | None = Field(default=None, json_schema_extra=validations("health-debounce"))
    """How long health must be good again before a suspect card is believed well. Default: 60s."""
    verify: Duration | None = Field(default=None, json_schema_extra=validations("health-verify"))
    """How long health must be good after a reset before the node returns. Default: 60s."""
    compute_check: bool | None = None
    """Whether, after a reset and before the node returns, a pod of the operator multiplies matrices on its cards and compares them with
    the CPU's. Wrong numbers count as a fault that asks for a reset; a check that can't be run is told and holds nothing up. It needs the
    runtime's image (the operator's site.native_image) on the node. Default: false.
    """
    drain: Duration | None = Field(default=None, json_schema_extra=validations("health-drain"))
    """How long pods may take to end before somebody is asked; training gets half of it for a checkpoint, 30m at most. Default: 15m."""
    idle_memory: Annotated[int, Field(ge=0, le=65536)] | None = None
    """HBM in use, MiB, up to which a card without processes counts as idle. Default: 6144 (4.9 GiB is the most seen, on 950DT)."""
    thermal: Annotated[tuple[ThermalRule, ...], Field(strict=False, max_length=8)] | None = Field(
        default=None, json_schema_extra={"x-kubernetes-list-type": "atomic"}
    )
    """Rules for hot cards. Default: alert above 85 °C and 95 % for 5m; none on 310P, whose cards idle at 78 to 86 °C."""
