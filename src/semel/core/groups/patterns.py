"""Regular expressions over topic names and transactional ids, in time linear in the name.

Clients send these expressions (KIP-848, KIP-1152). With an engine that backtracks, one expression could stall
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
