"""Retention in a schedule: namespaces and topics have policies, by time and by size, which change and are deleted; a
plan of what is past them is made and applied.

Belongs here: which schedules have it, what an operator does. Not here: what must hold (``laws/retention_laws.py``), how
brokers keep topics' policies (``world/topic_policies.py``).
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from pulsar_lifecycle.formats.managed_ledger import LedgerInfo
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.trimming.retention_run import apply_retention
from tests.kit.simulated.cluster import BROKER
from tests.simulation.laws.deletion_laws import Violation
from tests.simulation.laws.retention_laws import within_retention
from tests.simulation.operators.operator import Operator
from tests.simulation.operators.turns import Turns
from tests.simulation.world.model import ONE_ENTRY, Cursor, ModelTopic
from tests.simulation.world.policies import FOREVER, MIB, RETENTION, BrokerPolicies, Retention
from tests.simulation.world.topic_policies import say

EVERY, AT = 20, 12
BY_TIME = (Retention(0, 0), Retention(60, -1), Retention(1440, -1), Retention(10 * 1440, -1), FOREVER)
BY_SIZE = (Retention(-1, 1), Retention(-1, 3), Retention(1440, 1), Retention(10 * 1440, 2), Retention(60, 4))
AGING = "aging-"
HALF = bytes(MIB // 2)
"""An entry of half a MiB."""
SIZES = (ONE_ENTRY, ONE_ENTRY, (HALF,), (HALF,) * 2, (HALF,) * 3)
"""What is written to ledgers."""


def has(seed: int) -> bool:
    """Whether a schedule has retention."""
    return seed % EVERY == AT


class Retaining(Turns):
    """What an operator does about retention. Its methods return what to print."""

    NAMESPACES: tuple[str, ...] = ("acme/orders", "acme/other")
    STEPS: tuple[str, ...] = ("grow", "hours", "scan", "plan_retention", "shift", "apply_retention")
    """What an operator does, in this order."""
    BESIDES: tuple[str, ...] = ("change", "own", "own", "apply_retention", "plan_retention")
    """What comes out of it, sometimes."""
    RUNS = frozenset({"plan_retention", "apply_retention"})

    def __init__(self, operator: Operator, policies: BrokerPolicies | None = None) -> None:
        super().__init__(operator)
        self.topics = 0
        self.policies = policies or BrokerPolicies()
        """Those in force; brokers retain everything else for ever."""
        self.policies.of_topics = operator.random.random() < 0.85
        self.counts = Counter[str]()
        self.grown: Topic | None = None
        world = self.world
        world.dates_ledgers = True
        brokers: dict[str, Any] = {"defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1"}
        world.admin.configuration[BROKER] = brokers | {
            "topicLevelPoliciesEnabled": str(self.policies.of_topics).lower()
        }
        operator.laws.judge_retention = self.judge
        world.after_restore.append(self._again)
        self.change()

    def change(self) -> str:
        """Some namespace gets another policy."""
        random = self.operator.random
        name = random.choice(self.NAMESPACES)
        self.policies.retention[name] = random.choice((*BY_TIME, *BY_SIZE))
        self.world.put(f"/admin/policies/{name}", self._policy(name))
        return f"{name} has {self._said(name)}"

    def shift(self) -> str:
        """What a plan went by is not in force any more, now and then."""
        operator, plans = self.operator, self.operator.lake.retention_plans()
        what = operator.random.choice(["change", "own", "planned", "planned", "nothing", "nothing"])
        planned = operator.lake.retention_plan(plans[-1].plan_id)[1].column("topic").to_pylist() if plans else []
        if what == "planned" and planned:
            return self.say(Topic.parse(operator.random.choice(planned)), operator.random.random() < 0.5, self._own())
        return getattr(self, what)() if what in self.BESIDES else "all stays as it was planned"

    def own(self) -> str:
        """A topic gets policies of its own, local or global ones, or loses those that it has."""
        random, topics = self.operator.random, sorted(self.world.model.topics, key=str)
        topics = [one for one in topics if one.local.startswith(AGING) and str(one.namespace) in self.NAMESPACES]
        if not topics:
            return "no topic that could have policies"
        topic, everywhere = random.choice(topics), random.random() < 0.5
        held = [(one, n == 1) for one in topics for n, said in enumerate(self.policies.own(self.world, one)) if said]
        if held and random.random() < 0.4:
            return self.say(*random.choice(held), None)
        return self.say(topic, everywhere, self._own())

    def say(self, topic: Topic, everywhere: bool, policies: Mapping[str, Any] | None) -> str:
        """A topic has these policies, global ones if ``everywhere``, or none of that kind any more."""
        done = say(self.world, topic, policies, everywhere=everywhere)
        level = "global" if everywhere else "local"
        return f"{topic} has the {level} policies {policies}" if done else f"no broker can store policies of {topic}"

    def _own(self) -> dict[str, Any]:
        """Policies that a topic may have."""
        retention = self.operator.random.choice((*BY_TIME, *BY_SIZE, None))
        return {RETENTION: retention.said()} if retention else {}

    def _again(self) -> None:
        """A restore took policies back."""
        for name in self.policies.retention:
            if self.world.zookeeper.stat(f"/admin/policies/{name}") is not None:
                self.world.put(f"/admin/policies/{name}", self._policy(name))

    def _policy(self, namespace: str) -> bytes:
        if namespace not in self.policies.retention:
            return b"{}"
        return json.dumps(self._said(namespace)).encode()

    def _said(self, namespace: str) -> Mapping[str, Any]:
        return {"retention_policies": self.policies.retention[namespace].said()}

    def grow(self) -> str:
        """A topic that rests, or a partition, has ledgers of every age and size, and perhaps a cursor amid them."""
        world, random = self.world, self.operator.random
        self.topics += 1
        part = random.choice(["", "", "-partition-0"])
        name = Topic.parse(f"persistent://{random.choice(self.NAMESPACES)}/{AGING}{self.topics}{part}")
        if name in world.model.topics or world.full():
            self.grown = None
            return "no room for another topic"
        self.grown = name
        world.put(f"/admin/policies/{name.namespace}", self._policy(str(name.namespace)))
        topic = world.model.topics[name] = ModelTopic(name)
        topic.ledgers += [world.make("data", name, entries=random.choice(SIZES)) for _ in range(5)]
        topic.moved = topic.pinned = True
        now = world.time.now_ms()
        ages = sorted((random.choice([1, 30, 200, 2_000, 20_000]) for _ in topic.ledgers), reverse=True)
        world.closed_at.update((one, now - age * 60_000) for one, age in zip(topic.ledgers, ages, strict=True))
        world.store(topic)
        if random.random() < 0.8:
            topic.cursors["s"] = Cursor(at=random.choice(topic.ledgers[1:]))
            world.store_cursor(topic, "s")
        said = f"{name} rests with {topic.ledgers}, {ages} minutes old"
        for everywhere in random.choice([(), (), (False,), (True,), (False, True), (True, False)]):
            said += f"; {self.say(name, everywhere, self._own())}"
        return said

    def hours(self) -> str:
        """A few hours pass: a topic that was just written counts as loaded."""
        self.world.wait_ms(2 * 3_600_000)
        return "two hours"

    def plan_retention(self) -> str:
        """A plan of the newest scan."""
        operator, world = self.operator, self.world
        epochs = operator.lake.epochs()
        if not epochs:
            return "no scan yet"
        world.trace = None
        with operator.writing_nothing("a plan of retention"), self.loading_nothing("a plan of retention"):
            summary, rows = make_retention_plan(operator.cluster, epochs[-1])
        return f"{summary.plan_id}: {rows.num_rows} ledgers, actionable {summary.actionable}"

    def apply_retention(self) -> str:
        """Apply the newest plan, or only its first ledgers."""
        operator = self.operator
        plans = operator.lake.retention_plans()
        if not plans:
            return "no plan of retention yet"
        run_id = operator._run_id("retention")
        order = Order(plans[-1].plan_id, plans[-1].digest, limit=operator.random.choice([0, 0, 3]))
        self.world.trace = None
        operator.laws.retaining = True
        try:
            with operator._within_caps(run_id), self.loading_nothing(run_id):
                done = apply_retention(operator.cluster, run_id, order, dry_run=False)
        finally:
            operator.laws.retaining = False
        return "; ".join(f"{one.ledger_id} {one.outcome}: {one.reason}" for one in done)

    @contextmanager
    def loading_nothing(self, what: str) -> Iterator[None]:
        """What is done within asks no broker of a topic that it has not loaded: it would load it."""

        def loaded(topic: ModelTopic) -> None:
            raise Violation(f"load: {what} has {topic.name} loaded without order")

        was, self.world.on_load = self.world.on_load, loaded
        try:
            yield
        finally:
            self.world.on_load = was

    def judge(self, topic: Topic, gone: list[LedgerInfo]) -> str:
        """Why these must not leave the list of their topic for their retention; empty if they may."""
        return within_retention(self.world, self.policies, topic, [item.ledger_id for item in gone])
