"""``python -m semel`` is the ``semel`` command."""

from semel.cli.main import run

if __name__ == "__main__":
    run()
