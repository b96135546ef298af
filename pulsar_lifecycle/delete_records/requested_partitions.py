"""Which partitions a request is about: a topic's name stands for all of its partitions."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pulsar_lifecycle.delete_records.cut_rules import Refusal
from pulsar_lifecycle.delete_records.offset_file import RequestedOffset
from pulsar_lifecycle.delete_records.request import Offset, TopicPartition
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, RefusedBy, UsageError
from pulsar_lifecycle.formats.partitioned_topic import partition_count
from pulsar_lifecycle.model import (
    MANAGED_LEDGERS_ROOT,
    PARTITIONED_ROOT,
    MessagePosition,
    Topic,
    decode_name,
    encode_name,
)
from pulsar_lifecycle.ports import MetadataStore, Node, Unread
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError

SHOWN = 5
"""Partitions that a sentence names."""
READ_EACH = 1000
"""Of a topic with more partitions the namespace is listed: metadata may name millions that nobody has used."""

_Count = int | None | LifecycleError
"""How many partitions a topic has; None for what is no partitioned topic; or why that is not known."""


@dataclass(frozen=True, slots=True)
class RequestedPartitions:
    """The offset of each partition of a request, in its order.

    ``unread``: topics among them whose partitions are not known, each with why. ``others``: partitions that have a
    topic's name and are not asked for: its metadata does not name them, or is gone, as where it was deleted and made
    again with fewer. They may be topics of their own: whoever means them names them. So is a topic that exists beside
    partitions of its name, which stands for those.
    """

    offsets: Mapping[TopicPartition, Offset]
    unread: Mapping[TopicPartition, Refusal]
    others: Sequence[TopicPartition]


def partitions_of(
    store: MetadataStore, configuration: MetadataStore, asked: Iterable[RequestedOffset]
) -> dict[TopicPartition, Offset]:
    """The offset of each partition, in the order of the request.

    A partition that nobody has used yet has no z-node and is left out, unless it was named. Raises UsageError for one
    that is asked for twice, and for a position where it would be that of several partitions; Refused and CorruptFormat
    for metadata that cannot be read.
    """
    entries = list(asked)
    counts = _counts(configuration, [one.name for one in entries])
    if unread := next((count for count in counts if isinstance(count, LifecycleError)), None):
        raise unread
    return _offsets(store, entries, counts)


def requested_partitions(
    store: MetadataStore, configuration: MetadataStore, asked: Iterable[RequestedOffset]
) -> RequestedPartitions:
    """:func:`partitions_of`, where one topic whose metadata cannot be read stops no other.

    In a namespace that cannot be listed nobody looks for other partitions. Raises UsageError.
    """
    entries = list(asked)
    names = [one.name for one in entries]
    counts = dict(zip(names, _counts(configuration, names), strict=True))
    unread = {name: _unread(count) for name, count in counts.items() if isinstance(count, LifecycleError)}
    offsets = _offsets(store, entries, [counts[name] for name in names])
    known = {name: count for name, count in counts.items() if not isinstance(count, LifecycleError)}
    return RequestedPartitions(offsets, unread, _others(store, known, offsets))


def _unread(error: LifecycleError) -> Refusal:
    text = f"its partitions are not known: {error}; ask for each by its own name"
    return Refusal(RecordsError.UNREAD, Why(Code.TOPIC_UNREAD, text))


def _offsets(
    store: MetadataStore, entries: Sequence[RequestedOffset], counts: Sequence[_Count]
) -> dict[TopicPartition, Offset]:
    found: dict[TopicPartition, Offset] = {}
    for one, count in zip(entries, counts, strict=True):
        names = _used(store, one.name, count) if isinstance(count, int) else [one.name]
        if len(names) > 1 and isinstance(one.offset, MessagePosition):
            raise UsageError(
                f"{one.where}: {one.name} has {count} partitions, and {one.offset} is a position of one: name it"
            )
        for name in names:
            if name in found:
                raise UsageError(f"{one.where}: {name} is asked for already")
            found[name] = one.offset
    return found


def _others(
    store: MetadataStore, counts: Mapping[Topic, int | None], asked: Collection[TopicPartition]
) -> list[TopicPartition]:
    whole = {name: count or 0 for name, count in counts.items() if name.partition is None}
    folders = sorted({(name.namespace, name.domain) for name in whole}, key=str)
    listings = store.children([f"{MANAGED_LEDGERS_ROOT}/{namespace}/{domain}" for namespace, domain in folders])
    found: list[TopicPartition] = []
    for (namespace, domain), listing in zip(folders, listings, strict=True):
        for name in listing.names if listing and not isinstance(listing, Unread) else ():
            with contextlib.suppress(CorruptFormat):  # no topic that a client can name
                topic = Topic(namespace, decode_name(name), domain)
                number = topic.partition
                if number is None:
                    beside = counts.get(topic) is not None
                else:
                    beside = number >= whole.get(topic.partitioned_parent, number + 1)
                if beside:
                    found.append(topic)
    return sorted({*found}.difference(asked), key=lambda topic: (topic.partitioned_parent.local, topic.partition or 0))


def not_asked_for(others: Sequence[TopicPartition]) -> str:
    """Sentences about partitions, and topics beside theirs, that are not asked for; empty if there are none."""
    said: list[str] = []
    if partitions := [topic for topic in others if topic.partition is not None]:
        why = "not asked for, as the metadata of their topic does not name them"
        said.append(f"{why}: {_shown(partitions)}; ask for each by its name")
    if beside := [topic for topic in others if topic.partition is None]:
        why = "not asked for, as each is a topic beside partitions of its name, which stands for those"
        said.append(f"{why}: {_shown(beside)}; ask for each once its partitioned topic is deleted")
    return ". ".join(said)


def _shown(topics: Sequence[TopicPartition]) -> str:
    more = f" and {len(topics) - SHOWN} more" if len(topics) > SHOWN else ""
    return ", ".join(map(str, topics[:SHOWN])) + more


def _counts(configuration: MetadataStore, names: Sequence[Topic]) -> list[_Count]:
    paths = [f"{PARTITIONED_ROOT}/{name.managed_ledger}" for name in names]
    return [_count(path, node) for path, node in zip(paths, configuration.read(paths), strict=True)]


def _count(path: str, node: Node | Unread | None) -> _Count:
    if node is None:
        return None
    if isinstance(node, Unread):
        return RefusedBy(Code.TOPIC_UNREAD, f"{path} cannot be read: {node.reason}")
    try:
        return partition_count(path, node.data)
    except CorruptFormat as error:
        return error


def _used(store: MetadataStore, parent: Topic, count: int) -> list[Topic]:
    numbers = _listed(store, parent, count) if count > READ_EACH else range(count)
    names = [Topic(parent.namespace, f"{parent.local}-partition-{n}", parent.domain) for n in numbers]
    nodes = store.read([f"{MANAGED_LEDGERS_ROOT}/{name.managed_ledger}" for name in names])
    return [name for name, node in zip(names, nodes, strict=True) if node is not None] or [parent]


def _listed(store: MetadataStore, parent: Topic, count: int) -> Sequence[int]:
    """Numbers below ``count`` of partitions that have a z-node; all if their namespace cannot be listed."""
    (listing,) = store.children([f"{MANAGED_LEDGERS_ROOT}/{parent.namespace}/{parent.domain}"])
    if isinstance(listing, Unread) or (listing and not listing.is_whole):
        return range(count)
    prefix = encode_name(f"{parent.local}-partition-")
    ends = [name.removeprefix(prefix) for name in (listing.names if listing else ()) if name.startswith(prefix)]
    numbers = (int(end) for end in ends if end.isdecimal() and len(end) <= len(str(count)) and end == str(int(end)))
    return sorted(number for number in numbers if number < count)
