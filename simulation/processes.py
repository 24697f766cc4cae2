"""An event loop for several processes that can be paused and killed one by one.

A process is a context variable, which tasks and timers inherit from the task that makes them. While a process
is paused, its calls are held; time goes on for all others. Messages between processes are delivered
outside of all processes.
"""

import asyncio
import contextvars
from collections.abc import Callable
from contextvars import Context, ContextVar
from typing import Any, Final

from simulation.virtual_time import Handle, VirtualLoop


class Process:
    """One process."""

    def __init__(self, loop: "ProcessLoop", node: int) -> None:
        self._loop = loop
        self.node = node
        self.is_paused = False
        self.held: list[Handle] = []
        # Ordered by their start, so that they are always cancelled in the same order.
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self.context: Final = contextvars.copy_context()
        self.context.run(_CURRENT.set, self)

    def pause(self) -> None:
        """Hold all calls of this process."""
        self.is_paused = True

    def resume(self) -> None:
        """Make the held calls, and hold no further ones."""
        self.is_paused = False
        held, self.held = self.held, []
        self._loop.call_again(held)

    def kill(self) -> None:
        """Stop every task where it is."""
        for task in list(self.tasks):
            task.cancel()
        self.resume()


_CURRENT: ContextVar[Process | None] = ContextVar("process", default=None)
OUTSIDE: Final = Context()
"""For calls that belong to no process."""


class _ProcessHandle(Handle):
    """A scheduled call of a process."""

    __slots__ = ("context", "work", "work_args")

    def __init__(self, work: Callable[..., object], args: tuple[Any, ...], context: Context | None) -> None:
        super().__init__(self.run, (), context)
        self.work = work
        self.work_args = args
        self.context = contextvars.copy_context() if context is None else context

    def run(self) -> None:
        process = self.context.get(_CURRENT)
        if process is not None and process.is_paused:
            process.held.append(self)
        else:
            self.context.run(self.work, *self.work_args)


class ProcessLoop(VirtualLoop):
    """The event loop of a history with several brokers."""

    calls_max = 1_000_000
    handle = _ProcessHandle

    def create_task(self, coro: Any, *, context: Context | None = None, **named: Any) -> "asyncio.Task[Any]":
        """Make a task, which belongs to the process that its context names."""
        task = super().create_task(coro, context=context, **named)
        process = _CURRENT.get() if context is None else context.get(_CURRENT)
        if process is not None:
            process.tasks[task] = None
            task.add_done_callback(process.tasks.pop, context=OUTSIDE)
        return task

    def call_again(self, handles: list[Handle]) -> None:
        """Make calls that were held."""
        self._soon.extend(handles)
