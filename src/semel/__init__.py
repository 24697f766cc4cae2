"""Semel: a transactional message log that speaks Kafka's protocol.

``semel.embedded()`` starts a broker inside this process; ``semel serve`` starts one as a service.
``semel.client`` writes to and reads from any broker. Importing ``semel`` alone loads none of them.
Start reading at ARCHITECTURE.md, or at ``semel.core.state`` for the rules.
"""

from semel.embedded import Embedded, EmbeddedError, embedded

__all__ = ["Embedded", "EmbeddedError", "__version__", "embedded"]

__version__ = "0.1.0"
