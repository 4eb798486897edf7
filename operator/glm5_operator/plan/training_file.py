"""The training file: a spec and its places as the YAML that `glm5-runtime train --config` reads.

Called by `attempt`. What the user left out is left out here too: defaults are the runtime's. `tests/contract` feeds it to the runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from glm5_operator.plan.native import model_version

if TYPE_CHECKING:
    from glm5_operator.api.common import Model
    from glm5_operator.api.finetune import GLM5FinetuneJobSpec
    from glm5_operator.plan.places import Places


def training_file(spec: GLM5FinetuneJobSpec, places: Places) -> str:
    """The text of the file. Names are snake_case, as the models' own."""
    data = _stated(spec.data)
    del data["source"]
    if version := model_version(spec.model.name):
        data["model_version"] = version
    checkpoint = _stated(spec.checkpoint)
    del checkpoint["storage"]
    content: dict[str, Any] = {
        "model": places.model,
        "method": spec.method,
        "data": {"files": [places.data], **data},
        "lora": _stated(spec.lora),
        "rl": _stated(spec.rl),
        "training": _stated(spec.training),
        "evaluation": _stated(spec.evaluation),
        "checkpoint": {"directory": places.checkpoints, **checkpoint},
        "output": places.output,
    }
    content = {name: value for name, value in content.items() if value}
    if spec.merge is not None:
        content["merge"] = spec.merge
    return yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=140)


def _stated(section: Model | None) -> dict[str, Any]:
    return {} if section is None else section.model_dump(mode="json", by_alias=False, exclude_none=True)
