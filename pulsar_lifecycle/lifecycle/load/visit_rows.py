"""What the journal has of a topic that was loaded, and its last row where the run ended before it could write one.

Belongs here: details of these rows, telling which visits have no end. Not here: unloading what such a run left loaded
(``topics/unloads.py``), which comes first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.journal.in_doubt import WITHIN_MS
from pulsar_lifecycle.journal.queries import filed_since
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Topic
from pulsar_lifecycle.ports import JournalRow, Node, Unread
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer, details_of
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase


@dataclass(frozen=True, slots=True)
class VisitDetail:
    """Details of a row: its broker, its ledgers before and their bytes, and those that are to go."""

    broker: str
    ledgers: Sequence[int]
    going: Sequence[int]
    sizes: Sequence[int] = ()


def end_visits(cluster: Cluster, ports: Ports) -> int:
    """Journal the end of every visit that has none and whose topic is unloaded by now; returns how many.

    To be called under the lease, once pending unloads are made: no run is in the middle of one then.
    """
    now, name = ports.clock.now_ms(), cluster.settings.cluster
    mine = (pc.field("cluster") == name) & (pc.field("action") == Action.LOAD_TOPIC) & filed_since(now - WITHIN_MS)
    rows = cluster.journal_reader.find(mine, ["run_id", "plan_id", "topic", "phase", "outcome", "detail"]).to_pylist()
    without_end = Counter(map(_visit, filter(_begins, rows)))
    without_end.subtract(map(_visit, filter(_ends, rows)))
    begun = {_visit(row): row for row in rows if _begins(row) and without_end[_visit(row)] > 0}
    topics = {visit: Topic.parse(row["topic"]) for visit, row in begun.items()}
    unloaded = {visit: topic for visit, topic in topics.items() if not control.has_pending_unload(ports.store, topic)}
    if not unloaded:
        return 0
    ports.store.sync("/")
    nodes = ports.store.read([f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}" for topic in unloaded.values()])
    ended = [
        _ended(begun[visit], name, listed, now)
        for visit, node in zip(unloaded, nodes, strict=True)
        if (listed := _listed(node)) is not None
    ]
    if ended:
        ports.journal.record(ended)
    return len(ended)


def broken_off(cluster: Cluster, plan_id: str) -> frozenset[Topic]:
    """Topics of a plan of which a visit has no other end than :func:`end_visits`' own."""
    mine = (pc.field("cluster") == cluster.settings.cluster) & (pc.field("action") == Action.LOAD_TOPIC)
    ended = (pc.field("plan_id") == plan_id) & (pc.field("code") == Code.RUN_ENDED)
    rows = cluster.journal_reader.find(mine & ended, ["topic"])
    return frozenset(map(Topic.parse, rows.column("topic").to_pylist()))


def _visit(row: dict[str, Any]) -> tuple[str, str]:
    return row["run_id"], row["topic"]


def _begins(row: dict[str, Any]) -> bool:
    return row["phase"] == Phase.LOAD and row["outcome"] == Outcome.BEGUN


def _ends(row: dict[str, Any]) -> bool:
    return row["phase"] == Phase.UNLOAD and row["outcome"] != Outcome.BEGUN


def _listed(node: Node | Unread | None) -> set[int] | None:
    """The ledgers of a topic, none if it is gone; None where that cannot be read."""
    if node is None:
        return set()
    if isinstance(node, Unread):
        return None
    try:
        return {item.ledger_id for item in managed_ledger.decode(node.data).ledgers}
    except CorruptFormat:
        return None


def _ended(row: dict[str, Any], cluster: str, listed: set[int], now: int) -> JournalRow:
    before = details_of(VisitDetail, row["detail"]) or VisitDetail("", (), ())
    left = set(before.ledgers) - listed
    freed = sum(size for ledger_id, size in zip(before.ledgers, before.sizes, strict=False) if ledger_id in left)
    text = f"its run ended before it could say so; no unload of it is pending, and {len(left)} ledgers left its list"
    return Writer(row["run_id"], cluster, row["plan_id"]).row(
        Step(Action.LOAD_TOPIC, Phase.UNLOAD),
        Subject(-1, "", row["topic"], freed, details=(before,)),
        Outcome.FAILED,
        Why(Code.RUN_ENDED, text),
        now,
    )
