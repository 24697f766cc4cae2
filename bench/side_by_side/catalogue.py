"""All workloads, in the order of the page."""

from typing import Any

from bench.cluster.cost import Cost
from bench.cluster.faults import Faults
from bench.cluster.slow_store import SlowStore
from bench.cluster.snapshots import OldSnapshots
from bench.cluster.transactions import ClusterTransactions
from bench.cluster.volume import Volume
from bench.console.load import Console
from bench.security.acls import Acls
from bench.security.tls import Tls
from bench.side_by_side.bulk import Bulks
from bench.side_by_side.growth import Growth
from bench.side_by_side.loop import Loop
from bench.side_by_side.measuring import Workload
from bench.side_by_side.neighbours import Neighbours
from bench.side_by_side.overhead import Overhead
from bench.side_by_side.pipeline import Pipeline
from bench.side_by_side.requests import Requests
from bench.side_by_side.small import SmallBatches
from bench.side_by_side.stall import Stall
from bench.side_by_side.starting import Starting
from bench.side_by_side.transactions import Transactions
from bench.side_by_side.visibility import Visible

CLUSTER: tuple[type[Workload[Any]], ...] = (
    ClusterTransactions,
    Faults,
    Cost,
    Volume,
    SlowStore,
    OldSnapshots,
)
"""Workloads about many brokers."""
SECURITY: tuple[type[Workload[Any]], ...] = (Acls, Tls)
"""Workloads about the cost of security."""
WORKLOADS: tuple[type[Workload[Any]], ...] = (
    Transactions,
    Overhead,
    Visible,
    Stall,
    Bulks,
    Requests,
    Neighbours,
    Loop,
    Pipeline,
    SmallBatches,
    Starting,
    Growth,
    Console,
    *SECURITY,
    *CLUSTER,
)
