"""Defects of the code that recognizes a wrong or damaged ledger. With each, a named test must fail.

As in ``simulation.mutants``, each defect is a line of the real code and its changed version. The test runs in
a process of its own, in which this module is a plugin of pytest that switches the defect on.
"""

import os
from contextlib import ExitStack

from simulation.mutants import Mutant, applied
from verification import tests

CHOSEN = "SEMEL_DEFECT"
_GAPS = "tests/unit/broker/test_missing_batches.py::"
_LOST = "    return newest.log_start_offset <= gap.first and gap.last >= newest.cleaned_offset"
_FAILOVER = "tests/store/test_postgres_failover.py::"
_SEEN = "tests/store/test_postgres_sessions.py::test_which_servers_are_refused"


def _broker(name: str, module: str, before: str, after: str) -> Mutant:
    return Mutant(name, f"semel.broker.{module}", before, after)


def _ledger(name: str, module: str, before: str, after: str) -> Mutant:
    return Mutant(name, f"semel.store.cluster.{module}", before, after)


FOUND_BY: dict[Mutant, str] = {
    # Gaps between batches.
    _broker(
        "a gap that nothing explains is skipped",
        "upkeep.damage",
        _LOST,
        _LOST.replace("return", "return newest.compactions > 0 and"),
    ): _GAPS + "test_readers_get_what_is_before_the_gap_then_an_error_then_what_is_behind",
    _broker(
        "any gap is explained once there was a compaction",
        "upkeep.damage",
        _LOST,
        _LOST.replace("return", "return newest.compactions == 0 and"),
    ): _GAPS + "test_a_missing_batch_that_compaction_has_not_seen",
    _broker(
        "a gap that compaction has left is damage",
        "upkeep.damage",
        _LOST,
        "    return newest.log_start_offset <= gap.first",
    ): _GAPS + "test_gaps_of_compaction_are_no_damage",
    _broker(
        "a plan goes on behind a gap",
        "reads.fetch_planner",
        "    return row.base_offset > max(follows, partition.cleaned_offset)",
        "    return False",
    ): _GAPS + "test_readers_get_what_is_before_the_gap_then_an_error_then_what_is_behind",
    _broker(
        "a pass that ends early does not record how far it came",
        "upkeep.compaction",
        "                min(reached, end_offset),",
        "                end_offset if reached >= end_offset else seen.cleaned_offset,",
    ): _GAPS + "test_a_missing_batch_that_compaction_has_not_seen",
    _broker(
        "compaction covers a missing batch",
        "upkeep.compaction",
        "        if gap is not None and await self._broker.damage.is_missing(key, gap):",
        "        if False:",
    ): _GAPS + "test_compaction_does_not_cover_a_missing_batch",
    # Servers that lag behind, or are the wrong ones.
    _ledger(
        "an older timeline is used",
        "postgres.servers",
        "    if 0 < server.timeline < seen.timeline:",
        "    if False:",
    ): _FAILOVER + "test_a_name_that_moves_takes_all_connections_with_it",
    _ledger(
        "a server that lacks a term is used",
        "postgres.servers",
        "    if seen.term is not None and seen.term not in server.terms:",
        "    if False:",
    ): _FAILOVER + "test_an_old_primary_is_refused_by_who_has_seen_no_other",
    _ledger(
        "another database system is used",
        "postgres.servers",
        "    if None not in (seen.system, server.system) and seen.system != server.system:",
        "    if False:",
    ): _SEEN,
    _ledger(
        "a standby is used",
        "postgres.servers",
        "    if server.is_standby and seen != Seen():",
        "    if False:",
    ): _SEEN,
    # Commits that were confirmed, or were not.
    _ledger(
        "commits that a failover has lost are not missed",
        "committing",
        "        if last < number or (slot == place.slot and epoch < place.epoch):",
        "        if slot == place.slot and epoch < place.epoch:",
    ): _FAILOVER + "test_a_standby_that_lacked_commits_is_called_by_its_name",
    _ledger(
        "a cancelled wait for the standby is a confirmation",
        "postgres.database",
        '        if cancelled:\n            raise ConnectionLost(f"a commit was not',
        '        if False:\n            raise ConnectionLost(f"a commit was not',
    ): "tests/store/test_postgres_synchronous.py::test_a_commit_whose_wait_is_cancelled_is_not_acknowledged",
}
MUTANTS: tuple[Mutant, ...] = tuple(FOUND_BY)

_switched_on = ExitStack()


def killed_by(mutant: Mutant) -> str | None:
    """Return the test that fails with the defect; None if it passes, or does not run."""
    cases = tests.run("-p", __name__, FOUND_BY[mutant], **{CHOSEN: mutant.name})
    return FOUND_BY[mutant] if any(map(tests.has_failed, cases)) else None


def pytest_collection_finish() -> None:
    """Called by pytest before the tests."""
    (mutant,) = (each for each in MUTANTS if each.name == os.environ[CHOSEN])
    _switched_on.enter_context(applied(mutant))
