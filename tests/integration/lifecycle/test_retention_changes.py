"""What becomes of topics between a retention plan and its application: nothing goes but what the plan could know.

Its two brokers do by themselves what production's do: what they have loaded they trim within seconds.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from typing import Any

import dagster as dg
import pulsar
import pytest

from pulsar_lifecycle.inspect.automation import KINDS, decision_of
from pulsar_lifecycle.lifecycle.retention_planning import TABLE, make_retention_plan
from pulsar_lifecycle.lifecycle.verdicts import RetentionVerdict
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.trimming.retention_run import apply_retention
from pulsar_lifecycle.values.outcomes import Outcome
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting import topics
from tests.integration.jobs import Jobs
from tests.integration.killed_run import killed_after
from tests.integration.lifecycle.retention import BUNDLES, close_earlier, loaded, retention
from tests.integration.pipeline import Pipeline, listed, new_namespace, wait_unlisted, wait_until_unloaded_counts

pytestmark = pytest.mark.integration

CONTENTS = topics.payloads(230)
"""Five ledgers: the sandbox's have 50 entries."""
LATER = topics.payloads(10, "later")
SESSION = 5.0
"""Seconds after which ZooKeeper gives up a run that was killed."""
SETTINGS = {
    "automation": {"retention": {"mode": "apply", "max_share": 1.0}},
    "zookeeper": {"session_timeout": f"{SESSION:g}s"},
}


@pytest.fixture(scope="module")
def sandbox(production: Cluster) -> Cluster:
    return production


def contents(client: pulsar.Client, topic: str) -> list[bytes]:
    """All that a reader finds from the earliest message on."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found: list[bytes] = []
    while reader.has_message_available():
        found.append(reader.read_next(60_000).data())
    reader.close()
    return found


def test_topics_that_changed_since_the_plan_lose_nothing_and_the_rest_goes(
    sandbox: Cluster, pipelines: Callable[[Mapping[str, Any]], Pipeline]
) -> None:
    namespace, by_schedule, while_killed = (
        new_namespace(sandbox, name, BUNDLES) for name in ("changing", "kept", "struck")
    )
    names = ("still", "written", "rewound", "deleted", "recreated", "loaded")
    still, written, rewound, deleted, recreated, live = (f"persistent://{namespace}/{name}" for name in names)
    nightly = f"persistent://{by_schedule}/nightly"
    struck = [f"persistent://{while_killed}/{number}" for number in range(6)]
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        ids: dict[str, list[int]] = {}
        for name in (still, written, rewound, deleted, recreated, live, nightly, *struck):
            client.subscribe(name, "s", initial_position=pulsar.InitialPosition.Earliest).close()
            ids[name] = list(dict.fromkeys(topics.publish(client, name, CONTENTS)))
            admin.topic("POST", name, "/subscription/s/skip_all")
            admin.unload(name)
        retention(admin, namespace, 60)
        close_earlier(sandbox, list(ids))
        wait_unlisted(sandbox, ids)
        wait_until_unloaded_counts(time.time())
        pipeline = pipelines(SETTINGS)
        plan = plan_of(pipeline)
        planned: dict[str, list[int]] = {}
        for row in pipeline.where.lake.retention_plan(plan["plan id"])[1].to_pylist():
            planned.setdefault(row["topic"], []).append(row["ledger_id"])
        assert {name: planned.get(name) for name in ids} == {
            name: None if name in (nightly, *struck) else of[:-1] for name, of in ids.items()
        }

        retention(admin, namespace, -1)  # a broker that loads a topic for the test trims nothing meanwhile
        topics.publish(client, written, LATER)
        admin.topic("POST", rewound, "/subscription/s/resetcursor/0")
        for name in (deleted, recreated):
            admin.topic("DELETE", name, "?force=true")
        topics.publish(client, recreated, LATER)
        for name in (written, rewound, recreated):
            admin.unload(name)
        producer = client.create_producer(live)
        retention(admin, namespace, 60)
        wait_unlisted(sandbox, [written, rewound, recreated])
        wait_until_unloaded_counts(time.time())

        epoch = pipeline.scan()  # the second one, with a cursor moved back since the first
        _, rows = make_retention_plan(pipeline.where, epoch)
        assert {row["topic"] for row in rows.to_pylist()} & set(ids) == {still, written}
        kept = {row["ledger_id"]: row["kept"] for row in expired_ledgers(pipeline, epoch.epoch_id)}
        held = ids[rewound][:-1]  # the last one of then is young again
        assert [kept[ledger_id] for ledger_id in held] == [RetentionVerdict.CURSOR] * len(held)

        done = apply_retention(pipeline.where, "late", Order(plan["plan id"], plan["digest"]), dry_run=False)
        ours = {ledger_id for of in ids.values() for ledger_id in of}  # other tests leave expired topics here, too
        gone = ours & {one.ledger_id for one in done if one.outcome is Outcome.REMOVED}
        assert set(ids[still][:-1]) <= gone
        assert gone <= {*ids[still][:-1], *ids[written][:-1]}
        assert listed(sandbox, still) == ids[still][-1:]
        assert listed(sandbox, rewound)[:5] == ids[rewound]
        assert not {still, written, rewound, recreated, deleted} & loaded(sandbox)
        producer.close()
        pipeline.scan_and_delete()

        retention(admin, namespace, -1)
        assert contents(client, written)[-40:] == [*CONTENTS[200:], *LATER]
        assert contents(client, recreated) == LATER
        assert contents(client, live)[-30:] == CONTENTS[200:]
        assert contents(client, still) == CONTENTS[200:]
        consumer = client.subscribe(rewound, "s")
        assert [consumer.receive(60_000).data() for _ in CONTENTS] == CONTENTS

        retention(admin, while_killed, 60)
        killed_at_any_moment(pipeline, sandbox, {name: ids[name] for name in struck})
        for name in struck:
            assert contents(client, name) == CONTENTS[200:]

        retention(admin, by_schedule, 60)
        with dg.DagsterInstance.ephemeral() as instance:
            jobs = Jobs(pipeline, instance)
            assert jobs.run("scan").success
            assert jobs.run("plan_retention").success
            found, _ = decision_of(pipeline.where, next(kind for kind in KINDS if kind.name == "retention"))
            assert found.goes, found
            plan = jobs.page("retention_plan")
            config = {"plan_id": plan["plan id"], "digest": plan["digest"], "dry_run": False}
            assert jobs.run("apply_retention", {"ops": {"trim_expired": {"config": config}}}).success
        assert listed(sandbox, nightly) == ids[nightly][-1:]
        assert nightly not in loaded(sandbox)


def killed_at_any_moment(pipeline: Pipeline, sandbox: Cluster, ids: Mapping[str, list[int]]) -> None:
    """Apply one plan in processes that die whenever it is, then end it."""
    plan, rows = make_retention_plan(pipeline.where, pipeline.scan())
    going = {i for of in ids.values() for i in of[:-1]}
    assert going <= set(rows.column("ledger_id").to_pylist())
    moments = random.Random(seed := time.time_ns())
    killed = 0
    for number, latest in enumerate((1.0, 3.0, 6.0)):
        order = {"run_id": f"killed-{number}", "plan_id": plan.plan_id, "digest": plan.digest}
        until_lease = SESSION if number else 0.0  # the run before holds it until its session ends
        killed += killed_after(until_lease + moments.uniform(0.3, latest), pipeline.file, "retention", order)
        for name, of in ids.items():
            assert listed(sandbox, name) in (of, of[-1:]), (seed, number)
    assert killed, seed
    done = apply_retention(pipeline.where, "ended", Order(plan.plan_id, plan.digest), dry_run=False)
    said = {one.outcome for one in done if one.ledger_id in going}
    assert said <= {Outcome.REMOVED, Outcome.NOTHING}, (seed, done)
    assert {name: listed(sandbox, name) for name in ids} == {name: of[-1:] for name, of in ids.items()}
    assert not set(ids) & loaded(sandbox)


def expired_ledgers(pipeline: Pipeline, epoch_id: str) -> list[dict[str, Any]]:
    """The rows of table ``expired_ledgers`` of a scan."""
    return pipeline.where.lake.read_epoch_table(epoch_id, TABLE).to_pylist()


def plan_of(pipeline: Pipeline) -> dict[str, Any]:
    """The page of a retention plan of a new scan."""
    with dg.DagsterInstance.ephemeral() as instance:
        jobs = Jobs(pipeline, instance)
        assert jobs.run("scan").success
        assert jobs.run("plan_retention").success
        return jobs.page("retention_plan")
