"""Fetch sessions (KIP-227), without a broker."""

import pytest

from semel.core.types import ErrorCode
from semel.handlers.fetch import EPOCH_MAX, IDLE_MS, FetchSessions, SessionFetch
from semel.wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic, PartitionData


def request(
    *partitions: int, session: int = 0, epoch: int = 0, forget: tuple[int, ...] = (), offset: int = 0
) -> FetchRequest:
    topics = [
        FetchTopic(
            topic="t", partitions=[FetchPartition(partition=p, fetch_offset=offset) for p in partitions]
        )
    ]
    forgotten = [ForgottenTopic(topic="t", partitions=list(forget))] if forget else []
    return FetchRequest(
        session_id=session,
        session_epoch=epoch,
        topics=topics if partitions else [],
        forgotten_topics_data=forgotten,
    )


def begin(sessions: FetchSessions, asked: FetchRequest, now: int = 0, by_id: bool = False) -> SessionFetch:
    return sessions.begin(asked, by_id=by_id, now=now)


def indexes(turn: SessionFetch) -> list[int]:
    return [partition.index for partition in turn.partitions]


def test_kip_227_epoch_minus_one_wants_no_session() -> None:
    sessions = FetchSessions(10, 100)
    turn = begin(sessions, request(0, 1, epoch=-1))
    assert (turn.session_id, indexes(turn), len(sessions)) == (0, [0, 1], 0)


def test_kip_227_a_session_remembers_and_changes_its_partitions() -> None:
    sessions = FetchSessions(10, 100)
    session = begin(sessions, request(0, 1)).session_id
    assert session > 0
    assert indexes(begin(sessions, request(session=session, epoch=1))) == [0, 1]
    turn = begin(sessions, request(2, 0, session=session, epoch=2, forget=(1,), offset=9))
    assert indexes(turn) == [0, 2]
    assert [partition.asked.fetch_offset for partition in turn.partitions] == [9, 9]
    assert turn.session_id == session
    assert turn.is_incremental


def test_kip_227_unknown_sessions_and_wrong_epochs() -> None:
    sessions = FetchSessions(10, 100)
    session = begin(sessions, request(0)).session_id
    assert (
        begin(sessions, request(session=session + 1, epoch=1)).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    )
    assert begin(sessions, request(session=0, epoch=1)).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    for epoch in (2, 7, -2):
        error = begin(sessions, request(session=session, epoch=epoch)).error
        assert error is ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert begin(sessions, request(session=session, epoch=1)).error is ErrorCode.NONE
    assert begin(sessions, request(session=session, epoch=1)).error is ErrorCode.INVALID_FETCH_SESSION_EPOCH


def test_kip_516_a_session_does_not_switch_between_names_and_ids() -> None:
    sessions = FetchSessions(10, 100)
    session = begin(sessions, request(0)).session_id
    turn = begin(sessions, request(session=session, epoch=1), by_id=True)
    assert turn.error is ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR
    assert begin(sessions, request(session=session, epoch=1)).error is ErrorCode.NONE


@pytest.mark.parametrize("epoch", [0, -1])
def test_a_full_request_ends_the_session_that_it_names(epoch: int) -> None:
    sessions = FetchSessions(10, 100)
    session = begin(sessions, request(0)).session_id
    turn = begin(sessions, request(0, 1, session=session, epoch=epoch))
    assert turn.session_id != session
    assert begin(sessions, request(session=session, epoch=1)).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert len(sessions) == (1 if epoch == 0 else 0)


def test_a_session_without_partitions_ends() -> None:
    sessions = FetchSessions(10, 100)
    assert begin(sessions, request()).session_id == 0
    session = begin(sessions, request(0)).session_id
    turn = begin(sessions, request(session=session, epoch=1, forget=(0,)))
    assert (turn.error, turn.session_id, turn.partitions, len(sessions)) == (ErrorCode.NONE, 0, [], 0)


def test_epochs_wrap_to_one() -> None:
    sessions = FetchSessions(10, 100)
    turn = begin(sessions, request(0))
    assert turn.session is not None
    turn.session.epoch = EPOCH_MAX
    assert begin(sessions, request(session=turn.session_id, epoch=EPOCH_MAX)).error is ErrorCode.NONE
    assert begin(sessions, request(session=turn.session_id, epoch=1)).error is ErrorCode.NONE


def test_slots_are_bounded_and_idle_sessions_give_way() -> None:
    sessions = FetchSessions(2, 100)
    first, second = (begin(sessions, request(0), now=0).session_id for _ in range(2))
    assert begin(sessions, request(0), now=IDLE_MS - 1).session_id == 0
    begin(sessions, request(session=first, epoch=1), now=IDLE_MS - 1)
    assert begin(sessions, request(0), now=IDLE_MS).session_id > 0
    assert len(sessions) == 2
    assert begin(sessions, request(session=second, epoch=1)).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert begin(sessions, request(session=first, epoch=2)).error is ErrorCode.NONE


def test_partitions_of_all_sessions_together_are_bounded() -> None:
    sessions = FetchSessions(10, 4)
    session = begin(sessions, request(0, 1, 2)).session_id
    assert begin(sessions, request(0, 1)).session_id == 0
    assert begin(sessions, request(0)).session_id > 0
    turn = begin(sessions, request(3, session=session, epoch=1))
    assert turn.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert begin(sessions, request(0, 1, 2)).session_id > 0


def test_what_is_news_to_a_client() -> None:
    (partition,) = begin(FetchSessions(10, 100), request(0)).partitions
    quiet = PartitionData(high_watermark=5, log_start_offset=0, records=b"")
    assert partition.is_news(quiet)
    assert not partition.is_news(quiet)
    assert partition.is_news(PartitionData(high_watermark=5, log_start_offset=0, records=b"x"))
    assert partition.is_news(PartitionData(high_watermark=6, log_start_offset=0, records=b""))
    assert partition.is_news(PartitionData(high_watermark=6, log_start_offset=2, records=b""))
    failed = PartitionData(error_code=1, high_watermark=-1, log_start_offset=-1)
    assert partition.is_news(failed)
    assert partition.is_news(failed)
    assert partition.is_news(PartitionData(high_watermark=6, log_start_offset=2, records=b""))


def test_a_partition_that_was_served_comes_last_next_time() -> None:
    sessions = FetchSessions(10, 100)
    turn = begin(sessions, request(0, 1, 2))
    assert turn.session is not None
    turn.session.move_to_end(turn.partitions[0])
    assert indexes(begin(sessions, request(session=turn.session_id, epoch=1))) == [1, 2, 0]
