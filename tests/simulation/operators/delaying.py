"""Delayed messages in a schedule: topics whose brokers store an index of them, which is broken, checked and repaired.

Belongs here: which schedules have it, what an operator does, and that all is delivered in the end. Not here: what
brokers do (``world/delayed/``), the laws of a repair (``laws/delayed_laws.py``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Any

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.repair.repair_planning import make_repair_plan
from pulsar_lifecycle.delayed_index.repair.repair_run import Repaired, repair, undo_repair
from pulsar_lifecycle.delayed_index.stored.check_run import BUCKETS, FINDINGS, check_delayed_indexes
from pulsar_lifecycle.errors import LifecycleError, NotFound
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.simulation.laws.delayed_laws import UNDO, DelayedLaws
from tests.simulation.laws.deletion_laws import Violation
from tests.simulation.operators.operator import Operator
from tests.simulation.operators.retaining import EVERY
from tests.simulation.operators.turns import Turns
from tests.simulation.world.delayed.delayed_brokers import MOST, NAMESPACE, DelayedBrokers
from tests.simulation.world.interception import Injection, crash
from tests.simulation.world.model import HOUR, ModelTopic

AT = 13
BROKERS = {
    "delayedDeliveryMinIndexCountPerBucket": "3",
    "delayedDeliveryMaxTimeStepPerBucketSnapshotSegmentSeconds": "86400",
    "delayedDeliveryMaxIndexesPerBucketSnapshotSegment": "3",
}
STORM = (
    *("grow", "damage", "grow", "damage", "hours", "scan", "check", "plan_repair", "repair", "work", "repair"),
    *("damage", "hours", "scan", "check", "plan_repair", "repair", "undo_repair"),
)
"""What an operator does of it once a scan covers the cluster."""
CHANGED = (Code.CHANGED_SINCE_PLAN, Code.CHANGED_MEANWHILE)
CHECKED = {
    BUCKETS: ["topic", "subscription", "ledger_id", "state"],
    FINDINGS: ["topic", "subscription", "code", "messages"],
}
CALLS = (("store.",), ("store.write",), ("store.write",), ("writer.",), ("journal.",), ("store.create",))


MERGED_ABOVE = {"delayedDeliveryMaxNumBuckets": "4"}
MERGED_ABOVE_FEW = {"delayedDeliveryMaxNumBuckets": "2"}
"""By which merging throws exceptions in brokers 4.0.7."""


def has(seed: int) -> bool:
    """Whether a schedule has delayed messages; the first of those is left as it was, with what it caught before."""
    return seed % EVERY == AT and seed > AT


def merges(seed: int) -> bool:
    """Whether brokers of such a schedule merge buckets."""
    return seed // EVERY % 3 == 2


def throws(seed: int) -> bool:
    """Whether their merges throw exceptions."""
    return seed // EVERY % 9 == 7


def settings_for(settings: Settings, random: Random) -> Settings:
    """How brokers seal, which small buckets are merged, and whether loaded topics may be repaired."""
    repairs = {
        "namespaces": random.choice([(), (NAMESPACE,)]),
        "loaded_topics": random.choice([False, True]),
        "merge_above": random.choice([0, 1, 1]),
        "merge_below": 1_000,
        "brokers": BROKERS | {"delayedDeliveryMinIndexCountPerBucket": random.choice(["3", "16"])},
    }
    return Settings.model_validate({**settings.model_dump(), "delayed_index": repairs})


class Delaying(Turns):
    """What an operator does about indexes of delayed messages. Its methods return what to print."""

    STEPS: tuple[str, ...] = (
        *("grow", "work", "damage", "hours", "scan", "check", "plan_repair", "repair", "work", "days"),
        *("damage", "hours", "scan", "check", "plan_repair", "repair"),
    )
    """What an operator does, in this order."""
    BESIDES: tuple[str, ...] = ("work", "work", "damage", "repair", "undo_repair", "days")
    """What comes out of it, sometimes."""
    RUNS = frozenset({"check", "plan_repair", "repair", "undo_repair"})

    def __init__(self, operator: Operator, *, merging: bool, throwing: bool) -> None:
        super().__init__(operator)
        operator.world.unloads_exactly = True
        self.counts = Counter[str]()
        above = MERGED_ABOVE_FEW if throwing else MERGED_ABOVE if merging else {}
        broker = DelayedIndexSettings.from_broker_conf(BROKERS | above)
        self.brokers = DelayedBrokers(operator.world, broker, self.counts)
        self.brokers.throws = throwing
        loads = bool(operator.settings.delayed_index.loaded_topics)
        self.laws = DelayedLaws(operator.world, self.brokers, self.counts, loads=loads)
        self.grown = self.depth = 0
        self.faulty = True

    # ------------------------------------------------------------------------------------------------------ the cluster

    def grow(self) -> str:
        """One more topic with delayed messages."""
        if len(self.brokers.topics()) >= 2:
            return "no room for another topic with delayed messages"
        self.grown += 1
        return self.brokers.grow(self.operator.random, f"due-{self.grown}")

    def work(self) -> str:
        """Brokers go on for a while."""
        random = self.operator.random
        return "; ".join(self.brokers.act(random) for _ in range(random.randint(1, 4)))

    def damage(self) -> str:
        """Somebody breaks an index."""
        return self.brokers.damage(self.operator.random)

    def hours(self) -> str:
        """A few hours pass: a topic that was just written counts as loaded."""
        self.world.wait_ms(2 * HOUR)
        return "two hours"

    def days(self) -> str:
        """Some messages are due meanwhile."""
        self.world.wait_ms(3 * 24 * HOUR)
        return "three days"

    # ---------------------------------------------------------------------------------------------------- the operator

    def check(self) -> str:
        """Check the indexes of the newest scan."""
        epochs = self.operator.lake.epochs()
        if not epochs:
            return "no scan yet"
        return self._looks(lambda: self._checked(epochs[-1].epoch_id))

    def _checked(self, epoch_id: str) -> str:
        cluster, fired = self.operator.cluster, self.world.interceptor.fired
        acts = len(fired)
        done = check_delayed_indexes(cluster, epoch_id)
        if len(fired) == acts:
            self.laws.checked(*(self._rows(epoch_id, table, columns) for table, columns in CHECKED.items()))
        return str(done.findings)

    def _rows(self, epoch_id: str, table: str, columns: list[str]) -> list[dict[str, Any]]:
        lake, parts = self.operator.lake, self.operator.cluster.parts(epoch_id, table)
        return [row for batch in lake.batches(parts, columns) for row in batch.to_pylist()]

    def plan_repair(self) -> str:
        """A plan of the newest scan that was checked."""
        epochs = self.operator.lake.epochs()
        if not epochs:
            return "no scan yet"

        def plan() -> str:
            summary, rows = make_repair_plan(self.operator.cluster, epochs[-1])
            found = [(row["topic"], row["subscription"], row["level"]) for row in rows.to_pylist()]
            return f"{summary.plan_id}: {found}, actionable {summary.actionable}"

        try:
            return self._looks(plan)
        except NotFound as error:
            return str(error)

    def _looks(self, work: Callable[[], str]) -> str:
        self.world.trace = None
        self._merged_meanwhile()
        with self.operator.writing_nothing("a look at delayed indexes"):
            return work()

    def repair(self) -> str:
        """Apply the newest plan of repairs."""
        plans = self.operator.lake.repair_plans()
        if not plans:
            return "no plan of repairs yet"
        summary, rows = self.operator.lake.repair_plan(plans[-1].plan_id)
        planned = {(row["topic"], row["subscription"]): row for row in rows.to_pylist()}
        self.laws.levels = {key: row["level"] for key, row in planned.items()}
        self.laws.planned = {key: frozenset(row["buckets"]) for key, row in planned.items()}
        self._disturb()
        order, run_id = Order(summary.plan_id, summary.digest), self.operator._run_id("repair")
        return self._effect("repair", lambda: repair(self.operator.cluster, run_id, order, dry_run=False))

    def undo_repair(self) -> str:
        """Give back what the newest plan's repair changed."""
        plans = self.operator.lake.repair_plans()
        if not plans:
            return "no plan of repairs yet"
        run_id, plan_id = self.operator._run_id("undo-repair"), plans[-1].plan_id
        try:
            return self._effect(UNDO, lambda: undo_repair(self.operator.cluster, run_id, plan_id, dry_run=False))
        except NotFound as error:
            return str(error)

    def _effect(self, what: str, work: Callable[[], list[Repaired]]) -> str:
        self.world.trace = None
        with self.laws.run(what):
            done = work()
        for one in done:
            self.counts["subscriptions repaired"] += one.outcome is Outcome.DONE and what != UNDO
            self.counts["repairs left as buckets had changed"] += one.why.code in CHANGED
        return "; ".join(f"{one.level} of {one.subscription} of {one.topic} {one.outcome}: {one.why}" for one in done)

    def _disturb(self) -> None:
        """Amid a repair brokers go on, its process is killed, or another repair begins."""
        random, world = self.operator.random, self.world
        if not self.faulty or self.depth or random.random() < 0.3:
            return
        interceptor, own = world.interceptor, Random(random.getrandbits(32))

        def brokers_act(call: str) -> None:
            self._meanwhile(own, lambda: [self.brokers.act(own) for _ in range(own.randint(1, 2))])

        def brokers_load(call: str) -> None:
            self._meanwhile(own, self._load_all if own.random() < 0.5 else lambda: self._visit_all(own))

        def another(call: str) -> None:
            self.depth += 1
            if own.random() < 0.7:
                for store in list(world.zookeeper.open):
                    store.expire()
            try:
                done = self.repair()
            except LifecycleError as refused:
                done = f"{type(refused).__name__}: {refused}"
            finally:
                self.depth -= 1
            interceptor.fired.append(f"another repair meanwhile: {done}")

        acts = [brokers_act, brokers_act, brokers_load, another, crash(interceptor)]
        if self.brokers.merges:
            acts += [lambda call: self._meanwhile(own, lambda: self.brokers.press(own))] * 3
        act = random.choice(acts)
        nth, when = random.randrange(4), random.choice(["before", "before", "after"])
        interceptor.injections.append(Injection("delays", random.choice(CALLS), nth, when, act))

    def _load_all(self) -> list[str]:
        """No dispatcher has read anything yet: the cursors are as they were."""
        resting = [topic for topic in self.brokers.topics() if not topic.loaded]
        for topic in resting:
            self.world.load(topic)
        return [f"{topic.name} is loaded" for topic in resting]

    def _visit_all(self, own: Random) -> list[str]:
        """Brokers take topics, seal a bucket of new messages, and unload them."""
        done: list[str] = []
        for topic in self.brokers.topics():
            if not topic.loaded:
                self.brokers.load(topic)
            for _ in range(2):
                self.brokers.publish(own, topic, 4)
                self.brokers.roll(topic)
            self.brokers.publish(own, topic, 1)
            self.world.unload(topic)
            done.append(f"{topic.name} gets new buckets, and is unloaded")
        return done

    def _meanwhile(self, own: Random, work: Callable[[], list[str]]) -> None:
        """Brokers do something amid a run, by a chance of their own."""
        world = self.world
        world.zookeeper.freeze()
        was, world.random = world.random, own
        try:
            done = work()
        finally:
            world.random = was
        world.interceptor.fired.append(f"meanwhile {'; '.join(done)}")

    def _merged_meanwhile(self) -> None:
        """Amid a check, or the making of a plan, brokers merge buckets."""
        random = self.operator.random
        if not (self.brokers.merges and self.faulty) or random.random() < 0.5:
            return
        own, nth = Random(random.getrandbits(32)), random.randrange(12)
        act = lambda call: self._meanwhile(own, lambda: self.brokers.press(own))  # noqa: E731
        self.world.interceptor.injections.append(Injection("merges", ("store.",), nth, "after", act))

    # ------------------------------------------------------------------------------------------------------------- end

    def all_comes(self) -> None:
        """Once all is due, every message comes whose index nobody broke since it was repaired."""
        world = self.world
        self.brokers.throws = False  # somebody has turned merging off: else brokers do not get through a backlog
        for topic in self.brokers.topics():
            if topic.loaded:
                world.unload(topic)
            for name in [name for name, cursor in topic.cursors.items() if cursor.broken]:
                world.delete_cursor(topic, name)
            world.load(topic)
            self.brokers.deliver(topic)
        world.wait_ms(MOST + HOUR)
        for topic in self.brokers.topics():
            while topic.loaded and self.brokers.deliver(topic):
                pass
            if topic.loaded:
                self._none_left(topic)

    def _none_left(self, topic: ModelTopic) -> None:
        for name in topic.cursors:
            if left := self.brokers.left(topic, name):
                raise Violation(f"delayed: {left} of {topic.name} never come to {name}")
