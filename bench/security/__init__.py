"""What security costs: ACLs beside none, and TLS beside plaintext and beside Apache Kafka's TLS.

`subjects` starts the brokers, `bindings` has the ACLs. `acls` and `tls` are one workload each, and `goals`
says what should have come out.

The certificate is made as in tests, by `tests/support`.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "tests"))
