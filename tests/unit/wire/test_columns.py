"""The door of the columnar codec: what it checks before a half is asked, and which half that is."""

import os
import shutil
import subprocess
import sys
import sysconfig

import pytest
from support.programs import needs
from support.stores.columnar import rows_of

from semel.wire import columns
from semel.wire.columns import ColumnReader
from semel.wire.errors import ProtocolError
from semel.wire.records import Codec, Record, decode_batch, encode_batch, iter_batches, read_header

RECORDS = [Record(at, 1000 + at, b"key %d" % at, b"value %d" % at) for at in range(50)]


def test_batches_of_a_fetch_become_one_set_of_columns() -> None:
    data = b"".join(encode_batch(RECORDS, base_offset=50 * at, codec=codec) for at, codec in enumerate(Codec))
    reader = ColumnReader(headers=True)
    for at, header in iter_batches(data):
        reader.add(data, at, header, 10, 240)
    assert reader.rows == 230
    expected = [each for at, _ in iter_batches(data) for each in decode_batch(data, at)]
    assert rows_of(reader.take()) == expected[10:240]


def damaged(at: int, byte: int) -> bytes:
    batch = bytearray(encode_batch(RECORDS))
    batch[at] = byte
    return bytes(batch)


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (damaged(16, 1), "version 1"),
        (damaged(80, 255), "checksum"),
        (encode_batch(RECORDS)[:-1], "left"),
        (encode_batch(RECORDS, base_offset=2**63 - 1), "range"),
    ],
)
def test_a_damaged_batch_is_refused(batch: bytes, message: str) -> None:
    reader = ColumnReader()
    with pytest.raises(ProtocolError, match=message):
        reader.add(batch, 0, read_header(batch))
    assert reader.rows == 0


def test_a_batch_unpacks_to_so_much_and_no_more() -> None:
    batch = encode_batch([Record(0, 0, None, bytes(1 << 20))], codec=Codec.ZSTD)
    reader = ColumnReader(limit_bytes=1 << 16)
    with pytest.raises(ProtocolError, match="65536"):
        reader.add(batch, 0, read_header(batch))


def half_in_use(**environment: str) -> str:
    command = [sys.executable, "-c", "from semel.wire.columns import IS_COMPILED; print(IS_COMPILED)"]
    kept = {key: value for key, value in os.environ.items() if key != "SEMEL_PURE"}
    done = subprocess.run(command, env=kept | environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_the_environment_can_choose_the_pure_half() -> None:
    assert half_in_use(SEMEL_PURE="1") == "False"
    assert half_in_use(SEMEL_PURE="0") == half_in_use()


@needs("a C compiler", shutil.which((sysconfig.get_config_var("CC") or "cc").split()[0]))
def test_where_there_is_a_compiler_the_compiled_half_is_used() -> None:
    assert half_in_use() == "True"
    assert columns.IS_COMPILED or os.environ.get("SEMEL_PURE")
