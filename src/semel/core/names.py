"""Names chosen by clients: their length, and regular expressions over them.

Topic names have rules of their own (``topics``). Clients send expressions over topic names and transactional
ids (KIP-848, KIP-1152). With an engine that backtracks, one expression could stall
the broker. Kafka uses RE2 for the same reason; this is the same library.
"""

from typing import Final

import re2  # type: ignore[import-untyped]

LENGTH_MAX: Final = 1_000
_PROGRAM_BYTES_MAX: Final = 1 << 20
"""Memory of one compiled expression; a larger one is refused."""


class PatternError(ValueError):
    """An expression is invalid; the message says why."""


class NamePattern:
    """A regular expression that a whole name matches or does not."""

    __slots__ = ("_expression",)

    def __init__(self, text: str) -> None:
        if len(text) > LENGTH_MAX:
            raise PatternError(f"the expression is longer than {LENGTH_MAX} characters")
        options = re2.Options()
        options.max_mem = _PROGRAM_BYTES_MAX
        options.log_errors = False
        options.never_capture = True
        try:
            self._expression = re2.compile(text, options)
        except re2.error as error:
            (reason,) = error.args
            words = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise PatternError(words) from None

    def matches(self, name: str) -> bool:
        """Whether the whole name matches."""
        return self._expression.fullmatch(name) is not None


ID_CHARS_MAX: Final = 1_024
"""Maximum length of a group id, transactional id, member id or instance id. Each is kept in memory, in the
WAL and in the ledger, and there may be a hundred thousand of them; the protocol allows 32 KB."""

CLIENT_ID_CHARS_MAX: Final = 255
"""Maximum length of a stored client id. The id only labels a client, so a longer one is truncated."""


def is_usable(name: str) -> bool:
    """Whether an id is neither empty nor too long."""
    return 0 < len(name) <= ID_CHARS_MAX
