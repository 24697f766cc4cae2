"""Entry point of the ``semel`` command."""


def run() -> None:
    """Run the command line."""
    raise SystemExit("not built yet")
