"""Planning and deleting on a cluster that is being written to: nothing that lives is touched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import pulsar
import pytest

from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting import plant, topics, verify, znodes
from sandbox.planting.seed import Live
from tests.integration.pipeline import (
    PATIENT,
    Pipeline,
    emptied,
    existing,
    new_namespace,
    wait_unlisted,
)

pytestmark = pytest.mark.integration

PRODUCERS = 3
BURST = 30
"""Messages sent at once; a ledger of the sandbox rolls over at 50."""


@dataclass
class Load:
    """Producers with rollovers, a reader that leaves holes, topics that come and go, schemas, compactions.

    ``written``: topic -> payloads that a broker acknowledged, in order. ``rounds``: how often each worker went round.
    """

    sandbox: Cluster
    namespace: str
    written: dict[str, list[bytes]] = field(default_factory=dict)
    rounds: dict[str, int] = field(default_factory=dict)
    failures: list[BaseException] = field(default_factory=list)
    ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Load:
        work = [lambda number=number: self._produce(number) for number in range(PRODUCERS)]
        work += [self._come_and_go, self._compact]
        self._threads = [threading.Thread(target=self._guarded, args=(one,)) for one in work]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            self.failures.append(error)

    def _round(self, name: str) -> bool:
        self.rounds[name] = self.rounds.get(name, 0) + 1
        return not self.ended.wait(0.2)

    def _produce(self, number: int) -> None:
        topic = f"persistent://{self.namespace}/producing-{number}"
        kept = self.written.setdefault(topic, [])
        with pulsar_client(self.sandbox.service_url) as client:
            earliest = pulsar.InitialPosition.Earliest
            shared = pulsar.ConsumerType.Shared
            consumer = client.subscribe(topic, "holes", shared, initial_position=earliest)
            while self._round("produce"):
                burst = topics.payloads(BURST, f"producer {number} burst {len(kept)}")
                topics.publish(client, topic, burst)
                kept.extend(burst)
                for message in [consumer.receive(60_000) for _ in burst][::2]:
                    consumer.acknowledge(message)

    def _come_and_go(self) -> None:
        with pulsar_client(self.sandbox.service_url) as client, Admin(self.sandbox.admin_url) as admin:
            while self._round("come and go"):
                topic = f"persistent://{self.namespace}/passing-{self.rounds['come and go']}"
                admin.post_schema(f"{topic}-schema", 1)
                topics.publish(client, topic, topics.payloads(60))
                admin.unload(topic)
                admin.topic("DELETE", topic, "?force=true")

    def _compact(self) -> None:
        topic = f"persistent://{self.namespace}/compacting"
        kept = self.written.setdefault(topic, [])
        with pulsar_client(self.sandbox.service_url) as client, Admin(self.sandbox.admin_url) as admin:
            while self._round("compact"):
                burst = topics.payloads(BURST, f"compacting {len(kept)}")
                topics.publish(client, topic, burst, keys=[f"key-{number}" for number in range(BURST)])
                kept.extend(burst)
                admin.compact(topic)


def test_nothing_that_lives_is_deleted_under_load(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> None:
    namespace = new_namespace(sandbox, "load")
    leaked = f"persistent://{namespace}/leaked"
    orphans = {entry.ledger_id for entry in plant.orphan_data(sandbox, leaked)}
    wait_unlisted(sandbox, [leaked])
    pipeline = pipelines({"deletion": PATIENT})
    with Load(sandbox, namespace) as load:
        pipeline.scan()
        planned = pipeline.plan(pipeline.scan())
        assert planned.summary.actionable, planned.summary.gaps
        pipeline.apply(pipeline.order(planned))
        outcomes = pipeline.scan_and_delete()
        during = dict(load.rounds)
    assert not load.failures
    assert min(during.values()) > 2, f"there was hardly any load: {during}"

    assert orphans <= planned.ids
    assert not existing(sandbox, orphans)
    assert emptied(sandbox), outcomes
    with sandbox.metadata() as zk:
        listed = {ledger for topic in load.written for ledger in znodes.listed_ledgers(zk, topic)}
        cursors = {znodes.read_cursor(zk, topic, name).cursorsLedgerId for topic, name in _cursors(load)} - {-1}
    assert not listed & planned.ids
    assert existing(sandbox, listed | cursors) == listed | cursors
    live = [Live(topic, len(payloads), topics.digest(payloads)) for topic, payloads in load.written.items()]
    for one in live:
        if one.topic.endswith("/compacting"):
            last = load.written[one.topic][-BURST:]
            one.compacted = {f"key-{number}": topics.digest([payload]) for number, payload in enumerate(last)}
    assert verify.read_back(sandbox, live) == []


def _cursors(load: Load) -> list[tuple[str, str]]:
    return [(topic, "__compaction" if topic.endswith("/compacting") else "holes") for topic in load.written]
