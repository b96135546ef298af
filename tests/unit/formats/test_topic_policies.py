"""Policies of topics, out of bytes that a real broker wrote."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import compacted_entry, message, schema
from pulsar_lifecycle.formats.topic_policies import Replayed, WriterSchema, is_delete
from pulsar_lifecycle.model import Namespace, Position, Topic
from tests.golden.files import GOLDEN, entries

FOLDER = GOLDEN / "topic_policies"
EXPECTED: dict[str, dict[str, dict[str, Any]]] = json.loads((FOLDER / "expected.json").read_text())
NAMESPACE = Namespace.parse("golden/policies")
FIELDS = {"offloadPolicies": "offloadPolicies", "retention": "retentionPolicies", "messageTTL": "messageTTLInSeconds"}


def writer() -> WriterSchema:
    entry = schema.decode_entry((FOLDER / "schema.first_entry.bin").read_bytes())
    return WriterSchema(schema.decode_info(entry.schema_data).schema)


def replayed(payloads: list[bytes]) -> Replayed:
    found, events = Replayed(NAMESPACE), writer()
    for data in payloads:
        for one in message.decode(data).messages:
            if is_delete(one):
                found.delete(one.key)
            else:
                assert one.payload
                found.apply(events.decode(one.payload))
    return found


def check(found: Replayed) -> None:
    assert {str(topic) for topic in found.topics} == set(EXPECTED)
    for name, own in found.topics.items():
        for kind, policies in (("local", own.local), ("global", own.everywhere)):
            for rest, field in FIELDS.items():
                said: Any = EXPECTED[str(name)][kind][rest]
                here = (policies or {}).get(field)
                if isinstance(said, dict):
                    said = {k: v for k, v in said.items() if not k.endswith("Driver") or isinstance(v, str)}
                    here = {k: v for k, v in (here or {}).items() if v is not None}
                assert (name, kind, rest, here) == (name, kind, rest, said)


def test_all_events_come_to_what_rest_said() -> None:
    check(replayed(entries(FOLDER / "events.entries.bin")))


def test_the_compacted_view_and_what_lies_behind_it_come_to_the_same() -> None:
    compacted = [compacted_entry.decode(data) for data in entries(FOLDER / "compacted.entries.bin")]
    events = entries(FOLDER / "events.entries.bin")
    for position, data in compacted:
        assert data == events[position.entry_id]
    assert [position for position, _ in compacted] == [Position(6, 1), Position(6, 2), Position(6, 4)]
    check(replayed([data for _, data in compacted] + events[7:]))


def test_a_local_policy_counts_before_a_global_one() -> None:
    own = replayed(entries(FOLDER / "events.entries.bin")).topics[Topic.parse("persistent://golden/policies/a b+é")]
    assert own.local
    assert own.everywhere
    assert own.first("retentionPolicies") == {"retentionTimeInMinutes": 7, "retentionSizeInMB": 8}
    assert own.everywhere["retentionPolicies"] == {"retentionTimeInMinutes": 70, "retentionSizeInMB": 80}
    assert own.first("maxMessageSize") is None
    assert "aws" not in repr(own)


def event(action: str, minutes: int | None, *, everywhere: bool | None = None, topic: str = "t") -> dict[str, Any]:
    policies = {"isGlobal": everywhere, "minutes": minutes} if minutes is not None else None
    said = {"domain": "persistent", "tenant": "golden", "namespace": "policies", "topic": topic, "policies": policies}
    return {"eventType": "TOPIC_POLICY", "actionType": action, "topicPoliciesEvent": said}


T = Topic.parse("persistent://golden/policies/t")


def test_events_of_older_brokers() -> None:
    """Inserts, deletes by an event, global policies without the prefix, in the order they were written."""
    found = Replayed(NAMESPACE)
    for one in (event("INSERT", 1), event("INSERT", 2), event("UPDATE", 3, everywhere=True), event("NONE", None)):
        found.apply(one)
    own = found.topics[T]
    assert (own.local, own.everywhere) == (
        {"isGlobal": None, "minutes": 1},
        {"isGlobal": True, "minutes": 3},
    )
    found.apply(event("DELETE", None))
    assert found.topics[T].local is None
    found.delete(f"__G__{T}")
    assert found.topics == {}
    found.apply({"eventType": "SOMETHING", "actionType": "UPDATE", "topicPoliciesEvent": None})
    assert found.topics == {}


def test_a_partitions_policies_are_its_partitioned_topics() -> None:
    found = Replayed(NAMESPACE)
    found.apply(event("UPDATE", 1, topic="t-partition-3"))
    assert set(found.topics) == {T}


@pytest.mark.parametrize(
    "one",
    [
        event("UPDATE", None),
        event("REPLACE", 1),
        event("UPDATE", 1) | {"topicPoliciesEvent": event("UPDATE", 1)["topicPoliciesEvent"] | {"tenant": "other"}},
    ],
)
def test_an_event_that_cannot_be_meant_is_refused(one: dict[str, Any]) -> None:
    with pytest.raises(CorruptFormat):
        Replayed(NAMESPACE).apply(one)
    for key in (None, "t", "persistent://other/policies/t"):
        with pytest.raises(CorruptFormat):
            Replayed(NAMESPACE).delete(key)


def test_every_cut_and_every_byte_more_is_noticed() -> None:
    (first, *_) = message.decode(entries(FOLDER / "events.entries.bin")[0]).messages
    assert first.payload
    for end in range(len(first.payload)):
        with pytest.raises(CorruptFormat):
            writer().decode(first.payload[:end])
    with pytest.raises(CorruptFormat):
        writer().decode(first.payload + b"\0")
    whole = entries(FOLDER / "compacted.entries.bin")[0]
    for end in range(len(whole)):
        with pytest.raises(CorruptFormat):
            compacted_entry.decode(whole[:end])
    with pytest.raises(CorruptFormat):
        compacted_entry.decode(whole + b"\0")


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'"string"', b'{"type": "record"}', b"\xff"])
def test_what_is_no_schema_is_refused(data: bytes) -> None:
    first = message.decode(entries(FOLDER / "events.entries.bin")[0]).messages[0]
    assert first.payload
    with pytest.raises(CorruptFormat):
        WriterSchema(data).decode(first.payload)
