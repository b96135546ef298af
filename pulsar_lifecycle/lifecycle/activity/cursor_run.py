"""Applying a plan of inactive subscriptions: each is deleted by its topic's broker, if it is as planned.

Belongs here: whether the plan may be applied, whether a subscription is as planned, the order of note, request and
look. Not here: making it (``inactive_planning.py``). Loads no topic: subscriptions of topics that no broker has go by
a load plan (``lifecycle/unused_subscriptions.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound, RefusedBy
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.journal import operator_words
from pulsar_lifecycle.journal.prometheus import published
from pulsar_lifecycle.lifecycle.load.monitors import BROKER_NAMES, Monitors, monitors_in_force
from pulsar_lifecycle.lifecycle.subscription_deletion import (
    Deleting,
    Subscription,
    end_deletions,
    persisted,
    topic_would_go,
    used_since,
)
from pulsar_lifecycle.metastore.load_state import fetch_brokers, ledger_states
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Topic, cursor_name, encode_name
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import Writer
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.retention_now import policies_now
from pulsar_lifecycle.topics.system_topics.function_subscriptions import FunctionSubscriptions, function_subscriptions
from pulsar_lifecycle.topics.topic_run import owners_rules, topic_ports, topic_run, unloads_of
from pulsar_lifecycle.topics.unloads import RunGuard
from pulsar_lifecycle.topics.write import SHADOWS_SEEN_FOR, STOPPING, TopicRun
from pulsar_lifecycle.values.codes import Code, Why, why_refused
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.owner_names import holders
from pulsar_lifecycle.values.plans import inactive_plan
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept

SEEN_FOR = 10_000
"""How long (ms) a look at brokers and policies serves; the broker's own refusal is the last word."""


@dataclass(frozen=True, slots=True)
class DeletedSubscription:
    """What became of a subscription."""

    topic: str
    subscription: str
    outcome: Outcome
    why: Why
    bytes: int


Report = Callable[[Sequence[DeletedSubscription]], None]
"""Called with what became of each as soon as it is known."""


def delete_subscriptions(
    cluster: Cluster, run_id: str, order: Order, *, dry_run: bool, report: Report = lambda _: None
) -> list[DeletedSubscription]:
    """Delete the subscriptions of a plan, each at its topic's broker; none that has consumers.

    One stays, by code, if anything about it changed since the plan, or a rule keeps it. A dry run writes nothing and
    asks brokers nothing about a topic that they have not loaded. Repeating it is harmless. Raises Refused for a plan
    that is stale, report-only, of another cluster or beyond the caps, and when another run acts; NotFound, UsageError,
    Paused, LeaseLost, Overloaded.
    """
    summary, some, _ = evidence.check_order(
        cluster, order, cluster.lake.inactive_plan, inactive_plan.digest, inactive_plan.as_capped, dry_run=dry_run
    )
    rows = some.to_pylist()
    begins = cluster.lake.epoch(summary.epoch_id).started_at - int(cluster.settings.inactivity.period * 1000)
    whole = Counter(map(_everywhere, cluster.lake.inactive_plan(order.plan_id)[1].to_pylist()))
    if dry_run:
        with topic_ports(cluster, read_only=True) as ports:
            run = _topic_run(cluster, run_id, ports, evidence.check_store(cluster, ports.store))
            functions = function_subscriptions(cluster)
            return _Deletion(cluster, run, ports, summary.plan_id, whole, begins, functions, None).all(rows, report)
    with published(cluster), topic_ports(cluster) as ports:
        fingerprint = evidence.check_may_act(cluster, ports.store)
        with control.held_lease(cluster.settings, ports.store, ports.clock, f"subscriptions run {run_id}") as lease:
            evidence.await_plan_time(summary.created_at, lease.taken_at, ports.clock)
            operator_words.note_words(cluster, run_id)
            end_deletions(cluster, ports)
            run = _topic_run(cluster, run_id, ports, fingerprint)
            guard = RunGuard(lease.guard, unloads_of(cluster.settings, ports.clock))
            functions = function_subscriptions(cluster)
            return _Deletion(cluster, run, ports, summary.plan_id, whole, begins, functions, guard).all(rows, report)


def _topic_run(cluster: Cluster, run_id: str, ports: Ports, fingerprint: str) -> TopicRun:
    now = ports.clock.now_ms()
    rules = owners_rules(cluster, evidence.usable_epoch(cluster, fingerprint, now), now)
    return topic_run(cluster, run_id, ports, rules, now, False)


def _everywhere(row: Mapping[str, Any]) -> tuple[str, str]:
    """The partitioned topic of a row, or its topic, and the subscription's name."""
    return str(Topic.parse(row["topic"]).partitioned_parent), row["cursor"]


@dataclass
class _Deletion:
    """One launch. ``whole``: on how many partitions the plan has a subscription.

    ``begins``: when (ms) the period did of which the plan says that nobody used them.
    Without a ``guard`` a dry run, of which ``_going`` are the subscriptions that a run had deleted.
    """

    cluster: Cluster
    run: TopicRun
    ports: Ports
    plan_id: str
    whole: Mapping[tuple[str, str], int]
    begins: int
    functions: FunctionSubscriptions
    guard: RunGuard | None
    _seen: dict[str, tuple[int, Mapping[str, str], Monitors | None]] = field(default_factory=dict)
    _going: dict[Topic, set[str]] = field(default_factory=dict[Topic, set[str]])

    def all(self, rows: Sequence[Mapping[str, Any]], report: Report) -> list[DeletedSubscription]:
        """Delete them one after the other, and say what became of each."""
        groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
        for row in rows:
            groups.setdefault(_everywhere(row), []).append(row)
        found: list[DeletedSubscription] = []
        for group in groups.values():
            if self.guard:
                self.guard.check(self.ports.store)
            said = self._together(group)
            report(said)
            found += said
        return found

    def _together(self, group: Sequence[Mapping[str, Any]]) -> list[DeletedSubscription]:
        """A subscription of all partitions: none goes unless it may go on each, and the first that stays ends it."""
        if len(group) < self.whole[_everywhere(group[0])]:
            why = Why(InactiveKept.PARTITION_STAYS, f"the launch takes {len(group)} of its partitions only")
            return [self._said(row, Outcome.LEFT, why) for row in group]
        judged = [self._judged(row) for row in group] if len(group) > 1 else []
        stays = next((one.topic for one in judged if one.outcome not in (Outcome.GOES, Outcome.NOTHING)), None)
        if stays is None and self.guard is None:
            return judged or [self._one(row) for row in group]
        found: list[DeletedSubscription] = []
        for row in group:
            if stays not in (None, row["topic"]):
                why = Why(InactiveKept.PARTITION_STAYS, f"it stays on {stays}")
                found.append(self._said(row, Outcome.LEFT, why))
                continue
            found.append(self._one(row))
            if found[-1].outcome not in (Outcome.DONE, Outcome.NOTHING):
                stays = stays or row["topic"]
        return found

    def _judged(self, row: Mapping[str, Any]) -> DeletedSubscription:
        """What would become of it, as a dry run says it."""
        return replace(self, guard=None)._one(row)

    def _one(self, row: Mapping[str, Any]) -> DeletedSubscription:
        topic = Topic.parse(row["topic"])
        path = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}/{encode_name(row['cursor'])}"
        node = None
        try:
            self.ports.store.sync("/")
            node = self.ports.store.read([path])[0]
            if node is None:
                return self._said(row, Outcome.NOTHING, Why(Code.NOT_THERE, "it does not exist any more"))
            kept = self._kept(topic, node, row)
        except STOPPING:
            raise
        except RefusedBy as refusal:
            kept = why_refused(refusal)
        except LifecycleError as error:
            return self._said(row, Outcome.FAILED, Why(Code.SERVER_FAILED, str(error)))
        if kept:
            return self._said(row, Outcome.LEFT, kept)
        if not self.guard:
            self._going.setdefault(topic, set()).add(row["cursor"])
            return self._said(row, Outcome.GOES, Why(Code.MAY_GO, "its broker is to delete it"))
        assert isinstance(node, Node)
        return self._delete(topic, node, row, self.guard)

    def _delete(self, topic: Topic, node: Node, row: Mapping[str, Any], guard: RunGuard) -> DeletedSubscription:
        return self._said(row, *self._deleting(guard).delete(topic, node, _about(row), row["bytes"]))

    # ---------------------------------------------------------------------------------------------------- as planned

    def _kept(self, topic: Topic, node: Any, row: Mapping[str, Any]) -> Why | None:
        """Why it stays; None if nothing keeps it. The brokers are asked last."""
        own = self.cluster.settings.inactivity
        if set(own.subscriptions).isdisjoint(holders(str(topic.namespace), str(topic))):
            return Why(InactiveKept.NOT_CHOSEN, "inactivity.subscriptions does not name it by now")
        if row["cursor"] in own.kept_subscriptions:
            return Why(InactiveKept.NAMED_KEPT, "inactivity.kept_subscriptions names it by now")
        if kept := self.functions.keep([row["cursor"]]):
            return kept
        _, info = snapshot.topic_node(self.ports.store, topic)
        if info.terminated is not None:
            return Why(Protection.TERMINATED, "its topic is terminated")
        source = snapshot.shadow_source(self.ports.store, topic, info)
        protected = self.run.topic_rule(topic, source, SHADOWS_SEEN_FOR)
        last = max((item.ledger_id for item in info.ledgers), default=-1)
        return protected or self._changed(node, row) or self._at_broker(topic, node, row, last)

    def _changed(self, node: Any, row: Mapping[str, Any]) -> Why | None:
        if not isinstance(node, Node) or node.stat.czxid != row["czxid"]:
            return Why(Code.CHANGED_SINCE_PLAN, "it is another one than the plan's, or cannot be read")
        try:
            found = persisted(self.ports, node, self.run.ledgers_root)
        except (CorruptFormat, NotFound) as error:
            return Why(Code.CHANGED_SINCE_PLAN, f"its cursor ledger cannot be read: {error}")
        at = (found.position.ledger_id, found.position.entry_id) if found.position else (None, None)
        names = ("ledger_id", "entry_id", "cursors_ledger_id", "cursors_entry_id")
        if (*at, found.cursors_ledger_id, found.last_entry) != tuple(row[name] for name in names):
            return Why(Code.CHANGED_SINCE_PLAN, "its persisted state is another one than the plan's")
        if found.replicated:
            return Why(InactiveKept.REPLICATED, "it is a replicated subscription: its consumers may be elsewhere")
        return None

    def _at_broker(self, topic: Topic, node: Node, row: Mapping[str, Any], last_ledger: int) -> Why | None:
        """Why it stays, as its broker says; a topic whose last ledger is closed is loaded by nobody, listed or not."""
        admin = self.ports.admin
        loaded, monitors = self._brokers(str(topic.namespace))
        if str(topic) not in loaded:
            return Why(InactiveKept.NOT_LOADED, "no broker lists its topic")
        if ledger_states(self.ports.store, [last_ledger], self.run.ledgers_root)[0] != LedgerState.OPEN.name:
            return Why(InactiveKept.NOT_LOADED, "its last ledger is closed: its broker has unloaded it")
        if last_ledger != row["last_ledger_id"] and not admin.internal_stats(topic).loaded_since(row["last_ledger_id"]):
            text = "its topic has a new ledger, perhaps from a load since the scan: nobody knows what was read before"
            return Why(Code.CHANGED_SINCE_PLAN, text)
        names = [cursor_name(name) for name in snapshot.cursors(self.ports.store, node.path.rpartition("/")[0])]
        if row["cursor"] in monitors.system_cursors:
            return Why(InactiveKept.SYSTEM_CURSOR, "additionalSystemCursorNames names it by now")
        if monitors.replicator is None:
            return Why(InactiveKept.UNKNOWN_POLICY, "no broker says how replicators' cursors begin (replicatorPrefix)")
        if row["cursor"].startswith(monitors.replicator):
            return Why(InactiveKept.REPLICATOR_CURSOR, "a replicator reads by it")
        gone = {row["cursor"], *self._going.get(topic, ())}
        if topic_would_go(topic, names, gone, monitors):
            return Why(InactiveKept.LAST_SUBSCRIPTION, "its broker would delete its topic, too, or may")
        return used_since(admin, topic, row["cursor"], self.begins)

    def _brokers(self, namespace: str) -> tuple[Mapping[str, str], Monitors]:
        """Which topics brokers have loaded, what they do by themselves in a namespace; :data:`SEEN_FOR` ago at most."""
        now = self.ports.clock.now_ms()
        at, loaded, monitors = self._seen.get(namespace, (now + 1, {}, None))
        if monitors is None or not 0 <= now - at <= SEEN_FOR:
            layers, differing = policies_now(self.cluster, [namespace], BROKER_NAMES)
            if differing:
                raise RefusedBy(InactiveKept.UNKNOWN_POLICY, differing[0])
            loaded = fetch_brokers(self.ports.store, self.ports.admin).loaded
            monitors = monitors_in_force(layers)
            self._seen[namespace] = now, loaded, monitors
        return loaded, monitors

    # -------------------------------------------------------------------------------------------------------- saying so

    def _said(self, row: Mapping[str, Any], outcome: Outcome, why: Why) -> DeletedSubscription:
        if self.guard:
            topic = Topic.parse(row["topic"])
            self._deleting(self.guard).journal(topic, _about(row), row["bytes"], outcome, why)
        return DeletedSubscription(row["topic"], row["cursor"], outcome, why, row["bytes"])

    def _deleting(self, guard: RunGuard) -> Deleting:
        return Deleting(self.ports, guard, Writer(self.run.run_id, self.run.cluster, self.plan_id))


def _about(row: Mapping[str, Any]) -> Subscription:
    return Subscription(row["cursor"], row["ledger_id"], row["entry_id"], row["czxid"])
