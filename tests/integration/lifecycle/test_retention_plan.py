"""A retention plan on a real cluster: what expired while nobody had it loaded leaves by metadata, and nothing else.

Its two brokers do by themselves what production's do. The policies are set before anything is written: they trim
nothing, and delete no topic of this test. So few topics of a bundle are loaded at a time that none is split.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg
import pulsar
import pytest

from pulsar_lifecycle.lifecycle.retention_planning import TABLE, run_config
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.settings import CONFIG_VARIABLE
from pulsar_lifecycle.trimming.retention_run import apply_retention
from pulsar_lifecycle.trimming.trim_rules import Stays
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics
from tests.integration.jobs import Jobs
from tests.integration.killed_run import Step, strike
from tests.integration.lifecycle.loads import CONTENTS, filled, notes
from tests.integration.lifecycle.retention import (
    BUNDLES,
    backlog,
    close_earlier,
    keep_inactive_topics,
    loaded,
    retention,
)
from tests.integration.pipeline import (
    Pipeline,
    at_rest,
    existing,
    listed,
    new_namespace,
    read_all,
    transactions,
    wait_listed,
    wait_unlisted,
    wait_until_unloaded_counts,
)
from tests.kit.command import run

pytestmark = pytest.mark.integration

SETTINGS = {
    "orphans": {"grace_period": "7d"},  # what the first phase marked must not wait for it
    "deletion": {"twoPhaseDeletionReconsumeLaterInSeconds": 1},
}


REMOVED = f"action={Action.DELETE_LEDGER!r}, phase={Phase.MARK!r}, outcome={Outcome.REMOVED!r}"
STEPS = [
    Step("queue", "send", after=True, about="step-0"),
    Step("journal", "record", after=True, about="step-1"),
    Step("store", "create", after=True, about="step-2"),
    Step("store", "write", after=False, about="step-3"),
    Step("store", "write", after=True, about="step-4"),
    Step("journal", "record", after=False, about=f"step-5', {REMOVED}"),
    Step("store", "delete_many", after=False, about="step-6"),
    Step("store", "delete_many", after=True, about="step-7"),
]
"""Where a run dies, each at a topic of its own: its message sent, its mark journalled, its unload noted, its z-node
written, its end journalled, its note removed. Their namespace has one bundle, so a run takes them in this order; one is
unloaded before the next is made, or brokers would split that bundle."""
WRITTEN = 4
"""From this step on the topic has been written."""


@pytest.fixture(scope="module")
def sandbox(production: Cluster) -> Cluster:
    return production


def killed(sandbox: Cluster, pipeline: Pipeline, plan: PlanSummary, ids: Mapping[str, list[int]]) -> None:
    """Apply a plan in processes of which each dies at its step, at the topic of its number."""
    for number, step in enumerate(STEPS):
        arguments = {"run_id": f"killed-{number}", "plan_id": plan.plan_id, "digest": plan.digest}
        (struck,) = strike(pipeline.file, "retention", arguments, step).struck()
        assert step.about in struck.arguments
        trimmed = number + (number >= WRITTEN)
        expected = [of[-1:] if place < trimmed else of for place, of in enumerate(ids.values())]
        assert [listed(sandbox, other) for other in ids][: number + 1] == expected[: number + 1], step.name
        with sandbox.metadata() as zk:  # as its server does once the session of the dead one is over
            zk.delete(control.holder_of(control.LEASE))


def json_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    """What a command says with --json."""
    capsys.readouterr()
    assert run(*arguments, "--json") == 0
    return json.loads(capsys.readouterr().out)


def config(plan: PlanSummary, **changes: Any) -> dict[str, Any]:
    ((op, said),) = run_config(plan)["ops"].items()
    return {"ops": {op: {"config": said["config"] | changes}}}


def test_what_expired_while_unloaded_goes_and_no_topic_is_loaded(
    sandbox: Cluster,
    pipelines: Callable[[Mapping[str, Any]], Pipeline],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    namespace, other = (new_namespace(sandbox, name, BUNDLES) for name in ("retention", "changed"))
    struck = new_namespace(sandbox, "struck", 1)
    read, alone, own, live = (f"persistent://{namespace}/{name}" for name in ("read", "alone", "own", "live"))
    changed = f"persistent://{other}/changed"
    steps = [f"persistent://{struck}/step-{number}" for number in range(len(STEPS))]
    contents = topics.payloads(230)
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        for one in (namespace, other, struck):
            retention(admin, one, 60)
            keep_inactive_topics(admin, one)
        consumer = client.subscribe(read, "s", initial_position=pulsar.InitialPosition.Earliest)
        ids = {
            name: list(dict.fromkeys(topics.publish(client, name, contents))) for name in (read, alone, own, changed)
        }
        for message in [consumer.receive(60_000) for _ in range(120)]:
            consumer.acknowledge(message)
        wait_for("the receipts", lambda: backlog(admin, read) == 110)
        consumer.close()
        topics.publish(client, live, contents)
        producer = client.create_producer(live)
        admin.topic("POST", own, "/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
        for name in ids:
            admin.unload(name)
        ids |= {name: filled(client, admin, name, subscribed=False) for name in steps}
        since = time.time()
        close_earlier(sandbox, list(ids))
        wait_unlisted(sandbox, ids)
        wait_listed(sandbox, live)
        wait_until_unloaded_counts(since)

        pipeline = pipelines(SETTINGS)
        with sandbox.metadata() as zk, dg.DagsterInstance.ephemeral() as instance:
            jobs = Jobs(pipeline, instance)
            assert jobs.run("scan").success
            # brokers may delete topics of other tests meanwhile, or move the one that is loaded
            roots = ["/pulsar-lifecycle", *(f"/managed-ledgers/{Topic.parse(name).managed_ledger}" for name in ids)]
            before = at_rest(zk, roots)
            assert jobs.run("plan_retention").success
            page = jobs.page("retention_plan")
            plan, rows = pipeline.where.lake.retention_plan(page["plan id"])
            planned: dict[str, list[int]] = {}
            for row in rows.to_pylist():
                planned.setdefault(row["topic"], []).append(row["ledger_id"])
            expected = {read: ids[read][:2]} | {name: ids[name][:-1] for name in (alone, changed, *steps)}
            assert {name: found for name, found in planned.items() if name in {*ids, live}} == expected
            assert plan.actionable
            assert {row["level"] for row in rows.to_pylist() if row["topic"] in ids} == {"namespace"}
            assert jobs.run("apply_retention", config(plan, dry_run=True)).success
            monkeypatch.setenv(CONFIG_VARIABLE, str(pipeline.file))
            for name, going in expected.items():
                explained = json_of(capsys, "explain", name)
                assert [one["ledger_id"] for one in explained["ledgers"] if one["goes"]] == going
            assert json_of(capsys, "explain", read)["cursors"][0]["unacknowledged"] > 0
            assert not any(one["goes"] for one in json_of(capsys, "explain", live)["ledgers"])
            assert run("explain", read) == 0
            assert transactions(zk, roots) == before
        where = pipeline.where
        stored = where.lake.batches(where.lake.parts(plan.epoch_id, TABLE), ["topic", "kept"])
        kept = {(row["topic"], row["kept"]) for batch in stored for row in batch.to_pylist()}
        assert not {one for one in kept if one[0] in (own, live)}

        retention(admin, other, 600)
        killed(sandbox, pipeline, plan, {name: ids[name] for name in steps})
        found = apply_retention(where, "again", Order(plan.plan_id, plan.digest), dry_run=False)
        said = {one.ledger_id: (one.outcome, one.why.code) for one in found if one.topic in ids}
        assert {said[i][0] for i in ids[read][:2]} <= {Outcome.REMOVED, Outcome.NOTHING}
        assert {said[i] for name in steps for i in ids[name][:-1]} == {(Outcome.NOTHING, Stays.NOT_LISTED)}
        assert notes(sandbox) == []
        assert {said[i] for i in ids[changed][:-1]} == {(Outcome.REFUSED, Code.CHANGED_SINCE_PLAN)}
        assert listed(sandbox, read) == ids[read][2:]
        assert listed(sandbox, own) == ids[own]
        assert listed(sandbox, changed) == ids[changed]
        assert not loaded(sandbox) & set(ids)

        assert listed(sandbox, alone) == ids[alone][-1:]
        gone = {i for name in (read, alone, *steps) for i in expected[name]}
        runs = pipeline.delete_until(lambda: not existing(sandbox, gone))
        assert not existing(sandbox, gone), runs
        assert not loaded(sandbox) & set(ids)
        producer.close()
        assert read_all(client, live, 230) == contents
        assert read_all(client, read, 130) == contents[100:]
        for name in steps:
            assert read_all(client, name, 20) == CONTENTS[50:]
        assert read_all(client, own, 230) == contents
        assert read_all(client, changed, 230) == contents
