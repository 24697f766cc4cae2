"""Run the shortest verification beside the tests, and once more what was not met."""

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
"""It takes the processor time that the tests leave over."""


@dataclass(frozen=True)
class Verification:
    """A verification that is running."""

    process: subprocess.Popen[bytes]
    output: Path
    unmet: Path

    def finish(self, seed: int) -> Verdict:
        """Wait for its end, show its rows, and run the checks that were not met once more, alone."""
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
        """The checks that were not met; none also if it ended before it could say, with another exit code."""
        names: list[str] = json.loads(self.unmet.read_text()) if self.unmet.exists() else []
        return names


@contextmanager
def verification() -> Iterator[Verification]:
    """Start the verification, and end it if nobody waits for it to finish."""
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
