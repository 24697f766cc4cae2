"""Apache Kafka's own command line tools, run as an administrator would."""

import subprocess
from typing import NamedTuple

PACKAGE = "org.apache.kafka.tools"


class Tools(NamedTuple):
    """The tools, pointed at one broker. A tool that fails, or that logs an error, fails the test."""

    class_path: str
    bootstrap: str

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
        command = ["java", "-cp", self.class_path, f"{PACKAGE}.{tool}", "--bootstrap-server", self.bootstrap]
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=90)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout
