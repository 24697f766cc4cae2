"""Length limits of names chosen by clients. Topic names have rules of their own (``topics``)."""

from typing import Final

ID_CHARS_MAX: Final = 1_024
"""Maximum length of a group id, transactional id, member id or instance id. Each is kept in memory, in the
WAL and in the ledger, and there may be a hundred thousand of them; the protocol allows 32 KB."""

CLIENT_ID_CHARS_MAX: Final = 255
"""Maximum length of a stored client id. The id only labels a client, so a longer one is truncated."""


def is_usable(name: str) -> bool:
    """Whether an id is neither empty nor too long."""
    return 0 < len(name) <= ID_CHARS_MAX
