"""Whose a ledger is: names of topics, cursors and schemas in its tags, and what they are called in settings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats.ledger_metadata import (
    COMPONENT_BUCKET,
    COMPONENT_COMPACTED_LEDGER,
    COMPONENT_MANAGED_LEDGER,
    COMPONENT_SCHEMA,
)
from pulsar_lifecycle.model import PARTITION_SUFFIX, Namespace, Topic

_PARTITION = re.compile(rf"{PARTITION_SUFFIX}\Z")


def holders(namespace: str, topic: str) -> tuple[str, str, str, str]:
    """Everything a legal hold may name to hold this topic: tenant, namespace, topic, partitioned parent."""
    return namespace.partition("/")[0], namespace, topic, parent_of(topic)


def topic_of(kind: str, owner: str) -> Topic | None:
    """The topic of a reference's owner (``tables.REFERENCES``); None for a name that Pulsar gives no topic or schema.

    A schema's topic is the partitioned parent.
    """
    namespace, _, name = owner.rpartition("/")
    try:
        return Topic.from_managed_ledger(f"{namespace}/persistent/{name}" if kind == "R5" else owner)
    except CorruptFormat:
        return None


def owners_to_keep(lost: Iterable[tuple[str, str]]) -> tuple[frozenset[str], frozenset[str]]:
    """``Context.kept_topics``, and namespaces to keep, where references of (kind, owner) cannot be known.

    What a strangely named owner referred to may be anything in its namespace.
    """
    topics = {(kind, owner): topic_of(kind, owner) for kind, owner in lost}
    strange = {_namespace_in(kind, owner) for (kind, owner), topic in topics.items() if not topic}
    return frozenset(str(topic) for topic in topics.values() if topic), frozenset(strange)


def has_a_name(kind: str, owner: str) -> bool:
    """Whether :func:`owners_to_keep` can keep whatever a reference's owner refers to."""
    if topic_of(kind, owner):
        return True
    try:
        return bool(Namespace.parse(_namespace_in(kind, owner)))
    except CorruptFormat:
        return False


def _namespace_in(kind: str, owner: str) -> str:
    return owner.rpartition("/")[0] if kind == "R5" else owner.partition("/persistent/")[0]


def names_in_tags(ledgers: pa.RecordBatch | pa.Table) -> set[str]:
    """Every topic that the tags of ledgers (:data:`OWNER_TAGS`) name."""
    tags = set(zip(*(ledgers.column(tag).to_pylist() for tag in OWNER_TAGS), strict=True))
    return {owner_of(*owned)[1] for owned in tags} - {""}


def schema_owner(name: str) -> str:
    """As whose a topic's or a namespace's schemas go: a partition's as its parent's, V1 names without the cluster.

    ``name`` is a full topic name or a namespace; anything else comes back as it is.
    """
    try:
        if "://" not in name:
            return str(_as_of_v2(Namespace.parse(name)))
        topic = Topic.parse(name).partitioned_parent
    except CorruptFormat:
        return name
    namespace = _as_of_v2(topic.namespace)
    return str(topic if namespace is topic.namespace else replace(topic, namespace=namespace))


def _as_of_v2(namespace: Namespace) -> Namespace:
    return replace(namespace, cluster=None) if namespace.cluster else namespace


def full_names(topics: Iterable[str]) -> frozenset[str]:
    """Names as somebody wrote them, and the full names that TopicName.get makes of short ones: ``T/NS/x`` and ``x``."""
    return frozenset(name for topic in topics for name in (topic, _full_name(topic)))


def _full_name(name: str) -> str:
    if "://" in name:
        return name
    return f"persistent://{name}" if name.count("/") == 2 else f"persistent://public/default/{name}"


def parent_of(topic: str) -> str:
    """The partitioned topic that a full topic name is a partition of; the name itself if it is none."""
    return _PARTITION.sub("", topic)


OWNER_TAGS = ("component", "managed_ledger", "schema_id", "compacted_topic", "bucket_topic")
"""The columns that :func:`owner_of` takes, in its order."""


def written_topics(ledgers: pa.RecordBatch | pa.Table) -> set[str]:
    """``Context.open_topics`` of unreferenced ledgers that are not closed: their owners, and as whose schemas go."""
    owners = names_in_tags(ledgers)
    return owners | set(map(schema_owner, owners))


def owner_in(row: Mapping[str, Any]) -> tuple[str, str]:
    """:func:`owner_of` of a row of ``tables.BOOKKEEPER_LEDGERS``."""
    return owner_of(*(row[tag] for tag in OWNER_TAGS))


@lru_cache(maxsize=4096)
def owner_of(
    component: str | None, managed_ledger: str | None, schema_id: str | None, compacted: str | None, bucket: str | None
) -> tuple[str, str]:
    """(namespace, full topic name) of the ledger with these tags; empty strings where they name none.

    A schema's topic is the partitioned parent. A name that does not read back as itself, or that no z-node can have,
    counts as none: it would send a later check to another topic.
    """
    try:
        if component == COMPONENT_MANAGED_LEDGER and managed_ledger:
            topic = Topic.from_managed_ledger(managed_ledger)
        elif component == COMPONENT_COMPACTED_LEDGER and compacted:
            topic = Topic.parse(compacted)
        elif component == COMPONENT_BUCKET and bucket:
            topic = Topic.parse(bucket)
        elif component == COMPONENT_SCHEMA and schema_id:
            namespace, _, name = schema_id.rpartition("/")
            topic = Topic.from_managed_ledger(f"{namespace}/persistent/{name}")
        else:
            return "", ""
        unclear = topic.domain != "persistent" or topic.local in (".", "..") or Topic.parse(str(topic)) != topic
    except CorruptFormat:
        return "", ""
    return ("", "") if unclear else (str(topic.namespace), str(topic))
