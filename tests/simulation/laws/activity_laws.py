"""What must hold whenever a run deletes what nobody uses: subscriptions, and topics whole.

Belongs here: when each was used last, by the simulator's own truth, and judging a deletion by it. Nothing here calls a
rule of the product. Not here: messages and marks before a topic goes (``deletion_laws.py``).

A use counts that somebody outside can know of: what is persisted of a cursor changed, there is new data, clients were
there when a report asked the brokers, or a broker that still has the topic saw them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterator
from contextlib import contextmanager

from pulsar_lifecycle.model import Topic, encode_name
from tests.simulation.laws.deletion_laws import Violation
from tests.simulation.world.model import HOUR, ModelTopic
from tests.simulation.world.policies import NO_SUBSCRIPTIONS
from tests.simulation.world.world import World

_Key = tuple[Topic, str]
"""A topic and a cursor of it; "" stands for its data."""


class ActivityLaws:
    """The judge of what is deleted as inactive. ``kept``: names of subscriptions that never go; ``period``: ms.

    ``counts``: what was done, by its name.
    """

    def __init__(self, world: World, ordered: Collection[str], kept: Collection[str], period: int) -> None:
        self.world, self.ordered, self.kept, self.period = world, ordered, kept, period
        self.counts = Counter[str]()
        self.reports: list[int] = []
        self.used: dict[_Key, int] = {}
        self.born: dict[_Key, int] = {}
        self.had_clients: dict[_Key, int] = {}
        """When clients were last there as a report asked the brokers."""
        self.remembered: dict[_Key, tuple[int, int]] = {}
        """When clients were last there, and the last ledger then: its broker knows until it loads the topic again."""
        self.acting = ""
        self._states: dict[_Key, Hashable] = {}
        self._since = 0
        self._wait, world.wait_ms = world.wait_ms, self.wait_ms

    def wait_ms(self, wanted: int) -> None:
        """What changed until now did so since time passed last."""
        self.look()
        self._wait(wanted)
        self.look()
        self._since = self.world.time.now_ms()

    def look(self) -> None:
        """Note what was used since the last look."""
        for topic in self._here():
            for key, state in self._states_of(topic):
                before = self._states.get(key)
                if before is None or before[0] != state[0]:  # type: ignore[index]
                    self.born[key] = self._since
                if before != state:
                    self.used[key] = self._since
                self._states[key] = state

    def _here(self) -> list[ModelTopic]:
        return [t for t in self.world.model.topics.values() if str(t.name.namespace) in self.ordered and not t.away]

    def _states_of(self, topic: ModelTopic) -> Iterator[tuple[_Key, tuple[Hashable, ...]]]:
        world, path = self.world, self.world.topic_path(topic.name)
        if (stat := world.zookeeper.stat(path)) is None:
            return
        yield (topic.name, ""), (stat.czxid, max(topic.ledgers, default=-1))
        for name, cursor in topic.cursors.items():
            own = world.zookeeper.stat(f"{path}/{encode_name(name)}")
            if own is not None:
                entries = len(world.reader.payloads.get(cursor.ledger, ()))
                yield (topic.name, name), (own.czxid, cursor.ledger, world.position(cursor), entries)

    # --------------------------------------------------------------------------------------------------------- clients

    def connected(self, topic: ModelTopic, names: Collection[str]) -> None:
        """Clients are there: producers, and consumers of these subscriptions."""
        for name in ("", *names):
            self.remembered[topic.name, name] = self.world.time.now_ms(), max(topic.ledgers, default=-1)

    def known_to_broker(self, topic: ModelTopic, name: str) -> int:
        """When (ms) clients were last at a cursor, as the broker that has the topic now knows; 0: never."""
        at, last = self.remembered.get((topic.name, name), (0, -1))
        return at if topic.loaded and last == max(topic.ledgers, default=-1) else 0

    @contextmanager
    def reporting(self) -> Iterator[list[bool]]:
        """A report is made; it appends to the list once the brokers answered."""
        self.look()
        self.reports.append(self.world.time.now_ms())
        asked = self._with_clients()
        answered = list[bool]()
        yield answered
        if answered and not self.world.interceptor.fired:
            self.had_clients |= dict.fromkeys(asked, self.world.time.now_ms())

    def _with_clients(self) -> list[_Key]:
        found = list[_Key]()
        for topic, said in self.world.admin.clients.items():
            if str(topic) in self.world.admin.loaded:
                found += [(topic, name) for name, count in {**said.consumers, "": said.producers}.items() if count]
        return found

    # ------------------------------------------------------------------------------------------------------- deletions

    @contextmanager
    def run(self, run_id: str) -> Iterator[None]:
        """A run is at it."""
        self.look()
        self.acting = run_id
        try:
            yield
        finally:
            self.acting = ""

    def is_loaded(self, topic: ModelTopic) -> None:
        """No run loads a topic, whether it deletes anything or not."""
        if not self.world.interceptor.fired:  # else a run may ask of one that a broker had a moment ago
            raise Violation(f"activity: {topic.name} is loaded without order by {self.acting or 'no deletion'}")

    def unsubscribes(self, topic: Topic, name: str) -> None:
        """No subscription goes that was used in the period, nor one that nobody ordered."""
        found = self.world.model.topics.get(topic)
        if found is not None and name in found.cursors:
            if why := self._not_ordered(topic) or self._system(name) or self._used(found, name):
                raise Violation(f"activity: {name} of {topic} is deleted by {self.acting or 'nobody'}: {why}")
            self.counts["subscriptions deleted"] += 1

    def deletes(self, topic: Topic) -> None:
        """No topic goes of which anything was used in the period, or is unread."""
        found = self.world.model.topics.get(topic)
        if found is None:
            return
        why = self._not_ordered(topic) or self._used(found, "")
        for name in found.cursors:
            if name != "pulsar.dedup":  # brokers write it, as they load a topic and after messages: no client uses it
                why = why or self._system(name) or self._used(found, name) or self._unread(found, name)
        if why:
            raise Violation(f"activity: {topic} is deleted by {self.acting or 'nobody'}: {why}")
        self.counts["inactive topics deleted"] += 1

    def _not_ordered(self, topic: Topic) -> str:
        return "" if self.acting and str(topic.namespace) in self.ordered else "nobody ordered that"

    def _system(self, name: str) -> str:
        return f"{name} is never to go" if name in NO_SUBSCRIPTIONS or name in self.kept else ""

    def _unread(self, topic: ModelTopic, name: str) -> str:
        if name in NO_SUBSCRIPTIONS or self.world.interceptor.fired:
            return ""
        left = [one for one in topic.ledgers if not self.world.passed(topic.cursors[name], one)]
        return f"{name} has not read {left}" if left else ""

    def _used(self, topic: ModelTopic, name: str) -> str:
        """Why it counts as used; what came about as the run was at it may be too late for the run to see."""
        now, key = self.world.time.now_ms(), (topic.name, name)
        what = name or "its data"
        if not self.world.interceptor.fired:
            self.look()
            if self.known_to_broker(topic, name) > now - self.period:
                return f"its broker knows of clients of {what}"
        for when, said in ((self.used, "changed"), (self.had_clients, "had clients")):
            if (at := when.get(key, 0)) > now - self.period:
                return f"{what} {said} {(now - at) // HOUR} hours ago"
        born = self.born.get(key, now)
        seen = [at for at in self.reports if at >= born]
        if len(seen) < 2 or seen[0] > now - self.period:
            hours = (now - min(seen, default=now)) // HOUR
            return f"only {len(seen)} reports saw {what}, the first {hours} hours ago"
        return ""
