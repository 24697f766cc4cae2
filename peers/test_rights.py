"""The rights matrix, sent to Semel and to Apache Kafka with the same ACLs: the answers are the same.

The rows are in tests/support/models/rights_matrix.py. Each is tried without one of its rights, in two ways,
and with exactly the rights that it needs. Fields whose values cannot be equal are compared by presence.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import pytest
from support.brokers.guarded import EVERYTHING
from support.certificates import needs_openssl
from support.models.rights import Case, Hidden, Need, Right, at
from support.models.rights_matrix import MATRIX

from peers.guarded import NAMES, Names, Rule, Side, both, common_version
from semel.core.security.acls import Permission
from semel.wire.errors import ErrorCode
from semel.wire.messages.configs import FeatureUpdateKey, UpdateFeaturesRequest
from semel.wire.messages.security import DescribeUserScramCredentialsRequest
from semel.wire.schema import Declared

pytestmark = needs_openssl

IGNORED = {
    "throttle_time_ms": "a quota, not a right",
}
"""Fields that are not compared."""
OWN = {
    "error_message": "texts are each broker's own",
    "port": "the address of the broker",
    "log_dir": "a folder of the broker",
    "cluster_id": "made at random",
    "topic_id": "made at random",
    "member_id": "made at random",
    "leader": "a member id",
    "producer_id": "numbers are given to all that ask, also to the broker itself",
    "transaction_start_time_ms": "the time of the day",
    "group_epoch": "counts what happened in the group, which each broker does in its own steps",
    "assignment_epoch": "a group epoch",
    "member_epoch": "a group epoch",
}
"""Fields with broker-specific values: both have a value, or both have the same one that means none."""
NONE: tuple[Any, ...] = (-1, 0, "", None, [], bytes(16).hex())


CONFIGS = "each broker has the configs that it knows"
NO_LIST = "null and an empty list both mean that no transaction was aborted; Semel has null with all errors"
MIN_ISR = "Apache Kafka has set min.insync.replicas for all brokers, and refuses to remove it"
NO_QUORUM = "there is no quorum to compare the request with"
AT_ONCE = "Semel assigns at once, Apache Kafka when it has written the state of the share group"
SECRET = "Semel tells nothing of a topic to those who may not read it"
FETCHED = "responses.*.partitions.*.aborted_transactions"


class Known(NamedTuple):
    """A field that differs, and why that is right."""

    row: str
    field: str
    reason: str
    is_denied: bool = False
    """Whether it differs in answers to denied requests, or in answers to allowed ones."""
    without: str = ""
    """The only missing right with which it differs."""


DIFFERENCES = (
    Known("CreateTopics", "topics.*.configs", CONFIGS),
    Known("DescribeConfigs", "results.*.configs", CONFIGS),
    Known("DescribeConfigs of a broker", "results.*.configs", CONFIGS),
    Known("DescribeConfigs of a group", "results.*.configs", CONFIGS),
    Known("AlterConfigs of all brokers", "responses.*.error_code", MIN_ISR),
    Known("DescribeQuorum", "error_code", NO_QUORUM),
    Known("DescribeQuorum", "topics.*.partitions.*.error_code", NO_QUORUM),
    Known("AddRaftVoter", "error_code", NO_QUORUM),
    Known("RemoveRaftVoter", "error_code", NO_QUORUM),
    Known("ShareGroupHeartbeat", "assignment.topic_partitions", AT_ONCE),
    Known("AlterShareGroupOffsets", "responses.*.topic_id", SECRET, is_denied=True, without="READ t"),
    Known("Fetch", FETCHED, NO_LIST, is_denied=True),
    Known("Fetch by id", FETCHED, NO_LIST, is_denied=True),
    Known("Fetch by a replica", FETCHED, NO_LIST, is_denied=True),
    Known("Fetch by a replica with a state", FETCHED, NO_LIST, is_denied=True),
)


def described(need: Need) -> str:
    """Return the needed right, or the first one if any of several is enough."""
    return f"{need.rights[0].operation.name} {need.rights[0].name}"


AS_REPLICA = ("Fetch by a replica", "Fetch by a replica with a state")
"""Rows only for Semel that are denied in the same way: Apache Kafka has no replica with that number."""
ROWS = [row for row in MATRIX if not row.only_semel]
ALONE = [row for row in MATRIX if row.only_semel and row.name not in AS_REPLICA]
NEEDS = [(row, need) for row in MATRIX if row not in ALONE for need in row.needs]
NEED_IDS = [f"{row.name} - {described(need)}" for row, need in NEEDS]
ALLOWED = [(row, rights) for row in ROWS for rights in product(*(need.rights for need in row.needs))]
ALLOWED_IDS = [f"{row.name} - {' '.join(each.operation.name for each in rights)}" for row, rights in ALLOWED]


@pytest.fixture(scope="module")
def sides(kafka_jars: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sequence[Side]]:
    with both(kafka_jars, tmp_path_factory.mktemp("rights")) as found:
        yield found


def answers(sides: Sequence[Side], row: Case, rules: Sequence[Rule]) -> list[Any]:
    """Return each broker's answer to a principal with these rules, in a new world."""
    names = Names()
    version = common_version(sides, row.key, row.version)
    found = []
    for side in sides:
        world = side.world(names)
        side.give(names, rules)
        found.append(side.ask(names, asked(row.request(world)), version))
    return found


def asked(request: Any) -> Any:
    """Adapt the request of a row so that both can answer it."""
    if getattr(request, "timeout_ms", None) == 0:
        request.timeout_ms = 10_000  # Apache Kafka does nothing in no time
    if isinstance(request, DescribeUserScramCredentialsRequest):
        request.users = []  # all, like None, to which Apache Kafka 4.3.0 does not answer if it is denied
    return request


def plain(value: Any, version: int) -> Any:
    """Return an answer as dicts and lists, without values that cannot be equal."""
    if isinstance(value, Declared):
        fields = {
            name: told(name, plain(getattr(value, name), version))
            for name, field in value.declared.items()
            if version in field.versions and name not in IGNORED
        }
        if fields.get("error_code") == ErrorCode.NONE:
            fields.pop("error_message", None)  # no text, an empty text, or "NONE"
        return fields
    if isinstance(value, list):
        return sorted((plain(each, version) for each in value if not is_foreign(each)), key=repr)
    return bytes(value).hex() if isinstance(value, bytes | bytearray | memoryview) else value


def told(name: str, value: Any) -> Any:
    return "its own" if name in OWN and value not in NONE else value


def is_foreign(value: Any) -> bool:
    """Whether an item of a list belongs to another world, or is Apache Kafka's own."""
    kinds = ("name", "group_id", "transactional_id", "topic")
    name = next((getattr(value, each) for each in kinds if hasattr(value, each)), None) or ""
    return name.startswith("__") or name.rpartition("-")[0] in NAMES


def differences(path: str, semel: Any, kafka: Any) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(semel, dict) and isinstance(kafka, dict):
        for name in (each for each in semel if each in kafka):
            yield from differences(f"{path}.{name}" if path else name, semel[name], kafka[name])
    elif isinstance(semel, list) and isinstance(kafka, list) and len(semel) == len(kafka):
        for one, other in zip(semel, kafka, strict=True):
            yield from differences(f"{path}.*", one, other)
    elif semel != kafka:
        yield path, semel, kafka


def check(sides: Sequence[Side], row: Case, need: Need | None, rules: Sequence[Rule]) -> None:
    """Check that the answers differ only in known fields. Without a need, they have its error."""
    found = answers(sides, row, rules)
    version = common_version(sides, row.key, row.version)
    different = list(differences("", *(plain(each, version) for each in found)))
    is_denied = need is not None
    lacks = "" if need is None else described(need)
    known = {
        each.field
        for each in DIFFERENCES
        if each.row == row.name and each.is_denied == is_denied and each.without in ("", lacks)
    }
    assert {field for field, _, _ in different} == known, different
    if need is not None:
        path, error = row.expected(need)
        values = [at(each, path) for each in found]
        if isinstance(error, Hidden):
            assert not any(error.name in each for each in values)
        else:
            assert values == [error, error]


@pytest.mark.parametrize(("row", "need"), NEEDS, ids=NEED_IDS)
def test_with_the_other_needed_rights_only(sides: Sequence[Side], row: Case, need: Need) -> None:
    others = [right for each in row.needs if each is not need for right in each.rights]
    check(sides, row, need, [Rule(each) for each in others])


@pytest.mark.parametrize(("row", "need"), NEEDS, ids=NEED_IDS)
def test_with_all_rights_but_this_one(sides: Sequence[Side], row: Case, need: Need) -> None:
    denied = [Rule(right, Permission.DENY) for right in need.rights]
    check(sides, row, need, [*map(Rule, EVERYTHING), *denied])


@pytest.mark.parametrize(("row", "rights"), ALLOWED, ids=ALLOWED_IDS)
def test_with_exactly_the_needed_rights(sides: Sequence[Side], row: Case, rights: Sequence[Right]) -> None:
    try:
        check(sides, row, None, [Rule(each) for each in rights])
    finally:
        if row.name == "UpdateFeatures":
            newest = FeatureUpdateKey(feature="transaction.version", max_version_level=2, upgrade_type=1)
            for side in sides:
                side.as_root(Names(), UpdateFeaturesRequest(feature_updates=[newest]), 1)


@pytest.mark.parametrize("row", ALONE, ids=[row.name for row in ALONE])
def test_rows_of_semel_alone(row: Case) -> None:
    pytest.skip(f"{row.name}: Apache Kafka does not have it, or does it after its answer")


def test_known_differences_are_about_rows() -> None:
    assert {each.row for each in DIFFERENCES} <= {row.name for row in MATRIX}
