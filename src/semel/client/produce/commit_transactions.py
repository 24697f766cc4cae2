"""Several transactions with one outcome: Semel's extension of Kafka's protocol for pipelines.

    if serves_commit_transactions(client):
        run = DriverEpoch("billing/driver", identity)       # the driver's producer id and epoch
        producer = AttemptProducer(client, "billing/7.3/0.12", run)   # in every task
        ...
        commit_transactions(client, run, prepared, "billing", {("orders", 0): 1234})

A *run* is identified by the producer id and epoch that a driver got for its transactional id.
`AttemptProducer` writes one transaction of the run: the broker refuses it if a newer run has started, and
aborts it only after `semel.attempt.timeout.ms`, so that the pipeline can return. `commit_transactions`
commits the successful attempts and the offsets of a group atomically. It is idempotent.

Other brokers do not have this API; check `serves_commit_transactions` first. There, several requests replace
it (`prepared`).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from semel.client.admin.group_offsets import CommittedOffset, offset_topics
from semel.client.consume.offsets import Partition
from semel.client.errors import TransactionError, TransactionMisuse, check
from semel.client.net.cluster import TRANSACTION, Client
from semel.client.produce.prepared import PreparedTransaction
from semel.client.produce.transactional_producer import TransactionalProducer
from semel.wire import messages as wire
from semel.wire.batch import ProducerIdAndEpoch
from semel.wire.compression import Codec

#: The maximum number of transactions in one request.
TRANSACTIONS_MAX = 1_000


class DriverEpoch(NamedTuple):
    """A driver's transactional id, and the producer id and epoch of its last initialisation."""

    transactional_id: str
    identity: ProducerIdAndEpoch


class CommitTransactionsRefused(TransactionError):
    """Nothing was committed, because some transactions cannot be. `lost` maps their ids to error codes."""

    def __init__(self, code: int, message: str, lost: Mapping[str, int]) -> None:
        super().__init__(code, message)
        self.lost = dict(lost)


def serves_commit_transactions(client: Client) -> bool:
    """Whether the brokers have this API. The API key alone is no proof: it is not registered with Kafka."""
    return client.feature(wire.COMMIT_TRANSACTIONS) >= 1 and client.serves(
        wire.CommitTransactionsRequest.api_key
    )


def commit_transactions(
    client: Client,
    run: DriverEpoch,
    transactions: Sequence[PreparedTransaction],
    group_id: str = "",
    offsets: Mapping[Partition, int | CommittedOffset] | None = None,
) -> None:
    """Commit these transactions and these offsets of the group atomically. Idempotent.

    CommitTransactionsRefused: some of the transactions can no longer be committed. KafkaError with
    PRODUCER_FENCED: a newer run has started. In both cases nothing has changed. ClientError: there was no
    answer, so the outcome is unknown.
    """
    request = wire.CommitTransactionsRequest(
        transactional_id=run.transactional_id,
        producer_id=run.identity.producer_id,
        producer_epoch=run.identity.epoch,
        transactions=[
            wire.CommitTransactionsTransaction(
                transactional_id=transaction.transactional_id,
                producer_id=transaction.producer_id,
                producer_epoch=transaction.epoch,
            )
            for transaction in transactions
        ],
        group_id=group_id,
        topics=offset_topics(offsets or {}, wire.CommitTransactionsTopic, wire.CommitTransactionsPartition),
    )
    response: wire.CommitTransactionsResponse = client.ask_coordinator(
        run.transactional_id, request, kind=TRANSACTION
    )
    lost = {transaction.transactional_id: transaction.error_code for transaction in response.refused}
    what = f"nothing was committed for {run.transactional_id!r}"
    if lost:
        named = ", ".join(sorted(lost))
        raise CommitTransactionsRefused(
            response.error_code, f"{what}: {named} cannot be committed any more.", lost
        )
    check(response.error_code, what, response.error_message)


class AttemptProducer(TransactionalProducer):
    """Writes one transaction of a run, under a transactional id that is used for nothing else."""

    def __init__(
        self,
        client: Client,
        transactional_id: str,
        run: DriverEpoch,
        *,
        codec: Codec = Codec.NONE,
        timeout_s: float = 60.0,
        version_max: int = 2,
    ) -> None:
        super().__init__(client, transactional_id, codec=codec, timeout_s=timeout_s, version_max=version_max)
        self._run = run
        self._has_begun = False

    def begin(self) -> None:
        """Begin the only transaction of the attempt. It is open at the broker before the first write."""
        if self._has_begun:
            raise TransactionMisuse(f"the attempt {self.transactional_id!r} has begun its only transaction.")
        super().begin()
        self._has_begun = True

    @property
    def _is_known(self) -> bool:
        return True

    def _take(self, *, keep_prepared: bool) -> PreparedTransaction | None:
        self._version = self._found_version()
        identity = self._run.identity
        request = wire.BeginAttemptRequest(
            transactional_id=self.transactional_id,
            driver_transactional_id=self._run.transactional_id,
            driver_producer_id=identity.producer_id,
            driver_producer_epoch=identity.epoch,
            transaction_version=self._version,
        )
        response: wire.BeginAttemptResponse = self._client.ask_coordinator(
            self.transactional_id, request, kind=TRANSACTION
        )
        what = f"the attempt {self.transactional_id!r} was not begun"
        check(response.error_code, what, response.error_message)
        self._identity = ProducerIdAndEpoch(response.producer_id, response.producer_epoch)
        return None

    def _look_for_version(self) -> None:
        """The version was fixed when the attempt started."""

    def _renew(self) -> None:
        """There is no next transaction, so no new epoch is needed."""

    def _recovered(self) -> bool:
        return False
