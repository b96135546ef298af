"""A deletion run that is killed at its worst moments: the next one finishes, nothing is lost, nothing done twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from sandbox import plant, topics, verify
from sandbox.cluster import Cluster
from sandbox.seed import Live
from tests.integration.pipeline import (
    Pipeline,
    emptied,
    existing,
    new_namespace,
    wait_unlisted,
    wait_until_unloaded_counts,
    waiting,
)

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


def killed_at(step: str, pipeline: Pipeline, batch: int) -> None:
    command = [sys.executable, "-m", "tests.integration.crashing_worker", str(pipeline.file), step, str(batch)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == -signal.SIGKILL, f"it was not killed at {step}: {done.stderr[-2000:]}"


def test_a_killed_deletion_run_is_finished_by_the_next(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> None:
    namespace = new_namespace(sandbox, "crash")
    names = [f"persistent://{namespace}/leaked-{number}" for number in range(2)]
    ids = {entry.ledger_id for name in names for entry in plant.orphan_data(sandbox, name)}
    half = f"persistent://{namespace}/half-listed"
    planted, contents = plant.orphan_data_of_live_topic(sandbox, half)
    left_alone = time.time()
    ids |= {entry.ledger_id for entry in planted}
    wait_unlisted(sandbox, [*names, half])
    pipeline = pipelines({"zookeeper": {"session_timeout": "8s"}, "deletion": {"idle_timeout": "10s"}})
    planned = pipeline.confirmed_plan()
    assert ids <= planned.ids
    sent = pipeline.apply(pipeline.order(planned)).sent
    wait_until_unloaded_counts(left_alone)  # else its ledger is retried, as its topic may be loading
    pipeline.scan()

    killed_at("delete", pipeline, batch=sent)  # all at once, however slowly they come
    assert existing(sandbox, ids) == ids, "something was deleted before the kill"
    assert all(pipeline.archived(ledger) for ledger in ids), "killed before the archive was closed"
    assert pipeline.journal() == []
    assert waiting(sandbox) == sent

    killed_at("acknowledge", pipeline, batch=2)
    first = ids - existing(sandbox, ids)
    assert {row["ledger_id"] for row in pipeline.journal() if row["outcome"] == "deleted"} & ids == first
    assert waiting(sandbox) == sent

    killed_at("journal", pipeline, batch=sent)
    assert not existing(sandbox, ids)
    assert waiting(sandbox) == sent

    outcomes = pipeline.delete_pending("rest")
    assert emptied(sandbox), outcomes
    assert {outcome.outcome for outcome in outcomes} == {"gone"}, outcomes
    deleted = Counter(row["ledger_id"] for row in pipeline.journal() if row["outcome"] == "deleted")
    assert set(deleted.values()) == {1}
    assert ids <= set(deleted)
    for ledger in ids:
        run = f"killed at {'acknowledge' if ledger in first else 'journal'}"
        assert [(row["outcome"], row["run_id"]) for row in pipeline.journal(ledger)] == [
            ("deleted", run),
            ("gone", "rest"),
        ]
        assert pipeline.archived(ledger)[-1]["run_id"] == run
    assert verify.read_back(sandbox, [Live(half, len(contents), topics.digest(contents))]) == []
    assert pipeline.plan(pipeline.scan()).rows == []
