"""A deletion run that is killed at its worst moments: the next one finishes, nothing is lost, nothing done twice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable

import pytest

from sandbox.cluster import Cluster
from sandbox.planting import plant, topics, verify
from sandbox.planting.seed import Live
from tests.integration.killed_run import Step, strike
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

STEPS = {
    "archived, not deleted": Step("store", "delete_many", after=False),
    "deleted, not journalled": Step("journal", "record", after=False),
    "journalled, not acknowledged": Step("queue", "acknowledge", after=False),
}


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

    def killed_at(step: str, batch: int) -> None:
        deletion = {"idle_timeout": "10s", "batch": batch}
        run = pipelines({"zookeeper": {"session_timeout": "8s"}, "deletion": deletion}, lake=pipeline.lake)
        strike(run.file, "delete", {"run_id": f"killed {step}"}, STEPS[step], tasks=1).struck()

    killed_at("archived, not deleted", batch=sent)  # all at once, however slowly they come
    assert existing(sandbox, ids) == ids, "something was deleted before the kill"
    assert all(pipeline.archived(ledger) for ledger in ids), "killed before the archive was closed"
    assert pipeline.journal() == []
    assert waiting(sandbox) == sent

    killed_at("journalled, not acknowledged", batch=2)
    first = ids - existing(sandbox, ids)
    assert {row["ledger_id"] for row in pipeline.journal() if row["outcome"] == "deleted"} & ids == first
    assert waiting(sandbox) == sent

    killed_at("deleted, not journalled", batch=sent)
    assert not existing(sandbox, ids)
    assert waiting(sandbox) == sent

    outcomes = pipeline.delete_pending("rest")
    assert emptied(sandbox), outcomes
    assert {outcome.outcome for outcome in outcomes} == {"gone"}, outcomes
    deleted = Counter(row["ledger_id"] for row in pipeline.journal() if row["outcome"] == "deleted")
    assert set(deleted.values()) == {1}
    assert ids <= set(deleted)
    for ledger in ids:
        run = f"killed {'journalled, not acknowledged' if ledger in first else 'deleted, not journalled'}"
        assert [(row["outcome"], row["run_id"]) for row in pipeline.journal(ledger)] == [
            ("deleted", run),
            ("gone", "rest"),
        ]
        assert pipeline.archived(ledger)[-1]["run_id"] == run
    assert verify.read_back(sandbox, [Live(half, len(contents), topics.digest(contents))]) == []
    assert pipeline.plan(pipeline.scan()).rows == []
