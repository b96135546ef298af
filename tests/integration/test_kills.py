"""SIGKILL of the run, of an executor and of every server, in the middle of deletions and under live traffic.

One sandbox for all. After each kill: no live ledger is gone, every topic takes messages, every consumer goes on, a
rerun finishes the work, and every intent ended in exactly one state.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar
import pytest

from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.first_phase import GOES
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.trimming.trim import TrimOrder
from sandbox import znodes
from sandbox.clients import pulsar_client, wait_for
from sandbox.cluster import Cluster
from tests.integration.pipeline import (
    Pipeline,
    drain,
    emptied,
    existing,
    new_namespace,
    settings_file,
    waiting,
)

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
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
    arguments: dict[str, object],
    **fault: object,
) -> subprocess.Popen[str]:
    """Begin a run in a process group of its own, with a fault that makes ``folder/struck`` when it strikes."""
    master = "local-cluster[2,1,1024]" if fault["victim"] == "executor" else "local[2]"
    # the next run waits for a killed one's session to end; a run that is to live through the kill needs patience
    session = "20s" if fault["victim"] == "executor" else "5s"
    file = settings_file(
        cluster,
        folder / "run",
        {
            "zookeeper": {"session_timeout": session},
            "lake": {"path": lake},
            "orphans": orphans,
            "spark": {"master": master},
            "deletion": {"batch": 5},
            "trimming": {"loaded_topics": True},
        },
    )
    command = [sys.executable, "-m", "tests.integration.killed_run", str(file), task]
    return subprocess.Popen(
        [*command, json.dumps(arguments), json.dumps({"flag": str(folder / "struck"), **fault})],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@dataclass
class Scene:
    """One lake, one namespace, and the orphans planted in it."""

    cluster: Cluster
    folder: Path
    orphans: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        file = settings_file(
            self.cluster, self.folder, {"zookeeper": {"session_timeout": "20s"}, "orphans": KILLED_BROKERS_LEAK}
        )
        self.pipeline = Pipeline(file)
        leaked = f"persistent://{new_namespace(self.cluster, 'killed')}/leaked"
        with self.cluster.metadata() as zk:
            metadata = znodes.ledger_metadata(self.cluster.bookies, znodes.managed_ledger_tags(leaked))
            self.orphans = {znodes.new_ledger(zk, metadata) for _ in range(ORPHANS)}
        self.planned = self.pipeline.confirmed_plan()
        assert self.orphans <= self.planned.ids

    def start(self, task: str, arguments: dict[str, object], **fault: object) -> subprocess.Popen[str]:
        self.flag = self.folder / "struck"
        return begin(self.cluster, self.folder, self.pipeline.lake, KILLED_BROKERS_LEAK, task, arguments, **fault)

    def finish(self) -> None:
        """Rerun until the queue is empty, and look at what became of every intent."""
        for _ in range(4):
            self.pipeline.scan_and_delete()
            if not waiting(self.cluster):
                break
        assert emptied(self.cluster)
        assert not existing(self.cluster, self.orphans), "the rerun did not finish the work"
        rows = self.pipeline.journal()
        deleted = Counter(row["ledger_id"] for row in rows if row["outcome"] == "deleted")
        assert set(deleted.values()) <= {1}, "a ledger was deleted twice"
        last = {row["ledger_id"]: row["outcome"] for row in rows}
        assert {ledger: last.get(ledger) for ledger in self.orphans if last.get(ledger) not in FINAL} == {}
        assert all(self.pipeline.archived(ledger) for ledger in self.orphans)


@pytest.fixture
def scene(cluster: Cluster, traffic: Traffic, spark: None, tmp_path: Path) -> Scene:
    drain(cluster)
    return Scene(cluster, tmp_path)


def sent(scene: Scene) -> None:
    """All intents are in the queue, and a scan is younger than they are."""
    scene.pipeline.apply(scene.pipeline.order(scene.planned))
    scene.pipeline.scan()


def test_a_run_killed_after_sending_sends_again_and_deletes_once(scene: Scene, traffic: Traffic) -> None:
    summary = scene.planned.summary
    order = {"plan_id": summary.plan_id, "digest": summary.digest, "run_id": "killed"}
    fault = {"port": "journal", "method": "record", "about": "phase='send'", "after": False, "victim": "driver"}
    run = scene.start("apply", order, **fault)
    _, errors = run.communicate(timeout=900)
    assert scene.flag.exists(), errors[-3000:]
    assert waiting(scene.cluster) == len(scene.planned.ids)
    traffic.check()
    sent(scene)
    assert waiting(scene.cluster) == 2 * len(scene.planned.ids)
    scene.finish()


def test_a_trim_killed_after_its_write_is_settled_by_the_next_run(
    cluster: Cluster, traffic: Traffic, spark: None, tmp_path: Path
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
        return [one.outcome for one in found] == [GOES, GOES]

    wait_for(f"the ledgers of {topic} to be consumed", may_go)
    fault = {"port": "store", "method": "write", "about": "/managed-ledgers/", "after": True, "victim": "driver"}
    arguments = {"topic": topic, "up_to": asked[-1], "run_id": "killed"}
    for _ in range(5):  # a run leaves the topic to the next one if its list changes at each of its tries
        run = begin(cluster, tmp_path, pipeline.lake, {}, "trim", arguments, **fault)
        said, errors = run.communicate(timeout=900)
        if run.returncode:
            break
    assert (tmp_path / "struck").exists(), said + errors[-3000:]
    with cluster.metadata() as zk:
        assert not set(asked) & set(znodes.listed_ledgers(zk, topic)), "it was killed before its write"

    pipeline.scan_and_delete()  # settles the pending unload first
    traffic.check()
    for _ in range(8):
        if not existing(cluster, set(asked)):
            break
        pipeline.scan_and_delete()
    assert not existing(cluster, set(asked))
    assert {pipeline.journal(ledger)[-1]["outcome"] for ledger in asked} == {"deleted"}


STEPS = {
    "after the archive": {"port": "store", "method": "delete_many", "after": False},
    "after the deletion": {"port": "store", "method": "delete_many", "after": True},
    "before the acknowledgement": {"port": "queue", "method": "acknowledge", "after": False},
}


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victim", ["driver", "executor"])
def test_a_deletion_that_is_killed_is_finished_by_the_next_run(
    scene: Scene, traffic: Traffic, victim: str, step: str
) -> None:
    sent(scene)
    run = scene.start("delete", {"run_id": "killed"}, victim=victim, **STEPS[step])
    _, errors = run.communicate(timeout=900)
    assert scene.flag.exists(), errors[-3000:]
    if victim == "executor":  # Spark gives the task to another executor
        assert run.returncode == 0, errors[-3000:]
    traffic.check()
    scene.finish()


@pytest.mark.parametrize("server", ["broker-1", "bookie-1", "zookeeper"])
def test_a_server_killed_during_a_deletion_loses_nothing(scene: Scene, traffic: Traffic, server: str) -> None:
    sent(scene)
    fault = {"port": "store", "method": "delete_many", "after": True, "victim": "nobody"}
    run = scene.start("delete", {"run_id": "disturbed"}, **fault)
    wait_for("the run to reach its deletions", scene.flag.exists, 300)
    scene.cluster.kill(server)
    scene.cluster.start_server(server)
    run.communicate(timeout=900)  # it may have finished or stopped; the rerun must be able to tell
    traffic.check()
    scene.finish()
