"""What an answer asks for beside what its plan takes off lists, and what it says that nobody was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from pulsar_lifecycle.delete_records.apply_run import Patience
from pulsar_lifecycle.delete_records.request import DeleteRecordsResult, Lacks, NotAsked, Presence
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.records.plans.delete_records_plan import RecordsError
from tests.kit.fakes.journal import FakeJournal
from tests.kit.records.records_scene import BOOKIE, RecordsScene
from tests.kit.records.topic_times import compacted_entry
from tests.kit.simulated.cluster import compacted_tags


@pytest.mark.parametrize("first", [(1, 9), (2, 0), "empty", "unreadable"], ids=str)
def test_a_compacted_view_that_a_broker_left_since_the_plan_is_found_by_the_next_scan(first: Any) -> None:
    """One with messages from below: another was made after they went, and one that the topic has is no such view."""
    scene = RecordsScene()
    ids, cluster = scene.ids[scene.topic], scene.cluster
    (row,) = scene.plan(scene.at(2, 0))
    assert row["leftovers"] == []
    at = Position(ids[first[0]], first[1]) if isinstance(first, tuple) else Position(ids[2], 0)
    entries = {"empty": [], "unreadable": [b"no entry of a view"]}.get(str(first), [compacted_entry(at)])
    left = cluster.ledger(compacted_tags(scene.topic), entries=entries)
    now = cluster.ledger(compacted_tags(scene.topic), entries=[compacted_entry(Position(ids[2], 0))])
    cluster.cursor(scene.topic, "__compaction", at=ids[-1], compacted=now)
    assert scene.apply()[0].code in (RecordsError.COMPACTED_VIEW, Lacks.NOT_KEPT)
    cluster.remove(f"{cluster.topic_path(scene.topic)}/__compaction")
    cluster.wait(1)
    scene.apply()
    cluster.cursor(scene.topic, "__compaction", at=ids[-1], compacted=now)
    scene.delete()
    (result,) = scene.apply(dry_run=True)
    if first in ((2, 0), "empty"):
        assert result == DeleteRecordsResult(scene.at(2, 0))
        return
    assert (result.code, [one.ledger_id for one in result.remaining]) == (Lacks.MESSAGE, [left])
    cluster.remove(cluster.path(left))
    assert scene.apply(dry_run=True) == [DeleteRecordsResult(scene.at(2, 0))]


def test_bookies_are_asked_for_what_a_broker_deleted_between_the_scan_and_the_plan() -> None:
    scene = RecordsScene()
    ids, cluster = scene.ids[scene.topic], scene.cluster
    cluster.put(f"/ledgers/cookies/{BOOKIE}", b"")
    cluster.topic(scene.topic, ids[1:], entries=10)
    cluster.remove(cluster.path(ids[0]))
    cluster.wait(1)
    (row,) = scene.plan(scene.at(1, 0))
    assert (row["ledgers"], row["leftovers"]) == ([], [])
    (result,) = scene.apply(Patience(bookies=True))
    assert [(one.ledger_id, one.presence) for one in result.remaining] == [(ids[0], Presence.ON_BOOKIE)]
    cluster.reader.collected[BOOKIE] = {ids[0]}
    (result,) = scene.apply(Patience(bookies=True))
    assert (result.low_watermark, result.not_asked) == (scene.at(1, 0), (NotAsked.TRIMMED,))


def test_an_answer_says_that_nobody_was_asked_for_what_another_installation_deleted() -> None:
    scene = RecordsScene()
    scene.plan(scene.at(2, 0))
    scene.apply()
    scene.delete()
    assert [one.not_asked for one in scene.apply()] == [(NotAsked.TRIMMED,)]
    scene.lose_lake()
    scene.plan(scene.at(2, 0))
    (result,) = scene.apply()
    assert (result.low_watermark, result.not_asked) == (scene.at(2, 0), (NotAsked.TRIMMED, NotAsked.OTHERS))
    scene.plan(scene.at(4, 0))
    (result,) = scene.apply()
    assert (result.low_watermark, result.not_asked) == (-1, ())


def raised_by_another_lake(scene: RecordsScene) -> None:
    """What is before the third ledger goes by a request that our journal does not know."""
    ours, scene.cluster.journal = scene.cluster.journal, FakeJournal()
    scene.plan(scene.at(2, 0))
    scene.apply()
    scene.delete()
    scene.cluster.journal = ours
    scene.cluster.put(f"/ledgers/cookies/{BOOKIE}", b"")
    scene.cluster.reader.collected[BOOKIE] = set(scene.ids[scene.topic][:2])


def test_a_low_watermark_that_another_lake_raised_between_ours_is_seen() -> None:
    scene = RecordsScene()
    scene.plan(scene.at(1, 0))
    scene.apply()
    scene.delete()
    raised_by_another_lake(scene)
    scene.plan(scene.at(2, 0))
    assert scene.apply(Patience(bookies=True))[0].code == Lacks.REQUEST


def test_a_request_of_ours_that_was_refused_has_not_raised_what_another_lake_did() -> None:
    scene = RecordsScene()
    scene.plan(scene.at(2, 0))
    scene.cursor("slow", 0, 3)
    assert scene.apply()[0].error is RecordsError.CURSOR_BELOW
    scene.cursor("slow", 3, 3)
    scene.scan()
    raised_by_another_lake(scene)
    scene.plan(scene.at(2, 0))
    assert scene.apply(Patience(bookies=True))[0].code == Lacks.REQUEST
