"""Semel: a transactional message log that speaks Kafka's protocol.

``semel.embedded()`` starts a broker inside this process; ``semel serve`` starts one as a service.
Start reading at ARCHITECTURE.md, or at ``semel.core.state`` for the rules.
"""

__version__ = "0.1.0"
