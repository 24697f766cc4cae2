"""Extracts code and terminal sessions from pages of the docs, so that tests can run them as they are."""

import re
from pathlib import Path

BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """Return the blocks of one language; terminal sessions and drawings have no language."""
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def sessions(page: Path) -> list[list[tuple[str, str]]]:
    """Return the terminal sessions: commands with their output."""
    found = []
    for text in blocks(page, ""):
        if text.startswith("$ "):
            parts = text.removeprefix("$ ").split("\n$ ")
            found.append(
                [(first, rest.strip()) for first, _, rest in (part.partition("\n") for part in parts)]
            )
    return found
