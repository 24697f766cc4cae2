"""Every message that Semel knows, one class per request and response, and the table of the APIs.

The declarations are grouped by purpose: `produce`, `fetch`, `metadata`, `offsets`, `groups`, `transactions`,
`topics`, `placement`, `configs`, `security`, `quotas`, `shares`, and `semel` for Semel's own APIs. This
package has all of them by name. `apis` has the table.
"""

# ruff: noqa: F403 - every class of each module

from semel.wire.messages.apis import *
from semel.wire.messages.configs import *
from semel.wire.messages.fetch import *
from semel.wire.messages.groups import *
from semel.wire.messages.metadata import *
from semel.wire.messages.offsets import *
from semel.wire.messages.placement import *
from semel.wire.messages.produce import *
from semel.wire.messages.quotas import *
from semel.wire.messages.security import *
from semel.wire.messages.semel import *
from semel.wire.messages.shares import *
from semel.wire.messages.topics import *
from semel.wire.messages.transactions import *
