"""Switching two-phase deletion off with intents in flight and on again; deriving intents again; a restored store."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import dagster as dg
import pytest

from assets.reconcile import run_config
from orchestration.definitions import build_defs
from pulsar_lifecycle.cli import main
from pulsar_lifecycle.deletion.reconcile import Reconciled, reconcile
from pulsar_lifecycle.deletion.redrive import LetterFilter, redrive_now
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.journal.intents import IntentState
from pulsar_lifecycle.journal.queries import read_intent_states
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.values.gaps import GapCode
from pulsar_lifecycle.values.refusals import RefusalCode
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting import plant, topics, verify, znodes
from sandbox.planting.seed import Live
from tests.integration.deletion.forgery import forged
from tests.integration.pipeline import (
    PATIENT,
    Pipeline,
    drain,
    emptied,
    existing,
    new_namespace,
    send,
    wait_unlisted,
    waiting,
)
from tests.kit.refused import refused_by

pytestmark = pytest.mark.integration


def leaks(sandbox: Cluster, namespace: str, count: int) -> set[int]:
    """Orphans of one topic that is gone."""
    return {plant.young(sandbox, f"persistent://{namespace}/leaked")[0].ledger_id for _ in range(count)}


def test_off_with_intents_in_flight_a_restart_without_us_and_on_again(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "rollback")
    leaked = f"persistent://{namespace}/gone"
    orphans = {entry.ledger_id for entry in plant.orphan_data(sandbox, leaked)} | leaks(sandbox, namespace, 6)
    wait_unlisted(sandbox, [leaked])
    pipeline = pipelines({"deletion": PATIENT})
    planned = pipeline.confirmed_plan()
    assert orphans <= planned.ids
    applied = pipeline.apply(pipeline.order(planned))

    off = pipelines({"deletion": {"topicTwoPhaseDeletionEnabled": False}}, lake=pipeline.lake)
    order = off.order(planned)
    before = existing(sandbox, planned.ids)
    for effect in (
        lambda: off.apply(order),
        lambda: off.scan_and_delete("off"),
        lambda: trim_run.trim(off.where, "off", [], dry_run=False),
        lambda: trim_run.delete_topics(off.where, "off", [Topic.parse(leaked)], force=False, dry_run=False),
        lambda: redrive_now(off.where, "off", LetterFilter(), 10, lambda _: None),
        lambda: reconciled(off, [namespace], apply=True),
    ):
        with refused_by(RefusalCode.SWITCHED_OFF):
            effect()
    assert waiting(sandbox) == applied.sent
    assert existing(sandbox, planned.ids) == before

    # Meanwhile the cluster lives on: brokers restart, topics are written and deleted, ledgers come and go.
    sandbox.restart("broker-1")
    live = f"persistent://{namespace}/live"
    contents = topics.payloads(130)
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        topics.publish(client, live, contents)
        topics.publish(client, f"persistent://{namespace}/passing", topics.payloads(60))
        admin.topic("DELETE", f"persistent://{namespace}/passing", "?force=true")
    with sandbox.metadata() as zk:
        listed = set(znodes.listed_ledgers(zk, live))
        taken = min(orphans)  # someone restored or deleted one by hand
        zk.delete(znodes.ledger_znode(taken))
    send(sandbox, forged(sandbox, listed))
    assert waiting(sandbox) == applied.sent + len(listed)

    outcomes = pipeline.scan_and_delete("on")
    assert emptied(sandbox), outcomes
    assert not existing(sandbox, orphans)
    for ledger in planned.ids:
        rows = [(row["run_id"], row["outcome"]) for row in pipeline.journal(ledger)]
        assert rows == [("on", "gone" if ledger == taken else "deleted")]
    assert existing(sandbox, listed) == listed
    assert {row["outcome"] for ledger in listed for row in pipeline.journal(ledger)} == {"kept"}
    assert verify.read_back(sandbox, [Live(live, len(contents), topics.digest(contents))]) == []


def reconciled(pipeline: Pipeline, namespaces: list[str], *, apply: bool, resend: bool = False) -> Reconciled:
    run_id = f"reconcile-{uuid4().hex[:6]}"
    return reconcile(pipeline.where, run_id, namespaces, apply=apply, resend=resend, progress=lambda _: None)


def test_intents_that_the_queue_lost_are_derived_again_for_the_chosen_namespaces(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    drain(sandbox)
    chosen, other = new_namespace(sandbox, "chosen"), new_namespace(sandbox, "other")
    ours, theirs = leaks(sandbox, chosen, 4), leaks(sandbox, other, 2)
    pipeline = pipelines({"apply": {"max_share": 1.0}})
    pipeline.scan()
    pipeline.scan()
    first = reconciled(pipeline, [chosen], apply=False)
    assert set(first.rows.column("ledger_id").to_pylist()) == ours
    assert [(s.namespace, s.orphans, s.in_flight) for s in first.namespace_intents] == [(chosen, 4, 0)]
    assert (first.applied, waiting(sandbox)) == (None, 0)

    sent = reconciled(pipeline, [chosen], apply=True)
    assert sent.applied is not None
    assert (sent.applied.sent, waiting(sandbox)) == (4, 4)
    intent_states = read_intent_states(FileJournal(pipeline.lake), "sandbox").to_pylist()
    assert {row["ledger_id"]: row["state"] for row in intent_states} == dict.fromkeys(ours, IntentState.IN_FLIGHT)

    again = reconciled(pipeline, [chosen, other], apply=True)  # what is in flight is not sent twice
    assert again.applied is not None
    assert (again.applied.sent, waiting(sandbox)) == (2, 6)
    assert reconciled(pipeline, [chosen], apply=False, resend=True).summary.ledgers == 4

    drain(sandbox)  # the queue is lost, as after a restore
    lost = reconciled(pipeline, [chosen, other], apply=True)
    assert lost.applied is not None
    assert (lost.applied.sent, waiting(sandbox)) == (6, 6)
    runs = pipeline.delete_until(lambda: not existing(sandbox, ours | theirs))
    assert not existing(sandbox, ours | theirs), runs
    after = reconciled(pipeline, [chosen, other], apply=True)
    assert after.applied is None
    assert [(s.orphans, s.in_flight, s.settled) for s in after.namespace_intents] == [(0, 0, 4), (0, 0, 2)]


def test_an_operator_reconciles_in_the_ui(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> None:
    """A namespace of which only a leak is left can be chosen; asset and job do the same and send nothing unasked."""
    drain(sandbox)
    namespace = new_namespace(sandbox, "ui")
    leaks(sandbox, namespace, 3)
    pipeline = pipelines({"apply": {"max_share": 1.0}})
    defs = build_defs(str(pipeline.file))
    quiet = {"loggers": {"console": {"config": {"log_level": "ERROR"}}}}
    name = dg.AssetKey(["sandbox", "namespace_reconciliation"])
    with dg.DagsterInstance.ephemeral() as instance:

        def shown() -> list[tuple[int, int]]:
            records = instance.fetch_materializations(
                dg.AssetRecordsFilter(name, asset_partitions=[namespace]), limit=9
            )
            pages = [record.asset_materialization for record in records.records]
            names = ("confirmed orphans", "in flight by the journal")
            return [tuple(page.metadata[name].value for name in names) for page in pages if page]  # type: ignore[misc]

        for _ in range(2):
            defs.resolve_job_def("scan").execute_in_process(run_config=quiet, instance=instance)
        assert namespace in instance.get_dynamic_partitions("namespaces_sandbox")
        asset_job = defs.resolve_implicit_global_asset_job_def()
        backfill = {"ops": {"sandbox__namespace_reconciliation": {"config": {"dry_run": False}}}}
        for config, sent in (({}, 0), (backfill, 3)):
            asset_job.execute_in_process(
                run_config={**quiet, **config}, instance=instance, asset_selection=[name], partition_key=namespace
            )
            assert (shown()[0], waiting(sandbox)) == ((3, 0), sent)
        drain(sandbox)  # as if the queue had been lost
        job = defs.resolve_job_def("reconcile_namespaces")
        for dry_run, sent in ((True, 0), (False, 3)):
            job.execute_in_process(run_config={**quiet, **run_config([namespace], dry_run=dry_run)}, instance=instance)
            assert (shown()[0], waiting(sandbox)) == ((3, 3), sent)
        pending = defs.resolve_implicit_global_asset_job_def().execute_in_process(
            run_config=quiet, instance=instance, asset_selection=[dg.AssetKey(["sandbox", "pending_deletions"])]
        )
        (event,) = pending.get_asset_materialization_events()
        assert event.materialization.metadata["dagster/row_count"].value == 3
        assert event.materialization.metadata["ledgers sent so far"].value == 6


def test_a_store_that_went_back_is_report_only_until_it_is_accepted(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    """As if the newest scan had been made of a later state than the one that is there now."""
    namespace = new_namespace(sandbox, "restored")
    orphans = leaks(sandbox, namespace, 2)
    pipeline = pipelines()
    pipeline.scan()
    newest = pipeline.scan()
    planned = pipeline.plan(newest)
    assert planned.summary.actionable, planned.summary.gaps
    document = Path(pipeline.lake, "epochs", newest.epoch_id, "epoch.json")
    document.write_text(json.dumps({**json.loads(document.read_text()), "zxid": newest.zxid + (1 << 33)}))
    for effect in (
        lambda: pipeline.apply(pipeline.order(planned)),
        pipeline.delete_pending,
        lambda: trim_run.trim(pipeline.where, "back", [], dry_run=False),
    ):
        with refused_by(RefusalCode.STORE_WENT_BACK):
            effect()
    back = pipeline.scan()
    assert back.broken
    assert back.broken.code is GapCode.HISTORY_BROKEN
    assert not pipeline.plan(back).summary.actionable

    main_exit(pipeline, "accept-restore", "the test did it")
    with refused_by(RefusalCode.SCAN_GONE):
        pipeline.apply(pipeline.order(planned))
    pipeline.scan()
    fresh = pipeline.plan(pipeline.scan())
    assert fresh.summary.actionable, fresh.summary.gaps
    assert orphans <= fresh.ids


def main_exit(pipeline: Pipeline, *arguments: str) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--config", str(pipeline.file), *arguments])
    assert not end.value.code
