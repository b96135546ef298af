"""Policies of single topics, as the messages of a namespace's ``__change_events`` say them.

Belongs here: one event, and what a row of events comes to. Not here: which entries
there are and where their schemas come from (``topics/system_topics/change_events.py``), what policies mean.
Upstream: ``SystemTopicBasedTopicPoliciesService.refreshTopicPoliciesCache``, ``TopicPoliciesService``, ``PulsarEvent``,
pulsar-broker and pulsar-common 4.0.7.

An event is Avro in its writer's schema, which is the JSON of one version of the topic's schema.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import fastavro
from fastavro.schema import SchemaParseException

from pulsar_lifecycle.errors import CorruptFormat, UnsupportedFormat
from pulsar_lifecycle.formats.message import Message
from pulsar_lifecycle.model import Namespace, Topic

CHANGE_EVENTS = "__change_events"
"""SystemTopicNames.NAMESPACE_EVENTS_LOCAL_NAME."""
GLOBAL_PREFIX = "__G__"
"""TopicPoliciesService.GLOBAL_POLICIES_MSG_KEY_PREFIX."""

WHAT = "topic policy event"
_TOPIC_POLICY = "TOPIC_POLICY"
_read = cast(Any, fastavro).schemaless_reader  # ships without complete types

Policies = Mapping[str, Any]
"""The fields of TopicPolicies by their Java names, None where one is not set; enums are texts, as in REST's JSON."""


@dataclass(frozen=True, slots=True)
class TopicPolicies:
    """What a topic has of its own: ``local``, and what it shares with other clusters (``everywhere``); None: nothing.

    Contains what an operator put into them, credentials too: do not print it.
    """

    local: Policies | None = field(default=None, repr=False)
    everywhere: Policies | None = field(default=None, repr=False)

    def first(self, name: str) -> Any:
        """One policy as brokers take it: the local one if that is set, else the global one; None if neither is."""
        for policies in (self.local, self.everywhere):
            if policies is not None and (found := policies.get(name)) is not None:
                return found
        return None


class Replayed:
    """The policies of a namespace's topics after some events, as a broker's cache has them. Feed it in their order."""

    def __init__(self, namespace: Namespace) -> None:
        self._namespace = namespace
        self._local: dict[Topic, Policies] = {}
        self._everywhere: dict[Topic, Policies] = {}

    @property
    def topics(self) -> dict[Topic, TopicPolicies]:
        """By topic; of a partitioned one by its name without partition, which all its partitions share."""
        names = dict.fromkeys((*self._local, *self._everywhere))
        return {name: TopicPolicies(self._local.get(name), self._everywhere.get(name)) for name in names}

    def delete(self, key: str | None) -> None:
        """A message without value. Raises CorruptFormat for a key that names no topic of the namespace."""
        if key is None:
            raise CorruptFormat(WHAT, 0, "a key of what it deletes")
        name = key.removeprefix(GLOBAL_PREFIX)
        (self._everywhere if key.startswith(GLOBAL_PREFIX) else self._local).pop(self._topic(name), None)

    def apply(self, event: Mapping[str, Any]) -> None:
        """A message with a value, as :meth:`Writer.decode` gives it. Raises CorruptFormat."""
        if event["eventType"] != _TOPIC_POLICY:
            return
        said = event["topicPoliciesEvent"]
        topic = self._topic(f"{said['domain']}://{said['tenant']}/{said['namespace']}/{said['topic']}")
        policies: Policies | None = said["policies"]
        action = event["actionType"]
        if action == "DELETE":  # of brokers before Pulsar 2.9: whatever it says, of the local ones
            self._local.pop(topic, None)
        elif action in ("UPDATE", "INSERT"):
            if policies is None:
                raise CorruptFormat(WHAT, 0, f"policies in an event that says {action}")
            kind = self._everywhere if policies.get("isGlobal") else self._local
            if action == "UPDATE" or topic not in kind:
                kind[topic] = policies
        elif action != "NONE":
            raise UnsupportedFormat(WHAT, 0, f"an actionType of Pulsar 4.0, found {action!r}")

    def _topic(self, name: str) -> Topic:
        topic = Topic.parse(name).partitioned_parent
        if topic.namespace != self._namespace:
            raise CorruptFormat(WHAT, 0, f"a topic of {self._namespace}, found {name}")
        return topic


class WriterSchema:
    """A schema that events were written with."""

    def __init__(self, schema: bytes) -> None:
        """``schema``: of SchemaInfo. Raises UnsupportedFormat for what is no Avro record of a PulsarEvent."""
        try:
            parsed = fastavro.parse_schema(json.loads(schema))
        except (ValueError, SchemaParseException, KeyError, TypeError, RecursionError) as error:
            raise UnsupportedFormat(WHAT, 0, f"an Avro schema: {type(error).__name__}: {error}") from error
        self._schema = parsed

    def decode(self, payload: bytes) -> Mapping[str, Any]:
        """An event; raises CorruptFormat unless it has all that :class:`Replayed` asks for, and nothing behind it."""
        stream = io.BytesIO(payload)
        try:
            found = _read(stream, self._schema, None)
            _ = found["eventType"], found["actionType"]
            if found["eventType"] == _TOPIC_POLICY:
                said = found["topicPoliciesEvent"]
                _ = [said[name] + "" for name in ("domain", "tenant", "namespace", "topic")]
                if said["policies"] is not None and not isinstance(said["policies"].get("isGlobal"), bool | None):
                    raise TypeError("isGlobal")
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, EOFError, OverflowError) as error:
            raise CorruptFormat(WHAT, stream.tell(), f"a PulsarEvent: {type(error).__name__}: {error}") from error
        if stream.tell() != len(payload):
            raise CorruptFormat(WHAT, stream.tell(), f"the end, found {len(payload) - stream.tell()} bytes more")
        return found


def is_delete(message: Message) -> bool:
    """Whether a message deletes what its key names: brokers send no value; older clients sent an empty one."""
    return not message.payload
