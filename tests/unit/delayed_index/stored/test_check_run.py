"""Checks of delayed indexes while brokers go on writing them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pulsar_lifecycle.delayed_index.keys import bucket_key
from pulsar_lifecycle.delayed_index.stored import index_reading
from pulsar_lifecycle.delayed_index.stored.check_run import DUE, FINDINGS, check_delayed_indexes
from pulsar_lifecycle.delayed_index.stored.index_codes import IndexFinding
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats.cursor import BatchDeletion, MessageRange
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.ports import Entry
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.delayed_scene import COUNT, DelayedScene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> DelayedScene:
    return DelayedScene(tmp_path, monkeypatch)


def test_a_snapshot_whose_key_goes_right_after_it_is_not_red(scene: DelayedScene) -> None:
    """A broker deletes a snapshot that has passed, and then the property."""
    first, *_ = scene.backlog("a")
    epoch = scene.scan()
    keys = scene.keys("a")
    gone = keys.pop(bucket_key(first, first))
    scene.lose(gone)
    reads: list[Operation] = []

    def remove_the_key(operation: Operation) -> None:
        if scene.servers.path(gone) in operation.paths and not reads:
            reads.append(operation)
            scene.properties("a", {key: str(ledger) for key, ledger in keys.items()})

    scene.before = remove_the_key
    checked = check_delayed_indexes(scene.cluster, epoch.epoch_id)

    assert reads
    assert checked.red == {}
    scene.lose(max(keys.values()))
    assert set(check_delayed_indexes(scene.cluster, epoch.epoch_id).red) == {IndexFinding.KEY_WITHOUT_LEDGER}


def test_an_open_ledger_is_read_some_entries_at_a_time(scene: DelayedScene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index_reading, "OPEN_AT_ONCE", 7)
    *_, last = scene.backlog("a")
    scene.reopen(last)
    read: list[int] = []
    before = scene.servers.reader.read

    def noted(ledger_id: int, metadata: LedgerMetadata, first: int, end: int) -> list[Entry]:
        read.extend([end - first + 1] if ledger_id == last else [])
        return before(ledger_id, metadata, first, end)

    scene.servers.reader.read = noted  # type: ignore[method-assign]
    epoch = scene.checked()
    assert scene.lake.read_epoch_table(epoch.epoch_id, FINDINGS).num_rows == 0
    assert (sum(read), max(read)) == (COUNT, 7)


def test_a_batch_that_is_acknowledged_in_part_waits_whole_as_its_tracker_has_it(scene: DelayedScene) -> None:
    """Clients send delayed messages alone; if one did not, brokers count entries, and deliver the rest."""
    first, second, _ = scene.backlog("a")
    path = f"{scene.servers.topic_path(scene.named('a'))}/s"
    info = cursor_format.decode(scene.servers.zookeeper.data(path))
    partly = BatchDeletion(Position(first, 3), (0b100,)), BatchDeletion(Position(second, 7), (0b1,))
    ranges = (MessageRange(Position(first, 4), Position(first, 5)),)
    scene.servers.put(path, cursor_format.encode(replace(info, individual_deleted=ranges, batch_deletions=partly)))

    def waiting() -> int:
        checked = check_delayed_indexes(scene.cluster, epoch.epoch_id)
        found.append(dict(checked.findings))
        return sum(row["messages"] for row in scene.cluster.lake.read_epoch_table(epoch.epoch_id, DUE).to_pylist())

    epoch, found = scene.scan(), list[dict[IndexFinding, int]]()
    assert waiting() == 3 * COUNT - 1
    scene.name_bucket("a", second, scene.snapshot("a", second, without=1))
    info = cursor_format.decode(scene.servers.zookeeper.data(path))
    whole = tuple(BatchDeletion(Position(second, entry), (0b1,)) for entry in range(COUNT))
    scene.servers.put(path, cursor_format.encode(replace(info, batch_deletions=whole)))
    waiting()

    assert found == [{}, {IndexFinding.LOST: 1, IndexFinding.BITMAP_UNLIKE_SEGMENTS: 1}]
