"""Two consumers share the work of a group; one leaves, and the other takes over where it stopped.

python examples/groups.py                  # with a broker of its own
python examples/groups.py 127.0.0.1:9092   # with one that is running, of any kind
"""

import sys
import uuid
from contextlib import nullcontext

import semel
from semel.client import Admin, Client, Consumer, NewTopic, Producer


def main(bootstrap_servers: str) -> None:
    """Write to four partitions, and read them in a group of two and then of one."""
    name = uuid.uuid4().hex[:8]
    topic, group = f"events-{name}", f"workers-{name}"
    with Client(bootstrap_servers) as client, Client(bootstrap_servers) as other:
        Admin(client).topics.create(NewTopic(topic, partitions=4))
        first = Consumer(client, topic, group_id=group)
        second = Consumer(other, topic, group_id=group)
        # Members hear of each other in heartbeats, which are sent while they poll.
        while len(first.assignment) != 2 or len(second.assignment) != 2:
            first.poll(0.05)
            second.poll(0.05)
        print("first reads", sorted(number for _, number in first.assignment))
        print("second reads", sorted(number for _, number in second.assignment))

        with Producer(client) as producer:
            for number in range(100):
                producer.send(topic, b"event %d" % number, partition=number % 4)

        seen = [record.value for record in second.poll(5)]
        second.close()  # commits what it has handed out, and leaves the group
        while len(seen) < 100:
            seen += [record.value for record in first.poll(1)]
        first.close()
        print(f"{len(seen)} events were read, {len(set(seen))} of them different")

        offsets = Admin(client).groups.offsets(group)
        print("the group is at", {number: at.offset for (_, number), at in sorted(offsets.items())})
        Admin(client).groups.delete(group)
        Admin(client).topics.delete(topic)


if __name__ == "__main__":
    broker = nullcontext() if len(sys.argv) > 1 else semel.embedded()
    with broker as embedded:
        main(sys.argv[1] if embedded is None else embedded.bootstrap_servers)
