"""Async tests run on a fresh event loop, without a plugin; what was collected is no garbage."""

import asyncio
import gc
import inspect
from typing import Any

import pytest


def pytest_collection_finish() -> None:
    """Modules and tests stay to the end: the garbage collector need not go through them again and again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run ``async def test_…``; fixtures it asks for are ordinary ones."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = pyfuncitem._fixtureinfo.argnames
    arguments: dict[str, Any] = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(pyfuncitem.obj(**arguments), debug=False)
    return True
