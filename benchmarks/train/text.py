"""Real text to train on: the sections of this repository's pages as questions and answers, in the model's template, and their batches."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

from glm5_runtime.train.data.labels import Renderer
from glm5_runtime.train.data.reading import ReadingConfig, load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glm5_runtime.train.data.dataset import Dataset

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "fixtures" / "tiny-glm5"
MAX_LENGTH = 512


def paragraphs() -> Iterator[dict[str, str]]:
    """A row for each paragraph, table or block of code, asked for by its heading."""
    for page in sorted((ROOT / "docs").glob("*.md")):
        heading, count = page.stem, 0
        for block in re.split(r"\n{2,}", page.read_text()):
            if block.startswith("#"):
                heading, count = block.lstrip("# ").partition("\n")[0], 0
                continue
            count += 1
            yield {"instruction": f"{page.stem}, {heading}, part {count}", "output": block}


def dataset(folder: Path, max_length: int = MAX_LENGTH) -> Dataset:
    """The rows as training reads them, long ones cut."""
    file = folder / "pages.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in paragraphs()))
    return load([file], Renderer.from_dir(TINY), ReadingConfig(max_length, long_rows="cut", lenient=True))[0]
