# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportMissingTypeStubs=false
# pyarrow has no types.
"""Why the ledgers of a topic are still there, and what would free each: ``explain TOPIC``.

Belongs here: reading one topic afresh, judging it by the rule of the retention plan, and the sentence that a code gets.
Not here: the rule (``lifecycle/retention.py``), one ledger's explanation (``inspect/explain.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.errors import NotFound, Refused
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.lifecycle.retention import judge
from pulsar_lifecycle.lifecycle.retention_inputs import persisted_positions, retention_topics
from pulsar_lifecycle.lifecycle.verdicts import GONE, RetentionVerdict
from pulsar_lifecycle.metastore import load_state, topics
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.metastore.walk import MANAGED_LEDGERS_ROOT, Unit
from pulsar_lifecycle.model import Position, Topic, cursor_name
from pulsar_lifecycle.ports import Node, Unread
from pulsar_lifecycle.records import tables
from pulsar_lifecycle.records.topic_load import TopicLoad
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.topics import protection, snapshot
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.retention_now import retention_now
from pulsar_lifecycle.topics.retention_policy import RetentionPolicy
from pulsar_lifecycle.topics.topic_run import owners_rules

FREED_BY: Mapping[RetentionVerdict | Protection, str] = {
    RetentionVerdict.EXPIRED_BY_TIME: "jobs plan_retention and apply_retention",
    RetentionVerdict.EXPIRED_BY_SIZE: "jobs plan_retention and apply_retention",
    RetentionVerdict.NO_RETENTION: "jobs plan_retention and apply_retention",
    RetentionVerdict.EMPTY: "jobs plan_retention and apply_retention",
    RetentionVerdict.LAST_LEDGER: "a broker that loads the topic closes it; its retention time begins then",
    RetentionVerdict.CURSOR: "its consumers, or `pulsar-admin topics skip-all`, `expire-messages` or `unsubscribe`",
    RetentionVerdict.WITHIN_TIME: "time",
    RetentionVerdict.WITHIN_SIZE: "more data behind it, or a smaller retention size",
    RetentionVerdict.FOREVER: "a finite retention policy",
    RetentionVerdict.NOT_PREFIX: "what frees the ledgers before it",
    RetentionVerdict.UNKNOWN_POLICY: "a retention policy that can be read: `warnings` has more",
    RetentionVerdict.UNKNOWN_CURSOR: "a cursor ledger that can be read, or `pulsar-admin topics unsubscribe`",
    RetentionVerdict.UNKNOWN_LEDGER: "a broker that loads the topic: it closes and counts the ledger",
    Protection.LOADED: "the broker that has the topic loaded, every `retentionCheckIntervalInSeconds`",
    Protection.TERMINATED: "deletion of the topic",
    Protection.OPEN_ATTEMPT: "the end of that offload",
    Protection.LEGAL_HOLD: "the end of the hold in orphans.legal_holds",
    Protection.LEGAL_HOLD_ON_PARTITION: "the end of the hold in orphans.legal_holds",
    Protection.SHADOW_SOURCE: "deletion of the shadow topic",
    Protection.SHADOW_TOPIC: "nothing here: its source frees them",
    Protection.OPEN_ORPHAN: "the end of its leaked open ledger: `unjudged_ledgers` names it",
}
"""What would free a ledger that has this code; what protects for good has no entry."""


@dataclass(frozen=True, slots=True)
class HeldLedger:
    """One ledger of a topic. ``code``: a ``RetentionVerdict`` or ``Protection``; ``bytes`` None where not known.

    ``state`` is BookKeeper's, empty where it does not have the ledger; ``offloaded``: a bucket has it.
    """

    ledger_id: int
    entries: int | None
    bytes: int | None
    closed_at: int | None
    state: str
    offloaded: bool
    code: RetentionVerdict | Protection
    goes: bool
    expires_at: int | None


@dataclass(frozen=True, slots=True)
class HeldBy:
    """A durable cursor: where it stands, and how many bytes before the topic's end it has not acknowledged."""

    name: str
    position: Position | None
    unacknowledged: int | None
    last_active: int | None


@dataclass(frozen=True, slots=True)
class TopicExplanation:
    """Why a topic's ledgers are there, the oldest first; cursors, the slowest first."""

    topic: Topic
    load: TopicLoad
    policy: RetentionPolicy | None
    protection: str
    ledgers: tuple[HeldLedger, ...]
    cursors: tuple[HeldBy, ...]
    warnings: tuple[str, ...]
    epoch_id: str


def explain_topic(cluster: Cluster, subject: Topic, brokers: Brokers) -> TopicExplanation:
    """Judge a topic as it is now; loads no topic and writes nothing.

    Owners' rules are those of the newest scan. Raises NotFound without a scan, or where there is no such topic; Refused
    where its z-node cannot be read.
    """
    root = cluster.settings.bookkeeper.ledgers_root
    namespace = str(subject.namespace)
    found = retention_now(cluster, [namespace])
    with cluster.ports(read_only=True) as ports:
        store, now = ports.store, ports.clock.now_ms()
        epochs = cluster.lake.epochs(cluster_fingerprint(store, root))
        if not epochs:
            raise NotFound("there is no scan of this cluster yet, so what protects a topic is not known: run job scan")
        context = owners_rules(cluster, epochs[-1], now)
        store.sync("/")
        path = f"{MANAGED_LEDGERS_ROOT}/{subject.managed_ledger}"
        node = store.read([path])[0]
        if node is None:
            raise NotFound(f"{path} does not exist: it is no topic, or a partitioned one; name its partitions")
        if isinstance(node, Unread):
            raise Refused(f"{path} cannot be read: {node.reason}")
        parent, _, name = path.rpartition("/")
        units = [Unit(parent, (name,), 0)]
        listed = pa.Table.from_batches(topics.read_managed_ledgers(store, units), tables.MANAGED_LEDGERS)
        cursors = pa.Table.from_batches(topics.read_cursors(store, units), tables.MANAGED_CURSORS)
        positions = persisted_positions(store, ports.reader, cursors, root)
        info = managed_ledger.decode(node.data)
        ids = sorted(item.ledger_id for item in info.ledgers)
        rows = snapshot.ledger_rows(store, ids, root)
    last = rows.get(ids[-1]) if ids else None
    load = _load(node, info, last, brokers, str(subject), now)
    bookkeeper = pa.Table.from_pylist([row for row in rows.values() if row], tables.BOOKKEEPER_LEDGERS)
    loaded = [str(subject)] if load.state is load_state.LoadState.LOADED else []
    inputs = retention_topics(listed, positions, bookkeeper, found.policies, context, loaded)
    if not inputs.num_rows:
        raise Refused(f"{path}: {listed.column('error')[0].as_py()}")
    seen = {item["ledger_id"]: item for item in inputs.column("ledgers")[0].as_py()}
    held = [_held(row, seen[row["ledger_id"]], rows[row["ledger_id"]], info) for row in judge(inputs, now).to_pylist()]
    known = namespace in found.policies.by_namespace
    return TopicExplanation(
        subject,
        load,
        found.policies.of(subject) if known else None,
        protection.topic_rule(subject, info.properties.get(snapshot.SHADOW_SOURCE, ""), context),
        tuple(held),
        _cursors(cursors, positions, held),
        (*found.problems, *(() if known else (f"namespace {namespace} has no policies that could be read",))),
        epochs[-1].epoch_id,
    )


def _load(
    node: Node,
    info: managed_ledger.ManagedLedgerInfo,
    last: Mapping[str, Any] | None,
    brokers: Brokers,
    topic: str,
    now: int,
) -> TopicLoad:
    state = last["state"] if last else None
    return load_state.load_state(info, node.stat.mtime, state, brokers.loaded.get(topic), brokers, now)


def _held(
    verdict: Mapping[str, Any],
    seen: Mapping[str, Any],
    bookkeeper: Mapping[str, Any] | None,
    info: managed_ledger.ManagedLedgerInfo,
) -> HeldLedger:
    offload = next(item.offload for item in info.ledgers if item.ledger_id == verdict["ledger_id"])
    said = verdict["verdict"]
    code = RetentionVerdict(said) if said in set(RetentionVerdict) else Protection(said)
    return HeldLedger(
        ledger_id=verdict["ledger_id"],
        entries=seen["entries"],
        bytes=verdict["size"],
        closed_at=seen["closed_at"],
        state=(bookkeeper or {}).get("state") or "",
        offloaded=bool(offload and offload.complete),
        code=code,
        goes=code in GONE,
        expires_at=verdict["expires_at"],
    )


def _cursors(cursors: pa.Table, positions: pa.Table, ledgers: Sequence[HeldLedger]) -> tuple[HeldBy, ...]:
    found: list[HeldBy] = []
    names = ("path", "last_active")
    rows = zip(*(cursors.column(name).to_pylist() for name in names), positions.to_pylist(), strict=True)
    for path, active, at in rows:
        known = at["ledger_id"] is not None and at["entry_id"] is not None
        position = Position(at["ledger_id"], at["entry_id"]) if known else None
        behind = None if position is None else sum(_behind(one, position) for one in ledgers)
        found.append(HeldBy(cursor_name(path.rpartition("/")[2]), position, behind, active))
    return tuple(sorted(found, key=lambda one: (one.position is not None, one.position or Position(-1, -1), one.name)))


def _behind(ledger: HeldLedger, position: Position) -> int:
    """Bytes of a ledger after a position; of the ledger that it stands in the share of its entries."""
    if ledger.ledger_id < position.ledger_id or not ledger.bytes:
        return 0
    if ledger.ledger_id > position.ledger_id or not ledger.entries:
        return ledger.bytes
    left = max(0, ledger.entries - position.entry_id - 1)
    return ledger.bytes * left // ledger.entries


def freed_by(one: HeldLedger) -> str:
    """What would free it, as a sentence's end; empty for what is kept for good."""
    return FREED_BY.get(one.code, "")
