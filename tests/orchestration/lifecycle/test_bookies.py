"""The page of a collection: what became of each bookie, and why one was left alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from orchestration.lifecycle.bookies import collect_bookies_job
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import DiskVerdict
from pulsar_lifecycle.lifecycle.bookies.collection import CollectionChoice, PlannedCollection
from pulsar_lifecycle.lifecycle.bookies.collection_run import Collected
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Outcome
from resources.lifecycle import LifecycleResource
from tests.kit.automated_cluster import automated
from tests.kit.scenes.retention_scene import RetentionScene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    return RetentionScene(tmp_path, monkeypatch)


def test_a_collection_says_why_bookies_were_left_alone(scene: RetentionScene, monkeypatch: pytest.MonkeyPatch) -> None:
    automated(scene, monkeypatch)
    left = PlannedCollection("bookie-1:3181", "/rack", CollectionChoice.UNKNOWN_DISK, None, DiskVerdict.UNANSWERED)
    collected = Collected("bookie-2:3181", "/rack", Outcome.COLLECTED, Why(Code.MAY_GO, "so"), 7)
    monkeypatch.setattr("orchestration.lifecycle.bookies.collect_bookies", lambda *_, **__: ([left], [collected]))
    done = collect_bookies_job.execute_in_process(
        run_config={"ops": {"collect": {"config": {"dry_run": False}}}},
        resources={"lifecycle": LifecycleResource()},
    )
    (output,) = [one for one in done.all_events if one.event_type is dg.DagsterEventType.STEP_OUTPUT]
    shown: Any = output.step_output_data.metadata
    (row,) = shown["plan"].records
    assert (row.data["bookie"], row.data["plan"]) == ("bookie-1:3181", left.choice.value)
