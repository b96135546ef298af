"""What a redrive refuses before it takes anything from the dead-letter topic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pulsar_lifecycle.deletion import redrive
from pulsar_lifecycle.deletion.redrive import LetterFilter, Redriven
from pulsar_lifecycle.deletion_queue.queue_topics import DLQ_TOPIC
from pulsar_lifecycle.errors import StoreError, UsageError
from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.kit.fakes.broker_admin import FakeBrokerAdmin
from tests.kit.fakes.connections import connecting
from tests.kit.fakes.deletion_queue import FakeDeadLetterQueue, FakeDeletionTopics
from tests.kit.refused import refused_by
from tests.kit.simulated.cluster import SimulatedCluster
from tests.kit.simulated.pipeline import scan


class Scene:
    """A cluster with one dead letter, scanned once."""

    def __init__(self, folder: Path) -> None:
        self.cluster = SimulatedCluster()
        self.cluster.topic(Topic.parse("persistent://acme/orders/x"), [1])
        self.settings = Settings.model_validate(
            {
                "cluster": "east",
                "zookeeper": {"hosts": "z:1"},
                "pulsar": {"admin_url": "http://b:1", "service_url": "pulsar://b:1"},
                "lake": {"path": str(folder)},
            }
        )
        self.lake = FileLake(str(folder))
        self.topics = FakeDeletionTopics()
        self.topics.publish(b"no intent", topic=DLQ_TOPIC)
        connect = connecting(
            stores=lambda *_, **__: self.cluster.open_store(read_only=False),
            admin=FakeBrokerAdmin,
            dead_letters=lambda: FakeDeadLetterQueue(self.topics),
        )
        self.where = Cluster(self.settings, connect=connect)

    def scan(self, cluster: str) -> None:
        found = scan(self.cluster).epoch
        context = Context(now=found.started_at, grace=1, namespaces=frozenset())
        self.lake.store_epoch(replace(found, cluster=cluster), Referenced(), context)

    def redrive(self) -> Redriven:
        return redrive.redrive_now(self.where, "run-1", LetterFilter(), 10, lambda _: None)


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def test_nothing_is_taken_where_what_is_sent_cannot_be_journalled(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    (Path(scene.settings.lake.path) / "journal").touch()
    taken: list[object] = []
    monkeypatch.setattr(redrive, "redrive", lambda *args: taken.append(args))
    with pytest.raises(StoreError):
        scene.redrive()
    assert not taken


def test_a_store_that_went_back_in_time_gets_no_dead_letter_sent_again(scene: Scene) -> None:
    backup, zxid = scene.cluster.zookeeper.backup(), scene.cluster.zookeeper.zxid
    scene.cluster.put("/something", b"new")
    scene.scan("east")
    assert scene.redrive().looked == 1
    scene.cluster.zookeeper.restore(backup, zxid)
    with refused_by(RefusalCode.STORE_WENT_BACK):
        scene.redrive()
    scene.lake.set_scans_aside("east", scene.cluster.clock.now_ms(), "restored from the backup of 02:00")
    assert scene.redrive().looked == 1


def test_scans_of_another_cluster_say_nothing_of_this_store(scene: Scene) -> None:
    backup, zxid = scene.cluster.zookeeper.backup(), scene.cluster.zookeeper.zxid
    scene.cluster.put("/something", b"new")
    scene.scan("west")
    scene.cluster.zookeeper.restore(backup, zxid)
    assert scene.redrive().looked == 1


def test_a_launch_sends_no_more_letters_again_than_the_settings_allow_ledgers(tmp_path: Path) -> None:
    settings = Scene(tmp_path).settings
    assert redrive.at_most(settings, None) == redrive.AT_ONCE
    few = settings.model_copy(update={"apply": settings.apply.model_copy(update={"max_ledgers": 7})})
    assert (redrive.at_most(few, None), redrive.at_most(few, 7)) == (7, 7)
    with pytest.raises(UsageError, match=r"apply\.max_ledgers"):
        redrive.at_most(few, 8)
