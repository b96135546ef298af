"""New snapshots of which the journal says only that they were begun: what a killed run left, named or not.

Belongs here: finding them, and deleting those that no cursor ever came to name. Not here: writing them.

A ledger that is not closed was never named: keys are exchanged after it. A closed one may have been, and a broker that
has the topic may know it: as long as one has, the ledger is left for a later run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import pyarrow.compute as pc

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import COMPONENT_BUCKET, LedgerMetadata, LedgerState
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Topic
from pulsar_lifecycle.ports import Deletion, JournalReader, MetadataStore, Node, NodeDeletion, Unread
from pulsar_lifecycle.runs.journal_rows import Step, details_of
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase


@dataclass(frozen=True, slots=True)
class BegunSnapshot:
    """A new snapshot that a run was about to write."""

    ledger_id: int
    topic: Topic
    subscription: str


@dataclass(frozen=True, slots=True)
class NewSnapshot:
    """Details of a journal row about a new snapshot: for which cursor."""

    subscription: str


SNAPSHOT = Step(Action.WRITE_SNAPSHOT, Phase.WRITE_SNAPSHOT)
ResolvedSnapshot = tuple[BegunSnapshot, Outcome, Why]


def left_begun(journal: JournalReader, cluster: str) -> list[BegunSnapshot]:
    """The snapshots that runs of a cluster began, and of which the journal does not say what became of them, by id."""
    mine = (pc.field("cluster") == cluster) & (pc.field("action") == Action.WRITE_SNAPSHOT.value)
    rows = journal.find(mine, ["ledger_id", "topic", "outcome", "detail", "at"]).to_pylist()
    ended: dict[int, int] = {}
    for row in rows:
        if row["outcome"] != Outcome.BEGUN:
            ended[row["ledger_id"]] = max(row["at"], ended.get(row["ledger_id"], 0))
    found = {
        row["ledger_id"]: BegunSnapshot(row["ledger_id"], Topic.parse(row["topic"]), new.subscription)
        for row in rows
        if row["outcome"] == Outcome.BEGUN
        and row["at"] > ended.get(row["ledger_id"], -1)
        and (new := details_of(NewSnapshot, row["detail"]))
    }
    return [one for _, one in sorted(found.items())]


def resolve(
    store: MetadataStore,
    root: str,
    begun: Iterable[BegunSnapshot],
    guard: tuple[str, int],
    is_loaded: Callable[[Topic], bool],
) -> Iterator[ResolvedSnapshot]:
    """What became of each, where that is known; a ledger that nothing ever named is deleted, under the lease.

    Only a ledger that is tagged with the topic and cursor that the journal says. Raises LeaseLost and what the store
    raises.
    """
    store.sync("/")
    for one in begun:
        (node,) = store.read([ledger_path(one.ledger_id, root)])
        if isinstance(node, Unread):
            continue
        if node is None:
            yield one, Outcome.NOTHING, Why(Code.NOT_THERE, "there is no such ledger")
            continue
        metadata = _ours(node, one)
        if metadata is None:
            yield one, Outcome.LEFT, Why(Code.ID_REUSED, "the ledger is another, by its tags")
            continue
        named = _named(store, one.topic)
        if named is None:
            continue
        if one.ledger_id in named:
            yield one, Outcome.DONE, Why(Code.REPAIRED, "a cursor names it")
        elif metadata.state is not LedgerState.CLOSED or not is_loaded(one.topic):
            (result,) = store.delete_many([Deletion(node.path, node.stat.version)], guard)
            if result.outcome is not NodeDeletion.CHANGED:
                yield one, Outcome.REMOVED, Why(Code.UNREFERENCED, "no cursor came to name it")


def _ours(node: Node, one: BegunSnapshot) -> LedgerMetadata | None:
    try:
        metadata = ledger_metadata.decode(node.data)
    except CorruptFormat:
        return None
    tags = {
        ledger_metadata.TAG_COMPONENT: COMPONENT_BUCKET,
        ledger_metadata.TAG_BUCKET_TOPIC: str(one.topic),
        ledger_metadata.TAG_BUCKET_CURSOR: one.subscription,
    }
    mine = all(metadata.custom_metadata.get(name) == value.encode() for name, value in tags.items())
    return metadata if mine else None


def _named(store: MetadataStore, topic: Topic) -> set[int] | None:
    """The snapshots that any cursor of a topic names; None where that is not known."""
    path = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"
    found: set[int] = set()
    with contextlib.suppress(LifecycleError):
        if store.read([path])[0] is None:
            return found
        for info in snapshot.cursors(store, path).values():
            for key, value in info.cursor_properties.items():
                ledger_id = cursor_format.snapshot_ledger(value)
                if key.startswith(cursor_format.BUCKET_PREFIX) and ledger_id is not None:
                    found.add(ledger_id)
        return found
    return None
