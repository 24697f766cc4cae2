"""The tests of franz-go that use a broker; Go's module of franz-go contains them."""

import json
import re
import shutil
import subprocess
from pathlib import Path

from peers.programs import HERE as PEERS
from peers.programs import CannotBuild, needed
from suites.outcomes import (
    FAILED,
    PASSED,
    REASON_MAX,
    SKIPPED,
    Case,
    Report,
    Target,
    run_within,
    with_its_end,
)

BUILD = Path(__file__).parent / "build"
MODULE = "github.com/twmb/franz-go"
RECORDS = 20_000
"""The number of records in its pipelines, from topic to topic; 500,000 by default."""
USES_A_BROKER = re.compile(r"\b(newTestClient|getSeedBrokers|testClientOpts|tmpTopic\w*|adm)\(")
OUTCOMES = {"pass": PASSED, "fail": FAILED, "skip": SKIPPED}


def version() -> str:
    """Return the version that `make peers` uses too."""
    found = re.search(rf"{MODULE} (v\S+)", (PEERS / "go" / "go.mod").read_text())
    assert found is not None
    return found[1]


def run_tests(target: Target, seconds: float) -> Report:
    """Run the tests of franz-go's client package."""
    source = fetch()
    names = "|".join(tests(source / "pkg" / "kgo"))
    limits = ["-count=1", "-parallel=2", f"-timeout={int(seconds) - 20}s"]
    ended = run_within(
        [needed("go"), "test", "-json", *limits, f"-run=^({names})$", "./pkg/kgo"],
        seconds,
        cwd=source,
        environment={
            "KGO_SEEDS": target.bootstrap,
            "KGO_TEST_RF": "1",
            "KGO_TEST_RECORDS": str(RECORDS),
            "KGO_LOG_LEVEL": "none",
        },
    )
    (target.directory / "franz-go.json").write_text(ended.output)
    return with_its_end(_of_events(ended.output), ended)


def fetch() -> Path:
    """Return the module, in a directory where it can be built."""
    source = BUILD / f"franz-go-{version()}"
    if not source.exists():
        command = [needed("go"), "mod", "download", "-json", f"{MODULE}@{version()}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise CannotBuild(f"go mod download: {(done.stdout + done.stderr)[-REASON_MAX:]}")
        # Files in Go's cache are read-only.
        shutil.copytree(json.loads(done.stdout)["Dir"], source, copy_function=shutil.copyfile)
        for each in (source, *source.rglob("*")):
            each.chmod(0o755)
    return source


def tests(package: Path) -> list[str]:
    """Return the names of the tests whose source uses a broker."""
    found = []
    for path in sorted(package.glob("*_test.go")):
        for name, body in re.findall(
            r"^func (Test\w+)\(.*?\{\n(.*?)^\}", path.read_text(), re.DOTALL | re.MULTILINE
        ):
            if USES_A_BROKER.search(body):
                found.append(name)
    return found


def _of_events(output: str) -> Report:
    """Return the report; of tests with subtests, only the subtests count."""
    report: Report = {}
    said: dict[str, list[str]] = {}
    for line in output.splitlines():
        try:
            event = json.loads(line)
        except json.JSONDecodeError:
            continue
        name = event.get("Test")
        if name is None:
            continue
        if event["Action"] == "output":
            said.setdefault(name, []).append(event["Output"].strip())
        elif event["Action"] in OUTCOMES:
            outcome = OUTCOMES[event["Action"]]
            why = "" if outcome == PASSED else " ".join(_reasons(said.get(name, [])))
            report[name] = Case(outcome, why[:REASON_MAX])
    parents = {name.rpartition("/")[0] for name in report}
    return {name: case for name, case in report.items() if name not in parents}


def _reasons(lines: list[str]) -> list[str]:
    return [
        line for line in lines if not line.startswith(("===", "---", "[")) and "FAILED TESTING" not in line
    ]
