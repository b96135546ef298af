"""Deleting whole topics over the fakes: messages first, then the broker is asked."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest

from pulsar_lifecycle.errors import (
    NotFound,
    OutcomeUnknown,
)
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.deletion_message import LedgerComponent, LedgerType, decode_deletion_message
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.metastore.topics import SHADOW_SOURCE
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.trimming import delete_topic as trimming_delete_topic
from pulsar_lifecycle.trimming import trim as trimming_trim
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.trimming.trim_rules import Stays
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.topic_scene import OTHER, TOPIC, outcomes
from tests.kit.scenes.trim_scene import CONTEXT, entry, killed
from tests.kit.scenes.trim_scene import TrimScene as Scene
from tests.kit.simulated.cluster import bucket_tags, compacted_tags, cursor_tags, data_tags


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_topic_that_lists_other_ledgers_once_its_messages_are_sent_is_not_deleted(scene: Scene) -> None:
    queue = scene.queue
    send = queue.send

    def rolled_over(messages: Any, delay: int) -> Any:
        scene.ids.append(scene.cluster.ledger(data_tags(TOPIC)))
        scene.cluster.topic(TOPIC, scene.ids)
        return send(messages, delay)

    queue.send = rolled_over  # type: ignore[method-assign]
    found = scene.delete_topic(force=True)
    assert found[-1].why.code is Code.CHANGED_MEANWHILE
    assert scene.listed == scene.ids


def test_a_topic_that_is_written_during_the_last_look_at_all_shadow_topics_is_not_deleted(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where topics are many, that look takes minutes."""
    look, looks = snapshot.shadow_sources, list[int]()

    def written(*given: Any) -> snapshot.ShadowSources:
        looks.append(len(scene.sent))
        if scene.sent:
            scene.load()
        return look(*given)

    monkeypatch.setattr(snapshot, "shadow_sources", written)
    before = list(scene.ids)
    found = scene.delete_topic(force=True)
    assert looks == [0, len(before)]
    assert found[-1].why.code is Code.CHANGED_MEANWHILE
    assert scene.listed == scene.ids != before


def test_only_what_was_counted_against_the_caps_leaves_a_list(scene: Scene) -> None:
    """A cursor stood in the way when the caps were checked, and has moved on since."""
    first, second, third = scene.ids[:3]
    order = TrimOrder(TOPIC, up_to=third, counted=frozenset({first}))
    found = scene.act(lambda run, ports, guard: trimming_trim.trim_topics(run, ports, guard, [order]))
    assert outcomes(found) == {first: Outcome.REMOVED, second: Outcome.REFUSED, third: Outcome.REFUSED}
    assert found[second].why.code is Stays.NOT_COUNTED
    assert scene.listed == scene.ids[1:]


def test_a_topic_that_was_not_counted_against_the_caps_is_not_deleted(scene: Scene) -> None:
    scene.cluster.load(TOPIC)
    for counted in ((), scene.ids[:-1]):
        (whole,) = scene.act(
            lambda *given, counted=counted: trimming_delete_topic.delete_topic(*given, TOPIC, True, counted)
        ).values()
        assert whole.outcome == Outcome.REFUSED
        assert whole.why.code is Stays.NOT_COUNTED
    assert (scene.sent, scene.listed) == ([], scene.ids)
    scene.act(lambda *given: trimming_delete_topic.delete_topic(*given, TOPIC, True, scene.ids))
    assert [ledger for ledger, _ in scene.sent] == scene.ids


def test_what_is_only_offloaded_or_has_no_tags_weighs_in_the_plan_to_delete_its_topic(scene: Scene) -> None:
    """The broker deletes both with the topic, so the caps have to see them."""
    offloaded, untagged = scene.ids[0], scene.cluster.ledger(None)
    scene.ids.append(untagged)
    offload = OffloadContext(UUID(int=9), True, True, 1, "aws-s3", {"bucket": "b"})
    scene.cluster.topic(TOPIC, scene.ids, offloaded={offloaded: offload})
    scene.cluster.remove(scene.cluster.path(offloaded))
    data = scene.cluster.zookeeper.data(scene.path)
    sizes = {item.ledger_id: item.size for item in managed_ledger.decode(data).ledgers}
    planned = {
        one.ledger_id: one for one in trimming_delete_topic.plan_topic_deletion(scene.run(), scene.ports(), TOPIC)
    }
    assert outcomes(planned) == dict.fromkeys([-1, *scene.ids], Outcome.GOES)
    assert [planned[i].bytes for i in (offloaded, untagged)] == [sizes[offloaded], sizes[untagged]]
    assert sizes[offloaded]


@dataclass
class Everything:
    """A topic with a ledger of every component that goes with it."""

    scene: Scene
    cursor: int = 0
    compacted: int = 0
    bucket: int = 0
    compaction: int = 0

    def __post_init__(self) -> None:
        cluster = self.scene.cluster
        self.cursor = cluster.ledger(cursor_tags(TOPIC, "a+b"), entries=[entry(Position(1, 0))])
        self.compacted = cluster.ledger(compacted_tags(TOPIC))
        self.bucket = cluster.ledger(bucket_tags(TOPIC, "a+b", 1, 2))
        position = cluster.position_entry(self.compacted)
        self.compaction = cluster.ledger(cursor_tags(TOPIC, "__compaction"), entries=[position])
        cluster.cursor(TOPIC, "a+b", ledger=self.cursor, buckets={(1, 2): self.bucket})
        cluster.cursor(TOPIC, "__compaction", ledger=self.compaction)
        cluster.admin.topics[TOPIC] = {}
        cluster.admin.on_delete = lambda topic: cluster.remove(cluster.topic_path(topic))

    @property
    def components(self) -> dict[int, LedgerComponent]:
        return {
            **dict.fromkeys(self.scene.ids, LedgerComponent.MANAGED_LEDGER),
            self.cursor: LedgerComponent.MANAGED_CURSOR,
            self.compaction: LedgerComponent.MANAGED_CURSOR,
            self.compacted: LedgerComponent.COMPACTED_LEDGER,
            self.bucket: LedgerComponent.DELAYED_INDEX_BUCKET,
        }


@pytest.fixture
def everything(scene: Scene) -> Everything:
    return Everything(scene)


def test_a_whole_topic_sends_for_every_ledger_then_goes(everything: Everything) -> None:
    scene = everything.scene
    found = scene.delete_topic()
    assert outcomes(found) == dict.fromkeys([*everything.components, -1], Outcome.REMOVED)
    raws = [raw for _, _, raw, _ in scene.cluster.deletion_topics.waiting.values()]
    assert {i.ledger_id: i.component for i in map(decode_deletion_message, raws)} == everything.components
    assert scene.cluster.zookeeper.stat(scene.path) is None
    assert set(scene.rows[Outcome.MARKED]) == set(scene.rows[Outcome.REMOVED]) == set(everything.components)
    assert {row.code for row in scene.journalled("send")} == {Code.PLANNED}


def test_the_marks_of_a_whole_topic_name_the_offloaded_copies(scene: Scene) -> None:
    offload = OffloadContext(UUID(int=9), True, False, 1, "aws-s3", {"bucket": "b"})
    scene.cluster.topic(TOPIC, scene.ids, offloaded={scene.ids[0]: offload})
    scene.delete_topic()
    said = {row.ledger_id: json.loads(row.detail)["uuid"] for row in scene.journalled("mark")}
    assert said == dict.fromkeys(scene.ids, "") | {scene.ids[0]: str(UUID(int=9))}


def test_a_topic_that_the_broker_refuses_stays_and_says_why(everything: Everything) -> None:
    scene = everything.scene
    scene.cluster.admin.connected.add(TOPIC)
    found = scene.delete_topic()
    assert found[-1].outcome == Outcome.FAILED
    assert found[-1].why.code is Code.TOPIC_STAYS
    assert set(scene.rows[Outcome.LEFT]) == set(everything.components)
    assert outcomes(scene.delete_topic(force=True))[-1] == Outcome.REMOVED


def test_a_broker_that_fails_half_way_is_said_to_have_deleted_what_is_gone(everything: Everything) -> None:
    scene = everything.scene

    def half(topic: Topic) -> None:
        for ledger_id in scene.ids[:4]:
            scene.cluster.remove(scene.cluster.path(ledger_id))
        raise OutcomeUnknown("500: no offloader")

    scene.cluster.admin.on_delete = half
    found = scene.delete_topic()
    assert Outcome.LEFT not in scene.rows
    stays = set(everything.components) - set(scene.ids[:4])
    codes = dict.fromkeys(scene.ids[:4], Code.BROKER_DELETED) | dict.fromkeys([*stays, -1], Code.OUTCOME_UNKNOWN)
    assert {i: one.why.code for i, one in found.items()} == codes
    assert found[-1].outcome == Outcome.FAILED
    assert f"the broker deleted 4 of its {len(everything.components)} ledgers" in found[-1].reason
    assert "500: no offloader" in found[-1].reason
    last = {row.ledger_id: (row.code, row.reason) for row in scene.journalled("mark")}
    assert last == {i: (one.why.code, one.reason) for i, one in found.items() if i >= 0}


def test_a_topic_without_every_receipt_is_not_deleted(everything: Everything) -> None:
    scene = everything.scene
    scene.queue.refused = {everything.bucket}
    one = scene.delete_topic()[-1]
    assert one.why.code is Code.NOT_SENT
    assert str(everything.bucket) in one.reason
    assert scene.listed == scene.ids
    assert Outcome.MARKED not in scene.rows


@pytest.mark.parametrize("done", [False, True])
def test_a_deletion_without_answer_is_judged_by_what_is_there(everything: Everything, done: bool) -> None:
    scene = everything.scene

    def lost(topic: Topic) -> None:
        if done:
            scene.cluster.remove(scene.path)
        raise OutcomeUnknown("timed out")

    scene.cluster.admin.on_delete = lost
    found = scene.delete_topic()
    assert outcomes(found)[-1] == (Outcome.REMOVED if done else Outcome.FAILED)
    assert found[-1].why.code is (Code.TOPIC_DELETED if done else Code.OUTCOME_UNKNOWN)
    assert {row.outcome for row in scene.journalled("mark")[-len(everything.components) :]} == {
        Outcome.REMOVED if done else Outcome.MARKED  # its messages may yet find it gone
    }


def test_a_deletion_without_answer_may_take_its_time(everything: Everything) -> None:
    scene, sleep = everything.scene, everything.scene.cluster.clock.sleep

    def lost(topic: Topic) -> None:
        def slow(seconds: float) -> None:
            sleep(seconds)
            if seconds > 2 and scene.path in scene.cluster.zookeeper._nodes:
                scene.cluster.remove(scene.path)

        scene.cluster.clock.sleep = slow  # type: ignore[method-assign]
        raise OutcomeUnknown("timed out")

    scene.cluster.admin.on_delete = lost
    assert scene.delete_topic()[-1].why.code is Code.TOPIC_DELETED


def test_a_topic_that_a_producer_created_again_at_once(everything: Everything) -> None:
    scene = everything.scene

    def again(topic: Topic) -> None:
        scene.cluster.remove(scene.path)
        scene.cluster.topic(TOPIC, [])

    scene.cluster.admin.on_delete = again
    assert outcomes(scene.delete_topic())[-1] == Outcome.REMOVED


@pytest.mark.parametrize(
    ("context", "code"),
    [
        (replace(CONTEXT, holds=frozenset({"acme"})), Protection.LEGAL_HOLD),
        (replace(CONTEXT, shadow_sources=frozenset({str(TOPIC)})), Protection.SHADOW_SOURCE),
        (replace(CONTEXT, namespaces=frozenset()), Protection.UNKNOWN_NAMESPACE),
    ],
)
def test_a_whole_topic_is_refused_by_the_same_names(everything: Everything, context: Context, code: Protection) -> None:
    scene = everything.scene
    found = scene.act(
        lambda run, ports, guard: trimming_delete_topic.delete_topic(
            replace(run, context=context), ports, guard, TOPIC, False
        )
    )
    assert outcomes(found) == {-1: Outcome.REFUSED}
    assert found[-1].why.code is code
    assert scene.sent == []


def test_a_topic_that_becomes_a_source_once_its_messages_are_sent_stays_with_the_same_code(scene: Scene) -> None:
    queue = scene.queue
    send = queue.send

    def shadowed(messages: Any, delay: int) -> Any:
        scene.cluster.topic(OTHER, [])
        info = managed_ledger.ManagedLedgerInfo((), properties={SHADOW_SOURCE: str(TOPIC)})
        scene.cluster.put(scene.cluster.topic_path(OTHER), managed_ledger.encode(info))
        return send(messages, delay)

    queue.send = shadowed  # type: ignore[method-assign]
    found = scene.delete_topic(force=True)
    assert {one.why.code for one in found.values()} == {Protection.SHADOW_SOURCE}
    left = {row.code for row in scene.journalled("mark") if row.outcome == Outcome.LEFT}
    assert left == {Protection.SHADOW_SOURCE}
    assert scene.listed == scene.ids


def test_what_is_no_topic_is_refused_by_another_code_than_what_a_rule_keeps(scene: Scene) -> None:
    scene.cluster.remove(scene.path)
    assert scene.delete_topic()[-1].why.code is Code.TOPIC_GONE


def test_a_dry_run_names_the_subscriptions_and_those_with_unread_messages(scene: Scene) -> None:
    def said() -> str:
        planned = trimming_delete_topic.plan_topic_deletion(scene.run(), scene.ports(), TOPIC)
        return next(one.reason for one in planned if one.ledger_id == -1)

    last = scene.ids[-1]
    scene.cursor("done", Position(last, 0))  # each ledger has one entry
    scene.cursor("__compaction", Position(scene.ids[0], -1))
    assert "its durable subscriptions (2) go with it: done, s; messages are, or may be, unread by s" in said()
    scene.cursor("s", Position(last, 0))
    assert said().endswith("done, s; all have read all")
    scene.cursor("s", None)
    assert "whether messages are unread is not known: cursor s" in said()
    for number in range(10):
        scene.cursor(f"a{number}", Position(last, 0))
    assert "(12) go with it: a0, " in said()
    assert "a9 and 2 more;" in said()
    for name in ("done", "s", *(f"a{number}" for number in range(10))):
        scene.cluster.remove(f"{scene.path}/{name}")
    assert said().endswith("it has no durable subscription")


def test_a_topic_with_a_compaction_that_cannot_be_read_is_refused(everything: Everything) -> None:
    scene = everything.scene
    scene.cluster.reader.failures[everything.compaction] = NotFound("gone")
    assert scene.delete_topic()[-1].why.code is Code.CURSORS_UNREAD
    assert scene.listed == scene.ids


def test_another_topics_ledger_on_the_list_gets_no_message(everything: Everything) -> None:
    scene = everything.scene
    foreign = scene.cluster.ledger(data_tags(OTHER))
    scene.cluster.topic(TOPIC, [*scene.ids, foreign])
    assert foreign not in scene.delete_topic()
    assert foreign not in {i for i, _ in scene.sent}


@pytest.mark.parametrize(("driver", "sent"), [("aws-s3", True), ("google-cloud-storage", False)])
def test_a_whole_topic_sends_for_the_offloaded_copies_that_could_be_deleted(
    everything: Everything, driver: str, sent: bool
) -> None:
    scene = everything.scene
    offload = OffloadContext(UUID(int=9), True, False, 1, driver, {"bucket": "b"})
    scene.cluster.topic(TOPIC, scene.ids, offloaded={scene.ids[0]: offload})
    assert outcomes(scene.delete_topic(force=True))[-1] == Outcome.REMOVED
    assert (scene.ids[0], LedgerType.LEDGER) in scene.sent
    assert ((scene.ids[0], LedgerType.OFFLOAD_LEDGER) in scene.sent) == sent


def test_killed_at_every_step_a_topic_goes_the_second_time() -> None:
    def make() -> Scene:
        return Everything(Scene()).scene

    steps: list[str] = []
    for scene, step in killed(make, lambda s, ports: s.delete_topic(ports=ports)):
        steps.append(step)
        assert not [row for row in scene.cluster.journal.rows if row.outcome == Outcome.LEFT], step
        if scene.cluster.zookeeper.stat(scene.path):
            assert outcomes(scene.delete_topic())[-1] == Outcome.REMOVED, step
        assert scene.cluster.zookeeper.stat(scene.path) is None, step
        assert {i for i, _ in scene.sent} >= set(scene.ids), step
    assert steps == [
        "send",
        "send, done",
        "record sent",
        "record sent, done",
        "record marked",
        "record marked, done",
        "delete topic",
        "delete topic, done",
        "record removed",
        "record removed, done",
    ]
