"""What security costs: ACLs beside none, and TLS beside plaintext and beside Apache Kafka's TLS.

`subjects` starts the brokers, and `bindings` has the ACLs. `acls` and `tls` are one workload each, and
`goals` has the targets.

`tests/support` makes the certificate, as in tests.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests"))
