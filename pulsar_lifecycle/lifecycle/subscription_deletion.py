"""Deleting one subscription at its topic's broker: what is looked at before, the request, and what came of it.

Belongs here: what every run shares that deletes subscriptions. Not here: which ones (``activity/cursor_run.py``,
``load/unsubscribing.py``). The request is unforced: a broker refuses it for one with consumers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from pulsar_lifecycle.errors import LifecycleError, OutcomeUnknown
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.journal.in_doubt import WITHIN_MS
from pulsar_lifecycle.journal.queries import filed_since
from pulsar_lifecycle.lifecycle.load.monitors import Monitors
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Position, Topic, encode_name
from pulsar_lifecycle.ports import BrokerAdmin, Entry, JournalRow, Node, Unread
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer, details_of
from pulsar_lifecycle.scan import stored_references
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.load_losses import is_subscription
from pulsar_lifecycle.topics.unloads import RunGuard
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept

_STEP = Step(Action.DELETE_SUBSCRIPTION, Phase.DELETE_SUBSCRIPTION)


@dataclass(frozen=True, slots=True)
class Subscription:
    """Details of a journal row about a subscription: its name, and where it stood, so that it can be made again.

    ``czxid``: of its z-node, which tells it from one that is made under its name later.
    """

    subscription: str
    ledger_id: int | None = None
    entry_id: int | None = None
    czxid: int | None = None


@dataclass(frozen=True, slots=True)
class Persisted:
    """What is persisted of a cursor: its position, the last entry of its cursor ledger, whether it is replicated."""

    position: Position | None
    cursors_ledger_id: int
    last_entry: int | None
    replicated: bool


def persisted(ports: Ports, node: Node, root: str) -> Persisted:
    """Of the cursor of a z-node; raises what reading its cursor ledger raises."""
    info = cursor_format.decode(node.data)
    if info.cursors_ledger_id < 0:
        return Persisted(info.mark_delete, info.cursors_ledger_id, None, _replicated(info.properties))
    ((metadata, entry),) = stored_references.last_entries_of(ports.store, ports.reader, [info.cursors_ledger_id], root)
    stored = stored_references.cursor_state(metadata, entry, node.path.rpartition("/")[0])
    assert isinstance(entry, Entry)
    return Persisted(stored.mark_delete, info.cursors_ledger_id, entry.entry_id, _replicated(stored.properties))


def _replicated(properties: Collection[str]) -> bool:
    return cursor_format.REPLICATED_PROPERTY in properties


def topic_would_go(topic: Topic, cursors: Collection[str], going: Collection[str], monitors: Monitors) -> bool:
    """Whether its broker would delete a topic, or may, once subscriptions are gone: ``going`` of its ``cursors``."""
    deletion = monitors.deletion.of(topic) if str(topic.namespace) in monitors.deletion.by_namespace else None
    if deletion is None or monitors.replicator is None:
        return True
    others = [name for name in cursors if is_subscription(name, monitors.replicator) and name not in going]
    return deletion.on and not (others and deletion.unsubscribed_only)


def used_since(admin: BrokerAdmin, topic: Topic, subscription: str, since: int) -> Why | None:
    """Whether its broker says that a subscription is in use, or was after a time (ms) that it remembers."""
    used = admin.last_use(topic, subscription)
    if used is None:
        return Why(InactiveKept.USED_LATELY, "consumers are connected")
    if used > since:
        return Why(InactiveKept.USED_LATELY, f"its broker says that it was used at {used} (ms)")
    return None


@dataclass(frozen=True, slots=True)
class Deleting:
    """A run that deletes subscriptions."""

    ports: Ports
    guard: RunGuard
    writer: Writer

    def delete(self, topic: Topic, node: Node, about: Subscription, nbytes: int) -> tuple[Outcome, Why]:
        """Ask its broker to delete the subscription of a z-node, and look what came of it; journalled before.

        :meth:`journal` is the word after it. Raises what stops a run.
        """
        self.journal(topic, about, nbytes, Outcome.BEGUN, Why(Code.ABOUT_TO, "its broker is asked to delete it next"))
        self.guard.check(self.ports.store)
        failure, unknown = "its z-node is still there", False
        try:
            self.ports.admin.delete_subscription(topic, about.subscription)
        except LifecycleError as error:  # whether it was deleted all the same, its z-node says
            failure, unknown = str(error), isinstance(error, OutcomeUnknown)
        if snapshot.is_gone(self.ports, node, lambda: self.guard.check(self.ports.store), wait=unknown):
            return Outcome.DONE, Why(Code.BROKER_DELETED, "its broker deleted it")
        if unknown:
            text = f"whether its broker still deletes it is not known, run again: {failure}"
            return Outcome.FAILED, Why(Code.OUTCOME_UNKNOWN, text)
        return Outcome.FAILED, Why(Code.STILL_THERE, failure)

    def journal(self, topic: Topic, about: Subscription, nbytes: int, outcome: Outcome, why: Why) -> None:
        """Write what is to become, or became, of a subscription."""
        subject = Subject(-1, "", str(topic), nbytes, details=(about,))
        self.ports.journal.record([self.writer.row(_STEP, subject, outcome, why, self.ports.clock.now_ms())])


def end_deletions(cluster: Cluster, ports: Ports) -> int:
    """Journal the end of every deletion of a subscription that has none, as its run was killed; returns how many.

    To be called under the lease: no run is in the middle of one then.
    """
    now, name = ports.clock.now_ms(), cluster.settings.cluster
    mine = (pc.field("cluster") == name) & (pc.field("action") == Action.DELETE_SUBSCRIPTION)
    columns = ["run_id", "plan_id", "topic", "outcome", "bytes", "detail"]
    rows = cluster.journal_reader.find(mine & filed_since(now - WITHIN_MS), columns).to_pylist()
    begun = {_about(row): row for row in rows if row["outcome"] == Outcome.BEGUN}
    without_end = Counter(_about(row) for row in rows if row["outcome"] == Outcome.BEGUN)
    without_end.subtract(_about(row) for row in rows if row["outcome"] != Outcome.BEGUN)
    open_ = {about: row for about, row in begun.items() if without_end[about] > 0}
    if not open_:
        return 0
    ports.store.sync("/")
    paths = [
        f"{MANAGED_LEDGERS_ROOT}/{Topic.parse(topic).managed_ledger}/{encode_name(one.subscription)}"
        for _, topic, one in open_
    ]
    ended: list[JournalRow] = []
    for ((run_id, topic, one), row), node in zip(open_.items(), ports.store.read(paths), strict=True):
        if isinstance(node, Unread):
            continue
        there = node is not None and one.czxid in (None, node.stat.czxid)
        said = "it is still there" if there else "it is gone"
        why = Why(Code.RUN_ENDED, f"its run ended before it could say so; {said}")
        subject = Subject(-1, "", topic, row["bytes"], details=(one,))
        writer, outcome = Writer(run_id, name, row["plan_id"]), Outcome.FAILED if there else Outcome.DONE
        ended.append(writer.row(_STEP, subject, outcome, why, now))
    if ended:
        ports.journal.record(ended)
    return len(ended)


def _about(row: Mapping[str, Any]) -> tuple[str, str, Subscription]:
    return row["run_id"], row["topic"], details_of(Subscription, row["detail"] or "") or Subscription("")
