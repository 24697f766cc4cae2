"""docs/cluster-operations.md: what it shows can be run, and what it names exists."""

import re
from pathlib import Path

from support.brokers.cluster import query
from support.pages import blocks

from semel.server import run

PAGE = Path(__file__).parents[2] / "docs/cluster-operations.md"


def test_the_query_for_long_transactions_runs(postgres_dsn: str) -> None:
    (statement,) = blocks(PAGE, "sql")
    found = query(postgres_dsn, statement)
    # Its own is one of them.
    assert any(row["state"] == "active" for row in found)


def test_every_exit_code_of_a_broker_is_explained() -> None:
    explained = {int(code) for code in re.findall(r"^\| (\d+) \|", PAGE.read_text(), re.MULTILINE)}
    codes = {value for name, value in vars(run).items() if name.startswith("EXIT_")}
    assert explained == codes | {2}


def test_what_the_page_links_to_exists() -> None:
    for path, anchor in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", PAGE.read_text()):
        target = (PAGE.parent / path).resolve() if path else PAGE
        assert target.exists(), path
        if anchor:
            found = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"\W+", "-", each.lower()) for each in found}, anchor
