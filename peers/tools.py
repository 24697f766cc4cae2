"""Apache Kafka's own command line tools, run as an administrator would."""

import base64
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from peers.programs import HERE, Program, build_java

PACKAGE = "org.apache.kafka.tools"
SUBCOMMANDS = {"ClusterTool"}
"""Tools that take the address after their first word."""


class Tools(NamedTuple):
    """The tools for one broker. A tool that fails, or that logs an error, fails the test."""

    class_path: str
    bootstrap: str

    def transactions(self, *words: str) -> list[dict[str, str]]:
        """Run ``kafka-transactions.sh``; return the rows of its table, by column name."""
        lines = [line for line in self.run("TransactionsCommand", *words).splitlines() if line.strip()]
        if not lines:
            return []
        header, *rows = [[cell.strip() for cell in line.split("\t")] for line in lines]
        return [dict(zip(header, row, strict=True)) for row in rows]

    def set_transaction_version(self, version: int) -> None:
        """Run ``kafka-features.sh``: 2 for the newest version of transactions, 1 for the one before."""
        change = "upgrade" if version == 2 else "downgrade"
        self.run("FeatureCommand", change, "--feature", f"transaction.version={version}")

    def run(self, tool: str, *words: str) -> str:
        """Run a tool; return its output."""
        command = ["java", "-cp", self.class_path, f"{PACKAGE}.{tool}", "--bootstrap-server", self.bootstrap]
        done = subprocess.run([*command, *words], capture_output=True, text=True, check=False, timeout=90)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


class Printed(NamedTuple):
    """A tool's exit code and output."""

    code: int
    text: str


def build_runner(class_path: str) -> list[str]:
    """Return the command of the program that runs many tools in one process."""
    return build_java(class_path, HERE / "java" / "ToolRunner.java")


class ToolRunner(NamedTuple):
    """A program that runs many tools in one process, for one broker."""

    program: Program
    address: str

    def run(self, tool: str, words: Sequence[str], typed: str = "") -> Printed:
        """Run a tool; its output has ADDRESS in place of the broker's address."""
        line = "\t".join([base64.b64encode(typed.encode()).decode(), tool, *words])
        code, _, printed = self.program.ask(line).partition(" ")
        text = base64.b64decode(printed).decode(errors="replace").replace(self.address, "ADDRESS")
        return Printed(int(code), text)

    def ask(self, step: Sequence[str], config: Path | None = None) -> Printed:
        """Run a tool that needs no input, on the broker."""
        tool, *words = step
        first = [words.pop(0)] if tool.rpartition(".")[2] in SUBCOMMANDS else []
        settings = [] if config is None else ["--command-config", str(config)]
        return self.run(tool, [*first, "--bootstrap-server", self.address, *settings, *words])

    def lines(self, step: Sequence[str], config: Path | None = None) -> list[str]:
        """Return a tool's lines, sorted; for errors of the broker, only their types."""
        code, text = self.ask(step, config)
        if kinds := set(re.findall(r"errors\.\w+Exception", text)):
            return [f"exit {code}", *sorted(kinds)]
        said = (re.split(", | are ", each.strip()) for each in text.splitlines())
        return [f"exit {code}", *sorted(", ".join(sorted(each)) for each in said)]
