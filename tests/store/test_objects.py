"""Objects: written once, read in ranges, deleted. In a directory and on a real S3 server."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.brokers.process import free_port
from support.servers.s3 import S3Server
from support.stores.cluster_bytes import listed

from semel.store.cluster.bytes.objects import Objects
from semel.store.contract import BatchLocation, StoreBroken, StoreRefused


@pytest.fixture(params=["directory", "s3"])
def objects(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Objects]:
    if request.param == "directory":
        opened = Objects.open(tmp_path.as_uri())
    else:
        server: S3Server = request.getfixturevalue("s3")
        opened = Objects.open(f"{server.address}/{os.urandom(4).hex()}", **server.options)
    yield opened
    opened.close()


async def test_what_is_put_is_read_in_ranges(objects: Objects) -> None:
    large = os.urandom(300_000)
    await objects.put(1, [b"abc", bytearray(b"def"), memoryview(b"ghi")])
    await objects.put(2**62, [large])
    wanted = [(1, 1, 4), (2**62, 1_000, 200_000), (1, 8, 1), (1, 1, 4), (2**62, 0, 300_000)]
    found = await objects.read([BatchLocation(*each) for each in wanted])
    assert found == [b"bcde", large[1_000:201_000], b"i", b"bcde", large]
    assert await objects.read([]) == []


async def test_an_object_larger_than_a_part_of_an_upload(objects: Objects) -> None:
    large = os.urandom(12 * 1024 * 1024)
    await objects.put(7, [large[:5_000_000], large[5_000_000:]])
    assert await objects.read([BatchLocation(7, 0, len(large))]) == [large]


async def test_a_put_whose_answer_was_lost_can_be_repeated(objects: Objects) -> None:
    await objects.put(1, [b"abc"])
    await objects.put(1, [b"a", b"bc"])
    assert await listed(objects) == [(1, 3)]
    with pytest.raises(StoreBroken, match="is not the one that was written"):
        await objects.put(1, [b"abcd"])


@pytest.mark.parametrize("missing", [(2, 0, 1), (1, 2, 2), (1, 3, 1), (1, 2**40, 4)])
async def test_what_is_not_there_is_a_lookup_error(objects: Objects, missing: tuple[int, int, int]) -> None:
    await objects.put(1, [b"abc"])
    with pytest.raises(LookupError):
        await objects.read([BatchLocation(1, 0, 3), BatchLocation(*missing)])


async def test_objects_are_listed_in_order_and_deleted_once_or_twice(objects: Objects) -> None:
    for number in (3, 1, 2):
        await objects.put(number, [bytes(number)])
    assert await listed(objects) == [(1, 1), (2, 2), (3, 3)]
    for _ in range(2):
        await objects.delete([2])
    assert await listed(objects) == [(1, 1), (3, 3)]


async def test_a_server_that_is_away_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = {"endpoint": f"http://127.0.0.1:{free_port()}", "client_options": {"allow_http": True}}
    signed = {"access_key_id": "a", "secret_access_key": "b", "region": "us-east-1"}
    objects = Objects.open(
        "s3://semel/log", patience_seconds=0.0, retry_config={"max_retries": 0}, **nobody, **signed
    )
    with pytest.raises(StoreRefused, match="s3://semel/log"):
        await objects.put(1, [b"abc"])
    with pytest.raises(StoreRefused, match="s3://semel/log"):
        await objects.delete([1])
    with pytest.raises(OSError, match="s3://semel/log"):
        await objects.read([BatchLocation(1, 0, 3)])
    objects.close()


async def test_wrong_credentials_and_a_missing_bucket_are_told(s3: S3Server) -> None:
    for address, options in (
        (s3.address, {**s3.options, "secret_access_key": "wrong"}),
        ("s3://missing/log", s3.options),
    ):
        objects = Objects.open(address, **options)
        with pytest.raises(StoreRefused, match=address):
            await objects.put(1, [b"abc"])
        objects.close()


def test_an_address_that_is_none() -> None:
    with pytest.raises(StoreBroken, match="ftp://somewhere"):
        Objects.open("ftp://somewhere")


async def test_an_object_in_a_directory_is_flushed_with_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[Path] = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        fsync(descriptor)

    objects = Objects.open((tmp_path / "a b").as_uri(), mkdir=True)
    objects.belong_to("cluster")
    await objects.mark()
    monkeypatch.setattr(os, "fsync", note)
    await objects.put(255, [b"abc"])
    below = tmp_path / "a b"
    chunks = below / "cluster/chunks"
    assert flushed == [chunks / "00000000000000ff", chunks, chunks.parent, below]
    objects.close()
