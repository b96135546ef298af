"""Which topics brokers have loaded: asked of the brokers, or seen from a z-node's age."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.bundles.placing import BROKERS_ROOT
from pulsar_lifecycle.errors import (
    AccessDenied,
    LifecycleError,
    StoreError,
    Unavailable,
)
from pulsar_lifecycle.formats import ledger_metadata, ledger_path, managed_ledger
from pulsar_lifecycle.metastore.walk import MTIME, PATH, Unit, note_domains, owner_columns, rows_below
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import BrokerAdmin, MetadataStore, Node, TopicConnections, Unread
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.topic_load import CompactionStatus, LoadReason, LoadState, TopicLoad

_REPORTS = {
    ("LocalBrokerData", "ModularLoadManagerImpl"),
    ("LocalBrokerData", "NoopLoadManager"),
    (None, "ExtensibleLoadManagerImpl"),
}
"""(``loadReportType``, class of the load manager) whose ``startTimestamp`` is taken once per process.

The LoadReport of SimpleLoadManagerImpl is not among them: it has the time of the report.
"""


def broker_started(data: bytes, ctime: int) -> int | None:
    """When a broker started (ms), by its z-node below ``/loadbalance/brokers``; None if that does not say.

    The earlier of what the broker says by its own clock, and of when the z-node was created, which may be later: it is
    created anew after a lost session.
    """
    try:
        report = json.loads(data)
        kind = report.get("loadReportType"), str(report.get("loadManagerClassName")).rpartition(".")[2]
        started = report.get("startTimestamp")
    except (ValueError, AttributeError, RecursionError):
        return None
    if kind not in _REPORTS or type(started) is not int or started <= 0 or ctime <= 0:
        return None
    return min(started, ctime)


@dataclass(frozen=True, slots=True)
class Brokers:
    """What the brokers said, taken once per scan: who has which topic loaded, and how stale that word may be (ms).

    ``unknown``: why they did not say it; then every topic counts as loaded. ``started``: when each broker did (ms); one
    that is missing did not say.
    """

    loaded: Mapping[str, str]
    stats_interval: int
    unknown: Why | None = None
    started: Mapping[str, int] = field(default_factory=dict[str, int])

    @classmethod
    def failed(cls, error: LifecycleError) -> Brokers:
        """They did not say what they have loaded: our role may not ask them, or they did not answer."""
        code = Code.BROKERS_DENIED if isinstance(error, AccessDenied) else LoadReason.BROKERS_UNANSWERED
        return cls({}, 0, Why(code, str(error)))


NO_WORD = (Unavailable, StoreError)
"""How a broker fails that says nothing of itself: it does not answer, or it or a proxy before it refuses."""


def fetch_brokers(store: MetadataStore, admin: BrokerAdmin) -> Brokers:
    """Ask every broker. Raises what ``admin`` raises, and Unavailable when one that is registered was not asked.

    An admin URL of another cluster would make every topic look unloaded.
    """
    registered = store.children([BROKERS_ROOT])[0]
    if isinstance(registered, Unread):
        raise AccessDenied(f"{BROKERS_ROOT}: {registered.reason}")
    names = registered.names if registered else ()
    # Read first: a broker that is started again meanwhile lists nothing that it had loaded before.
    started = _started(store.read([f"{BROKERS_ROOT}/{name}" for name in names]))
    ids = admin.brokers()
    _refuse_missing(names, ids)
    return Brokers(admin.loaded_topics(ids), admin.stats_interval_ms(ids), started=started)


@dataclass(frozen=True, slots=True)
class BrokerAnswers:
    """What each broker said by itself; ``unanswered``: why one did not answer, by its id.

    ``brokers`` is the word of those that did, ``connections`` are the clients of their topics. ``cluster`` is their
    cluster's name, empty unless all say one and the same; ``replicators``: how cursors of their replicators begin.
    ``configurations``: what each is configured with. ``registered``: when (ms) each that did not answer last was.
    """

    brokers: Brokers
    unanswered: Mapping[str, str]
    connections: Mapping[str, TopicConnections]
    cluster: str
    replicators: frozenset[str]
    configurations: Mapping[str, Mapping[str, str]] = field(default_factory=dict[str, Mapping[str, str]])
    registered: Mapping[str, int] = field(default_factory=dict[str, int])


def ask_brokers(store: MetadataStore, admin: BrokerAdmin) -> BrokerAnswers:
    """Ask every broker by itself: one that does not answer, or refuses to, hides only what it has itself.

    Raises as :func:`fetch_brokers` but for such brokers; if none answers Unavailable, or AccessDenied if all refuse.
    """
    registered = store.children([BROKERS_ROOT])[0]
    if isinstance(registered, Unread):
        raise AccessDenied(f"{BROKERS_ROOT}: {registered.reason}")
    names = registered.names if registered else ()
    nodes = store.read([f"{BROKERS_ROOT}/{name}" for name in names])
    ids = admin.brokers()
    _refuse_missing(names, ids)
    configurations: dict[str, Mapping[str, str]] = {}
    connections: dict[str, TopicConnections] = {}
    loaded: dict[str, str] = {}
    failures: dict[str, LifecycleError] = {}
    clusters: set[str] = set()
    replicators: set[str] = set()
    interval = 0
    for broker in ids:
        try:
            said = admin.statistics(broker)
        except NO_WORD as error:
            failures[broker] = error
            continue
        interval = max(interval, said.interval_ms)
        clusters.add(said.cluster)
        replicators.add(said.replicator)
        configurations[broker] = said.configuration
        connections |= {name: one.joined(connections.get(name)) for name, one in said.topics.items()}
        loaded |= dict.fromkeys(said.topics, broker)
    if len(failures) == len(ids):
        raise _nobody(failures)
    brokers = Brokers(loaded, interval, started=_started(nodes))
    cluster = clusters.pop() if len(clusters) == 1 else ""
    registered_at = {name: node.stat.ctime for name, node in zip(names, nodes, strict=True) if isinstance(node, Node)}
    return BrokerAnswers(
        *(
            brokers,
            {name: str(error) for name, error in failures.items()},
            connections,
            cluster,
            frozenset(replicators),
        ),
        configurations,
        {name: at for name, at in registered_at.items() if name in failures},
    )


def ask_configurations(admin: BrokerAdmin) -> tuple[dict[str, Mapping[str, str]], dict[str, str]]:
    """Of each broker that answers, what it is configured with; and why the others did not. Raises if none does."""
    said: dict[str, Mapping[str, str]] = {}
    failures: dict[str, LifecycleError] = {}
    for broker in admin.brokers():
        try:
            said[broker] = admin.configuration_of(broker)
        except NO_WORD as error:
            failures[broker] = error
    if not said:
        raise _nobody(failures)
    return said, {name: str(error) for name, error in failures.items()}


def _nobody(failures: Mapping[str, LifecycleError]) -> LifecycleError:
    """What it means that none of some brokers answers as one does."""
    first = next(iter(failures.values()), "")
    denied = bool(failures) and all(isinstance(error, AccessDenied) for error in failures.values())
    return (AccessDenied if denied else Unavailable)(f"no broker answers: {first}")


def _refuse_missing(registered: Iterable[str], ids: Iterable[str]) -> None:
    missing = sorted(set(registered).difference(ids))
    if missing:
        raise Unavailable(
            f"broker {missing[0]} is registered below {BROKERS_ROOT} and is none of those behind pulsar.admin_url: "
            "is that the same cluster? If so, scan again: a broker that has just come is listed a moment later"
        )


def _started(brokers: Iterable[Node | Unread | None]) -> dict[str, int]:
    """When the brokers started, by their z-nodes; those that do not say so are left out."""
    nodes = [node for node in brokers if isinstance(node, Node)]
    times = {node.path.rpartition("/")[2]: broker_started(node.data, node.stat.ctime) for node in nodes}
    return {name: at for name, at in times.items() if at is not None}


def read_topics(
    store: MetadataStore,
    units: Iterable[Unit],
    brokers: Brokers,
    policies: Mapping[str, Mapping[str, Any]],
    compaction: Callable[[Topic], CompactionStatus],
    now: int,
    ledgers_root: str,
    schema: pa.Schema = tables.TOPICS,
) -> Iterator[pa.RecordBatch]:
    """Rows of ``tables.TOPICS``. ``compaction`` is asked only of loaded topics that have a ``__compaction`` cursor.

    Loaded means listed by a broker, with an open last ledger: the list lags, and asking about any other loads it.
    """
    for rows in rows_below(store, units, schema):
        if isinstance(rows, pa.RecordBatch):
            yield rows
            continue
        columns: dict[str, list[Any]] = owner_columns(rows)
        infos = rows.decoded(managed_ledger.decode)
        note_domains(rows, 1)
        ids = [sorted(item.ledger_id for item in info.ledgers) if info else [] for info in infos]
        states = ledger_states(store, [i[-1] if i else None for i in ids], ledgers_root)
        loaded = [p for p, topic in zip(rows.column(PATH), columns["topic"], strict=True) if topic in brokers.loaded]
        cursors = store.read([f"{path}/__compaction" for path in loaded])
        compacted = {path for path, cursor in zip(loaded, cursors, strict=True) if cursor is not None}
        found: list[tuple[Any, ...]] = []
        for index, info in enumerate(infos):
            topic = columns["topic"][index]
            broker = brokers.loaded.get(topic or "")
            load = load_state(info, rows.nodes[index][MTIME], states[index], broker, brokers, now)
            ask = info is not None and rows.nodes[index][PATH] in compacted and states[index] == "OPEN"
            policy = policies.get(columns["namespace"][index] or "", {})
            retention = policy.get("retention_policies") or {}
            found.append(
                (
                    info and load.state.value,
                    info and load.reason.value,
                    info and (load.detail or None),
                    broker,
                    brokers.started.get(broker or ""),
                    *(_asked(compaction, topic) if ask else (None, None)),
                    retention.get("retentionTimeInMinutes"),
                    retention.get("retentionSizeInMB"),
                    policy.get("message_ttl_in_seconds"),
                )
            )
        names = (
            "load_state",
            "load_reason",
            "load_detail",
            "broker",
            "broker_started",
            "compaction",
            "compaction_error",
            "retention_minutes",
            "retention_mb",
            "ttl_seconds",
        )
        columns |= {name: [f[i] for f in found] for i, name in enumerate(names)}
        yield rows.batch(
            schema,
            {
                **columns,
                "first_ledger_id": [i[0] if i else None for i in ids],
                "last_ledger_id": [i[-1] if i else None for i in ids],
                "last_ledger_state": states,
                "ledgers": [len(i) for i in ids],
                "terminated": [info and info.terminated is not None for info in infos],
            },
        )


def _asked(compaction: Callable[[Topic], CompactionStatus], topic: str) -> tuple[CompactionStatus, str | None]:
    """What the broker says, and why it says nothing."""
    try:
        return compaction(Topic.parse(topic)), None
    except LifecycleError as error:
        return CompactionStatus.UNKNOWN, str(error)


UNLOADED_AFTER = 3
"""Statistics intervals that a topic's z-node must have been left alone before the topic can count as unloaded."""


def load_state(
    info: managed_ledger.ManagedLedgerInfo | None,
    mtime: int,
    last_state: str | None,
    broker: str | None,
    brokers: Brokers,
    now: int,
) -> TopicLoad:
    """Whatever is not sure counts as loaded.

    A broker rewrites the z-node at every load, and its list of topics lags by ``brokers.stats_interval`` ms both ways.
    """
    if info is None:
        return TopicLoad(LoadState.LOADED, LoadReason.UNREAD)
    if brokers.unknown:
        return TopicLoad(LoadState.LOADED, LoadReason.BROKERS_UNANSWERED, brokers.unknown.text)
    if broker:
        return TopicLoad(LoadState.LOADED, LoadReason.LISTED, broker)
    if now - mtime <= UNLOADED_AFTER * brokers.stats_interval:
        return TopicLoad(LoadState.LOADED, LoadReason.WRITTEN_LATELY)
    if not info.ledgers:
        return TopicLoad(LoadState.NEVER_LOADED, LoadReason.NO_LEDGERS)
    if info.terminated is not None:
        return TopicLoad(LoadState.LOADED, LoadReason.TERMINATED)
    if last_state != "CLOSED":
        return TopicLoad(LoadState.LOADED, LoadReason.LAST_LEDGER_NOT_CLOSED, last_state or "")
    return TopicLoad(LoadState.UNLOADED, LoadReason.AT_REST)


def still_listed(broker: str) -> str:
    """What is said of a topic without z-node that a broker lists."""
    return f"{broker} still lists it; if that lasts, restart that broker: after a split of bundles that can be for good"


def ledger_states(store: MetadataStore, ids: Sequence[int | None], root: str) -> list[str | None]:
    """``OPEN``, ``IN_RECOVERY`` or ``CLOSED`` of ledgers by id; None where there is no readable z-node."""
    known = [i for i in dict.fromkeys(ids) if i is not None]
    nodes = store.read([ledger_path.ledger_path(i, root) for i in known])
    there = [(i, node.data) for i, node in zip(known, nodes, strict=True) if isinstance(node, Node)]
    columns, _ = ledger_metadata.decode_columns([data for _, data in there], frozenset({"state"}))
    states = dict(zip((i for i, _ in there), columns["state"], strict=True))
    return [states.get(i) if i is not None else None for i in ids]
