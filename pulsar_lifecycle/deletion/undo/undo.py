"""Undoing deletions: archived ledger z-nodes go back while the bookies still hold the entries.

Belongs here: which archived ledgers may come back, the order of steps, what a crash at any of them leaves. Not here:
asking bookies (``io/bookkeeper/reader.py``), reading the archive (``io/lake/journal.py``).

A bookie drops a ledger's entries when its garbage collection misses the z-node. A collection that had listed the
z-nodes before ours came back may still drop them after; so every replica is asked before, and again one collection
interval later, and only the second answer makes a ledger ``restored``.

Every step of a ledger is journalled (``phase=undo``). The row ``recreating`` is durable before the z-node is created:
a z-node of the archived ledger and such a row is ours, and a rerun goes on with its second check.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pulsar_lifecycle.deletion.undo.undone import (
    PENDING,
    Undone,
    UndoPorts,
    UndoRun,
    counted,
    described,
    in_batches,
    record_undone,
)
from pulsar_lifecycle.errors import Conflict, CorruptFormat, LifecycleError, OutcomeUnknown
from pulsar_lifecycle.formats import ledger_metadata, ledger_path, managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState
from pulsar_lifecycle.metastore import walk
from pulsar_lifecycle.metastore.bookkeeper_ledgers import ledger_rows
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import (
    Archived,
    Deletion,
    Node,
)
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.journal_rows import details_of
from pulsar_lifecycle.throttle import RateBudget, mind_latency
from pulsar_lifecycle.values import findings, owner_names
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.findings import component_of
from pulsar_lifecycle.values.outcomes import Outcome, Phase

STEP = 5.0
"""Seconds between two looks at the pause z-node while a collection interval passes."""
REPORT = 60.0
"""Seconds between two progress reports meanwhile."""


def preview(run: UndoRun, ports: UndoPorts, archived: Sequence[Archived], pending: Mapping[int, int]) -> list[Undone]:
    """What :func:`undo` would do now; changes nothing, journals nothing."""
    ledgers = candidates(archived, run)
    _look(ports, ledgers, pending)
    for some in in_batches([one for one in ledgers if not one.outcome], run.batch):
        _first_check(run, ports, some)
        for one in some:
            if not one.outcome:
                one.decide(Outcome.RESTORABLE, Code.ENTRIES_THERE, described(one))
    return ledgers


def undo(run: UndoRun, ports: UndoPorts, archived: Sequence[Archived], pending: Mapping[int, int]) -> list[Undone]:
    """Bring archived ledgers back: check, re-create, wait one collection interval, check again.

    ``archived``: rows of the archive; of each ledger the newest counts. ``pending``: :func:`begun`. Raises Paused,
    LeaseLost, Overloaded, Unavailable; what was done until then is journalled, and a rerun goes on from there.
    """
    ledgers = candidates(archived, run)
    budget = RateBudget(run.creates_per_second, ports.clock)
    for some in in_batches(ledgers, run.batch):
        _may_act(run, ports)
        _look(ports, some, pending)
        _first_check(run, ports, [one for one in some if not one.outcome])
        record_undone(run, ports, [one for one in some if one.outcome])
        _recreate(run, ports, [one for one in some if not one.outcome], budget)
        ports.say(counted(ledgers))
    back = [one for one in ledgers if one.outcome == Outcome.RECREATED]
    _wait(run, ports, back)
    for some in in_batches(back, run.batch):
        _may_act(run, ports)
        _second_check(run, ports, some)
        ports.say(counted(ledgers))
    return ledgers


def begun(rows: Iterable[Mapping[str, Any]], cluster: str) -> dict[int, int]:
    """Ledgers that an undo re-created, or began to, and did not end: id -> czxid of the archived z-node.

    ``rows``: of the journal, oldest first.
    """
    found: dict[int, int] = {}
    for row in rows:
        if row["cluster"] == cluster and row["phase"] == Phase.UNDO:
            if row["outcome"] in PENDING:
                if archived := details_of(_ArchivedNode, row["detail"]):
                    found[row["ledger_id"]] = archived.archived_czxid
            elif row["outcome"] in (Outcome.RESTORED, Outcome.LOST):
                found.pop(row["ledger_id"], None)
    return found


@dataclass(frozen=True, slots=True)
class _ArchivedNode:
    """The archived z-node as the details of an undo name it."""

    archived_czxid: int


def candidates(archived: Sequence[Archived], run: UndoRun) -> list[Undone]:
    """The newest archived z-node of each ledger, by id; what can never come back is decided as ``refused``."""
    newest: dict[int, Archived] = {}
    for row in archived:
        known = newest.get(row.ledger_id)
        if known is None or row.at >= known.at:
            newest[row.ledger_id] = row
    ledgers = [Undone(newest[ledger_id]) for ledger_id in sorted(newest)]
    for one in ledgers:
        row = one.archived
        if row.cluster != run.cluster:
            one.decide(Outcome.REFUSED, Code.OTHER_CLUSTER, f"it was deleted from another cluster, {row.cluster}")
        elif row.path != ledger_path.ledger_path(row.ledger_id, run.ledgers_root):
            one.decide(Outcome.REFUSED, Code.OTHER_CLUSTER, f"it was deleted from another place, {row.path}")
        elif row.ledger_id in run.forbidden:
            one.decide(Outcome.REFUSED, Code.NO_UNDO, "its records were deleted with --no-undo: it must not come back")
        else:
            try:
                one.metadata = ledger_metadata.decode(row.data)
            except CorruptFormat as error:
                one.decide(
                    Outcome.REFUSED, Code.ARCHIVE_DAMAGED, f"what the archive holds is no ledger metadata: {error}"
                )
                continue
            if one.metadata.state is not LedgerState.CLOSED:
                one.decide(
                    Outcome.REFUSED,
                    Code.NEVER_CLOSED,
                    f"it was {one.metadata.state.name}: what it should hold is not known",
                )
    _name(ledgers, run.ledgers_root)
    return ledgers


def _name(ledgers: Sequence[Undone], root: str) -> None:
    """Component and topic by the tags."""
    known = [one for one in ledgers if one.metadata]
    nodes = [one.archived.node for one in known]
    for one, row in zip(known, ledger_rows(nodes, root).to_pylist() if nodes else [], strict=True):
        if row["application"] != "pulsar" or row["component"] not in findings.COMPONENTS:
            continue
        one.component = component_of(row["component"], row["cursor"]).value
        one.topic = owner_names.owner_in(row)[1]


def _look(ports: UndoPorts, ledgers: Sequence[Undone], pending: Mapping[int, int]) -> None:
    """Decide what has a z-node: ours from an interrupted undo is taken over, any other is left alone."""
    ledgers = [one for one in ledgers if not one.outcome]
    if not ledgers:
        return
    newest = ports.store.zxid()
    for one, node in zip(ledgers, ports.store.read([one.archived.path for one in ledgers]), strict=True):
        row = one.archived
        if row.czxid > newest:
            one.decide(
                Outcome.REFUSED,
                Code.STORE_RESTORED,
                "the metadata store is younger than the archived z-node: it was restored, or is another",
            )
        elif node is None:
            continue
        elif not isinstance(node, Node):
            one.decide(Outcome.REFUSED, Code.UNREAD, f"its z-node is there and cannot be read: {node.reason}")
        elif not _is_same(node.data, one.metadata):
            why = "its id was issued again, or its metadata was changed since: the z-node is another"
            one.decide(Outcome.REFUSED, Code.ID_REUSED, why)
        elif node.stat.czxid == row.czxid:
            one.decide(Outcome.PRESENT, Code.NEVER_DELETED, "it was never deleted")
        elif pending.get(row.ledger_id) == row.czxid:
            one.node = node
            why = "re-created by an undo that did not end; its second check is due"
            one.decide(Outcome.RECREATED, Code.SECOND_CHECK_DUE, why)
        else:
            one.decide(Outcome.PRESENT, Code.RESTORED_ALREADY, "it is restored already")
    _look_at_topics(ports, [one for one in ledgers if one.outcome in (None, Outcome.RECREATED) and one.topic])


def _is_same(data: bytes, archived: LedgerMetadata | None) -> bool:
    """Whether a z-node is of the archived ledger; autorecovery may have moved it to other bookies since."""
    assert archived is not None  # candidates: it was decoded
    try:
        found = ledger_metadata.decode(data)
    except CorruptFormat:
        return False
    return replace(found, segments=archived.segments) == archived


def _look_at_topics(ports: UndoPorts, ledgers: Sequence[Undone]) -> None:
    """Which of them their topics list as offloaded, with the copy in BookKeeper listed as deleted."""
    by_topic: dict[str, dict[int, Undone]] = {}
    for one in ledgers:
        by_topic.setdefault(one.topic, {})[one.ledger_id] = one
    paths = [f"{walk.MANAGED_LEDGERS_ROOT}/{Topic.parse(name).managed_ledger}" for name in by_topic]
    for group, node in zip(by_topic.values(), ports.store.read(paths), strict=True):
        if not isinstance(node, Node):
            continue
        with contextlib.suppress(CorruptFormat):  # what it lists is not known
            for item in managed_ledger.decode(node.data).ledgers:
                if item.ledger_id in group and item.offload:
                    group[item.ledger_id].bookkeeper_deleted = item.offload.complete and item.offload.bookkeeper_deleted


def _first_check(run: UndoRun, ports: UndoPorts, ledgers: Sequence[Undone]) -> None:
    """Ask every replica; decides what is past saving, and what is not known unless the operator allows that."""
    for one in _checked(ports, ledgers):
        assert one.check is not None
        if one.check.lost:
            one.decide(Outcome.LOST, Code.ENTRIES_LOST, f"past saving: {described(one)}")
        elif one.check.unanswered and not run.accept_unknown:
            why = f"{described(one)}; accept_unknown restores it all the same"
            one.decide(Outcome.UNKNOWN, Code.ENTRIES_UNPROVEN, why)


def _checked(ports: UndoPorts, ledgers: Sequence[Undone]) -> Sequence[Undone]:
    """The same ledgers with what their bookies say now."""
    checks = ports.check([(one.ledger_id, one.metadata) for one in ledgers if one.metadata]) if ledgers else []
    for one, check in zip(ledgers, checks, strict=True):
        one.check = check
    return ledgers


def _may_act(run: UndoRun, ports: UndoPorts) -> None:
    control.check_not_paused(ports.store)
    mind_latency(ports.store.latency_ms(), run.slow_above_ms, run.stop_above_ms, ports.clock)


def _recreate(run: UndoRun, ports: UndoPorts, ledgers: Sequence[Undone], budget: RateBudget) -> None:
    """Create the z-nodes; what is there afterwards is journalled whatever stopped this."""
    if not ledgers:
        return
    control.check_not_paused(ports.store)
    for one in ledgers:
        one.decide(Outcome.RECREATING, Code.ABOUT_TO, described(one))
    record_undone(run, ports, ledgers)
    tried: list[Undone] = []
    try:
        for one in ledgers:
            budget.take(1)
            tried.append(one)
            _create(ports, one)
    finally:
        record_undone(run, ports, [one for one in tried if one.outcome != Outcome.RECREATING])


def _create(ports: UndoPorts, one: Undone) -> None:
    """Create one z-node; after an outcome that is not known, what is there decides."""
    row = one.archived
    try:
        one.node = Node(row.path, row.data, ports.store.create(row.path, row.data, parents=True))
    except (Conflict, OutcomeUnknown) as error:
        ports.store.sync(row.path)
        node = ports.store.read([row.path])[0]
        if node is None:
            one.decide(Outcome.NOT_RECREATED, Code.SERVER_FAILED, f"its z-node could not be created: {error}")
            return
        if not isinstance(node, Node) or node.data != row.data:
            one.decide(Outcome.REFUSED, Code.ID_REUSED, "its id was issued again at this moment: the z-node is another")
            return
        one.node = node
    one.decide(Outcome.RECREATED, Code.SECOND_CHECK_DUE, one.reason)


def _wait(run: UndoRun, ports: UndoPorts, back: Sequence[Undone]) -> None:
    """Until one collection interval has passed since the last of them came back, by the metadata store's clock."""
    if not back:
        return
    due = max(one.node.stat.ctime for one in back if one.node) + run.gc_wait_ms - run.store_ahead_ms
    said = 0.0
    while (left := (due - ports.clock.now_ms()) / 1000) > 0:
        control.check_not_paused(ports.store)
        if not said or said - left >= REPORT:
            ports.say(f"{len(back)} ledgers re-created; the second check is in {left:.0f} s")
            said = left
        ports.clock.sleep(min(left, STEP))


def _second_check(run: UndoRun, ports: UndoPorts, ledgers: Sequence[Undone]) -> None:
    """Ask every replica again; takes away again what nobody holds any more."""
    ports.store.sync("/")
    left: list[Undone] = []
    for one, node in zip(ledgers, ports.store.read([one.archived.path for one in ledgers]), strict=True):
        assert one.node is not None
        if not isinstance(node, Node) or node.stat.czxid != one.node.stat.czxid:
            one.decide(Outcome.UNCONFIRMED, Code.CHANGED_MEANWHILE, "its z-node was taken away or replaced meanwhile")
            continue
        try:
            one.metadata = ledger_metadata.decode(node.data)
        except CorruptFormat as error:
            one.decide(Outcome.UNCONFIRMED, Code.CHANGED_MEANWHILE, f"its z-node was changed meanwhile: {error}")
            continue
        one.node = node
        left.append(one)
    lost: list[Undone] = []
    for one in _checked(ports, left):
        assert one.check is not None
        if one.check.lost:
            lost.append(one)
        elif one.check.unproven or (one.check.unanswered and not run.accept_unknown):
            why = f"{described(one)}; its z-node is back, run again to check again"
            one.decide(Outcome.UNCONFIRMED, Code.ENTRIES_UNPROVEN, why)
        else:
            one.decide(Outcome.RESTORED, Code.ENTRIES_THERE, described(one))
    try:
        _take_away(run, ports, lost)
    finally:
        record_undone(run, ports, ledgers)


def _take_away(run: UndoRun, ports: UndoPorts, lost: Sequence[Undone]) -> None:
    """Remove z-nodes whose entries are gone, if they are still as we made them."""
    ours: list[Undone] = []
    for one in lost:
        assert one.node is not None
        why = f"past saving: {described(one)}; its z-node is left, it was changed since it came back"
        one.decide(Outcome.UNCONFIRMED, Code.CHANGED_MEANWHILE, why)
        if one.node.stat.version == 0 and one.node.data == one.archived.data:
            ours.append(one)
    if not ours:
        return
    for one in ours:
        why = f"past saving: {described(one)}; its z-node is still there, run again"
        one.decide(Outcome.UNCONFIRMED, Code.STILL_THERE, why)
    control.check_not_paused(ports.store)
    try:
        ports.store.delete_many([Deletion(one.archived.path, 0) for one in ours], run.guard)
    finally:
        with contextlib.suppress(LifecycleError):  # not known: they stay unconfirmed
            ports.store.sync("/")
            for one, node in zip(ours, ports.store.read([one.archived.path for one in ours]), strict=True):
                if node is None:
                    why = f"past saving, collected while it came back: {described(one)}"
                    one.decide(Outcome.LOST, Code.ENTRIES_LOST, why)
