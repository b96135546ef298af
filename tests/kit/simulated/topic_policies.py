"""Policies of topics in a simulated cluster, in ``__change_events`` of their namespace, as brokers store them."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Mapping
from typing import Any

import fastavro

from pulsar_lifecycle._pb import pulsar_message_pb2 as pb
from pulsar_lifecycle._pb import pulsar_schema_pb2
from pulsar_lifecycle.formats import schema
from pulsar_lifecycle.formats.topic_policies import CHANGE_EVENTS, GLOBAL_PREFIX
from pulsar_lifecycle.model import Topic
from tests.kit.simulated.cluster import SimulatedCluster, data_tags, schema_tags

_INACTIVE = {
    "type": "record",
    "name": "InactiveTopicPolicies",
    "fields": [{"name": "deleteWhileInactive", "type": "boolean"}],
}
_RETENTION = {
    "type": "record",
    "name": "RetentionPolicies",
    "fields": [{"name": "retentionTimeInMinutes", "type": "int"}, {"name": "retentionSizeInMB", "type": "long"}],
}
_POLICIES = {
    "type": "record",
    "name": "TopicPolicies",
    "fields": [
        {"name": "isGlobal", "type": ["null", "boolean"]},
        {"name": "inactiveTopicPolicies", "type": ["null", _INACTIVE]},
        {"name": "retentionPolicies", "type": ["null", _RETENTION]},
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


_PARSED: Any = fastavro.parse_schema(EVENT)


def set_topic_policies(
    cluster: SimulatedCluster, topic: Topic, policies: dict[str, Any], everywhere: dict[str, Any] | None = None
) -> None:
    """The namespace of ``topic`` has ``__change_events``, and in it these policies alone, and global ones."""
    events = Topic(topic.namespace, CHANGE_EVENTS)
    ledger = cluster.ledger(schema_tags(events.schema_id), entries=[schema_entry(events)])
    cluster.schema(events.schema_id, [ledger])
    entries = [event(topic, policies)]
    if everywhere is not None:
        entries.append(event(topic, everywhere, everywhere=True))
    cluster.topic(events, [cluster.ledger(data_tags(events), entries=entries)])


def schema_entry(events: Topic) -> bytes:
    """The entry that has the schema of a topic ``__change_events``."""
    info = pulsar_schema_pb2.SchemaInfo(
        schema_id=events.schema_id,
        user="u",
        type=pulsar_schema_pb2.SchemaInfo.AVRO,
        schema=json.dumps(EVENT).encode(),
        timestamp=1,
        deleted=False,
    )
    return schema.encode_entry(schema.SchemaEntry(info.SerializeToString(), ()))


def event(topic: Topic, policies: Mapping[str, Any] | None, *, everywhere: bool = False) -> bytes:
    """An entry that says the policies of a topic, its global ones if ``everywhere``; None deletes them."""
    key = f"{GLOBAL_PREFIX}{topic}" if everywhere else str(topic)
    metadata = pb.MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, partition_key=key)
    value = io.BytesIO()
    if policies is None:
        metadata.null_value = True
    else:
        where = topic.namespace
        said = {"domain": "persistent", "tenant": where.tenant, "namespace": where.name, "topic": topic.local}
        policies = {"isGlobal": everywhere, **policies}
        update = {"eventType": "TOPIC_POLICY", "actionType": "UPDATE"}
        event = {**update, "topicPoliciesEvent": {**said, "policies": policies}}
        fastavro.schemaless_writer(value, _PARSED, event)
        metadata.schema_version = struct.pack(">q", 0)
    raw = metadata.SerializeToString()
    return struct.pack(">i", len(raw)) + raw + value.getvalue()
