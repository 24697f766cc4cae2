"""InitProducerId, AddPartitionsToTxn, AddOffsetsToTxn, EndTxn, in every version."""

from typing import Any

import pytest
from support.brokers.in_memory import broker_in_memory, context, make_topic
from support.clients.transactional import Transactional, committed, send

from semel.broker.broker import Broker
from semel.core.types import ErrorCode
from semel.handlers import served
from semel.handlers.context import CloseConnection
from semel.handlers.transactions import init_producer_id
from semel.store.contract import StoreFull
from semel.wire.messages.transactions import (
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
    EndTxnRequest,
    InitProducerIdRequest,
    InitProducerIdResponse,
)

FENCED, EPOCH = ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH


async def init(broker: Broker, version: int = 5, **fields: Any) -> tuple[int, int, int]:
    request = InitProducerIdRequest(**{"transactional_id": None, **fields})
    response = await init_producer_id(broker, request, context(version))
    decoded = InitProducerIdResponse.decode(response.encode(version), version)
    return decoded.error_code, decoded.producer_id, decoded.producer_epoch


@pytest.mark.parametrize("version", range(7))
async def test_every_idempotent_producer_gets_an_id_of_its_own(version: int) -> None:
    async with broker_in_memory() as broker:
        answers = [await init(broker, version) for _ in range(3)]
        assert {(error, epoch) for error, _, epoch in answers} == {(ErrorCode.NONE, 0)}
        assert len({producer_id for _, producer_id, _ in answers}) == 3


async def test_without_a_transactional_id_the_pair_in_the_request_is_ignored() -> None:
    async with broker_in_memory() as broker:
        _, first, _ = await init(broker)
        error, second, epoch = await init(broker, producer_id=first, producer_epoch=7)
        assert (error, epoch) == (ErrorCode.NONE, 0)
        assert second != first


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"producer_id": 1}, ErrorCode.INVALID_REQUEST),
        ({"producer_epoch": 1}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": ""}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": "t", "producer_id": 1}, ErrorCode.INVALID_REQUEST),
        ({"transactional_id": "t"}, ErrorCode.INVALID_TRANSACTION_TIMEOUT),
        (
            {"transactional_id": "t", "transaction_timeout_ms": 900_001},
            ErrorCode.INVALID_TRANSACTION_TIMEOUT,
        ),
        ({"transactional_id": "t", "enable2_pc": True}, ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED),
    ],
)
async def test_init_producer_id_refuses(fields: dict[str, Any], error: ErrorCode) -> None:
    async with broker_in_memory() as broker:
        assert await init(broker, 6, **fields) == (error, -1, -1)


async def test_init_producer_id_on_a_full_disk_may_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_in_memory() as broker:

        async def full(*_: object, **__: object) -> None:
            raise StoreFull

        monkeypatch.setattr(broker.store, "commit", full)
        assert await init(broker) == (ErrorCode.COORDINATOR_NOT_AVAILABLE, -1, -1)
        assert await Transactional(broker).init() == ErrorCode.COORDINATOR_NOT_AVAILABLE
        monkeypatch.undo()
        assert (await init(broker))[0] == ErrorCode.NONE


@pytest.mark.parametrize("version", range(7))
async def test_a_transactional_id_keeps_its_producer_id_and_moves_its_epoch(version: int) -> None:
    async with broker_in_memory() as broker:
        first, second = Transactional(broker), Transactional(broker)
        assert (await first.init(version), await second.init(version)) == (0, 0)
        assert (first.epoch, second.epoch) == (0, 1)
        assert first.producer_id == second.producer_id


@pytest.mark.parametrize("version", [3, 4, 5])
async def test_whoever_recovers_with_an_old_pair_is_fenced(version: int) -> None:
    async with broker_in_memory() as broker:
        old, new = Transactional(broker), Transactional(broker)
        await old.init()
        await new.init()
        await new.init()
        error = await old.init(version, producer_id=old.producer_id, producer_epoch=old.epoch)
        assert error == (FENCED if version >= 4 else EPOCH)


@pytest.mark.parametrize(("enabled", "highest"), [(False, 5), (True, 6)])
async def test_98_two_phase_commit_is_advertised_where_it_is_served(enabled: bool, highest: int) -> None:
    [api] = [each for each in served(two_phase=enabled) if each.key == 22]
    assert api.advertised_max == highest
    async with broker_in_memory(transaction_two_phase_commit_enable=enabled) as broker:
        error = await Transactional(broker).init(6, enable2_pc=True, transaction_timeout_ms=0)
        assert error == (0 if enabled else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED)


async def test_a_prepared_transaction_is_handed_over_and_can_be_ended() -> None:
    async with broker_in_memory(transaction_two_phase_commit_enable=True) as broker:
        topic = await make_topic(broker, "a")
        worker, finisher = Transactional(broker), Transactional(broker, connection=2)
        await worker.init(6, enable2_pc=True)
        assert (await worker.write("a", version=12)).error_code == ErrorCode.NONE
        request = InitProducerIdRequest(
            transactional_id="t", transaction_timeout_ms=1_000, enable2_pc=True, keep_prepared_txn=True
        )
        given = await finisher.send(request, 6)
        ongoing = (given.ongoing_txn_producer_id, given.ongoing_txn_producer_epoch)
        assert (given.error_code, *ongoing) == (0, worker.producer_id, worker.epoch)
        finisher.producer_id, finisher.epoch = given.producer_id, given.producer_epoch
        assert (await finisher.end(version=5)).error_code == ErrorCode.NONE
        assert (await committed(broker, topic)).last_stable_offset == 2


@pytest.mark.parametrize("version", range(5))
async def test_a_transaction_of_the_first_generation(version: int) -> None:
    async with broker_in_memory() as broker:
        topic = await make_topic(broker, "a", 2)
        producer = Transactional(broker)
        await producer.init(version)
        for commit in (True, False):
            assert await producer.add("a", 0, 1, version=min(version, 3)) == [0, 0]
            assert (await producer.write("a")).error_code == ErrorCode.NONE
            ended = await producer.end(commit=commit, version=version)
            assert (ended.error_code, ended.producer_id, ended.producer_epoch) == (0, -1, -1)
            again = await producer.end(commit=commit, version=version)
            assert again.error_code == ErrorCode.NONE
            other = await producer.end(commit=not commit, version=version)
            assert other.error_code == ErrorCode.INVALID_TXN_STATE
        part = await committed(broker, topic)
        assert part.last_stable_offset == part.high_watermark == 4
        assert [(each.producer_id, each.first_offset) for each in part.aborted_transactions] == [
            (producer.producer_id, 2)
        ]


async def test_a_transaction_of_the_second_generation_moves_the_epoch() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        producer = Transactional(broker)
        await producer.init()
        assert (await producer.write("a", version=12)).error_code == ErrorCode.NONE
        first = await producer.end(version=5)
        assert (first.error_code, first.producer_id, first.producer_epoch) == (0, producer.producer_id, 1)
        assert (await producer.write("a", version=12)).error_code == ErrorCode.NONE
        producer.epoch = 0
        late = await producer.end(version=5)
        assert late.error_code == FENCED, "a late end does not end the next transaction"


@pytest.mark.parametrize("version", range(5))
async def test_a_fenced_producer_is_told_so_in_the_words_of_its_version(version: int) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        old, new = Transactional(broker), Transactional(broker)
        await old.init()
        await new.init()
        fenced = FENCED if version >= 2 else EPOCH
        assert await old.add("a", version=min(version, 3)) == [FENCED if min(version, 3) >= 2 else EPOCH]
        assert await old.add_offsets("g", version) == fenced
        assert (await old.end(version=version)).error_code == fenced


async def test_33_34_partitions_join_all_or_none() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a", 2)
        producer = Transactional(broker)
        await producer.init()
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="t",
            v3_and_below_producer_id=producer.producer_id,
            v3_and_below_producer_epoch=producer.epoch,
            v3_and_below_topics=[
                AddPartitionsToTxnTopic(name="a", partitions=[0, 2, -1]),
                AddPartitionsToTxnTopic(name="missing", partitions=[0]),
                AddPartitionsToTxnTopic(name="__consumer_offsets", partitions=[0]),
            ],
        )
        results = (await producer.send(request, 3)).results_by_topic_v3_and_below
        unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        found = {
            each.name: {part.partition_index: part.partition_error_code for part in each.results_by_partition}
            for each in results
        }
        assert found == {
            "a": {0: ErrorCode.OPERATION_NOT_ATTEMPTED, 2: unknown, -1: unknown},
            "missing": {0: unknown},
            "__consumer_offsets": {0: ErrorCode.TOPIC_AUTHORIZATION_FAILED},
        }
        assert (await producer.end()).error_code == ErrorCode.INVALID_TXN_STATE, "nothing was begun"


async def test_without_an_id_there_is_no_transaction() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        nobody = Transactional(broker, "")
        nobody.producer_id, nobody.epoch = 1, 0
        assert await nobody.add("a") == [ErrorCode.INVALID_REQUEST]
        assert await nobody.add_offsets("g") == ErrorCode.INVALID_REQUEST
        assert (await nobody.end()).error_code == ErrorCode.INVALID_REQUEST
        stranger = Transactional(broker, "stranger")
        stranger.producer_id, stranger.epoch = 1, 0
        unmapped = ErrorCode.INVALID_PRODUCER_ID_MAPPING
        assert await stranger.add("a") == [unmapped]
        assert await stranger.add_offsets("g") == unmapped
        assert (await stranger.end()).error_code == unmapped
        assert await stranger.add_offsets("") == ErrorCode.INVALID_GROUP_ID


def batched(producer: Transactional, *, verify: bool, partitions: list[int]) -> AddPartitionsToTxnTransaction:
    return AddPartitionsToTxnTransaction(
        transactional_id=producer.transactional_id,
        producer_id=producer.producer_id,
        producer_epoch=producer.epoch,
        verify_only=verify,
        topics=[AddPartitionsToTxnTopic(name="a", partitions=partitions)],
    )


@pytest.mark.parametrize("version", [4, 5])
async def test_between_brokers_many_are_added_or_verified_at_once(version: int) -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a", 2)
        adds, verifies = Transactional(broker, "adds"), Transactional(broker, "verifies")
        await adds.init()
        await verifies.init()
        assert await verifies.add("a", 0) == [ErrorCode.NONE]
        request = AddPartitionsToTxnRequest(
            transactions=[
                batched(adds, verify=False, partitions=[0, 1]),
                batched(verifies, verify=True, partitions=[0, 1]),
                batched(Transactional(broker, "stranger"), verify=True, partitions=[0]),
                batched(Transactional(broker, ""), verify=True, partitions=[0]),
                batched(verifies, verify=True, partitions=[0, 9]),
            ]
        )
        response = await send(broker, request, version, connection=99)
        found = [
            [part.partition_error_code for part in each.topic_results[0].results_by_partition]
            for each in response.results_by_transaction
        ]
        assert found == [
            [ErrorCode.NONE, ErrorCode.NONE],
            [ErrorCode.NONE, ErrorCode.TRANSACTION_ABORTABLE],
            [ErrorCode.INVALID_PRODUCER_ID_MAPPING],
            [ErrorCode.INVALID_REQUEST],
            [ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION],
        ]
        assert (await adds.end()).error_code == ErrorCode.NONE, "a broker does not speak for the id"


async def test_97_a_client_without_cluster_rights_may_not_ask_as_a_broker() -> None:
    async with broker_in_memory(semel_cluster_action_enable=False) as broker:
        await make_topic(broker, "a")
        producer = Transactional(broker)
        await producer.init()
        request = AddPartitionsToTxnRequest(transactions=[batched(producer, verify=False, partitions=[0])])
        response = await send(broker, request, 4)
        assert response.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert response.results_by_transaction == []
        assert await producer.add("a") == [ErrorCode.NONE], "what clients send needs no such rights"


async def test_a_topic_may_limit_how_long_a_transaction_is_open() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a", semel_transaction_block_max_ms="5000")
        await make_topic(broker, "b")
        producer = Transactional(broker)
        await producer.init()
        await producer.add("b")
        await producer.add("a")
        await broker.flush()
        [transaction] = await broker.store.ledger.transactions()
        assert transaction.deadline_ms == transaction.started_ms + 5_000


async def test_what_comes_on_an_old_connection_closes_it() -> None:
    async with broker_in_memory() as broker:
        await make_topic(broker, "a")
        producer, late = Transactional(broker), Transactional(broker)
        await producer.init()
        late.producer_id, late.epoch = producer.producer_id, producer.epoch
        producer.connection = 2
        assert await producer.add("a") == [ErrorCode.NONE]
        for request in (
            EndTxnRequest(**late._identity(), committed=True),
            AddOffsetsToTxnRequest(**late._identity(), group_id="g"),
            AddPartitionsToTxnRequest(
                v3_and_below_transactional_id="t",
                v3_and_below_producer_id=late.producer_id,
                v3_and_below_producer_epoch=late.epoch,
                v3_and_below_topics=[AddPartitionsToTxnTopic(name="a", partitions=[0])],
            ),
        ):
            with pytest.raises(CloseConnection, match="'t'"):
                await late.send(request, 3)
        assert (await producer.end()).error_code == ErrorCode.NONE


@pytest.mark.parametrize(
    "ask",
    [
        lambda producer: producer.add("b"),
        lambda producer: producer.add_offsets("g"),
        lambda producer: producer.end(),
    ],
    ids=["add", "add_offsets", "end"],
)
async def test_a_full_disk_may_be_tried_again(ask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    async with broker_in_memory(semel_durability="always") as broker:
        await make_topic(broker, "a")
        await make_topic(broker, "b")
        producer = Transactional(broker)
        await producer.init()
        await producer.add("a")
        await producer.write("a")

        async def full(*_: object, **__: object) -> None:
            raise StoreFull

        monkeypatch.setattr(broker.store, "commit", full)
        answer = await ask(producer)
        errors = answer if isinstance(answer, list) else [getattr(answer, "error_code", answer)]
        assert errors == [ErrorCode.COORDINATOR_NOT_AVAILABLE]
