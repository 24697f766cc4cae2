"""`Admin`: administration of a cluster.

    with Client("127.0.0.1:9092") as client:
        admin = Admin(client)
        admin.topics.create(NewTopic("orders", partitions=4, configs={"retention.ms": "3600000"}))
        admin.groups.describe("billing")

Its parts are in modules of their own: `topics`, `configs`, `groups`, `transactions`, `acls`, `users` and
`quotas`.
"""

from semel.client.acls import AclAdmin
from semel.client.cluster import Client
from semel.client.cluster_info import ClusterInfo
from semel.client.configs import ConfigAdmin
from semel.client.group_admin import GroupAdmin
from semel.client.quotas import QuotaAdmin
from semel.client.topics import TopicAdmin
from semel.client.transactions_admin import TransactionAdmin
from semel.client.users import UserAdmin


class Admin:
    """Administration of a cluster through a client, which it does not close."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.topics = TopicAdmin(client)
        self.configs = ConfigAdmin(client)
        self.groups = GroupAdmin(client)
        self.transactions = TransactionAdmin(client)
        self.acls = AclAdmin(client)
        self.users = UserAdmin(client)
        self.quotas = QuotaAdmin(client)

    def cluster(self) -> ClusterInfo:
        """Return the brokers of the cluster."""
        return self._client.describe(topics=())
