"""What pages of the docs show, so that it can be run as it stands."""

import re
from pathlib import Path

BLOCK = re.compile(r"```(\w*)\n(.*?)```", re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """The blocks of one language; those without one are terminal sessions and drawings."""
    return [text for kind, text in BLOCK.findall(page.read_text()) if kind == language]


def sessions(page: Path) -> list[list[tuple[str, str]]]:
    """Terminal sessions: commands with what they print."""
    found = []
    for text in blocks(page, ""):
        if text.startswith("$ "):
            parts = text.removeprefix("$ ").split("\n$ ")
            found.append(
                [(first, rest.strip()) for first, _, rest in (part.partition("\n") for part in parts)]
            )
    return found
