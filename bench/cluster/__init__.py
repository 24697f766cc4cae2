"""Many brokers over PostgreSQL and an object store, beside Apache Kafka and the embedded broker.

`subjects` starts the clusters, `watching` has clients that live through faults. `transactions`, `cost`,
`faults`, `volume`, `slow_store` and `snapshots` are one workload each, and `goals` says
what should have come out.

PostgreSQL, S3 and the brokers are started as in tests, by `tests/support`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests"))
