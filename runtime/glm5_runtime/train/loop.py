"""The training loop: batches in, steps of the optimiser, evaluations, checkpoints; resumable after any step, with the same losses.

Called by the `train` command with everything built. What is random (dropout) is seeded by the step's number, the order of rows follows
from the epoch, the rate from the step: so tensors and a few numbers (`state`) are all that a resume needs.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import torch
from torch.amp.grad_scaler import GradScaler

from glm5_runtime.config import ConfigError
from glm5_runtime.train import faults
from glm5_runtime.train.distributed.ranks import ALONE
from glm5_runtime.train.distributed.sharding import Sharded, shares, whole
from glm5_runtime.train.faults import NotFinite
from glm5_runtime.train.optimizer import adamw, named_trainable, rate_factor, set_rate, training_tensors
from glm5_runtime.train.packing import pack, trained_tokens
from glm5_runtime.train.progress import Progress
from glm5_runtime.train.state import TrainState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from torch import Tensor

    from glm5_runtime.train.checkpoint import Checkpoints
    from glm5_runtime.train.config import TrainConfig
    from glm5_runtime.train.data.example import Example
    from glm5_runtime.train.distributed.ranks import Ranks
    from glm5_runtime.train.forward import TrainingModel
    from glm5_runtime.train.packing import Pack
    from glm5_runtime.train.progress import Reporter

log = logging.getLogger(__name__)

INITIAL_SCALE = 65536.0
"""Of the loss in fp16: gradients are this much smaller than their type's numbers. Halved by an overflow, doubled after 2000 good steps."""
_DEFAULT_EPOCHS = 3
_SMOOTHING = 0.1
"""Weight of the newest step in the mean time of a step."""


class Interrupted(Exception):  # noqa: N818 - no error
    """Somebody asked the run to stop; everything up to here is in a checkpoint."""


class Batches(Protocol):
    """Where rows come from: the same order for the same epoch, whenever it is asked for."""

    def epoch(self, number: int) -> Sequence[Sequence[Example]]:
        """The batches of an epoch."""


class Outcome(Protocol):
    """What `Learn` has done."""

    @property
    def tokens(self) -> int:
        """Tokens computed."""

    @property
    def facts(self) -> Mapping[str, float]:
        """Measured on the way."""


class Learn(Protocol):
    """What a step does with its rows, where that isn't learning to say them."""

    def __call__(self, rows: Sequence[Example], number: int, update: Callable[[list[Pack], Callable[[int], Tensor]], None]) -> Outcome:
        """Step `number`, from 0; `update` makes one of the optimiser, from micro-batches and the loss of each one's place."""


@dataclass(frozen=True, slots=True)
class _Step:
    """What a step found, over all ranks: mean loss, the gradient's length before clipping, tokens of its rows, seconds."""

    loss: float
    norm: float
    tokens: int
    seconds: float
    is_last: bool = False
    """Some rank was asked to stop before it."""
    facts: Mapping[str, float] | None = None
    """What else there is to tell of it (see `Progress.rl`)."""

    @property
    def is_finite(self) -> bool:
        return math.isfinite(self.loss) and math.isfinite(self.norm)


class Trainer:
    """One run, in one process or in each of several."""

    def __init__(
        self,
        model: TrainingModel,
        config: TrainConfig,
        batches: Batches,
        held_back: Sequence[Sequence[Example]],
        checkpoints: Checkpoints,
        *,
        report: Reporter,
        ranks: Ranks = ALONE,
        learn: Learn | None = None,
        data: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`held_back`: batches for evaluation; `report` is called after every step, `progress` may be read at any time.

        Every rank is given the same model and the same batches, and computes its share of each. `learn` is for one rank.
        `data`: a digest of all rows, by which a resume sees that they are the same.
        """
        self._model, self._config, self._training, self._ranks = model, config, config.training, ranks
        self._batches, self._held_back, self._checkpoints = batches, held_back, checkpoints
        self._report, self._clock, self._learn = report, clock, learn
        self._device = model.decoder.embed_tokens.weight.device
        self._sharded = Sharded(model, ranks, config.training.sharding)
        self._optimizer = adamw(model, config.training)
        is_scaled = config.training.dtype == "fp16"
        self._scaler = GradScaler(self._device.type, init_scale=INITIAL_SCALE, enabled=is_scaled)
        if not len(batches.epoch(0)):
            raise ConfigError("data.files: no batch to train on")
        epochs = self._training.epochs or _DEFAULT_EPOCHS
        self._total = self._training.steps or sum(len(batches.epoch(number)) for number in range(epochs))
        self._state = TrainState(run={**_identity(config), "data": data})
        self._epoch = 0.0
        self._seconds: float | None = None
        self._asked_to_stop = threading.Event()
        self.progress = Progress(0, self._total, 0.0)

    def run(self) -> Progress:
        """Train to the end, from the newest checkpoint on where there is one. Raises NotFinite, CheckpointError, Interrupted."""
        self._resume()
        stopped = False
        for rows in self._rows():
            step = self._step(rows)
            self._tell(step)
            if self._is_due(self._config.evaluation.every_steps) and self._held_back:
                stopped = self._evaluate_and_judge()
            if self._is_due(self._config.checkpoint.every_steps):
                self._save()
            if stopped:
                break
            if step.is_last or (self._ranks.is_alone and self._asked_to_stop.is_set()):  # ranks agree while they exchange gradients
                self._interrupt()
        self._finish()
        return self.progress

    def stop(self) -> None:
        """End after the step under way, with a checkpoint. May be called from a signal handler."""
        self._asked_to_stop.set()

    def _interrupt(self) -> None:
        self._save()
        self._checkpoints.wait()
        raise Interrupted(f"asked to stop after step {self._state.step} of {self._total}; the next run goes on from there")

    def _resume(self) -> None:
        """Tensors and state of the newest whole checkpoint, if there is one."""
        saved = self._checkpoints.newest()
        if saved is None:
            return
        state = TrainState.model_validate(saved.state)
        if differing := sorted(key for key, value in self._state.run.items() if state.run.get(key) != value):
            raise ConfigError(
                f"checkpoint.directory: {saved.path} is of a run with other settings or data ({', '.join(differing)}); name another folder"
            )
        self._checkpoints.load(saved, training_tensors(self._model, self._optimizer))
        self._scaler.load_state_dict(state.scaler)
        self._state, self._checkpoints.kept_step = state, state.best_step
        log.info("resumed from %s: step %d of %d", saved.path, saved.step, self._total)

    def _rows(self) -> Iterator[Sequence[Example]]:
        """Batches from the state's place to the end; the state is moved on before each is given out."""
        state = self._state
        batches = self._batches.epoch(state.epoch)
        while state.step < self._total:
            if state.batch == len(batches):
                state.epoch, state.batch = state.epoch + 1, 0
                batches = self._batches.epoch(state.epoch)
            state.batch += 1
            self._epoch = state.epoch + state.batch / len(batches)
            yield batches[state.batch - 1]

    def _step(self, rows: Sequence[Example]) -> _Step:
        """One step of the optimiser: a batch in micro-batches, each loss divided by what the whole batch learns."""
        started, training, state = self._clock(), self._training, self._state
        rate = training.learning_rate * rate_factor(state.step, self._total, training.schedule, training.rising(self._total))
        set_rate(self._optimizer, rate)
        found = self._learn_rows(rows) if self._learn is None else self._learn_otherwise(self._learn, rows)
        state.step += 1
        state.tokens += found.tokens
        return replace(found, seconds=self._clock() - started)

    def _learn_rows(self, rows: Sequence[Example]) -> _Step:
        """The rows' cross entropy."""
        self._model.train()
        parts = [(pack(part, self._device), counts) for part, counts in shares(rows, self._ranks, self._training.gradient_accumulation)]
        learned = max(1, trained_tokens(rows))
        found = self._update(rows, [each for each, _ in parts], lambda place: self._sharded(parts[place][0]) * (parts[place][1] / learned))
        return replace(found, tokens=sum(len(example.tokens) for example in rows))

    def _learn_otherwise(self, learn: Learn, rows: Sequence[Example]) -> _Step:
        """Whatever `learn` makes of them, in as many updates as it likes."""
        updates: list[_Step] = []
        outcome = learn(rows, self._state.step, lambda packs, loss: updates.append(self._update(rows, packs, loss)))
        loss = sum(each.loss for each in updates) / len(updates)
        is_last = any(each.is_last for each in updates)
        return replace(updates[-1], loss=loss, tokens=outcome.tokens, is_last=is_last, facts=outcome.facts)

    def _update(self, rows: Sequence[Example], packs: list[Pack], loss_of: Callable[[int], Tensor]) -> _Step:
        """One update of the optimiser, by the sum of what `loss_of` gives for each micro-batch's place; `rows` are what messages name."""
        state = self._state
        self._optimizer.zero_grad(set_to_none=True)
        losses = []
        for place in range(len(packs)):
            self._seed(place)
            with self._sharded.gathering(is_last=place == len(packs) - 1):
                loss = loss_of(place)
                torch.autograd.backward(self._scaler.scale(loss))
            losses.append(loss.detach())
        self._scaler.unscale_(self._optimizer)
        norm = self._clip()
        asked = norm.new_tensor(self._asked_to_stop.is_set())
        total, stops = self._ranks.sum(torch.stack([torch.stack(losses).sum(), asked]))
        mean, length, stopping = torch.stack([total, norm, stops]).tolist()  # the one wait for the device
        found = _Step(mean, length, 0, 0.0, is_last=stopping > 0)
        if found.is_finite:
            state.skipped_in_a_row = 0
            self._scaler.step(self._optimizer)
        else:
            self._judge_skipped(found, rows, packs)
        self._scaler.update()
        return found

    def _seed(self, place: int) -> None:
        """Dropout of a micro-batch depends on nothing that went before; each rank draws its own."""
        place = place * self._ranks.size + self._ranks.rank
        torch.manual_seed((self._training.seed * 1_000_003 + self._state.step) * 1009 + place)

    def _clip(self) -> Tensor:
        """Shorten the gradient; its length before that, fp32."""
        parameters = [parameter for _, parameter in named_trainable(self._model)]
        norm = whole(torch.nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None]))
        torch.nn.utils.clip_grads_with_norm_(parameters, self._training.clip, norm)
        return norm

    def _judge_skipped(self, step: _Step, rows: Sequence[Example], packs: list[Pack]) -> None:
        """A step that isn't finite changes nothing. Overflows of scaled gradients are expected; others only now and then."""
        state, number = self._state, self._state.step + 1
        if math.isfinite(step.loss) and self._scaler.get_scale() > faults.LEAST_SCALE:
            state.overflows += 1
            log.warning("step %d: fp16 gradients overflowed, left out; the loss is scaled by half from now on", number)
            return
        state.skipped += 1
        state.skipped_in_a_row += 1
        self._seed(0)
        place = faults.first_place(self._model, packs, self._ranks)
        what = f"step {number}: loss {step.loss:g}, gradient {step.norm:g}; first in {place}; batch of {faults.rows_of(rows)}"
        if state.skipped_in_a_row < faults.MOST_IN_A_ROW:
            log.warning("%s; the step is left out", what)
            return
        self._forget_spoiled(math.isfinite(step.loss))
        raise NotFinite(f"{what}; {faults.MOST_IN_A_ROW} steps in a row were not finite: lower the learning rate or look at these rows")

    def _forget_spoiled(self, is_loss_finite: bool) -> None:
        """The checkpoint made from the weights that give no finite loss isn't one to go on from."""
        self._checkpoints.wait()
        last_good = self._state.step - faults.MOST_IN_A_ROW + 1  # the step whose weights gave the first such loss
        if not is_loss_finite:
            self._checkpoints.set_aside(last_good)

    def _tell(self, step: _Step) -> None:
        state = self._state
        self._seconds = step.seconds if self._seconds is None else self._seconds + _SMOOTHING * (step.seconds - self._seconds)
        self.progress = Progress(
            step=state.step,
            total=self._total,
            epoch=self._epoch,
            loss=step.loss,
            learning_rate=self._optimizer.param_groups[0]["lr"],
            gradient_norm=step.norm,
            tokens=state.tokens,
            tokens_per_second=step.tokens / step.seconds if step.seconds else 0.0,
            eta_seconds=(self._total - state.step) * self._seconds,
            evaluation_loss=self.progress.evaluation_loss,
            overflows=state.overflows,
            skipped=state.skipped,
            checkpoint_step=self._checkpoints.newest_step,
            rl=step.facts,
        )
        self._report(self.progress)

    def _is_due(self, interval: int) -> bool:
        return self._state.step % interval == 0

    def _evaluate_and_judge(self) -> bool:
        """Whether to stop early: no better loss for as many evaluations as the file allows."""
        settings, state = self._config.evaluation, self._state
        loss = self.evaluate()
        log.info("evaluation after step %d: loss %.4f", state.step, loss)
        self.progress = replace(self.progress, evaluation_loss=loss)
        if state.best_loss is None or loss < state.best_loss - settings.least_gain:
            state.best_loss, state.evaluations_without_gain = loss, 0
            if settings.patience is not None:
                self._keep_best()
            return False
        state.evaluations_without_gain += 1
        return settings.patience is not None and state.evaluations_without_gain >= settings.patience

    def evaluate(self) -> float:
        """Mean loss over the learned tokens of the rows that are held back."""
        self._model.eval()
        total = torch.zeros((), device=self._device)
        with torch.no_grad():
            for rows in self._held_back:
                for part, counts in shares(rows, self._ranks, 1):
                    total += self._model(pack(part, self._device)) * counts
        return float(self._ranks.sum(total)) / max(1, sum(map(trained_tokens, self._held_back)))

    def _keep_best(self) -> None:
        """A checkpoint that stays, to end with if nothing better comes."""
        self._state.best_step = self._checkpoints.kept_step = self._state.step
        self._save()

    def _save(self) -> None:
        if self._state.skipped_in_a_row:
            return  # whether the weights are good is not known
        state = self._state.model_copy(update={"scaler": self._scaler.state_dict()})
        self._checkpoints.save(state.step, training_tensors(self._model, self._optimizer), state.model_dump())

    def _finish(self) -> None:
        """A last checkpoint and evaluation; with early stop the model has its best weights afterwards."""
        self._save()
        if self._held_back and not self._is_due(self._config.evaluation.every_steps):
            self._evaluate_and_judge()
        self._checkpoints.wait()
        best = self._state.best_step
        if best is not None and best != self._state.step:
            log.info("the weights of step %d had the best evaluation and are taken", best)
            self._checkpoints.load(self._checkpoints.at(best), training_tensors(self._model, self._optimizer))


def _identity(config: TrainConfig) -> dict[str, object]:
    """What makes a checkpoint one of this run. With other batches its place in an epoch would mean nothing."""
    lora, training = config.lora, config.training
    adapters = {"rank": lora.rank, "targets": sorted(lora.targets)} if config.has_adapters else {}
    batches = {name: getattr(training, name) for name in ("batch_size", "batch_tokens", "packing", "seed")}
    return {"method": config.method, "model": config.model.resolve().name, "share": config.evaluation.share, **batches, **adapters}
