"""Phase two: decide every message of the deletion queue afresh, archive, delete, confirm, journal, acknowledge.

Belongs here: the order of these steps for one batch, and the fresh look at a ledger's owner. The rule itself is
``plan/orphans.py``, the same one that made the plan: a message only proposes. Nothing here trusts what a message says
beyond which ledger to look at.

A batch that is killed at any point repeats harmlessly: an archived ledger that still exists is decided again, a deleted
one is found gone and acknowledged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.engine import control, inventory, references
from pulsar_lifecycle.engine.inventory import MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT, Brokers
from pulsar_lifecycle.engine.throttle import RateBudget
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, Overloaded
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import ledger_path, managed_ledger
from pulsar_lifecycle.formats.deletion_message import LedgerComponent, LedgerType, PendingDeleteLedgerInfo
from pulsar_lifecycle.model import Topic, encode_name
from pulsar_lifecycle.plan import orphans
from pulsar_lifecycle.plan.deletion import component_of
from pulsar_lifecycle.plan.orphans import Finding
from pulsar_lifecycle.plan.references import Referenced
from pulsar_lifecycle.ports import (
    Archived,
    BrokerAdmin,
    Clock,
    Deletion,
    DeletionQueue,
    Journal,
    JournalRow,
    LedgerReader,
    MetadataStore,
    Node,
    Received,
    Unread,
)

DELETED = "deleted"
GONE = "gone"
KEPT = "kept"
REFUSED = "refused"
LATER = "later"
"""Outcomes. ``later``: neither deleted nor acknowledged; the next run decides again. All others are final."""

RAW_LIMIT = 65_536
"""Bytes of a refused message that the journal keeps."""

RACE_WINDOW_MS = 3_600_000
"""A ledger still listed by its topic's z-node may be a first phase under way for as long as this."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a deletion run knows of the whole cluster: two covered epochs and the owners' rules.

    ``refs`` is of the newest epoch, started at ``started_at``; ``earlier`` is of one at least ``confirm_after`` older,
    started at ``earlier_started_at``. A ledger must be absent from both, and the earlier one must have looked for it:
    ``earlier_czxid`` is of the newest ledger it listed. ``context.now`` is replaced by the run's.
    """

    refs: Referenced
    started_at: int
    earlier: Referenced
    earlier_started_at: int
    earlier_czxid: int
    context: orphans.Context


@dataclass(slots=True)
class Tools:
    """The ports of one worker."""

    store: MetadataStore
    reader: LedgerReader
    admin: BrokerAdmin
    queue: DeletionQueue
    journal: Journal
    clock: Clock


@dataclass(frozen=True, slots=True)
class Run:
    """What all workers of one run share.

    ``now`` decides every age: the time when the lease was taken, by the metadata store's clock or ours, whichever is
    behind, so that a clock that is wrong only keeps more. ``brokers`` were asked after it: a topic that they do not
    list and whose z-node was left alone until then cannot have been loaded since without its z-node showing it.
    """

    run_id: str
    cluster: str
    guard: tuple[str, int]
    ledgers_root: str
    now: int
    brokers: Brokers
    evidence: Evidence
    batch: int
    deletes_per_second: float
    slow_above_ms: float
    stop_above_ms: float


@dataclass(slots=True)
class Decision:
    """One message and what became of it."""

    message: Received
    outcome: str = ""
    reason: str = ""
    node: Node | None = None
    length: int = 0
    path: str = ""
    checksum: str = ""
    extra: dict[str, Any] = field(default_factory=dict[str, Any])

    @property
    def info(self) -> PendingDeleteLedgerInfo:
        """The message's content; only for messages that have one."""
        assert self.message.info is not None
        return self.message.info

    def settle(self, outcome: str, reason: str) -> None:
        """Decide, once: later calls change nothing."""
        if not self.outcome:
            self.outcome, self.reason = outcome, reason


def work_off(run: Run, tools: Tools, limit: int, wait_ms: int) -> Iterable[Decision]:
    """Take up to ``limit`` messages until the queue gives none for ``wait_ms``; yields decisions once they are durable.

    Raises Paused, LeaseLost or Overloaded between batches; nothing of a batch is then half done.
    """
    budget = RateBudget(run.deletes_per_second, tools.clock)
    taken = 0
    seen: set[bytes] = set()
    while taken < limit:
        control.check_not_paused(tools.store)
        mind_latency(run, tools)
        messages = tools.queue.receive(min(run.batch, limit - taken), wait_ms)
        fresh = [m for m in messages if m.message_id not in seen]
        if not fresh:
            return
        taken += len(fresh)
        seen.update(m.message_id for m in fresh)
        yield from delete_batch(run, tools, fresh, budget)


def mind_latency(run: Run, tools: Tools) -> None:
    """Slow down while ZooKeeper is slow, stop above the limit."""
    latency = tools.store.latency_ms()
    if latency > run.stop_above_ms:
        raise Overloaded(f"ZooKeeper answers in {latency:.0f} ms, the limit is {run.stop_above_ms:.0f} ms: stopped")
    if latency > run.slow_above_ms:
        tools.clock.sleep(latency / 1000)


def delete_batch(run: Run, tools: Tools, messages: Sequence[Received], budget: RateBudget) -> list[Decision]:
    """Decide, archive, delete, confirm, journal and acknowledge one batch; see the module docstring for the order."""
    decisions = [Decision(m) for m in messages]
    budget.take(0)  # wait here for what was deleted before, not between a decision and its deletion
    decide(run, tools, decisions)
    doomed = {d.path: d for d in reversed(decisions) if not d.outcome}
    twins = [d for d in decisions if not d.outcome and doomed[d.path] is not d]
    stopped: LifecycleError | None = None
    if doomed:
        control.check_not_paused(tools.store)
        budget.take(len(doomed))
        _archive(run, tools, doomed.values())
        outcomes: dict[str, str] = {}
        try:
            results = tools.store.delete_many(
                [Deletion(d.path, d.node.stat.version) for d in doomed.values() if d.node], run.guard
            )
            outcomes = {r.path: r.outcome for r in results}
        except LifecycleError as error:  # part of it may be done: what is there now says which
            stopped = error
        try:
            _confirm(tools, doomed, outcomes)
        except LifecycleError as error:
            stopped = stopped or error
            for d in doomed.values():
                d.settle(LATER, f"whether it was deleted is not known: {error}")
    for twin in twins:
        first = doomed[twin.path]
        twin.settle(LATER if first.outcome == LATER else GONE, "another message of this batch is about the same ledger")
    tools.journal.record([_row(run, d, tools.clock.now_ms()) for d in decisions])
    tools.queue.acknowledge([d.message for d in decisions if d.outcome != LATER])
    tools.queue.release([d.message for d in decisions if d.outcome == LATER])
    if stopped:
        raise stopped
    return decisions


def decide(run: Run, tools: Tools, decisions: Sequence[Decision]) -> None:
    """Settle every message that must not lead to a deletion now; those left without outcome may go.

    The z-nodes of the latter, as read here, are in ``node``: a deletion must name their version.
    """
    evidence = run.evidence
    for d in decisions:
        if d.message.info is None:
            d.settle(REFUSED, d.message.problem)
        elif d.info.ledger_type is LedgerType.OFFLOAD_LEDGER:
            d.settle(LATER, "deleting offloaded copies is not switched on")
        elif d.message.publish_time >= evidence.started_at:
            d.settle(LATER, "no covered scan has started since it was sent")
    live = [d for d in decisions if not d.outcome]
    if not live:
        return
    tools.store.sync("/")
    for d in live:
        d.path = ledger_path.ledger_path(d.info.ledger_id, run.ledgers_root)
    for d, node in zip(live, tools.store.read([d.path for d in live]), strict=True):
        if node is None:
            d.settle(GONE, "the ledger does not exist any more")
        elif not isinstance(node, Node):
            d.settle(LATER, f"its z-node could not be read: {node.reason}")
        else:
            d.node = node
            d.checksum = hashlib.sha256(node.data).hexdigest()
    live = [d for d in live if not d.outcome]
    _judge(run, tools, live)
    _look_at_owners(run, tools, [d for d in live if not d.outcome])


# ------------------------------------------------------------------------------------------------- the rule, afresh


def _judge(run: Run, tools: Tools, live: Sequence[Decision]) -> None:
    """Everything but the fresh look at the owner: tags against the message, and the orphan rule on today's z-node."""
    if not live:
        return
    evidence = run.evidence
    rows = inventory.ledger_rows([d.node for d in live if d.node], run.ledgers_root)
    by_id = {row["ledger_id"]: row for row in rows.to_pylist()}
    context = evidence.context.at(run.now)
    found = {row["ledger_id"]: row for row in orphans.judge(rows, evidence.refs, context).to_pylist()}
    for d in live:
        assert d.node is not None
        row, finding = by_id[d.info.ledger_id], found.get(d.info.ledger_id)
        d.length = row["length"] or 0
        mismatch = _mismatch(d.info, row)
        if mismatch:
            d.settle(REFUSED, mismatch)
        elif finding is None:
            d.settle(KEPT, "still in use: something refers to it")
        elif finding["finding"] not in (Finding.ORPHAN, orphans.PENDING):
            d.settle(KEPT, f"{finding['finding']}: {finding['reason']}")
        elif d.info.ledger_id in evidence.earlier.needed or d.info.ledger_id in evidence.earlier.offloaded:
            d.settle(LATER, "the earlier scan still found a reference: not confirmed yet")
        elif d.node.stat.czxid > evidence.earlier_czxid or d.node.stat.ctime >= evidence.earlier_started_at:
            d.settle(LATER, "younger than the earlier of the two scans: not confirmed yet")


def _mismatch(info: PendingDeleteLedgerInfo, row: Mapping[str, Any]) -> str:
    """How a message differs from the ledger it names; empty if it does not."""
    if row["error"]:
        return f"its z-node holds no metadata: {row['error']}"
    if row["application"] != "pulsar" or row["component"] not in orphans.COMPONENTS:
        return "not a ledger that Pulsar wrote"
    if info.czxid is not None and info.czxid != row["czxid"]:
        return "another ledger has this id now: its z-node was created by another transaction"
    if info.ctime is not None and info.ctime != row["ctime"]:
        return "another ledger has this id now: its z-node was created at another time"
    component = component_of(row["component"], row["cursor"])
    if info.component is not component:
        return f"the message says {info.component.value}, the ledger is {component.value}"
    _, topic = orphans.owner_of(
        row["component"], row["managed_ledger"], row["schema_id"], row["compacted_topic"], row["bucket_topic"]
    )
    named = Topic.parse(info.topic_name)
    if str(named) != topic and not (
        component is LedgerComponent.SCHEMA_STORAGE and str(named.partitioned_parent) == topic
    ):
        return f"the message says {info.topic_name}, the ledger is of {topic or 'no topic'}"
    if component is LedgerComponent.MANAGED_CURSOR and encode_name(info.cursor_name) != row["cursor"]:
        return f"the message says cursor {info.cursor_name}, the ledger is of {row['cursor']}"
    if component is LedgerComponent.SCHEMA_STORAGE and info.schema_id != row["schema_id"]:
        return f"the message says schema {info.schema_id}, the ledger is of {row['schema_id']}"
    if component is LedgerComponent.DELAYED_INDEX_BUCKET and (info.bucket_key, info.cursor_name) != (
        row["bucket_key"],
        row["bucket_cursor"],
    ):
        found = f"{row['bucket_key']} of {row['bucket_cursor']}"
        return f"the message says {info.bucket_key} of {info.cursor_name}, the ledger is {found}"
    return ""


# ---------------------------------------------------------------------------------------------- the owner's own word


def _look_at_owners(run: Run, tools: Tools, live: Sequence[Decision]) -> None:
    """Ask each ledger's owner, z-node and broker memory, whether it knows the ledger."""
    by_topic: dict[str, list[Decision]] = {}
    for d in live:
        by_topic.setdefault(d.info.topic_name, []).append(d)
    topics = [Topic.parse(name) for name in by_topic]
    nodes = tools.store.read([f"{MANAGED_LEDGERS_ROOT}/{t.managed_ledger}" for t in topics])
    for topic, node, group in zip(topics, nodes, by_topic.values(), strict=True):
        try:
            _look_at_topic(run, tools, topic, _readable(node), group)
        except LifecycleError as error:
            for d in group:
                d.settle(LATER, f"its owner could not be asked: {error}")


def _readable(node: Node | Unread | None) -> Node | None:
    """The node, or None where there is none; one that is there and could not be read raises CorruptFormat."""
    if isinstance(node, Unread):
        raise CorruptFormat(node.path, 0, "a readable z-node")
    return node


def _look_at_topic(run: Run, tools: Tools, topic: Topic, node: Node | None, group: Sequence[Decision]) -> None:
    info = managed_ledger.decode(node.data) if node else managed_ledger.decode(b"")
    listed = {item.ledger_id for item in info.ledgers}
    unsure, memory = _memory_of(run, tools, topic, node, info)
    pending: list[Decision] = []
    for d in group:
        if d.info.ledger_id in listed:
            fresh = tools.clock.now_ms() - d.message.publish_time < RACE_WINDOW_MS
            d.settle(LATER if fresh else KEPT, "still in use: its topic's z-node lists it")
        elif unsure:
            d.settle(LATER, unsure)
        elif d.info.ledger_id in memory:
            d.settle(LATER, "still in use: its broker holds it in memory")
        elif d.info.component in (LedgerComponent.COMPACTED_LEDGER, LedgerComponent.DELAYED_INDEX_BUCKET):
            pending.append(d)
    base = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"
    for d in [d for d in group if not d.outcome]:
        if d.info.component in (LedgerComponent.MANAGED_CURSOR, LedgerComponent.DELAYED_INDEX_BUCKET):
            _look_at_cursor(tools, d, f"{base}/{encode_name(d.info.cursor_name)}")
        elif d.info.component is LedgerComponent.COMPACTED_LEDGER:
            _look_at_compaction(run, tools, d, topic, f"{base}/{encode_name(references.COMPACTION_CURSOR)}")
        elif d.info.component is LedgerComponent.SCHEMA_STORAGE:
            _look_at_schema(run, tools, d)
    _settle_pending(run, tools, topic, node, info, [d for d in pending if not d.outcome])


def _memory_of(
    run: Run, tools: Tools, topic: Topic, node: Node | None, info: managed_ledger.ManagedLedgerInfo
) -> tuple[str, set[int]]:
    """What some broker may hold in memory of a topic: why that cannot be known now, and the ledgers it holds.

    Asking loads a topic that is not loaded, so only one that is listed and looks loaded is asked.
    """
    broker = run.brokers.loaded.get(str(topic))
    if node is None:
        return (f"its topic has no z-node, and {broker} still lists it", set()) if broker else ("", set())
    if not broker:
        recent = run.now - node.stat.mtime <= inventory.UNLOADED_AFTER * run.brokers.stats_interval
        return ("its topic's z-node was just written: some broker may be loading it" if recent else "", set())
    last = max((item.ledger_id for item in info.ledgers), default=None)
    state = inventory.ledger_states(tools.store, [last], run.ledgers_root)[0]
    if state != "OPEN" and info.terminated is None:
        return f"its topic is listed by {broker}, and its last ledger is {state or 'not there'}: being unloaded", set()
    return "", {ledger for ledger, _ in references.held(tools.admin.internal_stats(topic))}


def _look_at_cursor(tools: Tools, d: Decision, path: str) -> None:
    node = _readable(tools.store.read([path])[0])
    if node is None:
        return
    cursor = cursor_format.decode(node.data)
    d.extra["cursor_exists"] = True
    held = {b.ledger_id for b in cursor_format.bucket_ledgers(cursor.cursor_properties)} | {cursor.cursors_ledger_id}
    if d.info.ledger_id in held:
        d.settle(KEPT, "still in use: its cursor's z-node names it")


def _look_at_compaction(run: Run, tools: Tools, d: Decision, topic: Topic, path: str) -> None:
    node = _readable(tools.store.read([path])[0])
    if node is None:
        return
    cursor = cursor_format.decode(node.data)
    held = {cursor_format.compacted_ledger(cursor.properties)}
    if cursor.cursors_ledger_id >= 0:
        words = references.compaction_words(
            tools.store, tools.reader, [(topic.managed_ledger, path, cursor.cursors_ledger_id)], run.ledgers_root
        )
        for word in words:
            if word.error:
                d.settle(LATER, f"its topic's compaction cursor could not be read: {word.error}")
        held |= {word.ledger_id for word in words}
    if d.info.ledger_id in held:
        d.settle(KEPT, "still in use: it is its topic's compacted ledger")


def _look_at_schema(run: Run, tools: Tools, d: Decision) -> None:
    path = f"{SCHEMAS_ROOT}/{d.info.schema_id}"
    node = _readable(tools.store.read([path])[0])
    if node is None:
        return
    versions = inventory.schema_versions(node.data)
    if any(ledger == d.info.ledger_id for _, ledger, _ in versions):
        d.settle(KEPT, "still in use: its schema's locator names it")
        return
    for word in references.schema_words(
        tools.store, tools.reader, [(d.info.schema_id, path, versions)], run.ledgers_root
    ):
        if word.error:
            d.settle(LATER, f"its schema's index could not be read: {word.error}")
        elif word.ledger_id == d.info.ledger_id:
            d.settle(KEPT, "still in use: an entry of its schema names it")


def _settle_pending(
    run: Run,
    tools: Tools,
    topic: Topic,
    node: Node | None,
    info: managed_ledger.ManagedLedgerInfo,
    pending: Sequence[Decision],
) -> None:
    """Compacted ledgers and delayed-index snapshots: what ``orphans.settle`` wants to know, as it is now."""
    if not pending:
        return
    ids = sorted(item.ledger_id for item in info.ledgers)
    state, compaction = None, None
    if node:
        last = inventory.ledger_states(tools.store, [ids[-1] if ids else None], run.ledgers_root)[0]
        broker = run.brokers.loaded.get(str(topic))
        state, _ = inventory.load_state(info, node.stat.mtime, last, broker, run.brokers, run.now)
        if broker and any(d.info.component is LedgerComponent.COMPACTED_LEDGER for d in pending):
            compaction = tools.admin.compaction_status(topic)
    rows = [
        {
            "ledger_id": d.info.ledger_id,
            "component": "compacted-ledger"
            if d.info.component is LedgerComponent.COMPACTED_LEDGER
            else "delayed-index-bucket",
            "bucket_key": d.info.bucket_key or None,
            "topic_exists": node is not None,
            "load_state": state,
            "compaction": compaction,
            "first_ledger_id": ids[0] if ids else None,
            "cursor_exists": d.extra.get("cursor_exists", False),
        }
        for d in pending
    ]
    settled = orphans.settle(pa.Table.from_pylist(rows, schema=orphans.OWNER_FACTS))
    for d, row in zip(pending, settled.to_pylist(), strict=True):
        if row["finding"] != Finding.ORPHAN:
            d.settle(KEPT, row["reason"])


# ------------------------------------------------------------------------------------------------------- the effects


def _archive(run: Run, tools: Tools, doomed: Iterable[Decision]) -> None:
    now = tools.clock.now_ms()
    tools.journal.archive(
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


def _confirm(tools: Tools, doomed: Mapping[str, Decision], outcomes: Mapping[str, str]) -> None:
    """Give every doomed ledger its outcome by what is there now, whatever the deletion said.

    ``outcomes`` is empty where the deletion was cut short: what is absent then counts as deleted by this run.
    """
    tools.store.sync("/")
    for path, node in zip(doomed, tools.store.read(list(doomed)), strict=True):
        d, said = doomed[path], outcomes.get(path, "deleted")
        if node is None and said == "deleted":
            d.settle(DELETED, "orphan: nothing refers to it")
        elif node is None:
            d.settle(GONE, "someone else deleted it at the same moment")
        else:
            d.settle(LATER, "its z-node was changed meanwhile" if said == "changed" else "it was not deleted")


def _bounded(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a refused message, as many as fit :data:`RAW_LIMIT` characters."""
    kept: dict[str, str] = {}
    room = RAW_LIMIT
    for name, value in sorted(properties.items()):
        room -= len(name) + len(value)
        if room < 0:
            break
        kept[name] = value
    return kept


def _row(run: Run, d: Decision, now: int) -> JournalRow:
    info = d.message.info
    detail: dict[str, Any] = {"message": d.message.message_id.hex(), "publish_time": d.message.publish_time}
    if d.outcome == REFUSED:
        detail |= {"raw": d.message.raw[:RAW_LIMIT].hex(), "properties": _bounded(d.message.properties)}
    return JournalRow(
        run_id=run.run_id,
        cluster=run.cluster,
        plan_id=info.plan_id if info else "",
        ledger_id=info.ledger_id if info else -1,
        component=info.component.value if info else "",
        topic=info.topic_name if info else "",
        action="delete-ledger",
        phase="delete",
        outcome=d.outcome,
        reason=d.reason,
        bytes=d.length,
        checksum=d.checksum,
        detail=json.dumps(detail, sort_keys=True),
        at=now,
    )
