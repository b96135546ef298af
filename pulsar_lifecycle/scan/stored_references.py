"""References that are not in a z-node.

These are the compaction cursor's last entry, the index inside schema entries, and what the owner broker holds.
Belongs here: looking them up through the ports, each answer as a ``StoredReference`` of ``scan/references.py``. Its
``problem`` says that it could not be read:

- ``gone``: the ledger that held it does not exist any more, so nobody can read it;
- ``damaged``: every replica answered, and none has the entry, or what they have is no such entry;
- ``unanswered``: its broker does not say what it has in memory of one topic, and answers for another, or otherwise for
  this one;
- ``unread``: not answered; it may be whole.

Source: ManagedCursorImpl, CompactedTopicImpl, BookkeeperSchemaStorage (4.0.7).

What a lost entry named is its owner's. ``BookkeeperSchemaStorage.addNewSchemaEntryToStore(schemaId, index, ..)`` makes
a schema's ledgers by ``createLedger(schemaId)``, which tags them with that id, and the index that it writes into an
entry is the one of the same id's locator (``putSchema``): no entry names a ledger of another id. The partitions of a
topic share one id, V1 topics leave their cluster out of it (``owner_names.schema_owner``). The pointer in a
``__compaction`` cursor is written by ``CompactedTopicImpl.newCompactedLedger`` of the cursor's own topic, to the ledger
that ``AbstractTwoPhaseCompactor`` made for that topic and tagged with its name. Only a hand that moves z-nodes to
another name leaves old tags: so the topics that the tags of all of an owner's ledgers name are kept, too
(``scan/epochs.py``).

So is what a broker has in memory of a topic (``PersistentTopic.getInternalStats``): the topic's own ledgers and
cursors, the ledger that was compacted for it, and the ledgers of its schema id, which it reads afresh. Every one has
tags with the topic's name or that id; a shadow topic's have its source's, whose ledgers are kept. A ledger without
tags, or whose tags name no owner, is never deleted.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from pulsar_lifecycle.errors import (
    AccessDenied,
    Conflict,
    CorruptFormat,
    Failed,
    LifecycleError,
    NotFound,
    StoreError,
)
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import ledger_metadata, ledger_path, schema
from pulsar_lifecycle.formats.cursor import PositionInfo
from pulsar_lifecycle.formats.ledger_metadata import TAG_MANAGED_LEDGER, LedgerMetadata, LedgerState
from pulsar_lifecycle.model import COMPACTION_CURSOR, MANAGED_LEDGERS_ROOT, Topic
from pulsar_lifecycle.ports import BrokerAdmin, Entry, LedgerReader, MetadataStore, Node, TopicInternals
from pulsar_lifecycle.scan.references import StoredReference, in_cursor_ledger
from pulsar_lifecycle.values.owner_names import parent_of
from pulsar_lifecycle.values.tables import Problem, Trouble


def metadata_of(store: MetadataStore, ids: Sequence[int], root: str) -> list[LedgerMetadata | LifecycleError]:
    """Ledger metadata by id; NotFound for an absent z-node, AccessDenied, CorruptFormat and the like as values."""
    found: list[LedgerMetadata | LifecycleError] = []
    for ledger_id, node in zip(ids, store.read([ledger_path.ledger_path(i, root) for i in ids]), strict=True):
        if node is None:
            found.append(NotFound(f"ledger {ledger_id} has no z-node"))
        elif not isinstance(node, Node):
            found.append(AccessDenied(f"the z-node of ledger {ledger_id}: {node.reason}"))
        else:
            try:
                found.append(ledger_metadata.decode(node.data))
            except CorruptFormat as error:
                found.append(error)
    return found


def last_entries(
    store: MetadataStore, reader: LedgerReader, ids: Sequence[int], root: str
) -> list[Entry | LifecycleError | None]:
    """The last entry of many ledgers, none of them recovered or fenced."""
    return [entry for _, entry in last_entries_of(store, reader, ids, root)]


def last_entries_of(
    store: MetadataStore, reader: LedgerReader, ids: Sequence[int], root: str
) -> list[tuple[LedgerMetadata | LifecycleError, Entry | LifecycleError | None]]:
    """:func:`last_entries` with the metadata of each ledger, as :func:`metadata_of` gives it."""
    metadata = metadata_of(store, ids, root)
    readable = [(i, m) for i, m in zip(ids, metadata, strict=True) if isinstance(m, LedgerMetadata)]
    answers = iter(reader.last_entries(readable))
    return [(m, next(answers) if isinstance(m, LedgerMetadata) else m) for m in metadata]


def never_written(metadata: LedgerMetadata | LifecycleError, entry: Entry | LifecycleError | None) -> bool:
    """An open ledger in its first ensemble that no bookie knows: they learn of one with its first entry."""
    return (
        isinstance(metadata, LedgerMetadata)
        and metadata.state is LedgerState.OPEN
        and metadata.segments[-1].first_entry_id == 0
        and isinstance(entry, NotFound)
    )


def cursor_state(
    metadata: LedgerMetadata | LifecycleError, entry: Entry | LifecycleError | None, path: str
) -> PositionInfo:
    """What the cursor ledger says that a cursor of the topic at ``path`` names, by :func:`last_entries_of`.

    Brokers name one once it has an entry (``ManagedCursorImpl.createNewMetadataLedger``): of one without, what it said
    is lost. They then go back to the z-node's copy, which may be ahead of a subscription that was moved back since.
    Raises what reading it raised, and CorruptFormat where it has no entry, or is another topic's by its tags.
    """
    if isinstance(metadata, LifecycleError):
        raise metadata
    owner = path.removeprefix(f"{MANAGED_LEDGERS_ROOT}/").encode()
    if metadata.custom_metadata.get(TAG_MANAGED_LEDGER, owner) != owner:
        raise CorruptFormat("cursor ledger", 0, f"a ledger of {path}, by its tags it is another topic's")
    if isinstance(entry, LifecycleError):
        raise entry
    if entry is None:
        raise CorruptFormat("cursor ledger", 0, "an entry, found none")
    return cursor_format.decode_position(entry.payload)


def compaction_references(
    store: MetadataStore, reader: LedgerReader, cursors: Sequence[tuple[str, str, int]], root: str
) -> list[StoredReference]:
    """R3 from the cursor ledgers of ``__compaction`` cursors: (owner, z-node path, cursor ledger id), ids 0 or more."""
    references: list[StoredReference] = []
    entries = last_entries_of(store, reader, [ledger for _, _, ledger in cursors], root)
    for (owner, path, ledger), (metadata, entry) in zip(cursors, entries, strict=True):
        where = in_cursor_ledger(path, ledger)
        if never_written(metadata, entry):
            continue  # the z-node's copy, read elsewhere, is all that the broker has
        if entry is None:
            entry = CorruptFormat("cursor ledger", 0, "an entry, found none")
        if isinstance(entry, LifecycleError):
            last = metadata.last_entry_id if isinstance(metadata, LedgerMetadata) else -1
            references.append(StoredReference(None, "R3", owner, path, *_trouble(where, entry), ledger, last))
            continue
        try:
            compacted = cursor_format.compacted_ledger(cursor_format.decode_position(entry.payload).properties)
        except CorruptFormat as error:
            references.append(StoredReference(None, "R3", owner, path, *_trouble(where, error), ledger, entry.entry_id))
            continue
        references.append(StoredReference(compacted, "R3", owner, where))
    return references


def schema_references(
    store: MetadataStore,
    reader: LedgerReader,
    locators: Sequence[tuple[str, str, Sequence[tuple[int, int, int]]]],
    root: str,
) -> list[StoredReference]:
    """R5 from the index inside schema entries: (schema id, z-node path, [(version, ledger id, entry id)]).

    Follows the index from entry to entry until nothing new turns up.
    """
    references: list[StoredReference] = []
    seen: set[tuple[str, int, int]] = set()
    todo = [
        (sid, path, ledger, entry) for sid, path, versions in locators for _, ledger, entry in versions if ledger >= 0
    ]
    while todo:
        todo = [item for item in dict.fromkeys(todo) if (item[0], item[2], item[3]) not in seen]
        seen.update((sid, ledger, entry) for sid, _, ledger, entry in todo)
        found: list[tuple[str, str, int, int]] = []
        entries = last_entries(store, reader, [ledger for _, _, ledger, _ in todo], root)
        for (sid, path, ledger, wanted), entry in zip(todo, entries, strict=True):
            where = f"{path}, schema ledger {ledger}"
            answer = _exact(store, reader, ledger, wanted, entry, root)
            if isinstance(answer, LifecycleError):
                references.append(StoredReference(None, "R5", sid, path, *_trouble(where, answer), ledger, wanted))
                continue
            try:
                index = schema.decode_entry(answer.payload).index
            except CorruptFormat as error:
                references.append(StoredReference(None, "R5", sid, path, *_trouble(where, error), ledger, wanted))
                continue
            for item in index:
                if item.position.ledger_id >= 0:
                    references.append(StoredReference(item.position.ledger_id, "R5", sid, where))
                    found.append((sid, path, item.position.ledger_id, item.position.entry_id))
        todo = found
    return references


def _exact(
    store: MetadataStore, reader: LedgerReader, ledger: int, wanted: int, last: Entry | LifecycleError | None, root: str
) -> Entry | LifecycleError:
    """The entry ``wanted``; schema ledgers hold one entry, so the last one nearly always is it."""
    if isinstance(last, LifecycleError):
        return last
    if last is None:
        return CorruptFormat(f"schema ledger {ledger}", 0, f"entry {wanted}, found no entry")
    if last.entry_id == wanted:
        return last
    metadata = metadata_of(store, [ledger], root)[0]
    if isinstance(metadata, LifecycleError):
        return metadata
    try:
        return reader.read(ledger, metadata, wanted, wanted)[0]
    except LifecycleError as error:
        return error


OTHER_TOPICS = 20
"""A broker that could not answer for one topic is asked about at most so many others."""


def broker_references(
    admin: BrokerAdmin, loaded: Sequence[tuple[str, str]], others: Mapping[str, Sequence[str]]
) -> list[StoredReference]:
    """What the owner brokers hold in memory of loaded topics with a ``__compaction`` cursor (R3, R12).

    ``loaded``: (topic, its broker). ``others``: topics that are loaded, by broker. A broker that fails at one topic, or
    does not know it, and then answers for another one says nothing of the former alone, whose owner is kept. So does
    one that answers for no other, as it may have no other or fail there too, and whose own answer is the failure: 500,
    and right after it what metadata says of that topic. Any other missing answer is of the broker, or about us: unread.
    """
    references: list[StoredReference] = []
    answered: dict[str, list[str]] = {}
    failed: dict[str, tuple[str, LifecycleError]] = {}
    for topic, broker in loaded:
        try:
            internals = admin.internal_stats(Topic.parse(topic))
        except LifecycleError as error:
            failed[topic] = broker, error
            continue
        answered.setdefault(broker, []).append(topic)
        where = f"broker memory of {topic}"
        references.extend(
            StoredReference(ledger, kind, Topic.parse(topic).managed_ledger, where) for ledger, kind in held(internals)
        )
    broker_answers: dict[str, bool] = {}
    lost: set[str] = set()
    for topic, (broker, error) in failed.items():
        if broker not in broker_answers and _of_this_topic(error):
            other_topics = dict.fromkeys((*answered.get(broker, ()), *others.get(broker, ())))
            broker_answers[broker] = _answers(admin, [name for name in other_topics if name not in failed])
        alone = _of_this_topic(error) and broker_answers[broker]
        if _of_this_topic(error) and not alone and broker not in lost:
            alone = _fails_at(admin, broker, topic)
            if not alone:  # one that is unread blocks: no need to ask about the others
                lost.add(broker)
        references.extend(_no_answer(Topic.parse(topic), error, alone))
    return references


def other_topics(loaded: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    """The ``others`` of :func:`broker_references` among (topic, broker): few of each, no two of them partitions of one.

    Those whose names have the lowest checksums: they are spread over all, however many at a time and in which order.
    """
    chosen: dict[str, dict[str, tuple[int, str]]] = {}
    for topic, broker in loaded:
        parent = parent_of(topic)
        some = chosen.setdefault(broker, {})
        if parent in some:
            continue
        some[parent] = zlib.crc32(parent.encode()), topic
        if len(some) > OTHER_TOPICS + 1:  # one may be a partition of the topic in question
            del some[max(some, key=some.__getitem__)]
    return {broker: [topic for _, topic in sorted(some.values())] for broker, some in chosen.items()}


def _of_this_topic(error: LifecycleError) -> bool:
    """Whether a broker was reached and let us ask, and this answer is all that is wrong: it failed, or makes no sense.

    404 is one: a broker keeps the topics of a namespace whose deletion stopped half-way, and answers so for each. One
    that refuses us or is busy says nothing about the topic's memory.
    """
    return isinstance(error, Failed | StoreError) and not isinstance(error, AccessDenied | Conflict)


def _answers(admin: BrokerAdmin, topics: Sequence[str]) -> bool:
    """Whether the broker of these topics says of any what it has in memory."""
    for topic in topics[:OTHER_TOPICS]:
        with suppress(LifecycleError):
            admin.internal_stats(Topic.parse(topic))
            return True
    return False


def _fails_at(admin: BrokerAdmin, broker: str, topic: str) -> bool:
    """Whether this broker is well, by its own answers, but for what it has in memory of this topic."""
    try:
        return admin.fails_at(broker, Topic.parse(topic))
    except LifecycleError:
        return False


def _no_answer(topic: Topic, error: LifecycleError, alone: bool) -> list[StoredReference]:
    """The references for what a broker did not say; ``alone``: it does say so of other topics."""
    if not alone:
        where = f"broker memory of {topic}"
        return [StoredReference(None, "R3", topic.managed_ledger, where, Problem.UNREAD, f"{where}: {error}")]
    path = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"
    said = Trouble(Problem.UNANSWERED, str(error))
    return [
        StoredReference(None, "R3", topic.managed_ledger, path, *said),
        StoredReference(None, "R5", topic.schema_id, path, *said),
    ]


def held(internals: TopicInternals) -> list[tuple[int, str]]:
    """Every (ledger id, kind) that a broker holds in memory of one topic."""
    found = [(ledger, "R1") for ledger in internals.ledgers]
    found += [(ledger, "R2") for ledger in internals.cursor_ledgers.values()]
    found += [(ledger, "R5") for ledger in internals.schema_ledgers]
    compacted = cursor_format.compacted_ledger(internals.cursor_properties.get(COMPACTION_CURSOR, {}))
    found += [(ledger, "R3") for ledger in (internals.compacted_ledger, compacted) if ledger is not None]
    return [(ledger, kind) for ledger, kind in found if ledger >= 0]


def _trouble(where: str, error: LifecycleError) -> Trouble:
    """By the error's class: only what every replica answered is known to be lost."""
    lost = isinstance(error, CorruptFormat | StoreError) and not isinstance(error, AccessDenied | Conflict)
    problem = Problem.GONE if isinstance(error, NotFound) else Problem.DAMAGED if lost else Problem.UNREAD
    return Trouble(problem, f"{where}: {error}")
