"""One row a CEL rule of adapters in services: a document that the API server takes and one that it refuses because of this rule alone."""

from __future__ import annotations

from tests.api.crd.case import Case
from tests.api.crd.documents import REMOVED, TINY, Json, finetune, service

LISTED: Json = {"adapterStorage": "pvc://adapters", "adapters": [{"name": "support", "source": "job://tune"}]}


def _adapters(*sources: str, storage: str = "pvc://adapters", **fields: object) -> Json:
    listed = [{"name": f"a{number}", "source": source} for number, source in enumerate(sources)]
    return service(TINY, {"adapterStorage": storage, "adapters": listed, **fields})


def _storage(storage: str) -> Json:
    return service(TINY, {"adapterStorage": storage})


def _deploy(**fields: object) -> Json:
    return finetune({"deploy": {"service": "chat", "adapter": "support", **fields}})


def _under_way(document: Json) -> Json:
    deployment = {"phase": "Waiting", "since": "2026-01-01T00:00:00Z", "service": "chat", "adapter": "support", "share": 0}
    return {**document, "status": {"startTime": "2026-01-01T00:00:00Z", "deployment": deployment}}


DEPLOY_CASES = [
    Case(
        "adapters-native",
        service({"engine": {"name": "native"}}, {"adapterStorage": "pvc://adapters"}),
        service({"adapterStorage": "pvc://adapters"}),
        "engine.name to native",
    ),
    Case("adapters-storage", service(TINY, LISTED), service(TINY, LISTED, {"adapterStorage": REMOVED}), "need adapterStorage"),
    Case(
        "adapters-within",
        _adapters("pvc://adapters/a/b", storage="pvc://adapters/a"),
        _adapters("pvc://adapters/ab", storage="pvc://adapters/a"),
        "within adapterStorage",
    ),
    Case(
        "adapters-names",
        service(TINY, LISTED, {"model": {"servedName": "support-1"}}),
        service(TINY, LISTED, {"model": {"servedName": "support"}}),
        "choose another name",
    ),
    Case("adapters-count", _adapters(*["job://a"] * 4), _adapters(*["job://a"] * 5), "raise it"),
    Case(
        "adapter-name",
        _deploy(adapter="Support_v1.2-x"),
        _deploy(adapter="support/v1"),
        "letters, digits, dots, dashes and underscores",
    ),
    Case("adapter-scheme", _adapters("job://tune"), _adapters("s3://bucket/a"), "must start with job://"),
    Case("adapter-source", _adapters("pvc://adapters/a"), _adapters("job://Tune"), "job://NAME"),
    Case("adapter-path", _adapters("pvc://adapters/a..b"), _adapters("pvc://adapters/../b"), "of an adapter's source"),
    Case("adapter-storage", _storage("pvc://my.adapters/a/b"), _storage("pvc://adapters/"), "without a slash at the end"),
    Case("adapter-storage-path", _storage("pvc://adapters/..a"), _storage("pvc://adapters/./a"), "the path of adapterStorage"),
    Case("canary-share", _deploy(canary={"share": 1}), _deploy(canary={"share": 0}), "leave canary out"),
    Case("canary-time", _deploy(canary={"time": "168h"}), _deploy(canary={"time": "500ms"}), "between 1s and 168h"),
    Case("deploy-service", _deploy(service="chat-1"), _deploy(service="Chat"), "name of a GLM5Service"),
    Case(
        "deploy-adapter",
        _deploy(evaluate={"source": "pvc://data/held.jsonl", "tolerance": 0.01, "leastExactMatch": 0.5}),
        finetune({"merge": True, "deploy": {"service": "chat", "adapter": "support"}}),
        "without merge",
    ),
    Case(
        "deploy-fixed",
        before=_under_way(_deploy()),
        accepted=finetune(),
        rejected=_deploy(canary={"share": 0.5}),
        says="takes the adapter out",
    ),
]
