"""The table of the APIs.

`APIS` has the APIs of Kafka 4.3, followed by Semel's own: for each API key its two classes, the versions that
can be decoded, and the versions that a broker advertises. These differ where they differ in Kafka's broker:
Produce is advertised from version 0, because some clients stop compressing otherwise, and InitProducerId 6
(two-phase commit) is not stable and so not advertised. The handlers decide which of the APIs a broker serves.
"""

from dataclasses import dataclass

from semel.wire.messages import (
    configs,
    fetch,
    groups,
    metadata,
    offsets,
    placement,
    produce,
    quotas,
    security,
    semel,
    shares,
    topics,
    transactions,
)
from semel.wire.schema import Request, Response

__all__ = ["APIS", "Api"]


@dataclass(frozen=True, slots=True)
class Api:
    """One API of the protocol: its number, its name, its messages and its versions."""

    key: int
    name: str
    request: type[Request]
    response: type[Response]
    min_version: int
    max_version: int
    advertised_min: int
    advertised_max: int


def _api(
    request: type[Request],
    response: type[Response],
    *,
    advertised_min: int | None = None,
    advertised_max: int | None = None,
) -> Api:
    versions = request.min_version, request.max_version
    assert versions == (response.min_version, response.max_version), f"{request.__name__} and its response"
    return Api(
        key=request.api_key,
        name=request.__name__.removesuffix("Request"),
        request=request,
        response=response,
        min_version=request.min_version,
        max_version=request.max_version,
        advertised_min=request.min_version if advertised_min is None else advertised_min,
        advertised_max=request.max_version if advertised_max is None else advertised_max,
    )


_ALL = (
    _api(produce.ProduceRequest, produce.ProduceResponse, advertised_min=0),
    _api(fetch.FetchRequest, fetch.FetchResponse),
    _api(fetch.ListOffsetsRequest, fetch.ListOffsetsResponse),
    _api(metadata.MetadataRequest, metadata.MetadataResponse),
    _api(offsets.OffsetCommitRequest, offsets.OffsetCommitResponse),
    _api(offsets.OffsetFetchRequest, offsets.OffsetFetchResponse),
    _api(metadata.FindCoordinatorRequest, metadata.FindCoordinatorResponse),
    _api(groups.JoinGroupRequest, groups.JoinGroupResponse),
    _api(groups.HeartbeatRequest, groups.HeartbeatResponse),
    _api(groups.LeaveGroupRequest, groups.LeaveGroupResponse),
    _api(groups.SyncGroupRequest, groups.SyncGroupResponse),
    _api(groups.DescribeGroupsRequest, groups.DescribeGroupsResponse),
    _api(groups.ListGroupsRequest, groups.ListGroupsResponse),
    _api(security.SaslHandshakeRequest, security.SaslHandshakeResponse),
    _api(metadata.ApiVersionsRequest, metadata.ApiVersionsResponse),
    _api(topics.CreateTopicsRequest, topics.CreateTopicsResponse),
    _api(topics.DeleteTopicsRequest, topics.DeleteTopicsResponse),
    _api(topics.DeleteRecordsRequest, topics.DeleteRecordsResponse),
    _api(transactions.InitProducerIdRequest, transactions.InitProducerIdResponse, advertised_max=5),
    _api(fetch.OffsetForLeaderEpochRequest, fetch.OffsetForLeaderEpochResponse),
    _api(transactions.AddPartitionsToTxnRequest, transactions.AddPartitionsToTxnResponse),
    _api(transactions.AddOffsetsToTxnRequest, transactions.AddOffsetsToTxnResponse),
    _api(transactions.EndTxnRequest, transactions.EndTxnResponse),
    _api(transactions.WriteTxnMarkersRequest, transactions.WriteTxnMarkersResponse),
    _api(transactions.TxnOffsetCommitRequest, transactions.TxnOffsetCommitResponse),
    _api(security.DescribeAclsRequest, security.DescribeAclsResponse),
    _api(security.CreateAclsRequest, security.CreateAclsResponse),
    _api(security.DeleteAclsRequest, security.DeleteAclsResponse),
    _api(configs.DescribeConfigsRequest, configs.DescribeConfigsResponse),
    _api(configs.AlterConfigsRequest, configs.AlterConfigsResponse),
    _api(placement.AlterReplicaLogDirsRequest, placement.AlterReplicaLogDirsResponse),
    _api(topics.DescribeLogDirsRequest, topics.DescribeLogDirsResponse),
    _api(security.SaslAuthenticateRequest, security.SaslAuthenticateResponse),
    _api(topics.CreatePartitionsRequest, topics.CreatePartitionsResponse),
    _api(security.CreateDelegationTokenRequest, security.CreateDelegationTokenResponse),
    _api(security.RenewDelegationTokenRequest, security.RenewDelegationTokenResponse),
    _api(security.ExpireDelegationTokenRequest, security.ExpireDelegationTokenResponse),
    _api(security.DescribeDelegationTokenRequest, security.DescribeDelegationTokenResponse),
    _api(groups.DeleteGroupsRequest, groups.DeleteGroupsResponse),
    _api(placement.ElectLeadersRequest, placement.ElectLeadersResponse),
    _api(configs.IncrementalAlterConfigsRequest, configs.IncrementalAlterConfigsResponse),
    _api(placement.AlterPartitionReassignmentsRequest, placement.AlterPartitionReassignmentsResponse),
    _api(placement.ListPartitionReassignmentsRequest, placement.ListPartitionReassignmentsResponse),
    _api(offsets.OffsetDeleteRequest, offsets.OffsetDeleteResponse),
    _api(quotas.DescribeClientQuotasRequest, quotas.DescribeClientQuotasResponse),
    _api(quotas.AlterClientQuotasRequest, quotas.AlterClientQuotasResponse),
    _api(security.DescribeUserScramCredentialsRequest, security.DescribeUserScramCredentialsResponse),
    _api(security.AlterUserScramCredentialsRequest, security.AlterUserScramCredentialsResponse),
    _api(placement.DescribeQuorumRequest, placement.DescribeQuorumResponse),
    _api(configs.UpdateFeaturesRequest, configs.UpdateFeaturesResponse),
    _api(metadata.DescribeClusterRequest, metadata.DescribeClusterResponse),
    _api(transactions.DescribeProducersRequest, transactions.DescribeProducersResponse),
    _api(placement.UnregisterBrokerRequest, placement.UnregisterBrokerResponse),
    _api(transactions.DescribeTransactionsRequest, transactions.DescribeTransactionsResponse),
    _api(transactions.ListTransactionsRequest, transactions.ListTransactionsResponse),
    _api(groups.ConsumerGroupHeartbeatRequest, groups.ConsumerGroupHeartbeatResponse),
    _api(groups.ConsumerGroupDescribeRequest, groups.ConsumerGroupDescribeResponse),
    _api(configs.ListConfigResourcesRequest, configs.ListConfigResourcesResponse),
    _api(metadata.DescribeTopicPartitionsRequest, metadata.DescribeTopicPartitionsResponse),
    _api(shares.ShareGroupHeartbeatRequest, shares.ShareGroupHeartbeatResponse),
    _api(shares.ShareGroupDescribeRequest, shares.ShareGroupDescribeResponse),
    _api(shares.ShareFetchRequest, shares.ShareFetchResponse),
    _api(shares.ShareAcknowledgeRequest, shares.ShareAcknowledgeResponse),
    _api(placement.AddRaftVoterRequest, placement.AddRaftVoterResponse),
    _api(placement.RemoveRaftVoterRequest, placement.RemoveRaftVoterResponse),
    _api(shares.DescribeShareGroupOffsetsRequest, shares.DescribeShareGroupOffsetsResponse),
    _api(shares.AlterShareGroupOffsetsRequest, shares.AlterShareGroupOffsetsResponse),
    _api(shares.DeleteShareGroupOffsetsRequest, shares.DeleteShareGroupOffsetsResponse),
    _api(semel.CommitTransactionsRequest, semel.CommitTransactionsResponse),
    _api(semel.BeginAttemptRequest, semel.BeginAttemptResponse),
    _api(semel.TxnShareAcknowledgeRequest, semel.TxnShareAcknowledgeResponse),
)

#: Every API by its key.
APIS: dict[int, Api] = {api.key: api for api in _ALL}
