"""Retention in a schedule: namespaces have a policy, which changes; a plan of what is past it is made and applied.

Belongs here: which schedules have it, what an operator does, the laws. Not here: cursors, holes and offloads of what a
run takes off a list, which ``laws.py`` judges for every run.
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
from tests.simulation.operators.operator import Operator
from tests.simulation.operators.turns import Turns
from tests.simulation.world.model import Cursor, ModelTopic

EVERY, AT = 20, 12
MINUTES = (0, 60, 1440, 10 * 1440, -1)


def has(seed: int) -> bool:
    """Whether a schedule has retention."""
    return seed % EVERY == AT


class Retaining(Turns):
    """What an operator does about retention. Its methods return what to print."""

    NAMESPACES: tuple[str, ...] = ("acme/orders", "acme/other")
    STEPS: tuple[str, ...] = ("grow", "hours", "scan", "plan_retention", "apply_retention")
    """What an operator does, in this order."""
    BESIDES: tuple[str, ...] = ("change", "apply_retention", "plan_retention")
    """What comes out of it, sometimes."""
    RUNS = frozenset({"plan_retention", "apply_retention"})

    def __init__(self, operator: Operator, minutes: dict[str, int] | None = None) -> None:
        super().__init__(operator)
        self.topics = 0
        self.minutes: dict[str, int] = {} if minutes is None else minutes
        """The policy in force, by namespace; brokers retain everything else for ever."""
        self.counts = Counter[str]()
        self.grown: Topic | None = None
        world = self.world
        world.dates_ledgers = True
        brokers: dict[str, Any] = {"defaultRetentionTimeInMinutes": "-1", "defaultRetentionSizeInMB": "-1"}
        world.admin.configuration[BROKER] = brokers | {"topicLevelPoliciesEnabled": "false"}
        operator.laws.judge_retention = self.judge
        world.after_restore.append(self._again)
        self.change()

    def change(self) -> str:
        """Some namespace gets another policy."""
        random = self.operator.random
        name, minutes = random.choice(self.NAMESPACES), random.choice(MINUTES)
        self.minutes[name] = minutes
        self.world.put(f"/admin/policies/{name}", self._policy(name))
        return f"{name} retains {minutes} minutes"

    def _again(self) -> None:
        """A restore took policies back."""
        for name in self.minutes:
            if self.world.zookeeper.stat(f"/admin/policies/{name}") is not None:
                self.world.put(f"/admin/policies/{name}", self._policy(name))

    def _policy(self, namespace: str) -> bytes:
        if namespace not in self.minutes:
            return b"{}"
        return json.dumps(self._said(namespace)).encode()

    def _said(self, namespace: str) -> Mapping[str, Any]:
        minutes = self.minutes[namespace]
        return {
            "retention_policies": {"retentionTimeInMinutes": minutes, "retentionSizeInMB": 0 if minutes == 0 else -1}
        }

    def grow(self) -> str:
        """A topic that rests has ledgers of every age, and a subscription that stands amid them, if any."""
        world, random = self.world, self.operator.random
        self.topics += 1
        name = Topic.parse(f"persistent://{random.choice(self.NAMESPACES)}/aging-{self.topics}")
        if name in world.model.topics or world.full():
            self.grown = None
            return "no room for another topic"
        self.grown = name
        world.put(f"/admin/policies/{name.namespace}", self._policy(str(name.namespace)))
        topic = world.model.topics[name] = ModelTopic(name, [world.make("data", name) for _ in range(5)])
        topic.moved = topic.pinned = True
        now = world.time.now_ms()
        ages = sorted((random.choice([1, 30, 200, 2_000, 20_000]) for _ in topic.ledgers), reverse=True)
        world.closed_at.update((one, now - age * 60_000) for one, age in zip(topic.ledgers, ages, strict=True))
        world.store(topic)
        if random.random() < 0.8:
            topic.cursors["s"] = Cursor(at=random.choice(topic.ledgers[1:]))
            world.store_cursor(topic, "s")
        return f"{name} rests with {topic.ledgers}, {ages} minutes old"

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
        """Apply the newest plan."""
        operator = self.operator
        plans = operator.lake.retention_plans()
        if not plans:
            return "no plan of retention yet"
        run_id = operator._run_id("retention")
        order = Order(plans[-1].plan_id, plans[-1].digest)
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
        """Why these must not leave the list of their topic for their age; empty if they may."""
        minutes = self.minutes.get(str(topic.namespace), -1)
        for item in gone:
            age = self.world.time.now_ms() - self.world.closed(item.ledger_id)
            if minutes == -1 or age < minutes * 60_000:
                return f"{item.ledger_id} is {age // 60_000} minutes old, {topic.namespace} retains {minutes}"
        return ""
