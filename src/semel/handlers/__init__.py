"""What is served: `HANDLERS` maps an API key to the function that answers it.

One module per family, with the same name as the messages in `semel.wire.messages`; each has its own
`HANDLERS`, which are put together here. An API without an entry is neither served nor advertised. Produce
is not in the table: it is the hot path and has a shape of its own (`produce.submit`).
"""

from typing import Final

from semel.handlers import configs, fetch, groups, metadata, offsets, topics, transactions
from semel.handlers.context import Handler
from semel.wire.messages import APIS, Api

PRODUCE: Final = 0

HANDLERS: Final[dict[int, Handler]] = {
    **fetch.HANDLERS,
    **metadata.HANDLERS,
    **topics.HANDLERS,
    **configs.HANDLERS,
    **groups.HANDLERS,
    **offsets.HANDLERS,
    **transactions.HANDLERS,
}


def served() -> list[Api]:
    """The APIs that this broker serves, in the order of their keys."""
    return [APIS[key] for key in sorted({PRODUCE, *HANDLERS})]
