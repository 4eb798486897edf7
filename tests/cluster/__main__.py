"""`python -m tests.cluster`: build, start, look at and stop the test clusters. Wiring only."""

from tests.cluster.cli import main

if __name__ == "__main__":
    main()
