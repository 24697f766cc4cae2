"""Limits of connections that are changed while clients are connected (KIP-402, KIP-612)."""

from collections.abc import Callable
from typing import Any

from semel.core.dynamic_configs import BROKER
from semel.wire.messages import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    IncrementalAlterConfigsAlterableConfig,
    IncrementalAlterConfigsAlterConfigsResource,
    IncrementalAlterConfigsRequest,
    MetadataRequest,
)


def change(wire: Any, name: str, value: str | None) -> None:
    config = IncrementalAlterConfigsAlterableConfig(name=name, config_operation=value is None, value=value)
    resource = IncrementalAlterConfigsAlterConfigsResource(
        resource_type=BROKER, resource_name="", configs=[config]
    )
    (answer,) = wire.ask(IncrementalAlterConfigsRequest(resources=[resource]), 1).responses
    assert answer.error_code == 0, answer.error_message


def is_served(served: Any) -> bool:
    """Whether a new connection is served."""
    with served.connect() as wire:
        wire.send(MetadataRequest(topics=[]), 9)
        return wire.receive_frame() is not None


def test_the_number_of_connections_is_limited_at_once(serve_broker: Callable[..., Any]) -> None:
    with serve_broker() as served, served.connect() as wire:
        for name, value in (
            ("max.connections", "1"),
            ("max.connections.per.ip", "1"),
            ("max.connections.per.ip.overrides", "127.0.0.1:1"),
        ):
            assert is_served(served)
            change(wire, name, value)
            assert not is_served(served)
            change(wire, name, None)
        assert is_served(served)


def test_the_listeners_are_shown_as_they_are_bound(serve_broker: Callable[..., Any]) -> None:
    with serve_broker() as served, served.connect() as wire:
        resource = DescribeConfigsResource(
            resource_type=BROKER, resource_name="0", configuration_keys=["listeners", "advertised.listeners"]
        )
        (result,) = wire.ask(DescribeConfigsRequest(resources=[resource]), 4).results
        ((name, port),) = served.server.ports.items()
        assert {each.value for each in result.configs} == {f"{name}://127.0.0.1:{port}"}
        assert all(each.read_only for each in result.configs)
