"""A folder or archive with what was collected of nodes: written by `glm5 doctor --bundle`, read by `glm5 doctor --from`.

Reads also what people collected by hand: outputs of npu-smi and hccn_tool, logs, version files, `kubectl get … -o json|yaml`, reports of
`glm5-runtime doctor`, whatever the files are called. Nothing is unpacked to disk. Written without values that look like secrets.
"""

from __future__ import annotations

import io
import json
import re
import tarfile
import zlib
from collections import defaultdict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from glm5_operator.cli import documents, output
from glm5_operator.cli.errors import CliError, ExitCode
from glm5_operator.cli.gather import Collected, has_cards
from glm5_operator.health.doctor.evidence import Text
from glm5_operator.plan.product import node_facts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from glm5_operator.cli.cluster import Json

MOST_BYTES: Final = 32 * 2**20
"""Of a file that is read; of a longer one only the end is, which of a log is what counts."""
MOST_FILES: Final = 5000
MOST_TOGETHER: Final = 128 * 2**20
"""Characters of all files together; what comes after them is left out, and told."""
MOST_UNPACKED: Final = 4 * 2**30
"""Bytes of an archive's files, read or passed over: a small archive may hold terabytes of zeros."""
WAITING: Final = "waiting-pods"
"""Folder of pods that have no node yet."""
_OWN: Final = frozenset({"diagnosis.json", "bundle.json"})
"""Files of a bundle that say what was concluded; read again they would show troubles of their own."""
_HIDDEN: Final = "(hidden)"
_SECRET_NAME: Final = re.compile(r"key|token|secret|passw|credential", re.IGNORECASE)
_SECRET_TEXT: Final = re.compile(r"(?i)(bearer\s+|\b[\w-]*(?:api[-_]?key|token|secret|password)\b[\"']?\s*[=:]\s*[\"']?)[^\s\"',;]{6,}")
_SECRET_ARG: Final = re.compile(r"(?i)^(--?[\w-]*(?:api[-_]?key|token|secret|password)[\w-]*)(=.*)?$")


def write(path: str, collected: Iterable[Collected], diagnosis: Json, about: Json) -> None:
    """Write a .tar.gz that only its owner may read."""
    target = Path(path)
    try:
        with target.open("xb") as file:
            target.chmod(0o600)
            with tarfile.open(fileobj=file, mode="w:gz") as archive:
                _add(archive, "bundle.json", _json(about))
                _add(archive, "diagnosis.json", _json(diagnosis))
                for found in collected:
                    for name, content in _files(found):
                        _add(archive, f"{_folder(found.node)}/{name}", content)
    except FileExistsError as error:
        raise CliError(ExitCode.INPUT, "is there already", where=path, remedy="remove it, or name another file") from error
    except OSError as error:
        raise CliError(ExitCode.INPUT, (error.strerror or str(error)).lower(), where=path, remedy="check the path") from error


def _files(found: Collected) -> Iterator[tuple[str, str]]:
    for name, content in (("ascendnode", found.ascend_node), ("node", found.kube_node)):
        if content is not None:
            yield f"{name}.json", _json(_without_secrets(content))
    if found.pods:
        yield "pods.json", _json({"apiVersion": "v1", "kind": "PodList", "items": [_without_secrets(pod) for pod in found.pods]})
    if found.pools:
        yield "pools.json", _json({"kind": "NPUPoolList", "items": [_without_secrets(pool) for pool in found.pools]})
    if found.maps:
        yield (
            "mindcluster.json",
            _json({"apiVersion": "v1", "kind": "ConfigMapList", "items": [_without_secrets(one) for one in found.maps]}),
        )
    for text in found.texts:
        yield f"{re.sub(r'[^A-Za-z0-9.-]+', '_', text.where)}.txt", _SECRET_TEXT.sub(rf"\1{_HIDDEN}", text.text)


def _folder(node: str) -> str:
    """Of a node in the archive. Its name may come from somebody's file, and names a place outside of it."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", node).lstrip(".") or ("node" if node else WAITING)


def _json(content: Any) -> str:  # noqa: ANN401 - any JSON
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def _add(archive: tarfile.TarFile, name: str, content: str) -> None:
    raw = content.encode(errors="replace")
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(raw), 0o600
    archive.addfile(entry, io.BytesIO(raw))


def _without_secrets(value: Any) -> Any:  # noqa: ANN401 - any JSON
    """The same without values of variables and options whose names look secret, and without kubectl's copy of the whole object."""
    if isinstance(value, list):
        hidden, cleaned = False, []
        for item in value:
            option = _SECRET_ARG.match(item) if isinstance(item, str) else None
            if hidden or (option and option[2]):
                cleaned.append(f"{option[1]}={_HIDDEN}" if option else _HIDDEN)
            else:
                cleaned.append(_without_secrets(item))
            hidden = bool(option and not option[2])
        return cleaned
    if not isinstance(value, dict):
        return _SECRET_TEXT.sub(rf"\1{_HIDDEN}", value) if isinstance(value, str) else value
    kept = {name: _without_secrets(inner) for name, inner in value.items() if name != "kubectl.kubernetes.io/last-applied-configuration"}
    if isinstance(kept.get("name"), str) and "value" in kept and _SECRET_NAME.search(kept["name"]):
        kept["value"] = _HIDDEN
    return kept


def read(path: str) -> list[Collected]:
    """What a folder or archive holds; one entry for each node of a bundle, else one for all of it."""
    source = Path(path)
    try:
        files = _first(_members(source) if source.is_dir() else _archived(source))
    except (OSError, tarfile.TarError, EOFError, ValueError, ArithmeticError, zlib.error) as error:  # what tarfile lets through
        reason = getattr(error, "strerror", None) or str(error)
        raise CliError(ExitCode.INPUT, str(reason).lower(), where=path, remedy="give a folder, or a .tar or .tar.gz") from error
    if not files:
        raise CliError(ExitCode.INPUT, "has no files", where=path)
    by_node: dict[str, list[tuple[str, str]]] = defaultdict(list)
    nodes = {name.rpartition("/")[0] for name, _ in files if name.rpartition("/")[2] == "ascendnode.json"}
    for name, text in files:
        folder = next((node for node in nodes if name.startswith(f"{node}/")), "")
        waits = f"/{name}".find(f"/{WAITING}/") >= 0
        by_node[WAITING if waits and not folder else folder].append((name, text))
    return [
        _collected(entries) for _, entries in sorted(by_node.items()) if any(name.rpartition("/")[2] not in _OWN for name, _ in entries)
    ]


def _first(files: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """As many as are kept in memory."""
    kept, size = [], 0
    for name, text in files:
        size += len(text)
        if size > MOST_TOGETHER:
            output.note(f"{name} and what comes after it isn't read: more than {MOST_TOGETHER >> 20} MiB together")
            break
        kept.append((name, text))
    return kept


def _members(folder: Path) -> Iterator[tuple[str, str]]:
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    for path in files[:MOST_FILES]:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MOST_BYTES))
            yield from _readable(path.relative_to(folder).as_posix(), file.read(MOST_BYTES))


def _archived(path: Path) -> Iterator[tuple[str, str]]:
    with tarfile.open(path) as archive:
        unpacked = 0
        for count, member in enumerate(archive):
            unpacked += member.size
            if count >= MOST_FILES or unpacked > MOST_UNPACKED:
                output.note(f"{member.name} and what comes after it isn't read: more than {MOST_FILES} files or {MOST_UNPACKED >> 30} GiB")
                break
            file = archive.extractfile(member) if member.isfile() else None
            if file is not None:
                file.seek(max(0, member.size - MOST_BYTES))
                yield from _readable(member.name.removeprefix("./"), file.read(MOST_BYTES))


def _readable(name: str, raw: bytes) -> Iterator[tuple[str, str]]:
    if b"\0" not in raw[:4096]:  # a core dump or a database tells us nothing
        yield name.encode(errors="replace").decode(), raw.decode(errors="replace")


def _collected(files: list[tuple[str, str]]) -> Collected:
    found = Collected("")
    for name, text in files:
        if name.rpartition("/")[2] in _OWN:
            continue
        objects = _objects(name, text)
        if objects is None:
            found = replace(found, texts=(*found.texts, Text(name, text)))
        for item in objects or ():
            found = _with(found, item, name)
    node = found.ascend_node or found.kube_node
    return replace(found, node=str((node.get("metadata") or {}).get("name", ""))) if node is not None else found


def _with(found: Collected, item: Json, name: str) -> Collected:
    kind = item.get("kind")
    if kind == "AscendNode":
        return replace(found, ascend_node=item)
    if kind == "Node" and _is_node(item):
        return replace(found, kube_node=item)
    if kind == "NPUPool":
        return replace(found, pools=(*found.pools, item))
    if kind == "ConfigMap" and isinstance(item.get("data"), dict):
        return replace(found, maps=(*found.maps, item))
    if kind == "Pod":
        return replace(found, pods=(*found.pods, item)) if has_cards(item) else found
    if kind == "Event":
        return replace(found, texts=(*found.texts, Text(name, f"{item.get('reason', '')}: {item.get('message', item.get('note', ''))}")))
    if "npu_usable" in item and isinstance(item.get("lacking") or [], list):
        return replace(found, reports=(*found.reports, item))
    return replace(found, texts=(*found.texts, Text(name, json.dumps(item))))


def _is_node(item: Json) -> bool:
    """A file may say that it is one and have any shape."""
    try:
        node_facts(item)
    except (AttributeError, KeyError, TypeError, ValueError):
        return False
    return True


def _objects(name: str, text: str) -> list[Json] | None:
    """Objects of a JSON or YAML file, lists taken apart; None of everything else."""
    if not name.endswith((".json", ".yaml", ".yml")):
        return None
    if not name.endswith(".json") and len(text) > documents.MOST_BYTES:
        output.note(f"{name} is read as a text, not as objects: it is larger than {documents.MOST_BYTES >> 20} MiB; JSON may be")
        return None
    try:
        loaded = [json.loads(text)] if name.endswith(".json") else documents.load(text, name)
    except (ValueError, RecursionError, CliError):
        return None
    found: list[Json] = []
    for item in loaded:
        if not isinstance(item, dict):
            return None
        inner = item.get("items") if str(item.get("kind", "")).endswith("List") else None
        kind = str(item.get("kind", "")).removesuffix("List")
        parts = [item] if not isinstance(inner, list) else [{"kind": kind, **part} for part in inner if isinstance(part, dict)]
        if not all(isinstance(part.get("metadata", {}), dict) for part in parts):
            return None
        found += parts
    return found
