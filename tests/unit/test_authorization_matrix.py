"""Every API and every right that it needs: without it Kafka's error and no effect, with all it works."""

from itertools import product
from typing import Any

import pytest
from support.brokers.guarded import EVERYTHING, guarded_broker
from support.models.rights import Case, Hidden, Need, Right, at
from support.models.rights_matrix import MATRIX
from support.models.rights_requests import prepare

from semel.handlers import HANDLERS
from semel.wire.api_key import ApiKey

FREE = {
    ApiKey.SASL_HANDSHAKE,
    ApiKey.API_VERSIONS,
    ApiKey.SASL_AUTHENTICATE,
    ApiKey.CREATE_DELEGATION_TOKEN,
    ApiKey.RENEW_DELEGATION_TOKEN,
    ApiKey.EXPIRE_DELEGATION_TOKEN,
    ApiKey.DESCRIBE_DELEGATION_TOKEN,
}
"""They need no right: three come before the principal is known, the others are always refused."""

SERVED = [case for case in MATRIX if case.key in HANDLERS]
NEEDS = [(case, need) for case in SERVED for need in case.needs]
IDS = [f"{case.name} - {need.rights[0].operation.name} {need.rights[0].name}" for case, need in NEEDS]


def check(response: Any, path: str, expected: int | Hidden, *, is_denied: bool) -> None:
    value = at(response, path)
    if isinstance(expected, Hidden):
        assert (expected.name not in value) == is_denied
    else:
        assert value == expected


async def denied(case: Case, need: Need, allowed: list[Right], forbidden: tuple[Right, ...]) -> None:
    async with guarded_broker() as guarded_one:
        world = await prepare(guarded_one.as_root)
        await guarded_one.allow(*allowed)
        await guarded_one.deny(*forbidden)
        before = await guarded_one.state()
        count = guarded_one.broker.metrics.denied_requests
        response = await guarded_one.ask(case.key, case.request(world), case.version)
        check(response, *case.expected(need), is_denied=True)
        assert need.changes or await guarded_one.state() == before
        is_recorded = not isinstance(need.error, Hidden) and not need.changes
        assert guarded_one.broker.metrics.denied_requests - count == is_recorded


@pytest.mark.parametrize(("case", "need"), NEEDS, ids=IDS)
async def test_with_the_other_needed_rights_only(case: Case, need: Need) -> None:
    others = [right for each in case.needs if each is not need for right in each.rights]
    await denied(case, need, others, ())


@pytest.mark.parametrize(("case", "need"), NEEDS, ids=IDS)
async def test_with_all_rights_but_this_one(case: Case, need: Need) -> None:
    await denied(case, need, EVERYTHING, need.rights)


@pytest.mark.parametrize("case", SERVED, ids=[case.name for case in SERVED])
async def test_with_exactly_the_needed_rights(case: Case) -> None:
    for rights in product(*(need.rights for need in case.needs)):
        async with guarded_broker() as guarded_one:
            world = await prepare(guarded_one.as_root)
            await guarded_one.allow(*rights)
            response = await guarded_one.ask(case.key, case.request(world), case.version)
            for need in case.needs:
                path, _ = case.expected(need)
                check(response, path, case.allowed_at(need), is_denied=False)
            assert guarded_one.broker.metrics.denied_requests == 0


@pytest.mark.parametrize("case", SERVED, ids=[case.name for case in SERVED])
async def test_without_an_authorizer_and_for_super_users_nothing_is_asked(case: Case) -> None:
    answers = []
    for settings, principal in (({"semel_authorizer": ""}, "User:alice"), ({}, "User:root")):
        async with guarded_broker(**settings) as guarded_one:
            world = await prepare(guarded_one.as_root)
            response = await guarded_one.ask(case.key, case.request(world), case.version, principal)
            for need in case.needs:
                path, error = case.expected(need)
                if isinstance(error, Hidden):
                    assert error.name in at(response, path)
            answers.append(at(response, case.path))
    if case.key not in (29, 30, 31):  # SECURITY_DISABLED without an authorizer
        assert answers[0] == answers[1]


def test_every_api_that_is_served_is_in_the_matrix() -> None:
    in_matrix = {case.key for case in MATRIX}
    assert in_matrix | FREE == set(HANDLERS)
    assert not in_matrix & FREE
