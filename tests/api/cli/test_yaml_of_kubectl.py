"""Our files are read as the real kubectl reads them."""

from __future__ import annotations

import json
from pathlib import Path

from glm5_operator.cli import documents
from tests.cluster.shell import run
from tests.cluster.tools import tool

TEXTS = (
    "2e-4 1e3 1e5 12e03 .5 -3.25 1. 0. 12 +12 -7 0x10 -0x1 010 0o10 08 0b11 1_000 1_0.5 1:30 1:30:00 2026-11-29 2026-11-29T00:00:00Z "
    "y Y yes Yes n N no NO on Off true FALSE tRue null NULL ~ 300s 64Gi 0.1.0 e5 1e 0x 'yes' \"12\" 1.2.3 -- - -x _1 1_ 0b2 0x1g +"
)


SCALARS = TEXTS.split(" ")


def test_every_kind_of_scalar_means_what_it_means_to_kubectl(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    rows = "".join(f"  k{number}: {text}\n" for number, text in enumerate(SCALARS) if text not in ("-", "--"))
    path.write_text(
        f"apiVersion: glm5.dev/v1alpha1\nkind: GLM5Service\nmetadata: {{name: a, labels: {{x: 'y'}}}}\nspec:\n{rows}  on: 1\n  7: 2\n"
    )
    theirs = json.loads(run(tool("kubectl"), "label", "--local", "-f", path, "-o", "json", "x=y", "--overwrite"))
    ours = documents.read(str(path))[0]
    differing = {
        SCALARS[int(key[1:])]: (value, theirs["spec"][key]) for key, value in ours["spec"].items() if value != theirs["spec"].get(key)
    }
    assert differing == {}
    assert set(ours["spec"]) == set(theirs["spec"])
