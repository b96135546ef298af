"""On which assets each job with effects leaves its observation, by the rows that it journals."""

from __future__ import annotations

import dagster as dg
import pytest

from assets.names import EPOCH
from assets.pages import lineage, show
from assets.pages.plan_links import PlanLinks
from orchestration.definitions import build_defs
from pulsar_lifecycle.journal.effects import NO_EFFECTS, Effect
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans.plan_kind import PlanKind

SCAN = "20261124T101112000-abc123"
QUEUE, DELETED, TRIMMED = "ledger_deletion_topic", "ledger_deletions", "trimmed_ledgers"
LOADS = (Phase.LOAD, Phase.UNSUBSCRIBE, Phase.EXPIRE, Phase.TRIM, Phase.UNLOAD)
RECORDS = (Phase.MOVE_CURSOR, Phase.ROLL, Phase.NO_UNDO, Phase.RAISE)
CASES = [
    ("apply_plan", PlanKind.ORPHANS, Action.DELETE_LEDGER, Phase.SEND, Outcome.SENT, {QUEUE, "deletion_plan"}),
    (
        "reconcile", PlanKind.RECONCILE, Action.DELETE_LEDGER, Phase.SEND, Outcome.SENT,
        {QUEUE, "namespace_reconciliation"},
    ),
    ("redrive", None, Action.DELETE_LEDGER, Phase.REDRIVE, Outcome.SENT, {QUEUE}),
    (
        "delete", PlanKind.ORPHANS, Action.DELETE_LEDGER, Phase.DELETE, Outcome.DELETED,
        {DELETED, "deletion_plan", "archive"},
    ),
    ("delete, kept", PlanKind.ORPHANS, Action.DELETE_LEDGER, Phase.DELETE, Outcome.KEPT, {DELETED, "deletion_plan"}),
    ("undo", None, Action.DELETE_LEDGER, Phase.UNDO, Outcome.RESTORED, {DELETED}),
    ("trim", None, Action.DELETE_LEDGER, Phase.MARK, Outcome.REMOVED, {TRIMMED}),
    ("retention", PlanKind.RETENTION, Action.DELETE_LEDGER, Phase.MARK, Outcome.REMOVED, {TRIMMED, "retention_plan"}),
    (
        "offload", PlanKind.OFFLOAD, Action.OFFLOAD, Phase.OFFLOAD, Outcome.OFFLOADED,
        {"offloaded_ledgers", "offload_plan"},
    ),
    (
        "copy", PlanKind.OFFLOAD, Action.COPY_DELETION, Phase.COPY_DELETION, Outcome.BOOKKEEPER_DELETED,
        {"offloaded_ledgers", "offload_plan"},
    ),
    ("read check", None, Action.READ_CHECK, Phase.READ_CHECK, Outcome.VERIFIED, {"offloaded_ledgers"}),
    ("sweep", PlanKind.OBJECTS, Action.DELETE_OFFLOADED, Phase.SEND, Outcome.SENT, {QUEUE, "orphan_objects"}),
    (
        "swept", PlanKind.OBJECTS, Action.DELETE_OFFLOADED, Phase.DELETE, Outcome.DELETED,
        {DELETED, "orphan_objects", "archive"},
    ),
    (
        "sweep of an upload", PlanKind.OBJECTS, Action.ABORT_UPLOAD, Phase.ABORT_UPLOAD, Outcome.ABORTED,
        {"object_store", "orphan_objects"},
    ),
    *(("load", PlanKind.LOAD, Action.LOAD_TOPIC, one, Outcome.DONE, {TRIMMED, "load_plan"}) for one in LOADS),
    *(("records", PlanKind.DELETE_RECORDS, Action.DELETE_RECORDS, one, Outcome.DONE, {TRIMMED}) for one in RECORDS),
    ("collect by hand", None, Action.COLLECT_BOOKIE, Phase.COLLECT_BOOKIE, Outcome.COLLECTED, {"bookie_disk"}),
    (
        "collect", PlanKind.COLLECTION, Action.COLLECT_BOOKIE, Phase.COLLECT_BOOKIE, Outcome.COLLECTED,
        {"bookie_disk", "collection_plan"},
    ),
    ("suspend", None, Action.SUSPEND_COMPACTION, Phase.SUSPEND_COMPACTION, Outcome.DONE, {"bookie_disk"}),
    ("resume", None, Action.RESUME_COMPACTION, Phase.RESUME_COMPACTION, Outcome.DONE, {"bookie_disk"}),
    (
        "inactive topic", PlanKind.INACTIVE_TOPICS, Action.DELETE_TOPIC, Phase.DELETE_TOPIC, Outcome.DONE,
        {TRIMMED, "inactive_topics_plan"},
    ),
    (
        "inactive subscription", PlanKind.INACTIVE_SUBSCRIPTIONS, Action.DELETE_SUBSCRIPTION, Phase.DELETE_SUBSCRIPTION,
        Outcome.DONE, {"inactive_cursors", "inactive_cursors_plan"},
    ),
    (
        "repair", PlanKind.DELAYED_INDEX, Action.REPAIR_INDEX, Phase.REPAIR_INDEX, Outcome.DONE,
        {"delayed_index_buckets", "delayed_index_plan"},
    ),
    (
        "snapshot", PlanKind.DELAYED_INDEX, Action.WRITE_SNAPSHOT, Phase.WRITE_SNAPSHOT, Outcome.DONE,
        {"delayed_index_buckets", "delayed_index_plan"},
    ),
]  # fmt: skip


@pytest.fixture(scope="module")
def assets() -> set[str]:
    """The assets of the code location."""
    return {key.path[-1] for key in build_defs().get_repository_def().asset_graph.get_all_asset_keys()}


@pytest.mark.parametrize(
    ("plan", "action", "phase", "outcome", "changed"),
    [case[1:] for case in CASES],
    ids=[f"{case[0]} {case[3].value}" for case in CASES],
)
def test_a_job_is_observed_on_what_it_changes_and_on_its_plan(
    assets: set[str], plan: PlanKind | None, action: Action, phase: Phase, outcome: Outcome, changed: set[str]
) -> None:
    plan_id = f"{plan}-{SCAN}-1f2e" if plan else ""
    effect = Effect(plan_id, action, phase, outcome, "persistent://acme/orders/a", 3, 30, "planned")
    with dg.DagsterInstance.ephemeral() as instance:
        events = lineage.events_of([effect], "test", "run", PlanLinks(instance, "test"))
    of_all = [event for event in events if not event.partition]
    assert sorted(event.asset_key.path[-1] for event in of_all) == sorted({*changed, "journal"})
    for event in of_all:
        assert event.asset_key.path[-1] in assets
        assert isinstance(event, dg.AssetObservation)
        assert (event.metadata["run"].value, event.metadata["rows of the journal"].value) == ("run", 3)
        assert f"| {action} | {phase} | {outcome} | planned | 3 | 30 B |" in str(event.metadata["outcomes"].value)
        assert (plan_id or show.NOTHING) in str(event.metadata["plans"].value)
        assert (event.metadata[EPOCH].value if plan else "") == (SCAN if plan else "")


def test_every_action_with_effects_is_among_them() -> None:
    """A new action stands here, too, with the asset that it changes."""
    assert {case[2] for case in CASES} == set(Action) - NO_EFFECTS
