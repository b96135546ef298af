"""The asset of the dead letters, its check, its alarm and the redrive job's dry run, over a queue in memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from orchestration.automatic.schedules import PAGE
from orchestration.definitions import build_defs
from pulsar_lifecycle.deletion_queue.missing_topics import create_missing
from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, DLQ_TOPIC, RETRY_TOPIC, topics_of
from pulsar_lifecycle.errors import Unavailable
from pulsar_lifecycle.formats.deletion_message import encode_deletion_message
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.values.codes import Code
from tests.kit.builders import BILLS, intent
from tests.kit.crash import Watched
from tests.kit.faked_resource import faked_resource
from tests.kit.fakes.broker_admin import FakeBrokerAdmin
from tests.kit.fakes.deletion_queue import FakeDeadLetterQueue, FakeDeletionTopics, FakeQueueReader
from tests.kit.settings import SETTINGS
from tests.kit.simulated.cluster import SimulatedCluster

NOW = 1_700_000_000_000
HOUR = 3_600_000
KEY = dg.AssetKey(["east", "dead_letters"])


class Scene:
    """A cluster's dead letters and the code location that watches them."""

    def __init__(self, folder: Path) -> None:
        self.topics = FakeDeletionTopics(now_ms=NOW)
        self.admin = FakeBrokerAdmin()
        create_missing(self.admin, 1)
        self.reader = FakeQueueReader(self.topics)
        self.cursor: str | None = None
        self.lake = folder / "lake"
        self.servers = SimulatedCluster()
        self.letters = FakeDeadLetterQueue(self.topics)
        self.journal_steps: list[str] = []
        file = folder / "lifecycle.toml"
        file.write_text(SETTINGS.format(cluster="east", lake=self.lake))
        self.resource = faked_resource(
            str(file),
            stores=lambda *_, read_only=True, **__: self.servers.open_store(read_only=read_only),
            admin=lambda: self.admin,
            queue_reader=lambda: self.reader,
            dead_letters=lambda: self.letters,
            journal_reader=lambda: Watched(FileJournal(str(self.lake)), self.journal_steps.append),
            clock=lambda: self,
        )
        self.defs = build_defs(str(file))

    def now_ms(self) -> int:
        """As ``ports.Clock``."""
        return self.topics.now_ms

    def bury(self, ledger_id: int, topic: str = BILLS, code: str = "") -> None:
        self.topics.publish(encode_deletion_message(intent(ledger_id, topic)), {"RECONSUMETIMES": "11"}, 0, DLQ_TOPIC)
        if code:
            row = JournalRow(
                run_id="run-0",
                cluster="east",
                plan_id="",
                ledger_id=ledger_id,
                component="Managed-Ledger",
                topic=topic,
                action="delete-ledger",
                phase="delete",
                outcome="dead-lettered",
                reason=f"because of {code}",
                bytes=0,
                checksum="",
                detail="{}",
                at=self.topics.now_ms,
                code=code,
            )
            FileJournal(str(self.lake)).record([row])

    def tick(self) -> tuple[dict[str, Any] | None, dg.AssetCheckEvaluation | None]:
        """One tick of the alarm: metadata of the materialization and the check's evaluation, if it reported."""
        context = dg.build_sensor_context(
            cursor=self.cursor,
            repository_def=self.defs.get_repository_def(),
            resources={"lifecycle": self.resource},
        )
        result = self.defs.resolve_sensor_def("dead_letters")(context)
        if isinstance(result, dg.SkipReason):
            return None, None
        assert isinstance(result, dg.SensorResult)
        assert not result.run_requests
        self.cursor = result.cursor
        if not result.asset_events:
            return None, None
        shown, check = result.asset_events
        assert isinstance(shown, dg.AssetMaterialization)
        assert isinstance(check, dg.AssetCheckEvaluation)
        assert shown.asset_key == check.asset_key == KEY
        with dg.DagsterInstance.ephemeral() as instance:
            for event in result.asset_events:
                instance.report_runless_asset_event(event)
        return plain(shown.metadata), check


def plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata as plain values; a table is a list of its rows."""
    return {
        name: [record.data for record in value.records] if isinstance(value, dg.TableMetadataValue) else value.value
        for name, value in metadata.items()
    }


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    return Scene(tmp_path)


def new_ids(shown: dict[str, Any] | None) -> list[int]:
    assert shown is not None
    return [row["ledger_id"] for row in shown["new dead letters"]]


def materialized(scene: Scene) -> tuple[dict[str, Any], Any]:
    (asset,) = [a for a in scene.defs.assets or () if isinstance(a, dg.AssetsDefinition) and KEY in a.keys]
    result = dg.materialize([asset], resources={"lifecycle": scene.resource})
    (event,) = result.asset_materializations_for_node("east__dead_letters")
    (check,) = result.get_asset_check_evaluations()
    return plain(event.metadata), check


def test_the_asset_says_how_many_why_and_since_when(scene: Scene) -> None:
    scene.bury(1, code=Code.CHANGED_MEANWHILE)
    scene.topics.now_ms += 3 * HOUR
    scene.bury(2, code=Code.OBJECTS_UNREAD)
    scene.bury(3, "persistent://acme/orders/placed", code=Code.OBJECTS_UNREAD)
    scene.topics.publish(b"\xff not json", {}, 0, DLQ_TOPIC)
    shown, check = materialized(scene)
    assert shown["dagster/row_count"] == 4
    assert shown["age of the oldest (h)"] == 3.0
    assert shown["oldest"].startswith("2023-11-14T22:13:20")
    assert "| objects_unread | 2 | because of objects_unread |" in shown["by code"]
    assert "| changed_meanwhile | 1 |" in shown["by code"]
    assert "| persistent://acme/bills/sent | 2 |" in shown["by topic"]
    rows = shown["sample"]
    assert [row["ledger_id"] for row in rows] == [1, 2, 3, -1]
    assert rows[0]["retries"] == 10
    assert "not json" in rows[3]["message"]
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert len(scene.topics.dead_letters) == 4


def test_without_dead_letters_the_check_passes(scene: Scene) -> None:
    shown, check = materialized(scene)
    assert (shown["dagster/row_count"], shown["oldest"], check.passed) == (0, "none", True)


def test_a_topic_without_subscription_is_an_error_and_the_asset_only_says_so(scene: Scene) -> None:
    scene.topics.subscribed.discard(DLQ_TOPIC)
    shown, check = materialized(scene)
    assert shown["without subscription"] == str(DLQ_TOPIC)
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)


def test_every_dead_letter_is_reported_once(scene: Scene) -> None:
    assert scene.tick() == (None, None)
    scene.bury(1)
    scene.bury(2)
    shown, check = scene.tick()
    assert new_ids(shown) == [1, 2]
    assert check is not None
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert scene.tick() == (None, None)
    scene.bury(3)
    shown, _ = scene.tick()
    assert new_ids(shown) == [3]
    assert shown is not None
    assert shown["dagster/row_count"] == 3
    assert len(scene.topics.dead_letters) == 3


def test_the_journal_is_read_once_and_only_for_what_is_reported(scene: Scene) -> None:
    scene.bury(1, code=Code.CHANGED_MEANWHILE)
    shown, _ = scene.tick()
    assert shown is not None
    assert shown["sample"] == shown["new dead letters"]
    assert shown["sample"][0]["code"] == Code.CHANGED_MEANWHILE
    read = scene.journal_steps.copy()
    assert read.count("before find") == 1
    assert scene.tick() == (None, None)
    assert scene.journal_steps == read


def test_a_burst_is_reported_whole_over_several_ticks(scene: Scene) -> None:
    for number in range(PAGE + 20):
        scene.bury(number)
    counts = []
    for _ in range(3):
        shown, _ = scene.tick()
        counts.append(shown["new"] if shown else 0)
    assert counts == [PAGE, 20, 0]


def test_once_they_are_gone_the_check_passes_again(scene: Scene) -> None:
    scene.bury(1)
    scene.tick()
    scene.topics.dead_letters.clear()
    shown, check = scene.tick()
    assert shown is not None
    assert check is not None
    assert (shown["new"], shown["dagster/row_count"], check.passed) == (0, 0, True)
    assert scene.tick() == (None, None)


LOST = [None, "", "nonsense", "[1]", '{"upto": 7}', '{"upto": {"x": 3}, "count": 1}', '{"upto": {}, "count": "x"}']


@pytest.mark.parametrize("cursor", LOST)
def test_a_lost_cursor_repeats_what_still_waits_once_and_misses_nothing(scene: Scene, cursor: str | None) -> None:
    scene.bury(1)
    scene.tick()
    scene.bury(2)
    scene.cursor = cursor
    shown, _ = scene.tick()
    assert new_ids(shown) == [1, 2]
    assert scene.tick() == (None, None)


def test_a_tick_that_was_not_stored_is_repeated(scene: Scene) -> None:
    scene.bury(1)
    scene.tick()
    before = scene.cursor
    scene.bury(2)
    first, _ = scene.tick()
    scene.cursor = before
    again, _ = scene.tick()
    assert new_ids(first) == new_ids(again) == [2]


def test_brokers_that_do_not_answer_change_nothing(scene: Scene) -> None:
    scene.bury(1)
    scene.reader.failure = Unavailable("GET http://broker: 503")
    assert scene.tick() == (None, None)
    assert scene.cursor is None
    scene.reader.failure = None
    assert new_ids(scene.tick()[0]) == [1]


@pytest.mark.parametrize("published", [0, 2**62, 2**64 - 1])
def test_a_publish_time_may_be_anything(scene: Scene, published: int) -> None:
    scene.bury(1, code=Code.CHANGED_MEANWHILE)
    (number,) = scene.topics.dead_letters
    scene.topics.dead_letters[number] = (published, *scene.topics.dead_letters[number][1:])
    shown, _ = materialized(scene)
    year = {0: "1970"}.get(published, "9999")
    assert shown["oldest"].startswith(year)
    assert [row["since"][:4] for row in shown["sample"]] == [year]
    assert shown["age of the oldest (h)"] >= 0
    assert "| changed_meanwhile | 1 |" in shown["by code"]
    assert new_ids(scene.tick()[0]) == [1]


def test_a_partition_that_cannot_be_read_hides_no_other(scene: Scene) -> None:
    mute = Topic(DLQ_TOPIC.namespace, f"{DLQ_TOPIC.local}-partition-0")
    scene.reader.mute[mute] = Unavailable("read: Timeout")
    scene.bury(1)
    shown, check = scene.tick()
    assert new_ids(shown) == [1]
    assert shown is not None
    assert check is not None
    assert (shown["dagster/row_count"], shown["could not be read"]) == (2, "read: Timeout")
    assert not check.passed
    assert "read: Timeout" in (check.description or "")
    assert scene.tick() == (None, None)
    assert materialized(scene)[0]["dagster/row_count"] == 2
    del scene.reader.mute[mute]
    scene.bury(2)
    assert new_ids(scene.tick()[0]) == [2]


@pytest.mark.parametrize("topic", [DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC], ids=["main", "retry", "dlq"])
def test_a_lost_subscription_is_made_again_and_alarms(scene: Scene, topic: Any) -> None:
    scene.tick()
    (part,) = topics_of(scene.admin, topic)
    scene.admin.topics[part].clear()
    scene.admin.create_subscription(part, "__compaction")
    shown, check = scene.tick()
    assert sorted(scene.admin.subscriptions(part)) == ["__compaction", "ledger-deletion"]
    assert shown is not None
    assert check is not None
    assert shown["subscriptions made again"] == str(part)
    assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)


def test_a_cluster_that_never_used_the_queue_gets_no_topics(scene: Scene) -> None:
    scene.admin.topics.clear()
    scene.admin.partition_counts.clear()
    scene.tick()
    assert scene.admin.topics == {}


def run_redrive(scene: Scene, **config: Any) -> dict[str, Any]:
    job = scene.defs.resolve_job_def("redrive_dead_letters")
    result = job.execute_in_process(
        run_config={"ops": {"redrive": {"config": config}}}, resources={"lifecycle": scene.resource}
    )
    (metadata,) = [
        event.step_output_data.metadata for event in result.all_events if event.event_type_value == "STEP_OUTPUT"
    ]
    return plain(metadata)


def test_a_redrive_is_a_dry_run_by_default(scene: Scene) -> None:
    scene.bury(1)
    scene.bury(2, "persistent://acme/orders/placed")
    shown = run_redrive(scene, namespaces=["acme/orders"])
    assert shown["would send"] == 1
    assert [row["ledger_id"] for row in shown["would be sent"]] == [2]
    assert (len(scene.topics.dead_letters), scene.topics.waiting) == (2, {})


def test_a_redrive_does_what_its_configuration_says(scene: Scene) -> None:
    for _ in range(8):
        scene.bury(4, code="twin")
    scene.bury(4, "persistent://acme/orders/placed")
    scene.bury(5)
    scene.topics.publish(b"\xff not json", {}, 0, DLQ_TOPIC)
    shown = run_redrive(scene, dry_run=False, ledger_ids=[4], topics=[BILLS], code=" twin ", max_messages=7)
    assert (shown["sent"], len(scene.topics.waiting), len(scene.topics.dead_letters)) == (7, 7, 4)


def test_a_redrive_that_failed_fails_its_run(scene: Scene) -> None:
    scene.bury(1)
    scene.letters.refused.add(1)
    with pytest.raises(dg.Failure, match="refused by the test"):
        run_redrive(scene, dry_run=False)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"topics": ["acme/orders/placed"]}, "topics: "),
        ({"namespaces": ["acme"]}, "namespaces: "),
        ({"namespaces": ["persistent://acme/orders"]}, "namespaces: "),
        ({"ledger_ids": [-1]}, "ledger_ids: -1 is no ledger id"),
    ],
)
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_redrive_refuses_names_that_are_none(scene: Scene, config: dict[str, Any], why: str, dry_run: bool) -> None:
    with pytest.raises(dg.Failure, match=why):
        run_redrive(scene, dry_run=dry_run, **config)


def test_a_redrive_that_wants_none_of_what_waits_fails(scene: Scene) -> None:
    assert run_redrive(scene, dry_run=False)["sent"] == 0
    scene.bury(1)
    scene.bury(2)
    scene.topics.publish(b"\xff not json", {}, 0, DLQ_TOPIC)
    with pytest.raises(dg.Failure, match="nothing was sent: of 3 dead letters 1 cannot be parsed"):
        run_redrive(scene, dry_run=False, namespaces=["acme/gone"])
