"""Apache Kafka's own command line tools, run as an administrator would."""

import subprocess
from pathlib import Path
from typing import NamedTuple

PACKAGE = "org.apache.kafka.tools"
ELSEWHERE = {"ConfigCommand": "kafka.admin"}
"""The packages of tools that are not in the other one."""


class Tools(NamedTuple):
    """The tools, pointed at one broker. A tool that fails, or that logs an error, fails the test."""

    class_path: str
    bootstrap: str
    config: Path | None = None
    """A file with the settings of a client, for a broker that wants to know who is there."""

    def transactions(self, *words: str) -> list[dict[str, str]]:
        """``kafka-transactions.sh``: the rows of its table, by the names of its columns."""
        lines = [line for line in self.run("TransactionsCommand", *words).splitlines() if line.strip()]
        if not lines:
            return []
        header, *rows = [[cell.strip() for cell in line.split("\t")] for line in lines]
        return [dict(zip(header, row, strict=True)) for row in rows]

    def set_transaction_version(self, version: int) -> None:
        """``kafka-features.sh``: 2 for the newest form of transactions, 1 for the one before."""
        change = "upgrade" if version == 2 else "downgrade"
        self.run("FeatureCommand", change, "--feature", f"transaction.version={version}")

    def run(self, tool: str, *words: str) -> str:
        """What it printed."""
        done = self.start(tool, *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def start(self, tool: str, *words: str) -> subprocess.CompletedProcess[str]:
        """What it printed, and how it ended."""
        program = f"{ELSEWHERE.get(tool, PACKAGE)}.{tool}"
        command = ["java", "-cp", self.class_path, program, "--bootstrap-server", self.bootstrap]
        if self.config is not None:
            command += ["--command-config", str(self.config)]
        return subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=90)
