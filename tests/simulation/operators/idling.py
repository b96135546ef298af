"""What nobody uses, in a schedule: topics and subscriptions are watched over scans, and deleted by plan.

Belongs here: which schedules have it, what clients and an operator do. Not here: the laws (``laws/activity_laws.py``).
"""

from __future__ import annotations

import json

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.lifecycle.activity.activity_run import build_activity
from pulsar_lifecycle.lifecycle.activity.cursor_run import delete_subscriptions
from pulsar_lifecycle.lifecycle.activity.inactive_planning import make_inactive_plans
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import TopicConnections
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.trimming.inactive_run import delete_inactive
from pulsar_lifecycle.values.plans.plan_kind import PlanKind, kind_of
from tests.kit.simulated.cluster import BROKER
from tests.simulation.laws.activity_laws import ActivityLaws
from tests.simulation.operators.operator import Operator
from tests.simulation.operators.retaining import EVERY
from tests.simulation.operators.turns import Turns
from tests.simulation.world.model import COMPACTION, HOUR, Cursor, ModelTopic

AT = 18
NAMESPACES = ("acme/idle", "acme/quiet")
KEPT, AUDIT = "kept", "audit"
"""A subscription that the settings keep, and a cursor of ``additionalSystemCursorNames``."""
PERIOD = 48 * HOUR


def has(seed: int) -> bool:
    """Whether a schedule has it; two in five of those are left as they were, with what they caught before."""
    return seed % EVERY == AT and seed % 100 not in (58, 98)


def settings_for(settings: Settings) -> Settings:
    """Everything in some namespaces may go once it was not used for the period, however rare scans are."""
    own = {"period": PERIOD / 1000, "max_gap": 90 * 86_400.0, "kept_subscriptions": (KEPT,)}
    own |= {"topics": NAMESPACES, "subscriptions": NAMESPACES}
    return Settings.model_validate({**settings.model_dump(), "inactivity": own})


class Idling(Turns):
    """What clients and an operator do. Its methods return what to print."""

    STEPS: tuple[str, ...] = (
        *("grow", "open", "scan", "report", "use", "days", "scan", "report", "delete_subscriptions"),
        *("use", "days", "scan", "report", "delete_topics"),
    )
    """What happens, in this order."""
    STORM: tuple[str, ...] = (
        *("grow", "grow", "open", "scan", "report", "days", "days", "use", "days", "scan", "report"),
        *("delete_subscriptions", "delete_topics", "days", "days", "days", "scan", "report"),
        *("use", "delete_topics", "delete_subscriptions"),
        *("grow", "scan", "report", "days", "scan", "report", "delete_topics", "delete_subscriptions"),
    )
    """What an operator does of it once a scan covers the cluster."""
    BESIDES: tuple[str, ...] = ("use", "use", "report", "open", "delete_topics", "delete_subscriptions")
    """What comes out of it, sometimes."""
    RUNS = frozenset({"report", "delete_topics", "delete_subscriptions"})
    LAWS: type[ActivityLaws] = ActivityLaws

    def __init__(self, operator: Operator) -> None:
        super().__init__(operator)
        world = self.world
        self.laws = self.LAWS(world, NAMESPACES, (KEPT, AUDIT), PERIOD)
        self.counts = self.laws.counts
        self.topics = 0
        self.listed: dict[Topic, frozenset[int]] = {}
        self._judge_deletion = world.admin.on_delete_topic
        world.admin.on_delete_topic = self.about_to_delete_topic
        world.admin.on_unsubscribe = self.laws.unsubscribes
        world.on_load = self.laws.is_loaded
        world.known_to_broker = self.laws.known_to_broker
        world.admin.configuration[BROKER] = {
            "defaultRetentionTimeInMinutes": "0",
            "defaultRetentionSizeInMB": "0",
            "topicLevelPoliciesEnabled": "false",
            "brokerDeleteInactiveTopicsEnabled": "false",
            "brokerDeleteInactiveTopicsMode": "delete_when_no_subscriptions",
            "additionalSystemCursorNames": f"[{AUDIT}]",
            "replicatorPrefix": "pulsar.repl",
        }
        for namespace in NAMESPACES:
            self._policies(namespace)

    def _policies(self, namespace: str) -> None:
        """What its z-node says; and a broker has its bundle."""
        self.world.put(f"/admin/policies/{namespace}", json.dumps({"replication_clusters": ["fake"]}).encode())
        lock = f"/namespace/{namespace}/0x00000000_0xffffffff"
        if self.world.zookeeper.stat(lock) is None:
            self.world.put(lock, json.dumps({"httpUrl": f"http://{BROKER}"}).encode())

    # --------------------------------------------------------------------------------------------------------- clients

    def grow(self) -> str:
        """A topic that rests, with subscriptions that have read all or not."""
        world, random = self.world, self.operator.random
        self.topics += 1
        name = Topic.parse(f"persistent://{random.choice(NAMESPACES)}/idle-{self.topics}")
        if name in world.model.topics or world.full():
            return "no room for another topic"
        self._policies(str(name.namespace))
        topic = world.model.topics[name] = ModelTopic(name, [world.make("data", name) for _ in range(2)])
        topic.moved = topic.pinned = True
        world.store(topic)
        others = ["t", "t", KEPT, AUDIT, COMPACTION, "pulsar.dedup", "pulsar.repl.west"]
        for one in ("s", *random.sample(others, random.choice([0, 0, 0, 1, 2]))):
            self._subscribe(topic, one, random.random() < 0.7)
        return f"{name} rests with {topic.ledgers}, {sorted(topic.cursors)}"

    def _subscribe(self, topic: ModelTopic, name: str, read: bool) -> None:
        """A subscription in a cursor ledger of its own."""
        world = self.world
        cursor = topic.cursors[name] = Cursor(at=topic.ledgers[-1 if read else 0])
        entry = world.position_entry(at=cursor.at)
        cursor.ledger = world.make("cursor", topic.name, cursor=name, entries=[entry])
        world.store_cursor(topic, name)

    def use(self) -> str:
        """Clients come to a topic, acknowledge something there, or leave it."""
        world, random = self.world, self.operator.random
        topics = [t for t in self._topics() if t.ledgers]
        if not topics:
            return "no topic to use"
        topic = random.choice(topics)
        names = [name for name in topic.cursors if name not in (COMPACTION, "pulsar.dedup")]
        how = random.choice(["come", "acknowledge", "acknowledge", "leave", "write"])
        if how == "come" and not world.full():
            if not topic.loaded:
                world.load(topic)
            some = random.sample(names, min(len(names), random.choice([0, 1])))
            world.admin.clients[topic.name] = TopicConnections(0 if some else 1, dict.fromkeys(some, 1), 1)
            self.laws.connected(topic, some)
        elif how == "leave":
            said = world.admin.clients.pop(topic.name, None)
            if said and topic.loaded:
                self.laws.connected(topic, list(said.consumers))
        elif how == "write" and topic.loaded and not world.full():
            topic.ledgers.append(world.make("data", topic.name))
            world.store(topic)
        elif how == "acknowledge" and names and not world.full():
            if not topic.loaded:
                world.load(topic)
            self._acknowledge(topic, name := random.choice(names))
            return f"{name} of {topic.name} acknowledges up to {world.position(topic.cursors[name])}"
        return f"{topic.name}: {how}"

    def _acknowledge(self, topic: ModelTopic, name: str) -> None:
        """Its broker writes the cursor's ledger on, or another one where that is closed."""
        world, cursor = self.world, topic.cursors[name]
        entry = world.position_entry(at=max(world.stands(cursor), topic.ledgers[-1]))
        own = world.model.ledgers.get(cursor.ledger)
        if own is not None and own.state is LedgerState.OPEN and world.reader.payloads.get(cursor.ledger):
            world.reader.payloads[cursor.ledger].append(entry)
            return
        old = cursor.ledger
        cursor.ledger = world.make("cursor", topic.name, cursor=name, state=LedgerState.OPEN, entries=[entry])
        world.store_cursor(topic, name)
        world.drop(old)

    def open(self) -> str:
        """A broker loads a topic, for nobody, or lets one go."""
        topics = self._topics()
        if not topics or self.world.full():
            return "no topic to load"
        topic = self.operator.random.choice(topics)
        if topic.loaded:
            self.world.admin.clients.pop(topic.name, None)
            self.world.unload(topic)
            return f"{topic.name} is unloaded"
        self.world.load(topic)
        return f"{topic.name} is loaded"

    def _topics(self) -> list[ModelTopic]:
        found = (t for t in self.world.model.topics.values() if str(t.name.namespace) in NAMESPACES and not t.away)
        return sorted(found, key=lambda t: str(t.name))

    def days(self) -> str:
        """A day passes, or a little more."""
        self.world.wait_ms(self.operator.random.choice([25, 30, 49]) * HOUR)
        return "a day or two"

    # -------------------------------------------------------------------------------------------------------- operator

    def report(self) -> str:
        """The history goes on with the newest scan, and plans are made of what is inactive by it."""
        operator, world = self.operator, self.world
        epochs = operator.lake.epochs()
        if not epochs:
            return "no scan yet"
        world.trace = None
        with operator.writing_nothing("a report of what is inactive"):
            with self.laws.reporting() as answered:
                found = build_activity(operator.cluster, epochs[-1])
                answered += [True] if not found.problems and not epochs[-1].gaps else []
            plans = [summary for summary, _ in make_inactive_plans(operator.cluster, epochs[-1], found)]
        said = {one.plan_id: (one.ledgers, one.actionable) for one in plans}
        return f"{said}, {found.problems}"

    def delete_topics(self) -> str:
        """Apply the newest plan of topics."""
        self.listed = {t.name: frozenset(t.ledgers) for t in self.world.model.topics.values()}
        order = self._order(PlanKind.INACTIVE_TOPICS)
        if order is None:
            return "no plan of topics yet"
        run_id = self.operator._run_id("inactive")
        with self.laws.run(run_id), self.operator._within_caps(run_id):
            done = delete_inactive(self.operator.cluster, run_id, order, dry_run=False)
        return "; ".join(f"{one.topic} {one.ledger_id} {one.outcome}: {one.why.text}" for one in done)

    def delete_subscriptions(self) -> str:
        """Apply the newest plan of subscriptions."""
        order = self._order(PlanKind.INACTIVE_SUBSCRIPTIONS)
        if order is None:
            return "no plan of subscriptions yet"
        run_id = self.operator._run_id("subscriptions")
        with self.laws.run(run_id):
            done = delete_subscriptions(self.operator.cluster, run_id, order, dry_run=False)
        return "; ".join(f"{one.topic} {one.subscription} {one.outcome}: {one.why.text}" for one in done)

    def _order(self, kind: PlanKind) -> Order | None:
        self.world.trace = None
        plans = [one for one in self.operator.lake.inactive_plans() if kind_of(one.plan_id) is kind]
        return Order(plans[-1].plan_id, plans[-1].digest) if plans else None

    def about_to_delete_topic(self, topic: Topic) -> None:
        """Of an inactive one, too, each ledger has its message and its mark before."""
        if self.laws.acting:
            self.operator.laws.whole = topic, self.laws.acting, self.listed.get(topic, frozenset())
            self.laws.deletes(topic)
        self._judge_deletion(topic)
