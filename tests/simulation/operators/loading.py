"""The way ``load`` in a schedule: brokers have retention, TTL and subscription expiry; topics are loaded by plan.

Belongs here: which schedules have it, what an operator does. Not here: what brokers do (``world/policies.py``), the
laws (``laws/load_laws.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.lifecycle.load.load_planning import make_load_plan
from pulsar_lifecycle.lifecycle.load.load_run import load_topics
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.settings import Settings
from tests.kit.simulated.cluster import BROKER
from tests.simulation.laws.load_laws import LoadLaws
from tests.simulation.operators import retaining
from tests.simulation.operators.operator import Operator
from tests.simulation.operators.retaining import EVERY, Retaining
from tests.simulation.world.model import COMPACTION, Cursor, ModelTopic
from tests.simulation.world.policies import (
    DEDUPLICATES,
    DEDUPLICATION,
    FOREVER,
    MINUTE,
    QUOTA,
    TTL,
    BrokerPolicies,
    Retention,
)

AT = 16
ORDERED, UNORDERED = ("acme/loading", "acme/expiring"), "acme/lending"
"""Namespaces whose topics may be loaded, and one whose topics may not."""
STORM = (
    *("grow", "grow", "grow", "use", "hours", "scan", "plan_load", "load_topics", "work", "load_topics"),
    *("hours", "scan", "plan_retention", "apply_retention"),
)
"""What an operator does of it once a scan covers the cluster."""
RETAINED = (
    *(Retention(0, 0), Retention(60, -1), Retention(60, -1), Retention(1440, -1), FOREVER),
    *(Retention(60, 2), Retention(-1, 1)),
)
LONG = 1_000_000
"""A TTL (s) that nothing is past; of such a namespace a quota drops what is unread."""
EVICTS = {"message_age": {"policy": "consumer_backlog_eviction", "limitTime": QUOTA, "limitSize": -1}}
AUDIT = "audit"
"""A cursor of ``additionalSystemCursorNames``."""


def has(seed: int) -> bool:
    """Whether a schedule has loads."""
    return seed % EVERY == AT


def of(seed: int, operator: Operator) -> Retaining | None:
    """What an operator of a schedule does about retention, with loads or without."""
    if has(seed):
        return Loading(operator)
    return Retaining(operator) if retaining.has(seed) else None


def settings_for(settings: Settings, random: Random) -> Settings:
    """Loads are ordered of some namespaces; of one of them subscriptions may expire meanwhile."""
    load = {
        "namespaces": ORDERED,
        "subscription_expiry": ORDERED[1:],
        "min_bytes": 1,
        "timeout": 5,
        "at_once": random.choice([1, 10]),
    }
    return Settings.model_validate({**settings.model_dump(), "load": load})


class Loading(Retaining):
    """What an operator does about topics that need a broker. Its methods return what to print."""

    NAMESPACES = (*ORDERED, UNORDERED)
    STEPS = (
        *("grow", "hours", "scan", "plan_load", "load_topics"),
        *("work", "hours", "scan", "plan_retention", "apply_retention"),
    )
    BESIDES = ("change", "own", "load_topics", "plan_load", "move", "use")
    RUNS = Retaining.RUNS | {"plan_load", "load_topics", "trim_grown"}

    def __init__(self, operator: Operator) -> None:
        world = operator.world
        self.deduplicated = set[str]()
        self.moves = 0
        self.policies = BrokerPolicies(system_cursors=frozenset({AUDIT}), deduplicated=self.deduplicated)
        world.policies, world.unloads_load = self.policies, True
        self.laws = LoadLaws(world, self.policies, operator.settings.load)
        super().__init__(operator, self.policies)
        self.loaded_at: dict[Topic, int] = {}
        world.on_load, world.known_to_broker = self._is_loaded, self._known
        self.counts = self.laws.counts
        world.admin.configuration[BROKER] = {
            **world.admin.configuration[BROKER],
            "ttlDurationDefaultInSeconds": "0",
            "subscriptionExpirationTimeMinutes": "0",
            "backlogQuotaCheckEnabled": "true",
            "backlogQuotaDefaultRetentionPolicy": "producer_request_hold",
            "backlogQuotaDefaultLimitBytes": "-1",
            "backlogQuotaDefaultLimitGB": "-1",
            "backlogQuotaDefaultLimitSecond": "-1",
            "brokerServiceCompactionThresholdInBytes": "0",
            "brokerDeduplicationEnabled": "false",
            "brokerDeleteInactiveTopicsEnabled": "false",
            "brokerDeleteInactiveTopicsMode": "delete_when_no_subscriptions",
            "additionalSystemCursorNames": f"[{AUDIT}]",
            "replicatorPrefix": "pulsar.repl",
        }
        for namespace in self.NAMESPACES:
            self.set(namespace)
            if operator.random.random() < 0.5:
                self._take(namespace)

    def set(self, namespace: str) -> str:
        """A namespace gets other policies."""
        random = self.operator.random
        self.policies.retention[namespace] = random.choice(RETAINED)
        self.policies.ttl[namespace] = random.choice([0, 3_600, 3_600, LONG])
        if self.policies.ttl[namespace] == LONG:
            self.policies.evicts.add(namespace)
        else:
            self.policies.evicts.discard(namespace)
        self.deduplicated.add(namespace) if random.random() < 0.5 else self.deduplicated.discard(namespace)
        self.policies.expiry[namespace] = random.choice([60, 10_000] if namespace in ORDERED[1:] else [0, 0, 60])
        self.world.put(f"/admin/policies/{namespace}", self._policy(namespace))
        return f"{namespace} has {self._said(namespace)}"

    def change(self) -> str:
        """Some namespace gets other policies."""
        return self.set(self.operator.random.choice(self.NAMESPACES))

    def _said(self, namespace: str) -> Mapping[str, Any]:
        return {
            **super()._said(namespace),
            "replication_clusters": ["fake", "west"],
            "backlog_quota_map": EVICTS if namespace in self.policies.evicts else {},
            "deduplicationEnabled": namespace in self.deduplicated,
            "message_ttl_in_seconds": self.policies.ttl.get(namespace, 0),
            "subscription_expiration_time_minutes": self.policies.expiry.get(namespace, 0),
        }

    def _own(self) -> dict[str, Any]:
        random = self.operator.random
        ttl, deduplicates = random.choice([None, 0, 3_600, 3_600, LONG]), random.choice([None, None, True, False])
        said = {TTL: ttl, DEDUPLICATES: deduplicates}
        return super()._own() | {name: value for name, value in said.items() if value is not None}

    def _take(self, namespace: str) -> None:
        """The broker has the namespace's bundle."""
        self.world.admin.owning(Topic.parse(f"persistent://{namespace}/any"))

    def grow(self) -> str:
        """A topic that rests, whose last ledger may never have been closed, with subscriptions of every kind."""
        done = super().grow()
        topic = self.world.model.topics.get(self.grown)
        if topic is None or len(topic.ledgers) < 5:
            return done
        world, random = self.world, self.operator.random
        last = topic.ledgers[-1]
        world.closed_at[last] = world.time.now_ms()
        if random.random() < 0.3:
            del world.closed_at[last]
            world.restate(last, LedgerState.OPEN)
        world.store(topic)
        places, others, ages = [topic.ledgers[0], topic.ledgers[2], topic.ledgers[-1]], [0, 0, 1, 2], [1, 200, 20_000]
        if str(topic.name.namespace) in ORDERED[1:] and random.random() < 0.7:
            places, others, ages = places[:1], [0], [200, 20_000, 20_000]  # all waits for one that may have expired
        world.wait_ms(1)  # brokers write cursors after they made the last ledger
        kinds = ["t", AUDIT, COMPACTION, "pulsar.repl.west", DEDUPLICATION]
        for name in ("s", *random.sample(kinds, random.choice(others))):
            at = random.choice(places)
            active = world.time.now_ms() - random.choice(ages) * MINUTE
            topic.cursors[name] = Cursor(at=at, active=active)
            world.store_cursor(topic, name)
        if random.random() < 0.4:
            done += f"; {self._overrule(topic)}"
        positions = {name: cursor.at for name, cursor in topic.cursors.items()}
        return f"{done}, {positions}"

    def next(self) -> str:
        """As of any operator; every third time that a cursor would be moved, a topic is trimmed instead."""
        what = super().next()
        self.moves += what == "move"
        return "trim_grown" if what == "move" and self.moves % 3 == 0 else what

    def trim_grown(self) -> str:
        """Trim the topic that grew last, whose broker has died: it counts as loaded, and an unload loads it."""
        topic = self.world.model.topics.get(self.grown)
        if topic is None or topic.loaded or topic.away or len(topic.ledgers) < 2:
            return "nothing to trim"
        overruled = self._overrule(topic)
        if self.world.exists(topic.ledgers[-1]):
            self.world.restate(topic.ledgers[-1], LedgerState.OPEN)
        return f"{overruled}; {self.operator.trim(topic)}"

    def _overrule(self, topic: ModelTopic) -> str:
        """Local policies overrule global ones, by which a load would expire messages, or forget what was sent."""
        random = self.operator.random
        shared = random.choice([{TTL: random.choice([1_800, 3_600])}, {DEDUPLICATES: False}])
        if DEDUPLICATES in shared:
            topic.cursors[DEDUPLICATION] = Cursor(at=topic.ledgers[-1])
            self.world.store_cursor(topic, DEDUPLICATION)
        local = self.say(topic.name, False, {TTL: random.choice([0, LONG]), DEDUPLICATES: True})
        return f"{local}; {self.say(topic.name, True, shared)}"

    def move(self) -> str:
        """A cursor is set back, or a subscription is made: what a plan took for acknowledged is not any more."""
        topics = [t for t in self.world.model.topics.values() if str(t.name.namespace) in self.NAMESPACES and t.ledgers]
        topics = [t for t in topics if not t.apart]
        if not topics:
            return "no topic to move a cursor of"
        topic, name = self.operator.random.choice(topics), self.operator.random.choice(["s", "new"])
        topic.cursors.setdefault(name, Cursor(active=self.world.time.now_ms()))
        self.world.move_to(topic, name, topic.ledgers[0])
        return f"{name} of {topic.name} stands at {topic.ledgers[0]} again"

    def use(self) -> str:
        """A client is at a subscription for a while; then the broker unloads the topic, or dies."""
        world, random = self.world, self.operator.random
        topics = [t for t in world.model.topics.values() if str(t.name.namespace) in self.NAMESPACES and t.cursors]
        topics = [t for t in topics if t.ledgers and not t.loaded and not t.away]
        if not topics:
            return "no topic that a client could be at"
        topics = [t for t in topics if str(t.name.namespace) in ORDERED[1:]] or topics
        topic, how = (
            random.choice(topics),
            random.choice(["unloads it", "dies", *["dies, and its ledger is closed"] * 2]),
        )
        world.load(topic)
        if not topic.cursors:
            return f"{topic.name} has no subscription any more"
        name = random.choice(sorted(topic.cursors))
        self.laws.used[topic.name, name] = world.time.now_ms()
        world.unload(topic, graceful=how == "unloads it")
        if "closed" in how:
            world.restate(topic.ledgers[-1], LedgerState.CLOSED)
        return f"a client is at {name} of {topic.name}, whose broker {how}"

    def _is_loaded(self, topic: ModelTopic) -> None:
        """A client may come as soon as a topic is loaded."""
        self.laws.is_loaded(topic)
        now, random = self.world.time.now_ms(), self.operator.random
        self.loaded_at[topic.name] = now
        if topic.cursors and random.random() < 0.2:
            self.laws.used[topic.name, random.choice(sorted(topic.cursors))] = now

    def _known(self, topic: ModelTopic, name: str) -> int:
        """What its broker knows of a subscription since it loaded the topic."""
        used = self.laws.used.get((topic.name, name), 0)
        return used if used >= self.loaded_at.get(topic.name, 0) else 0

    def work(self) -> str:
        """Brokers expire and trim what they have loaded."""
        world, said = self.world, list[str]()
        for topic in [t for t in world.model.topics.values() if t.loaded and str(t.name.namespace) in self.NAMESPACES]:
            gone = world.unsubscribe_expired(topic)
            said.append(
                f"{topic.name} lets {gone} go, and {world.take_off(topic, len(self.policies.due(world, topic)))}"
            )
        return "; ".join(said) or "no topic is loaded"

    def plan_load(self) -> str:
        """A plan of the newest scan; it loads nothing."""
        operator, world = self.operator, self.world
        epochs = operator.lake.epochs()
        if not epochs:
            return "no scan yet"
        world.trace = None
        with operator.writing_nothing("a plan of loads"), self.laws.run():
            summary, rows = make_load_plan(operator.cluster, epochs[-1])
        return f"{summary.plan_id}: {rows.column('topic').to_pylist()}, actionable {summary.actionable}"

    def load_topics(self) -> str:
        """Apply the newest plan, or only the first of its topics."""
        operator = self.operator
        plans = operator.lake.load_plans()
        if not plans:
            return "no plan of loads yet"
        run_id, (summary, rows) = operator._run_id("load"), operator.lake.load_plan(plans[-1].plan_id)
        order = Order(summary.plan_id, summary.digest, limit=operator.random.choice([0, 0, 1]))
        self.world.trace = None
        with self.laws.run(*rows.column("topic").to_pylist()):
            done = load_topics(operator.cluster, run_id, order, dry_run=False)
        self.counts["freed by loads"] += sum(one.freed > 0 for one in done)
        return "; ".join(f"{one.topic} {one.outcome}: {one.why.text}" for one in done)
