from semel.wire.batch import BatchHeader
from semel.wire.column_buffers import Binary, Columns, Numbers, Packed
from semel.wire.schema import Buffer

class Reader:
    rows: int
    def __init__(self, keys: bool, values: bool, headers: bool) -> None: ...
    @property
    def size_bytes(self) -> int: ...
    def add(self, payload: Buffer, header: BatchHeader, start: int, stop: int) -> None: ...
    def take(self) -> Columns: ...

def choose(rows: int, partitions: int, keys: Binary | None, given: Numbers | None, sticky: int) -> Buffer: ...

class Packer:
    full: int | None
    def __init__(self, partitions: int, batch_bytes: int) -> None: ...
    @property
    def size_bytes(self) -> int: ...
    def add(
        self,
        start: int,
        rows: int,
        partitions: Buffer,
        keys: Binary | None,
        values: Binary | None,
        headers: list[bytes | None] | None,
        timestamp: int,
    ) -> int: ...
    def take(self, partition: int) -> Packed | None: ...
