"""The function workers' metadata topic in a simulated cluster, as workers and brokers store it."""

from __future__ import annotations

import struct

from pulsar_lifecycle._pb import pulsar_functions_pb2, pulsar_message_pb2
from pulsar_lifecycle.model import Topic
from tests.kit.simulated.cluster import SimulatedCluster, data_tags

METADATA = Topic.parse("persistent://public/functions/metadata")


def metadata(subscription: str | None, name: str = "f") -> pulsar_functions_pb2.FunctionMetaData:
    """What a function of this name is; it subscribes by its own name, or as ``subscription``."""
    said = pulsar_functions_pb2.FunctionMetaData(version=1)
    details = said.functionDetails
    details.tenant, details.namespace, details.name = "t", "n", name
    if subscription is not None:
        details.source.subscriptionName = subscription
    return said


def request(subscription: str | None) -> bytes:
    """The value of a message that says so."""
    return pulsar_functions_pb2.ServiceRequest(functionMetaData=metadata(subscription)).SerializeToString()


def entry(value: bytes, key: str | None = None) -> bytes:
    """A message of its own, as its ledger has it."""
    said = pulsar_message_pb2.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1)
    if key is not None:
        said.partition_key = key
    raw = said.SerializeToString()
    return struct.pack(">i", len(raw)) + raw + value


def set_functions(cluster: SimulatedCluster, *values: bytes, topic: Topic = METADATA) -> None:
    """The topic is there, with a message of each of these values."""
    cluster.topic(topic, [cluster.ledger(data_tags(topic), entries=[entry(value) for value in values])])


def functions_subscribe(cluster: SimulatedCluster, *subscriptions: str) -> None:
    """Functions subscribe by these names."""
    set_functions(cluster, *map(request, subscriptions))
