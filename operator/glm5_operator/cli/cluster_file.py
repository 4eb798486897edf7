"""cluster.yaml, what `glm5 deploy` reads: where the cluster is, which nodes form the pool, and which models the site has.

Decoding is strict and reports all faults together. What the file says about pool and models are the fields of NPUPool and GLM5Service.
"""

import re
from dataclasses import dataclass
from typing import Annotated, Final

from pydantic import ConfigDict, Field, JsonValue, ValidationError

from glm5_operator.api import names
from glm5_operator.api.common import InvalidObjectError, Model, Quantity, faults_of
from glm5_operator.api.pool import NPUPool
from glm5_operator.api.service import GLM5Service
from glm5_operator.cli import documents
from glm5_operator.cli.errors import CliError, ExitCode, FaultsError

EXAMPLE: Final = """\
# What `glm5 deploy --cluster-config cluster.yaml --model glm-5.1` needs to know about a site.
namespace: default              # of the services; it must exist
pool:                           # the nodes that serve; leave `spec` out when the NPUPool exists already
  name: inference
  spec:                         # see kubectl explain npupool.spec
    role: Inference
    nodeSelector: {accelerator-type: module-a3-16}
models:                         # by model name; everything else is the spec of a GLM5Service
  GLM-5.1:
    service: chat               # name of the GLM5Service; default: from the model's name, here glm-5-1
    weights: w8a8               # weights, source, servedName, memory: kubectl explain glm5.spec.model
    source: pvc://weights/GLM-5.1-w8a8
    servedName: glm-5.1         # default: the model's name
    spec: {replicas: 1}         # anything else of kubectl explain glm5.spec
  GLM-5:
    weights: w4a8
    source: hostpath:///data/weights/GLM-5-w4a8
  tiny-glm5:                    # a model without a recipe states its memory and cards
    weights: bf16
    source: pvc://weights/tiny-glm5
    memory: 2Gi
    spec: {parallelism: {tensor: 1}}
"""

_REMEDY: Final = "`glm5 deploy --example` prints a file to start from"
_Name = Annotated[str, Field(min_length=1, max_length=63)]


class PoolEntry(Model):
    """The pool that all models of the file use."""

    name: _Name
    """Name of the NPUPool."""
    spec: dict[str, JsonValue] | None = None
    """Its spec; without one the pool must exist already."""


class ModelEntry(Model):
    """One model that the site has weights of."""

    service: _Name | None = None
    """Name of the GLM5Service. Default: the model's name in lower case with dashes."""
    weights: str
    """Form of the weights, as spec.model.weights."""
    source: str
    """Where they are, as spec.model.source."""
    served_name: str | None = None
    """As spec.model.servedName."""
    memory: Quantity | None = None
    """As spec.model.memory."""
    spec: dict[str, JsonValue] = Field(default_factory=dict)
    """Anything else of a GLM5Service's spec."""


class ClusterFile(Model):
    """The whole file."""

    model_config = ConfigDict(title="cluster.yaml")

    namespace: _Name = "default"
    """Namespace of the services."""
    pool: PoolEntry
    """The nodes."""
    models: Annotated[dict[str, ModelEntry], Field(min_length=1)]
    """Models by name."""


@dataclass(frozen=True)
class Order:
    """What one deployment applies: the service, and the pool where the file describes it."""

    service: documents.Document
    pool: documents.Document | None
    pool_name: str

    @property
    def namespace(self) -> str:
        """Namespace of the service."""
        return str(self.service["metadata"]["namespace"])

    @property
    def service_name(self) -> str:
        """Name of the service."""
        return str(self.service["metadata"]["name"])

    @property
    def manifests(self) -> list[documents.Document]:
        """The objects in the order in which they are applied."""
        return [self.service] if self.pool is None else [self.pool, self.service]


def read_order(path: str, model: str) -> Order:
    """The file's order for one model; the model's name is found in any case of letters."""
    found = documents.read(path)
    if len(found) > 1:
        raise CliError(ExitCode.INPUT, f"has {len(found)} documents", where=path, remedy="a cluster file is one")
    try:
        file = ClusterFile.model_validate(found[0], by_alias=True, by_name=False)
    except ValidationError as error:
        faults = [CliError(ExitCode.INPUT, message, where=f"{path}: {place}", remedy=_REMEDY) for place, message in faults_of(error)]
        raise FaultsError(ExitCode.INPUT, faults) from error
    matching = [name for name in file.models if name.lower() == model.lower()]
    if not matching:
        raise CliError(
            ExitCode.INPUT, f"has no model {model!r}", where=f"{path}: models", remedy=f"add it, or name one of {', '.join(file.models)}"
        )
    return Order(_service(file, matching[0], path), _pool(file, path), file.pool.name)


def default_service_name(model: str) -> str:
    """A service's name after its model: GLM-5.1 becomes glm-5-1."""
    return names.fit(re.sub(r"[^a-z0-9]+", "-", model.lower()).strip("-"))


def _service(file: ClusterFile, model: str, where: str) -> documents.Document:
    entry = file.models[model]
    taken = {"model", "pool"} & set(entry.spec)
    if taken:
        place = f"{where}: models.{model}.spec.{min(taken)}"
        raise CliError(ExitCode.INPUT, "is set by the file itself", where=place, remedy="remove it")
    stated = {"name": model, "weights": entry.weights, "source": entry.source, "servedName": entry.served_name, "memory": entry.memory}
    service = {
        "apiVersion": names.API_VERSION,
        "kind": names.SERVICE_KIND,
        "metadata": {"name": entry.service or default_service_name(model), "namespace": file.namespace},
        "spec": {"model": {key: value for key, value in stated.items() if value is not None}, "pool": file.pool.name, **entry.spec},
    }
    _check(GLM5Service, service, f"{where}: models.{model}")
    return service


def _pool(file: ClusterFile, where: str) -> documents.Document | None:
    if file.pool.spec is None:
        return None
    metadata = {"name": file.pool.name}
    pool = {"apiVersion": names.API_VERSION, "kind": names.POOL_KIND, "metadata": metadata, "spec": file.pool.spec}
    _check(NPUPool, pool, f"{where}: pool")
    return pool


def _check(model: type[NPUPool] | type[GLM5Service], document: documents.Document, where: str) -> None:
    try:
        model.parse(document)
    except InvalidObjectError as error:
        remedy = f"`kubectl explain {model.__name__.lower()}` lists the fields"
        faults = [CliError(ExitCode.INPUT, message, where=f"{where}.{path}", remedy=remedy) for path, message in error.faults]
        raise FaultsError(ExitCode.INPUT, faults) from error
