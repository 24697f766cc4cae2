"""Defects of a cluster, one for every rule of ADR 0042. Histories with several brokers must find each.

Some are defects of the brokers, others of what they rely on: the ledger (``shared_ledger``), membership and
leases (``shared_membership``), and how a store determines the outcome of a commit (``shared_store``).
"""

from simulation.mutants import Mutant


def _broker(name: str, module: str, before: str, after: str) -> Mutant:
    return Mutant(name, f"semel.broker.{module}", before, after)


def _model(name: str, module: str, before: str, after: str) -> Mutant:
    return Mutant(name, f"simulation.{module}", before, after)


_EXPECTED = "        expected = state.expected(self._reads, tick.durable)\n"
_READ = "any(entity_of(fact) == key for fact in tick.durable)"

CLUSTER_MUTANTS: tuple[Mutant, ...] = (
    # Versions.
    _broker(
        "versions of written entities are not checked",
        "cluster.commit_loop",
        _EXPECTED,
        _EXPECTED + f"        expected = {{key: each for key, each in expected.items() if not {_READ}}}\n",
    ),
    _broker(
        "versions of entities that were only read are not checked",
        "cluster.commit_loop",
        _EXPECTED,
        _EXPECTED + f"        expected = {{key: each for key, each in expected.items() if {_READ}}}\n",
    ),
    _broker(
        "what was not committed stays in memory",
        "cluster.state",
        "                self.put(key, before)\n",
        "                pass\n",
    ),
    _broker(
        "after a conflict the old copies are used again",
        "cluster.commit_loop",
        "            self.state.forget(reads)\n        self.state.forget(changed)\n",
        "            pass\n",
    ),
    _broker(
        "an error is based on an old copy of a transaction",
        "cluster.commit_loop",
        "            if changed := [key for key, each in pairs if each.version != versions.get(key)]:",
        "            if changed := []:",
    ),
    _broker(
        "the end of a transaction that is lost is taken for that of the one before",
        "cluster.commit_loop",
        "        await self._shared.check_term()\n",
        "",
    ),
    _broker(
        "entities of other brokers are kept after the tick",
        "cluster.commit_loop",
        "        self._forget_foreign((*reads, *written))\n",
        "",
    ),
    # Notices.
    _broker(
        "answers do not wait for notices",
        "cluster.announcing",
        "            await self._announcer.announce(notices)\n",
        "            self._announcer.announce_later(notices)\n",
    ),
    _broker(
        "answers do not wait for the notices of an earlier tick",
        "cluster.announcing",
        "        earlier = {self._by_key[key] for key in reads if key in self._by_key}\n",
        "        earlier = set()\n",
    ),
    _broker(
        "a notice is applied to a copy that it does not replace",
        "cluster.state",
        "            if mine == replaced != ABSENT and self.is_current(key):",
        "            if self.is_current(key):",
    ),
    _broker(
        "a late notice brings back what was deleted",
        "cluster.state",
        "            if mine == replaced != ABSENT and",
        "            if mine == replaced and",
    ),
    _broker(
        "a leader acknowledges what its readers do not see",
        "cluster.commit_loop",
        "                    self._drop((key,))\n",
        "                    pass\n",
    ),
    _broker(
        "a copy that a notice finds old is kept",
        "cluster.notice",
        "    state.forget(old)\n",
        "",
    ),
    _broker(
        "an old value stays published",
        "cluster.notice",
        "    publisher.drop(dropped)\n",
        "",
    ),
    _broker(
        "notices in the ledger are not carried out",
        "cluster.member",
        "                await self._loop.take_notices([notice for _, notice in unpack_notices(message)])\n",
        "                unpack_notices(message)\n",
    ),
    _broker(
        "notices in the ledger are carried out after the lease is prolonged",
        "cluster.member",
        "            if view.notices:\n                await self._carry_out(view)\n",
        "            self._ownership.serve_until(sent_at + self._membership.lease_seconds)\n"
        "            if view.notices:\n                await asyncio.sleep(0.05)\n"
        "                await self._carry_out(view)\n",
    ),
    _broker(
        "a notice is not sent on to the next owner",
        "cluster.announcing",
        "        return answer == DONE\n",
        "        return True\n",
    ),
    _broker(
        "an old view says that nobody needs a notice",
        "cluster.announcing",
        "            return is_newer\n",
        "            return True\n",
    ),
    _broker(
        "the shards of a dead broker are divided while others have old copies",
        "cluster.member",
        "            await asyncio.gather(self._sender.forget(), self._forget())\n",
        "            await self._forget()\n",
    ),
    _broker(
        "shards are given away before the notices have arrived",
        "cluster.member",
        "            await self._wait_for_notices()\n",
        "",
    ),
    _model(
        "a history is judged while notices are under way",
        "cluster",
        "            if life.is_announcing:\n",
        "            if False:\n",
    ),
    _broker(
        "a right that is said to be gone is still there at another broker",
        "cluster.commit_loop",
        "            notices = confirming(notices)\n",
        "            pass\n",
    ),
    _broker(
        "a broker grants a right that it has just said to be gone",
        "cluster.announcing",
        "            await self._know()\n",
        "",
    ),
    _broker(
        "changes of policies are decided by an old copy",
        "cluster.commit_loop",
        "        return key is None or type(key) is ClusterKey or",
        "        return key is None or type(key).__name__ in ('ClusterKey', 'PolicyKey') or",
    ),
    # Leases and shards.
    _broker(
        "a hand-over without an answer is taken for one that has not happened",
        "cluster.member",
        "        if (gained := given - adopted - self._doubtful) and self._is_known:\n",
        "        if (gained := given - adopted) and self._is_known:\n",
    ),
    _broker(
        "a broker ends a transaction whose shard it has given away",
        "cluster.commit_loop",
        "            if mine := without_moved(pending, self._owns):\n",
        "            if mine := pending:\n",
    ),
    _broker(
        "a long commit costs the lease",
        "cluster.member",
        "                self._start_looking()\n",
        "                await self._loop.look_for_open_transactions()\n",
    ),
    _broker(
        "shards are never given away if notices take long",
        "cluster.member",
        "        longer = min(2 * self._announce_seconds, self._membership.lease_seconds / 2)\n",
        "        longer = self._announce_seconds\n",
    ),
    _broker(
        "a member joins where its group is not any more",
        "commit.pending_commands",
        "        case JoinGroup() | SyncGroup():\n            return (GroupKey(command.group_id),)\n",
        "",
    ),
    _broker(
        "a broker gives away shards that it serves",
        "cluster.member",
        "                await self._membership.hand_over(owners, unowned)\n",
        "                await self._membership.hand_over(owners, self._ownership.epochs(owners))\n",
    ),
    _model(
        "a shard is given away although its owner has changed",
        "shared_membership",
        "            if shard.owner in (giver, None) and shard.epoch == epochs.get(number)\n",
        "            if shard.owner in (giver, None)\n",
    ),
    _broker(
        "reads are served after the lease",
        "cluster.shard_ownership",
        "        return self.clock() < self._until",
        "        return self._until > 0",
    ),
    _model(
        "a broker is replaced before its lease is over",
        "shared_membership",
        "        row.lease_until = now + LEASE_SECONDS\n        peers",
        "        row.lease_until = now + LEASE_SECONDS / 2.5\n        peers",
    ),
    _model(
        "a commit does not check the epoch",
        "shared_ledger",
        "        if row.epoch != claim.epoch or row.session != claim.session:",
        "        if row.session != claim.session:",
    ),
    _broker(
        "copies of shards that were given away are kept",
        "cluster.commit_loop",
        "                self.state.forget_unless(self._owns)\n                self._publisher",
        "                self._publisher",
    ),
    _broker(
        "open transactions of new shards are not looked for",
        "cluster.commit_loop",
        "        while shards and (page",
        "        while False and (page",
    ),
    _broker(
        "an old copy hides an open transaction",
        "cluster.commit_loop",
        "        self.state.forget(wanted)\n",
        "",
    ),
    _broker(
        "a broker decides by its own time of day",
        "cluster.member",
        "            self._clock.follow(view.time_of_day_ms, view.now_ms)\n",
        "",
    ),
    # Unknown outcomes.
    _model(
        "a commit without an answer counts as done",
        "shared_store",
        "                if await self._reached() >= number:",
        "                if await self._reached() >= 0:",
    ),
    _model(
        "a commit that arrives late counts",
        "shared_ledger",
        "        if row.epoch != claim.epoch or row.session != claim.session:",
        "        if row.epoch != claim.epoch:",
    ),
    # Unsynced work and terms.
    _model(
        "a commit does not check the term",
        "shared_ledger",
        "        if self._term != claim.term:",
        "        if False:",
    ),
    _broker(
        "unsynced work is published before it is durable",
        "commit.loop",
        "        self.unsynced.add(tick.durable, tick.batches, loop.time())",
        "        self._publisher.publish(tick.durable, tick.batches)",
    ),
    _broker(
        "facts about entities of others are committed unsynced",
        "cluster.commit_loop",
        "            is_awaited(fact) and not self._owns(entity_of(fact)) for fact in tick.durable",
        "            False for fact in tick.durable",
    ),
    _broker(
        "unsynced work is published when shards are given away",
        "cluster.commit_loop",
        "                self._drop(list(self.unsynced.partitions))\n                self.unsynced.take()\n",
        "                self._publisher.publish(*self.unsynced.take())\n",
    ),
    _broker(
        "unsynced work is published over a newer value",
        "reads.published_log",
        "            if before is not None and before.high_watermark > partition.high_watermark:",
        "            if False:",
    ),
    _model(
        "readers load what is not durable",
        "shared_store",
        "            if not server.is_durable(shown):",
        "            if False:",
    ),
    # Producer ids.
    _model(
        "two brokers give away the same producer ids",
        "shared_membership",
        "next_producer_id=slot << PRODUCER_SHIFT)",
        "next_producer_id=0)",
    ),
)
