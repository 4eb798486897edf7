"""Counts requests of one user from an API server's audit log. Used by the control-plane benchmark."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})

POLICY = """\
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- level: Metadata
  users: ["%s"]
- level: None
"""


class AuditLog:
    """Reads what came since the last look."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = path.stat().st_size if path.exists() else 0

    def since_last(self) -> Counter[tuple[str, str]]:
        """Requests by (verb, resource[/subresource]) since the last call; watches excluded."""
        found: Counter[tuple[str, str]] = Counter()
        if not self._path.exists():
            return found
        with self._path.open("rb") as log:
            log.seek(self._offset)
            data = log.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._offset += len(whole)
        for line in whole.splitlines():
            event = json.loads(line)
            if event["stage"] != "ResponseComplete" or event["verb"] == "watch":
                continue
            target = event.get("objectRef", {})
            name = target.get("resource", "-") + (f"/{target['subresource']}" if "subresource" in target else "")
            found[event["verb"], name] += 1
        return found


def writes(requests: Counter[tuple[str, str]]) -> int:
    """Writes among them, lease renewals aside."""
    return sum(count for (verb, resource), count in requests.items() if verb in WRITES and resource != "leases")
