"""From a frame to a message and the handler for it.

The table of handlers is given from above, so that a connection can be tested with handlers of the test's
own. An API without a handler does not exist: it is not advertised and a request for it is refused like
one that nobody knows. A request that is refused here has no answer in the protocol, so it raises
`ProtocolError` and the connection is closed. ApiVersions is the exception: it is answered in whatever
version it was asked, because it is how a client finds out what may be asked (docs/behaviours.md, 93).
"""

from collections.abc import Iterable, Mapping
from typing import Final, TypeAlias

from semel.handlers.context import CloseConnection, Handler
from semel.handlers.submitting import Submit
from semel.wire.errors import ProtocolError
from semel.wire.frames import RequestHeader, decode_request_header
from semel.wire.messages import APIS, Api, ApiVersionsRequest
from semel.wire.schema import Buffer, Request, Response

PRODUCE: Final = 0
FETCH: Final = 1
API_VERSIONS: Final = 18

Outcome: TypeAlias = Response | CloseConnection | None
"""What became of a request: a response, a reason to close, or None where no response is wanted."""


class Dispatch:
    """The APIs that are served, and who serves them."""

    __slots__ = ("_served", "handlers", "submits")

    def __init__(
        self,
        handlers: Mapping[int, Handler],
        submits: Mapping[int, Submit],
        apis: Iterable[Api] = APIS.values(),
    ) -> None:
        self.handlers = handlers
        self.submits = submits
        """Those that need no task. One that is among the handlers too is served by this."""
        self._served: dict[int, Api] = {
            each.key: each for each in apis if each.key in handlers or each.key in submits
        }

    def read(self, frame: Buffer) -> tuple[RequestHeader, Request, int]:
        """The header, the message, and the version of the response. ProtocolError if there is no answer."""
        header, position = decode_request_header(frame)
        api = self._served.get(header.api_key)
        if api is None:
            raise ProtocolError(f"API {header.api_key} is not served")
        version = header.api_version
        if not api.min_version <= version <= api.advertised_max:
            if header.api_key == API_VERSIONS:
                return header, ApiVersionsRequest(), 0
            raise ProtocolError(f"{api.name} v{version} is not served")
        return header, api.request.decode(frame, version, position), version
