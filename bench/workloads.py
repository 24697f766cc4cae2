"""Work that measurements share. Each function does one round; the caller interleaves rounds."""

import time
from collections.abc import Callable, Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

Place = tuple[str, int]
BULK_PLACES = [("bulk", partition) for partition in range(4)]
IDEMPOTENT_UNDER_WAY = 5
"""Requests in flight of an idempotent client. With more waiting, librdkafka spins at linger 0."""
PLAIN_UNDER_WAY = 50
"""Requests in flight of other clients, which have no limit."""
VALUE = bytes(range(256)) * 4


def bulk_produce(
    bootstrap: str,
    places: Sequence[Place],
    records: int,
    values: Sequence[bytes] = (VALUE,),
    **config: object,
) -> float:
    """Return records per second of a producer with acks=all and linger 5 ms; idempotent by default."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 5,
            "queue.buffering.max.messages": 20_000,
            "log_level": 0,
        }
        | config
    )
    # The first record waits for the producer id, which the client requests every half second.
    producer.produce(places[0][0], values[0], partition=places[0][1])
    assert producer.flush(30) == 0
    started = time.perf_counter()
    for number in range(records):
        topic, partition = places[number % len(places)]
        while True:
            try:
                producer.produce(topic, values[number % len(values)], partition=partition)
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(120)
    assert left == 0, f"{left} records were not delivered"
    return records / (time.perf_counter() - started)


def bulk_consume(bootstrap: str, places: Sequence[Place], records: int, **config: object) -> float:
    """Return the records per second of a consumer that reads everything, repeatedly if that is too little."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 131_072,
            # With a full queue the client would sleep for a second, which would dominate the measurement.
            "fetch.queue.backoff.ms": 10,
            "log_level": 0,
        }
        | config
    )
    partitions = [TopicPartition(*place, OFFSET_BEGINNING) for place in places]
    available = sum(
        high - low for low, high in (consumer.get_watermark_offsets(each, timeout=30) for each in partitions)
    )
    read, seconds = 0, 0.0
    while read < records:
        consumer.assign(partitions)
        seen = len(consumer.consume(1, timeout=30))
        started = time.perf_counter()
        while seen < available:
            batch = consumer.consume(min(10_000, available - seen), timeout=30)
            assert batch, f"nothing after {seen} of {available} records"
            seen += len(batch)
        seconds += time.perf_counter() - started
        read += seen
    consumer.close()
    return read / seconds


def small_requests(
    bootstrap: str,
    places: Sequence[Place],
    producers: int,
    seconds: float,
    processor: Callable[[], float],
    *,
    idempotent: bool,
    **more: object,
) -> tuple[int, float]:
    """Count the single-record requests that several producers get acknowledged in a while, with acks=all.

    Also returns the processor time used meanwhile. Connections are open when the clock starts, and requests
    still in flight when it stops are not counted.

    One thread feeds all producers: librdkafka has its own threads for the network, and a Python thread for
    each producer would only make them wait for each other.
    """
    acknowledged = 0

    def delivered(error: object, _: object) -> None:
        nonlocal acknowledged
        assert error is None, error
        acknowledged += 1

    config = {
        "bootstrap.servers": bootstrap,
        "acks": "all",
        "enable.idempotence": idempotent,
        "linger.ms": 0,
        "batch.num.messages": 1,
        "log_level": 0,
        **more,
    }
    in_flight = IDEMPOTENT_UNDER_WAY if idempotent else PLAIN_UNDER_WAY
    clients = [(Producer(config), *places[number % len(places)]) for number in range(producers)]
    for client, topic, partition in clients:
        client.produce(topic, b"first", partition=partition)
    for client, _, _ in clients:
        assert client.flush(30) == 0
    value = b"x" * 100
    before = processor()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for client, topic, partition in clients:
            for _ in range(in_flight - len(client)):
                client.produce(topic, value, partition=partition, on_delivery=delivered)
            client.poll(0)
        # Leave time for the network: without a pause this loop takes the processor from those it waits for.
        time.sleep(0.0002)
    done, used = acknowledged, processor() - before
    for client, _, _ in clients:
        assert client.flush(60) == 0
    return done, used
