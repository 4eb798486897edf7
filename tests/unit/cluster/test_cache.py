"""The cache folder: whole artefacts or none, made once."""

import io
import threading
from pathlib import Path

import pytest

from tests.cluster import cache


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("GLM5_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_an_artefact_is_made_once_even_by_many_at_a_time() -> None:
    calls: list[Path] = []

    def build(draft: Path) -> None:
        calls.append(draft)
        draft.write_text("made")

    threads = [threading.Thread(target=cache.artefact, args=("thing", "k", build)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert cache.artefact("thing", "k", build).read_text() == "made"


def test_a_failed_build_leaves_nothing_and_the_next_one_starts_clean() -> None:
    def half(draft: Path) -> None:
        draft.mkdir()
        (draft / "part").touch()
        raise RuntimeError("disk full")

    with pytest.raises(RuntimeError, match="disk full"):
        cache.artefact("thing", "k", half)
    assert not cache.artefact_path("thing", "k").exists()

    def whole(draft: Path) -> None:
        draft.mkdir()  # fails if the half one were still there

    assert list(cache.artefact("thing", "k", whole).iterdir()) == []


def test_what_a_killed_build_left_is_removed(own_cache: Path) -> None:
    cache.root()
    (own_cache / ".draft-thing").mkdir()
    (own_cache / ".draft-thing" / "part").touch()
    assert list(cache.artefact("thing", "k", Path.mkdir).iterdir()) == []


def test_the_key_follows_content_names_and_order(tmp_path: Path) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "a").write_text("1")
    first = cache.content_key(folder, "x")
    assert first == cache.content_key(folder, "x")
    assert cache.content_key("ab", "c") != cache.content_key("a", "bc")
    (folder / "a").write_text("2")
    second = cache.content_key(folder, "x")
    (folder / "a").rename(folder / "b")
    assert len({first, second, cache.content_key(folder, "x")}) == 3


def test_a_lock_that_someone_holds_can_be_refused_at_once() -> None:
    shared = cache.locked("use", shared=True), cache.locked("use", shared=True)
    with shared[0], shared[1], pytest.raises(BlockingIOError), cache.locked("use", wait=False):
        pass
    with cache.locked("use", wait=False):
        pass


class Heard(io.StringIO):
    """Standard error that tells when a line is whole."""

    def __init__(self) -> None:
        super().__init__()
        self.line = threading.Event()

    def write(self, text: str) -> int:
        written = super().write(text)
        if "\n" in text:
            self.line.set()
        return written


def test_a_wait_for_another_process_says_for_what_and_where_its_log_is(monkeypatch: pytest.MonkeyPatch) -> None:
    log = cache.logs() / "build-kubelet.log"
    log.touch()
    heard, held = Heard(), threading.Event()
    monkeypatch.setattr("sys.stderr", heard)

    def hold() -> None:
        with cache.locked("tool-kubelet"):
            held.set()

    waiting = threading.Thread(target=hold)
    with cache.locked("tool-kubelet"):
        waiting.start()
        assert heard.line.wait(10)
        assert not held.is_set()
    waiting.join(10)
    assert held.is_set()
    assert heard.getvalue() == f"waiting for tool-kubelet: another process is at it, and writes to {log}\n"
