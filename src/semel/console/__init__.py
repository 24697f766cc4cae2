"""A web console for Semel and every other broker that speaks Kafka's protocol.

    semel console --bootstrap 127.0.0.1:9092 --listen 127.0.0.1:8080

Pages are rendered on the server, and every address has a JSON twin (`/topics` and `/topics.json`). All that a
page shows is read through `semel.client`, as the principal of the person who looks, so the ACLs of the broker
decide. The console knows nothing of a broker's inside.

Read on in: `settings` for the bounds, `app` for the route table, `access` and `login` for who may come in,
`workers` for the threads on which blocking clients run, `observing` for what is sampled in the background,
`rendering` and `events` for what goes out, and `pages` for what it shows.
"""

from semel.console.app import create_app
from semel.console.settings import ConsoleSettings

__all__ = ["ConsoleSettings", "create_app"]
