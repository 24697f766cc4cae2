"""kcat, the command line of librdkafka, as somebody at a terminal uses it."""

import json
import shutil
import subprocess
from collections.abc import Callable

import pytest
from support.clients.raw import RawClient
from support.programs import needs

from semel.wire.compression import Codec

Fresh = Callable[[str], str]

pytestmark = needs("kcat", shutil.which("kcat"))


@pytest.fixture
def kcat(bootstrap: str) -> Callable[..., str]:
    def run(*arguments: str, text: str | None = None) -> str:
        command = ["kcat", "-b", bootstrap, *arguments]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_list(kcat: Callable[..., str], bootstrap: str, topic: str) -> None:
    listed = json.loads(kcat("-L", "-J", "-t", topic))
    assert [each["name"] for each in listed["brokers"]] == [bootstrap]
    (described,) = listed["topics"]
    assert described["topic"] == topic
    assert [(each["partition"], each["leader"]) for each in described["partitions"]] == [
        (0, 0),
        (1, 0),
        (2, 0),
    ]


def test_produce_and_consume(kcat: Callable[..., str], topic: str) -> None:
    kcat("-P", "-t", topic, "-p", "1", "-K", ":", "-H", "head=er", text="a:1\nb:2\nc:3\n")
    shown = kcat("-C", "-t", topic, "-p", "1", "-o", "beginning", "-e", "-f", "%o %k %s %h\n")
    assert shown.splitlines() == ["0 a 1 head=er", "1 b 2 head=er", "2 c 3 head=er"]
    last = kcat("-C", "-t", topic, "-p", "1", "-o", "-1", "-c", "1", "-f", "%s\n")
    assert last == "3\n"


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
def test_compression(kcat: Callable[..., str], topic: str, raw: RawClient, codec: str) -> None:
    lines = "".join(f"the same again and again {number}\n" for number in range(200))
    kcat("-P", "-t", topic, "-p", "0", "-z", codec, "-X", "linger.ms=100", text=lines)
    assert {header.codec for header in raw.headers(topic)} == {Codec[codec.upper()]}
    assert kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e") == lines


def test_query_offsets_by_time(kcat: Callable[..., str], topic: str) -> None:
    for line in "first", "second":
        kcat("-P", "-t", topic, "-p", "0", text=line)
    stamps = kcat("-C", "-t", topic, "-p", "0", "-o", "beginning", "-e", "-f", "%T\n").split()
    found = [kcat("-Q", "-t", f"{topic}:0:{stamp}").split()[-1] for stamp in (stamps[0], "-1", "-2")]
    assert found == ["0", "2", "0"]


def test_consume_as_a_group(kcat: Callable[..., str], topic: str, fresh: Fresh) -> None:
    group = fresh("group")
    options = ("-X", "auto.offset.reset=earliest", "-X", "session.timeout.ms=3000", "-f", "%s\n")
    for partition in range(3):
        kcat("-P", "-t", topic, "-p", str(partition), text=f"{partition}\n")
    first = kcat("-G", group, "-c", "3", *options, topic)
    assert sorted(first.split()) == ["0", "1", "2"]
    kcat("-P", "-t", topic, "-p", "2", text="later\n")
    # The offsets were committed on the way out, so only what is new comes.
    assert kcat("-G", group, "-c", "1", *options, topic) == "later\n"
