"""The operations of IncrementalAlterConfigs: set, delete, append to a list, subtract from it.

All resources that have configs use these operations. Each resource decides which names and values are valid.
"""

from typing import Final

from semel.core.topic_configs import words

SET: Final = 0
DELETE: Final = 1
APPEND: Final = 2
SUBTRACT: Final = 3
"""The operations, by their numbers on the wire."""

ConfigOperation = tuple[str, int, str | None]
"""A config's name, an operation, and its value."""


class InvalidOperation(ValueError):
    """An operation is unknown or impossible for a config; the message says why."""


def operate(configs: dict[str, str], operation: ConfigOperation, default: str | None) -> None:
    """Apply an operation to configs; raise `InvalidOperation` if it is unknown or impossible for the config.

    `default` is the value of a list config that is not set; None for a config that is not a list.
    """
    name, verb, value = operation
    if verb == DELETE:
        configs.pop(name, None)
        return
    if verb not in (SET, APPEND, SUBTRACT):
        raise InvalidOperation(f"Unknown operation {verb} on {name}")
    if value is None:
        raise InvalidOperation(f"{name} needs a value")
    if verb != SET:
        value = _listed(configs, name, verb, value, default)
    configs[name] = value


def _listed(configs: dict[str, str], name: str, verb: int, value: str, default: str | None) -> str:
    if default is None:
        how = "APPEND to" if verb == APPEND else "SUBTRACT from"
        raise InvalidOperation(f"Can't {how} key {name} because its type is not LIST")
    given, present = words(value), words(configs.get(name, default))
    if verb == APPEND:
        present += tuple(word for word in dict.fromkeys(given) if word not in present)
    else:
        present = tuple(word for word in present if word not in given)
    return ",".join(present)
