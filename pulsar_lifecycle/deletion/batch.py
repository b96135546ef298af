# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import.
"""The second phase: decide every message of the deletion queue afresh, archive, delete, confirm, journal, acknowledge.

Belongs here: the order of these steps for one batch. The rule itself is ``planning/orphans.py``, the same one that made
the plan: a message only proposes. Nothing here trusts what a message says beyond which ledger to look at.

A batch that is killed at any point repeats harmlessly: an archived ledger that still exists is decided again, a deleted
one is found gone and acknowledged; whose deletion that was, the next run writes down (``journal/in_doubt.py``). What
fails goes to the retry topic before its message is acknowledged. So does what must wait: brokers hand out no more than
so many unacknowledged messages, and whatever stayed at the head would hide what is behind it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pulsar_lifecycle.deletion import offloaded_copies
from pulsar_lifecycle.deletion.decision import Decision, Run
from pulsar_lifecycle.deletion.decision_row import journal_row
from pulsar_lifecycle.deletion.owner_check import in_use, look_at_owners
from pulsar_lifecycle.deletion.planning import orphans
from pulsar_lifecycle.deletion.released import look_at_copies
from pulsar_lifecycle.deletion.run_evidence import NO_EARLIER_SCAN
from pulsar_lifecycle.deletion.waiting import STAYS, send_back, stay
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats import ledger_path
from pulsar_lifecycle.formats.deletion_message import LedgerComponent, LedgerType, PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.retry_letter import WAITING_RUN
from pulsar_lifecycle.journal.in_doubt import NOT_KNOWN, TWIN
from pulsar_lifecycle.metastore.bookkeeper_ledgers import ledger_rows
from pulsar_lifecycle.model import Topic, cursor_name
from pulsar_lifecycle.ports import Archived, Deletion, Node, NodeDeletion, Received
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.records import findings, owner_names
from pulsar_lifecycle.records.codes import Code, Why
from pulsar_lifecycle.records.findings import Finding, component_of
from pulsar_lifecycle.records.outcomes import Outcome, Phase, Waiting
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.throttle import RateBudget, mind_latency

COMPARED = [
    *("ledger_id", "length", "state", "problem", "error", "czxid", "ctime"),
    *("application", "component", "managed_ledger"),
    *("cursor", "schema_id", "compacted_topic", "bucket_key", "bucket_topic", "bucket_cursor"),
]
"""What of a ledger's row a message is compared with."""

MAY_GO = (Finding.ORPHAN, orphans.PENDING)
"""Findings of the rule that leave the last word to the owner."""

SENDERS_AHEAD_MS = 3_600_000
"""A message dated later than this from now would wait for a scan that never comes."""


def work_off(run: Run, ports: Ports, limit: int, wait_ms: int) -> Iterable[Decision]:
    """Take up to ``limit`` messages until the queue gives none for ``wait_ms``; yields decisions once they are durable.

    What this very run sent back because it must wait, and is handed out again, stays where it is: no run takes
    anything twice. Raises Paused, LeaseLost or Overloaded between batches; nothing of a batch is then half done.
    """
    budgets = Budgets(run, ports)
    taken = 0
    seen: set[bytes] = set()
    while taken < limit:
        control.check_not_paused(ports.store)
        mind_latency(ports.store.latency_ms(), run.slow_above_ms, run.stop_above_ms, ports.clock)
        messages = ports.queue.receive(min(run.batch, limit - taken), wait_ms)
        fresh = [m for m in messages if m.message_id not in seen]
        if not fresh:
            return
        seen.update(m.message_id for m in fresh)
        own = [m for m in fresh if m.properties.get(WAITING_RUN) == run.run_id]
        ports.queue.release(own)
        others = [m for m in fresh if m.properties.get(WAITING_RUN) != run.run_id]
        taken += len(others)
        if others:
            yield from delete_batch(run, ports, others, budgets)


class Budgets:
    """One worker's share of the cluster-wide budgets: deletions (a ledger, a pair of objects) and bytes per second."""

    def __init__(self, run: Run, ports: Ports) -> None:
        self._ledgers = RateBudget(run.deletes_per_second, ports.clock)
        self._bytes = RateBudget(run.bytes_per_second, ports.clock)

    def wait(self) -> None:
        """Wait until what was deleted before is paid for."""
        self._ledgers.take(0)
        self._bytes.take(0)

    def take(self, doomed: Iterable[Decision]) -> None:
        """Take what these deletions cost."""
        lengths = [d.length for d in doomed]
        self._ledgers.take(len(lengths))
        self._bytes.take(sum(lengths))


def delete_batch(run: Run, ports: Ports, messages: Sequence[Received], budgets: Budgets) -> list[Decision]:
    """Decide, archive, delete, confirm, journal and acknowledge one batch; see the module docstring for the order."""
    decisions = [Decision(m) for m in messages]
    budgets.wait()  # wait here, not between a decision and its deletion
    decide(run, ports, decisions)
    doomed = {d.path: d for d in reversed(decisions) if not d.outcome}
    twins = [d for d in decisions if not d.outcome and doomed[d.path] is not d]
    ledgers = {path: d for path, d in doomed.items() if d.info.ledger_type is LedgerType.LEDGER}
    copies = [d for d in doomed.values() if d.info.ledger_type is LedgerType.OFFLOAD_LEDGER]
    if doomed:
        budgets.take(doomed.values())
    stopped = _delete(run, ports, ledgers) if ledgers else None
    stopped = _delete_copies(run, ports, copies, stopped) if copies else stopped
    for twin in twins:
        first = doomed[twin.path]
        assert first.outcome is not None
        outcome = Outcome.GONE if first.outcome in (Outcome.DELETED, Outcome.GONE) else first.outcome
        twin.decide(outcome, Code.TWIN, TWIN)
        twin.waiting = first.waiting
    _reconsume(run, ports, [d for d in decisions if d.outcome == Outcome.RETRYING])
    for d in decisions:
        if d.outcome == Outcome.WAITING and not d.message.topic:
            d.outcome = Outcome.NOT_DELETED
    if not stopped:
        send_back(run, ports, [d for d in decisions if d.outcome == Outcome.WAITING and d.waiting not in STAYS])
    ports.journal.record([journal_row(run, d, ports.clock.now_ms()) for d in decisions])
    ports.queue.acknowledge([d.message for d in decisions if d.outcome != Outcome.WAITING or d.sent_back])
    ports.queue.release([d.message for d in decisions if d.outcome == Outcome.WAITING and not d.sent_back])
    if stopped:
        raise stopped
    return decisions


def _delete(run: Run, ports: Ports, doomed: Mapping[str, Decision]) -> LifecycleError | None:
    """Archive, delete and confirm; every doomed ledger has its outcome then. Returns what stops the run, if anything.

    What stops a run is no message's fault: then what was not deleted waits, and no retry of it is counted.
    """
    control.check_not_paused(ports.store)
    _archive(run, ports, doomed.values())
    outcomes: dict[str, NodeDeletion] = {}
    stopped: LifecycleError | None = None
    try:
        results = ports.store.delete_many(
            [Deletion(d.path, d.node.stat.version) for d in doomed.values() if d.node], run.guard
        )
        outcomes = {r.path: r.outcome for r in results}
    except LifecycleError as error:  # part of it may be done: what is there now says which
        stopped = error
    try:
        _confirm(ports, doomed, outcomes, Outcome.WAITING if stopped else Outcome.RETRYING)
    except LifecycleError as error:
        stopped = stopped or error
        for d in doomed.values():
            d.wait(Waiting.STOPPED, f"{NOT_KNOWN}: {error}", Code.OUTCOME_UNKNOWN)
    return stopped


def _delete_copies(
    run: Run, ports: Ports, copies: Sequence[Decision], stopped: LifecycleError | None
) -> LifecycleError | None:
    """As :func:`_delete`, for offloaded copies; no archive can hold them, so the journal says what they were, before.

    The ledgers of the batch are done by then: what goes wrong here is returned, never raised.
    """
    try:
        if stopped:
            raise stopped
        control.check_not_paused(ports.store)
        now = ports.clock.now_ms()
        ports.journal.record([journal_row(run, d, now, Phase.ARCHIVE, Outcome.DELETING) for d in copies])
    except LifecycleError as error:
        for d in copies:
            d.wait(Waiting.STOPPED, f"the run was stopped: {error}")
        return error
    return offloaded_copies.delete(run, ports, copies)


def _reconsume(run: Run, ports: Ports, failed: Sequence[Decision]) -> None:
    """Send what failed to the retry topic, or to the dead-letter topic; what could not be sent waits."""
    if not failed:
        return
    try:
        postponed = ports.queue.reconsume_later([d.message for d in failed], run.retry_delay_ms, run.max_retries)
    except LifecycleError as error:
        stay(failed, f"the retry topic could not be asked: {error}")
        return
    for d, one in zip(failed, postponed, strict=True):
        d.reconsume_times = one.times
        if one.error:
            stay([d], f"it could not be sent to the retry topic: {one.error}" if d.message.topic else one.error)
        elif one.dead:
            d.outcome, d.reason = Outcome.DEAD_LETTERED, f"{d.reason}; {run.max_retries} retries did not help"


def decide(run: Run, ports: Ports, decisions: Sequence[Decision]) -> None:
    """Decide every message that must not lead to a deletion now; those left without outcome may go.

    The z-nodes of the latter, as read here, are in ``node``: a deletion must name their version.
    """
    evidence = run.evidence
    latest = max(ports.clock.now_ms(), run.now) + SENDERS_AHEAD_MS
    for d in decisions:
        if d.message.info is None:
            d.decide(Outcome.REFUSED, Code.UNPARSEABLE, d.message.problem)
        elif d.message.publish_time > latest:
            why = "its sender's clock is ahead: its copy on the retry topic is dated by ours"
            d.decide(Outcome.RETRYING, Code.SENDERS_CLOCK, why)
        elif d.message.publish_time >= evidence.started_at:
            d.wait(Waiting.NO_SCAN, "no covered scan has started since it was sent")
    offloaded_copies.decide(
        run, ports, [d for d in decisions if not d.outcome and d.info.ledger_type is LedgerType.OFFLOAD_LEDGER]
    )
    live = [d for d in decisions if not d.outcome and d.info.ledger_type is LedgerType.LEDGER]
    if not live:
        return
    ports.store.sync("/")
    for d in live:
        d.path = ledger_path.ledger_path(d.info.ledger_id, run.ledgers_root)
    for d, node in zip(live, ports.store.read([d.path for d in live]), strict=True):
        if node is None:
            d.decide(Outcome.GONE, Code.NOT_THERE, "the ledger does not exist any more")
        elif not isinstance(node, Node):
            d.decide(Outcome.RETRYING, Code.UNREAD, f"its z-node could not be read: {node.reason}")
        else:
            d.node = node
            d.checksum = hashlib.sha256(node.data).hexdigest()
    live = [d for d in live if not d.outcome]
    _judge(run, ports, live)
    look_at_owners(run, ports, [d for d in live if not d.outcome])
    look_at_copies(run, ports, [d for d in live if not d.outcome])


def _judge(run: Run, ports: Ports, live: Sequence[Decision]) -> None:
    """Everything but the fresh look at the owner: tags against the message, and the orphan rule on today's z-node."""
    if not live:
        return
    evidence = run.evidence
    rows = ledger_rows([d.node for d in live if d.node], run.ledgers_root)
    by_id = {row["ledger_id"]: row for row in rows.select(COMPARED).to_pylist()}
    context = evidence.context.at(run.now)
    found = _found(rows, run, context)
    marked = {
        row["ledger_id"]: at
        for row in by_id.values()
        if (at := evidence.marked_at(row["ledger_id"], row["czxid"])) is not None
    }
    passing: dict[int, dict[str, Any]] = {}
    if marked:
        chosen = rows.filter(pc.is_in(rows.column("ledger_id"), pa.array(sorted(marked), pa.int64())))
        waived = replace(context, grace=0)
        found |= _found(chosen, run, waived)
        # what the rule says once a replica is copied and the open ledger closed
        passing = _found(chosen, run, replace(waived, under_replicated=BitMap64(), open_topics=frozenset()))
    for d in live:
        assert d.node is not None
        row, finding = by_id[d.info.ledger_id], found.get(d.info.ledger_id)
        d.length = row["length"] or 0
        marked_at = marked.get(d.info.ledger_id)
        if mismatch := _mismatch(d.info, row):
            d.decide(Outcome.REFUSED, Code.MISMATCH, mismatch.text)
        elif marked_at is not None and marked_at >= evidence.started_at:
            d.wait(Waiting.NO_SCAN, "no covered scan has started since it left its topic")
        elif finding is None:  # a scan may have read its topic's list just before a first phase shortened it
            in_use(run, ports, d, "something refers to it", marked_at or 0)
        elif finding["finding"] == Finding.OFFLOAD_LEFTOVER and _released(run, d, row):
            if rule := orphans.released_rule(row, context):  # its owner has the next word
                outcome, why = rule
                d.decide(outcome, why.code, why.text)
        elif finding["finding"] not in MAY_GO:
            passes = marked_at is not None and passing[d.info.ledger_id]["finding"] in MAY_GO
            d.decide(Outcome.RETRYING if passes else Outcome.KEPT, orphans.code_of(finding), finding["reason"])
        elif marked_at is not None:
            continue
        elif evidence.earlier_started_at is None:
            d.wait(Waiting.NO_EARLIER_SCAN, f"not confirmed: {NO_EARLIER_SCAN}")
        elif why := evidence.unconfirmed(d.info.ledger_id, d.node.stat.czxid, d.node.stat.ctime):
            d.decide(Outcome.KEPT, Code.NOT_CONFIRMED, why.text)


def _released(run: Run, d: Decision, row: Mapping[str, Any]) -> bool:
    """Whether our own run proved its offloaded copy and released exactly this one; the last looks then ask again."""
    released = run.evidence.offloads.released.get(d.info.ledger_id)
    if released is None or (released.czxid, released.topic) != (row["czxid"], d.info.topic_name):
        return False
    d.released = released
    return True


def _found(rows: pa.Table, run: Run, context: findings.Context) -> dict[int, dict[str, Any]]:
    found = orphans.judge(rows, run.evidence.refs, context).select(["ledger_id", "finding", "code", "reason"])
    return {row["ledger_id"]: row for row in found.to_pylist()}


def _mismatch(info: PendingDeleteLedgerInfo, row: Mapping[str, Any]) -> Why | None:
    """How a message differs from the ledger it names; None if it does not."""
    if row["problem"]:
        return Why(Code.MISMATCH, f"its z-node holds no metadata: {row['error']}")
    if row["application"] != "pulsar" or row["component"] not in findings.COMPONENTS:
        return Why(Code.MISMATCH, "not a ledger that Pulsar wrote")
    if info.czxid is not None and info.czxid != row["czxid"]:
        return Why(Code.MISMATCH, "another ledger has this id now: its z-node was created by another transaction")
    if info.ctime is not None and info.ctime != row["ctime"]:
        return Why(Code.MISMATCH, "another ledger has this id now: its z-node was created at another time")
    component = component_of(row["component"], row["cursor"])
    if info.component is not component:
        return Why(Code.MISMATCH, f"the message says {info.component.value}, the ledger is {component.value}")
    _, topic = owner_names.owner_in(row)
    named = Topic.parse(info.topic_name)
    if str(named) != topic and not (
        component is LedgerComponent.SCHEMA_STORAGE and str(named.partitioned_parent) == topic
    ):
        return Why(Code.MISMATCH, f"the message says {info.topic_name}, the ledger is of {topic or 'no topic'}")
    if component is LedgerComponent.MANAGED_CURSOR and cursor_name(row["cursor"]) != info.cursor_name:
        return Why(Code.MISMATCH, f"the message says cursor {info.cursor_name}, the ledger is of {row['cursor']}")
    if component is LedgerComponent.SCHEMA_STORAGE and info.schema_id != row["schema_id"]:
        return Why(Code.MISMATCH, f"the message says schema {info.schema_id}, the ledger is of {row['schema_id']}")
    if component is LedgerComponent.DELAYED_INDEX_BUCKET and (info.bucket_key, info.cursor_name) != (
        row["bucket_key"],
        row["bucket_cursor"],
    ):
        found = f"{row['bucket_key']} of {row['bucket_cursor']}"
        return Why(Code.MISMATCH, f"the message says {info.bucket_key} of {info.cursor_name}, the ledger is {found}")
    return None


def _archive(run: Run, ports: Ports, doomed: Iterable[Decision]) -> None:
    now = ports.clock.now_ms()
    ports.journal.archive(
        [
            Archived(
                run.run_id,
                run.cluster,
                d.info.ledger_id,
                d.path,
                d.node.data,
                d.node.stat.version,
                d.node.stat.czxid,
                d.node.stat.ctime,
                now,
            )
            for d in doomed
            if d.node
        ]
    )


def _confirm(
    ports: Ports, doomed: Mapping[str, Decision], outcomes: Mapping[str, NodeDeletion], failed: Outcome
) -> None:
    """Give every doomed ledger its outcome by what is there now, whatever the deletion said.

    ``outcomes`` is empty where the deletion was cut short: what is absent then counts as deleted by this run. What is
    still there gets the outcome ``failed``.
    """
    ports.store.sync("/")
    for path, node in zip(doomed, ports.store.read(list(doomed)), strict=True):
        d, said = doomed[path], outcomes.get(path, NodeDeletion.DELETED)
        if node is None and said is NodeDeletion.DELETED:
            if d.released:
                why = "its topic released its copy in BookKeeper, and its offloaded one is whole"
                d.decide(Outcome.DELETED, Code.COPY_RELEASED, why)
            else:
                d.decide(Outcome.DELETED, Code.UNREFERENCED, "nothing refers to it")
        elif node is None:
            d.decide(Outcome.GONE, Code.NOT_THERE, "someone else deleted it at the same moment")
        else:
            if said is NodeDeletion.CHANGED:
                d.decide(failed, Code.CHANGED_MEANWHILE, "its z-node was changed meanwhile")
            else:
                d.decide(failed, Code.STILL_THERE, "it was not deleted")
            d.waiting = Waiting.STOPPED if failed == Outcome.WAITING else None
