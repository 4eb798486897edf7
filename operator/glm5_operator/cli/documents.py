"""Reads YAML and JSON files as kubectl reads them, and turns them into our objects.

PyYAML alone reads `2e-4` as text, `1:30` as ninety and `2026-11-29` as a date; kubectl doesn't. A key that stands twice is a fault:
the last one would win silently. What can't be an object of ours is refused before it costs memory or time: the API server takes 3 MiB.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import yaml

from glm5_operator.api.common import ApiObject, InvalidObjectError
from glm5_operator.api.names import API_VERSION, FINETUNE_KIND, POOL_KIND, SERVICE_KIND
from glm5_operator.cli.errors import CliError, ExitCode, FaultsError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

    from glm5_operator.api.finetune import GLM5FinetuneJob
    from glm5_operator.api.pool import NPUPool
    from glm5_operator.api.service import GLM5Service

Document = dict[str, Any]
Object = TypeVar("Object", bound=ApiObject)

MOST_BYTES: Final = 3 * 2**20
"""Of a file; the API server refuses larger requests."""
MOST_NODES: Final = 200_000
"""Values of a document with every alias written out: a few nested aliases of aliases would fill the memory."""
INTEGER_BITS: Final = 64
"""Of the longest integer that the API server reads."""


_KEYS: Final = {f"tag:yaml.org,2002:{kind}" for kind in ("str", "bool", "int", "float", "null", "merge", "value")}
"""Kinds of keys that JSON can spell."""


class _Loader(yaml.SafeLoader):
    """YAML with the scalars and keys of kubectl's parser."""

    def get_data(self) -> object:
        """The next document, unless its aliases make it too large."""
        root = self.get_node()
        if root is None:
            return None
        _measure(root, {})
        return self.construct_document(root)

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """A value; what Python says against it gets the line."""
        try:
            return super().construct_object(node, deep)
        except (ValueError, TypeError, AttributeError, LookupError, ArithmeticError) as error:
            kind = node.tag.rpartition(":")[2]
            raise yaml.constructor.ConstructorError(None, None, f"no value of kind {kind}", node.start_mark) from error

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag not in _KEYS:
                raise yaml.constructor.ConstructorError(None, None, "a key must be text", key.start_mark)
            if key.value in seen and key.tag != "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} stands twice", key.start_mark)
            seen.add(key.value)
        return {_key(key): value for key, value in super().construct_mapping(node, deep).items()}

    def construct_bool(self, node: yaml.ScalarNode) -> bool:
        return self.construct_scalar(node).lower() in {"y", "yes", "true", "on"}

    def construct_int(self, node: yaml.ScalarNode) -> int:
        text = self.construct_scalar(node).replace("_", "").lower()
        sign, digits = (-1 if text.startswith("-") else 1), text.lstrip("+-")
        octal = digits.startswith("0") and not {"8", "9"} & set(digits)
        base = {"0x": 16, "0o": 8, "0b": 2}.get(digits[:2], 8 if octal else 10)
        number = sign * int(digits, base)  # int() takes the prefix of its base
        if number.bit_length() > INTEGER_BITS:
            raise ValueError("no integer of JSON")
        return number

    def construct_float(self, node: yaml.ScalarNode) -> float:
        return float(self.construct_scalar(node).replace("_", ""))


_SCALARS: Final = (
    ("bool", r"^(?:y|Y|yes|Yes|YES|true|True|TRUE|on|On|ON|n|N|no|No|NO|false|False|FALSE|off|Off|OFF)$", "yYtToOnNfF"),
    ("int", r"^[-+]?(?:[0-9][0-9_]*|0x_*[0-9a-fA-F][0-9a-fA-F_]*|0o_*[0-7][0-7_]*|0b_*[01][01_]*)$", "-+0123456789"),
    ("float", r"^[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$", "-+.0123456789"),
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("merge", r"^(?:<<)$", "<"),
)
_Loader.yaml_implicit_resolvers = {}
for _name, _pattern, _first in _SCALARS:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_name}", re.compile(_pattern), list(_first))
_Loader.add_constructor("tag:yaml.org,2002:bool", _Loader.construct_bool)
_Loader.add_constructor("tag:yaml.org,2002:int", _Loader.construct_int)
_Loader.add_constructor("tag:yaml.org,2002:float", _Loader.construct_float)


def _measure(node: yaml.Node, known: dict[int, int]) -> int:
    """Values of a node with its aliases written out; raises when there are too many, or one holds itself."""
    if id(node) in known:
        return known[id(node)]
    known[id(node)] = MOST_NODES  # until it is counted: who meets it now is inside it
    parts = [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    count = 1 if isinstance(node, yaml.ScalarNode) else 1 + sum(_measure(part, known) for part in parts)
    if count > MOST_NODES:
        raise yaml.constructor.ConstructorError(None, None, f"more than {MOST_NODES} values with its aliases", node.start_mark)
    known[id(node)] = count
    return count


def _key(key: Hashable) -> Hashable:
    """A key as JSON has it: `on: 1` is {"true": 1}, for kubectl as for us."""
    return key if isinstance(key, str) else json.dumps(key)


def load(text: str, where: str) -> list[Document]:
    """All documents of a YAML or JSON text; empty ones are left out."""
    try:
        documents = [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.YAMLError as error:
        raise CliError(ExitCode.INPUT, f"is no YAML: {_reason(error)}", where=where) from error
    except RecursionError as error:
        raise CliError(ExitCode.INPUT, "nests too deeply", where=where, remedy="close what is opened") from error
    for number, document in enumerate(documents, start=1):
        if not isinstance(document, dict):
            raise CliError(ExitCode.INPUT, f"document {number} is no object but {type(document).__name__}", where=where)
    return documents


def read(path: str) -> list[Document]:
    """All documents of a file; `-` is standard input."""
    try:
        text = _text(path)
    except OSError as error:
        raise CliError(ExitCode.INPUT, (error.strerror or str(error)).lower(), where=path, remedy="check the path") from error
    except UnicodeDecodeError as error:
        raise CliError(ExitCode.INPUT, f"is no UTF-8 text (byte {error.start})", where=path, remedy="save it as UTF-8") from error
    documents = load(text, path)
    if not documents:
        raise CliError(ExitCode.INPUT, "is empty", where=path)
    return documents


def _text(path: str) -> str:
    """A file's text, read no further than an object may be long."""
    if path == "-":
        text = sys.stdin.read(MOST_BYTES + 1)
        size = len(text)
    else:
        with Path(path).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        size = len(raw)
        text = "" if size > MOST_BYTES else raw.decode()
    if size > MOST_BYTES:
        raise CliError(ExitCode.INPUT, f"is larger than {MOST_BYTES >> 20} MiB", where=path, remedy="the API server takes no such object")
    return text


def objects(paths: Iterable[str]) -> tuple[list[GLM5Service], list[GLM5FinetuneJob], list[NPUPool]]:
    """The services, fine-tuning jobs and pools of all files; any other kind is a fault."""
    from glm5_operator.api.finetune import GLM5FinetuneJob  # half of this module's users need no models
    from glm5_operator.api.pool import NPUPool
    from glm5_operator.api.service import GLM5Service

    services: list[GLM5Service] = []
    jobs: list[GLM5FinetuneJob] = []
    pools: list[NPUPool] = []
    for path in paths:
        for document in read(path):
            kind = document.get("kind")
            if kind == SERVICE_KIND:
                services.append(parse(GLM5Service, document, path))
            elif kind == FINETUNE_KIND:
                jobs.append(parse(GLM5FinetuneJob, document, path))
            elif kind == POOL_KIND:
                pools.append(parse(NPUPool, document, path))
            else:
                raise CliError(
                    ExitCode.INPUT,
                    f"kind is {kind!r}",
                    where=path,
                    remedy=f"only {SERVICE_KIND}, {FINETUNE_KIND} and {POOL_KIND} of {API_VERSION} are planned",
                )
    return services, jobs, pools


def parse(model: type[Object], document: Document, where: str) -> Object:
    """One document as an object; all its faults are reported together, each with its field."""
    try:
        return model.parse(document)
    except InvalidObjectError as error:
        remedy = f"`kubectl explain {model.__name__.lower()}` lists the fields"
        faults = [CliError(ExitCode.INPUT, message, where=f"{where}: {path}", remedy=remedy) for path, message in error.faults]
        raise FaultsError(ExitCode.INPUT, faults) from error


def _reason(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    return f"{problem} in line {mark.line + 1}" if mark is not None else problem
