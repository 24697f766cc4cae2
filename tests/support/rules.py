"""Words for tests of the rules: a state with one partition, and batches that are only a header."""

from semel.core.facts import DURABLE
from semel.core.partition import Append, Appended
from semel.core.state import BrokerState
from semel.core.topics import CreateTopic
from semel.core.types import Command, Decision, Partition, PartitionKey, ProducerKey
from semel.wire.records import BatchHeader

TOPIC_ID = bytes(range(16))
PARTITION = PartitionKey(TOPIC_ID, 0)


def header(
    sequence: int = -1,
    *,
    producer_id: int = 7,
    epoch: int = 0,
    count: int = 1,
    timestamp: int = 1_000,
    attributes: int = 0,
) -> BatchHeader:
    return BatchHeader(
        base_offset=0,
        length=100 * count,
        leader_epoch=-1,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=timestamp,
        max_timestamp=timestamp,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )


class Rules:
    """Decides and applies, as the commit loop does, with nothing stored: what is missing does not exist."""

    def __init__(self) -> None:
        self.state = BrokerState()
        self.now = 1_000_000
        self.facts: list[object] = []
        self.run(CreateTopic("t", TOPIC_ID, 1, {}))

    def decide(self, command: Command) -> Decision:
        for key in self.state.missing(command.keys()):
            self.state.put(key, None)
        return self.state.decide(command, self.now)

    def run(self, command: Command) -> object:
        decision = self.decide(command)
        for fact in decision.facts:
            self.state.apply(fact)
        self.facts.extend(fact for fact in decision.facts if type(fact) in DURABLE)
        return decision.answer

    def append(self, sequence: int = -1, *, transaction: int = 0, **fields: int) -> Appended:
        """A batch of producer 7, or of no producer if it has no sequence."""
        if sequence == -1:
            fields = {"producer_id": -1, "epoch": -1, **fields}
        answer = self.run(Append(PARTITION, header(sequence, **fields), b"", transaction_version=transaction))
        assert isinstance(answer, Appended)
        return answer

    @property
    def partition(self) -> Partition:
        partition = self.state.partitions[PARTITION]
        assert partition is not None
        return partition

    def producer_key(self, producer_id: int = 7) -> ProducerKey:
        return ProducerKey(TOPIC_ID, 0, producer_id)
