"""Writes the records of transactions: a `Producer` that is given its producer id and epoch.

The differences from a plain producer: in version 1 a partition is added to the transaction before its first
batch; the version of Produce selects the transaction version; and a refused batch fails the whole
transaction, so nothing more is sent.
"""

from collections.abc import Sequence

from semel.client.consume.offsets import Partition
from semel.client.errors import ClientError, KafkaError, UnsupportedRequest
from semel.client.net.cluster import Client
from semel.client.net.connection import Connection
from semel.client.produce.batches import Delivery, Outgoing
from semel.client.produce.producer import Producer
from semel.client.produce.rounds import Round
from semel.client.produce.transaction_coordinator import FIRST_PRODUCE, NOBODY_YET, Coordinator
from semel.wire.compression import Codec
from semel.wire.producer_id import ProducerIdAndEpoch


class TransactionWriter(Producer):
    """Writes the records of successive transactions."""

    def __init__(
        self,
        client: Client,
        coordinator: Coordinator,
        *,
        codec: Codec,
        linger_s: float,
        batch_bytes: int,
        buffer_bytes: int,
        timeout_s: float,
    ) -> None:
        super().__init__(
            client,
            codec=codec,
            linger_s=linger_s,
            batch_bytes=batch_bytes,
            buffer_bytes=buffer_bytes,
            delivery_timeout_s=timeout_s,
        )
        self._coordinator = coordinator
        self._transactional_id = coordinator.transactional_id
        self._given = NOBODY_YET
        self._transaction_version = 2
        self._added: set[Partition] = set()
        self.has_written = False  # or has tried to: the coordinator may know of the transaction

    @property
    def failure(self) -> Exception | None:
        """The first error in this transaction."""
        return self._failure

    def start(self, identity: ProducerIdAndEpoch, version: int) -> None:
        """Start another transaction, in this version."""
        self._given, self._transaction_version = identity, version
        self._added.clear()
        self._failure = None
        self.has_written = False

    def drop(self, error: Exception) -> None:
        """Drop what was not sent. Wait for requests in flight first: their batches may be written already."""
        self._finish_last()
        for queue in self._outgoing.values():
            self._buffered_bytes -= queue.drop(error)

    def send_all(self) -> None:
        """Send everything and wait for the answers. An error is kept in `failure`."""
        if self._failure is None:
            self._drain(everything=True)

    def _settle(self, delivery: Delivery) -> None:
        self.send_all()

    def _begin(self, ready: Sequence[Outgoing]) -> Round:
        self.has_written = True
        return super()._begin(ready)

    def _finish(self, sent: Round) -> bool:
        is_settled = super()._finish(sent)
        if self._failure is None:
            return is_settled
        self.drop(self._failure)
        return True

    def _identify(self, ready: Sequence[Outgoing]) -> ProducerIdAndEpoch | None:
        self._identity = self._given
        fresh = [queue.partition for queue in ready if queue.partition not in self._added]
        if self._transaction_version >= 2 or not fresh:
            return self._given
        try:
            self._coordinator.add_partitions(self._given, fresh)
        except (KafkaError, ClientError) as error:
            self._failure = error
            return None
        self._added.update(fresh)
        return self._given

    def _version(self, connection: Connection, at_most: int | None) -> int:
        if self._transaction_version < 2:
            return super()._version(connection, FIRST_PRODUCE - 1)
        version = super()._version(connection, at_most)
        if version < FIRST_PRODUCE:
            raise UnsupportedRequest(
                f"{connection.host}:{connection.port} does not support transaction version 2, which is used. "
                "All brokers of a cluster should run the same release."
            )
        return version
