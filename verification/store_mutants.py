"""Defects of the store, one line each, that can be switched on and then lose data in a power failure.

As in ``simulation.mutants``, each is a line of the real code and its changed version. The power-loss check
must find each of ``MUTANTS``, and the bit-rot check each of ``ROT``.
"""

from simulation.mutants import Mutant, applied
from verification import bit_rot
from verification.bit_rot import BitRot
from verification.power_loss import PowerLoss, one

SEEDS_MAX = 60
"""A defect that survives this many recordings counts as not found."""
ROT_SEEDS_MAX = 30
"""A defect of ``ROT`` that survives this many stores counts as not found."""


def _store(name: str, module: str, before: str, after: str, seed: int = 0) -> Mutant:
    return Mutant(name, f"semel.store.{module}", before, after, seed)


MUTANTS: tuple[Mutant, ...] = (
    _store(
        "a commit is answered before the WAL is flushed",
        "embedded.wal",
        "        self._files.flush(self._writing.descriptor)",
        "        pass",
    ),
    _store(
        "large batches are not flushed with the WAL",
        "embedded.wal_applier",
        "            self._chunks.write_now(commit.locations, commit.batches)\n"
        "        self._chunks.flush_now(self._ledger.commit_number)",
        "            self._chunks.write_now(commit.locations, commit.batches)",
    ),
    _store(
        "chunks are not flushed before they are called checkpointed",
        "embedded.wal_applier",
        "    def _checkpoint_now(self) -> None:\n        self._chunks.flush_now(self._ledger.commit_number)",
        "    def _checkpoint_now(self) -> None:",
    ),
    _store(
        "the ledger is called checkpointed without a flush",
        "embedded.ledger_writer",
        "        self._flush_or_not(True)\n        try:\n            self._begin()\n"
        "            self._mark_checkpoint()",
        "        self._flush_or_not(False)\n        try:\n            self._begin()\n"
        "            self._mark_checkpoint()",
    ),
    _store(
        "a file of the WAL is used again too early",
        "embedded.wal",
        "        return self._other.last_number <= synced_number",
        "        return True",
    ),
    _store(
        "the WAL is left without a flush",
        "embedded.store",
        "        await self._sync()\n        if not wal.may_switch",
        "        if not wal.may_switch",
    ),
    _store(
        "a direct commit is not flushed",
        "embedded.ledger",
        "        self._writer.commit(facts, locations, number=number, is_checkpoint=True)",
        "        self._writer.commit(facts, locations, number=number, is_checkpoint=True, is_flushed=False)",
    ),
    _store(
        "a torn frame is read",
        "embedded.wal_reading",
        "    return bool(checksum == crc32c(",
        "    return bool(checksum >= 0 * crc32c(",
    ),
    _store(
        "batches are not taken over from the WAL",
        "opening",
        "        _write_again(chunks, frame)",
        "        pass",
    ),
    _store(
        "large batches that are not there are taken for granted",
        "opening",
        "        if frame.batches is None and not _write_large_again(chunks, frame.locations):",
        "        if False:",
    ),
    _store(
        "a large batch is not looked at",
        "opening",
        "    return header.length == location.length and has_valid_crc(batch, 0, header)",
        "    return header.length == location.length",
    ),
    _store(
        "what a start takes over is not flushed",
        "opening",
        "    chunks.flush_now(ledger.commit_number)",
        "    pass",
    ),
    _store(
        "a start that was not clean is taken for one",
        "opening",
        "    if ledger.identity.stopped_cleanly and examined.last_seen <= ledger.commit_number:",
        "    if True:",
    ),
    _store(
        "a new term does not begin",
        "embedded.ledger_opening",
        '    term = int(meta["term"]) + (0 if stopped_cleanly or has_survived else 1)',
        '    term = int(meta["term"])',
    ),
    _store(
        "a stop is called clean for good",
        "embedded.ledger_opening",
        '    sql.run("write_meta", ("clean_stop", "0"))',
        "    pass",
    ),
    _store(
        "chunks are deleted before the ledger knows it for certain",
        "embedded.store",
        "            # Recovery must not look for their contents.\n            await self.checkpoint()",
        "            # Recovery must not look for their contents.\n            pass",
    ),
)


ROT: tuple[Mutant, ...] = (
    _store(
        "a directory without a ledger is taken for a new one",
        "embedded.examination",
        "    problems: list[Problem] = []\n    if signs:",
        "    problems: list[Problem] = []\n    if False:",
    ),
    _store(
        "a WAL that is missing is not missed",
        "embedded.examination",
        "    for path in paths_in(directory) if wanted else ():",
        "    for path in ():",
    ),
    _store(
        "an older ledger is followed by newer chunks",
        "embedded.examination",
        "        elif header.number > known:",
        "        elif False:",
    ),
    _store(
        "the lock is no witness",
        "embedded.examination",
        "    elif witness is not None and witness.number > known:",
        "    elif False:",
    ),
    _store(
        "damage in the WAL is its end",
        "embedded.wal_reading",
        "    return Readout(frames, flushed, last_seen, problems)",
        "    return Readout(frames, flushed, last_seen, [])",
    ),
    _store(
        "a damaged last frame is a torn one",
        "embedded.wal_reading",
        "    elif has_survived and (unread := sorted(number for number in marks if number > end)):",
        "    elif (unread := []):",
    ),
    _store(
        "damaged large batches are torn ones",
        "opening",
        "            if frame.number <= max(ledger.commit_number, examined.flushed)",
        "            if frame.number <= -1",
    ),
    _store(
        "pages of the ledger have no checksums",
        "embedded.ledger_opening",
        "    if NAME in apsw.vfs_names():\n        return NAME",
        '    return ""',
        seed=8,
    ),
    _store(
        "a log is read over any database",
        "embedded.ledger_opening",
        "    problems = [] if moved is None else _compared(path, seen, moved)",
        "    problems = []",
    ),
)
"""Defects with which a damaged directory is served as if it were intact."""

RARE: dict[str, tuple[int, ...]] = {
    "a file of the WAL is used again too early": (69, 83, 95),
}
"""The seeds of recordings to try first, for defects that few recordings find."""


def killed_by(mutant: Mutant, seeds_max: int = SEEDS_MAX) -> tuple[int, str] | None:
    """Return the first recording that finds the defect, and the problem it reports; None if none does."""
    with applied(mutant):
        for seed in (*RARE.get(mutant.name, ()), *range(seeds_max)):
            found = PowerLoss()
            one(seed, found)
            if found.problems:
                return seed, found.problems[0]
    return None


def rot_killed_by(mutant: Mutant, seeds_max: int = ROT_SEEDS_MAX) -> tuple[int, str] | None:
    """Return the first store whose damage reveals the defect, and the problem; None if none does."""
    with applied(mutant):
        for seed in mutant.seeds(seeds_max):
            found = BitRot()
            bit_rot.one(seed, found)
            if found.problems:
                return seed, found.problems[0]
    return None
