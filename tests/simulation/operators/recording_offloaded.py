"""Delete records of partitions with offloaded ledgers, in a schedule of tiered storage.

Belongs here: which schedules have both, what brokers offloaded before an operator asks. Not here: the laws, which are
those of every schedule that deletes records (``recording.py``), and tiered storage itself (``tiering.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from tests.kit.simulated.offloaded import CLUSTER, attempt
from tests.simulation.operators import recording
from tests.simulation.operators.operator import Operator
from tests.simulation.operators.recording import Recording, RecordingOfMany
from tests.simulation.world.model import ModelTopic

EVERY, AT = 80, 7
STORM = ("days", "scan", "grow", "grow", "days", "scan", "request", "request", "trim", "answer_records", "request")
"""What an operator asks for once a scan covers the cluster."""


def has(seed: int) -> bool:
    """Whether a schedule deletes records of partitions with offloaded ledgers."""
    return seed % EVERY == AT


class RecordingOfOffloaded(Recording):
    """Brokers have offloaded ledgers of each partition, and deleted some in BookKeeper; the bucket may fail."""

    NAMESPACE = "acme/recorded"  # nobody writes policies of its topics, which would have to be read
    STEPS = ("grow", "scan", "days", "scan", "request", "trim", "answer_records", "request")
    BESIDES = ("apply_records", "plan_records", "answer_records", "hours", "scan", "delete_records")
    RUNS = Recording.RUNS | {"request"}

    def grow(self) -> str:
        """The oldest ledgers of another partition are offloaded."""
        said, world, random = super().grow(), self.world, self.operator.random
        topic = world.model.topics.get(self.topics[-1]) if self.topics else None
        if topic is None or topic.offloaded or not said.startswith(str(topic.name)):
            return said
        return f"{said}, {self._offload(topic, topic.ledgers[: random.randint(1, 3)])}"

    def request(self) -> str:
        """One request, from its plan to its answer; sometimes brokers go on offloading, or trim, after the plan."""
        said = [self.operator.scan(), self.plan_records()]
        topics = [self.world.model.topics[name] for name in self.topics if name in self.world.model.topics]
        for topic in topics if self.operator.random.random() < 0.5 else ():
            said.append(self._offload(topic, [i for i in topic.ledgers[:-1] if i not in topic.offloaded][:1]))
        said.append(self.apply_records())
        if self.operator.random.random() < 0.3:
            said.append(self.trim())
        steps = (self.hours, self.operator.scan, self.delete_records, self.answer_records)
        return "; ".join((*said, *(step() for step in steps)))

    def trim(self) -> str:
        """A broker that loads a partition trims the ledger in which its low watermark lies, and unloads it."""
        marks = {t: mark for one in self.plans for t, mark in one.marks.items() if mark.entry_id > 0}
        there = [(self.world.model.topics[t], m.ledger_id) for t, m in marks.items() if t in self.world.model.topics]
        there = [(topic, ledger) for topic, ledger in there if ledger in topic.ledgers[:-1] and not topic.away]
        if not there:
            return "no partition to trim"
        topic, ledger = self.operator.random.choice(there)
        for name in topic.cursors:
            self.world.move_to(topic, name, topic.ledgers[-1])
        return f"{topic.name} trims {self.world.take_off(topic, topic.ledgers.index(ledger) + 1)}"

    def _offload(self, topic: ModelTopic, ledgers: Sequence[int]) -> str:
        """A broker offloads ledgers, and deletes some of them in BookKeeper."""
        world, given_up = self.world, list[int]()
        for ledger in ledgers if not topic.away and not topic.loaded else ():
            deleted = self.operator.random.random() < 0.5
            topic.offloaded[ledger] = attempt(world.upload(topic.name, ledger, CLUSTER), bookkeeper_deleted=deleted)
            given_up += [ledger] if deleted else []
        if topic.offloaded and not topic.away:
            world.store(topic)
        for ledger in given_up:
            world.drop(ledger, leak=0.2)
        return f"{sorted(topic.offloaded)} of them offloaded, {given_up} no longer in BookKeeper"


def of(seed: int, operator: Operator) -> Recording:
    """The operator of a schedule that deletes records."""
    if has(seed):
        return RecordingOfOffloaded(operator)
    return RecordingOfMany(operator) if recording.of_many(seed) else Recording(operator)
