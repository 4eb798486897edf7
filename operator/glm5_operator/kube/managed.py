"""Does a live object already say what we want? Pure comparison, so that an apply can be skipped.

Called by `apply`. Three questions: are all desired values there, do we own them, and which did somebody else take?
A desired hash alone can't tell: a foreign JSON patch may remove a field and leave our annotation and our managedFields entry as they were.
"""

from __future__ import annotations

import re
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.api import names
from glm5_operator.kube.wire import decode

if TYPE_CHECKING:
    from collections.abc import Mapping

    from glm5_operator.kube.types import Resource

_IDENTITY: Final = frozenset({"apiVersion", "kind"})
_QUANTITY: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:[eE]([+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)")
_SCALE: Final[Mapping[str, Decimal]] = {
    "": Decimal(1), "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("0.001"), "k": Decimal(10**3), "M": Decimal(10**6),
    "G": Decimal(10**9), "T": Decimal(10**12), "P": Decimal(10**15), "E": Decimal(10**18),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40), "Pi": Decimal(2**50), "Ei": Decimal(2**60),
}  # fmt: skip
_QUANTITIES: Final = frozenset({"limits", "requests", "sizeLimit", "divisor", "overhead"})
"""Fields whose values are quantities, themselves or one level down: elsewhere `1k` and `1000` are two texts."""

_OMITTED_FALSE: Final = frozenset({"hostNetwork", "hostPID", "hostIPC", "readOnly", "stdin", "stdinOnce", "tty", "paused"})
_OMITTED_ZERO: Final = frozenset({"initialDelaySeconds", "minReadySeconds", "hostPort"})
_DEFAULTED: Final[Mapping[str, frozenset[object]]] = {
    "terminationMessagePath": frozenset({"/dev/termination-log"}), "terminationMessagePolicy": frozenset({"File"}),
    "imagePullPolicy": frozenset({"Always", "IfNotPresent"}),  # by the image's tag
    "dnsPolicy": frozenset({"ClusterFirst"}), "schedulerName": frozenset({"default-scheduler"}),
    "timeoutSeconds": frozenset({1}), "periodSeconds": frozenset({10}), "successThreshold": frozenset({1}),
    "failureThreshold": frozenset({3}), "scheme": frozenset({"HTTP"}), "path": frozenset({"/"}), "apiVersion": frozenset({"v1"}),
}  # fmt: skip
"""What the server makes of "" and 0 in fields where they are no value of their own."""

_KEPT_EMPTY: Final = frozenset({"storageClassName", "emptyDir", "labelSelector", "namespaceSelector"})
"""What the server drops when it is false, 0 or empty, because absent means the same there. Other numbers and flags are pointers in the
API's types: there `false` is kept, and absent may mean the opposite (automountServiceAccountToken, runAsNonRoot)."""


def holds(live: object, desired: object, name: str = "", *, quantity: bool = False) -> bool:
    """Everything desired is in `live` with our value; what the server or others added beside it doesn't matter.

    Lists of objects are maps by some key to the API server (containers by name, ports by number …). Which key doesn't matter here:
    each desired item must be held by some live item. Lists of plain values are atomic and must be equal. `name` is the field's;
    with `quantity` the value may be written in other units.
    """
    if live == desired:
        return True  # most of what is compared, and quickly
    if live is None and _is_omitted(name, desired):
        return True
    if desired in ("", 0) and isinstance(live, str | int) and live in _DEFAULTED.get(name, ()):
        return True
    quantity = quantity or name in _QUANTITIES
    if isinstance(desired, dict):
        return isinstance(live, dict) and all(
            holds(live.get(field), value, field, quantity=quantity and not isinstance(value, dict | list))
            for field, value in desired.items()
        )
    if isinstance(desired, list):
        if not desired:
            return not live
        if not isinstance(live, list):
            return False
        if all(isinstance(item, dict) for item in desired):
            return all(any(holds(candidate, item) for candidate in live) for item in desired)
        return False
    return desired is None or (quantity and _same_quantity(live, desired))


def _is_omitted(name: str, value: object) -> bool:
    """The server leaves this value out, so its absence is no drift."""
    if value is None:
        return True
    if value is False:
        return name in _OMITTED_FALSE
    if value in ("", [], {}):
        return name not in _KEPT_EMPTY
    return value == 0 and name in _OMITTED_ZERO


def ours(live: Resource, desired: Mapping[str, Any], subresource: str = "") -> bool:
    """Our Apply entry in managedFields covers every desired field.

    A value that is ours but no longer our field (somebody forced it over and set it back) must be applied again, or a later
    removal by its new owner would be theirs to make. Fields that we own together with somebody else, at the same value, are fine:
    an apply can't end that, so it would be repeated for ever.
    """
    for entry in live["metadata"].get("managedFields") or ():
        if (
            entry.get("manager") == names.FIELD_MANAGER
            and entry.get("operation") == "Apply"
            and (entry.get("subresource") or "") == subresource
        ):
            wanted = {name: value for name, value in desired.items() if name not in _IDENTITY}
            wanted["metadata"] = {name: value for name, value in desired["metadata"].items() if name not in {"name", "namespace", "uid"}}
            return _covers(entry.get("fieldsV1") or {}, wanted)
    return False


def is_orphan_of_ours(found: Resource, desired: Mapping[str, Any]) -> bool:
    """Made by this operator for this very owner, and nobody's now (say, left by `kubectl delete --cascade=orphan`)."""
    metadata = found["metadata"]
    applied = any(
        entry.get("manager") == names.FIELD_MANAGER and entry.get("operation") == "Apply" for entry in metadata.get("managedFields") or ()
    )
    have, want = metadata.get("labels") or {}, desired["metadata"].get("labels") or {}
    return applied and any(want.get(label) is not None and have.get(label) == want[label] for label in names.OWNER_LABELS)


def foreign_managers(live: Resource, desired: Mapping[str, Any]) -> tuple[str, ...]:
    """Managers other than us that own a desired field whose value isn't ours now: who we are about to take it back from."""
    found = set()
    for entry in live["metadata"].get("managedFields") or ():
        if entry.get("manager") != names.FIELD_MANAGER and _touches(entry.get("fieldsV1") or {}, desired, live):
            found.add(str(entry.get("manager")))
    return tuple(sorted(found))


def _covers(fields: Mapping[str, Any], desired: Mapping[str, Any]) -> bool:
    for name, value in desired.items():
        if value is None:
            continue
        owned = fields.get(f"f:{name}")
        if owned is None:
            if _is_omitted(name, value):
                continue
            return False
        if not _covers_value(owned, value):
            return False
    return True


def _covers_value(owned: Mapping[str, Any], value: object) -> bool:
    if not owned:
        return True  # a leaf, or owned as a whole
    if isinstance(value, dict):
        return _covers(owned, value)
    if isinstance(value, list):
        entries = _list_entries(owned)
        return all(
            any(_matches(key, item) and _covers_value(fields, item) for key, fields in entries) for item in value if isinstance(item, dict)
        )
    return True


def _touches(fields: Mapping[str, Any], desired: object, live: object, name: str = "", *, quantity: bool = False) -> bool:
    """Some field of `fields` is desired, and its live value isn't the desired one."""
    if holds(live, desired, name, quantity=quantity):
        return False
    if not fields or not isinstance(desired, dict | list):
        return True
    if isinstance(desired, dict):
        return any(
            f"f:{field}" in fields
            and _touches(
                fields[f"f:{field}"], value, live.get(field) if isinstance(live, dict) else None, field, quantity=name in _QUANTITIES
            )
            for field, value in desired.items()
        )
    candidates = live if isinstance(live, list) else []
    for key, owned in _list_entries(fields):
        for item in desired:
            if _matches(key, item):
                counterpart = next((candidate for candidate in candidates if _matches(key, candidate)), None)
                if _touches(owned, item, counterpart):
                    return True
    return False


def _list_entries(owned: Mapping[str, Any]) -> list[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """(key fields, owned fields) of each item of a map-like list: `k:{"name":"engine"}` → {...}."""
    return [(decode(name[2:].encode()), fields) for name, fields in owned.items() if name.startswith("k:")]


def _matches(key: Mapping[str, Any], item: object) -> bool:
    """The item is the one that the key means; a key field that the item leaves out is a server default (`protocol: TCP`)."""
    return isinstance(item, dict) and all(item.get(name, value) == value for name, value in key.items())


def _same_quantity(live: object, desired: object) -> bool:
    """`1024Mi` comes back as `1Gi`, `1e3` as `1k`, `0.5` as `500m`, and a number given for a quantity as a string."""
    left, right = _amount(live), _amount(desired)
    return left is not None and left == right


def _amount(value: object) -> Decimal | None:
    found = _QUANTITY.fullmatch(str(value)) if isinstance(value, str | int | float) and not isinstance(value, bool) else None
    if found is None:
        return None
    number, exponent, suffix = found.groups()
    return Decimal(number).scaleb(int(exponent)) if exponent else Decimal(number) * _SCALE[suffix or ""]
