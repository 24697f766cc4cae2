"""What is served: every family is in the table, and an API is advertised exactly when it has a handler."""

import importlib
import pkgutil

import semel.handlers
from semel.handlers import HANDLERS, served
from semel.wire.messages import APIS

EXPECTED = {
    "Produce",
    *("Fetch", "ListOffsets", "OffsetForLeaderEpoch"),
    *("ApiVersions", "Metadata", "FindCoordinator", "DescribeCluster", "DescribeTopicPartitions"),
    *("CreateTopics", "DeleteTopics", "CreatePartitions", "DeleteRecords", "DescribeLogDirs"),
    *("ElectLeaders", "AlterPartitionReassignments", "ListPartitionReassignments", "AlterReplicaLogDirs"),
    *("DescribeQuorum", "AddRaftVoter", "RemoveRaftVoter", "UnregisterBroker", "ListConfigResources"),
    *("CreateDelegationToken", "RenewDelegationToken", "ExpireDelegationToken", "DescribeDelegationToken"),
    *("DescribeConfigs", "AlterConfigs", "IncrementalAlterConfigs"),
    *("JoinGroup", "SyncGroup", "Heartbeat", "LeaveGroup", "DescribeGroups", "ListGroups", "DeleteGroups"),
    *("ConsumerGroupHeartbeat", "ConsumerGroupDescribe", "OffsetCommit", "OffsetFetch", "OffsetDelete"),
    *("InitProducerId", "AddPartitionsToTxn", "AddOffsetsToTxn", "TxnOffsetCommit", "EndTxn"),
    *("WriteTxnMarkers", "DescribeProducers", "DescribeTransactions", "ListTransactions", "UpdateFeatures"),
    *("SaslHandshake", "SaslAuthenticate", "DescribeAcls", "CreateAcls", "DeleteAcls"),
    *("DescribeUserScramCredentials", "AlterUserScramCredentials"),
    *("DescribeClientQuotas", "AlterClientQuotas"),
    *("ShareGroupHeartbeat", "ShareGroupDescribe", "ShareFetch", "ShareAcknowledge"),
    *("DescribeShareGroupOffsets", "AlterShareGroupOffsets", "DeleteShareGroupOffsets"),
}
OURS = {"CommitTransactions", "BeginAttempt", "TxnShareAcknowledge"}


def test_what_the_broker_serves() -> None:
    assert {api.name for api in served(extensions=False)} == EXPECTED
    assert {api.name for api in served()} == EXPECTED | OURS


def test_served_is_in_the_order_of_keys_and_holds_produce() -> None:
    keys = [api.key for api in served()]
    assert keys == sorted({0, *HANDLERS})


def test_every_handler_of_every_module_is_served() -> None:
    for module in pkgutil.iter_modules(semel.handlers.__path__, "semel.handlers."):
        for key, handler in getattr(importlib.import_module(module.name), "HANDLERS", {}).items():
            assert HANDLERS[key] is handler
            assert key in APIS
