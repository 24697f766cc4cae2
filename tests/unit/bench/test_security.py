"""What security costs: its ACLs, its targets, and one small measurement of each kind."""

import pytest
from confluent_kafka import KafkaError, Producer

from bench.__main__ import SECURITY_ROUNDS, _section, _sized
from bench.results import Results
from bench.security.acls import CELLS, Acls, Secured
from bench.security.bindings import bindings
from bench.security.goals import rows
from bench.security.subjects import CLIENT, GROUP, PREFIXES, TOPICS, WithAcls, WithSasl
from bench.security.tls import CELLS as TLS_CELLS
from bench.security.tls import Tls
from bench.side_by_side.catalogue import SECURITY
from bench.side_by_side.measuring import DEFAULT, QUICK, Size, measure
from bench.subjects import running
from semel.client import Admin, Client, Security

TINY = Size("tiny", 1, 1, 0.05, 0.05, 0.05, 100, 100, (), 1)
WITHOUT, WITH = 1_000.0, 970.0


class Every(Acls):
    """One cell of each kind."""

    def cells(self, size: Size) -> list[Secured]:
        return [CELLS[0], CELLS[2], CELLS[3], CELLS[5]]


@pytest.fixture
def results() -> Results:
    made = Results("default", {}, workloads=[Acls().about, Tls().about])
    for cell in CELLS:
        for subject, rate in (("semel-sasl", WITHOUT), ("semel-sasl-2", WITHOUT), ("semel-acl", WITH)):
            made.add(Acls.name, cell.label, subject, {"per second": rate, "p50": 1e3 / rate, "p99": 2.0})
    for other in TLS_CELLS:
        for subject, rate in (("semel", 100.0), ("kafka", 80.0), ("semel-tls", 60.0), ("kafka-tls", 75.0)):
            made.add(Tls.name, other.label, subject, {"per second": rate})
    return made


def test_the_acls_are_many_and_of_all_kinds() -> None:
    acls = bindings(f"User:{CLIENT}", TOPICS, GROUP, PREFIXES)
    assert len(set(acls)) == len(acls) > 5_000
    mine = [each for each in acls if each.principal == f"User:{CLIENT}"]
    assert len(mine) < 20
    for some in (mine, acls):
        assert {each.pattern_type for each in some} == {"LITERAL", "PREFIXED"}
    others = {each.principal for each in acls if each.resource_name in TOPICS} - {f"User:{CLIENT}"}
    assert len(others) > 10


def test_targets_are_the_goals_of_security(results: Results) -> None:
    found = {row.what: row for row in rows(results)}
    assert len(found) == 2 * len(CELLS) + len(TLS_CELLS)
    for cell in CELLS:
        rate = found[f"with ACLs, {cell.label}: per second, over without"]
        assert (rate.value, rate.target, rate.met) == (pytest.approx(0.97), 0.95, True)
        assert rate.measured == "one round; 970 and 1,000; of two brokers without: 1.000"
        p50 = found[f"with ACLs, {cell.label}: p50, over without"]
        assert (p50.value, p50.target, p50.met) == (pytest.approx(1 / 0.97), 1.05, True)
    for other in TLS_CELLS:
        row = found[f"with TLS, {other.label}: per second, over kafka's with TLS"]
        assert (row.value, row.target, row.met) == (pytest.approx(0.8), 1.0, False)


def test_there_are_enough_rounds_for_five_percent() -> None:
    for each in SECURITY:
        assert _section(each) == "security"
        assert _sized(DEFAULT, each).rounds == SECURITY_ROUNDS
        assert _sized(QUICK, each) == QUICK


@pytest.mark.slow
def test_acls_are_in_force_and_the_client_has_what_it_needs() -> None:
    found = Results("tiny", {})
    with running(WithSasl) as without, running(WithAcls) as having:
        measure(Every(), [without, having], TINY, found, lambda _: None)
        having.create({"secret": 1})
        refused: list[KafkaError | None] = []
        conf = {"bootstrap.servers": having.bootstrap, "log_level": 0, **having.access}
        producer = Producer(conf)
        producer.produce("secret", b"x", on_delivery=lambda error, _: refused.append(error))
        assert producer.flush(30) == 0
        with Client(having.bootstrap, security=Security.of(having.administration)) as client:
            assert len(Admin(client).acls.list()) > 5_000
    assert found.failed == found.skipped == []
    assert {series.subject for series in found.series} == {"semel-sasl", "semel-acl"}
    assert all(
        value > 0
        for series in found.series
        for value in series.values
        if series.metric != "broker's processor"
    )
    assert [error and error.code() for error in refused] == [KafkaError.TOPIC_AUTHORIZATION_FAILED]
