"""What must hold whenever a load deletes inactive subscriptions of topics that no broker had.

Belongs here: judging such a launch, by the simulator's own truth. Not here: when each subscription was used last
(``activity_laws.py``), what else brokers do to topics that they load (``load_laws.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.visits import LoadedTopic
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.simulation.laws.activity_laws import ActivityLaws
from tests.simulation.laws.deletion_laws import Violation
from tests.simulation.laws.load_laws import notes_of
from tests.simulation.world.model import ModelTopic

SPENT = (LoadKept.BUDGET_SPENT, Code.NOT_UNLOADED)
"""Why a launch leaves a topic to the next one."""


class IdleLoadLaws(ActivityLaws):
    """The judge of these launches. ``planned``: of the one that is at it, subscriptions by topic; None where none is.

    ``came``: when (ms) a client was at a subscription right after a load.
    """

    def __init__(self, *own: Any) -> None:
        super().__init__(*own)
        self.planned: Mapping[str, Collection[str]] | None = None
        self.came: dict[tuple[Topic, str], int] = {}
        self._asked = set[tuple[Topic, str]]()
        self._disturbed = False

    @contextmanager
    def launch(self, run_id: str, planned: Mapping[str, Collection[str]]) -> Iterator[None]:
        """A launch of a plan is at it."""
        self.planned = planned
        self._asked, self._disturbed = set(), False
        try:
            with self.run(run_id):
                yield
        finally:
            self.planned = None

    def comes(self, topic: ModelTopic, name: str) -> None:
        """A client was at a subscription of a topic that is being loaded."""
        self.came[topic.name, name] = self.world.time.now_ms()
        self._disturbed = True

    def known_to_broker(self, topic: ModelTopic, name: str) -> int:
        """As elsewhere, and what came right after its load."""
        at, last = self.came.get((topic.name, name), 0), self.world.model.ledgers.get(max(topic.ledgers, default=-1))
        came = at if topic.loaded and last and last.born <= at else 0
        return max(came, super().known_to_broker(topic, name))

    def is_loaded(self, topic: ModelTopic) -> None:
        """No topic is loaded but by order, with a note for whoever must unload it."""
        if self.planned is None:
            super().is_loaded(topic)
            return
        if str(topic.name) not in self.planned:
            raise Violation(f"idle loads: {topic.name} is loaded without order")
        if not any(self.world.zookeeper.stat(path) for path in notes_of(topic)):
            raise Violation(f"idle loads: {topic.name} is loaded, and no note says that it must be unloaded")
        self.counts["loaded for inactive subscriptions"] += 1

    def unsubscribes(self, topic: Topic, name: str) -> None:
        """No subscription goes that the plan does not name, nor while another partition's was used in the period."""
        super().unsubscribes(topic, name)
        found = self.world.model.topics.get(topic)
        if self.planned is None or found is None or name not in found.cursors:
            return
        if name not in self.planned.get(str(topic), ()):
            raise Violation(f"idle loads: {name} of {topic} is deleted, which the plan does not name")
        if not self.world.interceptor.fired:
            for other in self._others(topic, name):
                if why := self._used(other, name):
                    raise Violation(f"idle loads: {name} of {topic} is deleted, and of {other.name} {why}")
        self._asked.add((topic, name))
        self.counts["subscriptions of unloaded topics deleted"] += 1

    def _others(self, topic: Topic, name: str) -> list[ModelTopic]:
        """The other partitions of which the plan names a subscription, and that have it still."""
        owner = topic.partitioned_parent
        some = [one for one in self._here() if one.name != topic and one.name.partitioned_parent == owner]
        return [one for one in some if name in one.cursors and name in (self.planned or {}).get(str(one.name), ())]

    def ended(self, done: Sequence[LoadedTopic]) -> None:
        """A launch is over: what it deleted on one partition is on no other, unless it was asked to go there in vain.

        Or something came in between, or its budget is spent: then the next launch goes on.
        """
        if self._disturbed or self.world.interceptor.fired or any(one.outcome is Outcome.FAILED for one in done):
            return
        there = {(t.name, name) for t in self.world.model.topics.values() for name in t.cursors}
        codes = {Topic.parse(one.topic): one.why.code for one in done}
        refused = {topic.partitioned_parent for topic, _ in self._asked & there}
        for topic, name in sorted(self._asked - there, key=str):
            if topic.partitioned_parent in refused:  # one of these stays, and with it the partitions that come later
                continue
            for other in self._others(topic, name):
                if codes.get(other.name) not in SPENT:
                    raise Violation(f"idle loads: {name} is gone from {topic}, and still of {other.name}")
            self.counts["gone from all partitions"] += 1
