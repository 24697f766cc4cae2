"""How long the names may be that clients make up. Names of topics have rules of their own (``topics``)."""

from typing import Final

ID_CHARS_MAX: Final = 1_024
"""Characters of a group id, a transactional id, a member id or an instance id. Each is kept in memory, in the
journal and in the ledger, and there may be a hundred thousand of them; the protocol allows 32 KB."""

CLIENT_ID_CHARS_MAX: Final = 255
"""Characters of a client id that are kept. It only names a client to people, so a longer one is cut."""


def is_usable(name: str) -> bool:
    """Whether something may have this id: it is there, and it is not too long."""
    return 0 < len(name) <= ID_CHARS_MAX
