"""Principals as people write them in settings and on the command line.

Principals are compared exactly, so a misspelled principal matches no one. Kafka accepts such principals
silently. Semel's API accepts them too; its settings and command line reject them.
"""

from typing import Final

USER: Final = "User"
"""The only type of principal that clients have, however they authenticate."""


def meant_principal(text: str) -> str | None:
    """Return the principal that was probably meant: the text itself if it is well-formed.

    None if it has no name. Commas inside a name are valid: names from certificates contain them.
    """
    kind, colon, name = text.partition(":")
    name = (name if colon else kind).strip().rstrip(", ")
    return f"{USER}:{name}" if name else None
