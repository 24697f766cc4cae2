"""`Admin`: administration of a cluster.

    with Client("127.0.0.1:9092") as client:
        admin = Admin(client)
        admin.topics.create(NewTopic("orders", partitions=4, configs={"retention.ms": "3600000"}))
        admin.groups.describe("billing")

Its parts are in modules of their own: `topics`, `configs`, `groups`, `transactions`, `acls`, `users` and
`quotas`.
"""

from semel.client.admin.acls import AclAdmin
from semel.client.admin.configs import ConfigAdmin
from semel.client.admin.groups import GroupAdmin
from semel.client.admin.quotas import QuotaAdmin
from semel.client.admin.topics import TopicAdmin
from semel.client.admin.transactions import TransactionAdmin
from semel.client.admin.users import UserAdmin
from semel.client.net.cluster import Client, ClusterInfo


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
