"""From a request to its response, also if either takes long: then decoding and encoding are done in slices.

A request is long by the bytes of its frame. A response is long by the number of elements in its arrays, which
are counted two levels deep: topics and their partitions, groups and their members.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from semel.handlers.context import RequestContext
from semel.server.dispatch import Opened
from semel.wire.decoding import SLICE_ELEMENTS
from semel.wire.messages import FetchRequest
from semel.wire.schema import Encoded, Request, Response

if TYPE_CHECKING:
    from semel.server.server_context import ServerContext

LONG_FRAME_BYTES: Final = 16_384
"""A request without records that is longer is decoded in slices: it may have as many elements as bytes."""


async def handle(
    server: "ServerContext",
    opened: Opened,
    asked: Request | memoryview,
    context: RequestContext,
    decoded: Callable[[], None],
) -> Any:
    """Have a handler answer. A long request comes as its frame; ``decoded`` is called when that can go."""
    slices = server.broker.slices
    if isinstance(asked, memoryview):
        elements_max = server.settings.semel_request_elements_max
        asked = await slices.run(opened.decode_in_slices(asked, elements_max))
        decoded()
    handler = server.dispatch.handlers[opened.api_key]
    if isinstance(asked, FetchRequest):
        responses = server.responses
        asked.max_bytes = min(asked.max_bytes, responses.fetch_share())
        responses.fetches += 1
        try:
            response = await handler(server.broker, asked, context)
        finally:
            responses.fetches -= 1
    else:
        response = await handler(server.broker, asked, context)
    if is_long(response):
        parts = await slices.run(response.encode_in_slices(opened.response_version))
        return Encoded(type(response), parts)
    return response


def is_long(response: Any) -> bool:
    """Whether encoding this response at once would hold up the event loop."""
    if type(response) is Encoded:
        return False
    return isinstance(response, Response) and _elements(response, levels=2) > SLICE_ELEMENTS


def _elements(struct: Any, levels: int) -> int:
    """How many elements are in the arrays of a struct; it stops counting when it is enough."""
    count = 0
    for name, field in struct.declared.items():
        if field.kind != "array":
            continue
        items = getattr(struct, name)
        if not items:
            continue
        count += len(items)
        if levels > 1 and isinstance(field.element, type):
            for item in items:
                if count > SLICE_ELEMENTS:
                    break
                count += _elements(item, levels - 1)
    return count
