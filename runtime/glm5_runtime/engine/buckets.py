"""Shapes that steps may be rounded up to, for runners that compile: a shape seen before costs nothing, a new one a compilation.

Data alone. `engine.steps` runs eagerly and pads nothing: on CPUs padding is work for nobody, on NPUs nobody has measured yet that it wins.
Ascend's unified buffer likes batches in multiples of 32 and lengths in multiples of 128; a checkpoint's `ascend_config.json` may differ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from glm5_runtime.config import ConfigError, read_object

if TYPE_CHECKING:
    from pathlib import Path

FILE = "ascend_config.json"
Size = Annotated[int, Field(ge=1, le=1 << 20)]


class _AscendConfig(BaseModel):
    """What is read of the file. ub_split_shape is a tile [1, batch, length, width]; the width belongs to the kernels."""

    model_config = ConfigDict(extra="ignore", strict=True)

    enable_dynamic_ub: bool = True
    ub_split_shape: Annotated[list[Size], Field(min_length=4, max_length=4)] = [1, 32, 128, 128]


@dataclass(frozen=True, slots=True)
class Buckets:
    """Batches are rounded up to multiples of `batch` sequences, lengths to multiples of `length` tokens; 1 is as it comes."""

    batch: int = 32
    length: int = 128

    @classmethod
    def from_dir(cls, model_dir: Path) -> Buckets:
        """The checkpoint's hints, else Ascend's multiples; `enable_dynamic_ub: false` is every shape as it comes. Raises ConfigError."""
        path = model_dir / FILE
        if not path.exists():
            return cls()
        try:
            config = _AscendConfig.model_validate(read_object(path))
        except ValidationError as error:
            faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
            raise ConfigError(f"{path}: {faults}; write ub_split_shape as [1, batch, length, width], or remove the file") from error
        return cls(*config.ub_split_shape[1:3]) if config.enable_dynamic_ub else cls(1, 1)

    def shape(self, sequences: int, tokens: int) -> tuple[int, int]:
        """The bucket of a step: sequences and the longest context, rounded up."""
        return -(-sequences // self.batch) * self.batch, -(-tokens // self.length) * self.length


AS_THEY_COME = Buckets(1, 1)
