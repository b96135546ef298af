"""Pausing while a deletion run is at work stops it on every executor within one batch; resuming goes on."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.deletion.workers import RunEnd, StopCode
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.settings import ZooKeeperSettings
from sandbox.clients import wait_for
from sandbox.cluster import Cluster
from sandbox.planting import plant
from tests.integration.pipeline import Pipeline, existing, new_namespace

pytestmark = pytest.mark.integration

LEDGERS = 30
"""At two a second, fifteen seconds to pause in."""
TASKS = 2
"""Executor cores of the tests' Spark."""


def test_a_pause_stops_a_run_within_one_batch(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> None:
    topic = f"persistent://{new_namespace(sandbox, 'paused')}/leaked"
    ids = {plant.young(sandbox, topic)[0].ledger_id for _ in range(LEDGERS)}
    pipeline = pipelines({"deletion": {"batch": 1, "deletes_per_second": 2}}, on_spark=True)
    planned = pipeline.confirmed_plan()
    assert ids <= planned.ids
    pipeline.scan()
    order = pipeline.order(planned)
    with ThreadPoolExecutor(1) as pool, KazooStore(ZooKeeperSettings(hosts=sandbox.zookeeper)) as store:
        running = pool.submit(deletion_run.apply_directly, pipeline.where, "paused", order)
        try:
            wait_for("the first deletion", lambda: existing(sandbox, ids) != ids or running.done(), timeout=300)
            control.pause(store, "the test says so")
            left = existing(sandbox, ids)
            outcomes = running.result()
        finally:
            control.resume(store)
    stopped = [outcome.code for outcome in outcomes if outcome.outcome == RunEnd.STOPPED]
    assert stopped == [StopCode.PAUSED], f"it ran to its end: {outcomes}"
    after = existing(sandbox, ids)
    assert len(left - after) <= TASKS
    for ledger in ids - after:
        assert [row["outcome"] for row in pipeline.journal(ledger)] == ["deleted"]

    unhurried = pipelines({"deletion": {"batch": 1}}, lake=pipeline.lake, on_spark=True)
    outcomes = deletion_run.apply_directly(unhurried.where, "resumed", order)
    assert {outcome.outcome for outcome in outcomes} <= {"deleted", "gone"}, outcomes
    assert not existing(sandbox, ids)
