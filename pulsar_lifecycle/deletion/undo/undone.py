"""What becomes of a ledger whose deletion is undone, and how the journal is told."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.ports import (
    Archived,
    Clock,
    Journal,
    JournalRow,
    MetadataStore,
    Node,
    ReplicaCheck,
)
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase

PENDING = frozenset({Outcome.RECREATING, Outcome.RECREATED, Outcome.UNCONFIRMED})

Check = Callable[[Sequence[tuple[int, LedgerMetadata]]], list[ReplicaCheck]]
"""``LedgerReader.check_replicas``, or something that spreads it."""


@dataclass(frozen=True, slots=True)
class UndoRun:
    """What an undo is to do. ``gc_wait_ms``: the longest ``gcWaitTime`` of any bookie, plus what a collection takes.

    ``guard`` is the lease's. ``store_ahead_ms``: how far the metadata store's clock, which dates z-nodes, is ahead of
    ours. ``accept_unknown``: re-create ledgers although bookies that should hold them did not answer. ``forbidden``:
    ledgers that must not come back.
    """

    run_id: str
    cluster: str
    ledgers_root: str
    guard: tuple[str, int]
    store_ahead_ms: int
    gc_wait_ms: int
    accept_unknown: bool
    batch: int
    creates_per_second: float
    slow_above_ms: float
    stop_above_ms: float
    forbidden: frozenset[int] = frozenset()


@dataclass(slots=True)
class UndoPorts:
    """The ports of an undo; ``say`` tells an operator how far it is."""

    store: MetadataStore
    check: Check
    journal: Journal
    clock: Clock
    say: Callable[[str], None]


@dataclass(slots=True)
class Undone:
    """One archived ledger and what became of it; ``node`` is its z-node once it is back.

    ``bookkeeper_deleted``: its topic lists it as offloaded, with its copy in BookKeeper listed as deleted.
    """

    archived: Archived
    metadata: LedgerMetadata | None = None
    component: str = ""
    topic: str = ""
    bookkeeper_deleted: bool = False
    outcome: Outcome | None = None
    why: Why | None = None
    check: ReplicaCheck | None = None
    node: Node | None = None

    @property
    def ledger_id(self) -> int:
        """Its id."""
        return self.archived.ledger_id

    @property
    def length(self) -> int:
        """Bytes of its entries, once."""
        return self.metadata.length if self.metadata else 0

    @property
    def reason(self) -> str:
        """Why, as a sentence; empty while nothing is decided."""
        return self.why.text if self.why else ""

    def decide(self, outcome: Outcome, code: Code, reason: str) -> None:
        """Where it stands now."""
        self.outcome, self.why = outcome, Why(code, reason)


def described(one: Undone) -> str:
    """What its bookies said, for an operator."""
    check = one.check
    assert check is not None
    assert one.metadata is not None
    which = "every entry" if check.every_entry else f"a sample of {check.asked} of {check.entries} entries"
    said = [f"{which} asked of {one.metadata.write_quorum} replicas"]
    if check.lost:
        said.append(f"{check.lost} on no bookie any more")
    if check.unproven:
        said.append(f"{check.unproven} not shown by any bookie that answered")
    if check.thin:
        said.append(f"{check.thin} under-replicated")
    if check.missing:
        said.append("missing on " + ", ".join(sorted(check.missing)))
    if check.unanswered:
        said.append("no answer: " + "; ".join(check.unanswered[bookie] for bookie in sorted(check.unanswered)))
    return ", ".join(said) if len(said) > 1 else f"{said[0]}, all there"


def record_undone(run: UndoRun, ports: UndoPorts, ledgers: Sequence[Undone]) -> None:
    """Journal what became of some ledgers."""
    now = ports.clock.now_ms()
    ports.journal.record([_row(run, one, now) for one in ledgers])


@dataclass(frozen=True, slots=True)
class _Detail:
    """Details of a row: the deletion that is undone, the z-node that is there now, what the bookies said."""

    archived_by: str
    archived_czxid: int
    czxid: int | None
    ctime: int | None
    check: ReplicaCheck | None


def _row(run: UndoRun, one: Undone, now: int) -> JournalRow:
    row = one.archived
    stat = one.node.stat if one.node else None
    made = (stat.czxid, stat.ctime) if stat else (None, None)
    detail = _Detail(row.run_id, row.czxid, *made, one.check)
    checksum = hashlib.sha256(row.data).hexdigest()
    about = Subject(row.ledger_id, one.component, one.topic, one.length, checksum, (detail,))
    assert one.outcome is not None
    assert one.why is not None
    return Writer(run.run_id, run.cluster).row(Step(Action.DELETE_LEDGER, Phase.UNDO), about, one.outcome, one.why, now)


def counted(ledgers: Iterable[Undone]) -> str:
    """How many ledgers had which outcome, in words."""
    counts: dict[str, int] = {}
    for one in ledgers:
        name = one.outcome or "to do"
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def in_batches(ledgers: Sequence[Undone], size: int) -> Iterator[Sequence[Undone]]:
    """The ledgers in lists of ``size``."""
    for start in range(0, len(ledgers), size):
        yield ledgers[start : start + size]
