"""Compaction at its edges: damaged batches, horizons of clients, old times, readers that rest."""

from support.brokers.offline import Producer, later
from support.stores.compacting import UNCOMMITTED, compacting

from semel.client.consume.commit_order_log import CommitOrderLog, CommitOrderPosition
from semel.client.consume.spool import Spool
from semel.core.log.partition import Append
from semel.wire.batch import DELETE_HORIZON, HEADER_BYTES, seal
from semel.wire.records import Record, decode_batch, encode_batch, iter_batches, read_header


async def test_a_batch_with_damaged_headers_takes_nothing_away() -> None:
    async with compacting() as table:
        await table.put(("a", "good"))
        plain = encode_batch([Record(0, 1_000, b"a", b"x")])
        # The last byte is the count of headers: says five, and none follows.
        damaged = seal(read_header(plain), plain[HEADER_BYTES:-1] + b"\x0a")
        await table.broker.ask(Append(table.key, read_header(damaged), damaged))
        await table.put(("z", "1"))
        await table.compact()
        assert decode_batch(b"".join((await table.fetch()).buffers))[0].value == b"good"


async def test_behind_a_batch_that_cannot_be_opened_tombstones_stay() -> None:
    """Somebody else may be able to open it, and would see a value again that was deleted."""
    for is_damaged in (False, True):
        async with compacting(configs={"delete.retention.ms": "1000"}) as table:
            plain = encode_batch([Record(0, 1_000, b"a", b"x")])
            first = seal(read_header(plain), plain[HEADER_BYTES:-1] + b"\x0a") if is_damaged else plain
            await table.broker.ask(Append(table.key, read_header(first), first))
            await table.put(("a", None))
            for number in range(3):
                await table.put(("z", str(number)))
                await table.compact()
                later(table.broker, 10_000)
            batches = iter_batches(b"".join((await table.fetch()).buffers))
            assert [header.base_offset for _, header in batches] == ([0, 1, 4] if is_damaged else [4])


async def test_a_made_up_horizon_is_not_believed_by_the_second_pass_either() -> None:
    async with compacting(configs={"delete.retention.ms": "86400000"}) as table:
        plain = encode_batch([Record(0, -(2**63) + 10, b"a", None)])
        header = read_header(plain)
        claimed = header._replace(attributes=header.attributes | DELETE_HORIZON)
        await table.append(seal(claimed, plain[HEADER_BYTES:]))
        await table.put(("z", "1"))
        await table.compact()
        assert [key for _, key, _ in await table.pairs()] == ["a", "z"]
        later(table.broker, 1_000)
        await table.put(("y", "1"))
        await table.compact()
        assert [key for _, key, _ in await table.pairs()] == ["a", "z", "y"], "its day is not over"


async def test_old_records_go_though_the_newest_time_was_that_of_a_record_that_is_gone() -> None:
    configs = {"cleanup.policy": "compact,delete", "retention.ms": "60000"}
    async with compacting(configs=configs) as table:
        now = table.broker.time_of_day()
        await table.put(("a", "1"), timestamp=now)
        await table.put(("a", "2"), timestamp=now - 50_000)
        await table.compact()
        assert await table.pairs() == [(1, "a", "2")]
        later(table.broker, 30_000)
        # Everything that is left is 80 seconds old.
        await table.broker._housekeeping.retain()
        assert (await table.partition()).log_start_offset == 2


async def test_what_was_aborted_is_not_shown_with_the_next_transaction() -> None:
    async with compacting(configs={"delete.retention.ms": "1000"}) as table:
        log = CommitOrderLog(("table", 0), CommitOrderPosition(0, 0), Spool(1 << 20))
        producer = await Producer(table.broker, "t").init()
        await table.put_in(producer, ("a", "aborted"))
        await table.broker.flush()
        assert list(log.read(b"".join((await table.fetch(0, UNCOMMITTED)).buffers))) == []
        await producer.end(is_commit=False)
        for n in range(3):
            await table.put(("z", str(n)))
            await table.compact()
            later(table.broker, 10_000)
        assert await table.markers() == []
        await table.put_in(producer, ("b", "1"))
        await producer.end(is_commit=True)
        data = b"".join((await table.fetch(log.next_offset, UNCOMMITTED)).buffers)
        assert [each.value for each in log.read(data)] == [b"2", b"1"]
