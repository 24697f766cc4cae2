"""All scenes of a cluster: in each, one thing happens at the worst moment, and nothing else (``stage``).

Each finds at least one defect of ``cluster_mutants`` that histories find rarely or not at all.
"""

from collections.abc import Callable
from typing import Final

from simulation import (
    scenes_commits,
    scenes_copies,
    scenes_crashes,
    scenes_ends,
    scenes_histories,
    scenes_leases,
)

SCENES: Final[tuple[Callable[[], None], ...]] = (
    scenes_histories.end_of_a_lost_transaction,
    scenes_histories.late_division,
    scenes_histories.end_decided_after_a_hand_over,
    scenes_histories.join_decided_after_a_hand_over,
    scenes_histories.end_of_a_history,
    scenes_ends.repeated_end,
    scenes_ends.dead_coordinator,
    scenes_ends.dead_coordinator_and_paused_leader,
    scenes_ends.leaving_coordinator,
    scenes_commits.write_decided_before_an_end,
    scenes_commits.late_commit,
    scenes_commits.flush_after_an_end_elsewhere,
    scenes_commits.two_clocks,
    scenes_copies.lost_notice_of_a_join,
    scenes_copies.lost_notice_of_a_join_without_end,
    scenes_copies.notices_in_another_order,
    scenes_copies.write_repeated_at_the_leader,
    scenes_copies.late_notice_of_a_deleted_group,
    scenes_copies.right_removed_twice,
    scenes_copies.right_removed_where_it_is_known,
    scenes_copies.right_removed_before_it_is_known,
    scenes_leases.late_renewal,
    scenes_leases.leader_without_ledger,
    scenes_leases.write_of_a_replaced_broker,
    scenes_leases.unknown_owner,
    scenes_leases.next_owner,
    scenes_leases.late_hand_over,
    scenes_leases.long_commit,
    scenes_leases.slow_notices,
    scenes_crashes.write_at_another_broker,
    scenes_crashes.end_seen_from_elsewhere,
    scenes_crashes.end_seen_at_the_leader,
    scenes_crashes.end_after_a_crash,
    scenes_crashes.shards_given_away_after_a_crash,
)
