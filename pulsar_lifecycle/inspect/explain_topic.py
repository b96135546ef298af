"""Why the ledgers of a topic are still there, and what would free each: ``explain TOPIC``.

Belongs here: reading one topic afresh, judging it by the rule of the retention plan, and the sentence that a code gets.
Not here: the rule (``lifecycle/retention.py``), one ledger's explanation (``inspect/explain.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.copies.listed_ledgers import copies_of, kept_copy
from pulsar_lifecycle.delayed_index.stored.index_reading import IndexPorts, index_ports
from pulsar_lifecycle.errors import LifecycleError, NotFound, RefusedBy
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.formats.message import Schedule
from pulsar_lifecycle.inspect.cursor_holds import (
    BY_LOAD,
    MOVES_SUBSCRIPTION,
    CursorHold,
    CursorHolds,
    HeldBy,
    cursor_holds,
    first_unread,
    freed_by_whom,
    moved_by_whom,
    ways_of_inactive,
    with_unused,
)
from pulsar_lifecycle.lifecycle.held.open_ledgers import ROLLOVER_NAMES, OpenCause, Rollover, with_causes
from pulsar_lifecycle.lifecycle.load.monitors import BROKER_NAMES, Monitors, monitors_in_force
from pulsar_lifecycle.lifecycle.load.one_topic import Keeps, kept_code, load_row
from pulsar_lifecycle.lifecycle.retention import judge
from pulsar_lifecycle.lifecycle.retention_inputs import named_positions, retention_topics, with_shadow_sources
from pulsar_lifecycle.lifecycle.verdicts import GOING, RetentionVerdict
from pulsar_lifecycle.metastore import load_state, topics
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.metastore.walk import Unit
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Position, Topic, cursor_name
from pulsar_lifecycle.ports import ClusterPorts, LedgerReader, MetadataStore, Node, Unread
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan.stored_references import last_entries_of, never_written
from pulsar_lifecycle.topics import protection, snapshot
from pulsar_lifecycle.topics.policies import Layers, Unreadable
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.retention_now import policies_now
from pulsar_lifecycle.topics.retention_policy import RetentionPolicy, policies_in_force, unsent_problem
from pulsar_lifecycle.topics.snapshot import ShadowSources
from pulsar_lifecycle.topics.topic_run import owners_rules
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.tables import Problem
from pulsar_lifecycle.values.topic_load import LoadReason, LoadState, TopicLoad

_BY_BROKER = "its broker, every `messageExpiryCheckIntervalInMinutes`"
_PAST_TTL = "its messages are past their TTL"
_NOTHING_IN_IT = "nothing: it has no entries, and its topic needs a last ledger"

FREED_BY: Mapping[RetentionVerdict | Protection, str] = {
    RetentionVerdict.EXPIRED_BY_TIME: "jobs plan_retention and apply_retention",
    RetentionVerdict.EXPIRED_BY_SIZE: "jobs plan_retention and apply_retention",
    RetentionVerdict.NO_RETENTION: "jobs plan_retention and apply_retention",
    RetentionVerdict.EMPTY: "jobs plan_retention and apply_retention",
    RetentionVerdict.LAST_LEDGER: f"{BY_LOAD}; its retention time begins then",
    RetentionVerdict.CURSOR: MOVES_SUBSCRIPTION,
    RetentionVerdict.WITHIN_TIME: "time",
    RetentionVerdict.WITHIN_SIZE: "more data behind it, or a smaller retention size",
    RetentionVerdict.FOREVER: "a finite retention policy",
    RetentionVerdict.NOT_PREFIX: "what frees the ledgers before it",
    RetentionVerdict.COPY: "what the deletion run keeps it for: `trim` as a dry run says it",
    RetentionVerdict.UNKNOWN_POLICY: "an end of what `warnings` names, or a retention policy that can be read",
    RetentionVerdict.UNKNOWN_CURSOR: "a cursor ledger that can be read: see whether all bookies answer, a load may put "
    "the subscription back; `pulsar-admin topics unsubscribe` only where a broker can load the topic",
    RetentionVerdict.UNKNOWN_LEDGER: "a broker that loads the topic: it closes and counts the ledger",
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

    ``state``: what BookKeeper says, the ``Problem`` of a z-node that cannot be read, None where it has no such ledger.
    ``offloaded``: a bucket has it. ``goes``: we would take it off its topic's list now. ``freed_by``: what would free
    it, empty for what is kept for good. ``held_by``: the cursors that need it, by name, the slowest first.
    """

    ledger_id: int
    entries: int | None
    bytes: int | None
    closed_at: int | None
    state: LedgerState | Problem | None
    offloaded: bool
    code: RetentionVerdict | Protection
    goes: bool
    freed_by: str
    expires_at: int | None
    held_by: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicExplanation:
    """Why a topic's ledgers are there, the oldest first; cursors, the slowest first.

    ``open_causes``: why its last ledger is not closed; none where it is. ``load_kept``: the code of what keeps it from
    a load that it needs; None if nothing does, or it needs none.
    """

    topic: Topic
    load: TopicLoad
    policy: RetentionPolicy | None
    protection: Why | None
    ledgers: tuple[HeldLedger, ...]
    cursors: tuple[HeldBy, ...]
    warnings: tuple[str, ...]
    epoch_id: str
    open_causes: tuple[OpenCause, ...] = ()
    load_kept: Keeps | None = None


def explain_topic(cluster: Cluster, subject: Topic, brokers: Brokers) -> TopicExplanation:
    """Judge a topic as it is now; loads no topic and writes nothing.

    Owners' rules are those of the newest scan. Raises NotFound without a scan, or where there is no such topic; Refused
    where its z-node cannot be read.
    """
    if subject.domain != "persistent":
        raise RefusedBy(Protection.NOT_PERSISTENT, f"{subject} is not persistent: no ledger holds its messages")
    root = cluster.settings.bookkeeper.ledgers_root
    namespace = str(subject.namespace)
    layers, unsure = _layers(cluster, namespace)
    policies = policies_in_force(layers)
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
            raise RefusedBy(Code.TOPIC_UNREAD, f"{path} cannot be read: {node.reason}")
        parent, _, name = path.rpartition("/")
        units = [Unit(parent, (name,), 0)]
        shadows = ShadowSources(partitioned=topics.partitioned_shadow_sources(ports.configuration))
        listed = pa.Table.from_batches(topics.read_managed_ledgers(store, units), tables.MANAGED_LEDGERS)
        listed = with_shadow_sources(listed, shadows)
        cursors = pa.Table.from_batches(topics.read_cursors(store, units), tables.MANAGED_CURSORS)
        positions = named_positions(store, ports.reader, cursors, root)
        info = managed_ledger.decode(node.data)
        ids = sorted(item.ledger_id for item in info.ledgers)
        rows = snapshot.ledger_rows(store, ids, root)
        holds = cursor_holds(store, ports.reader, subject, root)
        opened = _opened(store, ports.reader, rows, root)
        by_id, reading = sorted(info.ledgers, key=lambda item: item.ledger_id), _reading(ports, info)
        firsts = [first_unread(reading, by_id, one, root) for one in positions.to_pylist()]
        load = _load(node, info, rows.get(ids[-1]) if ids else None, brokers, str(subject), now)
        to_load = None
        if load.reason is not LoadReason.LISTED:  # else it needs none
            to_load = load_row(store, ports.reader, cluster, subject, layers, context, brokers, shadows, now)
    bookkeeper = pa.Table.from_pylist([row for row in rows.values() if row], tables.BOOKKEEPER_LEDGERS)
    inputs = retention_topics(listed, positions, bookkeeper, policies, context)
    seen = {item["ledger_id"]: item for one in inputs.column("ledgers").to_pylist() for item in one}
    if inputs.num_rows != 1 or sorted(seen) != ids:
        raise RefusedBy(Code.CHANGED_MEANWHILE, f"{path} changed while it was read: ask again")
    copies = copies_of(rows, subject, context)
    kept = [i.ledger_id for i in info.ledgers if kept_copy(i, copies[i.ledger_id], context)]
    offloaded = {item.ledger_id for item in info.ledgers if item.offload and item.offload.complete}
    verdicts = judge(inputs, now, kept).to_pylist()
    held = tuple(
        _held(row, {**seen[row["ledger_id"]], **opened.get(row["ledger_id"], {})}, rows[row["ledger_id"]],
              row["ledger_id"] in offloaded, load)
        for row in verdicts
    )  # fmt: skip
    shown_cursors = _cursors(cursors, positions, held, holds, firsts, now)
    shown_cursors = with_unused(shown_cursors, cluster, subject, positions.append_column("czxid", cursors["czxid"]))
    held = _held_by(held, shown_cursors)
    known = namespace in policies.by_namespace
    policy = policies.of(subject) if known else None
    monitors = monitors_in_force(layers) if known else None
    closed_until = _past_ttl(monitors, subject, shown_cursors, now)
    first, is_loaded = next(iter(shown_cursors), None), load.reason is LoadReason.LISTED
    moved_by = moved_by_whom(monitors, subject, first.name, first.holds, loaded=is_loaded) if first else ""
    ways = ways_of_inactive(cluster.settings, subject, monitors, loaded=is_loaded)
    held = tuple(
        _freed_by(
            one,
            RetentionVerdict(row["alone"]),
            shown_cursors,
            load,
            closed_until,
            freed_by_whom(one.held_by, moved_by, to_load, shown_cursors, ways),
            _kept_on(one, policy, now),
        )
        for one, row in zip(held, verdicts, strict=True)
    )
    warnings = [*unsure, *(unsent_problem(layers, subject) if known else ())]
    unread = layers.topics[namespace].unknown if namespace in layers.topics else None
    if not known and layers.brokers:  # else `unsure` says why nobody looked at them
        warnings.append(layers.undecodable.get(namespace, f"namespace {namespace} has no policies that could be read"))
    elif unread and unread.code is not Unreadable.OTHER_SERVICE:  # that is among `unsure`, once for all namespaces
        warnings.append(f"namespace {namespace}: {unread}")
    warnings += [
        f"ledger {one.ledger_id} is listed, and neither BookKeeper nor a bucket has it"
        for one in held
        if one.state is None and not one.offloaded
    ]
    idle = load.reason is LoadReason.LAST_LEDGER_NOT_CLOSED and not protection.of_transactions(subject)
    return TopicExplanation(
        subject,
        load,
        policy,
        protection.topic_rule(subject, listed.column("shadow_source")[0].as_py() or "", context),
        held,
        shown_cursors,
        tuple(warnings),
        epochs[-1].epoch_id,
        _causes(opened, inputs, idle, Rollover.of(layers.brokers)),
        kept_code(to_load),
    )


def _layers(cluster: Cluster, namespace: str) -> tuple[Layers, tuple[str, ...]]:
    """What policies and the brokers that answer say, and why that is not sure; nothing where none of these answers."""
    try:
        with cluster.ports(read_only=True) as ports:
            answered, failed = load_state.ask_configurations(ports.admin)
        layers, differing = policies_now(cluster, [namespace], ROLLOVER_NAMES | BROKER_NAMES, answered)
    except LifecycleError as error:
        return Layers({}, {}), (str(error),)
    return layers, (*differing, *(f"what broker {name} is set to is not known: {why}" for name, why in failed.items()))


def _reading(ports: ClusterPorts, info: ManagedLedgerInfo) -> IndexPorts:
    """What a topic's messages are read by; without the object store where it cannot be opened, or has none of them."""
    if any(item.offload for item in info.ledgers):
        with contextlib.suppress(LifecycleError):
            return index_ports(ports)
    return IndexPorts(ports.store, ports.reader)


def _opened(
    store: MetadataStore, reader: LedgerReader, rows: Mapping[int, Mapping[str, Any] | None], root: str
) -> dict[int, dict[str, Any]]:
    """What bookies have of the last ledger, where it is not closed: ``entries`` and ``size``, if they say so."""
    last = rows[max(rows)] if rows else None
    if last is None or last["state"] in (None, LedgerState.CLOSED.name):
        return {}
    ((metadata, entry),) = last_entries_of(store, reader, [max(rows)], root)
    if entry is None or never_written(metadata, entry):
        return {max(rows): {"entries": 0, "size": 0}}
    if isinstance(entry, LifecycleError) or entry.length is None:
        return {max(rows): {}}
    return {max(rows): {"entries": entry.entry_id + 1, "size": entry.length}}


def _causes(
    opened: Mapping[int, Mapping[str, Any]], inputs: pa.Table, idle: bool, rollover: Rollover | None
) -> tuple[OpenCause, ...]:
    """Why a last ledger is not closed. ``idle``: no broker has the topic."""
    for known in opened.values():
        row = {
            "loaded": not idle,
            "bytes": known.get("size"),
            "entries": known.get("entries"),
            "retention_minutes": inputs.column("retention_minutes")[0].as_py(),
            "made_at": 0,
        }
        return tuple(OpenCause(one) for one in with_causes(row, rollover)["causes"])
    return ()


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
    offloaded: bool,
    load: TopicLoad,
) -> HeldLedger:
    said = verdict["verdict"]
    code = RetentionVerdict(said) if said in set(RetentionVerdict) else Protection(said)
    return HeldLedger(
        ledger_id=verdict["ledger_id"],
        entries=seen["entries"],
        bytes=verdict["size"] if verdict["size"] is not None else seen["size"],
        closed_at=seen["closed_at"],
        state=_state_of(bookkeeper),
        offloaded=offloaded,
        code=code,
        goes=code in GOING and load.state is not LoadState.LOADED,
        freed_by=_by_whom(load) if code in GOING and load.state is LoadState.LOADED else FREED_BY.get(code, ""),
        expires_at=verdict["expires_at"],
    )


def _state_of(bookkeeper: Mapping[str, Any] | None) -> LedgerState | Problem | None:
    if bookkeeper is None:
        return None
    return LedgerState[bookkeeper["state"]] if bookkeeper["state"] else Problem(bookkeeper["problem"])


def _past_ttl(monitors: Monitors | None, topic: Topic, cursors: Sequence[HeldBy], now: int) -> int | None:
    """Until when (ms) a ledger was closed whose messages are all past the TTL, as a broker has it, of what holds it.

    None where nothing expires, or nobody knows.
    """
    ttl = monitors.ttl.of(topic) if monitors else None
    expires = monitors and cursors and monitors.expires_messages(cursors[0].name)
    return now - ttl * 1000 if ttl and expires else None


def _freed_by(
    ledger: HeldLedger,
    alone: RetentionVerdict,
    cursors: Sequence[HeldBy],
    load: TopicLoad,
    closed_until: int | None,
    moved_by: str,
    kept_on: RetentionVerdict | None,
) -> HeldLedger:
    """The ledger; one that the slowest cursor holds is freed by what moves it, or by its TTL (``closed_until``).

    And by what ends the retention that keeps it all the same (``kept_on``): nobody loads a topic for what is kept for
    ever. A last one needs a newer one and what it needs ``alone``, were it not the last.
    """
    frees = FREED_BY[alone]
    if cursors and (alone is RetentionVerdict.CURSOR or _unread(ledger, alone, cursors[0])):
        alone, frees = RetentionVerdict.CURSOR, moved_by
        by = _BY_BROKER if load.reason is LoadReason.LISTED else BY_LOAD
        expires = closed_until is not None and ledger.closed_at is not None and ledger.closed_at < closed_until
        if expires and (by == _BY_BROKER or kept_on is not RetentionVerdict.FOREVER):
            frees = f"{by}: {_PAST_TTL}; or {frees}"
        frees = f"{frees}; and {FREED_BY[kept_on]}" if kept_on else frees
    if ledger.code is RetentionVerdict.CURSOR:
        return replace(ledger, freed_by=frees)
    if ledger.code is not RetentionVerdict.LAST_LEDGER:
        return ledger
    if ledger.entries == 0:
        return replace(ledger, freed_by=_NOTHING_IN_IT)
    if alone is RetentionVerdict.UNKNOWN_LEDGER and kept_on is RetentionVerdict.FOREVER:
        alone, frees = kept_on, FREED_BY[kept_on]
    if load.reason is LoadReason.LISTED:
        begins = "a newer ledger, which its broker begins when this one is full or too old"
        return replace(ledger, freed_by=begins if alone in _ONLY_LAST else f"{begins}; and {frees}")
    if alone is RetentionVerdict.NO_RETENTION:
        return replace(ledger, freed_by=BY_LOAD)
    return ledger if alone in _ONLY_LAST else replace(ledger, freed_by=f"{frees}; and a newer ledger")


def _kept_on(ledger: HeldLedger, policy: RetentionPolicy | None, now: int) -> RetentionVerdict | None:
    """What keeps a ledger once no cursor needs it: for ever, or until ``expires_at``, which no size shortens."""
    if policy is None or policy.nothing:
        return None
    if policy.forever:
        return RetentionVerdict.FOREVER
    by_time_alone = policy.megabytes < 0 and ledger.expires_at is not None
    return RetentionVerdict.WITHIN_TIME if by_time_alone and now <= (ledger.expires_at or 0) else None


def _unread(ledger: HeldLedger, alone: RetentionVerdict, slowest: HeldBy) -> bool:
    """Whether a last ledger that is not closed has entries, as bookies say, that a cursor has yet to acknowledge."""
    if alone is not RetentionVerdict.UNKNOWN_LEDGER or not ledger.entries or slowest.position is None:
        return False
    return slowest.position < Position(ledger.ledger_id, ledger.entries - 1)


_ONLY_LAST = GOING | {RetentionVerdict.UNKNOWN_LEDGER}
"""What retention says of a last ledger alone where a newer one is all that it needs."""


def _by_whom(load: TopicLoad) -> str:
    """What frees a ledger that is past its retention, of a topic that counts as loaded."""
    if load.reason is LoadReason.LISTED:
        return "its broker, every `retentionCheckIntervalInSeconds`"
    if load.reason is LoadReason.LAST_LEDGER_NOT_CLOSED:
        return f"{BY_LOAD}; it counts as loaded, as {load.text}"
    if load.reason is LoadReason.TERMINATED:
        return f"a broker that loads the topic; it counts as loaded, as {load.text}"
    return f"plan_retention, once it is known that no broker has it loaded: {load.text}"


def _cursors(
    cursors: pa.Table,
    positions: pa.Table,
    ledgers: Sequence[HeldLedger],
    holds: Mapping[str, CursorHolds],
    firsts: Sequence[Schedule | None],
    now: int,
) -> tuple[HeldBy, ...]:
    found: list[HeldBy] = []
    names = ("path", "last_active")
    rows = zip(*(cursors.column(name).to_pylist() for name in names), positions.to_pylist(), firsts, strict=True)
    for path, active, at, first in rows:
        position = None if None in (at["ledger_id"], at["entry_id"]) else Position(at["ledger_id"], at["entry_id"])
        behind = [_behind(one, position) for one in ledgers] if position else []
        size = sum(one or 0 for one in behind) if position else None
        name = cursor_name(path.rpartition("/")[2])
        own = holds.get(name, CursorHolds()) if size != 0 or None in behind else CursorHolds()
        sent = (CursorHold.SENT_IN_TRANSACTION,) if first and first.transaction and not first.ends else ()
        pin = first.deliver_at if first and first.deliver_at and first.deliver_at > now else None
        found.append(HeldBy(name, position, size, behind.count(None), active, (*own.holds, *sent), own.ranges, pin))
    return tuple(sorted(found, key=lambda one: (one.position is not None, one.position or Position(-1, -1), one.name)))


def _held_by(ledgers: Sequence[HeldLedger], cursors: Sequence[HeldBy]) -> tuple[HeldLedger, ...]:
    final = max((one.ledger_id for one in ledgers if one.entries != 0), default=-1)
    return tuple(
        replace(one, held_by=tuple(by.name for by in cursors if by.needs(one.ledger_id, one.entries, final)))
        for one in ledgers
    )


def _behind(ledger: HeldLedger, position: Position) -> int | None:
    """Bytes of a ledger after a position, None if nobody knows; of the ledger that it stands in, its entries' share."""
    if ledger.ledger_id < position.ledger_id:
        return 0
    if ledger.bytes is None or ledger.entries is None:
        return None
    if ledger.ledger_id > position.ledger_id or not ledger.entries:
        return ledger.bytes
    return ledger.bytes * max(0, ledger.entries - position.entry_id - 1) // ledger.entries
