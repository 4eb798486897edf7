"""How the cache is sized from what the device has, and that serving takes no more afterwards."""

from __future__ import annotations

import ctypes
import mmap
from pathlib import Path

import pytest
import torch

from glm5_runtime.config import ConfigError, EngineConfig, ModelConfig
from glm5_runtime.engine import memory
from glm5_runtime.engine.load import load_engine
from glm5_runtime.engine.memory import DeviceMemory, cache_bytes, host_memory, step_bytes
from glm5_runtime.model.batch import workspace_bytes
from tests.runtime.engine.client import Client, encode, greedy, poll
from tests.support.peak import Peak

GB = 10**9
CARD = DeviceMemory(total=32 * GB, free=20 * GB, own=12 * GB)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, 20 - 3.2 - 1),
        ({"memory_fraction": 1.0}, 20 - 1),
        ({"memory_reserve": 2 * GB}, 20 - 3.2 - 2 - 1),
        ({"memory_limit": 28 * GB}, 28 - 12 - 1),
        ({"memory_limit": 28 * GB, "memory_reserve": GB}, 28 - 12 - 1 - 1),
        ({"memory_limit": 40 * GB}, 20 - 3.2 - 1),
        ({"memory_limit": 12 * GB}, 0),
    ],
    ids=["nine tenths", "all", "a reserve", "28 of 32 GB", "28 GB with a reserve", "a limit that is none", "used up"],
)
def test_the_cache_takes_what_fraction_reserve_and_limit_all_allow(settings: dict[str, float], expected: float) -> None:
    config = EngineConfig(**settings)  # type: ignore[arg-type]  # one dictionary for fields of two types
    assert cache_bytes(CARD, config, workspace=GB) == pytest.approx(expected * GB, rel=1e-9)


@pytest.mark.parametrize(
    ("limit", "total", "free"),
    [
        ("max", 16_000_000 * 1024, 8_000_000 * 1024),
        ("3000000000", 3_000_000_000, 2_000_000_000),
        ("900000000", 900_000_000, 0),
        (None, 16_000_000 * 1024, 8_000_000 * 1024),
    ],
    ids=["no limit", "a limit", "a limit that is used up", "no container"],
)
def test_a_host_has_what_the_machine_has_or_the_containers_limit_leaves(limit: str | None, total: int, free: int, tmp_path: Path) -> None:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:       16000000 kB\nMemFree: 1000000 kB\nMemAvailable: 8000000 kB\n")
    (tmp_path / "proc/self/status").write_text("Name:\tpython\nVmRSS:\t  900 kB\nRssAnon:\t     700 kB\n")
    if limit is not None:
        (tmp_path / "sys/fs/cgroup").mkdir(parents=True)
        (tmp_path / "sys/fs/cgroup/memory.max").write_text(f"{limit}\n")
        (tmp_path / "sys/fs/cgroup/memory.stat").write_text("anon_thp 5\nanon 1000000000\nfile 1900000000\n")

    assert host_memory(tmp_path) == DeviceMemory(total, free, 700 * 1024)


def test_a_limit_that_leaves_no_room_for_one_request_is_refused_with_the_numbers(tiny_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"0 would fit in memory: .* GB free of .* raise --memory-fraction or ASCEND_MAX_MEM"):
        load_engine(tiny_dir, EngineConfig(memory_limit=1000))


def test_a_smaller_step_leaves_more_for_the_cache(tiny_dir: Path) -> None:
    model = ModelConfig.from_dir(tiny_dir)
    assert step_bytes(EngineConfig(max_batched_tokens=256), model) < step_bytes(EngineConfig(max_batched_tokens=8192), model)


def test_the_cache_is_in_memory_from_the_start(tiny_dir: Path) -> None:
    engine = load_engine(tiny_dir, EngineConfig(cache_tokens=1 << 17))
    tensors = _tensors(engine._runner._steps.cache)
    assert sum(tensor.nbytes for tensor in tensors) > 100_000_000
    assert [_resident_share(tensor) for tensor in tensors] == [1.0] * len(tensors)


def _resident_share(tensor: torch.Tensor) -> float:
    """Share of a tensor's memory that the kernel holds in RAM (mincore); the process' own size would also tell of others' memory."""
    start = -(-tensor.data_ptr() // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = (tensor.data_ptr() + tensor.nbytes - start) // mmap.PAGESIZE
    seen = (ctypes.c_ubyte * pages)()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(start), ctypes.c_size_t(pages * mmap.PAGESIZE), seen) == 0
    return sum(byte & 1 for byte in seen) / pages


def _tensors(cache: object) -> list[torch.Tensor]:
    """All tensors of a cache, however its layers name them."""
    return [
        tensor
        for layer in cache.layers
        for name in layer.__slots__
        if isinstance(tensor := getattr(layer, name), torch.Tensor)  # type: ignore[attr-defined]  # any cache
    ]


def test_serving_allocates_no_cache_and_keeps_no_memory(tiny_dir: Path) -> None:
    """Temporaries come and go in every step; what this shows is that none of them stay, over some hundred steps of mixed work."""
    engine = load_engine(tiny_dir, EngineConfig(max_sequences=8, max_batched_tokens=256, cache_tokens=8192))
    addresses = [tensor.data_ptr() for tensor in _tensors(engine._runner._steps.cache)]
    engine.start()
    client = Client(engine)
    prompt = encode("The river was wide and slow. " * 30)

    def work(rounds: int) -> None:
        for number in range(rounds):
            streams = [client.send(prompt[number + index :], greedy(12, ignore_eos=True)) for index in range(8)]
            assert all(len(stream.tokens()) == 12 for stream in streams)

    work(6)
    before = host_memory(Path("/")).own
    work(12)
    grown = host_memory(Path("/")).own - before
    poll(lambda: not engine.stats().has_work, "idle")
    engine.stop()

    assert grown < 4_000_000
    assert [tensor.data_ptr() for tensor in _tensors(engine._runner._steps.cache)] == addresses


def test_a_step_allocates_nothing_of_the_caches_size_and_no_more_than_was_set_aside_for_it(
    tiny_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A prompt in six pieces, then decodes, of one request and of eight. The steps' part of memory without the slack that a tiny model has
    in it: for attention what this context takes, in place of the aim for large ones."""
    config = EngineConfig(max_sequences=8, max_batched_tokens=128, cache_tokens=1 << 17)
    engine = load_engine(tiny_dir, config)
    client, prompt = Client(engine), encode("The river was wide and slow. " * 120)[:700]
    monkeypatch.setattr(memory, "WORKSPACE_BYTES", workspace_bytes(710, 1, 128, engine.model_config))
    set_aside = step_bytes(config, engine.model_config)

    def steps() -> list[int]:
        """The most that each step held, until all is answered."""
        held = []
        while engine.stats().has_work:
            assert engine._take_commands()
            with Peak() as peak:
                engine._step()
            held.append(peak.most)
            assert peak.now < 10_000, "what is left are requests' own few numbers"
        return held

    with torch.inference_mode():
        client.send(prompt, greedy(5, ignore_eos=True, prompt_logprobs=0))
        alone = steps()
        for row in range(8):
            client.send(prompt[row : row + 300], greedy(9, ignore_eos=True))
        crowd = steps()
    engine.stop()

    smallest = min(tensor.nbytes for tensor in _tensors(engine._runner._steps.cache))
    assert len(alone) == 6 + 4
    assert set_aside < smallest
    assert max(alone[:6]) > set_aside / 5, "the prompt's steps are seen"
    assert max(*alone, *crowd) < set_aside
    assert max(alone[6:]) < smallest / 100, "a decode takes what its own context needs"
