"""The mechanisms that a server offers, as configured. One per server.

Users are looked up for each authentication, so a user who was removed cannot authenticate again.
"""

import asyncio
import difflib
import secrets
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NoReturn

from semel.broker.clock import Clock
from semel.config import Settings
from semel.core.security.users import MECHANISMS as SCRAM
from semel.rate_limit import RateLimit
from semel.server.sasl import oauthbearer, plain
from semel.server.sasl.exchange import SaslExchange
from semel.server.sasl.mechanism import Credentials, Mechanism, RunBeside
from semel.server.sasl.oauthbearer import OAuthBearer, listed, oauth_problem
from semel.server.sasl.plain import Plain
from semel.server.sasl.scram import Scram

if TYPE_CHECKING:
    from semel.server.sasl.tokens import TokenVerifier

MECHANISMS: Final = (plain.NAME, *SCRAM, oauthbearer.NAME)
LOOK_SECONDS: Final = 10.0
"""How often to check whether the keys of tokens must be read again."""


class Authenticators:
    """Makes the exchange of each connection."""

    def __init__(
        self,
        settings: Settings,
        credentials: Credentials,
        clock: Clock,
        run_beside: RunBeside,
        salt_secret: Callable[[], bytes],
        random: Callable[[int], bytes] = secrets.token_bytes,
        wait_beside: RunBeside = asyncio.to_thread,
    ) -> None:
        """ValueError names a setting that is missing or wrong.

        `run_beside` hashes passwords. `wait_beside` reads the keys of tokens, which can take seconds: on the
        thread of `run_beside` it would delay logins.
        """
        self.mechanisms = _enabled(settings.sasl_enabled_mechanisms)
        """The enabled mechanisms, in the order of the setting."""
        self._credentials = credentials
        self._clock = clock
        self._run_beside = run_beside
        self._random = random
        self._salt_secret = salt_secret
        self._max_reauth_ms = max(0, settings.connections_max_reauth_ms)
        self._limit = RateLimit()
        self._verifier: TokenVerifier | None = None
        if oauthbearer.NAME in self.mechanisms:
            self._verifier = _verifier(settings, clock, wait_beside)

    async def start(self) -> None:
        """Read the keys of tokens, if there are any. ValueError if they are missing."""
        if self._verifier is not None:
            await self._verifier.keys.start()

    async def refresh(self) -> None:
        """Read the keys of tokens again if it is time. A failure is logged, and the old keys stay in use."""
        if self._verifier is not None:
            await self._verifier.keys.refresh()

    def exchange(self) -> SaslExchange:
        """Return the state of a new connection."""
        return SaslExchange(self.mechanisms, self._mechanism, self._clock, self._max_reauth_ms)

    def _mechanism(self, name: str) -> Mechanism:
        if name == plain.NAME:
            return Plain(self._credentials, self._run_beside)
        if name == oauthbearer.NAME:
            assert self._verifier is not None
            return OAuthBearer(self._verifier, self._limit)
        return Scram(name, self._credentials, self._salt_secret(), self._random)


def check_settings(settings: Settings) -> None:
    """Check what can be checked before a server starts. ValueError names the setting."""
    if oauthbearer.NAME in _enabled(settings.sasl_enabled_mechanisms) and (
        problem := oauth_problem(settings)
    ):
        raise ValueError(problem)


async def look_for_keys(authenticators: Authenticators) -> NoReturn:
    """Read the keys of tokens again periodically."""
    while True:
        await asyncio.sleep(LOOK_SECONDS)
        await authenticators.refresh()


def _enabled(setting: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(listed(setting)))
    if not names:
        raise ValueError(f"sasl.enabled.mechanisms is empty; there are {', '.join(MECHANISMS)}")
    for name in names:
        if name not in MECHANISMS:
            near = difflib.get_close_matches(name.upper(), MECHANISMS, n=1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(MECHANISMS)}"
            raise ValueError(f"sasl.enabled.mechanisms has an unknown mechanism {name!r}; {hint}")
    return names


def _verifier(settings: Settings, clock: Clock, wait_beside: RunBeside) -> "TokenVerifier":
    if problem := oauth_problem(settings):
        raise ValueError(problem)
    try:
        # Imported here, because it loads a library that nothing else needs.
        from semel.server.sasl.tokens import TokenVerifier
    except ModuleNotFoundError as error:
        raise ValueError(
            f"OAUTHBEARER in sasl.enabled.mechanisms needs a package that is not installed: {error}"
        ) from None
    return TokenVerifier(settings, clock, wait_beside)
