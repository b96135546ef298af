"""SIGKILL of an offload run at each of its steps, and of an executor in the middle of a copy, beside live clients.

After each kill every ledger can be read, a rerun finishes the work under the same UUIDs and leaves nothing behind, and
the topic takes messages.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar
import pytest

from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.tiered.outcome import OffloadOutcome
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.offload_plan import OffloadPlan
from sandbox.clients import pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting import topics
from tests.integration.killed_run import EXECUTOR, EXECUTORS, RUN, Step, strike
from tests.integration.pipeline import Pipeline, drain, existing, new_namespace, settings_file, waiting
from tests.integration.tiered import offloads
from tests.integration.tiered.offloads import check_finished, check_ledgers, contexts, messages, planned

pytestmark = pytest.mark.integration

LARGE = 220_000
"""Bytes of a message; fifty of them are a ledger of three blocks."""

OFFLOAD = {
    "after the attempt": Step("store", "create", after=True, about="offload-attempts"),
    "in the middle of the upload": Step("objects", "upload_part", after=True),
    "after the data object": Step("objects", "complete_upload", after=True),
    "after the index object": Step("objects", "put", after=True),
    "after it was proven": Step("journal", "record", after=True, about="verified"),
    "after the pending unload was noted": Step("store", "create", after=True, about="pending-unloads"),
    "after the compare-and-set": Step("store", "write", after=True, about="/managed-ledgers/"),
    "before the attempt is forgotten": Step("store", "delete", after=False, about="offload-attempts"),
}
AN_EXECUTOR = "an executor"
THREE_BLOCKS = ("in the middle of the upload", AN_EXECUTOR)
"""Where the first ledger has so many; all others have one."""
DELETION = {
    "after the message": Step("queue", "send", after=True),
    "after the mark": Step("journal", "record", after=True, about="marked"),
    "after the write": Step("store", "write", after=True, about="/managed-ledgers/"),
}

LEAVES = {
    "after the attempt": {"attempt"},
    "in the middle of the upload": {"attempt", "upload"},
    "after the data object": {"attempt", "data object alone"},
    "after the index object": {"attempt", "both objects"},
    "after it was proven": {"attempt", "both objects"},
    "after the pending unload was noted": {"attempt", "both objects", "pending unload"},
    "after the compare-and-set": {"attempt", "both objects", "pending unload", "offloaded"},
    "before the attempt is forgotten": {"attempt", "both objects", "offloaded"},
    "after the message": {"message"},
    "after the mark": {"message"},
    "after the write": {"message", "pending unload", "listed as deleted"},
}
"""What a run that was killed at a step leaves behind, beside what it may have done for the other ledger."""


@dataclass
class Scene:
    """A loaded topic of three ledgers, two of which are to be offloaded; with a producer and a tailing consumer."""

    client: pulsar.Client
    topic: str
    ledgers: list[int]
    payloads: list[bytes]
    sent: int = 0
    tail: list[Any] = field(default_factory=list[Any])

    def check_live(self, count: int) -> None:
        """The topic takes messages, and its consumer gets them; more than 50 of them need a new ledger."""
        if not self.tail:
            self.tail = [
                self.client.subscribe(self.topic, "tail"),
                self.client.create_producer(self.topic, batching_enabled=False, send_timeout_millis=60_000),
            ]
        consumer, producer = self.tail
        expected = [b"live %d" % number for number in range(self.sent, self.sent + count)]
        for payload in expected:
            producer.send(payload)
        self.sent += count
        received: set[bytes] = set()
        while len(received) < count:
            message = consumer.receive(60_000)
            consumer.acknowledge(message)
            received |= {message.data()} & set(expected)  # an earlier one comes again if its receipt was lost


@dataclass(frozen=True)
class Stage:
    """The operator and all scenes, written, scanned and planned together."""

    sandbox: Cluster
    pipeline: Pipeline
    scenes: dict[str, Scene]
    plans: dict[str, OffloadPlan]
    s3: Any

    def killed(self, name: str, folder: Path, step: Step, victim: str = RUN) -> None:
        """Run a scene's plan in a process of its own, which dies or loses an executor."""
        plan = self.plans[name]
        master = EXECUTORS if victim == EXECUTOR else "local[2]"
        session = "20s" if victim == EXECUTOR else "5s"  # the rerun waits for a killed one's to end
        file = settings_of(self.sandbox, folder, self.pipeline.lake, master, session)
        order = {"plan_id": plan.plan_id, "digest": plan.digest, "run_id": "killed"}
        strike(file, "offload", order, step, victim=victim).struck()
        assert LEAVES.get(name, set()) <= self.left_behind(self.scenes[name])
        check_ledgers(self.pipeline.where.settings, self.scenes[name].topic)

    def left_behind(self, scene: Scene) -> set[str]:
        """What there is of a scene's offloads, by metadata store, bucket and queue."""
        settings, made = self.pipeline.where.settings, contexts(self.sandbox, scene.topic).values()
        objects = [len(offloads.keys(self.s3, ledger)) for ledger in scene.ledgers]
        with KazooStore(settings.zookeeper, read_only=True) as store:
            unloads = [str(pending.topic) for pending in control.pending_unloads(store)]
        found = {
            "attempt": not offloads.open_attempts(settings).keys().isdisjoint(scene.ledgers),
            "upload": bool(offloads.uploads(self.s3)),
            "data object alone": 1 in objects,
            "both objects": 2 in objects,
            "pending unload": scene.topic in unloads,
            "offloaded": any(one and one.complete for one in made),
            "listed as deleted": any(one and one.bookkeeper_deleted for one in made),
            "message": waiting(self.sandbox) > 0,
        }
        return {name for name, there in found.items() if there}

    def offload(self, name: str) -> dict[int, OffloadOutcome]:
        return offloads.offload(self.pipeline, self.plans[name], f"rerun {name}")


def settings_of(sandbox: Cluster, folder: Path, lake: str, master: str = "local[2]", session: str = "20s") -> Path:
    sections = offloads.with_bucket(sandbox, loaded_topics=True, block_size=5 << 20) | {
        "zookeeper": {"session_timeout": session},
        "lake": {"path": lake},
        "spark": {"master": master},
    }
    return settings_file(sandbox, folder, sections)


@pytest.fixture(scope="module")
def stage(sandbox: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    drain(sandbox)
    folder = tmp_path_factory.mktemp("kills")
    pipeline = Pipeline(settings_of(sandbox, folder, str(folder / "lake")))
    with pulsar_client(sandbox.service_url) as client, offloads.s3_client(sandbox) as s3:
        scenes: dict[str, Scene] = {}
        for name in (*OFFLOAD, AN_EXECUTOR, *DELETION):
            topic = f"persistent://{new_namespace(sandbox, 'offload-kills')}/t"
            texts = topics.payloads(110, name)
            payloads = [
                text.ljust(LARGE if name in THREE_BLOCKS and number < 50 else 100) for number, text in enumerate(texts)
            ]
            ledgers = list(dict.fromkeys(topics.publish(client, topic, payloads)))
            scenes[name] = Scene(client, topic, ledgers[:2], payloads[:100])
        namespaces = {name: scene.topic[len("persistent://") : -len("/t")] for name, scene in scenes.items()}
        first, _ = planned(pipeline, *(namespaces[name] for name in DELETION))
        said = offloads.offload(pipeline, first)
        assert {said[ledger].outcome for name in DELETION for ledger in scenes[name].ledgers} == {Outcome.OFFLOADED}, (
            said
        )
        epoch = pipeline.scan()
        plans: dict[str, OffloadPlan] = {}
        for name, namespace in namespaces.items():
            plans[name], rows = planned(pipeline, namespace, epoch=epoch)
            assert plans[name].actionable, plans[name].gaps
            assert [row["ledger_id"] for row in rows] == scenes[name].ledgers
        yield Stage(sandbox, pipeline, scenes, plans, s3)


@pytest.mark.parametrize("step", OFFLOAD)
def test_an_offload_that_is_killed_is_finished_by_the_next_run(stage: Stage, tmp_path: Path, step: str) -> None:
    scene = stage.scenes[step]
    scene.check_live(3)
    stage.killed(step, tmp_path, OFFLOAD[step])
    begun = offloads.open_attempts(stage.pipeline.where.settings)
    assert begun.keys() & set(scene.ledgers)
    said = stage.offload(step)
    assert {said[ledger].outcome for ledger in scene.ledgers} <= {Outcome.OFFLOADED, Outcome.REFUSED}, said
    check_finished(stage.sandbox, stage.pipeline.where.settings, scene.topic, scene.ledgers, stage.s3)
    made = contexts(stage.sandbox, scene.topic)
    for ledger in begun.keys() & set(scene.ledgers):
        assert made[ledger].uuid == begun[ledger]
    scene.check_live(60)
    assert messages(stage.pipeline, scene.topic) == scene.payloads


def test_an_executor_that_is_killed_costs_nothing(stage: Stage, tmp_path: Path) -> None:
    scene = stage.scenes[AN_EXECUTOR]
    scene.check_live(3)
    stage.killed(AN_EXECUTOR, tmp_path, OFFLOAD["in the middle of the upload"], EXECUTOR)
    check_finished(stage.sandbox, stage.pipeline.where.settings, scene.topic, scene.ledgers, stage.s3)
    scene.check_live(60)


def test_a_copy_deletion_that_is_killed_is_finished_by_the_next_run(stage: Stage, tmp_path: Path) -> None:
    for step, place in DELETION.items():
        scene = stage.scenes[step]
        scene.check_live(3)
        stage.killed(step, tmp_path / step, place)
        said = stage.offload(step)
        assert {said[ledger].outcome for ledger in scene.ledgers} == {Outcome.BOOKKEEPER_DELETED}, said
        check_finished(stage.sandbox, stage.pipeline.where.settings, scene.topic, scene.ledgers, stage.s3)
        scene.check_live(60)
    deleted = {ledger for step in DELETION for ledger in stage.scenes[step].ledgers}
    assert existing(stage.sandbox, deleted) == deleted
    stage.pipeline.scan()
    runs = stage.pipeline.delete_until(lambda: not existing(stage.sandbox, deleted))
    assert existing(stage.sandbox, deleted) == set(), runs
    for step in DELETION:
        assert messages(stage.pipeline, stage.scenes[step].topic) == stage.scenes[step].payloads
