"""The work that is measured. Each function does one round and returns a rate; rounds are interleaved by the
caller.
"""

import threading
import time

from confluent_kafka import OFFSET_BEGINNING, Consumer, Producer, TopicPartition

BULK_PARTITIONS = 4
VALUE = bytes(range(256)) * 4


def bulk_produce(bootstrap: str, topic: str, records: int) -> float:
    """Records per second of one idempotent producer, 1 KiB each, acks=all, linger 5 ms."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "enable.idempotence": True,
            "linger.ms": 5,
            "queue.buffering.max.messages": 20_000,
            "log_level": 0,
        }
    )
    # The first record waits until the client has its producer id, which it asks for every half second.
    producer.produce(topic, VALUE, partition=0)
    assert producer.flush(30) == 0
    started = time.perf_counter()
    for number in range(records):
        while True:
            try:
                producer.produce(topic, VALUE, partition=number % BULK_PARTITIONS)
                break
            except BufferError:
                producer.poll(0.01)
    left = producer.flush(120)
    assert left == 0, f"{left} records were not delivered"
    return records / (time.perf_counter() - started)


def bulk_consume(bootstrap: str, topic: str, records: int) -> float:
    """Records per second of one consumer that reads everything, and again if that is too little."""
    consumer = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "bench",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "queued.max.messages.kbytes": 131_072,
            "log_level": 0,
        }
    )
    partitions = [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in range(BULK_PARTITIONS)]
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


def small_requests(bootstrap: str, topic: str, producers: int, seconds: float) -> int:
    """How many single-record requests eight producers get acknowledged in a while."""
    acknowledged = [0] * producers
    stopping = threading.Event()

    def work(number: int) -> None:
        def delivered(error: object, _: object) -> None:
            assert error is None, error
            acknowledged[number] += 1

        producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "enable.idempotence": True,
                "linger.ms": 0,
                "batch.num.messages": 1,
                "queue.buffering.max.messages": 1_000,
                "log_level": 0,
            }
        )
        while not stopping.is_set():
            try:
                producer.produce(topic, b"x" * 100, partition=number, on_delivery=delivered)
                producer.poll(0)
            except BufferError:
                producer.poll(0.005)
        assert producer.flush(60) == 0

    threads = [threading.Thread(target=work, args=(number,)) for number in range(producers)]
    for thread in threads:
        thread.start()
    time.sleep(seconds)
    stopping.set()
    for thread in threads:
        thread.join()
    return sum(acknowledged)
