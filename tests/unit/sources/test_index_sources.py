"""The tables of delayed indexes as Spark's tasks read them: every bucket and message once, whatever the tasks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.errors import NotFound, StoreError, UsageError
from pulsar_lifecycle.sources.index_sources import (
    BUCKETS,
    MESSAGES,
    DelayedIndexBuckets,
    DelayedIndexMessages,
    IndexOptions,
    IndexReader,
)
from tests.kit.scenes.delayed_scene import COUNT, DelayedScene
from tests.kit.scenes.retention_scene import NAMESPACE

OF_ALL = {"namespaces": NAMESPACE}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DelayedScene:
    made = DelayedScene(tmp_path, monkeypatch)
    made.backlog("a", cursors=("s", "t"))
    made.backlog("b", ledgers=1)
    made.servers.topic(made.named("never-loaded"))
    return made


def rows(scene: DelayedScene, source: str, **options: str) -> list[dict[str, Any]]:
    """All tasks' rows."""
    reader = IndexReader(IndexOptions(source, options), scene.cluster.connect)
    batches = [batch for share in reader.partitions() for batch in reader.read(share)]
    assert all(batch.schema == reader.wanted for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


@pytest.mark.parametrize("partitions", ["1", "2", "1000"])
def test_every_bucket_and_message_is_a_row_in_tasks_of_any_number(scene: DelayedScene, partitions: str) -> None:
    buckets = rows(scene, BUCKETS, **OF_ALL, partitions=partitions)
    named = {(row["topic"][-1], row["subscription"], row["bucket_key"]): row["ledger_id"] for row in buckets}
    assert named == {
        (name, cursor, key): ledger
        for name, cursor in (("a", "s"), ("a", "t"), ("b", "s"))
        for key, ledger in scene.keys(name, cursor).items()
    }
    assert len(buckets) == 7
    assert {(row["messages"], row["state"]) for row in buckets} == {(COUNT, "waiting")}

    messages = rows(scene, MESSAGES, **OF_ALL, partitions=partitions)
    assert len(messages) == 7 * COUNT
    assert all(row["due"] == scene.due(row["ledger_id"], row["entry_id"]) for row in messages)
    assert {row["snapshot_ledger_id"] for row in messages} == {row["ledger_id"] for row in buckets}
    assert len({(row["topic"], row["subscription"], row["ledger_id"], row["entry_id"]) for row in messages}) == 350
    assert not any(row["acknowledged"] for row in messages)


def test_one_topic_one_subscription_some_columns(scene: DelayedScene) -> None:
    chosen = {"topic": str(scene.named("a")), "subscription": "t", "columns": "due,acknowledged"}
    found = rows(scene, MESSAGES, **chosen)
    assert len(found) == 3 * COUNT
    assert set(found[0]) == {"due", "acknowledged"}


def test_what_a_cursor_has_acknowledged_says_so(scene: DelayedScene) -> None:
    first, second, *_ = scene.backlog("c")
    keys = scene.keys("c")
    buckets = {(ledger, ledger): keys[key] for ledger in (first, second) for key in keys if key.endswith(f"_{ledger}")}
    scene.servers.cursor(scene.named("c"), "s", buckets=buckets, at=second)
    found = rows(scene, MESSAGES, topic=str(scene.named("c")))
    assert {row["ledger_id"] for row in found if row["acknowledged"]} == {first}
    assert {row["ledger_id"] for row in found if not row["acknowledged"]} == {second}


def test_a_bucket_that_is_gone_ends_the_query_or_is_a_row(scene: DelayedScene) -> None:
    gone = min(scene.keys("b").values())
    scene.lose(gone)
    for source in (BUCKETS, MESSAGES):
        with pytest.raises(StoreError, match=str(gone)):
            rows(scene, source, **OF_ALL)
    (bucket,) = [row for row in rows(scene, BUCKETS, **OF_ALL, mode="permissive") if row["ledger_id"] == gone]
    assert bucket["state"] == "no_ledger"
    found = rows(scene, MESSAGES, **OF_ALL, mode="permissive")
    (problem,) = [row["problem"] for row in found if row["problem"]]
    assert str(gone) in problem
    assert len(found) == 6 * COUNT + 1


def test_a_topic_that_cannot_be_read_is_a_row_that_names_it(scene: DelayedScene) -> None:
    scene.servers.put(scene.servers.topic_path(scene.named("b")), b"\xff\xff")
    (problem,) = [row for row in rows(scene, MESSAGES, **OF_ALL, mode="permissive") if row["problem"]]
    assert (problem["topic"], problem["due"]) == (str(scene.named("b")), None)


def test_wrong_options_are_named(scene: DelayedScene) -> None:
    for options, word in (
        ({}, "namespaces"),
        ({**OF_ALL, "topic": str(scene.named("a"))}, "namespaces"),
        ({"namespaces": "nothing"}, "option namespaces"),
        ({**OF_ALL, "mode": "lax"}, "option mode"),
        ({**OF_ALL, "columns": "nothing"}, "option columns"),
        ({**OF_ALL, "partitions": "0"}, "option partitions"),
    ):
        with pytest.raises(UsageError, match=word):
            rows(scene, BUCKETS, **options)
    with pytest.raises(NotFound):
        rows(scene, BUCKETS, namespaces=f"{NAMESPACE}, nobody/here")
    for source in (DelayedIndexBuckets, DelayedIndexMessages):
        made = source({**OF_ALL, "columns": "topic"})
        assert made.schema().names == ["topic"]
        with pytest.raises(UsageError, match="option mode"):
            source({**OF_ALL, "mode": "lax"}).schema()
