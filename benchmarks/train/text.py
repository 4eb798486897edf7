"""Real text to train on: the topics of Python's own help as questions and answers, in the model's template, and their batches.

It is the same for everybody who has the same Python; pages of this repository, which change, made figures of two days incomparable.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from pydoc_data.topics import topics
from typing import TYPE_CHECKING

from glm5_runtime.train.data.labels import Renderer
from glm5_runtime.train.data.reading import ReadingConfig, load

if TYPE_CHECKING:
    from collections.abc import Iterator

    from glm5_runtime.train.data.dataset import Dataset

ROOT = Path(__file__).parents[2]
TINY = ROOT / "tests" / "fixtures" / "tiny-glm5"
MAX_LENGTH = 512
SECTION = 600
"""Characters of a row at least; such rows have 231 tokens on average."""


def sections() -> Iterator[dict[str, str]]:
    """A row for each few paragraphs, asked for by their topic."""
    for topic in sorted(topics):
        count, section = 1, ""
        for block in re.split(r"\n{2,}", topics[topic]):
            section += f"{block}\n\n"
            if len(section) >= SECTION:
                yield {"instruction": f"{topic}, part {count}", "output": section}
                count, section = count + 1, ""
        if section:
            yield {"instruction": f"{topic}, part {count}", "output": section}


def dataset(folder: Path, max_length: int = MAX_LENGTH) -> Dataset:
    """The rows as training reads them, long ones cut."""
    file = folder / "pages.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in sections()))
    return load([file], Renderer.from_dir(TINY), ReadingConfig(max_length, long_rows="cut", lenient=True))[0]
