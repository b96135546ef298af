"""``queue status`` where no deletion run begins: as nothing can be journalled, or none does by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, DLQ_TOPIC, RETRY_TOPIC, SUBSCRIPTION
from pulsar_lifecycle.formats.deletion_message import encode_deletion_message
from pulsar_lifecycle.io.lake.journal import PROBE
from pulsar_lifecycle.settings import load_settings
from tests.kit.builders import intents
from tests.kit.command import command_over
from tests.kit.fakes.broker_admin import FakeBrokerAdmin
from tests.kit.fakes.deletion_queue import FakeDeletionTopics, FakeQueueReader
from tests.kit.simulated.cluster import SimulatedCluster


def test_a_lake_that_cannot_be_written_needs_an_operator(
    settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = SimulatedCluster()
    lake = Path(load_settings(settings_file).lake.path)
    run = command_over(
        stores=lambda *_, **__: cluster.open_store(), admin=lambda: cluster.admin, queue_reader=lambda: None
    )
    assert run("queue", "status") == 0
    assert not lake.exists()
    probe = lake / "journal" / PROBE
    probe.mkdir(parents=True)  # whoever runs tests may be root, who may write everything
    capsys.readouterr()
    assert run("queue", "status") == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "so no run would begin" in said
    assert str(probe) in said.replace(" ", "")


@pytest.mark.parametrize("begins", [True, False])
def test_what_is_due_says_who_has_to_run_the_job(
    begins: bool, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with settings_file.open("a") as file:
        file.write(f"automation.delete_pending = {str(begins).lower()}\n")
    admin, topics, cluster = FakeBrokerAdmin(), FakeDeletionTopics(), SimulatedCluster()
    for topic in (DELETION_TOPIC, RETRY_TOPIC):
        admin.create_partitioned_topic(topic, 1)
    admin.create_topic(DLQ_TOPIC)
    for topic in list(admin.topics):
        admin.create_subscription(topic, SUBSCRIPTION)
    reader = FakeQueueReader(topics)
    run = command_over(stores=lambda *_, **__: cluster.open_store(), admin=lambda: admin, queue_reader=lambda: reader)
    told = "run job delete_pending: automation.delete_pending is false"
    assert run("queue", "status") == 0
    assert told not in capsys.readouterr().out
    for info in intents(1):
        topics.publish(encode_deletion_message(info), {}, 0, DELETION_TOPIC)
    (first,) = reader.partitions(DELETION_TOPIC)
    admin.topics[first][SUBSCRIPTION].backlog = 1
    run("queue", "status")
    said = " ".join(capsys.readouterr().out.split())
    assert "1 due" in said
    assert (told in said) is not begins
