"""Browsers that follow a topic in the console, and a producer of the records that they show.

    python -m bench.console.browsers ADDRESS BOOTSTRAP TOPIC COUNT

It is a separate process, so that it takes no time from the clients under measurement. It prints a line when
every browser has received an event, and stops when its input is closed.
"""

import asyncio
import sys
import threading
from urllib.parse import urlsplit

from semel.client import Client, Producer

RECORDS_PER_SECOND = 20
READY = "the browsers are ready"


def main() -> None:
    address, bootstrap, topic, count = sys.argv[1:]
    stop = threading.Event()
    writer = threading.Thread(target=_write, args=(bootstrap, topic, stop))
    writer.start()
    try:
        asyncio.run(_follow_all(address, topic, int(count)))
    finally:
        stop.set()
        writer.join()


def _write(bootstrap: str, topic: str, stop: threading.Event) -> None:
    with Client(bootstrap) as client, Producer(client) as producer:
        while not stop.wait(1 / RECORDS_PER_SECOND):
            producer.send(topic, b'{"for": "those who look"}')
            producer.flush()


async def _follow_all(address: str, topic: str, count: int) -> None:
    first = [asyncio.Event() for _ in range(count)]
    tasks = [asyncio.create_task(_follow(address, topic, each)) for each in first]
    await asyncio.gather(*(each.wait() for each in first))
    print(READY, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def _follow(address: str, topic: str, first: asyncio.Event) -> None:
    parts = urlsplit(address)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    request = f"GET /topics/{topic}/messages/tail HTTP/1.1\r\nHost: {parts.netloc}\r\n\r\n"
    writer.write(request.encode())
    try:
        while data := await reader.read(1 << 16):
            if b"data: " in data:
                first.set()
    finally:
        writer.close()


if __name__ == "__main__":
    main()
