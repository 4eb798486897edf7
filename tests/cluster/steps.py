"""Build steps with visible progress: what doesn't wait for each other runs side by side. Used by build.py and the CLI."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

_NEWS_SECONDS = 0.1
"""What takes less was in the cache already, and is no news."""


@dataclass(frozen=True, slots=True)
class Step:
    """One thing to do.

    Attributes:
        name: Unique; shown to the user.
        action: Does it; called once in a thread of its own.
        after: Names of steps that must be done before.
        lane: Steps of one lane never run at the same time (Go builds use every core by themselves).
    """

    name: str
    action: Callable[[], object]
    after: tuple[str, ...] = ()
    lane: str | None = None


def run_steps(steps: Sequence[Step], console: Console) -> dict[str, float]:
    """Run all steps, each as soon as it may, and return how many seconds each took.

    The first failure is raised once the steps that already run have ended; no new ones are started then. Where the console is no
    terminal, and so shows no spinner, steps that take a while are named while they run.
    """
    seconds: dict[str, float] = {}
    waiting = list(steps)
    running: dict[Future[float], tuple[Step, TaskID]] = {}
    failure: BaseException | None = None
    unsaid: list[Step] = []
    columns = (SpinnerColumn(finished_text="[green]✓"), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress, ThreadPoolExecutor(max_workers=4) as pool:
        while waiting or running:
            for step in [] if failure else _startable(waiting, seconds, [step for step, _ in running.values()]):
                waiting.remove(step)
                running[pool.submit(_timed, step)] = (step, progress.add_task(step.name, total=1))
                unsaid += [] if console.is_terminal else [step]
            if not running:
                break
            done, _ = wait(running, timeout=_NEWS_SECONDS if unsaid else None, return_when=FIRST_COMPLETED)
            if not done:
                while unsaid:
                    console.print(f"… {unsaid.pop(0).name}", markup=False, highlight=False)
                continue
            for future in done:
                step, task = running.pop(future)
                unsaid = [other for other in unsaid if other is not step]
                progress.remove_task(task)
                error = future.exception()
                if error is not None:
                    failure = failure or error
                    console.print(f"[red]✗[/red] {step.name}")
                    continue
                seconds[step.name] = future.result()
                if seconds[step.name] > _NEWS_SECONDS:
                    console.print(f"[green]✓[/green] {step.name} [dim]{seconds[step.name]:.1f} s[/dim]")
    if failure is not None:
        raise failure
    assert not waiting, f"steps that wait for what is not there: {[step.name for step in waiting]}"
    return seconds


def _startable(waiting: Sequence[Step], done: dict[str, float], running: Sequence[Step]) -> list[Step]:
    busy = {step.lane for step in running if step.lane}
    chosen = []
    for step in waiting:
        if step.lane in busy or not all(name in done for name in step.after):
            continue
        chosen.append(step)
        if step.lane:
            busy.add(step.lane)
    return chosen


def _timed(step: Step) -> float:
    begin = time.monotonic()
    step.action()
    return time.monotonic() - begin
