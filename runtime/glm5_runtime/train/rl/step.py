"""One step of grpo or ppo: answers to a batch's prompts, their scores and advantages, then updates from the buffer.

The loop calls `RlStep` in the place of a step on rows; `update` is the loop's, and does all that concerns gradients and the optimiser. A
step begins and ends with nothing but the weights: the buffer is filled anew each time, so a checkpoint needs none of it.

Legend: B answers, T tokens of the longest with its prompt, M tokens of a micro-batch that count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch

from glm5_runtime.train.faults import NotFinite
from glm5_runtime.train.lora import without_adapters
from glm5_runtime.train.rl.advantages import gae, grpo, whiten
from glm5_runtime.train.rl.head import choose
from glm5_runtime.train.rl.losses import (
    PolicyBatch,
    PolicySettings,
    kl_estimate,
    policy_facts,
    policy_loss,
    token_weights,
    value_losses,
)
from glm5_runtime.train.rl.packing import packs_of
from glm5_runtime.train.rl.replay import Columns, ReplayBuffer
from glm5_runtime.train.rl.rewards import scores_of
from glm5_runtime.train.rl.rollout import Prompt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from glm5_runtime.train.config import TrainConfig
    from glm5_runtime.train.data.example import Example
    from glm5_runtime.train.packing import Pack
    from glm5_runtime.train.rl.policy import PolicyModel
    from glm5_runtime.train.rl.rewards import Scorer
    from glm5_runtime.train.rl.rollout import Answer, Rollouts

_COLUMNS = {"token": torch.int64, "counts": torch.bool, "old": torch.float32, "advantage": torch.float32}


class Update(Protocol):
    """The loop's: one step of the optimiser."""

    def __call__(self, packs: list[Pack], loss: Callable[[int], Tensor], /) -> None:
        """`loss` of each micro-batch's number gives what it adds to the loss; they are summed."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a step did: `tokens` of all answers with their prompts, and `facts` for people (means over answers or over tokens)."""

    tokens: int
    facts: dict[str, float]


class RlStep:
    """What the loop does with a batch of rows, for grpo and ppo."""

    def __init__(self, model: PolicyModel, config: TrainConfig, rollouts: Rollouts, score: Scorer, *, longest_prompt: int) -> None:
        assert config.rl is not None, "the method has the section"
        rl = config.rl
        self._model, self._rl, self._training = model, rl, config.training
        self._rollouts, self._score = rollouts, score
        self._settings = PolicySettings(
            rl.clip_low, rl.clip_high, kl=rl.kl.estimator, kl_weight=rl.kl.coefficient, entropy_weight=rl.entropy
        )
        self._device = model.decoder.embed_tokens.weight.device
        names = dict(_COLUMNS)
        if rl.kl.coefficient:
            names["reference"] = torch.float32
        if model.value_head is not None:
            names |= {"value": torch.float32, "return": torch.float32}
        capacity = config.training.batch_size * rl.group
        self._buffer = ReplayBuffer(Columns(names, {}), capacity, longest_prompt + rl.max_new_tokens, self._device)
        self._answers: list[Answer] = []

    def __call__(self, rows: Sequence[Example], number: int, update: Update) -> Outcome:
        """Step `number`, from 0. Raises RewardError, RolloutFailed, NotFinite."""
        self._model.eval()
        answers = self._rollouts.sample([Prompt.of(row) for row in rows], number)
        scores = scores_of(answers, self._score, self._rl)
        self._collect(answers, scores, number)
        self._model.train()
        seen: list[dict[str, Tensor]] = []
        for epoch in range(self._rl.epochs):
            for part in self._parts(number, epoch):
                update(*self._losses(part, seen))
        lengths = torch.tensor([float(len(each.tokens)) for each in answers])
        values = torch.tensor(scores)
        facts = {
            "reward": float(values.mean()),
            "reward_spread": float(values.std(correction=0)),
            "answer_tokens": float(lengths.mean()),
            "ended": sum(each.ended for each in answers) / len(answers),
        }
        return Outcome(sum(each.length for each in answers), facts | _means(seen))

    # --- from answers to the buffer -----------------------------------------------------------------------------------------

    @torch.no_grad()
    def _collect(self, answers: list[Answer], scores: list[float], number: int) -> None:
        """Fill the buffer with the answers of this step and nothing else."""
        self._answers = answers
        length = max(each.length for each in answers)
        tokens = self._table([[*each.prompt.tokens, *each.tokens] for each in answers], length)
        old = self._table([[0.0] * len(each.prompt.tokens) + each.log_probs for each in answers], length)
        places = torch.arange(length, device=self._device)
        begins, ends = torch.tensor([[each.row.start, each.row.end] for each in answers], device=self._device).T.unsqueeze(2)
        counts = (places >= begins) & (places < ends)
        columns = {"token": tokens, "counts": counts, "old": old}
        if self._settings.kl_weight:
            with without_adapters(self._model):
                columns["reference"] = self._over_tokens(tokens, self._log_probs)
        columns |= self._advantages(torch.tensor(scores, device=self._device), columns, ends)
        if strange := [name for name, column in columns.items() if not bool(column.isfinite().all())]:
            raise NotFinite(f"step {number + 1}: {', '.join(strange)} of the answers' tokens are not finite")
        self._buffer.clear()
        columns = {name: column.cpu() for name, column in columns.items()}
        for row, answer in enumerate(answers):
            self._buffer.add({name: column[row, : answer.length] for name, column in columns.items()}, {})

    def _advantages(self, scores: Tensor, columns: dict[str, Tensor], ends: Tensor) -> dict[str, Tensor]:
        """With a value head by GAE, whitened; else within each group."""
        counts = columns["counts"]
        if self._model.value_head is None:
            groups = torch.tensor([each.group for each in self._answers], device=self._device)
            return {"advantage": grpo(scores, counts, groups, divide_by_spread=self._rl.divide_by_spread)}
        values = self._over_tokens(columns["token"], lambda hidden, _targets: self._model.values(hidden))
        rewards = torch.zeros_like(values).scatter_(1, ends - 1, scores.unsqueeze(1))
        gamma, lam = (torch.tensor(each, device=self._device) for each in (self._rl.gamma, self._rl.lam))
        found = gae(rewards, values, counts, gamma, lam)
        enough = int(counts.sum()) > 1
        return {
            "value": values,
            "return": torch.where(counts, found.returns, 0.0),
            "advantage": torch.where(counts, whiten(found.advantages, counts) if enough else found.advantages, 0.0),
        }

    def _log_probs(self, hidden: Tensor, targets: Tensor) -> Tensor:
        return choose(hidden, self._model.decoder.lm_head.weight, targets, self._rl.temperature).log_probs

    def _over_tokens(self, tokens: Tensor, what: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Of every answer's tokens what (hidden [M, hidden], targets [M]) → [M] gives: [B, T] fp32, 0 elsewhere."""
        found = torch.zeros(tokens.numel(), device=self._device)
        for part, places in self._packs(tokens, range(len(self._answers))):
            found[places] = what(self._model.hidden(part), part.targets).float()
        return found.view_as(tokens)

    # --- from the buffer to losses ------------------------------------------------------------------------------------------

    def _parts(self, number: int, epoch: int) -> tuple[Tensor, ...]:
        """Places in the buffer for each update of a pass, in an order that follows from step and pass."""
        generator = torch.Generator().manual_seed((self._training.seed * 1_000_003 + number) * 1009 + epoch)
        order = torch.randperm(len(self._buffer), generator=generator)
        return order.tensor_split(min(self._rl.minibatches, len(order)))

    def _losses(self, rows: Tensor, seen: list[dict[str, Tensor]]) -> tuple[list[Pack], Callable[[int], Tensor]]:
        """The micro-batches of an update and what gives each one's loss; what is measured on the way goes to `seen`."""
        batch = self._buffer.gather(rows)
        weights = token_weights(batch.tokens["counts"], self._rl.aggregation).flatten()
        parts = self._packs(batch.tokens["token"], rows.tolist())
        columns = {name: column.flatten() for name, column in batch.tokens.items()}

        def loss(at: int) -> Tensor:
            part, places = parts[at]
            own = {name: column[places] for name, column in columns.items()}
            hidden = self._model.hidden(part)
            policy = PolicyBatch(part.targets, own["old"], own["advantage"], weights[places], own.get("reference"))
            found = policy_loss(hidden, self._model.decoder.lm_head.weight, policy, self._settings, self._rl.temperature)
            total = found.loss
            facts = policy_facts(found.chosen.log_probs, policy.old_log_probs, policy.advantages, own["counts"], self._settings)
            measured = {"clipped": facts.clipped, "kl": facts.kl, "entropy": found.chosen.entropy.mean()}
            if policy.reference_log_probs is not None:
                measured["kl_to_base"] = kl_estimate(found.chosen.log_probs, policy.reference_log_probs, "k3").mean()
            if self._model.value_head is not None:
                errors = value_losses(self._model.values(hidden), own["value"], own["return"], self._rl.value_clip)
                value_loss = (errors * policy.weights).sum()
                total = total + self._rl.value_weight * value_loss
                measured["value_loss"] = errors.detach().mean()
            seen.append({"tokens": total.new_tensor(len(places)), **measured})
            return total

        return [part for part, _ in parts], loss

    def _packs(self, tokens: Tensor, rows: Sequence[int]) -> list[tuple[Pack, Tensor]]:
        """These answers, whose tokens are [B, T], as micro-batches (see `packs_of`)."""
        return list(packs_of(tokens, [self._answers[row].row for row in rows], self._training.gradient_accumulation))

    def _table(self, rows: Sequence[Sequence[float]], width: int) -> Tensor:
        """Rows side by side, 0 behind their ends."""
        return torch.tensor([[*row, *[0] * (width - len(row))] for row in rows], device=self._device)


def _means(seen: list[dict[str, Tensor]]) -> dict[str, float]:
    """Over all tokens of all updates. The one wait for the device."""
    names = [name for name in seen[0] if name != "tokens"]
    tokens = torch.stack([each["tokens"] for each in seen])
    columns = torch.stack([torch.stack([each[name] for name in names]) for each in seen])
    means: list[float] = ((columns * tokens.unsqueeze(1)).sum(dim=0) / tokens.sum()).tolist()
    return dict(zip(names, means, strict=True))
