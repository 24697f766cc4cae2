"""Requests that ask the broker once, and are answered in the turn in which it has decided.

Most handlers are coroutines, each run by a task. The requests of a transaction come too often for that: they
*submit* their commands and return, and ``done`` is called with the response when they are durable. Whoever
must look something up first returns a coroutine instead, which the connection runs before anything else.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeAlias

from semel.broker.broker import Broker
from semel.broker.commit_loop import Answers
from semel.core.types import Command
from semel.handlers.context import RequestContext

Done: TypeAlias = Callable[[Any], None]
"""Is given the response; or an exception; or None where no response is wanted."""

Submit: TypeAlias = Callable[[Broker, Any, RequestContext, Done], Coroutine[Any, Any, None] | None]
"""Submits at once and returns None, or returns what has to be awaited before it is submitted."""


def ask(broker: Broker, commands: Sequence[Command], tell: Callable[[Answers], Any], done: Done) -> None:
    """Have the commands decided in one tick; ``tell`` makes a response of the answers or of ``StoreFull``."""

    def decided(outcome: Answers) -> None:
        try:
            answer = tell(outcome)
        except Exception as error:  # noqa: BLE001  a mistake of ours must cost this client only
            answer = error
        done(answer)

    broker.submit(commands, decided)


async def answered(submit: Submit, broker: Broker, request: Any, context: RequestContext) -> Any:
    """The same for whoever can wait."""
    answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def done(outcome: Any) -> None:
        # Whoever waited may be gone.
        if not answer.done():
            answer.set_result(outcome)

    first = submit(broker, request, context, done)
    if first is not None:
        await first
    outcome = await answer
    if isinstance(outcome, Exception):
        raise outcome
    return outcome
