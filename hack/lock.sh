#!/usr/bin/env bash
# Pins requirements/*.txt anew: one resolution for all, so that operator, runtime and tests agree. No index is named in the files.
set -euo pipefail
cd "$(dirname "$0")/.."
compile() {
  .venv/bin/uv pip compile -q pyproject.toml --python-version 3.11 --universal --no-emit-index-url --no-emit-find-links \
    --no-header --no-annotate "$@"
}
compile --extra operator --extra runtime --extra dev --upgrade -o requirements/dev.txt
for extra in operator runtime; do
  compile --extra "$extra" -c requirements/dev.txt -o "requirements/$extra.txt"
done
# Only the package itself: torch is pinned above, and its other needs (pyyaml, setuptools) are the runtime's too.
compile --extra npu --no-deps -o requirements/npu.txt
