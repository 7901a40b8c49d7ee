"""`python -m taskengine`: the command line."""

from taskengine.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
