"""Numbers in 8 and 4 bits with scales: how they are rounded, packed and read back. Weights, activations and cache rows share it.

Weights, activations and 8-bit cache rows are symmetric: value ≈ integer · scale, so a product of integers needs no correction. Cache rows
in 4 bits go from their least to their largest value: of 16 steps none is lost (a third less drift, measured), and nobody multiplies them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch.nn import functional

if TYPE_CHECKING:
    from torch import Tensor

_LEAST_SCALE = 2.0**-24
"""The smallest number of fp16: a row of zeros, or one that rounds to them, has it as divisor."""


class Weights(NamedTuple):
    """Quantised matrices of experts: values int8 [E, out, in] or packed [E, out / 2, in] int8 (`pack`), scale [E, out] fp32."""

    values: Tensor
    scale: Tensor

    def of(self, expert: int) -> Tensor:
        """One expert's integers, int8 [out, in]."""
        values = self.values[expert]
        return values if values.shape[0] == self.scale.shape[1] else unpack(values)


def pack(values: Tensor) -> Tensor:
    """Integers -8 … 7 [..., out, in] int8, out even → two in a byte [..., out / 2, in] int8, the even row in the low half (ModelSlim's)."""
    return (values[..., 0::2, :] & 15) | (values[..., 1::2, :] << 4)


def unpack(packed: Tensor) -> Tensor:
    """What `pack` packed: [..., out / 2, in] int8 → [..., out, in] int8."""
    return torch.stack(((packed << 4) >> 4, packed >> 4), dim=-2).flatten(-3, -2)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Cache rows in 8 or 4 bits, each with a scale of its own; written and read like a tensor [S, width], read in fp32.

    8 bits: values int8 [S, width], scale [S, 1] fp16. 4 bits: two in a byte, values uint8 [S, width / 2 up], the row's first half in the
    low bits; scale [S, 2] fp16, the step and the least value.
    """

    values: Tensor
    scale: Tensor
    width: int

    @classmethod
    def allocate(cls, rows: int, width: int, bits: int, device: torch.device) -> PackedRows:
        """Zeros."""
        values = torch.zeros(rows, width if bits == 8 else -(-width // 2), device=device, dtype=torch.int8 if bits == 8 else torch.uint8)
        return cls(values, torch.zeros(rows, 1 if bits == 8 else 2, device=device, dtype=torch.float16), width)

    @property
    def shape(self) -> torch.Size:
        """Rows and their width."""
        return torch.Size((self.values.shape[0], self.width))

    @property
    def dtype(self) -> torch.dtype:
        """Of what is stored, never of what is read."""
        return self.values.dtype

    def index_copy_(self, dim: int, slots: Tensor, rows: Tensor) -> None:
        """Write rows [N, width] of any float type to slots [N] int64. A row that isn't finite is read as NaN."""
        integers, scale = (self._in_bytes if self.dtype == torch.int8 else self._in_steps)(rows.float())
        self.values.index_copy_(dim, slots, integers)
        self.scale.index_copy_(dim, slots, scale)

    def _in_bytes(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        scale = (rows.abs().amax(dim=-1, keepdim=True) / 127).half()
        integers = (rows / scale.float().clamp_min(_LEAST_SCALE)).round_().clamp_(-127, 127).nan_to_num_()
        return integers.to(torch.int8), torch.where(scale.isfinite(), scale, float("nan"))

    def _in_steps(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        low, high = rows.aminmax(dim=-1, keepdim=True)
        low = low.half()
        step = ((high - low.float()) / 15).half()
        steps = ((rows - low.float()) / step.float().clamp_min(_LEAST_SCALE)).round_().clamp_(0, 15).nan_to_num_()
        halves = functional.pad(steps.to(torch.uint8), (0, self.width % 2)).chunk(2, dim=-1)
        return halves[0] | (halves[1] << 4), torch.cat((step, low), dim=-1)

    def index_select(self, dim: int, rows: Tensor) -> Tensor:
        """Rows [M] int64 → [M, width] fp32."""
        return self._read(self.values.index_select(dim, rows), self.scale.index_select(dim, rows))

    def __getitem__(self, rows: slice) -> Tensor:
        return self._read(self.values[rows], self.scale[rows])

    def _read(self, values: Tensor, scale: Tensor) -> Tensor:
        if self.dtype == torch.int8:
            return values.float().mul_(scale)
        steps = torch.cat((values & 15, values >> 4), dim=-1)[:, : self.width]
        return steps.float().mul_(scale[:, :1]).add_(scale[:, 1:])  # in place: `batch.workspace_bytes` counts on it
