"""The pipeline on ``local-cluster``: executors in processes of their own, so that nothing leans on the driver's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sandbox.cluster import Cluster
from sandbox.planting import plant, topics, verify
from sandbox.planting.seed import Live
from tests.integration.pipeline import (
    PATIENT,
    Pipeline,
    drain,
    emptied,
    existing,
    new_namespace,
    settings_file,
    wait_unlisted,
)

pytestmark = pytest.mark.integration

DRIVER = Path(__file__).with_name("on_executors.py")


def test_executors_of_their_own_scan_and_delete(sandbox: Cluster, tmp_path: Path) -> None:
    drain(sandbox)
    namespace = new_namespace(sandbox, "executors")
    half, leaked = f"persistent://{namespace}/half-listed", f"persistent://{namespace}/leaked"
    orphans = {entry.ledger_id for entry in plant.orphan_data(sandbox, leaked)}
    orphans |= {entry.ledger_id for entry in plant.orphan_schema(sandbox, f"{leaked}-schema")}
    planted, contents = plant.orphan_data_of_live_topic(sandbox, half)
    orphans |= {entry.ledger_id for entry in planted}
    wait_unlisted(sandbox, [half, leaked])
    file = settings_file(sandbox, tmp_path, {"spark": {"master": "local-cluster[2,1,1024]"}, "deletion": PATIENT})
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYSPARK_PYTHON")}

    command = [sys.executable, str(DRIVER), str(file)]
    done = subprocess.run(
        command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=1200, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    found = json.loads(done.stdout.splitlines()[-1])

    assert all(".zip" in library for library in found["libraries"]), found["libraries"]
    assert len(found["folders"]) == 2, f"not two executors: {found['folders']}"
    assert found["gaps"] == []
    assert orphans <= set(found["planned"])
    assert {outcome for outcome, _, _ in found["outcomes"]} == {"deleted"}, found["outcomes"]
    assert not existing(sandbox, orphans)
    assert emptied(sandbox)
    pipeline = Pipeline(file)
    for ledger in orphans:
        assert [row["outcome"] for row in pipeline.journal(ledger)] == ["deleted"]
        assert len(pipeline.archived(ledger)) == 1
    assert verify.read_back(sandbox, [Live(half, len(contents), topics.digest(contents))]) == []
