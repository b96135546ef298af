"""A topic that is to be trimmed or deleted, over the fakes.

Belongs here: the topic and its run. Not here: what a test expects.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.deletion_message import LedgerType, decode_deletion_message
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Position, encode_name
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.first_phase import LedgerOutcome
from pulsar_lifecycle.topics.unloads import RunGuard, Unloads
from pulsar_lifecycle.topics.write import TopicRun
from pulsar_lifecycle.trimming import delete_topic as trimming_delete_topic
from pulsar_lifecycle.trimming import trim as trimming_trim
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.crash import Tell, killed_at_every_step
from tests.kit.scenes.topic_scene import TOPIC, TopicScene, nothing_lost
from tests.kit.simulated.cluster import SimulatedCluster, data_tags

MINUTE = 60_000
CONTEXT = Context(
    now=0, grace=0, namespaces=frozenset({"acme/orders", "theirs/orders"}), offload_buckets=frozenset({"b"})
)


class TrimScene(TopicScene):
    """A topic of five ledgers that was left alone for an hour; its cursor stands before the fourth."""

    def __init__(self) -> None:
        super().__init__()
        self.configuration: SimulatedCluster | None = None
        self.ids = [self.cluster.ledger(data_tags(TOPIC)) for _ in range(5)]
        self.cluster.topic(TOPIC, self.ids)
        self.cursor("s", Position(self.ids[3], -1))
        self.cluster.wait(1)
        self.queue = self.cluster.open_queue()
        self.new_session()

    def cursor(self, name: str, position: Position | None, ledger: int = -1) -> None:
        info = cursor_format.ManagedCursorInfo(ledger, position)
        self.cluster.put(f"{self.path}/{encode_name(name)}", cursor_format.encode(info))

    def load(self) -> None:
        """A broker has the topic, its last ledger open."""
        self.ids.append(self.cluster.ledger(data_tags(TOPIC), state=LedgerState.OPEN))
        self.cluster.topic(TOPIC, self.ids)
        self.cluster.load(TOPIC)

    @property
    def listed(self) -> list[int]:
        data = self.cluster.zookeeper.data(self.path)
        return [item.ledger_id for item in managed_ledger.decode(data).ledgers]

    @property
    def sent(self) -> list[tuple[int, LedgerType]]:
        raws = [raw for _, _, raw, _ in self.cluster.deletion_topics.waiting.values()]
        return [(i.ledger_id, i.ledger_type) for i in map(decode_deletion_message, raws)]

    @property
    def rows(self) -> dict[str, list[int]]:
        """Ledgers by outcome of phase ``mark``, as the journal has them."""
        found: dict[str, list[int]] = {}
        for row in self.journalled("mark"):
            found.setdefault(row.outcome, []).append(row.ledger_id)
        return found

    def journalled(self, phase: str) -> list[JournalRow]:
        return [row for row in self.cluster.journal.rows if row.phase == phase]

    @property
    def marks(self) -> dict[tuple[int, int], int]:
        """What ``io.lake.journal.marked_ledgers`` would say."""
        return {(r.ledger_id, json.loads(r.detail)["czxid"]): r.at for r in self.journalled("mark")}

    def ports(self) -> Ports:
        cluster = self.cluster
        return Ports(self.store, cluster.reader, cluster.admin, self.queue, cluster.journal, cluster.clock)

    def run(self, loaded_topics: bool | frozenset[str] = False) -> TopicRun:
        cluster = self.cluster
        brokers = Brokers(cluster.admin.loaded_topics(), cluster.admin.stats_interval_ms())
        now = cluster.clock.now_ms()
        configuration = self.configuration.open_store() if self.configuration else self.store
        shadows = snapshot.Shadows(lambda: snapshot.shadow_sources(self.store, configuration), cluster.clock)
        run = TopicRun("run", "simulated", "/ledgers", now, brokers, CONTEXT, 10 * MINUTE, loaded_topics, shadows)
        return replace(run, losses=lambda namespace: self.losses or nothing_lost(namespace))

    def act(
        self, work: Callable[[TopicRun, Ports, RunGuard], list[LedgerOutcome]], **policy: Any
    ) -> dict[int, LedgerOutcome]:
        """One run with its lease and a session of its own; what became of each ledger."""
        limit = policy.pop("limit", 500)
        ports = policy.pop("ports", None) or self.ports()
        lease = control.take_lease(self.store, "run", self.cluster.clock, 0)
        try:
            guard = RunGuard(lease.guard, Unloads(5, limit, self.cluster.clock))
            outcomes = work(self.run(**policy), ports, guard)
        finally:
            control.release_lease(self.store, lease)
        return {one.ledger_id: one for one in outcomes}

    def trim(self, upto: int = 2, **policy: Any) -> dict[int, LedgerOutcome]:
        """Trim every ledger up to the one at an index."""
        order = TrimOrder(TOPIC, up_to=self.ids[upto])
        return self.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, [order]), **policy)

    def delete_topic(self, force: bool = False, **policy: Any) -> dict[int, LedgerOutcome]:
        return self.act(lambda *given: trimming_delete_topic.delete_topic(*given, TOPIC, force), **policy)


def refused(scene: TrimScene, code: Code) -> str:
    """Why the whole topic was refused, by ``code``; proves that nothing was written or sent."""
    version = scene.cluster.zookeeper.stat(scene.path)
    (one,) = scene.trim().values()
    assert (one.ledger_id, one.outcome, one.why.code) == (-1, Outcome.REFUSED, code)
    assert scene.cluster.zookeeper.stat(scene.path) == version
    assert scene.sent == []
    assert scene.cluster.journal.rows == []
    return one.reason


def entry(position: Position) -> bytes:
    return cursor_format.encode_position(cursor_format.PositionInfo(position))


def broker_rolls_over(scene: TrimScene) -> None:
    scene.ids.append(scene.cluster.ledger(data_tags(TOPIC), state=LedgerState.OPEN))
    info = managed_ledger.decode(scene.cluster.zookeeper.data(scene.path))
    kept = [item.ledger_id for item in info.ledgers]
    scene.cluster.topic(TOPIC, [*kept, scene.ids[-1]])


class Sending:
    """A queue that lets something happen while it sends."""

    def __init__(self, queue: Any, act: Callable[[], None]) -> None:
        self._queue, self._act = queue, act

    def send(self, *given: Any) -> Any:
        sent = self._queue.send(*given)
        self._act()
        self._act = lambda: None
        return sent


class Recorded:
    """A port whose effects are steps."""

    def __init__(self, port: Any, step: Callable[[str], None], both: bool, **names: Callable[..., str]) -> None:
        self._port, self._step, self._both, self._names = port, step, both, names

    def __getattr__(self, name: str) -> Any:
        inner = getattr(self._port, name)
        if name not in self._names:
            return inner

        def act(*given: Any, **more: Any) -> Any:
            said = self._names[name](*given)
            self._step(said)
            result = inner(*given, **more)
            if self._both:
                self._step(f"{said}, done")
            return result

        return act


def recording(scene: TrimScene, step: Callable[[str], None], both: bool = False) -> Ports:
    """The scene's ports with their effects as steps."""
    ports = scene.ports()
    store = Recorded(
        ports.store,
        step,
        both,
        create=lambda path, *_: f"create {path}",
        write=lambda path, *_: f"write {path}",
        delete=lambda path, *_: f"delete {path}",
    )
    return replace(
        ports,
        store=store,
        queue=Recorded(ports.queue, step, both, send=lambda *_: "send"),
        journal=Recorded(ports.journal, step, both, record=lambda rows: f"record {rows[0].outcome if rows else ''}"),
        admin=Recorded(ports.admin, step, both, unload=lambda *_: "unload", delete_topic=lambda *_: "delete topic"),
    )


def killed(make: Callable[[], TrimScene], work: Callable[[TrimScene, Ports], Any]) -> Iterator[tuple[TrimScene, str]]:
    """The scene after a run that was killed at one of its steps, for each of them."""

    def watched(scene: TrimScene, tell: Tell) -> None:
        work(scene, recording(scene, tell, both=True))

    for scene, step in killed_at_every_step(make, watched):
        scene.queue.close()
        scene.queue = scene.cluster.open_queue()
        scene.new_session()
        yield scene, step
