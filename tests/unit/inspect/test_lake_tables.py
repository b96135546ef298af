"""Tables of the lake as data frames, and the words of their columns."""

from __future__ import annotations

from pathlib import Path

import pytest

import pulsar_lifecycle
from pulsar_lifecycle.errors import NotFound, UsageError
from pulsar_lifecycle.inspect.catalog import OF_A_SCAN, OF_AN_ASSET, WORDS
from pulsar_lifecycle.inspect.lake_tables import whole_table
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from tests.kit.scenes.retention_scene import NAMESPACE, RetentionScene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch, files=True)


def test_a_table_of_the_newest_scan_that_has_it(scene: RetentionScene) -> None:
    first, second, _ = scene.topic("a", 100, 90, 80)
    epoch = scene.scan()
    make_retention_plan(scene.cluster, epoch)
    scene.scan()
    found = pulsar_lifecycle.read("expired_ledgers", columns=["ledger_id", "namespace", "expired_at"])
    assert found.ledger_id.tolist() == [first, second]
    assert set(found.namespace) == {NAMESPACE}
    assert str(found.expired_at.dtype) == "Int64"
    assert len(pulsar_lifecycle.read("expired_ledgers", epoch=epoch.epoch_id)) == 2


def test_journal_and_archive_are_tables(scene: RetentionScene) -> None:
    assert whole_table(scene.cluster, "journal", columns=["run_id"]).num_rows == 0
    assert "path" in whole_table(scene.cluster, "archive").column_names


def test_what_is_wrong_is_named(scene: RetentionScene) -> None:
    with pytest.raises(UsageError, match="there is no table 'ledgers': there are bookkeeper_ledgers"):
        pulsar_lifecycle.read("ledgers")
    with pytest.raises(UsageError, match="topics has no column 'size'"):
        pulsar_lifecycle.read("topics", columns=["size"])
    for table, column in ("journal", "reasons"), ("archive", "ledger"):
        with pytest.raises(UsageError, match=f"{table} has no column '{column}': it has "):
            pulsar_lifecycle.read(table, columns=[column])
    with pytest.raises(UsageError, match="the archive belongs to no scan"):
        pulsar_lifecycle.read("archive", epoch="20261126T010700Z-4f1c")
    with pytest.raises(NotFound, match="no scan of test has a table topics yet"):
        pulsar_lifecycle.read("topics")


def test_every_column_has_its_words() -> None:
    assert {field.name for schema in OF_AN_ASSET.values() for field in schema} == set(WORDS)
    assert set(OF_A_SCAN) | {"journal", "archive", "trimmed_ledgers"} <= set(OF_AN_ASSET)
