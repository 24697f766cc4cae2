"""Principals as people write them in settings and on the command line.

A principal is compared as it is, so one that is spelled wrongly is one that nobody ever is. Kafka accepts
such principals in silence. Semel does too in the API, and refuses them where people write them.
"""

from typing import Final

USER: Final = "User"
"""The only type that clients have, however they authenticate."""


def meant_principal(text: str) -> str | None:
    """Return the principal that was probably meant, which is the text if nothing is wrong with it.

    None if it has no name. Commas inside a name are right: those of certificates have some.
    """
    kind, colon, name = text.partition(":")
    name = (name if colon else kind).strip().rstrip(", ")
    return f"{USER}:{name}" if name else None
