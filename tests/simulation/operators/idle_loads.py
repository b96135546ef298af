"""Inactive subscriptions of topics that no broker has, in a schedule: a load plan names them, a visit deletes them.

Belongs here: which schedules have it, partitioned topics, what an operator does. Not here: the history of what nobody
uses (``idling.py``), the laws (``laws/idle_load_laws.py``).
"""

from __future__ import annotations

import json
from random import Random

from pulsar_lifecycle.lifecycle.load.load_planning import make_load_plan
from pulsar_lifecycle.lifecycle.load.load_run import load_topics
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.values.plans import load_plan
from tests.kit.simulated.cluster import BROKER
from tests.simulation.laws.idle_load_laws import IdleLoadLaws
from tests.simulation.operators import idling
from tests.simulation.operators.idling import NAMESPACES, Idling
from tests.simulation.operators.operator import Operator
from tests.simulation.world.model import ModelTopic
from tests.simulation.world.policies import BrokerPolicies, Retention

EVERY, AT = 100, 38


def has(seed: int) -> bool:
    """Whether a schedule of what nobody uses has loads, too."""
    return seed % EVERY == AT


def settings_for(settings: Settings, random: Random) -> Settings:
    """Topics may be loaded for the sake of these subscriptions; topics themselves stay."""
    load = {
        "namespaces": NAMESPACES,
        "inactive_subscriptions": NAMESPACES,
        "min_bytes": 1,
        "timeout": 5,
        "at_once": random.choice([1, 1, 10]),
    }
    found = idling.settings_for(settings).model_dump()
    return Settings.model_validate({**found, "load": load, "inactivity": {**found["inactivity"], "topics": ()}})


class IdleLoads(Idling):
    """What clients and an operator do. Its methods return what to print."""

    STEPS = (
        *("grow", "grow", "scan", "report", "use", "days", "days", "scan", "report", "plan_load", "load_topics"),
        *("use", "load_topics", "days", "scan", "report", "delete_subscriptions"),
    )
    STORM = (
        *("grow", "grow", "scan", "report", "days", "days", "use", "use", "let_go", "days", "scan", "report"),
        *("plan_load", "load_topics", "load_topics", "days", "scan", "report", "plan_load", "load_topics"),
        *("delete_subscriptions",),
    )
    BESIDES = ("use", "open", "report", "plan_load", "load_topics", "load_topics")
    RUNS = Idling.RUNS | {"plan_load", "load_topics"}
    LAWS = IdleLoadLaws

    def __init__(self, operator: Operator) -> None:
        self.partitioned = 0
        world = operator.world
        world.policies = BrokerPolicies(
            dict.fromkeys(NAMESPACES, Retention(0, 0)), system_cursors=frozenset({idling.AUDIT})
        )
        super().__init__(operator)
        assert isinstance(self.laws, IdleLoadLaws)
        self.of_loads, world.on_load = self.laws, self._is_loaded
        world.admin.configuration[BROKER] |= {
            "ttlDurationDefaultInSeconds": "0",
            "subscriptionExpirationTimeMinutes": "0",
            "backlogQuotaCheckEnabled": "false",
            "brokerServiceCompactionThresholdInBytes": "0",
        }

    def grow(self) -> str:
        """A topic as elsewhere, or the partitions of one, whose subscriptions have read all of some and not of others.

        All partitions have ``s``; the other ones may not be there. Nothing else happens to them by chance: no broker
        writes the cursors of a topic that it has not loaded, and each load makes a ledger, by which a launch sees it.
        """
        world, random = self.world, self.operator.random
        if random.random() < 0.3:
            done = super().grow()
            for topic in self._topics():
                topic.apart = True
            return done
        self.partitioned += 1
        namespace, said = random.choice(NAMESPACES), list[str]()
        for n in range(random.choice([2, 2, 3])):
            name = Topic.parse(f"persistent://{namespace}/parts-{self.partitioned}-partition-{n}")
            if name in world.model.topics or world.full():
                break
            self._policies(namespace)
            topic = world.model.topics[name] = ModelTopic(name, [world.make("data", name) for _ in range(2)])
            topic.moved = topic.pinned = topic.apart = True
            world.store(topic)
            for one in ("s", *random.sample(["t"], random.choice([0, 0, 1]))):
                self._subscribe(topic, one, random.random() < 0.5)
            said.append(f"{name} has {sorted(topic.cursors)}")
        return "; ".join(said) or "no room for partitions"

    def let_go(self) -> str:
        """Clients leave, and brokers let their topics go: what was used lately is then as unloaded as all else."""
        topics = [topic for topic in self._topics() if topic.loaded]
        for topic in topics:
            self.world.admin.clients.pop(topic.name, None)
            self.world.unload(topic)
        return f"{len(topics)} topics are unloaded"

    def _is_loaded(self, topic: ModelTopic) -> None:
        """A client may come as soon as a topic is loaded, and be gone at once."""
        self.of_loads.is_loaded(topic)
        if topic.cursors and self.operator.random.random() < 0.1:
            self.of_loads.comes(topic, self.operator.random.choice(sorted(topic.cursors)))

    def plan_load(self) -> str:
        """A plan of the newest scan; it loads nothing."""
        operator = self.operator
        epochs = operator.lake.epochs()
        if not epochs:
            return "no scan yet"
        self.world.trace = None
        with operator.writing_nothing("a plan of loads"):
            summary, rows = make_load_plan(operator.cluster, epochs[-1])
        names = {row["topic"]: row["inactive_subscriptions"] for row in rows.to_pylist()}
        return f"{summary.plan_id}: {json.dumps(names)}, actionable {summary.actionable}"

    def load_topics(self) -> str:
        """Apply the newest plan, or only the first of its topics."""
        operator, random = self.operator, self.operator.random
        plans = operator.lake.load_plans()
        if not plans:
            return "no plan of loads yet"
        run_id, (summary, rows) = operator._run_id("load"), operator.lake.load_plan(plans[-1].plan_id)
        self.world.trace = None
        order = Order(summary.plan_id, summary.digest, limit=random.choice([0, 0, 0, 1]))
        ordered = {row["topic"]: load_plan.leaving(row) for row in rows.to_pylist()}
        with self.of_loads.launch(run_id, ordered):
            done = load_topics(operator.cluster, run_id, order, dry_run=False)
            self.of_loads.ended(done)
        return "; ".join(f"{one.topic} {one.outcome}: {one.why.text}" for one in done)
