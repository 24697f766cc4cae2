"""Producers that are stopped in the middle of a transaction, for shorter or longer than its timeout."""

import enum
import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from semel.client import Client, Isolation, TransactionalProducer
from semel.client.admin.transactions import describe_transactions
from support.waiting import LIMIT_SECONDS, until
from support.workloads.running import Place, Reader, Workload

KINDS = ("own", "own-1", "librdkafka", "aiokafka")
LONG_MS = 60_000
SHORT_MS = 3_000


class Pause(enum.Enum):
    """What happens while the producer is stopped."""

    SHORT = "nothing"
    TOO_LONG = "its time is over"
    REPLACED = "another one takes its transactional id"
    KILLED = "it is killed, and its time is over"


class Pauses(Workload):
    """One process after another, each with its own transactional id, and a reader."""

    def __init__(self, place: Place, name: str, chance: random.Random, visibility: str) -> None:
        super().__init__(place, {name: 2}, visibility)
        self.topic = name
        self._chance = chance
        self._ids: list[str] = []
        self._wrong: list[str] = []
        self.workers = [Reader(self.place, self.partitions, Isolation.READ_COMMITTED)]

    @property
    def transactional_ids(self) -> list[str]:
        return self._ids

    def problems(self) -> list[str]:
        return self._wrong

    def pause(self, pause: Pause, history: Path) -> None:
        """Run one process from start to end."""
        kind = self._chance.choice(KINDS)
        name = f"{self.topic}-{len(self._ids)}"
        self._ids.append(name)
        told = {
            "bootstrap": self.place.bootstrap,
            "history": str(history),
            "timeout_ms": SHORT_MS if pause in (Pause.TOO_LONG, Pause.KILLED) else LONG_MS,
            "transactional_id": name,
            "kind": kind,
            "topic": self.topic,
            "tells_offsets": self.place.tells_offsets,
            "goes_on": pause is not Pause.REPLACED,
        }
        command = [sys.executable, str(Path(__file__).with_name("main.py")), json.dumps(told)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            acknowledged = self._watch(process, pause, name)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            assert process.stdout is not None
            process.stdout.close()
        expected = {
            Pause.SHORT: [True, True, True],
            Pause.TOO_LONG: [True, False, True],
            Pause.REPLACED: [True, False],
            Pause.KILLED: None,
        }[pause]
        if acknowledged != expected:
            self._wrong.append(f"{kind}, while {pause.value}: acknowledged {acknowledged}, not {expected}")

    def _watch(self, process: "subprocess.Popen[str]", pause: Pause, name: str) -> object:
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            return f"ended with {status} before it stopped"
        with Client(self.place.bootstrap) as client:
            if pause is Pause.REPLACED:
                heir = self.place.recorder.process("heir")
                with heir.init(name) as told:
                    producer = TransactionalProducer(client, name)
                    producer.init()
                    told.pair = (producer.identity[0], producer.identity[1])
            if pause is Pause.KILLED:
                process.kill()
            if pause in (Pause.TOO_LONG, Pause.KILLED):
                until(
                    lambda: describe_transactions(client, [name])[name].state != "Ongoing",
                    LIMIT_SECONDS,
                    "the end of a transaction whose time is over",
                )
        if pause is Pause.KILLED:
            process.wait()
            return None
        process.send_signal(signal.SIGCONT)
        out, _ = process.communicate(timeout=LIMIT_SECONDS)
        return json.loads(out)
