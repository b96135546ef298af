"""Checks of delayed indexes while brokers go on writing them."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_lifecycle.delayed_index.keys import bucket_key
from pulsar_lifecycle.delayed_index.stored.check_run import check_delayed_indexes
from pulsar_lifecycle.delayed_index.stored.index_codes import IndexFinding
from tests.kit.fakes.metadata_store import Operation
from tests.kit.scenes.delayed_scene import DelayedScene


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
