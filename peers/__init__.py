"""Tests beside other brokers and clients: Apache Kafka's own, in Java, and franz-go.

Not part of `make test`: they need a JDK with Maven, a Go toolchain and the registries of both. Tests whose
tools are missing are skipped, with the reason.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1] / "tests"))
