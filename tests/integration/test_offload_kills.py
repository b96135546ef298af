"""SIGKILL of an offload run at each of its steps, and of an executor in the middle of a copy, beside live clients.

After each kill every ledger can be read, a rerun finishes the work under the same UUIDs and leaves nothing behind, and
the topic takes messages.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pulsar
import pytest

from pulsar_lifecycle.records.offload_plan import OffloadPlan
from pulsar_lifecycle.records.outcomes import OFFLOADED, REFUSED, RELEASED
from sandbox import topics
from sandbox.clients import pulsar_client
from sandbox.cluster import Cluster
from tests.integration import offloads
from tests.integration.offloads import check_ledgers, check_settled, contexts, messages, planned
from tests.integration.pipeline import Pipeline, drain, existing, new_namespace, settings_file

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
LARGE = 220_000
"""Bytes of a message; fifty of them are a ledger of three blocks."""

OFFLOAD = {
    "after the attempt": {"port": "store", "method": "create", "about": "offload-attempts", "after": True},
    "in the middle of the upload": {"port": "objects", "method": "upload_part", "after": True},
    "after the data object": {"port": "objects", "method": "complete_upload", "after": True},
    "after the index object": {"port": "objects", "method": "put", "after": True},
    "after it was proven": {"port": "journal", "method": "record", "about": "verified", "after": True},
    "after the unload was owed": {"port": "store", "method": "create", "about": "pending-unloads", "after": True},
    "after the compare-and-set": {"port": "store", "method": "write", "about": "/managed-ledgers/", "after": True},
    "before the attempt is forgotten": {
        "port": "store",
        "method": "delete",
        "about": "offload-attempts",
        "after": False,
    },
}
EXECUTOR = "an executor"
THREE_BLOCKS = ("in the middle of the upload", EXECUTOR)
"""Where the first ledger has so many; all others have one."""
RELEASE = {
    "after the message": {"port": "queue", "method": "send", "after": True},
    "after the mark": {"port": "journal", "method": "record", "about": "marked", "after": True},
    "after the release": {"port": "store", "method": "write", "about": "/managed-ledgers/", "after": True},
}


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

    def killed(self, name: str, folder: Path, fault: dict[str, Any], victim: str = "driver") -> None:
        """Run a scene's plan in a process of its own, which dies or loses an executor."""
        plan, flag = self.plans[name], folder / "struck"
        master = "local[2]" if victim == "driver" else "local-cluster[2,1,1024]"
        session = "5s" if victim == "driver" else "20s"  # the rerun waits for a killed one's to end
        file = settings_of(self.sandbox, folder, self.pipeline.lake, master, session)
        order = {"plan_id": plan.plan_id, "digest": plan.digest, "run_id": "killed"}
        struck = {"flag": str(flag), "victim": victim, **fault}
        command = [sys.executable, "-m", "tests.integration.killed_run", str(file), "offload"]
        run = subprocess.run(
            [*command, json.dumps(order), json.dumps(struck)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            start_new_session=True,
            timeout=900,
            check=False,
        )
        assert flag.exists(), run.stderr[-3000:]
        assert (run.returncode == 0) == (victim != "driver"), run.stderr[-3000:]
        check_ledgers(self.pipeline.where.settings, self.scenes[name].topic)

    def offload(self, name: str) -> dict[int, tuple[str, str]]:
        return offloads.offload(self.pipeline, self.plans[name], f"rerun {name}")


def settings_of(sandbox: Cluster, folder: Path, lake: str, master: str = "local[2]", session: str = "20s") -> Path:
    sections = offloads.with_bucket(sandbox, loaded_topics=True, block_size=5 << 20) | {
        "zookeeper": {"session_timeout": session},
        "lake": {"path": lake},
        "spark": {"master": master},
    }
    return settings_file(sandbox, folder, sections)


@pytest.fixture(scope="module")
def stage(sandbox: Cluster, spark: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    drain(sandbox)
    folder = tmp_path_factory.mktemp("kills")
    pipeline = Pipeline(settings_of(sandbox, folder, str(folder / "lake")))
    with pulsar_client(sandbox.service_url) as client, offloads.s3_client(sandbox) as s3:
        scenes: dict[str, Scene] = {}
        for name in (*OFFLOAD, EXECUTOR, *RELEASE):
            topic = f"persistent://{new_namespace(sandbox, 'offload-kills')}/t"
            texts = topics.payloads(110, name)
            payloads = [
                text.ljust(LARGE if name in THREE_BLOCKS and number < 50 else 100) for number, text in enumerate(texts)
            ]
            ledgers = list(dict.fromkeys(topics.publish(client, topic, payloads)))
            scenes[name] = Scene(client, topic, ledgers[:2], payloads[:100])
        namespaces = {name: scene.topic[len("persistent://") : -len("/t")] for name, scene in scenes.items()}
        first, _ = planned(pipeline, *(namespaces[name] for name in RELEASE))
        said = offloads.offload(pipeline, first)
        assert {said[ledger][0] for name in RELEASE for ledger in scenes[name].ledgers} == {OFFLOADED}, said
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
    assert {said[ledger][0] for ledger in scene.ledgers} <= {OFFLOADED, REFUSED}, said
    check_settled(stage.sandbox, stage.pipeline.where.settings, scene.topic, scene.ledgers, stage.s3)
    made = contexts(stage.sandbox, scene.topic)
    for ledger in begun.keys() & set(scene.ledgers):
        assert made[ledger].uuid == begun[ledger]
    scene.check_live(60)
    assert messages(stage.pipeline, scene.topic) == scene.payloads


def test_an_executor_that_is_killed_costs_nothing(stage: Stage, tmp_path: Path) -> None:
    scene = stage.scenes[EXECUTOR]
    scene.check_live(3)
    stage.killed(EXECUTOR, tmp_path, OFFLOAD["in the middle of the upload"], victim="executor")
    check_settled(stage.sandbox, stage.pipeline.where.settings, scene.topic, scene.ledgers, stage.s3)
    scene.check_live(60)


def test_a_release_that_is_killed_is_finished_by_the_next_run(stage: Stage, tmp_path: Path) -> None:
    for step, fault in RELEASE.items():
        scene = stage.scenes[step]
        scene.check_live(3)
        stage.killed(step, tmp_path / step, fault)
        said = stage.offload(step)
        assert {said[ledger][0] for ledger in scene.ledgers} == {RELEASED}, said
        check_settled(stage.sandbox, stage.pipeline.where.settings, scene.topic, scene.ledgers, stage.s3)
        scene.check_live(60)
    released = {ledger for step in RELEASE for ledger in stage.scenes[step].ledgers}
    assert existing(stage.sandbox, released) == released
    stage.pipeline.scan()
    stage.pipeline.scan_and_delete()
    assert existing(stage.sandbox, released) == set()
    for step in RELEASE:
        assert messages(stage.pipeline, stage.scenes[step].topic) == stage.scenes[step].payloads
