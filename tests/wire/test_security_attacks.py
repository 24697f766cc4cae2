"""What an attack on the security has found, once each."""

import time
from collections.abc import Iterator

import pytest
from support.clients.raw import RawClient, batch

import semel
from semel.client import Admin, AuthenticationFailed, Client, NewTopic, Security
from semel.client.admin.acls import Acl
from semel.client.admin.quotas import QuotaEntity
from semel.config import Settings
from semel.wire.errors import ErrorCode
from semel.wire.messages import (
    FetchPartition,
    FetchRequest,
    FetchTopic,
    InitProducerIdRequest,
    MetadataRequest,
    MetadataRequestTopic,
    PartitionProduceData,
    ProduceRequest,
    SaslAuthenticateRequest,
    SaslHandshakeRequest,
    TopicProduceData,
)

SETTINGS = {
    "semel.authorizer": "acl",
    "super.users": "User:admin",
    "sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256",
    "auto.create.topics.enable": True,
}
USERS = {"admin": "pw", "mallory": "pw", "alice": "pw"}


@pytest.fixture
def broker() -> Iterator[semel.Embedded]:
    with semel.embedded(users=USERS, settings=SETTINGS) as broker:
        yield broker


@pytest.fixture
def admin(broker: semel.Embedded) -> Iterator[Admin]:
    who = {"sasl.mechanism": "PLAIN", "sasl.username": "admin", "sasl.password": "pw"}
    security = Security.of({"security.protocol": "SASL_PLAINTEXT", **who})
    with Client(broker.bootstrap_servers, security=security) as client:
        Admin(client).topics.create(NewTopic("secret", 1), NewTopic("t", 1))
        yield Admin(client)


def as_user(broker: semel.Embedded, user: str, **options: object) -> RawClient:
    raw = RawClient(broker.bootstrap_servers, client_id=user, timeout_seconds=60)
    assert raw.ask(SaslHandshakeRequest(mechanism="PLAIN"), 1).error_code == 0
    assert raw.ask(SaslAuthenticateRequest(auth_bytes=f"\0{user}\0pw".encode()), 2).error_code == 0
    return raw


@pytest.mark.parametrize("version", [1, 4, 9, 11, 12])
def test_an_empty_topic_name_does_not_open_metadata(
    broker: semel.Embedded, admin: Admin, version: int
) -> None:
    names = ("", "secret", "new")
    request = MetadataRequest(
        topics=[MetadataRequestTopic(name=each) for each in names], allow_auto_topic_creation=True
    )
    with as_user(broker, "mallory") as raw:
        answer = raw.ask(request, version)
    assert all(each.error_code and not each.partitions for each in answer.topics)
    assert "new" not in {each.name for each in admin.topics.all()}


def test_a_produce_to_a_topic_without_a_name_takes_nothing_from_others(
    broker: semel.Embedded, admin: Admin
) -> None:
    admin.acls.add(Acl.of("User:alice", "Write", topic="t"))
    ask = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=1_000)
    data = TopicProduceData(name="", partition_data=[PartitionProduceData(index=0, records=batch(1))])
    with as_user(broker, "alice") as raw:
        raw.ask(ProduceRequest(acks=-1, timeout_ms=1_000, topic_data=[data]), 9)
        assert raw.ask(ask, 4).error_code == ErrorCode.NONE


def test_a_fetch_session_is_of_no_use_to_others(broker: semel.Embedded, admin: Admin) -> None:
    admin.acls.add(Acl.of("User:alice", "Read", topic="secret"))
    topic = FetchTopic(topic="secret", partitions=[FetchPartition(partition=0, partition_max_bytes=100)])
    begin = FetchRequest(max_wait_ms=0, max_bytes=100, session_id=0, session_epoch=0, topics=[topic])
    with as_user(broker, "alice") as alice, as_user(broker, "mallory") as mallory:
        session = alice.ask(begin, 11).session_id
        assert session
        for epoch in (1, -1):
            stolen = FetchRequest(max_wait_ms=0, max_bytes=100, session_id=session, session_epoch=epoch)
            answer = mallory.ask(stolen, 11)
            assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
            assert not answer.responses
        go_on = FetchRequest(max_wait_ms=0, max_bytes=100, session_id=session, session_epoch=1)
        assert alice.ask(go_on, 11).error_code == ErrorCode.NONE


def test_pipelined_writes_do_not_slip_through_a_quota(broker: semel.Embedded, admin: Admin) -> None:
    admin.acls.add(Acl.of("User:alice", "Write", topic="t"))
    admin.quotas.alter(QuotaEntity(user="alice"), {"producer_byte_rate": 100_000.0})
    data = PartitionProduceData(index=0, records=batch(1, value=bytes(500_000)))
    request = ProduceRequest(
        acks=-1, timeout_ms=1_000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )
    with as_user(broker, "alice") as raw:
        started = time.monotonic()
        for _ in range(6):
            raw.send(request, 9)
        (end,) = admin.topics.offsets({("t", 0): -1}).values()
        seconds = time.monotonic() - started
    # Ten seconds of the quota are free, and the request that exceeds it.
    assert end.offset * 500_000 <= (10 + seconds) * 100_000 + 500_000


@pytest.mark.parametrize("limit", [0.01, None])
def test_writes_count_for_the_share_of_a_processor(
    broker: semel.Embedded, admin: Admin, limit: float | None
) -> None:
    admin.acls.add(Acl.of("User:alice", "Write", topic="t"))
    if limit is not None:
        admin.quotas.alter(QuotaEntity(user="alice"), {"request_percentage": limit})
    data = PartitionProduceData(index=0, records=batch(1, value=bytes(500_000)))
    request = ProduceRequest(
        acks=-1, timeout_ms=1_000, topic_data=[TopicProduceData(name="t", partition_data=[data])]
    )
    throttled = 0
    with as_user(broker, "alice") as raw:
        for _ in range(100):
            if throttled := raw.ask(request, 9).throttle_time_ms:
                break
    assert bool(throttled) is (limit is not None)


def test_topics_that_are_made_by_asking_count_for_the_quota(broker: semel.Embedded, admin: Admin) -> None:
    admin.acls.add(Acl.of("User:alice", "All", topic="*"))
    admin.quotas.alter(QuotaEntity(user="alice"), {"controller_mutation_rate": 1.0})
    topics = [MetadataRequestTopic(name=f"made-{number}") for number in range(50)]
    with as_user(broker, "alice") as raw:
        answer = raw.ask(MetadataRequest(topics=topics, allow_auto_topic_creation=True), 9)
    assert answer.throttle_time_ms > 10_000


def test_the_salt_of_an_unknown_user_stays_the_same(tmp_path: object) -> None:
    """Otherwise a restart, or another broker, would tell who exists."""

    def salt(broker: semel.Embedded) -> bytes:
        with RawClient(broker.bootstrap_servers) as raw:
            raw.ask(SaslHandshakeRequest(mechanism="SCRAM-SHA-256"), 1)
            first = SaslAuthenticateRequest(auth_bytes=b"n,,n=nobody,r=abc")
            challenge = bytes(raw.ask(first, 2).auth_bytes)
            return challenge.split(b",")[1]

    salts = set()
    for _ in range(2):
        with semel.embedded(f"{tmp_path}/data", users={"ann": "x"}) as broker:
            salts |= {salt(broker), salt(broker)}
    assert len(salts) == 1


def test_the_host_of_an_acl_is_an_address_and_normalised(broker: semel.Embedded, admin: Admin) -> None:
    for wrong in ("localhost", "127.0.0.0/8", "", "nonsense"):
        with pytest.raises(Exception, match="neither \\* nor an IP address"):
            admin.acls.add(Acl.of("User:alice", "Read", topic="t", host=wrong))
    admin.acls.add(Acl.of("User:alice", "Read", topic="t", host="0:0:0:0:0:0:0:1"))
    (made,) = admin.acls.list()
    assert made.host == "::1"
    assert admin.acls.list(host="0:0::1") == [made]


@pytest.mark.parametrize("wrong", ["admin", "user:admin", "User:a,User:b", "User:*", "User:", "Group:x"])
def test_a_super_user_is_none_by_mistake(wrong: str) -> None:
    with pytest.raises(ValueError, match=r"super\.users takes User:NAME"):
        Settings(super_users=wrong)


def test_who_removes_itself_gets_an_answer(broker: semel.Embedded, admin: Admin) -> None:
    admin.users.remove("admin")
    with pytest.raises(AuthenticationFailed):
        Admin(admin._client).topics.all()
