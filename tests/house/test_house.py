"""The rules of the house that a machine can check."""

import ast
import re
import tokenize
from pathlib import Path

import pytest

from semel.config import Settings
from semel.core.facts import (
    DURABLE,
    GroupGathered,
    LatestConnectionChanged,
    SessionChanged,
    ShareLocksChanged,
    TransactionEnded,
)
from semel.core.state import APPLY
from semel.handlers import HANDLERS
from semel.wire.messages import APIS
from suites import results
from tools.docs import generated
from tools.limits import NO_LIMITS, REQUEST, SHARED, STORED

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
LINES_MAX = 400
FUNCTION_LINES_MAX = 60


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


@pytest.mark.parametrize("path", SOURCES, ids=names(SOURCES))
def test_a_file_can_be_read_top_to_bottom(path: Path) -> None:
    text = path.read_text()
    tree = ast.parse(text)
    assert ast.get_docstring(tree), "a module says what it is for"
    assert text.count("\n") <= LINES_MAX
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < FUNCTION_LINES_MAX, f"{node.name} is too long"


ABOVE_THE_BROKER = [path for path in SOURCES if path.parent.name in ("handlers", "server")]


@pytest.mark.parametrize("path", ABOVE_THE_BROKER, ids=names(ABOVE_THE_BROKER))
def test_only_the_broker_reads_the_store(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        assert not isinstance(node, ast.Attribute) or node.attr not in ("store", "ledger", "chunks"), (
            f"line {node.lineno}: ask broker.reads, broker.catalog or broker.listings"
        )


@pytest.mark.parametrize("path", SOURCES, ids=names(SOURCES))
def test_nothing_is_left_for_later(path: Path) -> None:
    with path.open("rb") as file:
        for token in tokenize.tokenize(file.readline):
            if token.type == tokenize.COMMENT:
                assert not re.search(r"\b(TODO|FIXME|XXX|HACK)\b", token.string), f"line {token.start[0]}"


@pytest.mark.parametrize("key", sorted({*HANDLERS, 0}))
def test_a_handler_says_which_versions_it_serves(key: int) -> None:
    api = APIS[key]
    handler = HANDLERS[key]
    served = (
        f"v{api.min_version}"
        if api.min_version == api.max_version
        else f"v{api.min_version}–v{api.max_version}"
    )
    first_line = (handler.__doc__ or "").splitlines()[0]
    assert first_line.startswith(f"{api.name} {served}:"), first_line


def test_every_fact_can_be_applied() -> None:
    volatile = {GroupGathered, SessionChanged, ShareLocksChanged, LatestConnectionChanged, TransactionEnded}
    assert set(APPLY) == {*DURABLE, *volatile}


def test_adr_numbers_are_consecutive() -> None:
    numbers = sorted(int(path.name[:4]) for path in (ROOT / "docs/adr").glob("*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


@pytest.mark.parametrize(
    "document", ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs/transactions.md"]
)
def test_paths_in_documents_exist(document: str) -> None:
    text = (ROOT / document).read_text()
    for path in re.findall(
        r"`((?:wire|core|store|broker|handlers|server|client|cli)/[\w/]+\.(?:py|sql))", text
    ):
        assert (ROOT / "src/semel" / path).exists(), path
    for path in re.findall(r"\]\((?!http)([^)#]+)\)", text):
        assert ((ROOT / document).parent / path).exists(), path


def test_code_words_of_the_glossary_are_in_the_code() -> None:
    code = "\n".join(path.read_text() for path in SOURCES)
    for row in (ROOT / "docs/glossary.md").read_text().splitlines():
        cells = [cell.strip() for cell in row.split("|")]
        if len(cells) == 6:
            for word in re.findall(r"`(\w+)`", cells[3]):
                assert re.search(rf"\b{word}\b", code), f"{word} is in the glossary and not in the code"


def test_every_setting_with_a_maximum_is_on_the_page_of_limits() -> None:
    described = {*REQUEST, *SHARED, *STORED, *NO_LIMITS}
    assert described <= set(Settings.names())
    limits = {name for name in Settings.names() if "max" in name.split(".")}
    assert limits <= described, "say in tools/limits.py what a client gets beyond it"


def test_generated_pages_are_fresh() -> None:
    for path, text in generated().items():
        assert path.read_text() == text, f"{path.name} is stale: make docs"


def test_the_page_of_suites_is_fresh() -> None:
    text = results.PAGE.read_text()
    assert results.page(text, results.read()) == text, "python -m suites writes it"


def test_every_behaviour_of_the_list_has_a_test() -> None:
    listed = set(re.findall(r"^\| (\d+) \|", (ROOT / "docs/behaviours.md").read_text(), re.MULTILINE))
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    assert listed - set(re.findall(r"def test_behaviour_(\d+)_", tests)) == set()
