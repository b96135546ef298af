"""What an offload run refuses before it begins it: the journal has it, so that its plan counts as taken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pulsar_lifecycle.journal.approvals import applied_plans
from pulsar_lifecycle.records.codes import Code
from pulsar_lifecycle.records.offload_uuids import OffloadUuids
from pulsar_lifecycle.records.outcomes import Action, Outcome
from pulsar_lifecycle.records.plans.offload_plan import OffloadChoice
from pulsar_lifecycle.run_settings import OffloadSettings
from pulsar_lifecycle.tiered.interrupted import Ownership
from pulsar_lifecycle.tiered.offload_work import OffloadWork
from tests.kit.scenes.tiered.copy_deletion_scene import CopyDeletionScene
from tests.kit.scenes.topic_scene import TOPIC
from tests.kit.simulated.offloaded import BUCKET


def test_a_plan_whose_ledgers_were_offloaded_meanwhile_is_taken_once_a_run_has_refused_them() -> None:
    """Its scan saw them before another run offloaded them; no row said that a run was over, and it was to go still."""
    scene = CopyDeletionScene()
    run, ports, guard = scene.begin()
    cluster: Any = SimpleNamespace(settings=SimpleNamespace(offload=OffloadSettings()), ids=SimpleNamespace(uuid=None))
    lease: Any = SimpleNamespace(guard=guard)
    work = OffloadWork(cluster, run, ports, guard, lease, scene.read_check, Ownership("s", OffloadUuids()), (), ())
    work._spread = lambda *_: []  # type: ignore[method-assign]
    place = {"driver": "aws-s3", "bucket": BUCKET, "region": "", "endpoint": "", "block_size": 0}
    planned = [
        {"topic": str(TOPIC), "ledger_id": i, "action": OffloadChoice.OFFLOAD, "bytes": 1, **place} for i in scene.due
    ]
    work.offload(planned, print)
    journal = scene.cluster.journal
    rows = [row for row in journal.find().to_pylist() if row["ledger_id"] in scene.due]
    assert {row["ledger_id"]: (row["outcome"], row["code"]) for row in rows} == dict.fromkeys(
        scene.due, (Outcome.REFUSED, Code.OFFLOADED_ALREADY)
    )
    assert applied_plans(journal, run.cluster, [run.plan_id], 0, [Action.OFFLOAD]) == {run.plan_id: len(scene.due)}
