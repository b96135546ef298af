"""The doorbell at the deletion queue: it rings while intents wait and nobody is at them, and takes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import dagster as dg
import pytest

from orchestration import schedules
from orchestration.definitions import build_defs
from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.io.queue import DELETION_TOPIC, RETRY_TOPIC, SUBSCRIPTION
from pulsar_lifecycle.model import Topic
from resources.lifecycle import LifecycleResource
from tests.assets.test_definitions import SETTINGS
from tests.fakes.broker_admin import FakeBrokerAdmin


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeBrokerAdmin:
    """A cluster whose queue exists and is empty."""
    fake = FakeBrokerAdmin()
    for topic in (DELETION_TOPIC, RETRY_TOPIC):
        fake.create_partitioned_topic(topic, 2)
        for number in range(2):
            fake.create_subscription(_partition(topic, number), SUBSCRIPTION)
    monkeypatch.setattr(schedules, "HttpBrokerAdmin", lambda settings: fake)
    return fake


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


def _partition(topic: Topic, number: int) -> Topic:
    return Topic(topic.namespace, f"{topic.local}-partition-{number}")


def ring(tmp_path: Path, instance: dg.DagsterInstance, cursor: str | None = None) -> dg.SensorResult | dg.SkipReason:
    file = tmp_path / "lifecycle.toml"
    file.write_text(SETTINGS.format(cluster="east", lake=tmp_path / "lake"))
    defs = build_defs(str(file))
    sensor = defs.resolve_sensor_def("deletion_queue")
    context = dg.build_sensor_context(
        instance=instance,
        cursor=cursor,
        repository_def=defs.get_repository_def(),
        resources={"lifecycle": LifecycleResource(config_file=str(file))},
    )
    result = sensor(context)
    assert isinstance(result, dg.SensorResult | dg.SkipReason)
    return result


def skipped(result: dg.SensorResult | dg.SkipReason) -> str:
    assert isinstance(result, dg.SkipReason), result
    return result.skip_message or ""


def test_an_empty_queue_rings_nothing(tmp_path: Path, instance: dg.DagsterInstance, admin: FakeBrokerAdmin) -> None:
    assert "empty" in skipped(ring(tmp_path, instance))


def test_a_queue_that_was_never_used_is_empty(
    tmp_path: Path, instance: dg.DagsterInstance, admin: FakeBrokerAdmin
) -> None:
    admin.topics.clear()
    admin.partition_counts.clear()
    assert "empty" in skipped(ring(tmp_path, instance))


@pytest.mark.parametrize("topic", [DELETION_TOPIC, RETRY_TOPIC], ids=["main", "retry"])
def test_waiting_intents_ring(
    tmp_path: Path, instance: dg.DagsterInstance, admin: FakeBrokerAdmin, topic: Topic
) -> None:
    admin.topics[_partition(topic, 1)][SUBSCRIPTION].backlog = 7
    result = ring(tmp_path, instance)
    assert isinstance(result, dg.SensorResult)
    (request,) = result.run_requests or ()
    assert request.run_key
    assert request.tags["lifecycle/waiting"] == "7"
    assert admin.topics[_partition(topic, 1)][SUBSCRIPTION].backlog == 7


def test_nothing_rings_while_a_run_is_at_it(
    tmp_path: Path, instance: dg.DagsterInstance, admin: FakeBrokerAdmin
) -> None:
    admin.topics[_partition(DELETION_TOPIC, 0)][SUBSCRIPTION].backlog = 7
    instance.add_run(dg.DagsterRun("delete_pending", run_id="1" * 32, status=dg.DagsterRunStatus.STARTED))
    assert "a run is at it" in skipped(ring(tmp_path, instance))


def test_another_job_is_no_reason_to_wait(tmp_path: Path, instance: dg.DagsterInstance, admin: FakeBrokerAdmin) -> None:
    admin.topics[_partition(DELETION_TOPIC, 0)][SUBSCRIPTION].backlog = 7
    instance.add_run(dg.DagsterRun("scan", run_id="1" * 32, status=dg.DagsterRunStatus.STARTED))
    assert isinstance(ring(tmp_path, instance), dg.SensorResult)


def test_brokers_that_do_not_answer_are_a_reason_not_a_failure(
    tmp_path: Path, instance: dg.DagsterInstance, admin: FakeBrokerAdmin
) -> None:
    admin.failure = Unavailable("GET http://broker: 503")
    assert "503" in skipped(ring(tmp_path, instance))


def test_a_queue_that_does_not_move_rings_less_often(
    tmp_path: Path, instance: dg.DagsterInstance, admin: FakeBrokerAdmin, monkeypatch: pytest.MonkeyPatch
) -> None:
    admin.topics[_partition(DELETION_TOPIC, 0)][SUBSCRIPTION].backlog = 3

    def keys(cursor: str) -> set[str | None]:
        found: set[str | None] = set()
        for minute in range(0, 60, 5):
            monkeypatch.setattr(schedules.SystemClock, "now_ms", lambda _, at=minute * 60_000: at)
            result = ring(tmp_path, instance, cursor)
            assert isinstance(result, dg.SensorResult)
            assert result.run_requests is not None
            found.add(result.run_requests[0].run_key)
        return found

    assert len(keys("7")) == 12
    assert len(keys("3")) == 3
