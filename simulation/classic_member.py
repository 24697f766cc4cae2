"""A member of the copiers' group that uses the classic protocol, like an eager consumer of Java.

The member revokes all its partitions before it joins, and the group's leader computes the assignment. Once a
member of the consumer protocol (KIP-848) has joined, the group has no leader, and the broker computes it.
"""

from typing import Any

from semel.client.consume.membership import assign_range
from semel.wire.consumer_protocol import (
    decode_assignment,
    decode_subscription,
    encode_assignment,
    encode_subscription,
)
from semel.wire.errors import ErrorCode
from semel.wire.messages import (
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    SyncGroupRequest,
    SyncGroupRequestAssignment,
)
from simulation.actors import Actor
from simulation.group_member import GROUP, Lost, Member
from simulation.network import Caller

SESSION_MS = 300
REBALANCE_MS = 600
ROUNDS_MAX = 30
"""Consecutive rebalances after which the member gives up as if its process were restarted."""


class ClassicMember(Member):
    """The state of a member of the classic protocol."""

    def __init__(self, actor: Actor, caller: Caller, topic: str, partitions: int) -> None:
        super().__init__(actor, caller, topic)
        self._partition_count = partitions
        self.member_id = ""
        self._is_in = False

    @property
    def _identity(self) -> tuple[str | None, int]:
        # Consumers of the classic protocol send no member id and epoch when they fetch offsets.
        return None, -1

    async def heartbeat(self) -> bool:
        """Send a heartbeat, or rejoin. Return whether the assignment has changed."""
        self._draw_next_heartbeat()
        if self._is_in:
            request = HeartbeatRequest(group_id=GROUP, generation_id=self.epoch, member_id=self.member_id)
            error = (await self._ask(request, 4, lambda found: found.error_code)).error_code
            if error == ErrorCode.NONE:
                return False
            self._called_back(error)
        for _ in range(ROUNDS_MAX):
            joined = await self._join()
            if joined is not None and await self._sync(joined):
                self._is_in = True
                return True
        raise Lost

    def _called_back(self, error: int) -> None:
        """Revoke all partitions. Raise Lost unless the error asks the member to join again."""
        self._is_in = False
        self.positions = {}
        self._owned = frozenset()
        if error != ErrorCode.REBALANCE_IN_PROGRESS:
            raise Lost

    async def _join(self) -> Any:
        metadata = encode_subscription([self._topic])
        request = JoinGroupRequest(
            group_id=GROUP,
            session_timeout_ms=SESSION_MS,
            rebalance_timeout_ms=REBALANCE_MS,
            member_id=self.member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=metadata)],
        )
        answer = await self._ask(request, 9, lambda found: found.error_code)
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return None
        if answer.error_code != ErrorCode.NONE:
            self._called_back(answer.error_code)
            return None
        self.member_id, self.epoch = answer.member_id, answer.generation_id
        return answer

    async def _sync(self, joined: Any) -> bool:
        assignments = []
        if joined.leader == joined.member_id:
            wanted = {each.member_id: decode_subscription(each.metadata).topics for each in joined.members}
            shares = assign_range(wanted, {self._topic: self._partition_count})
            assignments = [
                SyncGroupRequestAssignment(member_id=member_id, assignment=encode_assignment(share))
                for member_id, share in shares.items()
            ]
        request = SyncGroupRequest(
            group_id=GROUP,
            generation_id=self.epoch,
            member_id=self.member_id,
            protocol_type=joined.protocol_type,
            protocol_name=joined.protocol_name,
            assignments=assignments,
        )
        answer = await self._ask(request, 5, lambda found: found.error_code)
        if answer.error_code != ErrorCode.NONE:
            self._called_back(answer.error_code)
            return False
        self._owned = frozenset(decode_assignment(answer.assignment).get(self._topic, ()))
        return True
