"""Engine `vllm`: vLLM-Ascend, today's route for the 744B checkpoints. Flags and environment come from the model's recipe.

Called by pod planning. `tests/unit/plan` checks every argument against the argument list of vLLM 0.23.0.
"""

from __future__ import annotations

import json
import math
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import jinja2

from glm5_operator.api import names
from glm5_operator.plan.engine import NPU_ENV, EnginePod
from glm5_operator.plan.facts import Product

if TYPE_CHECKING:
    from glm5_operator.api.service import KVCacheSpec
    from glm5_operator.plan.engine import EngineInput
    from glm5_operator.plan.facts import Manifest
    from glm5_operator.plan.sizing import Sizing

FIRST_TOKEN_SECONDS: Final = 30
UNREADY_SECONDS: Final = 300
"""Without a step while requests run. vLLM's own limit for one step (VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS) has this as its default. A long
prompt can't trip it: its prefill is cut into steps of --max-num-batched-tokens, and each moves a number in /metrics."""
RESTART_SECONDS: Final = 600
"""Likewise, until the restart: twice as long, because a restart reads the weights again and a first graph capture may take minutes."""
_CHECK_ANSWER_SECONDS: Final = 4  # for each of the two requests of a check
_CHECK_SECONDS: Final = 10  # for a whole check, the start of Python included
_IMAGE_SUFFIX: Final = {Product.A2: "", Product.A3: "-a3", Product.ATLAS_310P: "-310p", Product.A5: "-950dt"}
_OPENEULER: Final = "-openeuler"
_KV_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16"}

# The published image has no user but root: as another one, tensor parallelism ends in HCCL error 19 for want of an /etc/passwd entry.
# Device nodes belong to uid 1000 with mode 0660, and root without DAC_OVERRIDE may not open them. Its root stays writable: it was never
# tried read-only on a card. An image with a uid 1000 entry in /etc/passwd needs none of this; podTemplate then sets runAsUser 1000.
_POD_SECURITY: Final[dict[str, Any]] = {"runAsUser": 0, "runAsGroup": 0, "runAsNonRoot": False}
_SECURITY: Final[dict[str, Any]] = {
    "readOnlyRootFilesystem": False,
    "capabilities": {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]},
}


def vllm_image(image: str, product: Product) -> str:
    """The image of a product: vllm-ascend publishes one a product, told apart by a suffix of the tag. A digest names one already."""
    suffix = _IMAGE_SUFFIX[product]
    tag = image.rpartition(":")[2].removesuffix(_OPENEULER)
    if "@" in image or not suffix or tag.endswith(suffix):
        return image
    return f"{image.removesuffix(_OPENEULER)}{suffix}{_OPENEULER if image.endswith(_OPENEULER) else ''}"


def vllm_pod(given: EngineInput) -> EnginePod:
    """An entry script finds the cards and then replaces itself by `vllm serve`, so that signals reach it."""
    served = given.spec.served_name
    check = _render("first-token.py.j2", model=served, port=names.ENGINE_PORT, timeout=FIRST_TOKEN_SECONDS)
    ids = ",".join(str(card) for card in range(given.sizing.cards))
    entry = _render("vllm-entry.sh.j2", cards=given.sizing.cards, ids=ids)
    return EnginePod(
        command=["/bin/bash", "-c", entry, "vllm-entry"],
        args=_args(given),
        env=_env(given),
        api_key_env=names.VLLM_API_KEY_ENV,
        startup={"exec": {"command": ["python3", "-c", check]}},
        startup_period=10,
        startup_check_timeout=FIRST_TOKEN_SECONDS + 5,
        readiness=_progress_check(UNREADY_SECONDS),
        liveness=_progress_check(RESTART_SECONDS),
        check_timeout=_CHECK_SECONDS,
        security=_SECURITY,
        pod_security=_POD_SECURITY,
        scratch={"tmp": "16Gi", "home": "32Gi"},
    )


def _progress_check(window: int) -> Manifest:
    """Fails when /health does, or when requests run and nothing has moved for `window` seconds."""
    check = _render("progress.py.j2", port=names.ENGINE_PORT, window=window, timeout=_CHECK_ANSWER_SECONDS)
    return {"exec": {"command": ["python3", "-IS", "-c", check]}}  # without site packages Python starts fast


def _args(given: EngineInput) -> list[str]:
    sizing, spec = given.sizing, given.spec
    args = [
        given.model_path,
        f"--served-model-name={spec.served_name}",
        "--host=0.0.0.0",
        f"--port={names.ENGINE_PORT}",
        *_parallel_args(sizing),
        f"--max-num-seqs={sizing.max_sequences}",
        f"--max-num-batched-tokens={sizing.max_batched_tokens}",
    ]
    if sizing.max_tokens is not None:
        args.append(f"--max-model-len={sizing.max_tokens}")
    if spec.model.weights != "bf16":
        args.append("--quantization=ascend")
    return [
        *args,
        *_cache_args(spec.kv_cache),
        *_recipe_args(sizing),
        f"--shutdown-timeout={math.ceil(spec.drain_timeout.total_seconds())}",
    ]


def _parallel_args(sizing: Sizing) -> list[str]:
    shape = sizing.shape
    args = [f"--tensor-parallel-size={shape.tensor}", f"--data-parallel-size={shape.data}"]
    if shape.pipeline > 1:
        args.append(f"--pipeline-parallel-size={shape.pipeline}")
    if shape.context > 1:
        args.append(f"--decode-context-parallel-size={shape.context}")
    if sizing.expert > 1:
        args.append("--enable-expert-parallel")
    return args


def _cache_args(stated: KVCacheSpec | None) -> list[str]:
    shared = stated is None or stated.prefix_cache is not False
    args = ["--enable-prefix-caching" if shared else "--no-enable-prefix-caching"]
    if stated and stated.page_size:
        args.append(f"--block-size={stated.page_size}")
    if stated and stated.dtype:
        args.append(f"--kv-cache-dtype={_KV_DTYPES[stated.dtype]}")
    return args


def _recipe_args(sizing: Sizing) -> list[str]:
    recipe, layout = sizing.recipe, sizing.layout
    if recipe is None or layout is None:
        return [_json("--speculative-config", {"method": "mtp", "num_speculative_tokens": sizing.speculative_tokens})] * bool(
            sizing.speculative_tokens
        )
    shared = recipe.vllm
    args = [f"--gpu-memory-utilization={layout.utilization}", *shared.args]
    if sizing.shape.context > 1:
        args += layout.args
    args += [
        _json("--compilation-config", {**shared.compilation, **layout.compilation}),
        _json("--additional-config", {**shared.additional, **layout.additional}),
    ]
    if sizing.speculative_tokens:
        speculative = {**shared.speculative, **layout.speculative, "num_speculative_tokens": sizing.speculative_tokens}
        args.append(_json("--speculative-config", speculative))
    return args


def _env(given: EngineInput) -> dict[str, str]:
    recipe, layout = given.sizing.recipe, given.sizing.layout
    return {
        **NPU_ENV,
        **(recipe.vllm.env if recipe else {}),
        **(layout.env if layout else {}),
        # vLLM's own limit for its engine processes, 600 s by default, ends slow loads long before our start-up check does.
        "VLLM_ENGINE_READY_TIMEOUT_S": str(math.ceil(given.startup.total_seconds())),
        "VLLM_NO_USAGE_STATS": "1",
    }


def _json(flag: str, value: dict[str, Any]) -> str:
    return f"{flag}={json.dumps(value, separators=(',', ':'))}"


@cache
def _templates() -> jinja2.Environment:
    # Packaged files rendered into a shell script and a Python program, never into HTML: nothing to escape for it.
    loader = jinja2.FunctionLoader(lambda name: (resources.files("glm5_operator.plan") / "templates" / name).read_text(encoding="utf-8"))
    return jinja2.Environment(loader=loader, undefined=jinja2.StrictUndefined, autoescape=False, keep_trailing_newline=True)  # noqa: S701  # see above


def _render(template: str, **values: object) -> str:
    return _templates().get_template(template).render(**values)
