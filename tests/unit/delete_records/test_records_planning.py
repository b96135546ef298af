"""What a plan to delete records says: positions and times that there are, and what forbids them."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from pulsar_lifecycle.delete_records.apply_run import delete_records_before
from pulsar_lifecycle.delete_records.request import END, DeleteRecordsResult, Options, Timestamp, parse_offset
from pulsar_lifecycle.delete_records.times.time_offsets import OffsetProblem
from pulsar_lifecycle.errors import AccessDenied, LifecycleError, StoreError, Unavailable, UsageError
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.model import MessagePosition, Position
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from tests.kit.records.records_scene import ENTRIES, HOUR, RecordsScene
from tests.kit.records.topic_times import BUCKET, abort, batch, commit, in_transaction, part, sent


@pytest.mark.parametrize(
    "offset",
    [
        *("1:0", "-1", "@0", 20, -2, -1.0, True, None, (1, 0), Position(1, 0), datetime(2020, 1, 1, tzinfo=UTC)),
        *(MessagePosition(1, -1), MessagePosition(-1, 0), MessagePosition(1, "0")),  # pyrefly: ignore[bad-argument-type]
        *(Timestamp(-1), Timestamp(1.5), Timestamp(1 << 60)),  # pyrefly: ignore[bad-argument-type]
    ],
    ids=repr,
)
def test_what_is_no_offset_is_refused_and_never_taken_for_the_end(offset: Any) -> None:
    """As a position is written on every page, or a number as Kafka's clients give it."""
    scene = RecordsScene()
    asked: Any = {str(scene.topic): END}
    with pytest.raises(UsageError, match=re.escape(f"{scene.topic}: expected a MessagePosition")):
        scene.plan(offset)
    with pytest.raises(UsageError, match="expected a TopicPartition"):
        delete_records_before(scene.where, "run-1", asked)
    assert scene.listed() == scene.ids[scene.topic]
    assert not scene.properties()


@pytest.mark.parametrize(
    ("asked", "error"),
    [
        ((4, 11), RecordsError.OUT_OF_RANGE),
        ((1, 11), RecordsError.NO_SUCH_POSITION),
        ((4, 10), None),
        ((0, 0), None),
    ],
)
def test_positions_that_there_are(asked: tuple[int, int], error: RecordsError | None) -> None:
    scene = RecordsScene()
    (row,) = scene.plan(scene.at(*asked))
    assert row["error"] == error
    assert not scene.properties()


def test_a_position_in_a_ledger_of_another_topic_is_refused() -> None:
    """It lies between two ledgers of this one, so everything up to the next would go."""
    scene = RecordsScene(2)
    ids = scene.ids[scene.topic]
    scene.cluster.topic(scene.topic, [ids[0], ids[1], ids[3], ids[4]], entries=ENTRIES)
    scene.cluster.wait(1)
    (row,) = scene.plan(scene.at(2, 3))
    assert (row["error"], row["ledgers"]) == (RecordsError.NO_SUCH_POSITION, [])


def test_a_time_is_the_first_message_published_at_or_after_it() -> None:
    scene = RecordsScene()
    (row,) = scene.plan(Timestamp(HOUR + 23))
    assert (row["error"], row["low_watermark"], row["messages"]) == (None, str(scene.at(2, 3)), 23), row
    assert (row["published_before"], row["published_at"], row["at_risk"]) == (HOUR + 22, HOUR + 23, 0)
    assert row["messages_between"] == 3
    scene.apply()
    scene.delete()
    assert scene.apply() == [DeleteRecordsResult(scene.at(2, 3))]


def test_a_time_after_all_is_the_end_and_before_all_deletes_nothing() -> None:
    scene = RecordsScene(2)
    after, before = scene.plan(Timestamp(2 * HOUR), Timestamp(0))
    assert after["low_watermark"] == str(scene.at(4, 10))
    assert (before["low_watermark"], before["ledgers"]) == (str(scene.at(0, 0, scene.topics[1])), [])


def test_what_the_end_frees_of_the_current_ledger_counts() -> None:
    scene = RecordsScene()
    scene.load(broker="broker-1:8080")
    payloads = [sent(2 * HOUR)] * 3
    scene.cluster.reader.payloads[scene.ids[scene.topic][-1]] += payloads
    scene.writes_loaded = True
    (row,) = scene.plan(END)
    assert (row["error"], row["rolls"], row["sizes"][-1]) == (None, True, sum(map(len, payloads)))
    assert scene.summary.physical_bytes == sum(row["sizes"])


def test_a_time_that_is_not_past_is_refused() -> None:
    scene = RecordsScene()
    now = scene.cluster.clock.now_ms()
    (row,) = scene.plan(Timestamp(now + HOUR))
    assert (row["error"], row["ledgers"]) == (RecordsError.OUT_OF_RANGE, [])
    assert (row["messages"], row["published_before"], row["at_risk"]) == (None, None, None)
    (row,) = scene.plan(Timestamp(now))
    assert (row["error"], row["low_watermark"]) == (None, row["end"])


def test_publish_times_that_go_back_are_refused_with_the_messages_at_risk() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.cluster.reader.payloads[ids[1]][4] = sent(HOUR + 45)
    (row,) = scene.plan(Timestamp(HOUR + 33))
    assert row["error"] == RecordsError.NOT_MONOTONIC
    assert row["at_risk"] == 1
    assert row["reason"] == (
        f"publish times go back below it: a search over times would cut at {ids[3]}:3 and delete 1 messages from "
        f"{ids[1]}:4 on that were published at or after the time; --any-order cuts at {ids[1]}:4, before all of them"
    )
    (row,) = scene.plan(Timestamp(HOUR + 33), options=Options(any_order=True))
    assert (row["error"], row["low_watermark"]) == (None, f"{ids[1]}:4")


def test_publish_times_that_go_back_below_the_time_are_refused_and_put_nothing_at_risk() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.cluster.reader.payloads[ids[1]][4] = sent(HOUR + 2)
    (row,) = scene.plan(Timestamp(HOUR + 33))
    assert (row["error"], row["at_risk"]) == (RecordsError.NOT_MONOTONIC, 0)
    assert row["reason"] == (
        "publish times go back below it, and no message is at risk: none below was published at or after the time; "
        f"--any-order cuts at {ids[3]}:3"
    )


def test_a_batch_index_that_is_not_there_is_an_error() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.cluster.reader.payloads[ids[1]][4] = batch(HOUR + 14, 3)
    (row,) = scene.plan(parse_offset(f"{ids[1]}:4:2"))
    assert (row["error"], row["low_watermark"]) == (None, f"{ids[1]}:4:2")
    (row,) = scene.plan(parse_offset(f"{ids[1]}:4:3"))
    assert row["error"] == RecordsError.NO_SUCH_POSITION


@pytest.mark.parametrize("moved", [False, True])
def test_a_position_inside_a_chunked_message_is_no_position(moved: bool) -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    if moved:
        scene.cursor("s", 0, 3)
    scene.cluster.reader.payloads[ids[0]][9] = part(HOUR + 9, 0, 2)
    scene.cluster.reader.payloads[ids[1]][0] = part(HOUR + 10, 1, 2)
    options = Options(move_cursors=moved)
    (row,) = scene.plan(scene.at(1, 0), options=options)
    assert (row["error"], row["code"]) == (RecordsError.NO_SUCH_POSITION, OffsetProblem.INSIDE_A_MESSAGE)
    assert f"ask for {ids[0]}:9" in row["reason"]
    for entry, ledgers in ((scene.at(0, 9), []), (scene.at(1, 1), [ids[0]])):
        (row,) = scene.plan(entry, options=options)
        assert (row["error"], row["ledgers"]) == (None, ledgers)


@pytest.mark.parametrize("other", ["below", "above"])
def test_a_chunked_message_is_found_by_either_entry_beside_a_position(other: str) -> None:
    scene = RecordsScene()
    first, second = (scene.cluster.reader.payloads[i] for i in scene.ids[scene.topic][:2])
    if other == "below":
        first[8], second[0] = part(HOUR + 8, 0, 2), part(HOUR + 10, 1, 2)
    else:
        first[9], second[1] = part(HOUR + 9, 0, 2), part(HOUR + 11, 1, 2)
    (row,) = scene.plan(scene.at(1, 0))
    assert row["code"] == OffsetProblem.INSIDE_A_MESSAGE


def test_a_ledger_without_entries_hides_no_part_above_a_position() -> None:
    scene = RecordsScene()
    first, last = (scene.cluster.reader.payloads[scene.ids[scene.topic][i]] for i in (0, 4))
    scene.rolled(scene.topic)
    ids = scene.ids[scene.topic]
    first[3], last[8] = part(HOUR + 3, 0, 2, "gone"), part(HOUR + 48, 0, 2)
    ids.append(scene._ledger(scene.topic))
    scene.cluster.reader.payloads[ids[-1]][0] = part(HOUR + 50, 1, 2)
    scene.cluster.topic(scene.topic, ids, counts=dict.fromkeys(ids, ENTRIES) | {ids[5]: 0})
    scene.cluster.wait(1)
    (row,) = scene.plan(scene.at(4, ENTRIES))
    assert row["code"] == OffsetProblem.INSIDE_A_MESSAGE


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        (StoreError("nobody has it"), None),
        (Unavailable("timed out"), RecordsError.UNREAD),
        (AccessDenied("who are you"), RecordsError.UNREAD),
    ],
)
def test_a_lost_entry_beside_a_position_does_not_keep_it_and_a_bookie_that_does_not_answer_does(
    failure: LifecycleError, error: RecordsError | None
) -> None:
    scene = RecordsScene()
    scene.cluster.reader.failures[scene.ids[scene.topic][0]] = failure
    (row,) = scene.plan(scene.at(1, 0))
    assert row["error"] == error


def test_an_entry_that_is_no_message_does_not_hide_what_is_cut() -> None:
    scene = RecordsScene()
    first, second = (scene.cluster.reader.payloads[i] for i in scene.ids[scene.topic][:2])
    first[8], first[9], second[0] = part(HOUR + 8, 0, 2), b"no message", part(HOUR + 10, 1, 2)
    (row,) = scene.plan(scene.at(1, 0))
    assert row["error"] == RecordsError.UNREAD
    second[0] = sent(HOUR + 10)
    (row,) = scene.plan(scene.at(1, 0))
    assert row["error"] is None


def test_what_a_bucket_does_not_give_keeps_a_position_beside_it() -> None:
    scene = RecordsScene()
    scene.with_bucket()
    path, first = scene.cluster.topic_path(scene.topic), scene.ids[scene.topic][0]
    info = managed_ledger.decode(scene.cluster.zookeeper.data(path))
    copy = OffloadContext(UUID(int=7), True, True, 1, "aws-s3", {"bucket": BUCKET})
    ledgers = (replace(info.ledgers[0], offload=copy), *info.ledgers[1:])
    scene.cluster.put(path, managed_ledger.encode(replace(info, ledgers=ledgers)))
    scene.cluster.zookeeper.delete(ledger_path(first), -1)
    scene.cluster.wait(1)
    (row,) = scene.plan(scene.at(1, 0))
    assert row["error"] == RecordsError.UNREAD
    (row,) = scene.plan(scene.at(1, 1))
    assert (row["error"], row["ledgers"]) == (None, [first])


def test_a_lost_ledger_that_is_not_beside_a_position_has_no_say() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.cluster.zookeeper.delete(ledger_path(ids[3]), -1)
    (row,) = scene.plan(scene.at(2, 3))
    assert (row["error"], row["ledgers"]) == (None, ids[:2]), row


@pytest.mark.parametrize("name", ["snapshot", "snapshot-partition-0", "snapshot_segments", "snapshot_indexes"])
def test_an_open_transaction_below_is_an_error(name: str) -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.cluster.put(f"/managed-ledgers/acme/orders/persistent/__transaction_buffer_{name}", b"")
    scene.cluster.reader.payloads[ids[1]][4] = in_transaction(HOUR + 14, 7)
    (row,) = scene.plan(scene.at(2, 0))
    assert row["error"] == RecordsError.TRANSACTION_BELOW
    for end in (commit, abort):
        scene.cluster.reader.payloads[ids[3]][4] = end(HOUR + 34, 7)
        scene.cluster.reader.lost = {(ids[1], 2), (ids[3], 1)}  # nobody can read them: they keep nothing
        (row,) = scene.plan(scene.at(2, 0))
        assert row["error"] is None


def test_a_delayed_message_below_keeps_a_subscription_from_being_moved() -> None:
    scene = RecordsScene()
    ids = scene.ids[scene.topic]
    scene.cursor("s", 0, 3)
    later = scene.cluster.clock.now_ms() + HOUR
    scene.cluster.reader.payloads[ids[1]][4] = sent(HOUR + 14, deliver_at_time=later)
    (row,) = scene.plan(scene.at(2, 0), options=Options(move_cursors=True))
    assert row["error"] == RecordsError.DELAYED_BELOW
