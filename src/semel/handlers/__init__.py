"""What is served: `HANDLERS` maps an API key to the function that answers it.

One module per family, with the same name as the messages in `semel.wire.messages`; each has its own
`HANDLERS`, which are put together here. An API without an entry is neither served nor advertised. Produce
is not in the table: it is the hot path and has a shape of its own (`produce.submit`).
"""

from dataclasses import replace
from typing import Final

from semel.handlers import (
    configs,
    features,
    fetch,
    groups,
    metadata,
    offsets,
    topics,
    transaction_admin,
    transaction_offsets,
    transactions,
)
from semel.handlers.context import Handler
from semel.handlers.transaction_errors import INIT_PRODUCER_ID
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
    **transaction_offsets.HANDLERS,
    **transaction_admin.HANDLERS,
    **features.HANDLERS,
}


def served(*, two_phase: bool = False) -> list[Api]:
    """The APIs that this broker serves, in the order of their keys.

    InitProducerId 6 is not stable in Kafka; it is advertised only where it is wanted, for two-phase commit.
    """
    apis = [APIS[key] for key in sorted({PRODUCE, *HANDLERS})]
    if not two_phase:
        return apis
    return [
        replace(each, advertised_max=each.max_version) if each.key == INIT_PRODUCER_ID else each
        for each in apis
    ]
