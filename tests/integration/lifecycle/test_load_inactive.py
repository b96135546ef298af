"""Inactive subscriptions of topics that no broker has, on real brokers: a load plan has them deleted, and only these.

The brokers do by themselves what production's do.
"""

from __future__ import annotations

import time
from pathlib import Path

import pulsar
import pytest

from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.lifecycle.activity.activity_run import build_activity
from pulsar_lifecycle.lifecycle.activity.cursor_run import delete_subscriptions
from pulsar_lifecycle.lifecycle.activity.inactive_planning import make_inactive_plans
from pulsar_lifecycle.lifecycle.load.load_run import load_topics
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Action, Outcome
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting import znodes
from tests.integration.killed_run import Step, strike
from tests.integration.lifecycle.loads import CONTENTS, filled, no_retention, notes, pipeline_of, plan_of
from tests.integration.lifecycle.retention import keep_inactive_topics, loaded
from tests.integration.pipeline import listed, new_namespace, read_all, wait_unlisted, wait_until_unloaded_counts

pytestmark = pytest.mark.integration

PERIOD = 3.0
"""Seconds; the sandbox may be asked for less than a day."""


def subscriptions(cluster: Cluster, topic: str) -> set[str]:
    with cluster.metadata() as zk:
        return set(zk.get_children(znodes.topic_znode(topic)) or ())


def test_a_visit_deletes_what_nobody_used_and_nothing_else(production: Cluster, spark: None, tmp_path: Path) -> None:
    cluster = production
    namespace, other = new_namespace(cluster, "unused"), new_namespace(cluster, "unordered")
    gone, killed, used, again = (f"persistent://{namespace}/{name}" for name in ("gone", "killed", "used", "again"))
    whole, half = (f"persistent://{namespace}/{name}" for name in ("whole", "half"))
    partitions = [f"{one}-partition-{number}" for one in (whole, half) for number in range(2)]
    unordered = f"persistent://{other}/t"
    every = [gone, killed, used, again, *partitions, unordered]
    with pulsar_client(cluster.service_url) as client, Admin(cluster.admin_url) as admin:
        for one in (namespace, other):
            no_retention(admin, one)
            keep_inactive_topics(admin, one)
        for one in (whole, half):
            admin.topic("PUT", one, "/partitions", 2)
        ids = {topic: filled(client, admin, topic) for topic in every}
        client.subscribe(gone, "t", initial_position=pulsar.InitialPosition.Latest).close()
        admin.unload(gone)
        producer = client.create_producer(partitions[-1])
        idle = [topic for topic in every if topic != partitions[-1]]
        wait_unlisted(cluster, idle)
        wait_until_unloaded_counts(time.time())

        choice = {"period": f"{PERIOD}s", "subscriptions": [namespace, other], "kept_subscriptions": ["t"]}
        pipeline = pipeline_of(
            cluster, tmp_path, [namespace, other], at_once=1, inactivity=choice, inactive_subscriptions=[namespace]
        )
        build_activity(pipeline.where, pipeline.scan())
        time.sleep(PERIOD)
        epoch = pipeline.scan()
        _, (inactive, _) = make_inactive_plans(pipeline.where, epoch, build_activity(pipeline.where, epoch))
        plan, rows = plan_of(pipeline, epoch)
        named = {topic: row["inactive_subscriptions"] for topic, row in rows.items() if not row["kept"]}
        assert named == {topic: ["s"] for topic in (gone, killed, used, again, *partitions[:2])}
        assert rows[partitions[2]]["kept"] == "partition_stays"
        assert unordered not in rows

        done = delete_subscriptions(pipeline.where, "loaded", Order(inactive.plan_id, inactive.digest), dry_run=False)
        assert {one.why.code for one in done if one.topic in (gone, unordered)} == {InactiveKept.NOT_LOADED}
        client.subscribe(used, "s").close()
        admin.topic("DELETE", again, "/subscription/s")
        client.subscribe(again, "s", initial_position=pulsar.InitialPosition.Earliest).close()
        for topic in (used, again):
            admin.unload(topic)
        step = Step("admin", "delete_subscription", after=True, about="killed")
        arguments = {"plan_id": plan.plan_id, "digest": plan.digest}
        (struck,) = strike(pipeline.file, "load", {"run_id": "killed", **arguments}, step).struck()
        assert step.about in struck.arguments
        assert notes(cluster)
        rows_of_it = journal_rows(pipeline.where.journal_reader, run_id="killed").to_pylist()
        begun = {row["topic"] for row in rows_of_it if row["action"] == Action.LOAD_TOPIC}
        kept = {topic for topic in begun - {killed} if "s" in subscriptions(cluster, topic)}  # a load counts as a use
        kept |= {*partitions[:2]} if kept & {*partitions[:2]} else set()
        wait_until_unloaded_counts(time.time())
        found = load_topics(pipeline.where, "run", Order(plan.plan_id, plan.digest), dry_run=False)
        assert not [one for one in found if one.outcome is Outcome.FAILED], found
        wait_unlisted(cluster, idle)
        assert notes(cluster) == []
        assert loaded(cluster).isdisjoint(idle)
        left = {topic: subscriptions(cluster, topic) for topic in every}
        assert left == {
            **{topic: {"s"} for topic in every},
            **{topic: set[str]() for topic in (killed, *partitions[:2]) if topic not in kept},
            gone: {"s", "t"} if gone in kept else {"t"},
        }
        for topic in {gone, *partitions[:2]} - kept:
            assert set(ids[topic]).isdisjoint(listed(cluster, topic))
        said = journal_rows(pipeline.where.journal_reader).to_pylist()
        codes = {row["code"] for row in said if row["action"] == Action.DELETE_SUBSCRIPTION and row["topic"] == gone}
        assert gone in kept or Code.BROKER_DELETED in codes
        producer.close()
        for topic in (used, *partitions[2:], unordered):
            assert read_all(client, topic, len(CONTENTS)) == CONTENTS
