"""ACLs like those of a shared broker: those of many other principals, and the few that the client needs.

Every other team owns the names with its prefix, and may read some topics of others. Some teams may read the
measured topics, so that decisions about these topics also see other principals' ACLs.
"""

from collections.abc import Iterator, Sequence

from semel.client.admin.acls import Acl

TEAMS = 250
LITERAL_TOPICS = 16
"""Topics of other teams that a team may read."""
READERS = 20
"""Teams that may read the client's topics."""


def bindings(principal: str, topics: Sequence[str], group: str, prefixes: Sequence[str]) -> list[Acl]:
    """Return all ACLs: the principal may write and read the topics, use the group, and prefixed ids."""
    return [
        *(acl for number in range(TEAMS) for acl in _of_team(number)),
        *(Acl.of(_team(number), "Read", topic=topic) for number in range(READERS) for topic in topics),
        *(Acl.of(principal, operation, topic=topic) for operation in ("Write", "Read") for topic in topics),
        *(Acl.of(principal, "Write", transactional_id=each, is_prefix=True) for each in prefixes),
        Acl.of(principal, "Read", group=group),
    ]


def _of_team(number: int) -> Iterator[Acl]:
    team, own = _team(number), f"team-{number}."
    for operation in ("Read", "Write", "Create"):
        yield Acl.of(team, operation, topic=own, is_prefix=True)
    yield Acl.of(team, "Read", group=own, is_prefix=True)
    yield Acl.of(team, "Write", transactional_id=own, is_prefix=True)
    for step in range(1, LITERAL_TOPICS + 1):
        yield Acl.of(team, "Read", topic=f"team-{(number + step) % TEAMS}.orders-{step}")


def _team(number: int) -> str:
    return f"User:team-{number}"
