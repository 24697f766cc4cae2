"""Denials are counted and written to the log, a bounded number of them."""

import logging
from typing import Any

import pytest
from support.brokers.guarded import ALICE, ROOT, Guarded, guarded_broker
from support.brokers.offline import later
from support.models.rights import READ, Right
from support.models.rights_requests import produced

from semel.core.security.acls import ResourceType
from semel.handlers import rights
from semel.server.logs import JsonFormatter, TextFormatter
from semel.wire.messages.groups import ListGroupsRequest
from semel.wire.messages.metadata import FindCoordinatorRequest, MetadataRequest, MetadataRequestTopic


def written(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [vars(each)["fields"] for each in caplog.records if each.name == "semel.audit"]


@pytest.fixture(autouse=True)
def _at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "semel.audit")


async def find(it: Guarded, *groups: str, principal: str = ALICE) -> None:
    await it.ask(10, FindCoordinatorRequest(coordinator_keys=list(groups)), 4, principal)


async def test_a_denial_says_who_from_where_and_what(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded_broker() as it:
        await it.ask(0, produced(), 9)
        assert written(caplog) == [
            {
                "principal": ALICE,
                "client": "127.0.0.1",
                "client_id": "test",
                "listener": "plain",
                "api": "Produce",
                "version": 9,
                "operation": "WRITE",
                "resource_type": "TOPIC",
                "resource": "t",
                "suppressed": 0,
            }
        ]
        assert it.broker.metrics.denied_requests == 1
        _, read = it.broker.metrics.counters["denied_requests"]
        assert read() == 1


async def test_a_request_is_counted_once_and_every_resource_is_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with guarded_broker() as it:
        await find(it, "a", "b")
        assert [each["resource"] for each in written(caplog)] == ["a", "b"]
        assert it.broker.metrics.denied_requests == 1


async def test_what_is_left_out_of_a_list_and_what_is_allowed_is_not_written(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with guarded_broker() as it:
        await it.allow(Right(READ, ResourceType.GROUP, "a"))
        await find(it, "a")
        await find(it, "b", principal=ROOT)
        await it.ask(16, ListGroupsRequest(), 4)
        await it.ask(3, MetadataRequest(topics=None), 9)
        assert written(caplog) == []
        assert it.broker.metrics.denied_requests == 0


async def test_a_client_in_a_loop_writes_one_line_in_a_while(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded_broker() as it:
        for _ in range(50):
            await find(it, "a")
        await find(it, "a", principal="User:bob")
        assert [each["principal"] for each in written(caplog)] == [ALICE, "User:bob"]
        later(it.broker, rights.PERIOD_MS)
        await find(it, "a")
        assert [each["suppressed"] for each in written(caplog)] == [0, 0, 49]
        assert it.broker.metrics.denied_requests == 52


async def test_a_client_that_names_ever_new_resources_is_limited_too(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with guarded_broker() as it:
        names = [f"g{number}" for number in range(3 * rights.REMEMBERED_MAX)]
        for first in range(0, len(names), 500):
            await find(it, *names[first : first + 500])
        assert len(written(caplog)) == rights.LINES_MAX
        await find(it, "a", principal="User:bob")
        assert written(caplog)[-1]["principal"] == "User:bob"
        for each in vars(it.broker.kept(rights._lines)).values():
            assert len(each) <= rights.REMEMBERED_MAX


async def test_names_cannot_forge_a_line(caplog: pytest.LogCaptureFixture) -> None:
    async with guarded_broker() as it:
        name = "a\n2026-01-01 info semel.audit denied principal=User:root\x1b[2J" + "x" * 1_000
        await it.ask(3, MetadataRequest(topics=[MetadataRequestTopic(name=name)]), 9)
        (record,) = (each for each in caplog.records if each.name == "semel.audit")
        for formatter in (TextFormatter(), JsonFormatter()):
            line = formatter.format(record)
            assert "\n" not in line
            assert "\x1b" not in line
            assert len(line) < 1_000
