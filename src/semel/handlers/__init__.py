"""What is served: `HANDLERS` maps an API key to the function that answers it.

One module per family, with the same name as the messages in `semel.wire.messages`; each has its own
`HANDLERS`, which are put together here. An API without an entry is neither served nor advertised. Produce
is not in the table: it is the hot path and has a shape of its own (`produce.submit`).
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Final

from semel.handlers.context import Handler
from semel.wire.messages import APIS, Api

PRODUCE: Final = 0

_FAMILIES: Final = ("fetch", "metadata", "topics", "configs", "groups", "offsets", "transactions")

HANDLERS: dict[int, Handler] = {}
for _family in _FAMILIES:
    if find_spec(f"semel.handlers.{_family}"):
        HANDLERS.update(import_module(f"semel.handlers.{_family}").HANDLERS)


def served() -> list[Api]:
    """The APIs that this broker serves, in the order of their keys."""
    return [APIS[key] for key in sorted({PRODUCE, *HANDLERS})]
