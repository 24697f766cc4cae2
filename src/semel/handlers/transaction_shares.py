"""TxnShareAcknowledge: acknowledges records of a share group as part of a transaction. Only Semel serves it.

ApiVersions lists it like Semel's other extensions (``commit_transactions``). The rules are in
``semel.core.shares.pending``.
"""

from collections.abc import Iterable
from typing import Final

from semel.broker.broker import Broker
from semel.core.names import ID_CHARS_MAX, is_usable
from semel.core.shares.commands import AcknowledgeInTransaction, AcknowledgeType
from semel.core.types import ErrorCode, ShareKey
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import LeaderHints
from semel.handlers.rights import GROUP_DENIED, ID_DENIED, MESSAGES, READ, WRITE, rights_of
from semel.handlers.share_partitions import (
    answered,
    are_valid,
    batches_of,
    check_places,
    decided,
    identified,
    runs_of,
    sessions_of,
)
from semel.handlers.share_sessions import Place
from semel.wire.messages.semel import TxnShareAcknowledgeRequest, TxnShareAcknowledgeResponse
from semel.wire.messages.shares import AcknowledgementBatch

_FINAL: Final = frozenset({AcknowledgeType.GAP, AcknowledgeType.ACCEPT, AcknowledgeType.REJECT})
"""The types that a transaction can decide. Releases and renewals take effect at once, outside of it."""


async def txn_share_acknowledge(
    broker: Broker, request: TxnShareAcknowledgeRequest, context: RequestContext
) -> TxnShareAcknowledgeResponse:
    """TxnShareAcknowledge v0: accept or reject acquired records when a transaction commits.

    Behaviour: sent to the leaders of the partitions, like ShareAcknowledge. The acknowledgements of a
        partition are accepted as a whole or not at all, and add it to the transaction. The member must hold
        every record, even those below the start offset; otherwise INVALID_RECORD_STATE. The records are in
        flight until the transaction ends; an abort makes them available again, and the delivery counts.
        Repeating the request in the same transaction succeeds again. The producer id and
        epoch must be current, else INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED. A transaction of version 1
        is INVALID_TXN_STATE. Other types than 0 (gap), 1 (accept) and 3 (reject) are INVALID_REQUEST.
    Differs:   Kafka has no such API.
    """
    rights = rights_of(broker, request, context)
    if not rights.transactional_id(WRITE, request.transactional_id):
        return TxnShareAcknowledgeResponse(error_code=ID_DENIED, error_message=MESSAGES[ID_DENIED])
    if not rights.group(READ, request.group_id):
        return TxnShareAcknowledgeResponse(error_code=GROUP_DENIED, error_message=MESSAGES[GROUP_DENIED])
    key = identified(request.group_id, request.member_id)
    if isinstance(key, str):
        return TxnShareAcknowledgeResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=key)
    if not is_usable(request.transactional_id):
        return TxnShareAcknowledgeResponse(
            error_code=ErrorCode.INVALID_REQUEST,
            error_message=f"The transactional id is empty, or longer than {ID_CHARS_MAX} characters.",
        )
    if sessions_of(broker).is_foreign(key, context.principal):
        return TxnShareAcknowledgeResponse(error_code=ErrorCode.SHARE_SESSION_NOT_FOUND)
    wanted = batches_of(request.topics)
    limits = broker.policies.configs.share_group(request.group_id).limits
    answers = await check_places(broker, wanted, rights)
    commands: dict[Place, AcknowledgeInTransaction] = {}
    for place, batches in wanted.items():
        if not answers[place] and not _are_valid(batches):
            answers[place] = ErrorCode.INVALID_REQUEST
        if not answers[place]:
            commands[place] = AcknowledgeInTransaction(
                ShareKey(*place, request.group_id),
                request.member_id,
                runs_of(batches),
                request.transactional_id,
                request.producer_id,
                request.producer_epoch,
                limits,
            )
    answers |= await decided(broker, commands)
    hints = LeaderHints(broker, context)
    return TxnShareAcknowledgeResponse(responses=answered(answers, hints), node_endpoints=hints.endpoints)


def _are_valid(batches: list[AcknowledgementBatch]) -> bool:
    types: Iterable[int] = {kind for each in batches for kind in each.acknowledge_types}
    return (
        bool(batches)
        and are_valid(batches, knows_renewal=False, is_renewing=False)
        and _FINAL.issuperset(types)
    )


HANDLERS: dict[int, Handler] = {TxnShareAcknowledgeRequest.api_key: txn_share_acknowledge}
