"""docs/walk.md lists the files that requests visit."""

import re
from pathlib import Path

import pytest
from support.waiting import until

from tools import walk

PAGE = Path(__file__).parents[2] / "docs" / "walk.md"


def listed(title: str) -> list[str]:
    section = PAGE.read_text().split(f"## {title}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| \d+ \| `(.+?)` \|", section, re.MULTILINE)


@pytest.mark.parametrize("title", walk.WALKS)
def test_the_page_lists_what_a_request_visits(title: str) -> None:
    visited: set[str] = set()

    def is_visited() -> bool:
        visited.update(walk.walked(walk.WALKS[title]))
        missing = [name for name in visited if name not in listed(title)]
        assert not missing, "run python -m tools.walk"
        # Timing decides about a few: a thread or the event loop flushes, a fetch finds its batches in memory.
        gone = [name for name in listed(title) if name not in visited]
        return len(gone) <= len(visited) // 5

    # If the machine stalls, a walk ends before the broker has done all of the work.
    until(is_visited, what=f"every file of {title!r}")


def test_the_lines_are_those_of_the_files() -> None:
    for title in walk.WALKS:
        for name in listed(title):
            assert walk.first_sentence(name) in PAGE.read_text(), name
