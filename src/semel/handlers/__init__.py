"""The APIs that the broker serves: `HANDLERS` maps an API key to the function that answers it.

There is one module per family of APIs, named like its messages in `semel.wire.messages` (`cluster` has the
rest of `metadata`); `refused` has those that are always refused. Each module has its own `HANDLERS`; this one
combines them. An API without an entry is neither served nor advertised.
"""

from dataclasses import replace
from typing import Final

from semel.handlers import (
    acls,
    client_quotas,
    commit_transactions,
    configs,
    features,
    fetch,
    groups,
    metadata,
    offsets,
    placement,
    produce,
    refused,
    sasl,
    share_fetch,
    share_groups,
    share_offsets,
    topics,
    transaction_admin,
    transaction_offsets,
    transactions,
    users,
)
from semel.handlers.context import Handler
from semel.wire.api_key import ApiKey
from semel.wire.messages import APIS, Api
from semel.wire.messages.semel import FIRST_OWN_KEY

HANDLERS: Final[dict[int, Handler]] = {
    **produce.HANDLERS,
    **fetch.HANDLERS,
    **metadata.HANDLERS,
    **topics.HANDLERS,
    **placement.HANDLERS,
    **configs.HANDLERS,
    **groups.HANDLERS,
    **offsets.HANDLERS,
    **transactions.HANDLERS,
    **transaction_offsets.HANDLERS,
    **transaction_admin.HANDLERS,
    **features.HANDLERS,
    **refused.HANDLERS,
    **acls.HANDLERS,
    **client_quotas.HANDLERS,
    **sasl.HANDLERS,
    **users.HANDLERS,
    **commit_transactions.HANDLERS,
    **share_groups.HANDLERS,
    **share_fetch.HANDLERS,
    **share_offsets.HANDLERS,
}


def served(*, two_phase: bool = False, extensions: bool = True) -> list[Api]:
    """The APIs that this broker serves, in the order of their keys; Semel's own only with ``extensions``.

    InitProducerId 6 is not stable in Kafka, so it is advertised only for two-phase commit, which needs it.
    """
    apis = [APIS[key] for key in sorted(HANDLERS) if extensions or key < FIRST_OWN_KEY]
    if not two_phase:
        return apis
    return [
        replace(each, advertised_max=each.max_version) if each.key == ApiKey.INIT_PRODUCER_ID else each
        for each in apis
    ]
