"""What must not be applied or deleted is refused before anything happens, each rule with its own words."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from kazoo.client import KazooClient

from orchestration.jobs import ApplyConfig
from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.errors import NotFound, Paused, UsageError
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Lowered, Order
from pulsar_lifecycle.values.plans.deletion_plan import digest
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.refusals import RefusalCode
from sandbox.cluster import Cluster
from sandbox.planting import plant
from tests.integration.pipeline import NO_CAPS, Pipeline, Planned, existing, new_namespace, waiting
from tests.kit.builders import A_GAP
from tests.kit.refused import refused_by

pytestmark = pytest.mark.integration

DAY_MS = 86_400_000


@dataclass
class Ready:
    """A plan that could be applied, and its ledgers."""

    pipeline: Pipeline
    planned: Planned
    ids: set[int]

    def forged(self, **changes: Any) -> Order:
        """The same rows under a changed summary whose digest is right."""
        summary, rows = self.pipeline.where.lake.plan(self.planned.summary.plan_id)
        changed = replace(summary, plan_id=f"{summary.plan_id}-changed", **changes)
        changed = replace(changed, digest=digest(rows, changed.to_json()))
        self.pipeline.where.lake.store_plan(changed, rows)
        return Order(changed.plan_id, changed.digest, NO_CAPS)


@pytest.fixture(scope="module")
def ready(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> Ready:
    topic = f"persistent://{new_namespace(sandbox, 'refused')}/leaked"
    ids = {entry.ledger_id for _ in range(3) for entry in plant.young(sandbox, topic)}
    pipeline = pipelines()
    pipeline.scan()
    planned = pipeline.plan(pipeline.scan())
    assert planned.summary.actionable, planned.summary.gaps
    assert ids <= planned.ids
    return Ready(pipeline, planned, ids)


@pytest.fixture(autouse=True)
def nothing_happened(sandbox: Cluster, ready: Ready) -> Iterator[None]:
    yield
    assert existing(sandbox, ready.ids) == ready.ids
    assert waiting(sandbox) == 0


def refuses(pipeline: Pipeline, order: Order, code: RefusalCode) -> None:
    for launch in launches(pipeline, order):
        with refused_by(code):
            launch()


def launches(pipeline: Pipeline, order: Order) -> Iterator[Callable[[], object]]:
    """With the queue and without it."""
    yield lambda: pipeline.apply(order)
    yield lambda: deletion_run.apply_directly(pipeline.where, "direct", order)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"fingerprint": "0" * 32}, RefusalCode.OTHER_CLUSTER),
        ({"actionable": False, "gaps": (A_GAP,)}, RefusalCode.REPORT_ONLY),
    ],
)
def test_a_plan_that_is_not_for_this_cluster_as_it_was_seen(
    ready: Ready, changes: dict[str, Any], code: RefusalCode
) -> None:
    refuses(ready.pipeline, ready.forged(**changes), code)


@pytest.mark.parametrize("age_ms", [DAY_MS + 60_000, -60_000])
def test_an_expired_plan_and_one_from_the_future(ready: Ready, age_ms: int) -> None:
    forged = ready.forged(created_at=ready.planned.summary.created_at - age_ms)
    refuses(ready.pipeline, forged, RefusalCode.PLAN_EXPIRED)


def test_a_fresh_plan_of_an_old_scan(ready: Ready) -> None:
    lake = ready.pipeline.where.lake
    epoch = lake.epoch(ready.planned.summary.epoch_id)
    old = replace(epoch, epoch_id=f"{epoch.epoch_id}-old", started_at=epoch.started_at - DAY_MS - 60_000)
    lake.store_epoch(old, lake.referenced(epoch.epoch_id), lake.context(epoch.epoch_id))
    refuses(ready.pipeline, ready.forged(epoch_id=old.epoch_id), RefusalCode.SCAN_EXPIRED)
    refuses(ready.pipeline, ready.forged(epoch_id="20000101T000000-abcdef"), RefusalCode.SCAN_GONE)


def test_a_plan_whose_rows_were_changed(ready: Ready) -> None:
    order = ready.forged(confirmed_by="")
    file = Path(ready.pipeline.lake) / "plans" / order.plan_id / "rows.parquet"
    rows = pq.read_table(file)
    ids = pa.array([row + 1 for row in rows.column("ledger_id").to_pylist()], pa.int64())
    pq.write_table(rows.set_column(0, rows.schema.field(0), ids), file)
    refuses(ready.pipeline, order, RefusalCode.PLAN_DIFFERS)


def test_a_plan_with_another_digest_than_the_operator_saw(ready: Ready) -> None:
    other = replace(ready.pipeline.order(ready.planned), digest="0" * 64)
    refuses(ready.pipeline, other, RefusalCode.PLAN_DIFFERS)


def test_a_summary_that_was_made_actionable(ready: Ready) -> None:
    order = ready.forged(actionable=False, gaps=(A_GAP,))
    summary: PlanSummary
    summary, rows = ready.pipeline.where.lake.plan(order.plan_id)
    ready.pipeline.where.lake.store_plan(replace(summary, actionable=True, gaps=()), rows)
    refuses(ready.pipeline, order, RefusalCode.PLAN_DIFFERS)


@pytest.mark.parametrize(
    ("caps", "cap"),
    [
        (replace(NO_CAPS, max_ledgers=1), "max_ledgers"),
        (replace(NO_CAPS, max_share=0.0001), "max_share"),
        (replace(NO_CAPS, max_bytes=1), "max_bytes"),
        (replace(NO_CAPS, max_ledgers_per_topic=2), "max_ledgers_per_topic"),
    ],
)
def test_a_plan_over_a_cap(ready: Ready, pipelines: Callable[..., Pipeline], caps: Lowered, cap: str) -> None:
    """Whether a launch lowered it or the settings file, which no launch can raise again."""
    refuses(ready.pipeline, ready.pipeline.order(ready.planned, caps), RefusalCode(cap))
    value = getattr(caps, cap)
    stricter = pipelines({"apply": {"max_share": 1.0, cap: value}}, lake=ready.pipeline.lake)
    launched = ApplyConfig(plan_id=ready.planned.summary.plan_id, digest=ready.planned.summary.digest)
    refuses(stricter, launched.order(), RefusalCode(cap))
    more = ApplyConfig(**{**launched.model_dump(), cap: 1.0 if cap == "max_share" else 1_000})
    for launch in launches(stricter, more.order()):
        with pytest.raises(UsageError, match=rf"^{cap}: .*apply\.{cap} in the settings file allows"):
            launch()


def test_a_switched_off_deletion(ready: Ready, pipelines: Callable[..., Pipeline]) -> None:
    off = pipelines({"deletion": {"topicTwoPhaseDeletionEnabled": False}}, lake=ready.pipeline.lake)
    refuses(off, ready.pipeline.order(ready.planned), RefusalCode.SWITCHED_OFF)


def test_a_root_that_was_declared_after_the_scan(
    ready: Ready, sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    shared = {"shared_with": [{"name": "newcomer", "hosts": f"{sandbox.zookeeper}/newcomer"}]}
    wiser = pipelines({"bookkeeper": shared}, lake=ready.pipeline.lake)
    with refused_by(RefusalCode.SCAN_NOT_COVERED):
        wiser.delete_pending()


def test_a_lake_without_a_scan(pipelines: Callable[..., Pipeline]) -> None:
    with pytest.raises(NotFound):
        pipelines().delete_pending()


def test_everything_while_paused(ready: Ready, sandbox: Cluster) -> None:
    with sandbox.metadata() as zk, _znode(zk, control.PAUSE):
        order = ready.pipeline.order(ready.planned)
        for effect in (*launches(ready.pipeline, order), ready.pipeline.delete_pending):
            with pytest.raises(Paused):
                effect()


def test_a_run_while_another_holds_the_lease(
    ready: Ready, sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    impatient = pipelines({"zookeeper": {"session_timeout": "4s"}}, lake=ready.pipeline.lake)
    with (
        sandbox.metadata() as zk,
        _znode(zk, control.holder_of(control.LEASE), b"run 4711"),
        refused_by(RefusalCode.LEASE_HELD, "run 4711"),
    ):
        impatient.delete_pending()


def test_waiting_times_below_their_floors_on_a_cluster_that_is_no_sandbox(ready: Ready, sandbox: Cluster) -> None:
    with sandbox.metadata() as zk:
        data, _ = zk.get(control.SANDBOX)
        zk.delete(control.SANDBOX)
        try:
            with refused_by(RefusalCode.BELOW_FLOOR):
                ready.pipeline.delete_pending()
            with refused_by(RefusalCode.BELOW_FLOOR):
                deletion_run.apply_directly(ready.pipeline.where, "direct", ready.pipeline.order(ready.planned))
            epoch = ready.pipeline.where.lake.epoch(ready.planned.summary.epoch_id)
            assert not ready.pipeline.plan(epoch).summary.actionable
        finally:
            zk.create(control.SANDBOX, data)


@contextmanager
def _znode(zk: KazooClient, path: str, data: bytes = b"") -> Iterator[None]:
    zk.create(path, data, makepath=True)
    try:
        yield
    finally:
        zk.delete(path)
