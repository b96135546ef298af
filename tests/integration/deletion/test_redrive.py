"""Dead letters on a real cluster: reported by the alarm, shown by the asset's picture, sent again by the redrive."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import dagster as dg
import pulsar
import pytest

from assets import dead_letters
from orchestration.definitions import build_defs
from pulsar_lifecycle.deletion.redrive import LetterFilter, Redriven, redrive_now
from pulsar_lifecycle.deletion_queue.missing_topics import Subscribed
from pulsar_lifecycle.deletion_queue.queue_topics import DLQ_TOPIC
from pulsar_lifecycle.errors import Paused
from pulsar_lifecycle.formats.deletion_message import encode_deletion_message
from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin
from pulsar_lifecycle.io.pulsar.queue import PulsarDeletionQueue
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.runs import cluster as runs_cluster
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.settings import Settings, load_settings
from pulsar_lifecycle.values.refusals import RefusalCode
from resources.lifecycle import LifecycleResource
from sandbox.clients import wait_for
from sandbox.cluster import Cluster
from tests.integration import pipeline as driving
from tests.kit.builders import intents
from tests.kit.refused import refused_by

pytestmark = pytest.mark.integration


@pytest.fixture
def config(sandbox: Cluster, tmp_path: Path) -> str:
    return str(driving.settings_file(sandbox, tmp_path, {}))


@pytest.fixture
def settings(config: str) -> Settings:
    return load_settings(config)


@pytest.fixture
def queue(sandbox: Cluster, settings: Settings) -> Iterator[PulsarDeletionQueue]:
    """The deletion queue, empty before and after, dead letters included."""
    driving.drain(sandbox)
    with closing(HttpBrokerAdmin(settings.pulsar)) as admin, driving.subscriptions_of(sandbox) as look:
        queue = PulsarDeletionQueue(settings.pulsar, admin, Subscribed(admin, 4, look))
        yield queue
        queue.close()
    driving.drain(sandbox)


@pytest.fixture
def buried(settings: Settings, queue: PulsarDeletionQueue) -> None:
    """Four intents and one message that is none, dead-lettered."""
    client = pulsar.Client(settings.pulsar.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    producer = client.create_producer(str(DLQ_TOPIC))
    producer.send(b"no intent")
    for info in intents(4):
        producer.send(encode_deletion_message(info), properties={"RECONSUMETIMES": "11", "mine": "kept"})
    client.close()


def go(settings: Settings, wanted: LetterFilter, max_messages: int = 100) -> Redriven:
    return redrive_now(runs_cluster.Cluster(settings, Connections), "run-1", wanted, max_messages, lambda _: None)


def test_a_redrive_sends_what_is_wanted_and_leaves_the_rest(
    settings: Settings, queue: PulsarDeletionQueue, buried: None
) -> None:
    done = go(settings, LetterFilter(ledger_ids=frozenset({1, 3})))
    assert (done.looked, done.sent, done.failed, done.unparseable) == (5, 2, 0, 1)
    received = queue.receive(2, 60_000)
    assert sorted(one.info.ledger_id for one in received if one.info) == [1, 3]
    assert [one.properties for one in received] == [{"mine": "kept"}] * 2
    queue.acknowledge(received)
    with dead_letters.open_reader(runs_cluster.Cluster(settings, Connections)) as (_, reader):
        picture = dead_letters.take_picture(reader, runs_cluster.Cluster(settings, Connections))
    assert picture.found.count == 3
    assert [one.message.info and one.message.info.ledger_id for one in picture.letters] == [None, 0, 2]
    rows = journal_rows(FileJournal(settings.lake.path), run_id="run-1").to_pylist()
    assert [(row["phase"], row["outcome"], row["ledger_id"]) for row in rows] == [
        ("redrive", "sent", 1),
        ("redrive", "sent", 3),
    ]
    assert go(settings, LetterFilter(ledger_ids=frozenset({1, 3}))).sent == 0
    wait_for("the acknowledgements to arrive", lambda: queue.backlog() == 0)


def test_pause_and_a_foreign_lease_and_the_switch_refuse_it(
    settings: Settings, queue: PulsarDeletionQueue, buried: None
) -> None:
    off = settings.model_copy(
        update={"deletion": settings.deletion.model_copy(update={"topicTwoPhaseDeletionEnabled": False})}
    )
    with refused_by(RefusalCode.SWITCHED_OFF):
        go(off, LetterFilter())
    quick = settings.model_copy(update={"zookeeper": settings.zookeeper.model_copy(update={"session_timeout": 4.0})})
    with KazooStore(settings.zookeeper) as store:
        control.pause(store, "a test")
        try:
            with pytest.raises(Paused):
                go(settings, LetterFilter())
        finally:
            control.resume(store)
        lease = control.take_lease(store, "another run", SystemClock(), 0)
        try:
            with refused_by(RefusalCode.LEASE_HELD, "another run"):
                go(quick, LetterFilter())
        finally:
            control.release_lease(store, lease)
    assert queue.backlog() == 0
    assert go(settings, LetterFilter(), 2).sent == 2


def test_the_alarm_reports_each_dead_letter_once(config: str, queue: PulsarDeletionQueue, buried: None) -> None:
    defs = build_defs(config)
    sensor = defs.resolve_sensor_def("dead_letters")
    cursor: str | None = None
    reported: list[int] = []
    for _ in range(3):
        context = dg.build_sensor_context(
            cursor=cursor,
            repository_def=defs.get_repository_def(),
            resources={"lifecycle": LifecycleResource(config_file=config)},
        )
        result = sensor(context)
        assert isinstance(result, dg.SensorResult), result
        cursor = result.cursor
        shown = [event for event in result.asset_events if isinstance(event, dg.AssetMaterialization)]
        reported.append(sum(int(str(one.metadata["new"].value)) for one in shown))
        if shown:
            assert shown[0].metadata["dagster/row_count"].value == 5
    assert reported == [5, 0, 0]
