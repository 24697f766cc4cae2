"""ShareAcknowledge: acknowledge acquired records without fetching others (KIP-932)."""

from semel.broker.broker import Broker
from semel.core.types import ErrorCode
from semel.handlers.context import Handler, RequestContext
from semel.handlers.leadership import LeaderHints
from semel.handlers.rights import GROUP_DENIED, READ, rights_of
from semel.handlers.share_partitions import (
    FIRST_WITH_RENEWAL,
    Acknowledgements,
    acknowledge,
    answered,
    batches_of,
    check_places,
    end_session,
    identified,
    sessions_of,
)
from semel.handlers.share_sessions import BEGIN
from semel.wire.api_key import ApiKey
from semel.wire.messages.shares import ShareAcknowledgeRequest, ShareAcknowledgeResponse


async def share_acknowledge(
    broker: Broker, request: ShareAcknowledgeRequest, context: RequestContext
) -> ShareAcknowledgeResponse:
    """ShareAcknowledge v1–v2: accept, release, reject or renew acquired records (KIP-932).

    Behaviour: the acknowledgements of a partition are accepted as a whole or not at all, and are durable when
        they are answered. INVALID_RECORD_STATE if the member does not, or no longer, hold one of the records.
        Epoch -1 also ends the share session, which releases what the member still holds.
    Versions:  v2 renews locks (KIP-1222).
    """
    rights = rights_of(broker, request, context)
    if request.group_id and not rights.group(READ, request.group_id):
        return ShareAcknowledgeResponse(error_code=GROUP_DENIED)
    key = identified(request.group_id, request.member_id)
    if isinstance(key, str):
        return ShareAcknowledgeResponse(error_code=ErrorCode.INVALID_REQUEST, error_message=key)
    epoch = request.share_session_epoch
    if epoch == BEGIN:
        return ShareAcknowledgeResponse(error_code=ErrorCode.INVALID_SHARE_SESSION_EPOCH)
    sessions = sessions_of(broker)
    turn = sessions.go_on(key, epoch, context.principal, [], [])
    if turn.session is None:
        return ShareAcknowledgeResponse(error_code=turn.error)
    wanted = batches_of(request.topics)
    configs = broker.policies.configs.share_group(key[0])
    errors = await check_places(broker, wanted, rights)
    answers = await acknowledge(
        broker,
        turn.session,
        [Acknowledgements(place, batches) for place, batches in wanted.items()],
        errors,
        configs,
        knows_renewal=context.version >= FIRST_WITH_RENEWAL,
        is_renewing=context.version >= FIRST_WITH_RENEWAL and request.is_renew_ack,
    )
    end_session(broker, sessions, key, epoch)
    hints = LeaderHints(broker, context)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=configs.limits.lock_ms,
        responses=answered(answers, hints),
        node_endpoints=hints.endpoints,
    )


HANDLERS: dict[int, Handler] = {ApiKey.SHARE_ACKNOWLEDGE: share_acknowledge}
