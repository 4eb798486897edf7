"""Every name the operator puts on objects in a cluster: group, kinds, labels, annotations, children.

Read by all layers above `api`. Must not import anything of this package: names depend on nothing.
"""

from __future__ import annotations

import hashlib
from typing import Final

GROUP: Final = "glm5.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = "glm5.dev/v1alpha1"  # written out: a Literal type needs it

SERVICE_KIND: Final = "GLM5Service"
SERVICE_PLURAL: Final = "glm5services"
FINETUNE_KIND: Final = "GLM5FinetuneJob"
FINETUNE_PLURAL: Final = "glm5finetunejobs"
POOL_KIND: Final = "NPUPool"
POOL_PLURAL: Final = "npupools"
NODE_KIND: Final = "AscendNode"
NODE_PLURAL: Final = "ascendnodes"

FIELD_MANAGER: Final = "glm5-operator"
AGENT_FIELD_MANAGER: Final = "glm5-agent"
LEASE_NAME: Final = "glm5-operator"

# On nodes.
POOL_LABEL: Final = f"{GROUP}/pool"
ROLE_TAINT: Final = f"{GROUP}/role"
TAINT_EFFECT: Final = "NoSchedule"
MOVE_ANNOTATION: Final = f"{GROUP}/move-to"
"""On a node: the pool that it is to belong to, whatever selects it. Until it has been drained and verified it stays where it is."""
LENT_ANNOTATION: Final = f"{GROUP}/lent-by"
"""On a node that a pool lends by its spec.lend: that pool and since when, as `POOL TIME`."""
MOVE_TAINT: Final = f"{GROUP}/moving"
"""On a node that is on its way to another pool; its value is that pool."""
HEALTH_TAINT: Final = f"{GROUP}/health"
"""On a node whose cards are in remedy or quarantined; its value is `remedy` or `quarantined`."""
RELEASE_ANNOTATION: Final = f"{GROUP}/release"
"""On an AscendNode: a person takes it out of quarantine. Its value names who and why; the operator takes it off when it has obeyed."""

COMPUTE_CHECK_LABEL: Final = f"{GROUP}/compute-check"
"""On the pod that checks the cards of a node by computing, before the node returns from a remedy: the node, hashed where it is long."""

REAL_ANNOTATION: Final = "huawei.com/AscendReal"
"""On a pod: the devices that Ascend's plugin mounted."""

# On children of a service or a fine-tuning job, and on their pods.
SERVICE_LABEL: Final = f"{GROUP}/service"
FINETUNE_LABEL: Final = f"{GROUP}/finetune"
OWNER_LABELS: Final = (SERVICE_LABEL, FINETUNE_LABEL)
"""Each child carries one of them."""
ATTEMPT_LABEL: Final = f"{GROUP}/attempt"
CHECK_LABEL: Final = f"{GROUP}/check"
"""On the Job that checks a run before its first attempt, and on its pods: what is checked, as a hash."""
SERVING_LABEL: Final = f"{GROUP}/serving"
"""Only on pods and in the client Service's selector: taking it off takes a pod out of traffic and leaves it running."""
SERVING_VALUE: Final = "true"
QUIESCED_VALUE: Final = "remedy"
"""Of the serving label, where the remedy of a node took the pod out of traffic: who takes the label off by hand isn't overruled."""
REVISION_LABEL: Final = f"{GROUP}/revision"
DESIRED_HASH_ANNOTATION: Final = f"{GROUP}/desired-hash"
ADAPTERS_ANNOTATION: Final = f"{GROUP}/adapters"
"""On pods of a service: hash of the adapters' file. A change of any annotation makes kubelet look at the pod's ConfigMaps at once."""

APP_NAME_LABEL: Final = "app.kubernetes.io/name"
APP_INSTANCE_LABEL: Final = "app.kubernetes.io/instance"
APP_COMPONENT_LABEL: Final = "app.kubernetes.io/component"
APP_PART_OF_LABEL: Final = "app.kubernetes.io/part-of"
APP_MANAGED_BY_LABEL: Final = "app.kubernetes.io/managed-by"
APP_NAME: Final = "glm5-service"
COMPONENT_INFERENCE: Final = "inference"
FINETUNE_APP_NAME: Final = "glm5-finetune"
COMPONENT_TRAINING: Final = "training"
COMPONENT_EVALUATION: Final = "evaluation"
COMPONENT_CHECK: Final = "check"
COMPONENT_COMPUTE_CHECK: Final = "compute-check"
COMPONENT_NODE_AGENT: Final = "node-agent"
"""Of the pods of the agent's DaemonSet: whether the one of a node is ready says whether its facts can be believed."""
PART_OF: Final = "glm5"
MANAGED_BY: Final = "glm5-operator"

# Of gang schedulers.
KUEUE_QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
VOLCANO_QUEUE_LABEL: Final = "scheduling.volcano.sh/queue-name"
POD_GROUP_KIND: Final = "PodGroup"
POD_GROUP_ANNOTATION: Final = "scheduling.k8s.io/group-name"

# In the pod.
ENGINE_CONTAINER: Final = "engine"
ENGINE_PORT: Final = 8000
ENGINE_PORT_NAME: Final = "http"
MODELS_DIR: Final = "/models"
TRAINER_CONTAINER: Final = "trainer"
DATA_DIR: Final = "/data"
CHECKPOINT_DIR: Final = "/checkpoints"
OUTPUT_DIR: Final = "/output"
CONFIG_DIR: Final = "/etc/glm5"
ADAPTERS_DIR: Final = "/adapters"
ADAPTERS_FILE_DIR: Final = "/etc/glm5/adapters"
ADAPTERS_FILE: Final = "adapters.json"
CONFIG_FILE: Final = "train.yaml"
RENDEZVOUS_PORT: Final = 29500
PROGRESS_PORT: Final = 8090
PROGRESS_PORT_NAME: Final = "progress"
API_KEY_ENV: Final = "GLM5_API_KEY"
VLLM_API_KEY_ENV: Final = "VLLM_API_KEY"
DEVICE_ENV: Final = ("ASCEND_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES")
"""The cards of a container: the Ascend Docker Runtime mounts what the first one names, whatever Kubernetes gave the container."""

LABEL_LIMIT: Final = 63
"""Longest DNS label, label value and Service name."""
_HASH_LENGTH: Final = 8
_RANK_DIGITS: Final = 5  # of a pod of an Indexed Job: its hostname is the Job's name, a dash and up to four digits


def fit(text: str, limit: int = LABEL_LIMIT) -> str:
    """Shorten `text` to `limit` characters; what is cut off lives on in a hash, so different texts stay different.

    A text that fits is returned as it is. The result never ends in `-` before the hash, so it stays a DNS label when the text was one.
    """
    if len(text) <= limit:
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:_HASH_LENGTH]
    head = text[: limit - _HASH_LENGTH - 1].rstrip("-.")
    return f"{head}-{digest}"


def child_name(owner: str, suffix: str, limit: int = LABEL_LIMIT) -> str:
    """Name of a child: the owner's name, shortened with a hash where needed, then `-suffix` in full."""
    return f"{fit(owner, limit - len(suffix) - 1)}-{suffix}"


def deployment_name(service: str) -> str:
    """Name of a service's Deployment."""
    return child_name(service, "engine")


def client_service_name(service: str) -> str:
    """Name of the Service that clients of a GLM5Service talk to."""
    return child_name(service, "api")


def adapters_name(service: str) -> str:
    """Name of the ConfigMap with the adapters of a service's engine."""
    return child_name(service, "adapters")


def selector_labels(service: str) -> dict[str, str]:
    """The labels that select a service's pods; immutable in a Deployment, so never add to them."""
    return {APP_NAME_LABEL: APP_NAME, SERVICE_LABEL: fit(service)}


def child_labels(service: str) -> dict[str, str]:
    """The labels of every child of a service."""
    return {
        **selector_labels(service),
        APP_INSTANCE_LABEL: fit(service),
        APP_COMPONENT_LABEL: COMPONENT_INFERENCE,
        APP_PART_OF_LABEL: PART_OF,
        APP_MANAGED_BY_LABEL: MANAGED_BY,
    }


def attempt_name(job: str, attempt: int) -> str:
    """Name of the Job of one attempt; short enough for the hostnames of its pods, which are DNS labels."""
    return child_name(job, f"attempt-{attempt}", LABEL_LIMIT - _RANK_DIGITS)


def config_name(job: str, attempt: int) -> str:
    """Name of the ConfigMap with the training file of one attempt."""
    return child_name(job, f"config-{attempt}")


def rendezvous_name(job: str) -> str:
    """Name of the headless Service under which the ranks find each other."""
    return child_name(job, "ranks")


def outcome_name(job: str) -> str:
    """Name of the ConfigMap that keeps how a fine-tuning job ended."""
    return child_name(job, "outcome")


def check_name(job: str) -> str:
    """Name of the Job that checks settings and data before the first attempt, and of its ConfigMap."""
    return child_name(job, "check", LABEL_LIMIT - _RANK_DIGITS)


def check_labels(job: str) -> dict[str, str]:
    """As of every child of a fine-tuning job, but the component: no attempt of its training is meant."""
    return {**finetune_labels(job), APP_COMPONENT_LABEL: COMPONENT_CHECK}


def compute_check_name(node: str, check: str) -> str:
    """Name of the pod of one compute check of a node."""
    return child_name(node, f"check-{check}")


def compute_check_labels(node: str) -> dict[str, str]:
    """The labels of that pod."""
    return {
        COMPUTE_CHECK_LABEL: fit(node),
        APP_NAME_LABEL: PART_OF,
        APP_COMPONENT_LABEL: COMPONENT_COMPUTE_CHECK,
        APP_PART_OF_LABEL: PART_OF,
        APP_MANAGED_BY_LABEL: MANAGED_BY,
    }


def evaluation_name(job: str) -> str:
    """Name of the Job that evaluates a fine-tuning job's adapter."""
    return child_name(job, "evaluation", LABEL_LIMIT - _RANK_DIGITS)


def finetune_labels(job: str) -> dict[str, str]:
    """The labels of every child of a fine-tuning job."""
    return {
        APP_NAME_LABEL: FINETUNE_APP_NAME,
        FINETUNE_LABEL: fit(job),
        APP_INSTANCE_LABEL: fit(job),
        APP_COMPONENT_LABEL: COMPONENT_TRAINING,
        APP_PART_OF_LABEL: PART_OF,
        APP_MANAGED_BY_LABEL: MANAGED_BY,
    }


def role_taint_value(role: str) -> str:
    """Value of the role taint for a pool's role, e.g. `inference`."""
    return role.lower()
