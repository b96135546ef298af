"""Applying a load plan: which of its topics are loaded now, how many of which broker together, what is left alone.

Belongs here: whether the plan may be applied, judging its topics afresh, budgets, the order of waves. Not here: making
it (``lifecycle/load/load_planning.py``), what is done to loaded topics (``lifecycle/load/visits.py``).

A bundle that nobody owns is taken by a request, which loads one topic of it. So are those of the system topics that its
broker reads for it, before that (``bundles/guard.py``); a topic for which that cannot be done is left.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.bundles.guard import others_loaded
from pulsar_lifecycle.bundles.placing import bundles, lockless
from pulsar_lifecycle.errors import RefusedBy
from pulsar_lifecycle.journal import operator_words
from pulsar_lifecycle.journal.prometheus import published
from pulsar_lifecycle.lifecycle import unused_subscriptions
from pulsar_lifecycle.lifecycle.held.open_sizes import open_sizes
from pulsar_lifecycle.lifecycle.load.fresh import TopicNow, missing, missing_cursors, read_now
from pulsar_lifecycle.lifecycle.load.going_subscriptions import Inactive
from pulsar_lifecycle.lifecycle.load.load_planning import choice_of, functions_now
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept, last_of, topics_to_load
from pulsar_lifecycle.lifecycle.load.monitors import BROKER_NAMES, Monitors, monitors_in_force
from pulsar_lifecycle.lifecycle.load.one_topic import code_of
from pulsar_lifecycle.lifecycle.load.visit import Visit
from pulsar_lifecycle.lifecycle.load.visit_rows import broken_off, end_visits
from pulsar_lifecycle.lifecycle.load.visits import STEPS, LoadedTopic, Visits
from pulsar_lifecycle.lifecycle.load_budget import LoadBudget
from pulsar_lifecycle.lifecycle.subscription_deletion import end_deletions
from pulsar_lifecycle.lifecycle.unused_subscriptions import Together
from pulsar_lifecycle.metastore import load_state
from pulsar_lifecycle.metastore.load_state import BrokerAnswers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.run_settings import LoadSettings
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Caps, Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer
from pulsar_lifecycle.runs.plan_checks import check_blast
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.bundle_owner import Owners, owned_since
from pulsar_lifecycle.topics.policies import InForce
from pulsar_lifecycle.topics.retention_now import policies_now
from pulsar_lifecycle.topics.retention_policy import RetentionPolicy, policies_in_force
from pulsar_lifecycle.topics.topic_run import owners_rules, topic_ports, topic_run, unloads_of
from pulsar_lifecycle.topics.unloads import RunGuard, finish_unloads
from pulsar_lifecycle.topics.write import SHADOWS_SEEN_FOR, TopicRun
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans import load_plan

Report = Callable[[Sequence[LoadedTopic]], None]
"""Called with what became of each topic as soon as it is known: a run that is stopped later returns nothing."""

SAME = (
    *("ledger_id", "retention_minutes", "retention_mb", "ttl_seconds"),
    *load_plan.SUBSCRIPTIONS,
    *("durable_cursors", "slowest_ledger_id", "slowest_entry_id"),
)
"""What must be as the plan has it."""


def load_topics(
    cluster: Cluster, run_id: str, order: Order, *, dry_run: bool, report: Report = lambda _: None
) -> list[LoadedTopic]:
    """Load the topics of a plan for as long as it takes to free what their retention and TTL let go; then unload them.

    A topic is left alone, by code, if anything changed since the plan, or a rule or a budget keeps it. A dry run writes
    nothing and loads nothing. Raises Refused for a plan that is stale, report-only, of another cluster or beyond the
    caps, and when another run acts; NotFound, UsageError, Paused, LeaseLost, Overloaded.
    """
    lake = cluster.lake
    summary, rows, caps = evidence.check_order(
        cluster, order, lake.load_plan, load_plan.digest, load_plan.as_capped, dry_run=dry_run
    )
    planned, whole = _by_topic(rows), _by_topic(lake.load_plan(summary.plan_id)[1])
    of_plan = summary.plan_id, summary.created_at, planned, summary.cluster_ledgers, caps, whole
    if dry_run:
        with topic_ports(cluster, read_only=True) as ports:
            fingerprint = evidence.check_store(cluster, ports.store)
            run = _LoadRun(cluster, _topic_run(cluster, run_id, ports, fingerprint), ports, True, *of_plan)
            return run.look(report)
    with _acting(cluster, run_id, summary.created_at) as (run, ports, guard):
        finish_unloads(ports.store, ports.admin, ports.clock, guard, wait=False)
        end_visits(cluster, ports)
        end_deletions(cluster, ports)
        return _LoadRun(cluster, run, ports, False, *of_plan).all(guard, report)


def _topic_run(cluster: Cluster, run_id: str, ports: Ports, fingerprint: str) -> TopicRun:
    now = ports.clock.now_ms()
    rules = owners_rules(cluster, evidence.usable_epoch(cluster, fingerprint, now), now)
    brokers = load_state.ask_brokers(ports.store, ports.admin).brokers
    return topic_run(cluster, run_id, ports, rules, now, False, brokers)


@contextmanager
def _acting(cluster: Cluster, run_id: str, planned_at: int) -> Iterator[tuple[TopicRun, Ports, RunGuard]]:
    """Check that we may act, and hold the lease of those who take ledgers off topics: nobody writes them meanwhile."""
    settings = cluster.settings
    with published(cluster), topic_ports(cluster) as ports:
        fingerprint = evidence.check_may_act(cluster, ports.store)
        with control.held_lease(settings, ports.store, ports.clock, f"load run {run_id}") as lease:
            evidence.await_plan_time(planned_at, lease.taken_at, ports.clock)
            operator_words.note_words(cluster, run_id)
            run = _topic_run(cluster, run_id, ports, fingerprint)
            yield run, ports, RunGuard(lease.guard, unloads_of(settings, ports.clock))


@dataclass(frozen=True, slots=True)
class _Judged:
    """Topics as they are now: why one is left alone, or what a visit of it needs. And by which policies.

    ``going``: the planned rows as they were judged, by ``Together.going``.
    """

    going: Mapping[Topic, Mapping[str, Any]]
    left: Mapping[Topic, Why]
    now: Mapping[Topic, TopicNow]
    owners: Mapping[Topic, str]
    owned_since: Mapping[Topic, int | None]
    policies: InForce[RetentionPolicy | None]
    monitors: Monitors
    may_be_deleted: Collection[Topic]
    trims: Mapping[Topic, Collection[int]]
    may_trim: Mapping[Topic, Collection[int]]
    weights: Mapping[Topic, Sequence[int]]


@dataclass
class _LoadRun:
    """One launch of a plan, which was made at ``planned_at`` (ms).

    ``planned``: the plan's rows by topic, as far as the launch takes them; ``whole``: all of them;
    ``cluster_ledgers``: what its share is of, for ``caps``. ``_weights``: those of topics of which more goes by now
    than the plan says (``load_plan``). ``_broken_off``: topics that a killed run of the plan had loaded.
    """

    cluster: Cluster
    run: TopicRun
    ports: Ports
    dry_run: bool
    plan_id: str
    planned_at: int
    planned: Mapping[Topic, Mapping[str, Any]]
    cluster_ledgers: int
    caps: Caps
    whole: Mapping[Topic, Mapping[str, Any]]
    _weights: dict[Topic, Sequence[int]] = field(default_factory=dict[Topic, Sequence[int]])
    _broken_off: frozenset[Topic] = field(init=False)
    _by_broker: Mapping[str, Sequence[Topic]] = field(init=False)
    _budget: LoadBudget = field(init=False)
    _together: Together = field(init=False)

    def __post_init__(self) -> None:
        self._broken_off = broken_off(self.cluster, self.plan_id)
        owners, by_broker = Owners(), dict[str, list[Topic]]()
        for topic in self.planned:
            by_broker.setdefault(owners.of(self.ports.store, self.run.brokers, topic), []).append(topic)
        self._by_broker = by_broker
        place = bundles(self.ports.store, by_broker.get("", ()))
        idle = frozenset(name for topic, name in place.items() if name != str(topic.namespace))
        self._budget = LoadBudget(self._settings, self.ports, idle)
        self._together = Together(self.whole, self.planned, self._has)

    def _has(self, topic: Topic, subscription: str) -> bool:
        return not all(missing_cursors(self.ports.store, topic, [subscription]))

    @property
    def _settings(self) -> LoadSettings:
        return self.cluster.settings.load

    def look(self, report: Report) -> list[LoadedTopic]:
        """What would become of each topic."""
        found: list[LoadedTopic] = []
        for topics in self._waves():
            judged = self._judge(topics)
            left, would = judged.left, Why(Code.MAY_GO, "nothing keeps it from being loaded")
            going = {one: tuple(load_plan.leaving(judged.going[one])) for one in topics if one not in left}
            said = [LoadedTopic(str(one), Outcome.LEFT, why) for one, why in left.items()]
            said += [LoadedTopic(str(one), Outcome.GOES, would, unsubscribed=some) for one, some in going.items()]
            report(said)
            found += said
        return found

    def all(self, guard: RunGuard, report: Report) -> list[LoadedTopic]:
        """Wave after wave."""
        found: list[LoadedTopic] = []
        for topics in self._waves():
            guard.check(self.ports.store)
            judged = self._judge(topics)
            refused = {topic: why for topic in topics if (why := guard.unloads.refused(topic))}
            left = refused | dict(judged.left)
            going = [topic for topic in topics if topic not in left]
            if lack := guard.unloads.lacks(len(going)):
                left |= dict.fromkeys(going, lack)
                going = []
            said = self._left(left)
            if going:
                said += self._visits(guard, judged).make([self._visit(topic, judged) for topic in going])
            report(said)
            found += said
            for one in said:
                if one.why is None or one.why.code is not LoadKept.BUDGET_SPENT:  # which keeps no other partition
                    self._together.stays(Topic.parse(one.topic))
        return found

    def _visits(self, guard: RunGuard, judged: _Judged) -> Visits:
        return Visits(
            writer=Writer(self.run.run_id, self.run.cluster, self.plan_id),
            ports=self.ports,
            guard=guard,
            ledgers_root=self.run.ledgers_root,
            context=self.run.context,
            policies=judged.policies,
            monitors=judged.monitors,
            monitors_now=self._monitors_now,
            protected=lambda visit: self._protected(visit.topic, visit.before),
            timeout_ms=int(self._settings.timeout * 1000),
        )

    def _monitors_now(self, namespaces: Collection[str]) -> tuple[Monitors | None, Collection[str]]:
        said, unanswered = load_state.ask_configurations(self.ports.admin)
        layers, differing = policies_now(self.cluster, namespaces, BROKER_NAMES, said)
        return None if differing else monitors_in_force(layers), unanswered

    def _visit(self, topic: Topic, judged: _Judged) -> Visit:
        row = judged.going[topic]
        return Visit(
            topic,
            judged.owners[topic],
            judged.now[topic],
            row["retention_minutes"],
            row["ttl_seconds"],
            row["expiry_minutes"] if row["expired_subscriptions"] else None,
            {name: judged.now[topic].versions[name] for name in load_plan.leaving(row)},
            together=self._together.names(topic),
            owned_since=judged.owned_since.get(topic),
            may_be_deleted=topic in judged.may_be_deleted,
            trims=judged.trims.get(topic, ()),
            may_trim=judged.may_trim.get(topic, ()),
            stays=self._together.apart(topic, row),
        )

    def _left(self, left: Mapping[Topic, Why]) -> list[LoadedTopic]:
        now, step = self.ports.clock.now_ms(), Step(Action.LOAD_TOPIC, Phase.LOAD)
        writer = Writer(self.run.run_id, self.run.cluster, self.plan_id)
        rows = [writer.row(step, Subject(-1, "", str(topic)), Outcome.LEFT, why, now) for topic, why in left.items()]
        if rows:
            self.ports.journal.record(rows)
        return [LoadedTopic(str(topic), Outcome.LEFT, why) for topic, why in left.items()]

    # --------------------------------------------------------------------------------------------------- which together

    def _waves(self) -> Iterator[list[Topic]]:
        """So many topics of each broker at once, and of those whose bundles nobody owns."""
        at_once = self._settings.at_once
        for start in range(0, max(map(len, self._by_broker.values()), default=0), at_once):
            yield [topic for some in self._by_broker.values() for topic in some[start : start + at_once]]

    # ---------------------------------------------------------------------------------------------------------- judging

    def _judge(self, topics: Sequence[Topic]) -> _Judged:
        """What is left now, with what bundles, brokers and this launch's caps and, last, its budget keep."""
        while True:
            judged = self._examine(topics)
            left = dict(judged.left)
            left |= self._grown({topic: own for topic, own in judged.weights.items() if topic not in left})
            left |= self._crowded(topics, left, judged)
            while apart := self._together.look(topics, left, self._others):
                left |= apart
            if judged.going == {topic: self._together.going(topic) for topic in topics}:
                break
        left |= self._budget.spent(topics, left, judged.owners)
        return replace(judged, left=left)

    def _others(self, topics: Collection[Topic]) -> Collection[Topic]:
        """Which of some topics of other waves would be left as they are now."""
        them = list(topics)
        judged = self._examine(them)
        return dict(judged.left) | self._crowded(them, judged.left, judged)

    def _crowded(self, topics: Sequence[Topic], left: Mapping[Topic, Why], judged: _Judged) -> dict[Topic, Why]:
        """What brokers and bundles keep; unless it is a dry run, brokers take what is loaded with the others alone."""
        found = self._budget.crowded(topics, left, judged.owners, judged.owned_since)
        if not self.dry_run:
            going = [topic for topic in topics if topic not in left and topic not in found]
            found |= {topic: why for topic in going if (why := others_loaded(self.ports.admin, topic))}
        return found

    def _examine(self, topics: Sequence[Topic]) -> _Judged:
        going = {topic: self._together.going(topic) for topic in topics}
        now = self.ports.clock.now_ms()
        answers = load_state.ask_brokers(self.ports.store, self.ports.admin)
        brokers, namespaces = answers.brokers, {str(topic.namespace) for topic in topics}
        layers, differing = policies_now(self.cluster, namespaces, BROKER_NAMES, answers.configurations)
        functions = functions_now(self.cluster)
        differing = (*differing, *filter(None, [functions.unknown]))
        unlocked = lockless(answers.configurations)
        owners = Owners(unlocked)
        owned = {topic: owners.of(self.ports.store, brokers, topic) for topic in topics}
        unanswered = self._unanswered(owned, answers)
        policies, monitors = policies_in_force(layers), monitors_in_force(layers)
        fresh = read_now(self.ports.store, self.ports.reader, self.run.ledgers_root, topics)
        chosen, end = choice_of(self.cluster.settings, functions), now + int(self._settings.timeout * 1000) * STEPS

        def opened(listed: pa.Table, idle: Any) -> pa.Table:
            ids = last_of(listed, idle, chosen)
            return open_sizes(self.ports.store, self.ports.reader, self.run.ledgers_root, ids)

        tables = fresh.for_loading(policies, self.run.context, brokers, now, opened)
        named = {str(topic): load_plan.inactive(row) for topic, row in going.items()}
        inactive = Inactive(unused_subscriptions.chosen(self.cluster.settings, named), planned=True)
        rows, later = (_by_topic(topics_to_load(tables, monitors, chosen, at, inactive)) for at in (now, end))
        left: dict[Topic, Why] = dict(unanswered)
        for topic in topics:
            if topic in left:
                continue
            why = self._why_left(
                topic, going[topic], rows.get(topic), later.get(topic), fresh.topics.get(topic), differing
            )
            if why:
                left[topic] = why
        since = {topic: owned_since(self.ports.store, topic) for topic in topics if topic not in left}
        for topic, taken in since.items():
            if (broker := owned[topic]) and taken is None and broker not in unlocked:
                left[topic] = Why(LoadKept.BUNDLE_MOVED, f"{broker} has lost its bundle")
        ordered = {topic for topic, row in rows.items() if str(LoadKept.TOPIC_WOULD_BE_DELETED) in row["monitors"]}
        trims = {topic: row["trims"] for topic, row in rows.items()}
        may_trim = {topic: row["may_trim"] for topic, row in later.items()}
        weights = {topic: row["weights"] for topic, row in later.items()}
        found = fresh.topics, owned, since, policies, monitors, ordered, trims, may_trim
        return _Judged(going, left, *found, weights)

    def _unanswered(self, owned: Mapping[Topic, str], answers: BrokerAnswers) -> dict[Topic, Why]:
        """Topics that a broker which does not answer has, or may take; all, if nobody knows what it is configured with.

        When the plan was made all brokers had said so, and agreed. One that was registered before then says the same.
        """
        if not answers.unanswered:
            return {}
        unanswered = sorted(answers.unanswered)
        if new := [name for name in unanswered if answers.registered.get(name, self.planned_at) >= self.planned_at]:
            text = f"broker {new[0]} began after the plan was made, and does not answer: {answers.unanswered[new[0]]}"
            return dict.fromkeys(owned, Why(LoadKept.MONITORS_UNKNOWN, text))
        return {
            topic: Why(
                LoadKept.BROKER_UNANSWERED,
                f"{_whose(broker)}; broker {unanswered[0]}: {answers.unanswered[unanswered[0]]}",
            )
            for topic, broker in owned.items()
            if broker not in answers.configurations
        }

    def _grown(self, weights: Mapping[Topic, Sequence[int]]) -> dict[Topic, Why]:
        """Topics of which more goes by the end of a visit than was counted, where that is beyond the launch's caps."""
        grown = {
            topic: own
            for topic, own in weights.items()
            if _more(own, self._weights.get(topic) or self.planned[topic]["weights"])
        }
        if not grown:
            return {}
        counted = load_plan.weighed(self.planned, self._weights | grown)
        try:
            check_blast(counted, self.cluster_ledgers, self.caps)
        except RefusedBy as refusal:
            text = f"more of it goes by now than the plan counted: {refusal}"
            return {topic: Why(Code.CHANGED_SINCE_PLAN, text) for topic in grown}
        self._weights |= grown
        return {}

    def _why_left(
        self,
        topic: Topic,
        planned: Mapping[str, Any],
        row: Mapping[str, Any] | None,
        end: Mapping[str, Any] | None,
        now: TopicNow | None,
        differing: Sequence[str],
    ) -> Why | None:
        """``row``: as it is judged now, ``end``: as it will be once its visit is over at the latest."""
        if now is None:
            if all(missing(self.ports.store, [topic.managed_ledger])):
                return Why(Code.TOPIC_GONE, "it does not exist any more")
            return Why(Code.TOPIC_UNREAD, "it cannot be read")
        if differing:
            return Why(LoadKept.MONITORS_UNKNOWN, differing[0])
        if topic in self._broken_off and now.ids[-1:] != [planned["ledger_id"]]:
            text = "a run of this plan was killed amid its visit, which put a new ledger behind: scan and plan again"
            return Why(LoadKept.VISIT_BROKEN_OFF, text)
        if row is None:
            since = now.ids[-1:] != [planned["ledger_id"]]
            return Why(LoadKept.NEEDS_NO_BROKER if since else Code.CHANGED_SINCE_PLAN, "it needs no broker any more")
        expiring = ("expiry_minutes",) if planned["expired_subscriptions"] else ()
        changed = [name for name in (*SAME, *expiring) if row[name] != planned[name]]
        if changed:
            said = ", ".join(f"{name} is {row[name]}, was {planned[name]}" for name in changed)
            return Why(Code.CHANGED_SINCE_PLAN, said)
        if other := [name for name, czxid in load_plan.inactive(row).items() if now.versions[name][0] != czxid]:
            return Why(Code.CHANGED_SINCE_PLAN, f"subscription {other[0]} is another one than the plan's")
        if row["kept"]:
            return Why(code_of(row["kept"]), f"kept by {row['kept']}")
        if end and load_plan.leaving(end) != load_plan.leaving(row):
            return Why(Code.CHANGED_SINCE_PLAN, "another subscription of it expires before it were unloaded")
        if end and end["kept"]:
            return Why(code_of(end["kept"]), f"kept by {end['kept']} before it were unloaded")
        if protected := self._protected(topic, now):
            return protected
        if control.has_pending_unload(self.ports.store, topic):
            return Why(Code.UNLOAD_PENDING, "an unload of it is pending")
        return None

    def _protected(self, topic: Topic, now: TopicNow) -> Why | None:
        """What protects a topic, holds of now among it."""
        source = snapshot.shadow_source(self.ports.store, topic, now.info)
        return self.run.topic_rule(topic, source, SHADOWS_SEEN_FOR)


def _whose(broker: str) -> str:
    return f"broker {broker} owns its bundle" if broker else "nobody is known to own its bundle"


def _by_topic(rows: pa.Table) -> dict[Topic, dict[str, Any]]:
    return {Topic.parse(row["topic"]): row for row in rows.to_pylist()}


def _more(now: Sequence[int], then: Sequence[int]) -> bool:
    return len(now) > len(then) or sum(now) > sum(then)
