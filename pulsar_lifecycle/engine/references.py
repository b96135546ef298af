"""References that are not in a z-node.

These are the compaction cursor's last entry, the index inside schema entries, and what the owner broker holds.
Belongs here: looking them up through the ports, each answer as a ``Word`` of ``plan/references.py``. A word with an
``error`` says that a reference could not be read: ``gone: ...`` (the ledger that held it does not exist any more, so
nobody can read it) or ``unread: ...``. Source: ManagedCursorImpl, CompactedTopicImpl, BookkeeperSchemaStorage (4.0.7).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import ledger_metadata, ledger_path, schema
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.plan.references import Word
from pulsar_lifecycle.plan.tables import GONE, UNREAD
from pulsar_lifecycle.ports import BrokerAdmin, Entry, LedgerReader, MetadataStore, Node, TopicInternals

COMPACTION_CURSOR = "__compaction"
"""Compactor.COMPACTION_SUBSCRIPTION."""


def metadata_of(store: MetadataStore, ids: Sequence[int], root: str) -> list[LedgerMetadata | LifecycleError]:
    """Ledger metadata by id; NotFound for an absent z-node, CorruptFormat and the like as values."""
    found: list[LedgerMetadata | LifecycleError] = []
    for ledger_id, node in zip(ids, store.read([ledger_path.ledger_path(i, root) for i in ids]), strict=True):
        if node is None:
            found.append(NotFound(f"ledger {ledger_id} has no z-node"))
        elif not isinstance(node, Node):
            found.append(CorruptFormat(f"ledger {ledger_id}", 0, f"a readable z-node: {node.reason}"))
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


def compaction_words(
    store: MetadataStore, reader: LedgerReader, cursors: Sequence[tuple[str, str, int]], root: str
) -> list[Word]:
    """R3 from the cursor ledgers of ``__compaction`` cursors: (owner, z-node path, cursor ledger id), ids 0 or more."""
    words: list[Word] = []
    entries = last_entries_of(store, reader, [ledger for _, _, ledger in cursors], root)
    for (owner, path, ledger), (metadata, entry) in zip(cursors, entries, strict=True):
        where = f"{path}, cursor ledger {ledger}"
        if entry is None or never_written(metadata, entry):
            continue  # just opened: the z-node's copy, read elsewhere, is the whole truth, as the broker has it
        if isinstance(entry, LifecycleError):
            words.append(Word(None, "R3", owner, path, _error(where, entry)))
            continue
        try:
            compacted = cursor_format.compacted_ledger(cursor_format.decode_position(entry.payload).properties)
        except CorruptFormat as error:
            words.append(Word(None, "R3", owner, path, f"{UNREAD}{where}: {error}"))
            continue
        words.append(Word(compacted, "R3", owner, where))
    return words


def schema_words(
    store: MetadataStore,
    reader: LedgerReader,
    locators: Sequence[tuple[str, str, Sequence[tuple[int, int, int]]]],
    root: str,
) -> list[Word]:
    """R5 from the index inside schema entries: (schema id, z-node path, [(version, ledger id, entry id)]).

    Follows the index from entry to entry until nothing new turns up.
    """
    words: list[Word] = []
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
                words.append(Word(None, "R5", sid, path, _error(where, answer)))
                continue
            try:
                index = schema.decode_entry(answer.payload).index
            except CorruptFormat as error:
                words.append(Word(None, "R5", sid, path, f"{UNREAD}{where}: {error}"))
                continue
            for item in index:
                if item.position.ledger_id >= 0:
                    words.append(Word(item.position.ledger_id, "R5", sid, where))
                    found.append((sid, path, item.position.ledger_id, item.position.entry_id))
        todo = found
    return words


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


def broker_words(admin: BrokerAdmin, topics: Iterable[str], managed_ledger_of: Callable[[str], str]) -> list[Word]:
    """What the owner brokers hold in memory of loaded topics with a ``__compaction`` cursor (R3, R12)."""
    words: list[Word] = []
    for topic in topics:
        owner = managed_ledger_of(topic)
        where = f"broker memory of {topic}"
        try:
            internals = admin.internal_stats(Topic.parse(topic))
        except LifecycleError as error:
            words.append(Word(None, "R3", owner, where, f"{UNREAD}{where}: {error}"))
            continue
        words.extend(Word(ledger, kind, owner, where) for ledger, kind in held(internals))
    return words


def held(internals: TopicInternals) -> list[tuple[int, str]]:
    """Every (ledger id, kind) that a broker holds in memory of one topic."""
    found = [(ledger, "R1") for ledger in internals.ledgers]
    found += [(ledger, "R2") for ledger in internals.cursor_ledgers.values()]
    found += [(ledger, "R5") for ledger in internals.schema_ledgers]
    compacted = cursor_format.compacted_ledger(internals.cursor_properties.get(COMPACTION_CURSOR, {}))
    found += [(ledger, "R3") for ledger in (internals.compacted_ledger, compacted) if ledger is not None]
    return [(ledger, kind) for ledger, kind in found if ledger >= 0]


def _error(where: str, error: LifecycleError) -> str:
    return f"{GONE if isinstance(error, NotFound) else UNREAD.rstrip(': ')}: {where}: {error}"
