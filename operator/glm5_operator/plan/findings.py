"""Every reason for which a service or pool can't be planned, with its message: what is wrong, and what to change.

Called by sizing and planning. One function a reason, so that the wording stays in one place and scripts can rely on the reasons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from glm5_operator.plan.facts import Finding, Product
from glm5_operator.plan.product import GB

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from datetime import datetime

    from glm5_operator.plan.recipe import Layout, Recipe

# --- the pool ---------------------------------------------------------------------------------------------------------------


def pool_not_found(pool: str) -> Finding:
    """No pool of that name."""
    return Finding("PoolNotFound", f"there is no NPUPool {pool}: create it, or set spec.pool to one that `kubectl get npupools` lists")


def pool_terminating(pool: str) -> Finding:
    """The pool is being deleted."""
    return Finding("PoolNotFound", f"NPUPool {pool} is being deleted: wait and create it again, or set spec.pool to another one")


def wrong_role(pool: str, role: str) -> Finding:
    """A training pool for a service."""
    return Finding(
        "WrongPoolRole", f"NPUPool {pool} has role {role}, and a service needs role Inference: set spec.pool to an inference pool"
    )


def needs_training_role(pool: str, role: str) -> Finding:
    """An inference pool for a fine-tuning job."""
    return Finding(
        "WrongPoolRole", f"NPUPool {pool} has role {role}, and a fine-tuning job needs role Training: set spec.pool to a training pool"
    )


def namespace_not_allowed(pool: str, namespace: str) -> Finding:
    """The pool is closed to the service's namespace."""
    return Finding(
        "NamespaceNotAllowed",
        f"NPUPool {pool} isn't open to namespace {namespace}: add it to spec.namespaces of the pool, or use another pool",
    )


def pool_has_no_nodes(pool: str) -> Finding:
    """No node belongs to the pool."""
    return Finding(
        "PoolHasNoNodes",
        f"no node belongs to NPUPool {pool}: correct its nodeSelector or nodeNames, or label nodes so that it selects them",
    )


def product_unknown(pool: str) -> Finding:
    """Nothing says what hardware it is."""
    return Finding(
        "ProductUnknown",
        f"no label on the nodes of NPUPool {pool} says which Ascend product they are: set spec.product of the pool (A2, A3, 310P or 950)",
    )


def product_mixed(pool: str, products: Iterable[Product]) -> Finding:
    """Nodes of several products."""
    found = " and ".join(sorted(products))
    return Finding("ProductMixed", f"NPUPool {pool} has nodes of {found}: split it into one pool a product, because plans differ")


def resource_unknown(pool: str, offered: tuple[str, ...]) -> Finding:
    """No NPU resource, or several."""
    if offered:
        return Finding(
            "ResourceUnknown",
            f"the nodes of NPUPool {pool} offer {' and '.join(offered)}: set spec.resourceName of the pool to one of them",
        )
    return Finding(
        "ResourceUnknown",
        f"no node of NPUPool {pool} offers NPU cards that are known by name: start the device plugin, or set spec.resourceName of the pool",
    )


def not_enough_cards(pool: str, resource: str, cards: int, most: int) -> Finding:
    """No node of the pool could ever hold a replica."""
    if most == 0:
        return Finding(
            "NotEnoughCards",
            f"no node of NPUPool {pool} offers {resource} now: look at the device plugin, or correct spec.resourceName of the pool",
        )
    return Finding(
        "NotEnoughCards",
        f"a replica needs {cards} {resource} on one node, and the largest node of NPUPool {pool} offers {most}: "
        "use smaller weights, a pool of larger nodes, or lower spec.parallelism",
    )


def replicas_exceed_pool(pool: str, replicas: int, room: int) -> Finding:
    """A warning: the pool has room for fewer replicas than asked for."""
    return Finding(
        "ReplicasExceedPool",
        f"NPUPool {pool} has room for {room} of {replicas} replicas: the others wait; lower spec.replicas or add nodes to the pool",
    )


def node_conflict(node: str, owner: str) -> Finding:
    """A warning of a pool: another one has a node that it selects."""
    return Finding("NodeConflict", f"node {node} belongs to NPUPool {owner}, which selects it too: narrow one of the two selectors")


def taint_waits(key: str, daemonsets: Iterable[str]) -> Finding:
    """A warning of a pool: with the taint, the next device-plugin update would take the cards away."""
    return Finding("TaintWaits", f"the taint {key} waits until these DaemonSets on the pool's nodes tolerate it: {', '.join(daemonsets)}")


def daemon_sets_kept_away(keys: Iterable[str], daemonsets: Iterable[str]) -> Finding:
    """A warning of a pool: what runs there goes on, but an update of these leaves nodes in a remedy or on a move without them."""
    who, what = ", ".join(daemonsets), " and ".join(keys)
    message = f"nodes that are treated or moved lose the pods of these DaemonSets at their next update, until they tolerate {what}: {who}"
    return Finding("DaemonSetsKeptAway", message)


def reset_runs(nodes: Mapping[str, datetime]) -> Finding:
    """A warning of a pool: nodes that it is to let go of or to get, and until when at most their cards are being reset."""
    ends = ", ".join(f"{node} (by {end:%Y-%m-%dT%H:%M:%SZ} at the latest)" for node, end in sorted(nodes.items()))
    return Finding("ResetRuns", f"until the reset of their cards is over, nodes keep the label of the pool that had them: {ends}")


def none_to_lend(nodes: Iterable[str]) -> Finding:
    """A warning of a pool: it lends nothing now."""
    what = f"no node is lent, since a service would lose its last replica in traffic: {', '.join(nodes)}"
    return Finding("NoneToLend", f"{what}; give these services another replica on another node")


# --- the model --------------------------------------------------------------------------------------------------------------


def native_parallelism() -> Finding:
    """How the bundled runtime divides a model."""
    return Finding(
        "NativeParallelism",
        "engine native divides layers (parallelism.tensor) and spreads experts (data with expert): set pipeline to 1 and expert to"
        " tensor x data, or spec.engine.name to vllm",
    )


def native_weights(known: Collection[str]) -> Finding:
    """Forms that the bundled runtime reads."""
    return Finding("NativeWeights", f"engine native reads {', '.join(known)} weights: set spec.model.weights, or spec.engine.name to vllm")


def native_too_large(model: str, needed: int, cards: int, offered: int) -> Finding:
    """The weights alone are more than the cards."""
    return Finding(
        "WeightsDoNotFit",
        f"{model} takes {needed // GB} GB and {cards} cards have {offered // GB} GB: raise spec.parallelism.tensor, or set spec.engine.name"
        " to vllm, which has recipes",
    )


def native_not_measured(model: str) -> Finding:
    """A warning: these weights have not met this engine on cards."""
    return Finding("NativeNotMeasured", f"engine native has not run {model} on cards yet: measure before you rely on it")


def memory_not_stated(model: str) -> Finding:
    """A model without a recipe."""
    return Finding("MemoryNotStated", f"{model} has no recipe: state spec.model.memory, the main memory of one replica's pod")


def memory_too_small(stated: int, least: int) -> Finding:
    """Less than shared memory and a process take."""
    return Finding("MemoryTooSmall", f"spec.model.memory of {stated} bytes is too small: state at least {least // 2**20}Mi")


def parallelism_not_stated(model: str) -> Finding:
    """A model without a recipe."""
    return Finding("ParallelismNotStated", f"{model} has no recipe: state spec.parallelism.tensor, 1 for one card")


def odd_dies(cards: int) -> Finding:
    """Half an A3 card would be left."""
    return Finding(
        "OddDies",
        f"an A3 card is two dies that are reset together, and {cards} dies leave half a card over: "
        "let tensor x pipeline x data of spec.parallelism be one die or an even number",
    )


def needs_several_nodes(model: str, cards: int, nodes: int, per_node: int) -> Finding:
    """Until serving over several nodes lands."""
    return Finding(
        "NeedsSeveralNodes",
        f"{model} needs {cards} cards, so {nodes} nodes of {per_node} a replica, and serving over several nodes isn't supported yet: "
        "use smaller weights (spec.model.weights), a shorter spec.context.maxTokens, or a pool of larger nodes",
    )


def weights_not_known(model: str, weights: str, known: Iterable[str]) -> Finding:
    """Nobody publishes this form."""
    return Finding("WeightsNotKnown", f"no {weights} weights of {model} are known: set spec.model.weights to one of {', '.join(known)}")


def no_layout(model: str, weights: str, product: Product, recipe: Recipe) -> Finding:
    """The tables have no row for this weights form on this product."""
    ordered = sorted(recipe.layouts, key=lambda layout: (layout.weights != weights, layout.nodes))
    known = ", ".join(dict.fromkeys(_where(layout) for layout in ordered))
    return Finding(
        "WeightsDoNotFit",
        f"no way to serve {model} {weights} on {product} is known; known are {known}: change spec.model.weights or spec.pool",
    )


def too_few_cards(model: str, layout: Layout, needed: int, given: int) -> Finding:
    """Fewer cards than the smallest known layout."""
    return Finding(
        "WeightsDoNotFit",
        f"{model} {layout.weights} needs {needed} cards of {layout.product}, and spec.parallelism gives {given}: "
        "raise it so that tensor x pipeline x data is at least that, or remove it",
    )


def weights_exceed_cards(name: str, need: int, budget: int, cards: str) -> Finding:
    """By arithmetic, before any text."""
    return Finding(
        "WeightsDoNotFit",
        f"{name} takes {need / GB:.1f} GB on each of {cards} before any text, and {budget / GB:.1f} GB are usable: "
        "raise spec.parallelism (tensor before data, which repeats the attention weights), or use smaller weights",
    )


def context_exceeds_layouts(model: str, layouts: tuple[Layout, ...], wanted: int, recipe: Recipe) -> Finding:
    """Longer than any known layout of these weights on this product."""
    best = max(layout.max_tokens for layout in layouts)
    where = " or ".join(sorted({_where(layout) for layout in recipe.layouts if layout.max_tokens >= wanted}))
    return Finding(
        "ContextDoesNotFit",
        f"{model} {layouts[0].weights} reaches {best} tokens on {layouts[0].product}: lower spec.context.maxTokens from {wanted}"
        + (f", or use {where}" if where else ""),
    )


def context_exceeds_cards(name: str, fits: int, wanted: int, cards: str) -> Finding:
    """Longer than these cards hold."""
    return Finding(
        "ContextDoesNotFit",
        f"{name} reaches {fits} tokens on {cards}: lower spec.context.maxTokens from {wanted}, or raise spec.parallelism",
    )


def layout_not_documented(name: str, tensor: int, data: int) -> Finding:
    """A warning: the user's own parallelism."""
    return Finding("LayoutNotDocumented", f"tensor {tensor} x data {data} is no documented layout of {name}: measure before you rely on it")


def layout_derived(name: str, source: str) -> Finding:
    """A warning: the node need is documented, the command isn't."""
    return Finding("LayoutDerived", f"no command for {name} is documented ({source}): measure before you rely on it")


def served_as(model: str, other: str) -> Finding:
    """A warning: another model's layouts."""
    return Finding("LayoutDerived", f"no layout of {model} itself is documented; it is served as {other}, the same architecture")


# --- the pod ----------------------------------------------------------------------------------------------------------------


def image_missing(engine: str) -> Finding:
    """No image to run."""
    return Finding(
        "ImageMissing", f"the operator has no default image of engine {engine}: set spec.engine.image, or the operator's setting"
    )


def source_not_supported(source: str) -> Finding:
    """A source that CEL would have refused."""
    return Finding(
        "SourceNotSupported",
        f"spec.model.source {source} can't be mounted: use pvc://CLAIM/PATH, hostpath:///ABSOLUTE/PATH or image:///PATH",
    )


def pod_template_refused(origin: str, path: str, why: str) -> Finding:
    """A podTemplate that tries to undo what planning guarantees."""
    return Finding("PodTemplateRefused", f"{origin} may not change {path}: {why}")


def pod_template_malformed(origin: str, path: str, why: str) -> Finding:
    """A podTemplate that is no pod template."""
    return Finding("PodTemplateRefused", f"{origin}: {path} {why}")


def _where(layout: Layout) -> str:
    count = {1: "one", 2: "two", 4: "four"}.get(layout.nodes, str(layout.nodes))
    return f"{layout.weights} on {count} {layout.product} node{'s' * (layout.nodes > 1)}"
