"""What runs leave on the assets that they changed, and when the UI calls an asset out of sync."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import dagster as dg
import pytest
from dagster._core.errors import DagsterExecutionInterruptedError

from assets.deletion import DELETING, deletion_assets
from assets.lifecycle.retention import plan_shown
from assets.names import APPLIED_PLAN, CLUSTER, EPOCH, PLAN, key
from assets.pages import lineage, show
from assets.pages.failures import refusals_fail
from assets.pages.plan_links import PlanLinks
from orchestration.definitions import build_defs
from pulsar_lifecycle.automation_settings import Automation
from pulsar_lifecycle.errors import LeaseLost, LifecycleError, Paused
from pulsar_lifecycle.journal.effects import NO_EFFECTS, Changed, Effect, added_up, effects_of
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan, run_config
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer
from pulsar_lifecycle.trimming.retention_run import apply_retention
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans import epoch_of
from resources.lifecycle import LifecycleResource
from tests.kit.scenes.assets_scene import observed
from tests.kit.scenes.retention_scene import RetentionScene


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RetentionScene:
    found = RetentionScene(tmp_path, monkeypatch)
    monkeypatch.setattr(LifecycleResource, "cluster", lambda self: found.cluster)
    return found


def applied(scene: RetentionScene, instance: dg.DagsterInstance, *, dry_run: bool) -> tuple[str, str]:
    """Run and plan ids of a retention plan of two ledgers that job ``apply_retention`` applied."""
    scene.topic("a", 100, 100, 100)
    summary, _ = make_retention_plan(scene.cluster, scene.scan())
    config = run_config(summary)
    config["ops"]["trim_expired"]["config"]["dry_run"] = dry_run
    job = build_defs().resolve_job_def("apply_retention")
    result = job.execute_in_process(run_config=config, instance=instance, resources={"lifecycle": LifecycleResource()})
    assert result.success
    return result.run_id, summary.plan_id


def test_a_run_says_what_it_did_on_what_it_changed(scene: RetentionScene) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run_id, plan_id = applied(scene, instance, dry_run=False)
        for name in ("ledger_deletion_topic", "trimmed_ledgers", "retention_plan", "journal"):
            (page,) = observed(instance, name)
            assert page["run"] == run_id
            assert plan_id in page["plans"]
        for name in ("trimmed_ledgers", "journal"):
            (page,) = observed(instance, name)
            assert page["dagster/row_count"] == page["rows of the journal"]
        assert observed(instance, "ledger_deletions") == []
        (queue,) = observed(instance, "ledger_deletion_topic")
        assert queue["rows of the journal"] == 2
        assert "| delete-ledger | send | sent | planned | 2 |" in queue["outcomes"]


def test_a_run_carries_its_cluster_and_plan(scene: RetentionScene) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run_id, plan_id = applied(scene, instance, dry_run=False)
        run = instance.get_run_by_id(run_id)
        assert run is not None
        assert {run.tags[CLUSTER], run.tags[PLAN]} == {"test", plan_id}
        assert found_by_link(instance, plan_id) == [run_id]


def test_a_run_that_found_nothing_left_has_not_applied_its_plan(scene: RetentionScene) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run_id, plan_id = applied(scene, instance, dry_run=False)
        before = instance.get_run_by_id(run_id)
        assert before is not None
        job = build_defs().resolve_job_def("apply_retention")
        resources = {"lifecycle": LifecycleResource()}
        again = job.execute_in_process(run_config=before.run_config, instance=instance, resources=resources)
        assert again.success
        assert found_by_link(instance, plan_id) == [run_id]


def found_by_link(instance: dg.DagsterInstance, plan_id: str) -> list[str]:
    """The runs to which the page of a plan leads."""
    _, _, query = show.applied_by(plan_id).rstrip(")").partition("tag%3A")
    name, _, value = unquote(query).partition("=")
    return [run.run_id for run in instance.get_runs(dg.RunsFilter(tags={name: value}))]


FIRST, SECOND = (f"orphans-20261124T101112000-abc123-1f2{number}" for number in "ef")


def test_a_deletion_run_is_found_from_each_plan_that_it_applied(scene: RetentionScene) -> None:
    """Its queue has messages of several."""
    with dg.DagsterInstance.ephemeral() as instance:
        run_id = deleted(scene, FIRST, SECOND).execute_in_process(instance=instance, raise_on_error=False).run_id
        assert found_by_link(instance, FIRST) == found_by_link(instance, SECOND) == [run_id]


def test_a_run_executed_again_is_not_found_from_plans_that_it_did_not_apply(scene: RetentionScene) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        before = deleted(scene, FIRST, SECOND).execute_in_process(instance=instance, raise_on_error=False).run_id
        ran = instance.get_run_by_id(before)
        assert ran is not None
        again = deleted(scene, SECOND).execute_in_process(instance=instance, tags=ran.tags, raise_on_error=False).run_id
        assert found_by_link(instance, FIRST) == [before]
        assert set(found_by_link(instance, SECOND)) == {before, again}


@pytest.mark.parametrize("plan_id", ["no-plan-of-ours", "orphans-a/b", f"orphans-{'a' * 60}"])
def test_a_plan_id_that_a_message_made_up_is_no_tag(scene: RetentionScene, plan_id: str) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run_id = deleted(scene, plan_id).execute_in_process(instance=instance, raise_on_error=False).run_id
        run = instance.get_run_by_id(run_id)
        assert run is not None
        assert not [name for name in run.tags if name.startswith(APPLIED_PLAN)]


def test_a_dry_run_leaves_nothing(scene: RetentionScene) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run_id, _ = applied(scene, instance, dry_run=True)
        assert observed(instance, "trimmed_ledgers") == observed(instance, "journal") == []
        run = instance.get_run_by_id(run_id)
        assert run is not None
        assert PLAN not in run.tags


def test_a_run_that_fails_says_what_it_had_done(scene: RetentionScene) -> None:
    """The journal knows, whatever became of the run."""
    scene.topic("a", 100, 100, 100)
    summary, _ = make_retention_plan(scene.cluster, scene.scan())

    @dg.op
    def fails(context) -> None:
        with lineage.noted(context, scene.cluster, summary.plan_id):
            apply_retention(scene.cluster, context.run_id, Order(summary.plan_id, summary.digest), dry_run=False)
            raise RuntimeError

    @dg.job
    def failing() -> None:
        fails()

    with dg.DagsterInstance.ephemeral() as instance:
        assert not failing.execute_in_process(instance=instance, raise_on_error=False).success
        assert len(observed(instance, "trimmed_ledgers")) == 1


def record_deleted(scene: RetentionScene, run_id: str, plan_id: str) -> None:
    """Journal that a run deleted a ledger by a plan."""
    row = Writer(run_id, "test", plan_id).row(
        Step(Action.DELETE_LEDGER, Phase.DELETE),
        Subject(7, "Managed-Ledger", "persistent://acme/orders/a", 100),
        Outcome.DELETED,
        Why(Code.UNREFERENCED, "nothing refers to it"),
        scene.now,
    )
    scene.cluster.journal.record([row])


def deleted(scene: RetentionScene, *plans: str, ends: BaseException | None = None) -> dg.JobDefinition:
    """Job of an asset that says that each plan deleted a ledger, and then, if one did, ends otherwise than well."""

    @dg.asset(key=key("test", "ledger_deletions"), output_required=False)
    def ledger_deletions(context) -> Iterator[Any]:
        with lineage.noted(context, scene.cluster):
            for plan in plans:
                record_deleted(scene, context.run.run_id, plan)
            if plans:
                raise ends or RuntimeError
        yield dg.MaterializeResult()

    defs = dg.Definitions([ledger_deletions], jobs=[dg.define_asset_job("delete", selection="*")])
    return defs.resolve_job_def("delete")


@pytest.mark.parametrize("ends", [RuntimeError(), DagsterExecutionInterruptedError()])
def test_a_deletion_run_that_ends_early_is_on_the_page_of_what_it_deleted(
    scene: RetentionScene, ends: BaseException
) -> None:
    """It materializes nothing."""
    with dg.DagsterInstance.ephemeral() as instance:
        with suppress(DagsterExecutionInterruptedError):
            deleted(scene, "orphans-e0-1", ends=ends).execute_in_process(instance=instance, raise_on_error=False)
        (page,) = observed(instance, "ledger_deletions")
        assert "| delete-ledger | delete | deleted | unreferenced | 1 |" in page["outcomes"]
        journal, since = scene.cluster.journal_reader, scene.now - lineage.CLOCKS_APART_MS
        plans = lineage.plans_shown(instance, "test", effects_of(journal, "test", page["run"], since)).value
        assert plans == f"- {show.applied_by('orphans-e0-1')}"
        nothing = effects_of(journal, "test", "another", since)
        assert lineage.plans_shown(instance, "test", nothing).value == show.NOTHING


@pytest.mark.parametrize("ends", [RuntimeError(), DagsterExecutionInterruptedError()])
def test_a_deletion_run_that_ends_early_is_on_the_pages_of_its_namespaces(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch, ends: BaseException
) -> None:
    """No later run says it: each says what it deleted itself."""
    spark: Any = object()
    scene.cluster = replace(scene.cluster, session=spark)

    def ended(where: Cluster, run_id: str) -> None:
        record_deleted(scene, run_id, FIRST)
        raise ends

    monkeypatch.setattr("pulsar_lifecycle.deletion.deletion_run.delete_pending", ended)
    job = dg.define_asset_job(DELETING, selection="*")
    defs = dg.Definitions([deletion_assets("test")[2]], jobs=[job], resources={"lifecycle": LifecycleResource()})
    with dg.DagsterInstance.ephemeral() as instance:
        with suppress(DagsterExecutionInterruptedError):
            defs.resolve_job_def(DELETING).execute_in_process(instance=instance, raise_on_error=False)
        (record,) = instance.fetch_materializations(key("test", "deletions_by_namespace"), limit=9).records
        assert record.partition_key == "acme/orders"
        assert record.asset_materialization
        assert record.asset_materialization.metadata["deleted by"].value == record.run_id
        assert len(observed(instance, "ledger_deletions")) == 1


def killed(scene: RetentionScene, instance: dg.DagsterInstance, *plans: str) -> str:
    """A run that deleted a ledger by each plan, and died before it could write that on any page; its id.

    Dagster dates runs by its host's clock, so the journal's rows are to have that, too.
    """
    scene.servers.clock.advance(time.time() - scene.now / 1000)
    run = instance.add_run(dg.DagsterRun(DELETING, tags={CLUSTER: "test"}, status=dg.DagsterRunStatus.STARTED))
    for plan in plans:
        record_deleted(scene, run.run_id, plan)
    instance.report_run_failed(run, "its process ended")
    return run.run_id


def test_what_a_killed_run_did_is_written_by_the_next_run_once(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the name of who did it: pages lead to that run, and the page of its plan, too."""
    monkeypatch.setattr(lineage, "ENDS_WITHIN", 0.0)
    with dg.DagsterInstance.ephemeral() as instance:
        dead = killed(scene, instance, FIRST)
        for _ in range(2):
            assert deleted(scene).execute_in_process(instance=instance).success
            for name in ("ledger_deletions", "deletion_plan", "journal"):
                (record,) = instance.fetch_observations(key("test", name), limit=9).records
                assert record.run_id == dead
            (record,) = instance.fetch_materializations(key("test", "deletions_by_namespace"), limit=9).records
            assert (record.run_id, record.partition_key) == (dead, "acme/orders")
            assert found_by_link(instance, FIRST) == [dead]


def test_what_a_failed_run_wrote_itself_is_not_written_again(
    scene: RetentionScene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lineage, "ENDS_WITHIN", 0.0)
    with dg.DagsterInstance.ephemeral() as instance:
        deleted(scene, FIRST).execute_in_process(instance=instance, raise_on_error=False)
        killed(scene, instance)  # before it did anything
        assert deleted(scene).execute_in_process(instance=instance).success
        assert len(observed(instance, "ledger_deletions")) == 1


def test_a_run_that_was_refused_before_it_did_anything_is_not_among_those_that_applied_the_plan(
    scene: RetentionScene,
) -> None:
    """Such as while the cluster is paused. It still says by its tag which plan it was to apply."""

    @dg.op
    def refused(context) -> None:
        with lineage.noted(context, scene.cluster, FIRST):
            raise dg.Failure("refused: paused")

    @dg.job
    def applying() -> None:
        refused()

    with dg.DagsterInstance.ephemeral() as instance:
        run = instance.get_run_by_id(applying.execute_in_process(instance=instance, raise_on_error=False).run_id)
        assert run is not None
        assert run.tags[PLAN] == FIRST
        assert found_by_link(instance, FIRST) == []


@pytest.mark.parametrize("error", [Paused("paused: why"), LeaseLost("another's")])
def test_a_run_that_was_stopped_half_way_was_not_refused(scene: RetentionScene, error: LifecycleError) -> None:
    """It says where what it had done is to be found; before it did anything, it was refused."""
    with dg.DagsterInstance.ephemeral() as instance:

        def words(ran: dg.ExecuteInProcessResult) -> str:
            (event,) = (one for one in ran.all_events if one.is_step_failure)
            failure = event.step_failure_data.user_failure_data
            return str(failure and failure.description)

        @dg.op
        @refusals_fail()
        def stops(context) -> None:
            with lineage.noted(context, scene.cluster, FIRST):
                if "acts" in context.run.tags:
                    record_deleted(scene, context.run.run_id, FIRST)
                raise error

        @dg.job
        def stopped() -> None:
            stops()

        early = stopped.execute_in_process(instance=instance, raise_on_error=False)
        assert words(early) == f"refused: {error}"
        late = stopped.execute_in_process(instance=instance, tags={"acts": "yes"}, raise_on_error=False)
        assert words(late).startswith(f"stopped: {error}; `pulsar-lifecycle journal --run {late.run_id}`")
        assert found_by_link(instance, FIRST) == [late.run_id]


def test_a_run_executed_again_does_not_keep_the_plan_of_the_run_before(scene: RetentionScene) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        result = deleted(scene).execute_in_process(instance=instance, tags={PLAN: "orphans-e0-1", EPOCH: "e0"})
        run = instance.get_run_by_id(result.run_id)
        assert run is not None
        assert {run.tags[PLAN], run.tags[EPOCH]} == {"none"}


def test_every_action_changes_something_or_is_known_not_to() -> None:
    """A new action of the journal has to say which asset it changes."""
    unchanging = [
        action
        for action in Action
        if action not in (*NO_EFFECTS, Action.DELETE_LEDGER, Action.DELETE_OFFLOADED)
        and Effect("", action, "another", "", "", 1, 0).changed is None
    ]
    assert unchanging == []
    assert Effect("", Action.DELETE_LEDGER, Phase.SEND, "sent", "", 1, 0).changed is Changed.QUEUE


def test_words_of_another_version_change_nothing() -> None:
    assert Effect("", "invented", "later", "", "", 1, 0).changed is None


def test_effects_of_other_runs_and_clusters_are_not_counted(scene: RetentionScene) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        run_id, _ = applied(scene, instance, dry_run=False)
    journal, now = scene.cluster.journal_reader, scene.now
    assert added_up(effects_of(journal, "test", run_id, now - 3_600_000))
    assert effects_of(journal, "other", run_id, 0) == effects_of(journal, "test", "another", 0) == []


@pytest.mark.parametrize(
    ("plan_id", "epoch"),
    [
        ("orphans-20261124T101112000-abc123-1f2e", "20261124T101112000-abc123"),
        ("inactive-topics-20261124T101112000-abc123-1f2e", "20261124T101112000-abc123"),
        ("by hand", ""),
    ],
)
def test_a_plans_id_says_its_scan(plan_id: str, epoch: str) -> None:
    assert epoch_of(plan_id) == epoch


def test_the_page_of_a_plan_leads_to_the_runs_that_applied_it(scene: RetentionScene) -> None:
    scene.topic("a", 100, 100)
    summary, _ = make_retention_plan(scene.cluster, scene.scan())
    how = show.planned(summary, run_config(summary), job="apply_retention", nothing="")["how to apply"]
    assert f"/runs?view=runs&q%5B0%5D=tag%3Alifecycle.plan%2F{summary.plan_id}%3Dapplied" in str(how.value)
    assert f"pulsar-lifecycle plan {summary.plan_id} --json" in str(how.value)


@pytest.mark.parametrize("mode", Automation)
def test_how_to_apply_a_plan_is_read_without_a_click(scene: RetentionScene, mode: Automation) -> None:
    scene.topic("a", 100, 100)
    summary, rows = make_retention_plan(scene.cluster, scene.scan())
    plan_id = "retention-20261124T101112000-abc123-1f2e"
    how = plan_shown(replace(summary, plan_id=plan_id), rows, mode)["how to apply"]
    assert "apply_retention" in str(how.value)
    assert len(str(how.value)) < show.INLINE


def test_an_effect_of_a_scans_plan_names_the_scan() -> None:
    effect = Effect("orphans-20261124T101112000-abc123-1f2e", "delete-ledger", "send", "sent", "", 3, 30)
    with dg.DagsterInstance.ephemeral() as instance:
        queue = lineage.events_of([effect], "test", "run", PlanLinks(instance, "test"))[0]
    assert queue.metadata[EPOCH].value == "20261124T101112000-abc123"


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.PREPARED, Outcome.REVERTED, Outcome.BOOKKEEPER_DELETED])
def test_a_namespace_is_materialized_only_by_what_was_offloaded(outcome: Outcome) -> None:
    """A run that ended before is an observation: a materialization looks like a success."""
    names = ("persistent://acme/orders/a", "persistent://acme/other/b")
    one, another = (Effect("", Action.OFFLOAD, "offload", outcome, name, 2, 20) for name in names)
    done = replace(one, outcome=Outcome.OFFLOADED, rows=3, bytes=30)
    with dg.DagsterInstance.ephemeral() as instance:
        events = lineage.events_of([one, done, another], "test", "run", PlanLinks(instance, "test"))
    orders, other = [event for event in events if event.partition]
    assert isinstance(orders, dg.AssetMaterialization)
    assert [orders.metadata[name].value for name in ("dagster/row_count", "bytes")] == [3, 30]
    assert isinstance(other, dg.AssetObservation)
    assert (other.partition, "dagster/row_count" in other.metadata) == ("acme/other", False)


def test_materializing_the_deletions_deletes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Materialize all, and the button of the asset itself, start an asset job of Dagster's own."""

    def never(self: LifecycleResource) -> None:
        raise AssertionError

    monkeypatch.setattr(LifecycleResource, "cluster", never)
    deletions = deletion_assets("pulsar")[2]
    assert deletions.key == key("pulsar", "ledger_deletions")
    with dg.DagsterInstance.ephemeral() as instance:
        result = dg.materialize([deletions], instance=instance, resources={"lifecycle": LifecycleResource()})
        assert result.success
        assert instance.get_latest_materialization_event(key("pulsar", "ledger_deletions")) is None
