"""What an offload run refuses before it begins it: the journal has it, so that its plan counts as taken."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from pulsar_lifecycle.journal.approvals import applied_plans
from pulsar_lifecycle.run_settings import OffloadSettings
from pulsar_lifecycle.tiered.interrupted import Ownership
from pulsar_lifecycle.tiered.offload_work import OffloadWork
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.offload_uuids import OffloadUuids
from pulsar_lifecycle.values.outcomes import Action, Outcome
from pulsar_lifecycle.values.plans.offload_plan import OffloadChoice
from tests.kit.scenes.tiered.copy_deletion_scene import CopyDeletionScene
from tests.kit.scenes.topic_scene import TOPIC
from tests.kit.simulated.offloaded import BUCKET


def offload(scene: CopyDeletionScene) -> tuple[Any, ...]:
    """Work off a plan of what is due; what the journal is asked for then, as ``applied_plans`` takes it."""
    run, ports, guard = scene.begin()
    cluster: Any = SimpleNamespace(settings=SimpleNamespace(offload=OffloadSettings()), ids=SimpleNamespace(uuid=None))
    lease: Any = SimpleNamespace(guard=guard)
    work = OffloadWork(cluster, run, ports, guard, lease, scene.read_check, Ownership("s", OffloadUuids()), (), ())
    work._spread = lambda *_: []
    place = {"driver": "aws-s3", "bucket": BUCKET, "region": "", "endpoint": "", "block_size": 0}
    planned = [
        {"topic": str(TOPIC), "ledger_id": i, "action": OffloadChoice.OFFLOAD, "bytes": 1, **place} for i in scene.due
    ]
    work.offload(planned, print)
    return scene.cluster.journal, run.cluster, [run.plan_id], 0, [Action.OFFLOAD]


def refused(scene: CopyDeletionScene) -> list[tuple[int, str, str]]:
    rows = scene.cluster.journal.find().to_pylist()
    return sorted((row["ledger_id"], row["outcome"], row["code"]) for row in rows if row["action"] == Action.OFFLOAD)


def test_a_plan_whose_ledgers_were_offloaded_meanwhile_is_taken_once_a_run_has_refused_them() -> None:
    """Its scan saw them before another run offloaded them; no row said that a run was over, and it was to go still."""
    scene = CopyDeletionScene()
    asked = offload(scene)
    assert refused(scene) == [(i, Outcome.REFUSED, Code.OFFLOADED_ALREADY) for i in sorted(scene.due)]
    assert applied_plans(*asked) == {asked[2][0]: len(scene.due)}
    assert applied_plans(*asked, [Outcome.REFUSED]) == {}


def test_so_is_one_whose_topic_has_gone() -> None:
    scene = CopyDeletionScene()
    scene.cluster.remove(scene.path)
    asked = offload(scene)
    assert refused(scene) == [(-1, Outcome.REFUSED, Code.TOPIC_GONE)]
    assert applied_plans(*asked) == {asked[2][0]: 1}


def test_what_brokers_have_begun_is_journalled_once() -> None:
    scene = CopyDeletionScene()
    scene.change(scene.due[0], complete=False)
    offload(scene)
    first, *others = refused(scene)
    assert first[:2] == (scene.due[0], Outcome.FOREIGN_ATTEMPT)
    assert [row[:2] for row in others] == [(i, Outcome.REFUSED) for i in scene.due[1:]]
