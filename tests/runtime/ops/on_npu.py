"""Checks of `ops.npu` in a process that has the device `npu` (see tests/support/cann). Prints one JSON object: name → traceback or null.

Two kinds. Fake tensors on `npu` go through the real wheel's schemas and shape functions. Tensors on the CPU go through the formulas of
torch_npu's documentation (`formulas`), registered behind the same schemas, so that numbers can be compared with the reference.
"""

from __future__ import annotations

import json
import logging
import sys
import traceback
from typing import TYPE_CHECKING
from unittest import mock

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._pytree import tree_map

from glm5_runtime.model.batch import Batch, Chunk, build_batch
from glm5_runtime.model.cache import KVCache
from glm5_runtime.ops import kernels, npu, reference, trial
from glm5_runtime.ops.interface import operators
from glm5_runtime.ops.packing import Weights, pack
from glm5_runtime.ops.paging import LayerCache
from glm5_runtime.ops.reference import Routing
from tests.runtime.ops import formulas, on_npu_limits  # noqa: F401 - its checks are run with these
from tests.runtime.ops.parts import (
    BF16,
    CPU,
    GLM_5_2,
    INDEX,
    LATENT,
    PAGE,
    ROPE,
    THETA,
    Calls,
    check,
    checks,
    close,
    config,
    expect,
    facts,
    fallbacks,
    fill,
    is_on_device,
    new_decoder,
    on_npu,
    queries_of,
    randn,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from glm5_runtime.model.decoder import Decoder

ALL_KERNELS = {kernel for names in kernels.KERNELS.values() for kernel in names}

# --- shapes, types and layouts, on the real wheel's shape functions ----------------------------------------------------------


def same_facts(name: str, *args: object, integers_may_differ: bool = False) -> None:
    """The operator on the device gives what the reference gives on the CPU, with no fallback."""
    wanted = getattr(reference, name)(*(x.clone() if isinstance(x, Tensor) else x for x in args))
    before = dict(kernels.fallbacks)
    with FakeTensorMode(), Calls() as calls:
        got = getattr(npu, name)(*(on_npu(x) for x in args))
        leaves = got if isinstance(got, tuple) else (got,)
        assert all(x.device.type == "npu" and x.is_contiguous() for x in leaves if isinstance(x, Tensor)), f"{name}: {leaves}"
    expect(fallbacks(before), {}, f"{name}: fallbacks")
    assert set(calls.count) == set(kernels.KERNELS[name]), f"{name}: called {sorted(calls.count)}"

    def plain(x: object) -> object:
        text = facts(x)
        return json.loads(json.dumps(text).replace("torch.int32", "torch.int64")) if integers_may_differ else text

    expect(tree_map(plain, got), tree_map(plain, wanted), name)


@check
def norms_and_activation_keep_the_references_shape_type_and_layout() -> None:
    for x, width in ((randn(5, 6144), 6144), (randn(5, 576)[:, :512], 512)):
        same_facts("rms_norm", x.contiguous(), randn(width), 1e-5)
    same_facts("swiglu", randn(5, 4096))


@check
def routing_and_experts_keep_the_references_shape_type_and_layout() -> None:
    choice = Routing(8, 1, 1, normalise=True, scale=2.5)
    logits, bias = randn(6, 16, dtype=torch.float32), randn(16, seed=1, dtype=torch.float32)
    same_facts("route", logits, bias, choice, integers_may_differ=True)  # experts are int32 for the next kernel
    experts, weights = reference.route(logits, bias, choice)
    same_facts("run_experts", randn(6, 64), randn(16, 96, 64), randn(16, 64, 48), experts, weights)


@check
def quantised_layers_keep_the_references_shape_type_and_layout() -> None:
    same_facts("quantise", randn(5, 6144))
    integers, scale = reference.quantise(randn(5, 256))
    weight, weight_scale = reference.quantise(randn(96, 256))
    same_facts("quantised_linear", integers, scale, weight, weight_scale, BF16)
    gate_up, down = (reference.quantise(randn(4 * rows, width)) for rows, width in ((96, 64), (64, 48)))
    packed = Weights(gate_up[0].view(4, 96, 64), gate_up[1].view(4, 96)), Weights(down[0].view(4, 64, 48), down[1].view(4, 64))
    same_facts("run_quantised_experts", randn(6, 64), *packed, torch.tensor([[0, 3]] * 6), torch.ones(6, 2))


@check
def rotation_and_cache_writes_return_nothing_and_keep_their_operands() -> None:
    before = dict(kernels.fallbacks)
    with FakeTensorMode(), Calls() as calls:
        angles = npu.rotary(on_npu(torch.arange(7)), THETA, ROPE)
        query = on_npu(randn(7, 4, 256))
        cache = LayerCache(on_npu(randn(64, LATENT)), on_npu(randn(64, ROPE)), on_npu(randn(64, INDEX)))
        assert npu.rotate(query[..., 192:], angles) is None
        assert npu.remember(on_npu(randn(7, 576)), on_npu(randn(512)), 1e-6, angles, slots=on_npu(torch.arange(7)), cache=cache) is None
        key = on_npu(randn(7, INDEX))
        npu.rotate(key[:, :ROPE].unsqueeze(1), angles)
        npu.remember_index(key, on_npu(torch.arange(7)), cache)
        expect(facts(cache.latent), facts(randn(64, LATENT)), "latent cache")
        expect(facts(query), facts(randn(7, 4, 256)), "query")
    expect(fallbacks(before), {}, "fallbacks")
    wanted = {"npu_interleave_rope": 2, "npu_kv_rmsnorm_rope_cache": 1, "npu_scatter_nd_update_": 1}
    expect(dict(calls.count), wanted, "kernels")


@check
def choice_and_attention_keep_the_references_shape_type_and_layout() -> None:
    cache = LayerCache(randn(640, LATENT), randn(640, ROPE), randn(640, INDEX))
    prompt = [Chunk(range(20), 100, list(range(1, 9)))]
    decodes = [Chunk([0], 99, list(range(1, 8))), Chunk([0], 70, list(range(10, 17))), Chunk([0], 40, list(range(20, 27)))]
    for chunks in (prompt, decodes):
        queries, _ = queries_of(chunks)
        count = queries.positions.numel()
        query, weights = randn(count, 8, INDEX), randn(count, 8, dtype=torch.float32)
        chosen = reference.choose(query, weights, cache, queries, k=32, select=None)
        latent, rope = randn(count, 4, LATENT), randn(count, 4, 256)[..., 192:]
        wanted = reference.attend(latent, rope, cache, queries, chosen, scale=0.1)
        before = dict(kernels.fallbacks)
        with FakeTensorMode():
            fake = on_npu(queries)
            got = npu.choose(on_npu(query), on_npu(weights), on_npu(cache), fake, k=32, select=None)
            expect(tuple(got.positions.shape), tuple(chosen.positions.shape), "positions")
            for selection in (got, None):
                out = npu.attend(on_npu(latent), on_npu(rope), on_npu(cache), fake, selection, scale=0.1)
                expect(facts(out), facts(wanted), "attend")
                expect(out.device.type, "npu", "device")
        expect(fallbacks(before), {}, "fallbacks")


@check
def a_step_of_glm_5_2_in_its_own_sizes_runs_in_kernels_alone_and_never_waits_for_the_device() -> None:
    """Fake tensors have no numbers: reading one back would raise. A prompt's last chunk, a short prompt and three decodes."""
    settings = config(**GLM_5_2)
    pages = [list(range(1 + 300 * n, 1 + 300 * (n + 1))) for n in range(5)]
    decodes = [Chunk([7], 4000, pages[0]), Chunk([8], 3000, pages[1]), Chunk([9], 10, pages[2])]
    chunks = [*decodes, Chunk(range(64), 4096, pages[3]), Chunk(range(40), 0, pages[4])]
    batch = build_batch(chunks, settings, PAGE, CPU)
    before = dict(kernels.fallbacks)
    with FakeTensorMode(), Calls() as calls:
        decoder = new_decoder(npu, settings, "npu", BF16)
        cache = KVCache.allocate(settings, 1600, PAGE, torch.device("npu"), BF16)
        moved = Batch(*(on_npu(x) for x in (batch.tokens, batch.positions, batch.slots)), tuple(on_npu(x) for x in batch.groups))
        hidden = decoder(moved, cache)
        logits = decoder.logits(hidden[:3])
        assert isinstance(logits, FakeTensor)
        expect((tuple(hidden.shape), hidden.dtype, hidden.device.type), ((107, 6144), BF16, "npu"), "hidden states")
        expect((tuple(logits.shape), logits.dtype), ((3, 154_880), torch.float32), "logits")
    assert calls.largest_copy <= 107 * 64 * 576, f"{calls.largest_copy} numbers copied at once: weights or cache are read where they are"
    expect(fallbacks(before), {}, "fallbacks")
    layers, groups, long = 4, len(batch.groups), sum(group.context > 2048 for group in batch.groups)
    wanted = {
        "npu_rms_norm": 3 * layers + 1,
        "npu_interleave_rope": layers + 2 * 2,
        "npu_kv_rmsnorm_rope_cache": layers,
        "npu_scatter_nd_update_": 2,
        "npu_lightning_indexer": 2 * long,
        "npu_sparse_flash_attention": layers * groups,
        "npu_moe_gating_top_k": 3,
        "npu_moe_init_routing_v2": 3,
        "npu_grouped_matmul": 6,
        "npu_moe_token_unpermute": 3,
        "npu_swiglu": 1 + 2 * 3,
    }
    expect(dict(calls.count), wanted, "kernels")


# --- numbers, on the documented formulas -------------------------------------------------------------------------------------


@check
def norm_activation_and_experts_compute_what_the_reference_does() -> None:
    x, weight = randn(5, 512), randn(512, seed=1)
    close(npu.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5), "rms_norm")
    close(npu.layer_norm(x, weight, weight, 1e-6), reference.layer_norm(x, weight, weight, 1e-6), "layer_norm")
    close(npu.swiglu(randn(5, 64)), reference.swiglu(randn(5, 64)), "swiglu")
    for groups, kept in ((1, 1), (4, 2)):
        choice = Routing(4, groups, kept, normalise=True, scale=2.5)
        logits, bias = randn(9, 16, dtype=torch.float32), randn(16, seed=1, dtype=torch.float32)
        experts, weights = npu.route(logits, bias, choice)
        wanted_experts, wanted = reference.route(logits, bias, choice)
        expect(experts.tolist(), wanted_experts.tolist(), "experts")
        close(weights, wanted, "weights of experts", 1e-6)
        gate_up, down = randn(16, 96, 512, seed=2) * 0.05, randn(16, 512, 48, seed=3) * 0.2
        many = randn(9, 512, seed=4)
        close(
            npu.run_experts(many, gate_up, down, experts, weights),
            reference.run_experts(many, gate_up, down, wanted_experts, wanted),
            "run",
        )


@check
def a_part_of_the_experts_adds_up_to_all_of_them_and_reads_no_row_of_another_token() -> None:
    """Rows behind the valid ones are NaN in the formulas, and so is one token: nobody else may turn NaN."""
    gate_up, down = randn(16, 96, 512, seed=2) * 0.05, randn(16, 512, 48, seed=3) * 0.2
    experts, weights = reference.route(randn(9, 16, dtype=torch.float32), torch.zeros(16), Routing(4, 1, 1, normalise=True, scale=2.5))
    for ops_input in (randn(9, 512, seed=4), torch.cat((torch.full((1, 512), float("nan"), dtype=BF16), randn(8, 512, seed=4)))):
        whole = npu.run_experts(ops_input, gate_up, down, experts, weights)
        parts = [
            npu.run_experts(ops_input, gate_up[at : at + 4], down[at : at + 4], experts, weights, first=at).float()
            for at in range(0, 16, 4)
        ]
        good = whole.isfinite().all(dim=1)
        expect(good.sum().item(), ops_input.isfinite().all(dim=1).sum().item(), "finite tokens")
        close(torch.stack(parts).sum(0)[good], whole[good], "sum of the parts")
    nobody = npu.run_experts(randn(3, 512), gate_up[:4], down[:4], torch.full((3, 2), 9), torch.ones(3, 2), first=0)
    expect(nobody.abs().max().item(), 0.0, "tokens whose experts are all elsewhere")


@check
def quantised_layers_and_experts_compute_what_the_reference_does() -> None:
    """4-bit weights and fp32 go the plain way."""
    results = trial.run(CPU)
    for name in ("quantise", "quantised_linear", "run_quantised_experts"):
        assert results[name]["state"] == "kernel", f"{name}: {results[name]}"
    x = randn(4, 64, dtype=torch.float32)
    before = dict(kernels.fallbacks)
    expect([part.tolist() for part in npu.quantise(x)], [part.tolist() for part in reference.quantise(x)], "in fp32")
    integers, scale = reference.quantise(randn(2 * 64, 64))
    four = (integers // 16).view(2, 64, 64)
    gate_up, down = Weights(pack(four), scale.view(2, 64)), Weights(pack(four[..., :32].contiguous()), scale.view(2, 64))
    chosen, weights = torch.tensor([[0], [1], [1]]), torch.ones(3, 1)
    got = [ops.run_quantised_experts(randn(3, 64), gate_up, down, chosen, weights) for ops in (npu, reference)]
    assert torch.equal(*got), "4-bit weights"
    expect(fallbacks(before), {"quantise": 1, "run_quantised_experts": 1}, "counted")


@check
def experts_with_adapters_run_in_plain_torch_and_are_counted() -> None:
    def double(_place: int, _x: torch.Tensor, output: torch.Tensor, *_: object) -> None:
        output *= 2

    before, x, matrices = dict(kernels.fallbacks), randn(1, 64), (randn(2, 64, 64), randn(2, 64, 32))
    integers, choice = [Weights(part.char(), torch.ones(part.shape[:2])) for part in matrices], (torch.ones(1, 1).int(), torch.ones(1, 1))
    for name, given in (("run_experts", matrices), ("run_quantised_experts", integers)):
        assert torch.equal(*(getattr(ops, name)(x, *given, *choice, extra=double) for ops in (npu, reference))), name
    expect(fallbacks(before), {"run_experts": 1, "run_quantised_experts": 1}, "counted")


@check
def rotation_gives_the_references_products_in_an_order_of_its_own() -> None:
    positions = torch.tensor([0, 5, 70_000])
    query, key = randn(3, 4, ROPE), randn(3, 1, ROPE, seed=1)
    products = []
    for ops in (npu, reference):
        angles = ops.rotary(positions, THETA, ROPE)
        one, other = query.clone(), key.clone()
        ops.rotate(one, angles)
        ops.rotate(other, angles)
        products.append((one.float() @ other.float().mT.reshape(3, ROPE, 1)).squeeze())
        if ops is npu:
            plain = query.clone()
            npu._rotate_plainly(plain, angles)
            close(plain, one, "the plain rotation and the kernel's")
    close(*products, "products of rotated vectors")


@check
def a_remembered_token_is_where_and_what_the_reference_remembers() -> None:
    slots = torch.tensor([17, 40, 16])
    kv, weight, key = randn(3, 576), randn(512, seed=1), randn(3, INDEX, seed=2)
    caches = [
        LayerCache(torch.zeros(64, LATENT, dtype=BF16), torch.zeros(64, ROPE, dtype=BF16), torch.zeros(64, INDEX, dtype=BF16)) for _ in "12"
    ]
    for ops, cache in zip((npu, reference), caches, strict=True):
        ops.remember(kv.clone(), weight, 1e-6, ops.rotary(torch.tensor([3, 4, 5]), THETA, ROPE), slots=slots, cache=cache)
        ops.remember_index(key, slots, cache)
    ours, theirs = caches
    close(ours.latent, theirs.latent, "latents")
    close(torch.cat((theirs.rope[:, 0::2], theirs.rope[:, 1::2]), dim=1), ours.rope, "rotary keys, evens first")
    assert torch.equal(ours.index, theirs.index), "index keys"


@check
def the_kernels_choose_and_attend_as_the_reference_does() -> None:
    cache = LayerCache(randn(640, LATENT), randn(640, ROPE, seed=1), randn(640, INDEX, seed=2))
    prompt = [Chunk(range(30), 80, [9, 3, 30, 1, 5, 6, 17])]
    short = [Chunk(range(20), 15, [9, 3, 30])]
    decodes = [Chunk([0], 99, list(range(1, 8))), Chunk([0], 70, list(range(10, 17))), Chunk([0], 20, [20, 22, *[0] * 5])]
    for chunks in (prompt, short, decodes):
        queries, _ = queries_of(chunks)
        count = queries.positions.numel()
        query, weights = randn(count, 8, INDEX, seed=3), randn(count, 8, seed=4)
        latent, rope = randn(count, 4, LATENT, seed=5) * 0.3, randn(count, 4, ROPE, seed=6) * 0.3
        mine = npu.choose(query, weights.float(), cache, queries, k=32, select=None)
        theirs = reference.choose(query, weights.float(), cache, queries, k=32, select=None)
        for row, other, at in zip(mine.positions.flatten(0, 1), theirs.positions.flatten(0, 1), queries.positions.flatten(), strict=True):
            expect({int(p) for p in row if p >= 0}, {int(p) for p in other if p <= at}, "chosen positions")
        wanted = reference.attend(latent, rope, cache, queries, theirs, scale=0.1)
        close(npu.attend(latent, rope, cache, queries, mine, scale=0.1), wanted, "attention on the kernel's choice")
        close(
            npu.attend(
                latent, rope, cache, queries, reference.choose(query, weights.float(), cache, queries, k=32, select=None), scale=0.1
            ),
            wanted,
            "theirs",
        )
        close(npu._attend_plainly(latent, rope, cache, queries, mine, scale=0.1), wanted, "plain attention on the kernel's choice")
        everything = reference.attend(latent, rope, cache, queries, None, scale=0.1)
        close(npu.attend(latent, rope, cache, queries, None, scale=0.1), everything, "attention on everything visible")


@check
def a_model_gives_the_references_logits_in_steps_of_every_kind_whichever_kernel_is_lacking() -> None:
    """Prompts in chunks beside decodes, contexts shorter and longer than the selection, pages in no order.

    fp16 and all experts chosen: roundings then tip few choices between nearly equal tokens, and none between experts. A slip in the
    wiring moves these logits by half of the largest.
    """
    settings = config(index_topk=48, num_experts_per_tok=8)
    models = {ops: new_decoder(ops, settings, "cpu", torch.float16) for ops in (npu, reference)}
    pages = [[9, 3, 30, 1, 5, 6, 17], [2, 4, 8, 10, 12], [31, 29, 27]]
    steps = [
        [Chunk(range(60), 0, pages[0])],
        [Chunk(range(7, 27), 60, pages[0]), Chunk(range(70), 0, pages[1])],
        [Chunk([5], 80, pages[0]), Chunk([6], 70, pages[1]), Chunk(range(33), 0, pages[2])],
        [Chunk([7], 81, pages[0]), Chunk([8], 71, pages[1]), Chunk([9], 33, pages[2])],
    ]
    for decoder in models.values():
        fill(decoder)

    def logits(decoder: Decoder) -> Tensor:
        cache = KVCache.allocate(settings, 32, PAGE, CPU, torch.float16)
        return torch.cat([decoder.logits(decoder(build_batch(step, settings, PAGE, CPU), cache)) for step in steps])

    wanted, before = logits(models[reference]), dict(kernels.fallbacks)
    close(logits(models[npu]), wanted, "logits", 6e-2)
    expect(fallbacks(before), {}, "fallbacks")
    for lacking in kernels.KERNELS:
        with mock.patch.dict(npu.missing, {lacking: "its kernel"}):
            close(logits(models[npu]), wanted, f"logits without the kernel of {lacking}", 6e-2)


# --- what goes another way ---------------------------------------------------------------------------------------------------


@check
def the_device_gets_this_set_and_the_cpu_the_reference() -> None:
    assert operators("npu") is npu
    assert operators("cpu") is reference


@check
def sizes_that_no_kernel_takes_run_in_plain_torch_and_are_counted() -> None:
    settings = config(kv_lora_rank=32, qk_rope_head_dim=16, index_head_dim=32, num_attention_heads=3, norm_topk_prob=False)
    models = {ops: new_decoder(ops, settings, "cpu", torch.float32) for ops in (npu, reference)}
    chunks = [Chunk(range(60), 0, [9, 3, 30, 1])]
    before, logits = dict(kernels.fallbacks), {}
    for ops, decoder in models.items():
        fill(decoder)
        cache = KVCache.allocate(settings, 32, PAGE, CPU, torch.float32)
        logits[ops] = decoder.logits(decoder(build_batch(chunks, settings, PAGE, CPU), cache))
    close(logits[npu], logits[reference], "logits", 1e-4)
    counted = fallbacks(before)
    expect(
        {name: count > 0 for name, count in counted.items()},
        dict.fromkeys(("rotate", "remember", "remember_index", "choose", "attend", "route"), True),
        "counted",
    )


@check
@torch.inference_mode(mode=False)  # there torch hands out whole operators instead of their parts
@torch.no_grad()
def whatever_else_the_decoder_calls_has_a_kernel_on_the_device_too() -> None:
    """torch_npu sends an operator of torch that it lacks to the CPU and back, without a word. With kernels, and all in plain torch."""
    settings = config()
    for kept in (npu._kernels, mock.MagicMock(**{f"{name}.side_effect": npu.Unfit("test") for name in ALL_KERNELS})):
        decoder = new_decoder(npu, settings, "cpu", BF16)
        fill(decoder)
        cache = KVCache.allocate(settings, 32, PAGE, CPU, BF16)
        with mock.patch.object(npu, "_kernels", kept), Calls() as calls:
            for step in ([Chunk(range(60), 0, [9, 3, 30, 1])], [Chunk([5], 60, [9, 3, 30, 1]), Chunk(range(9), 0, [2])]):
                decoder.logits(decoder(build_batch(step, settings, PAGE, CPU), cache))
        lacking = {name for name in calls.aten if not is_on_device(name)}
        # torch_npu has its own scaled_dot_product_attention in place of this one
        expect(lacking - {"aten::_scaled_dot_product_flash_attention_for_cpu"}, set(), "operators that would run on the CPU")
        assert len(calls.aten) > 20
    expect([is_on_device(name) for name in ("aten::repeat_interleave.Tensor", "aten::special_bessel_j1")], [False, False], "lacking ones")


@check
def a_selection_of_the_callers_own_is_honoured() -> None:
    cache = LayerCache(randn(640, LATENT), randn(640, ROPE), randn(640, INDEX))
    queries, _ = queries_of([Chunk(range(4), 80, [1, 2, 3, 4, 5, 6])])
    seen: list[Tensor] = []

    def first(scores: Tensor, k: int) -> Tensor:
        seen.append(scores)
        return torch.arange(k).expand(*scores.shape[:2], k)

    chosen = npu.choose(randn(4, 8, INDEX), randn(4, 8, dtype=torch.float32), cache, queries, k=32, select=first)
    expect(len(seen), 1, "calls of the selector")
    expect(chosen.positions[0, 0].tolist(), list(range(32)), "positions")


@check
def a_kernel_that_torch_npu_or_cann_lacks_is_replaced_counted_and_told_once() -> None:
    x, weight = randn(4, 512), randn(512, seed=1)
    lacking = RuntimeError("aclnnRmsNorm or aclnnRmsNormGetWorkspaceSize not in libopapi.so, or libopapi.so not found.\nmore")
    lines: list[str] = []
    listener = logging.Handler()
    listener.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign] # the least that listens
    kernels.log.addHandler(listener)
    with mock.patch.dict(npu.missing), mock.patch.object(npu, "_kernels") as broken:
        broken.npu_rms_norm.side_effect = lacking
        before = dict(kernels.fallbacks)
        for _ in range(3):
            assert torch.equal(npu.rms_norm(x, weight, 1e-5), reference.rms_norm(x, weight, 1e-5))
        expect(fallbacks(before), {"rms_norm": 3}, "counted")
        expect(broken.npu_rms_norm.call_count, 1, "tries of the missing kernel")
    expect(len(lines), 1, f"lines {lines}")
    assert "aclnnRmsNorm" in lines[0]
    kernels.log.removeHandler(listener)


@check
def another_error_of_the_device_is_not_swallowed() -> None:
    with mock.patch.object(npu, "_kernels") as broken:
        broken.npu_swiglu.side_effect = RuntimeError("NPU out of memory")
        try:
            npu.swiglu(randn(2, 8))
        except RuntimeError as error:
            expect(str(error), "NPU out of memory", "error")
        else:
            raise AssertionError("no error")


@check
def every_kernel_that_the_set_names_is_in_the_wheel_and_called_with_its_own_argument_names() -> None:
    expect(npu.missing, {}, "missing kernels")
    for name in ALL_KERNELS:
        schema = getattr(torch.ops.npu, name).default._schema
        wanted = [argument.name for argument in schema.arguments]
        code = getattr(formulas, name).__code__
        given = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        takes_more = bool(code.co_flags & 0x08)
        assert set(given) <= set(wanted), f"{name}: the formula has {set(given) - set(wanted)}, which the schema lacks"
        assert takes_more or set(given) == set(wanted), f"{name}: the schema has {set(wanted) - set(given)}"


@check
def each_trial_of_doctor_passes_on_the_documented_formulas_and_tells_a_wrong_kernel() -> None:
    expect({name: result["state"] for name, result in trial.run(CPU).items()}, dict.fromkeys(kernels.KERNELS, "kernel"), "states")
    for name, function in (("npu_sparse_flash_attention", "attend"), ("npu_interleave_rope", "rotate"), ("npu_moe_gating_top_k", "route")):
        right = getattr(torch.ops.npu, name)

        def wrong(*args: object, right: Callable[..., object] = right, **kwargs: object) -> object:
            return tree_map(lambda x: x + 1 if x.is_floating_point() else x, right(*args, **kwargs))

        with mock.patch.object(npu, "_kernels") as broken:
            setattr(broken, name, wrong)
            expect(trial.run(CPU)[function]["state"], "differs", f"{function} with a wrong kernel")
            setattr(broken, name, mock.Mock(side_effect=RuntimeError("507015 aicore exception\nmore")))
            expect(trial.run(CPU)[function], {"state": "fails", "reason": "507015 aicore exception"}, f"{function} with a broken kernel")


def main() -> None:
    formulas.register()
    report = {}
    with torch.inference_mode():
        for function in checks:
            try:
                function()
                report[function.__name__] = None
            except Exception:  # noqa: BLE001 - it is reported
                report[function.__name__] = traceback.format_exc()
    json.dump(report, sys.stdout)


if __name__ == "__main__":
    main()
