"""Which image references are taken: one that names what runs, today and tomorrow. The rule stands here once.

Used by the CRDs' rules (as CEL), by the settings, and by tests that hold the chart to the same. Patterns are of the common part of RE2 and
Python's `re`. Must not import anything of this package.
"""

from __future__ import annotations

import re
from typing import Final

# Of a reference: no tag and no digest means `latest`. A colon before the last slash is a registry's port.
_NAME: Final = r"([a-zA-Z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+([._/-]+[a-z0-9]+)*"
_TAG: Final = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}"
REFERENCE: Final = f"^{_NAME}(:{_TAG})?(@[a-z0-9]+:[A-Za-z0-9=_-]+)?$"
PINNED: Final = "^.*(@|:[^/]+$)"
MOVING: Final = "^.*:([^/:@]*[._-])?(latest|nightly|main|master)([._-][^/:@]*)?$"
TAGGED: Final = ":[^/]+$"
VERSIONED: Final = ":[^/]*[0-9][^/]*$"
DIGEST: Final = "^[^@]+@sha256:[0-9a-f]{64}$"

NO_REFERENCE: Final = "must be an image reference such as registry.example:5000/glm5-runtime:0.1.0: no scheme, no spaces, a lower-case path"
NO_TAG: Final = "an image without a tag means `latest`: add a version or date tag, or a digest (@sha256:...)"
MOVING_TAG: Final = (
    "a tag with `latest`, `nightly`, `main` or `master` is refused, because it means another engine tomorrow: "
    "name a version or date tag, or a digest"
)
NO_VERSION: Final = (
    "an image tag must say a version or a date, so contain a digit (0.1.0, v0.23.0-a3, 20261129), or the image be given by digest"
)
NO_DIGEST: Final = "an image digest is @sha256: and 64 hexadecimal digits in lower case"


def fault(image: str) -> str | None:
    """What is wrong with a reference; None when it is taken."""
    if not re.search(REFERENCE, image) or "\n" in image:
        return NO_REFERENCE
    if not re.search(PINNED, image):
        return NO_TAG
    if "@" in image:
        return None if re.search(DIGEST, image) else NO_DIGEST
    if re.search(MOVING, image):
        return MOVING_TAG
    return None if re.search(VERSIONED, image) else NO_VERSION
