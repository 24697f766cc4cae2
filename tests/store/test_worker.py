"""The threads of the store and the fuse they share."""

import asyncio
import threading
from typing import Any

import pytest

from semel.store.contract import StoreBroken, StoreFull
from semel.store.worker import StoreHealth, Worker


async def test_jobs_run_in_order_on_one_thread() -> None:
    worker = Worker("test")
    seen: list[int] = []
    threads: set[int] = set()

    def job(number: int) -> int:
        seen.append(number)
        threads.add(threading.get_ident())
        return number * 2

    assert await asyncio.gather(*(worker.run(job, number) for number in range(50))) == list(range(0, 100, 2))
    assert seen == list(range(50))
    assert len(threads) == 1
    assert threading.get_ident() not in threads
    worker.stop()


async def test_what_a_job_raises_reaches_the_one_who_waits() -> None:
    worker = Worker("test")
    with pytest.raises(ZeroDivisionError):
        await worker.run(lambda: 1 // 0)
    assert await worker.run(int) == 0
    worker.stop()


async def test_a_job_is_done_even_if_nobody_waits_any_more() -> None:
    """Cancelling does not undo: a commit that was given to the disk happens."""
    worker = Worker("test")
    release, done = threading.Event(), threading.Event()

    def job() -> None:
        release.wait()
        done.set()

    task = asyncio.create_task(worker.run(job))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    release.set()
    assert await worker.run(done.is_set)
    worker.stop()


def test_a_job_outlives_its_event_loop() -> None:
    worker = Worker("test")
    release, done = threading.Event(), threading.Event()

    def job() -> None:
        release.wait()
        done.set()

    async def leave() -> None:
        task = asyncio.create_task(worker.run(job))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(leave())
    release.set()
    worker.stop()
    assert done.is_set()


async def test_stopping_finishes_what_was_given_and_refuses_more() -> None:
    worker = Worker("test")
    tasks = [asyncio.create_task(worker.run(lambda number=number: number)) for number in range(20)]
    await asyncio.sleep(0)
    worker.stop()
    assert await asyncio.gather(*tasks) == list(range(20))
    with pytest.raises(StoreBroken, match="closed"):
        await worker.run(int)
    worker.stop()


async def test_rest_comes_after_each_answer_and_once_when_it_is_quiet() -> None:
    worker = Worker("test")
    rests: list[bool] = []
    quiet_came = threading.Event()

    def rest(*, quiet: bool) -> None:
        rests.append(quiet)
        if quiet:
            quiet_came.set()

    worker.rest = rest
    # The thread waits without a time limit until its first job tells it that there is something to rest from.
    await worker.run(int)
    await worker.run(int)
    assert await asyncio.to_thread(quiet_came.wait, 10)
    worker.stop()
    assert rests.count(True) == 1
    assert rests[-1] is True
    assert 1 <= rests.count(False) <= 2


async def test_several_threads_share_a_queue() -> None:
    worker = Worker("test", threads=2)
    meeting = threading.Barrier(2)
    assert sorted(await asyncio.gather(worker.run(meeting.wait, 10), worker.run(meeting.wait, 10))) == [0, 1]
    worker.stop()


def test_a_fuse_is_blown_by_anything_but_a_full_disk() -> None:
    health = StoreHealth()

    def fail(error: Exception) -> Any:
        raise error

    assert health.guard(int) == 0
    with pytest.raises(StoreFull):
        health.guard(fail, StoreFull("full"))
    assert not health.has_failed
    with pytest.raises(StoreBroken, match="KeyError: 'first'"):
        health.guard(fail, KeyError("first"))
    assert health.has_failed
    with pytest.raises(StoreBroken, match="first"):
        health.guard(int)
    health.fail("second")
    with pytest.raises(StoreBroken, match="first"):
        health.check()
