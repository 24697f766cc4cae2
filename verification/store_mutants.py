"""Defects of the store that can be switched on, one line each: what a power cut would then take.

As in ``simulation.mutants``, each is a line of the real code as it is and as it would be. The power-loss
check fails if one of them survives it.
"""

from simulation.mutants import Mutant, applied
from verification.power_loss import PowerLoss, one

SEEDS_MAX = 60
"""A defect that survives so many recordings has not been found."""


def _store(name: str, module: str, before: str, after: str) -> Mutant:
    return Mutant(name, f"semel.store.{module}", before, after)


MUTANTS: tuple[Mutant, ...] = (
    _store(
        "a commit is answered before the journal is flushed",
        "journal",
        "        self._files.flush(self._writing.descriptor)",
        "        pass",
    ),
    _store(
        "large batches are not flushed with the journal",
        "following",
        "            self._chunks.write_now(commit.places, commit.batches)\n        self._chunks.flush_now()",
        "            self._chunks.write_now(commit.places, commit.batches)",
    ),
    _store(
        "chunks are not flushed before they are called synchronised",
        "following",
        "    def _synchronise_now(self) -> None:\n        self._chunks.flush_now()",
        "    def _synchronise_now(self) -> None:",
    ),
    _store(
        "the ledger is called synchronised without a flush",
        "ledger_writer",
        '        self._flush_or_not(True)\n        try:\n            self._sql.run("begin")\n'
        '            self._write_meta("synchronised"',
        '        self._flush_or_not(False)\n        try:\n            self._sql.run("begin")\n'
        '            self._write_meta("synchronised"',
    ),
    _store(
        "a file of the journal is used again too early",
        "journal",
        "        return self._other.last_number <= synced_number",
        "        return True",
    ),
    _store(
        "the journal is left without a flush",
        "embedded",
        "        await self._flush()\n        if not journal.may_switch",
        "        if not journal.may_switch",
    ),
    _store(
        "a direct commit leaves the journal as it is",
        "embedded",
        "            self._journal.switch()",
        "            pass",
    ),
    _store(
        "a direct commit is not flushed",
        "sqlite_ledger",
        "        self._writer.commit(facts, places, number=number)",
        "        self._writer.commit(facts, places, number=number, is_flushed=False)",
    ),
    _store(
        "a torn frame is read",
        "journal",
        "        if end > len(data) or checksum != crc32c(memoryview(data)[begin:end], crc32c(header)):",
        "        if end > len(data):",
    ),
    _store(
        "batches are not taken over from the journal",
        "recovery",
        "        _write_again(chunks, frame)",
        "        pass",
    ),
    _store(
        "large batches that are not there are taken for granted",
        "recovery",
        "        if frame.batches is None and not _write_large_again(chunks, frame.places):",
        "        if False:",
    ),
    _store(
        "a large batch is not looked at",
        "recovery",
        "    return header.length == place.length and has_valid_crc(batch, 0, header)",
        "    return header.length == place.length",
    ),
    _store(
        "what a start takes over is not flushed",
        "recovery",
        "    chunks.flush_now()",
        "    pass",
    ),
    _store(
        "a start that was not clean is taken for one",
        "recovery",
        "    if identity.stopped_cleanly:",
        "    if True:",
    ),
    _store(
        "a new term does not begin",
        "ledger_writer",
        '        term = int(meta["term"]) + (0 if stopped_cleanly or has_survived else 1)',
        '        term = int(meta["term"])',
    ),
    _store(
        "a stop is called clean for good",
        "ledger_writer",
        '        self._write_meta("clean_stop", "0")',
        "        pass",
    ),
    _store(
        "chunks are deleted before the ledger knows it for certain",
        "embedded",
        "            # A start must not look for what was in them.\n            await self.synchronise()",
        "            # A start must not look for what was in them.\n            pass",
    ),
)


RARE: dict[str, tuple[int, ...]] = {
    "a file of the journal is used again too early": (79, 101, 123),
    "chunks are deleted before the ledger knows it for certain": (36,),
}
"""Recordings that are tried first, for defects that few of them find."""


def killed_by(mutant: Mutant, seeds_max: int = SEEDS_MAX) -> tuple[int, str] | None:
    """The first recording that finds the defect, and as what; None if none does."""
    with applied(mutant):
        for seed in (*RARE.get(mutant.name, ()), *range(seeds_max)):
            found = PowerLoss()
            one(seed, found)
            if found.problems:
                return seed, found.problems[0]
    return None
