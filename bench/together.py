"""Runs several functions at the same time, each in a thread."""

import threading
from collections.abc import Callable


def together(works: list[Callable[[], None]]) -> None:
    """Run each in a thread; raise the first error."""
    failed: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that waits
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    if failed:
        raise failed[0]
