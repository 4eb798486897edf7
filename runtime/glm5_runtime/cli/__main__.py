"""`python -m glm5_runtime.cli`."""

from glm5_runtime.cli import main

main()
