"""Runs the shortest verification beside the tests, and repeats the checks that were not met."""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.suite.running import CHANCE_MAX, Verdict

COMMAND: Final = (sys.executable, "-m", "verification", "test")
LATER: Final = ("nice", "-n", "10")
"""It gets only the processor time that the tests do not need."""


@dataclass(frozen=True)
class Verification:
    """A verification that is running."""

    process: subprocess.Popen[bytes]
    output: Path
    unmet: Path

    def finish(self, seed: int) -> Verdict:
        """Wait until it ends, show its rows, and repeat the unmet checks once, alone."""
        code = self.process.wait()
        print(f"\nverification, beside the tests:\n{self.output.read_text()}", flush=True)  # noqa: T201
        unmet = self._read_unmet()
        if not 0 < len(unmet) <= CHANCE_MAX:
            return Verdict(seed, code, [f"verification {each}" for each in unmet])
        print(f"not met: {', '.join(unmet)}; once more, alone", flush=True)  # noqa: T201
        self.unmet.unlink()
        again = subprocess.run([*COMMAND, f"--unmet={self.unmet}", "--only", *unmet], check=False)
        still = self._read_unmet() if self.unmet.exists() else unmet
        flaky = [f"verification {each}" for each in unmet if each not in still]
        return Verdict(seed, again.returncode, [f"verification {each}" for each in still], flaky)

    def _read_unmet(self) -> list[str]:
        """Return the unmet checks. If the run ended early, there are none, and its exit code says so."""
        names: list[str] = json.loads(self.unmet.read_text()) if self.unmet.exists() else []
        return names


@contextmanager
def verification() -> Iterator[Verification]:
    """Start the verification, and terminate it if the block ends before it."""
    with tempfile.TemporaryDirectory(prefix="semel-verification-") as directory:
        output, unmet = Path(directory, "output"), Path(directory, "unmet.json")
        with output.open("w") as file:
            command = [*LATER, *COMMAND, f"--unmet={unmet}"]
            process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT)
        try:
            yield Verification(process, output, unmet)
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
