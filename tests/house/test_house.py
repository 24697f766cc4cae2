"""The rules of the house that a machine can check."""

import ast
import re
import tokenize
from pathlib import Path

from semel.config import Settings
from semel.core.facts import (
    DURABLE,
    GroupGathered,
    LatestConnectionChanged,
    Put,
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
FUNCTION_LINES_MAX = 60


def place(path: Path, line: int = 1) -> str:
    return f"{path.relative_to(ROOT)}:{line}"


def test_files_can_be_read_top_to_bottom() -> None:
    found = []
    for path in SOURCES:
        tree = ast.parse(path.read_text())
        if not ast.get_docstring(tree):
            found.append(f"{place(path)}: a module says what it is for")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                assert node.end_lineno is not None
                if node.end_lineno - node.lineno >= FUNCTION_LINES_MAX:
                    found.append(f"{place(path, node.lineno)}: {node.name} is too long")
    assert found == []


def test_only_the_broker_reads_the_store() -> None:
    above = [path for path in SOURCES if path.parent.name in ("handlers", "server")]
    found = [
        f"{place(path, node.lineno)}: ask broker.reads, broker.catalog or broker.listings"
        for path in above
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Attribute) and node.attr in ("store", "ledger", "chunks")
    ]
    assert above
    assert found == []


def test_nothing_is_left_for_later() -> None:
    left = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    found = []
    for path in SOURCES:
        if left.search(path.read_text()):
            with path.open("rb") as file:
                found += [
                    f"{place(path, token.start[0])}: {token.string}"
                    for token in tokenize.tokenize(file.readline)
                    if token.type == tokenize.COMMENT and left.search(token.string)
                ]
    assert found == []


def test_handlers_say_which_versions_they_serve() -> None:
    found = {}
    for key in sorted({*HANDLERS, 0}):
        api = APIS[key]
        low, high = api.min_version, api.max_version
        served = f"v{low}" if low == high else f"v{low}–v{high}"
        first_line = (HANDLERS[key].__doc__ or "").splitlines()[0]
        if not first_line.startswith(f"{api.name} {served}:"):
            found[f"{api.name} {served}"] = first_line
    assert found == {}


def test_every_fact_can_be_applied() -> None:
    volatile = {GroupGathered, SessionChanged, ShareLocksChanged, LatestConnectionChanged, TransactionEnded}
    # The state applies a Put itself.
    assert {*APPLY, Put} == {*DURABLE, *volatile}


def test_adr_numbers_are_consecutive() -> None:
    numbers = sorted(int(path.name[:4]) for path in (ROOT / "docs/adr").glob("[0-9]*.md"))
    assert numbers == list(range(1, len(numbers) + 1))


def test_paths_in_documents_exist() -> None:
    rooms = "wire|core|store|broker|handlers|server|client|cli|console|spark|check"
    named = re.compile(rf"`((?:{rooms})/[\w/]+\.(?:py|sql))")
    link = re.compile(r"\]\((?!http)([^)#]+)\)")
    found = []
    for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "README.md", "docs/transactions.md"):
        document = ROOT / name
        text = document.read_text()
        paths = [ROOT / "src/semel" / path for path in named.findall(text)]
        paths += [document.parent / path for path in link.findall(text)]
        found += [f"{name}: {path}" for path in paths if not path.exists()]
    assert found == []


def test_the_page_of_the_harness_lists_every_module() -> None:
    page = (ROOT / "tests/support/README.md").read_text()
    rows = re.findall(r"^\| (`.+`) \|", page, re.MULTILINE)
    listed = sorted(name for row in rows for name in re.findall(r"`(\w+)`", row))
    modules = (ROOT / "tests/support").rglob("[!_]*.py")
    assert listed == sorted(path.stem for path in modules if path.name != "sitecustomize.py")


def test_code_words_of_the_glossary_are_in_the_code() -> None:
    code = {word for path in SOURCES for word in re.findall(r"\w+", path.read_text())}
    for row in (ROOT / "docs/glossary.md").read_text().splitlines():
        cells = [cell.strip() for cell in row.split("|")]
        if len(cells) == 6:
            for word in re.findall(r"`(\w+)`", cells[3]):
                assert word in code, f"{word} is in the glossary and not in the code"


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
