"""The broker's side of SASL authentication.

`authenticators` has the mechanisms that the server is configured to accept, `exchange` is the state of one
connection, and each mechanism has a module: `plain`, `scram` and `oauthbearer` (with `tokens`).
`certificate_names` is for clients that authenticate with a certificate instead. Nothing here reads a socket,
and no message contains a password, a key or a token.
"""

from semel.server.sasl.authenticators import Authenticators, look_for_keys
from semel.server.sasl.exchange import SaslExchange, State
from semel.server.sasl.mechanism import Authenticated, AuthenticationFailed

__all__ = [
    "Authenticated",
    "AuthenticationFailed",
    "Authenticators",
    "SaslExchange",
    "State",
    "look_for_keys",
]
