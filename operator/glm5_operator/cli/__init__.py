"""`glm5 …`, also installed as `kubectl-glm5`: what a person at a terminal does with the operator's objects.

Entry point only. Nothing heavy is imported before a command needs it, so that `glm5 --help` and shell completion answer at once.
"""


def main() -> None:
    """Run the command line and end the process with its exit code."""
    from glm5_operator.cli.app import app

    app()
