"""The owner's own word: whether the topic, cursor or schema that a ledger belongs to knows it now.

Belongs here: reading the owner's z-nodes afresh and asking the broker that holds it in memory. Not here: the orphan
rule itself (``planning/orphans.py``), and what is done with the answer (``deletion/batch.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import pyarrow as pa

from pulsar_lifecycle.copies.location import OffloadedCopy, location_of
from pulsar_lifecycle.deletion.decision import Decision, Run
from pulsar_lifecycle.deletion.planning import orphans
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.deletion_message import LedgerComponent
from pulsar_lifecycle.formats.ledger_metadata import COMPONENT_BUCKET, COMPONENT_COMPACTED_LEDGER
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.formats.retry_letter import reconsume_times, waiting_since
from pulsar_lifecycle.metastore import load_state, schemas
from pulsar_lifecycle.metastore.walk import SCHEMAS_ROOT
from pulsar_lifecycle.model import COMPACTION_CURSOR, MANAGED_LEDGERS_ROOT, Topic, cursor_nodes
from pulsar_lifecycle.ports import MetadataStore, Node, TopicInternals, Unread
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.scan import snapshot_memory, stored_references
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import CopyDeletion, OffloadLocation
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.outcomes import Outcome

RACE_WINDOW_MS = 3_600_000
"""A ledger still listed by its topic's z-node may be a first phase under way for as long as this."""


STILL_IN_USE = "still in use: "
"""How the sentence of ``Code.STILL_IN_USE`` begins."""

Look = Callable[[Run, Ports, Topic, Node | None, Sequence[Decision]], None]
"""Decides the messages of one topic by its z-node as it is now, None where there is none."""


def look_at_owners(run: Run, ports: Ports, live: Sequence[Decision]) -> None:
    """Ask each ledger's owner, z-node and broker memory, whether it knows the ledger."""
    ask_owners(run, ports, live, _look_at_topic)


def ask_owners(run: Run, ports: Ports, live: Sequence[Decision], look: Look) -> None:
    """``look`` at the messages of each topic; those of one that cannot be looked at are retried."""
    by_topic: dict[str, list[Decision]] = {}
    for d in live:
        by_topic.setdefault(d.info.topic_name, []).append(d)
    topics = [Topic.parse(name) for name in by_topic]
    nodes = ports.store.read([f"{MANAGED_LEDGERS_ROOT}/{t.managed_ledger}" for t in topics])
    for topic, node, group in zip(topics, nodes, by_topic.values(), strict=True):
        try:
            look(run, ports, topic, _readable(node), group)
        except LifecycleError as error:
            for d in group:
                d.decide(Outcome.RETRYING, Code.UNREAD, f"its owner could not be asked: {error}")


def in_use(run: Run, ports: Ports, d: Decision, why: str, since: int = 0) -> None:
    """Keep it; but a first phase may still be under way while the message, or its mark (``since``, ms), is young."""
    fresh = ports.clock.now_ms() - max(first_sent(run, d), since) < RACE_WINDOW_MS
    d.decide(Outcome.RETRYING if fresh else Outcome.KEPT, Code.STILL_IN_USE, f"{STILL_IN_USE}{why}")


def read_instead(
    store: MetadataStore, info: ManagedLedgerInfo, ledger_id: int, deletion: CopyDeletion, topic: Topic
) -> OffloadLocation | Why:
    """Where brokers read a ledger whose copy in BookKeeper is listed as deleted, or why they may still read that."""
    listed = {item.ledger_id: item for item in info.ledgers}
    if ledger_id not in listed:
        return Why(Code.DELISTED, "its topic does not list it any more: the next scan decides")
    item = listed[ledger_id]
    if why := still_used(store, item, max(listed), deletion, topic):
        return why
    copy = OffloadedCopy.of_item(item, 0)
    if copy is None:
        text = "its topic's z-node does not say by which driver it is offloaded"
        return Why(Code.COPY_DIFFERS, text)
    return location_of(copy)


def still_used(store: MetadataStore, item: LedgerInfo, last: int, deletion: CopyDeletion, topic: Topic) -> Why | None:
    """Why a listed ledger is in use though its copy in BookKeeper is listed as deleted; None if that holds still."""
    offload = item.offload
    if offload is None or not offload.complete or not offload.bookkeeper_deleted:
        return Why(
            Code.FROM_BOOKKEEPER, "its topic's z-node lists it, and does not list its copy in BookKeeper as deleted"
        )
    if offload.uuid != deletion.uuid or offload.driver_metadata.get("bucket") != deletion.bucket:
        return Why(Code.COPY_DIFFERS, f"its topic's z-node names another offload, {offload.uuid}")
    if item.ledger_id == last:
        return Why(Code.LAST_LEDGER, "it is the last ledger of its topic: a broker that loads it forgets its offload")
    if control.has_pending_unload(store, topic):
        return Why(Code.UNLOAD_PENDING, "an unload of its topic is pending: a broker may read it in BookKeeper")
    return None


def first_sent(run: Run, d: Decision) -> int:
    """When the intent was first sent (ms): each retry, and each copy that waits, is a message published anew."""
    published = d.message.publish_time
    claimed = d.info.sent_at
    if claimed is not None and 0 < claimed <= published:
        return claimed
    since = waiting_since(d.message.properties, published) or published
    return since - reconsume_times(d.message.properties) * run.retry_delay_ms


def _readable(node: Node | Unread | None) -> Node | None:
    """The node, or None where there is none; one that is there and could not be read raises CorruptFormat."""
    if isinstance(node, Unread):
        raise CorruptFormat(node.path, 0, "a readable z-node")
    return node


def _look_at_topic(run: Run, ports: Ports, topic: Topic, node: Node | None, group: Sequence[Decision]) -> None:
    info = managed_ledger.decode(node.data) if node else managed_ledger.decode(b"")
    listed = {item.ledger_id for item in info.ledgers}
    memory = memory_of(run, ports, topic, node, info)
    pending: list[Decision] = []
    for d in group:
        if d.copy_deletion:
            where = read_instead(ports.store, info, d.info.ledger_id, d.copy_deletion, topic)
            if not isinstance(where, Why):
                d.site = where
            elif where.code is Code.DELISTED:
                d.decide(Outcome.RETRYING, Code.DELISTED, where.text)
            else:
                in_use(run, ports, d, where.text)
        elif d.info.ledger_id in listed:
            in_use(run, ports, d, "its topic's z-node lists it")
        elif memory.unsure:
            d.decide(Outcome.RETRYING, Code.NOT_KNOWN_YET, memory.unsure.text)
        elif d.info.ledger_id in memory.ledgers:
            d.decide(Outcome.RETRYING, Code.STILL_IN_USE, f"{STILL_IN_USE}its broker holds it in memory")
        elif d.info.component in (LedgerComponent.COMPACTED_LEDGER, LedgerComponent.DELAYED_INDEX_BUCKET):
            pending.append(d)
    base = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"
    for d in [d for d in group if not d.outcome]:
        if d.info.component in (LedgerComponent.MANAGED_CURSOR, LedgerComponent.DELAYED_INDEX_BUCKET):
            for name in cursor_nodes(d.info.cursor_name):
                _look_at_cursor(ports, d, f"{base}/{name}")
        elif d.info.component is LedgerComponent.COMPACTED_LEDGER:
            _look_at_compaction(run, ports, d, topic, f"{base}/{COMPACTION_CURSOR}")
        elif d.info.component is LedgerComponent.SCHEMA_STORAGE:
            _look_at_schema(run, ports, d)
    _decide_pending(run, ports, topic, node, info, memory.internals, [d for d in pending if not d.outcome])


@dataclass(frozen=True, slots=True)
class BrokerMemory:
    """What a broker says it has in memory of a topic, or why that cannot be known now; neither, if none has it."""

    unsure: Why | None = None
    internals: TopicInternals | None = None

    @property
    def ledgers(self) -> set[int]:
        """The ledgers it holds."""
        return {ledger for ledger, _ in stored_references.held(self.internals)} if self.internals else set()


def memory_of(run: Run, ports: Ports, topic: Topic, node: Node | None, info: ManagedLedgerInfo) -> BrokerMemory:
    """Ask what some broker may hold in memory of a topic.

    Asking loads a topic that is not loaded, so only one that is listed and looks loaded is asked.
    """
    broker = run.brokers.loaded.get(str(topic))
    if node is None:
        return (
            _not_known_yet(f"its topic has no z-node, and {load_state.still_listed(broker)}")
            if broker
            else BrokerMemory()
        )
    if not broker:
        if run.now - node.stat.mtime <= load_state.UNLOADED_AFTER * run.brokers.stats_interval:
            return _not_known_yet("its topic's z-node was just written: some broker may be loading it")
        return BrokerMemory()
    last = max((item.ledger_id for item in info.ledgers), default=None)
    state = load_state.ledger_states(ports.store, [last], run.ledgers_root)[0]
    if state != "OPEN" and info.terminated is None:
        now = state or "not there"
        text = f"its topic is listed by {broker}, and its last ledger is {now}: being unloaded"
        return _not_known_yet(f"{text}; if that lasts, unload it, or have a client publish to it")
    return BrokerMemory(internals=ports.admin.internal_stats(topic))


def _not_known_yet(text: str) -> BrokerMemory:
    return BrokerMemory(Why(Code.NOT_KNOWN_YET, f"not known yet: {text}"))


def _look_at_cursor(ports: Ports, d: Decision, path: str) -> None:
    node = _readable(ports.store.read([path])[0])
    if node is None:
        return
    cursor = cursor_format.decode(node.data)
    d.cursor_exists = True
    held = {b.ledger_id for b in cursor_format.bucket_ledgers(cursor.cursor_properties)} | {cursor.cursors_ledger_id}
    if d.info.ledger_id in held:
        d.decide(Outcome.KEPT, Code.STILL_IN_USE, f"{STILL_IN_USE}its cursor's z-node names it")


def _look_at_compaction(run: Run, ports: Ports, d: Decision, topic: Topic, path: str) -> None:
    node = _readable(ports.store.read([path])[0])
    if node is None:
        return
    cursor = cursor_format.decode(node.data)
    held = {cursor_format.compacted_ledger(cursor.properties)}
    if cursor.cursors_ledger_id >= 0:
        stored = stored_references.compaction_references(
            ports.store, ports.reader, [(topic.managed_ledger, path, cursor.cursors_ledger_id)], run.ledgers_root
        )
        for one in stored:
            if one.keeps_owner:
                d.decide(Outcome.KEPT, Code.DAMAGED_REFERENCE, f"its topic's compaction cursor is damaged: {one.error}")
            elif one.problem:
                d.decide(Outcome.RETRYING, Code.UNREAD, f"its topic's compaction cursor could not be read: {one.error}")
        held |= {one.ledger_id for one in stored}
    if d.info.ledger_id in held:
        d.decide(Outcome.KEPT, Code.STILL_IN_USE, f"{STILL_IN_USE}it is its topic's compacted ledger")


def _look_at_schema(run: Run, ports: Ports, d: Decision) -> None:
    path = f"{SCHEMAS_ROOT}/{d.info.schema_id}"
    node = _readable(ports.store.read([path])[0])
    if node is None:
        return
    versions = schemas.schema_versions(node.data)
    if any(ledger == d.info.ledger_id for _, ledger, _ in versions):
        d.decide(Outcome.KEPT, Code.STILL_IN_USE, f"{STILL_IN_USE}its schema's locator names it")
        return
    for one in stored_references.schema_references(
        ports.store, ports.reader, [(d.info.schema_id, path, versions)], run.ledgers_root
    ):
        if one.keeps_owner:
            d.decide(Outcome.KEPT, Code.DAMAGED_REFERENCE, f"its schema's index is damaged: {one.error}")
        elif one.problem:
            d.decide(Outcome.RETRYING, Code.UNREAD, f"its schema's index could not be read: {one.error}")
        elif one.ledger_id == d.info.ledger_id:
            d.decide(Outcome.KEPT, Code.STILL_IN_USE, f"{STILL_IN_USE}an entry of its schema names it")


def _decide_pending(
    run: Run,
    ports: Ports,
    topic: Topic,
    node: Node | None,
    info: ManagedLedgerInfo,
    internals: TopicInternals | None,
    pending: Sequence[Decision],
) -> None:
    """Compacted ledgers and delayed-index snapshots: what ``orphans.decide_pending`` wants to know, as it is now."""
    if not pending:
        return
    ids = sorted(item.ledger_id for item in info.ledgers)
    state, last, compaction = None, None, None
    broker = run.brokers.loaded.get(str(topic))
    if node:
        last = load_state.ledger_states(ports.store, [ids[-1] if ids else None], run.ledgers_root)[0]
        state = load_state.load_state(info, node.stat.mtime, last, broker, run.brokers, run.now).state
        if broker and any(d.info.component is LedgerComponent.COMPACTED_LEDGER for d in pending):
            compaction = ports.admin.compaction_status(topic)
    rows = [
        {
            "ledger_id": d.info.ledger_id,
            "component": COMPONENT_COMPACTED_LEDGER
            if d.info.component is LedgerComponent.COMPACTED_LEDGER
            else COMPONENT_BUCKET,
            "topic_exists": node is not None,
            "load_state": state,
            "compaction": compaction,
            "memory": _snapshot_memory(run, d, broker, last, internals).value,
        }
        for d in pending
    ]
    decided = orphans.decide_pending(pa.Table.from_pylist(rows, schema=snapshot_memory.OWNER_FACTS))
    for d, row in zip(pending, decided.to_pylist(), strict=True):
        if row["finding"] != Finding.ORPHAN:
            d.decide(Outcome.KEPT, orphans.code_of(row), row["reason"])


def _snapshot_memory(
    run: Run, d: Decision, broker: str | None, last: str | None, internals: TopicInternals | None
) -> snapshot_memory.Memory:
    """What the broker can hold of a delayed-index snapshot, by its answer of just now."""
    why = snapshot_memory.before_asking(
        stored_cursor=d.cursor_exists,
        broker=broker,
        last_ledger=last,
        started=run.brokers.started.get(broker or ""),
        made=d.node.stat.ctime if d.node else None,
    )
    return why or snapshot_memory.answered(internals.cursors if internals else None, d.info.cursor_name)
