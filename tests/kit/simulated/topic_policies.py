"""Policies of topics in a simulated cluster, in ``__change_events`` of their namespace, as brokers store them."""

from __future__ import annotations

import io
import json
import struct
from typing import Any

import fastavro

from pulsar_lifecycle._pb import pulsar_message_pb2 as pb
from pulsar_lifecycle._pb import pulsar_schema_pb2
from pulsar_lifecycle.formats import schema
from pulsar_lifecycle.formats.topic_policies import CHANGE_EVENTS, GLOBAL_PREFIX
from pulsar_lifecycle.model import Position, Topic
from tests.kit.simulated.cluster import SimulatedCluster, data_tags, schema_tags

_INACTIVE = {
    "type": "record",
    "name": "InactiveTopicPolicies",
    "fields": [{"name": "deleteWhileInactive", "type": "boolean"}],
}
_POLICIES = {
    "type": "record",
    "name": "TopicPolicies",
    "fields": [
        {"name": "isGlobal", "type": ["null", "boolean"]},
        {"name": "inactiveTopicPolicies", "type": ["null", _INACTIVE]},
        {"name": "messageTTLInSeconds", "type": ["null", "int"]},
        {"name": "deduplicationEnabled", "type": ["null", "boolean"]},
        {"name": "compactionThreshold", "type": ["null", "long"]},
    ],
}
EVENT = {
    "type": "record",
    "name": "PulsarEvent",
    "fields": [
        {"name": "eventType", "type": ["null", {"type": "enum", "name": "EventType", "symbols": ["TOPIC_POLICY"]}]},
        {"name": "actionType", "type": ["null", {"type": "enum", "name": "ActionType", "symbols": ["UPDATE"]}]},
        {
            "name": "topicPoliciesEvent",
            "type": [
                "null",
                {
                    "type": "record",
                    "name": "TopicPoliciesEvent",
                    "fields": [
                        *({"name": n, "type": ["null", "string"]} for n in ("domain", "tenant", "namespace", "topic")),
                        {"name": "policies", "type": ["null", _POLICIES]},
                    ],
                },
            ],
        },
    ],
}
"""What a broker's events are, as far as a test needs them."""


def set_topic_policies(
    cluster: SimulatedCluster, topic: Topic, policies: dict[str, Any], everywhere: dict[str, Any] | None = None
) -> None:
    """The namespace of ``topic`` has ``__change_events``, and in it these policies alone, and global ones."""
    namespace = topic.namespace
    events = Topic(namespace, CHANGE_EVENTS)
    info = pulsar_schema_pb2.SchemaInfo(
        schema_id=events.schema_id,
        user="u",
        type=pulsar_schema_pb2.SchemaInfo.AVRO,
        schema=json.dumps(EVENT).encode(),
        timestamp=1,
        deleted=False,
    )
    stored = schema.encode_entry(schema.SchemaEntry(info.SerializeToString(), ()))
    ledger = cluster.ledger(schema_tags(events.schema_id), entries=[stored])
    entry = schema.IndexEntry(0, Position(ledger, 0), b"h")
    cluster.put(f"/schemas/{events.schema_id}", schema.encode_locator(schema.SchemaLocator(entry, (entry,))))
    entries = [_message(topic, str(topic), {"isGlobal": False, **policies})]
    if everywhere is not None:
        entries.append(_message(topic, f"{GLOBAL_PREFIX}{topic}", {"isGlobal": True, **everywhere}))
    cluster.topic(events, [cluster.ledger(data_tags(events), entries=entries)])


def _message(topic: Topic, key: str, policies: dict[str, Any]) -> bytes:
    """An entry that says the policies of a topic."""
    where = topic.namespace
    said = {"domain": "persistent", "tenant": where.tenant, "namespace": where.name, "topic": topic.local}
    event = {
        "eventType": "TOPIC_POLICY",
        "actionType": "UPDATE",
        "topicPoliciesEvent": {**said, "policies": policies},
    }
    value = io.BytesIO()
    fastavro.schemaless_writer(value, fastavro.parse_schema(EVENT), event)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, partition_key=key)
    metadata.schema_version = struct.pack(">q", 0)
    raw = metadata.SerializeToString()
    return struct.pack(">i", len(raw)) + raw + value.getvalue()
