"""What goes wrong when a test cluster is made; every message says what to do next. Raised everywhere in tests/cluster."""


class ClusterError(Exception):
    """A test cluster, an image or a tool could not be made, started or stopped."""


class UnavailableError(ClusterError):
    """This machine lacks something (Go, root, a container engine) that cannot be installed from here."""


class CommandFailedError(ClusterError):
    """A program that the cluster tool ran ended with an error."""

    def __init__(self, argv: list[str], code: int, output: str) -> None:
        tail = "\n".join(output.strip().splitlines()[-20:])
        super().__init__(f"{' '.join(argv[:6])}{' …' if len(argv) > 6 else ''} ended with {code}:\n{tail}")
        self.code = code
        self.output = output
