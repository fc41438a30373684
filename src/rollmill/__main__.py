"""`python -m rollmill` is the command line."""

from rollmill.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
