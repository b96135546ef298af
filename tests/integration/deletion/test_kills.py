"""SIGKILL of the run, of an executor and of every server, in the middle of deletions and under live traffic.

One sandbox for all. After each kill: no live ledger is gone, every topic takes messages, every consumer goes on, a
rerun finishes the work, and every intent ended in exactly one state.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from sandbox.clients import pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import znodes
from tests.integration.killed_run import EXECUTOR, EXECUTORS, NOBODY, RUN, Running, Step, strike
from tests.integration.pipeline import (
    NO_CAPS,
    Pipeline,
    drain,
    emptied,
    existing,
    new_namespace,
    settings_file,
    waiting,
)

pytestmark = pytest.mark.integration

TOPICS = 3
ORPHANS = 24
FINAL = {"deleted", "gone", "kept", "refused"}


@dataclass
class Traffic:
    """Producers and consumers that live through every kill.

    ``sent`` holds what a broker acknowledged, ``received`` what a consumer got and acknowledged, by topic.
    """

    sandbox: Cluster
    namespace: str
    sent: dict[str, set[bytes]] = field(default_factory=dict)
    received: dict[str, set[bytes]] = field(default_factory=dict)
    ended: threading.Event = field(default_factory=threading.Event)
    threads: list[threading.Thread] = field(default_factory=list)

    def __enter__(self) -> Traffic:
        for number in range(TOPICS):
            topic = f"persistent://{self.namespace}/live-{number}"
            self.sent[topic], self.received[topic] = set(), set()
            self.threads += [threading.Thread(target=work, args=(topic,)) for work in (self._produce, self._consume)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self.threads:
            thread.join()

    def check(self) -> None:
        """Every topic takes messages and every consumer gets them, from here on."""
        before = {topic: (len(self.sent[topic]), len(self.received[topic])) for topic in self.sent}
        for topic, (sent, received) in before.items():
            wait_for(f"{topic} to take messages again", lambda t=topic, n=sent: len(self.sent[t]) > n + 2, 300)
            wait_for(
                f"the consumer of {topic} to go on", lambda t=topic, n=received: len(self.received[t]) > n + 2, 300
            )
        with self.sandbox.metadata() as zk:
            listed = {ledger for topic in self.sent for ledger in znodes.listed_ledgers(zk, topic)}
            cursors = {znodes.read_cursor(zk, topic, "live").cursorsLedgerId for topic in self.sent} - {-1}
        alive = existing(self.sandbox, listed | cursors)
        with self.sandbox.metadata() as zk:  # a broker may have trimmed a ledger since
            listed &= {ledger for topic in self.sent for ledger in znodes.listed_ledgers(zk, topic)}
        assert listed <= alive, "a live ledger is gone"

    def unread(self) -> dict[str, int]:
        """How many acknowledged messages no consumer has got yet, once traffic has ended."""
        return {topic: len(self.sent[topic] - self.received[topic]) for topic in self.sent}

    def _produce(self, topic: str) -> None:
        number = 0
        with pulsar_client(self.sandbox.service_url) as client:
            while not self.ended.is_set():
                with suppress(pulsar.PulsarException):
                    producer = client.create_producer(topic, send_timeout_millis=300_000)
                    while not self.ended.wait(0.05):
                        number += 1
                        payload = b"%d" % number
                        producer.send(payload)
                        self.sent[topic].add(payload)

    def _consume(self, topic: str) -> None:
        earliest = pulsar.InitialPosition.Earliest
        with pulsar_client(self.sandbox.service_url) as client:
            while True:
                with suppress(pulsar.PulsarException):
                    consumer = client.subscribe(topic, "live", pulsar.ConsumerType.Shared, initial_position=earliest)
                    while True:
                        try:
                            message = consumer.receive(1_000)
                        except pulsar.Timeout:
                            if self.ended.is_set() and not self.sent[topic] - self.received[topic]:
                                return
                            continue
                        consumer.acknowledge(message)
                        self.received[topic].add(message.data())


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A sandbox of our own: its servers are killed."""
    made = Cluster(tmp_path_factory.mktemp("kills") / "sandbox")
    try:
        made.start()
        drain(made)
        yield made
    finally:
        made.stop(purge=True)


@pytest.fixture(scope="module")
def traffic(cluster: Cluster) -> Iterator[Traffic]:
    with Traffic(cluster, new_namespace(cluster, "traffic")) as running:
        yield running
    assert not any(running.unread().values()), "acknowledged messages that no consumer got"


KILLED_BROKERS_LEAK = {
    "grace_period": 0,
    "confirm_after": "0s",
    "max_shrinkage": 1,
    "max_shrinkage_raised": {"by": "it", "why": "a broker whose bookie dies leaves cursors' ledgers behind"},
}
"""Of a cluster as small as this one, they are a large share of what is listed."""


def begin(
    cluster: Cluster,
    folder: Path,
    lake: str,
    orphans: dict[str, Any],
    task: str,
    arguments: Mapping[str, object],
    *steps: Step,
    victim: str = RUN,
) -> Running:
    """Begin a run in a process of its own that is struck at each of ``steps``."""
    # the next run waits for a killed one's session to end; a run that is to live through the kill needs patience
    session = "20s" if victim == EXECUTOR else "5s"
    file = settings_file(
        cluster,
        folder / "run",
        {
            "zookeeper": {"session_timeout": session},
            "lake": {"path": lake},
            "orphans": orphans,
            "spark": {"master": EXECUTORS if victim == EXECUTOR else "local[2]"},
            "deletion": {"batch": 5},
            "trimming": {"loaded_topics": True},
        },
    )
    return strike(file, task, arguments, *steps, victim=victim)


@dataclass(frozen=True)
class Scene:
    """The orphans of one test and the plan that names just them; all tests share the operator and his lake."""

    cluster: Cluster
    pipeline: Pipeline
    orphans: set[int]
    plan: PlanSummary

    def send(self) -> None:
        """Put all intents into the queue."""
        self.pipeline.apply(Order(self.plan.plan_id, self.plan.digest, NO_CAPS))

    def deletes(self, folder: Path, *steps: Step, victim: str = RUN) -> Running:
        """Begin a deletion run that is struck; all intents are in the queue, and a scan is younger than they are."""
        self.send()
        self.pipeline.scan()
        lake = self.pipeline.lake
        arguments = {"run_id": "killed"}
        return begin(self.cluster, folder, lake, KILLED_BROKERS_LEAK, "delete", arguments, *steps, victim=victim)

    def outcomes(self) -> dict[int, list[str]]:
        """What the journal says of each orphan, oldest first."""
        found: dict[int, list[str]] = {ledger: [] for ledger in self.orphans}
        for row in self.pipeline.journal():
            if row["ledger_id"] in found:
                found[row["ledger_id"]].append(row["outcome"])
        return found

    def finish(self) -> None:
        """Rerun until the queue is empty, and look at what became of every intent."""
        runs = self.pipeline.delete_until(lambda: not waiting(self.cluster))
        assert emptied(self.cluster), runs
        assert not existing(self.cluster, self.orphans), "the rerun did not finish the work"
        outcomes = self.outcomes()
        assert all(said.count("deleted") <= 1 for said in outcomes.values()), "a ledger was deleted twice"
        assert {ledger: said for ledger, said in outcomes.items() if not said or said[-1] not in FINAL} == {}
        assert all(self.pipeline.archived(ledger) for ledger in self.orphans)


SENDING = "sending"
STEPS = {
    "after the archive": Step("store", "delete_many", after=False),
    "after the deletion": Step("store", "delete_many", after=True),
    "before the acknowledgement": Step("queue", "acknowledge", after=False),
}
SERVERS = ("broker-1", "bookie-1", "zookeeper")


@pytest.fixture(scope="module")
def scenes(cluster: Cluster, traffic: Traffic, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Scene]:
    """All scenes, planted, scanned and planned together."""
    overrides = {"zookeeper": {"session_timeout": "20s"}, "orphans": KILLED_BROKERS_LEAK}
    pipeline = Pipeline(settings_file(cluster, tmp_path_factory.mktemp("scenes"), overrides))
    planted: dict[str, set[int]] = {}
    for name in (SENDING, EXECUTOR, *SERVERS, *STEPS):
        leaked = f"persistent://{new_namespace(cluster, 'killed')}/leaked"
        with cluster.metadata() as zk:
            metadata = znodes.ledger_metadata(cluster.bookies, znodes.managed_ledger_tags(leaked))
            planted[name] = {znodes.new_ledger(zk, metadata) for _ in range(ORPHANS)}
    pipeline.scan()
    epoch = pipeline.scan()
    made: dict[str, Scene] = {}
    for name, orphans in planted.items():
        only = pc.field("ledger_id").isin(pa.array(sorted(orphans), pa.int64()))
        plan, _ = deletion_run.make_plan(pipeline.where, epoch, only=lambda rows, only=only: rows.filter(only))
        assert (plan.actionable, plan.ledgers) == (True, ORPHANS), plan
        made[name] = Scene(cluster, pipeline, orphans, plan)
    return made


def test_a_run_killed_after_sending_sends_again_and_deletes_once(
    scenes: dict[str, Scene], traffic: Traffic, tmp_path: Path
) -> None:
    scene = scenes[SENDING]
    drain(scene.cluster)
    order = {"plan_id": scene.plan.plan_id, "digest": scene.plan.digest, "run_id": "killed"}
    step = Step("journal", "record", after=False, about="phase=<Phase.SEND")
    begin(scene.cluster, tmp_path, scene.pipeline.lake, KILLED_BROKERS_LEAK, "apply", order, step).struck()
    assert waiting(scene.cluster) == ORPHANS
    traffic.check()
    scene.send()
    assert waiting(scene.cluster) == 2 * ORPHANS
    scene.finish()


def test_a_trim_killed_after_its_write_is_finished_by_the_next_run(
    cluster: Cluster, traffic: Traffic, tmp_path: Path
) -> None:
    """The worst moment of all: a loaded topic's z-node is written, and its broker does not know."""
    drain(cluster)
    settings = {
        "zookeeper": {"session_timeout": "20s"},
        "orphans": {"grace_period": "7d"},  # what the first phase marked must not wait for it
        "trimming": {"loaded_topics": True},
        "deletion": {"twoPhaseDeletionReconsumeLaterInSeconds": 1},
    }
    pipeline = Pipeline(settings_file(cluster, tmp_path, settings))
    pipeline.scan()
    pipeline.scan()
    topic = min(traffic.sent)
    with cluster.metadata() as zk:
        asked = sorted(znodes.listed_ledgers(zk, topic))[:2]
    order = TrimOrder(Topic.parse(topic), up_to=asked[-1])

    def may_go() -> bool:
        found = trim_run.trim(pipeline.where, "look", [order], dry_run=True)
        return [one.outcome for one in found] == [Outcome.GOES, Outcome.GOES]

    wait_for(f"the ledgers of {topic} to be consumed", may_go)
    step = Step("store", "write", after=True, about="/managed-ledgers/")
    arguments = {"topic": topic, "up_to": asked[-1], "run_id": "killed"}
    for _ in range(5):  # a run leaves the topic to the next one if its list changes at each of its tries
        struck = begin(cluster, tmp_path, pipeline.lake, {}, "trim", arguments, step).end()
        if struck:
            break
    assert struck
    with cluster.metadata() as zk:
        assert not set(asked) & set(znodes.listed_ledgers(zk, topic)), "it was killed before its write"

    pipeline.scan_and_delete()  # settles the pending unload first
    traffic.check()
    runs = pipeline.delete_until(lambda: not existing(cluster, set(asked)))
    assert not existing(cluster, set(asked)), runs
    assert {pipeline.journal(ledger)[-1]["outcome"] for ledger in asked} == {"deleted"}


@pytest.mark.parametrize("step", STEPS)
def test_a_deletion_that_is_killed_is_finished_by_the_next_run(
    scenes: dict[str, Scene], traffic: Traffic, tmp_path: Path, step: str
) -> None:
    scene = scenes[step]
    drain(scene.cluster)
    scene.deletes(tmp_path, STEPS[step]).struck()
    check_where_it_died(scene, step)
    traffic.check()
    scene.finish()


def test_a_deletion_that_loses_an_executor_at_each_step_goes_on(
    scenes: dict[str, Scene], traffic: Traffic, tmp_path: Path
) -> None:
    """One run that loses three: it has two at a time, and Spark starts others."""
    scene = scenes[EXECUTOR]
    drain(scene.cluster)
    scene.deletes(tmp_path, *STEPS.values(), victim=EXECUTOR).struck()
    traffic.check()
    scene.finish()


def check_where_it_died(scene: Scene, step: str) -> None:
    """What a run that was killed at this step leaves behind; its two tasks were in the middle of a batch each."""
    gone = scene.orphans - existing(scene.cluster, scene.orphans)
    journalled = {ledger for ledger, said in scene.outcomes().items() if "deleted" in said}
    assert all(scene.pipeline.archived(ledger) for ledger in gone)
    if step == "after the archive":
        assert any(scene.pipeline.archived(ledger) for ledger in scene.orphans - gone)
    elif step == "after the deletion":
        assert gone - journalled
    else:
        assert journalled
        assert waiting(scene.cluster) == ORPHANS, "it was killed after an acknowledgement"


@pytest.mark.parametrize("server", SERVERS)
def test_a_server_killed_during_a_deletion_loses_nothing(
    scenes: dict[str, Scene], traffic: Traffic, tmp_path: Path, server: str
) -> None:
    scene = scenes[server]
    drain(scene.cluster)
    run = scene.deletes(tmp_path, Step("store", "delete_many", after=True), victim=NOBODY)
    run.wait_until_reached()
    scene.cluster.kill(server)
    scene.cluster.start_server(server)
    run.struck()  # it may have finished or stopped; the rerun must be able to tell
    traffic.check()
    scene.finish()
