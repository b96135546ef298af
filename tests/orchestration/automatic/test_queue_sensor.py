"""The doorbell at deletion and retry topic: it rings for what is due, while nobody is at it, and takes nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path

import dagster as dg
import pytest
from dagster._core.events import EngineEventData
from dagster._daemon.monitoring.run_monitoring import check_run_timeout

from assets.names import CLUSTER
from orchestration.automatic.at_work import BY_ITSELF, DEAD_AFTER_SECONDS
from orchestration.automatic.doorbell import PAGE, TOPICS, TURN_LOOKS, Watch
from orchestration.definitions import build_defs
from pulsar_lifecycle.deletion_queue.queue_topics import RETRY_TOPIC
from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.formats.retry_letter import DELAY_TIME, LONGEST_DELAY
from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.gaps import Gap
from pulsar_lifecycle.values.referenced import Referenced
from tests.kit.builders import A_GAP
from tests.kit.faked_resource import faked_resource
from tests.kit.fakes.broker_admin import FakeBrokerAdmin
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.deletion_queue import FakeDeletionTopics, FakeQueueReader
from tests.kit.fakes.metadata_store import FakeStore, FakeZooKeeper
from tests.kit.settings import SETTINGS

NOW = 10_000_000_000
MINUTE = 60_000
JOB = "delete_pending"


class Bell:
    """Sensor ``automation`` over a queue in memory; ``ring`` is one tick, with the cursor of the last.

    ``topic``: where messages wait, if a test does not say.
    """

    def __init__(self, topic: Topic, folder: Path, instance: dg.DagsterInstance, more: str = "") -> None:
        self.topic, self.instance = topic, instance
        self.topics = FakeDeletionTopics(now_ms=NOW)
        self.reader = FakeQueueReader(self.topics)
        self.cursor: str | None = None
        self.lake = FileLake(str(folder / "lake"))
        file = folder / "lifecycle.toml"
        more = f"bookkeeper.shared_with = []\n{more}"
        file.write_text(SETTINGS.format(cluster="east", lake=folder / "lake") + more)
        self.zookeeper = FakeZooKeeper()
        self.store = self.zookeeper.session()
        for root in ("/ledgers", "/managed-ledgers"):
            self.store.create(root, b"")
        self.no_answer: Unavailable | None = None
        self.resource = faked_resource(
            str(file),
            stores=lambda *_, **__: self.opened(),
            admin=FakeBrokerAdmin,
            queue_reader=lambda: self.reader,
            clock=lambda: self,
        )
        self.defs = build_defs(str(file))

    def opened(self) -> FakeStore:
        """A session with the metadata store."""
        if self.no_answer:
            raise self.no_answer
        return self.zookeeper.session(read_only=True)

    def now_ms(self) -> int:
        """As ``ports.Clock``."""
        return self.topics.now_ms

    def wait(self, delay_ms: int | str, topic: Topic | None = None) -> int:
        """Publish a message that says it is delayed; returns its number."""
        self.topics.publish(b"x", {DELAY_TIME: str(delay_ms)} if delay_ms else {}, topic=topic or self.topic)
        return self.topics.last

    def pass_time(self, milliseconds: int) -> None:
        self.topics.now_ms += milliseconds

    def scan(self, cluster: str = "east", gaps: tuple[Gap, ...] = ()) -> None:
        """A scan that ended now."""
        now = self.topics.now_ms
        fingerprint = cluster_fingerprint(self.store, "/ledgers")
        epoch = Epoch(f"{cluster}-{now}", cluster, fingerprint, now, now, (), 1, 1, (), gaps=gaps)
        self.lake.store_epoch(epoch, Referenced(), Context(now=now, grace=1, namespaces=frozenset()))

    def ring(self) -> dg.SensorResult | dg.SkipReason:
        context = dg.build_sensor_context(
            instance=self.instance,
            cursor=self.cursor,
            repository_def=self.defs.get_repository_def(),
            resources={"lifecycle": self.resource},
        )
        result = self.defs.resolve_sensor_def("automation")(context)
        assert isinstance(result, dg.SensorResult | dg.SkipReason)
        if isinstance(result, dg.SensorResult):
            self.cursor = result.cursor
        return result

    def run_key(self) -> str:
        result = self.ring()
        assert isinstance(result, dg.SensorResult), result
        (request,) = result.run_requests or []
        assert request.run_key
        assert request.job_name == JOB
        return request.run_key

    def skipped(self) -> str:
        result = self.ring()
        if isinstance(result, dg.SkipReason):
            return result.skip_message or ""
        assert not result.run_requests, result
        assert result.skip_reason is not None
        return result.skip_reason.skip_message or ""


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture(params=TOPICS, ids=["deletion", "retry"])
def bell(request: pytest.FixtureRequest, tmp_path: Path, instance: dg.DagsterInstance) -> Bell:
    return Bell(request.param, tmp_path, instance)


@pytest.fixture
def retry_bell(tmp_path: Path, instance: dg.DagsterInstance) -> Bell:
    return Bell(RETRY_TOPIC, tmp_path, instance)


def test_an_empty_queue_rings_nothing_and_is_not_read(bell: Bell) -> None:
    assert "empty" in bell.skipped()
    assert bell.reader.pages == 0


def test_what_waits_in_both_topics_is_one_ring(bell: Bell) -> None:
    (other,) = set(TOPICS) - {bell.topic}
    bell.wait(0, other)
    bell.wait(5 * MINUTE)
    result = bell.ring()
    assert isinstance(result, dg.SensorResult)
    (request,) = result.run_requests or []
    assert request.tags == {}
    assert '"rung": 2' in (result.cursor or "").replace("\\", "")


def test_nothing_rings_where_the_settings_say_so(tmp_path: Path, instance: dg.DagsterInstance) -> None:
    bell = Bell(
        RETRY_TOPIC,
        tmp_path,
        instance,
        'automation.delete_pending = { window = { cron = "0 0 30 2 *", duration = "1h" } }\n',
    )
    bell.wait(0)
    assert "the window of automation.delete_pending is not open" in bell.skipped()


@pytest.mark.parametrize("delay", [0, "soon", "-5", "9" * 30])
def test_what_says_nothing_sensible_of_its_delay_is_due(bell: Bell, delay: int | str) -> None:
    bell.wait(delay)
    assert bell.run_key().startswith(JOB)


def test_a_delayed_message_rings_once_its_delay_has_passed(bell: Bell) -> None:
    bell.wait(10 * MINUTE)
    assert "none of 1" in bell.skipped()
    bell.pass_time(10 * MINUTE - 1)
    assert "none of 1" in bell.skipped()
    bell.pass_time(1)
    assert bell.run_key()
    assert len(bell.topics.waiting) == 1


def test_the_earliest_of_many_rings(bell: Bell) -> None:
    for minutes in (30, 5, 20):
        bell.wait(minutes * MINUTE)
    assert "none of 3" in bell.skipped()
    bell.wait(7 * MINUTE)
    assert "none of 4" in bell.skipped()
    bell.pass_time(5 * MINUTE)
    bell.run_key()


def test_a_message_that_was_done_before_it_was_due_rings_nothing(bell: Bell) -> None:
    first, _ = bell.wait(5 * MINUTE), bell.wait(60 * MINUTE)
    bell.skipped()
    del bell.topics.waiting[first]
    bell.pass_time(5 * MINUTE)
    assert "none of 1" in bell.skipped()


def test_a_forged_delay_is_not_believed_for_ever(bell: Bell) -> None:
    bell.wait("999999999")
    bell.skipped()
    bell.pass_time(LONGEST_DELAY)
    bell.run_key()


def test_more_than_one_page_is_read_over_several_ticks(bell: Bell) -> None:
    for _ in range(PAGE):
        bell.wait(60 * MINUTE)
    bell.wait(0)
    assert "none of" in bell.skipped()
    bell.run_key()


def test_what_is_known_is_not_read_again(bell: Bell) -> None:
    for _ in range(3):
        bell.wait(60 * MINUTE)
    bell.skipped()
    (known,) = Watch.parse(bell.cursor).parts.values()
    assert (known[0].entry_id, known[1]) == (3, NOW + 60 * MINUTE)


def test_the_cursor_stays_small(retry_bell: Bell) -> None:
    for minutes in range(400):
        retry_bell.wait((60 + minutes) * MINUTE)
        if minutes % 100 == 0:
            retry_bell.skipped()
    assert retry_bell.cursor is not None
    assert len(retry_bell.cursor) < 200


@pytest.mark.parametrize(
    "cursor", ["7", "nonsense", "[]", '{"parts": 3}', '{"parts": {"x": [1, 2]}, "rung": 1}', "null"]
)
def test_a_lost_or_foreign_cursor_only_reads_again(bell: Bell, cursor: str) -> None:
    bell.wait(5 * MINUTE)
    bell.skipped()
    bell.cursor = cursor
    assert "none of 1" in bell.skipped()
    bell.pass_time(5 * MINUTE)
    bell.cursor = cursor
    bell.run_key()


def test_nothing_rings_while_a_run_is_at_it(bell: Bell, instance: dg.DagsterInstance) -> None:
    bell.wait(0)
    started(instance, NOW)
    assert "a run is at it" in bell.skipped()


EAST = {CLUSTER: "east"}


def started(instance: dg.DagsterInstance, at: int, tags: Mapping[str, str] | None = None) -> str:
    """A run of ``delete_pending`` that Dagster saw start at a time (ms), and nothing of since."""
    starting = dg.DagsterRunStatus.STARTING
    run = instance.add_run(
        dg.DagsterRun("delete_pending", run_id="1" * 32, status=starting, tags={**EAST, **(tags or {})})
    )
    event = dg.DagsterEvent(dg.DagsterEventType.RUN_START.value, "delete_pending")
    instance.report_dagster_event(event, run.run_id, timestamp=at / 1000)
    return run.run_id


def long_started(bell: Bell, instance: dg.DagsterInstance, tags: Mapping[str, str] | None = None) -> str:
    """A run that has said nothing for days, while a message is due."""
    run_id = started(instance, NOW, tags)
    bell.wait(0)
    bell.pass_time(10 * DEAD_AFTER_SECONDS * 1000)
    return run_id


def status_of(instance: dg.DagsterInstance, run_id: str) -> dg.DagsterRunStatus:
    run = instance.get_run_by_id(run_id)
    assert run is not None
    return run.status


def test_a_run_that_died_with_its_host_is_ended_and_rung_after_some_hours(
    bell: Bell, instance: dg.DagsterInstance
) -> None:
    run_id = started(instance, NOW)
    bell.wait(0)
    bell.pass_time(DEAD_AFTER_SECONDS * 1000)
    assert "a run is at it" in bell.skipped()
    bell.pass_time(1)
    bell.run_key()
    assert status_of(instance, run_id) is dg.DagsterRunStatus.FAILURE


def test_a_run_that_still_reports_is_at_work(bell: Bell, instance: dg.DagsterInstance) -> None:
    """Without the lease: it scans, or counts what it did."""
    run_id = long_started(bell, instance)
    kind, said = dg.DagsterEventType.ENGINE_EVENT.value, EngineEventData()
    event = dg.DagsterEvent(kind, "delete_pending", message="50 of 100 tasks", event_specific_data=said)
    instance.report_dagster_event(event, run_id, timestamp=NOW / 1000 + 10 * DEAD_AFTER_SECONDS)
    assert "a run is at it" in bell.skipped()
    assert status_of(instance, run_id) is dg.DagsterRunStatus.STARTED


def test_another_clusters_run_is_left_alone(bell: Bell, instance: dg.DagsterInstance) -> None:
    run_id = long_started(bell, instance, {CLUSTER: "west"})
    bell.run_key()
    assert status_of(instance, run_id) is dg.DagsterRunStatus.STARTED


def test_a_long_run_that_has_the_lease_is_at_work(bell: Bell, instance: dg.DagsterInstance) -> None:
    run_id = long_started(bell, instance)
    control.take_lease(bell.store, "east run 1", FakeClock(), 0)
    assert "east run 1" in bell.skipped()
    assert status_of(instance, run_id) is dg.DagsterRunStatus.STARTED


def test_a_lease_that_cannot_be_read_is_held(bell: Bell, instance: dg.DagsterInstance) -> None:
    run_id = long_started(bell, instance)
    control.take_lease(bell.store, "east run 1", FakeClock(), 0)
    bell.zookeeper.unreadable.add(control.holder_of(control.LEASE))
    assert "another run is at it: who (no permission" in bell.skipped()
    assert status_of(instance, run_id) is dg.DagsterRunStatus.STARTED


def test_a_scan_that_died_with_its_host_is_ended_by_dagster_itself(tmp_path: Path, bell: Bell) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "dagster.yaml").write_text((Path(__file__).parents[3] / "dagster.yaml").read_text())
    tags = bell.defs.resolve_job_def("scan").run_tags
    with dg.DagsterInstance.from_config(str(home)) as instance:
        assert instance.run_monitoring_enabled
        run_id = started(instance, NOW, tags)
        (record,) = instance.get_run_records(dg.RunsFilter(run_ids=[run_id]))
        check_run_timeout(instance, record, logging.getLogger(), 0.0)
        assert status_of(instance, run_id) is dg.DagsterRunStatus.FAILURE


def test_sensors_of_a_cluster_that_does_not_answer_keep_no_other_cluster_waiting(tmp_path: Path) -> None:
    """One after the other, each look at such a cluster would hold up the automation and the alerts of all others."""
    (tmp_path / "dagster.yaml").write_text((Path(__file__).parents[3] / "dagster.yaml").read_text())
    with dg.DagsterInstance.from_config(str(tmp_path)) as instance:
        assert instance.get_sensor_settings()["use_threads"]


def test_another_job_is_no_reason_to_wait(bell: Bell, instance: dg.DagsterInstance) -> None:
    bell.wait(0)
    instance.add_run(dg.DagsterRun("scan", run_id="1" * 32, status=dg.DagsterRunStatus.STARTED))
    bell.run_key()


def test_brokers_that_do_not_answer_are_a_reason_not_a_failure(bell: Bell) -> None:
    bell.reader.failure = Unavailable("GET http://broker: 503")
    assert "503" in bell.skipped()


def test_a_partition_that_cannot_be_read_hides_no_other(bell: Bell) -> None:
    bell.reader.mute[Topic(bell.topic.namespace, f"{bell.topic.local}-partition-9")] = Unavailable("read: Timeout")
    assert "read: Timeout" in bell.skipped()
    bell.wait(5 * MINUTE)
    assert "read: Timeout" in bell.skipped()
    bell.pass_time(5 * MINUTE)
    assert bell.run_key().startswith(JOB)


def test_a_queue_that_does_not_move_rings_less_often(bell: Bell) -> None:
    bell.wait(0)
    bell.topics.now_ms = 0
    keys = set()
    for minute in range(0, 60, 5):
        bell.topics.now_ms = NOW + minute * MINUTE
        keys.add(bell.run_key())
    assert len(keys) <= 5
    moving = set()
    for minute in range(60, 120, 5):
        bell.topics.now_ms = NOW + minute * MINUTE
        bell.wait(0)
        moving.add(bell.run_key())
    assert len(moving) == 12


def test_a_paused_cluster_is_not_rung_until_it_is_resumed(bell: Bell) -> None:
    bell.wait(0)
    control.pause(bell.store, "by hand")
    assert "paused" in bell.skipped()
    bell.pass_time(60 * MINUTE)
    assert "paused" in bell.skipped()
    control.resume(bell.store)
    assert bell.run_key().startswith(JOB)


def test_nothing_rings_where_the_metadata_store_does_not_answer(bell: Bell) -> None:
    bell.wait(0)
    bell.no_answer = Unavailable("no session")
    assert "no session" in bell.skipped()


def test_nothing_rings_while_another_run_has_the_lease(bell: Bell) -> None:
    bell.wait(0)
    lease = control.take_lease(bell.store, "east undo 4711", FakeClock(), 0)
    assert "east undo 4711" in bell.skipped()
    control.release_lease(bell.store, lease)
    assert bell.run_key().startswith(JOB)


def test_nothing_rings_before_a_scan_is_old_enough_to_confirm_another(bell: Bell) -> None:
    bell.wait(0)
    bell.scan()
    bell.pass_time(20 * MINUTE)
    bell.scan()
    assert "too young to confirm another: nothing can be deleted for 85200 s" in bell.skipped()
    bell.pass_time(24 * 60 * MINUTE - 20 * MINUTE - 1)
    assert "too young" in bell.skipped()
    bell.pass_time(1)
    assert bell.run_key().startswith(JOB)


def test_without_a_scan_that_counts_a_run_is_to_make_it(bell: Bell) -> None:
    bell.scan("west")
    bell.scan("east", (A_GAP,))
    bell.wait(0)
    assert bell.run_key().startswith(JOB)


def test_what_goes_by_itself_has_its_turn_after_a_deletion_run(bell: Bell, instance: dg.DagsterInstance) -> None:
    bell.wait(0)
    run_id = started(instance, NOW)
    run = instance.get_run_by_id(run_id)
    assert run is not None
    instance.report_run_failed(run, "test")
    (record,) = instance.get_run_records(dg.RunsFilter(run_ids=[run_id]))
    assert record.end_time is not None
    bell.topics.now_ms = int(record.end_time * 1000) + 1_000
    assert "has its turn" in bell.skipped()
    bell.pass_time(TURN_LOOKS * MINUTE)
    bell.run_key()


def test_nothing_rings_while_a_run_that_goes_by_itself_waits(bell: Bell, instance: dg.DagsterInstance) -> None:
    """One that a person launched may wait for the deletion run."""
    bell.wait(0)
    by_hand = dg.DagsterRun("delete_records", status=dg.DagsterRunStatus.STARTING, tags=EAST)
    offload = dg.DagsterRun("offload", status=dg.DagsterRunStatus.STARTING, tags={**EAST, BY_ITSELF: "offload"})
    for run in (by_hand, offload):
        instance.add_run(run)
    bell.run_key()
    instance.add_run(
        dg.DagsterRun("apply_plan", status=dg.DagsterRunStatus.STARTING, tags={**EAST, BY_ITSELF: "orphans"})
    )
    assert "apply_plan has its turn" in bell.skipped()
