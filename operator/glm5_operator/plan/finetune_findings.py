"""Why a fine-tuning job can't be planned or has to wait, and what about it is allowed but unwise: each with what to change.

Called by `attempt`. One function a reason, as in `findings`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5_operator.plan.facts import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from glm5_operator.api.finetune import GLM5FinetuneJobSpec

MOST_NAMED = 3
DENSE = frozenset({"gate_proj", "up_proj", "down_proj"})


def too_few_nodes(pool: str, resource: str, nodes: int, cards: int, found: int) -> Finding:
    """Not even an empty pool would hold it."""
    return Finding(
        "NotEnoughCards",
        f"the job needs {nodes} nodes with {cards} {resource} each, and NPUPool {pool} has {found} such nodes: "
        "lower spec.parallelism (of a new job, once this one has started), or add nodes to the pool",
    )


def waits_for_cards(pool: str, resource: str, nodes: int, cards: int, free: int, *, avoided: int, claimed: int) -> Finding:
    """All or nothing: until every pod would find its cards, none is created."""
    why = [f"{avoided} left out because their cards failed"] if avoided else []
    why += [f"{claimed} promised to other runs"] if claimed else []
    return Finding(
        "WaitingForCards",
        f"{free} of {nodes} nodes of NPUPool {pool} have {cards} {resource} free"
        + (f" ({', '.join(why)})" if why else "")
        + ": no pod is created before all of them are",
    )


def half_a_card(cards: int) -> Finding:
    """Half an A3 card would be left."""
    return Finding(
        "OddDies",
        f"an A3 card is two dies that are reset together, and {cards} dies leave half a card over: "
        "let spec.parallelism.npusPerNode be one die or an even number",
    )


def model_too_large(model: str, method: str, cards: int, needed: int, card: int) -> Finding:
    """Sizes in GB."""
    what = "weights, gradients and AdamW's moments in fp32" if method == "full" else "its weights in bf16"
    return Finding(
        "ModelTooLarge",
        f"{model} with method {method} takes {needed} GB ({what}), and {cards} cards of {card} GB have {cards * card} GB: "
        f"raise spec.parallelism to {-(-needed // card)} cards or more, room for activations not counted",
    )


def trainer_image_missing() -> Finding:
    """No image to run."""
    return Finding(
        "ImageMissing",
        "the operator has no image of the runtime: set the operator's setting, or the image of container trainer in spec.podTemplate",
    )


def trainer_memory_not_stated(model: str) -> Finding:
    """An unknown model."""
    return Finding("MemoryNotStated", f"the memory of {model} isn't known: state spec.model.memory, the main memory of one node's pod")


def advice(spec: GLM5FinetuneJobSpec, same_output: Sequence[str] = ()) -> tuple[Finding, ...]:
    """What is allowed and has been seen to go wrong. Defaults are those of the runtime's training file.

    `same_output`: names of other jobs of the namespace that have published to the output, or may yet.
    """
    return tuple(Finding("Unwise", message) for message in _advice(spec, same_output))


def _advice(spec: GLM5FinetuneJobSpec, same_output: Sequence[str]) -> Iterator[str]:
    if same_output:
        shown = ", ".join(sorted(same_output)[:MOST_NAMED]) + (", …" if len(same_output) > MOST_NAMED else "")
        yield f"output {spec.output} is that of GLM5FinetuneJob {shown} too: whichever ends last replaces the result; give each its own"
    training = spec.training
    rate = (training.learning_rate if training else None) or 2e-4
    clip = (training.clip if training else None) or 1.0
    batch = (training.batch_size if training else None) or 8
    length = spec.data.max_length or 2048
    if (training.dtype if training else None) in {None, "bf16"} and (batch < 8 or length > 2048):
        yield (
            f"training.dtype bf16 with batchSize {batch} and data.maxLength {length} is not known to be stable: "
            "take fp16, a batch of 8 or more, and at most 2048 tokens"
        )
    if rate > 3e-4:
        yield f"training.learningRate {rate:g} is above 3e-4: losses have been seen to jump"
    if not 0.8 <= clip <= 1.2:
        yield f"training.clip {clip:g} is outside 0.8 to 1.2"
    if dense := sorted(DENSE.intersection((spec.lora.targets if spec.lora else None) or ())):
        yield f"lora.targets {', '.join(dense)}: adapters in dense layers forget more than those of attention"
