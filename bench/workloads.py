"""Work that measurements share. Each function does one round; rounds are interleaved by the caller."""

import time
from collections.abc import Callable, Sequence

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

Place = tuple[str, int]
BULK_PLACES = [("bulk", partition) for partition in range(4)]
IDEMPOTENT_UNDER_WAY = 5
"""What an idempotent client may have under way. With more waiting, librdkafka spins at linger 0."""
PLAIN_UNDER_WAY = 50
"""Other clients may have as many as they like."""
VALUE = bytes(range(256)) * 4


def bulk_produce(
    bootstrap: str,
    places: Sequence[Place],
    records: int,
    values: Sequence[bytes] = (VALUE,),
    **config: object,
) -> float:
    """Records per second of one producer with acks=all and linger 5 ms; idempotent, unless told otherwise."""
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
    # The first record waits until the client has its producer id, which it asks for every half second.
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
    """Records per second of one consumer that reads everything, and again if that is too little."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 131_072,
            # A full queue would put the client to sleep for a second, and that would be what is measured.
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
    """How many single-record requests several producers get acknowledged in a while, with acks=all.

    Also the processor time that went by meanwhile: connections are there when the clock starts, and what is
    still under way when it stops is not counted.

    One thread feeds all of them: librdkafka has threads of its own for the network, and a thread of Python
    for each producer would only make them wait for each other.
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
        # A moment for the network: without it this loop takes the processor from those it waits for.
        time.sleep(0.0002)
    done, used = acknowledged, processor() - before
    for client, _, _ in clients:
        assert client.flush(60) == 0
    return done, used
