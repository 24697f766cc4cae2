from semel.wire.batch import BatchHeader
from semel.wire.schema import Buffer

def check(payload: Buffer, header: BatchHeader, earliest: int, latest: int, needs_keys: bool) -> int: ...
