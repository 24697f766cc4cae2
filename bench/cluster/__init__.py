"""Many brokers over PostgreSQL and an object store, beside Apache Kafka and the embedded broker.

`subjects` starts the clusters, and `watching` has clients that run through faults. `transactions`, `cost`,
`faults`, `volume`, `slow_store` and `snapshots` are one workload each, and `goals` has the targets.

`tests/support` starts PostgreSQL, S3 and the brokers, as in tests.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests"))
