"""A producer id and its epoch, which requests and responses carry together."""

from typing import NamedTuple


class ProducerIdAndEpoch(NamedTuple):
    """Identifies one incarnation of a producer. A broker fences every epoch but the newest."""

    producer_id: int = -1
    epoch: int = -1
