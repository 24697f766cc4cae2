"""A producer id and its epoch, as the protocol passes them around."""

from msgspec import Struct


class ProducerIdAndEpoch(Struct, frozen=True, gc=False, array_like=True, order=True):
    """Identifies one incarnation of a producer. A broker fences every epoch but the newest."""

    producer_id: int = -1
    epoch: int = -1
