"""What the kind workers mount so that pods can serve the tiny model: the checkpoint, and torch where no image can hold it.

Used by the CLI, plugin.py and the demo. Pods reach both by hostPath; where the packages are mounted, the pool's
podTemplate says so (SITE_PACKAGES_NODE_PATH as a read-only volume and PYTHONPATH).
"""

import shutil
from pathlib import Path

from tests.cluster import cache, images
from tests.cluster.engine import Engine
from tests.cluster.kind import PRODUCTS, KindOptions, Mount
from tests.cluster.shell import run
from tests.cluster.site_packages import site_packages

MODEL = Path(__file__).parents[1] / "fixtures" / "tiny-glm5"
MODEL_NODE_PATH = "/opt/glm5/models/tiny-glm5"
SITE_PACKAGES_NODE_PATH = "/opt/glm5/site-packages"


def options(docker: Engine, products: tuple[str, ...] = PRODUCTS) -> KindOptions:
    """Cluster options with everything that the demo and the end-to-end tests need on the workers."""
    mounts = [Mount(str(model_folder()), MODEL_NODE_PATH)]
    if needs_site_packages(docker):
        mounts.append(Mount(str(site_packages()), SITE_PACKAGES_NODE_PATH))
    return KindOptions(tuple(mounts), products)


def needs_site_packages(docker: Engine) -> bool:
    """Whether the runtime image holds no torch here, so that the packages must be mounted."""
    return images.is_offline(docker)


def model_folder() -> Path:
    """A copy of the tiny model that uid 1000 can read, whatever the clone's permissions are."""

    def copy(folder: Path) -> None:
        shutil.copytree(MODEL, folder)
        run("chmod", "-R", "a+rX", folder)

    return cache.artefact("tiny-glm5", cache.content_key(MODEL), copy)
