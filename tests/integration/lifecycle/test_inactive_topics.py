"""Topics and subscriptions that nobody uses, on a real cluster: reported by our own history, deleted by plan.

Its two brokers do by themselves what production's do, which is to delete inactive topics, too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pulsar
import pytest

from pulsar_lifecycle.lifecycle.activity.activity_run import TOPIC_TABLE, ActivityReport, build_activity
from pulsar_lifecycle.lifecycle.activity.activity_tables import UseEvidence
from pulsar_lifecycle.lifecycle.activity.cursor_run import delete_subscriptions
from pulsar_lifecycle.lifecycle.activity.inactive_planning import make_inactive_plans
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.trimming.inactive_run import delete_inactive
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics, znodes
from tests.golden.files import GOLDEN, entries
from tests.integration.lifecycle.retention import BUNDLES, backlog, keep_inactive_topics
from tests.integration.pipeline import (
    Pipeline,
    at_rest,
    existing,
    new_namespace,
    transactions,
    wait_listed,
    wait_unlisted,
    wait_until_unloaded_counts,
)

pytestmark = pytest.mark.integration

PERIOD = 3.0
"""Seconds; the sandbox may be asked for less than a day."""


@pytest.fixture(scope="module")
def sandbox(production: Cluster) -> Cluster:
    return production


def reported(pipeline: Pipeline) -> tuple[Epoch, ActivityReport]:
    """A scan, and the report of it."""
    epoch = pipeline.scan()
    return epoch, build_activity(pipeline.where, epoch)


def kept(table: Any, namespace: str) -> dict[str, str | None]:
    own = {row["topic"].rpartition("/")[2]: row for row in table.to_pylist() if row["namespace"] == namespace}
    return {name: row["kept"] for name, row in own.items() if not name.startswith("__")}


def evidence(pipeline: Pipeline, epoch: Epoch, topic: str) -> dict[str, Any]:
    rows = pipeline.where.lake.read_epoch_table(epoch.epoch_id, TOPIC_TABLE).to_pylist()
    return next(row for row in rows if row["topic"] == topic)


def there(sandbox: Cluster, topic: str) -> bool:
    with sandbox.metadata() as zk:
        return bool(zk.exists(znodes.topic_znode(topic)))


def subscribed(sandbox: Cluster, topic: str) -> bool:
    with sandbox.metadata() as zk:
        return "s" in zk.get_children(znodes.topic_znode(topic))


def unsubscribed(pipeline: Pipeline, order: Order, namespace: str) -> dict[str, Any]:
    """The code by topic of what became of subscriptions of a namespace."""
    done = delete_subscriptions(pipeline.where, "unsubscribe", order, dry_run=False)
    return {one.topic: one.why.code for one in done if f"//{namespace}/" in one.topic}


def test_what_nobody_uses_is_reported_and_goes_by_plan_and_nothing_else_does(
    sandbox: Cluster, pipelines: Callable[[Mapping[str, Any]], Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "inactive", BUNDLES)
    names = ("old", "unread", "open", "held", "changed", "live")
    old, unread, open_, held, changed, live = (f"persistent://{namespace}/{name}" for name in names)
    contents = topics.payloads(70)
    chosen = {"period": f"{PERIOD}s", "topics": [namespace], "subscriptions": [namespace]}
    pipeline = pipelines({"inactivity": chosen, "orphans": {"legal_holds": [held]}})
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        policy = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        admin.call("POST", f"/v2/namespaces/{namespace}/retention", policy)
        ids: dict[str, list[int]] = {}
        for topic in (old, unread, open_, held, changed, live):
            client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest).close()
            ids[topic] = list(dict.fromkeys(topics.publish(client, topic, contents)))
        for topic in (old, open_, held, changed, live):
            admin.topic("POST", topic, "/subscription/s/skip_all")
            wait_for("the receipts", lambda one=topic: backlog(admin, one) == 0)
        since = time.time()
        for topic in (old, unread, held, changed):
            admin.unload(topic)
        producer = client.create_producer(live)
        wait_unlisted(sandbox, [old, unread, held, changed])
        wait_listed(sandbox, live)
        wait_listed(sandbox, open_)
        wait_until_unloaded_counts(since)

        ours = [f"/managed-ledgers/{namespace}", "/pulsar-lifecycle"]  # topics of other tests come and go
        with sandbox.metadata() as zk:
            before = at_rest(zk, ours)
            first, report = reported(pipeline)
            assert not report.problems
            assert kept(report.topics, namespace) == kept(report.cursors, namespace) == {}
            assert evidence(pipeline, first, live)["client_evidence"] == UseEvidence.CONNECTED
            assert evidence(pipeline, first, open_)["published"] == len(contents)
            time.sleep(PERIOD)
            second, report = reported(pipeline)
            assert transactions(zk, ours) == before
        assert report.previous == first
        assert kept(report.topics, namespace) == {
            "old": None,
            "changed": None,
            "unread": InactiveKept.UNREAD_MESSAGES,
            "open": InactiveKept.UNREAD_MESSAGES,  # how many entries its last ledger has, only its broker knows
            "held": "legal_hold",
        }
        assert evidence(pipeline, second, open_)["write_evidence"] == UseEvidence.UNKNOWN
        cursors = kept(report.cursors, namespace)
        assert cursors == {
            "old": None,
            "changed": None,
            "unread": None,
            "held": "legal_hold",
            "open": None,
            "live": None,
        }
        (bytes_,) = (row["bytes"] for row in report.cursors.to_pylist() if row["topic"] == unread)
        assert bytes_ > len(contents) * 100

        third, report = reported(pipeline)
        (plan, rows), (subscriptions, _) = make_inactive_plans(pipeline.where, third, report)
        assert plan.actionable
        assert {row["topic"] for row in rows.to_pylist()} >= {old, changed}
        topics.publish(client, changed, contents[:1])
        order = Order(plan.plan_id, plan.digest)
        dry = delete_inactive(pipeline.where, "dry", order, dry_run=True)
        found = {one.topic: one.why.code for one in dry if one.ledger_id < 0 and namespace in one.topic}
        # The statistics of the broker that loaded it may lack it yet, or list the producer still.
        assert found.pop(changed) in (Protection.LOADED, InactiveKept.USED_LATELY, Code.CHANGED_SINCE_PLAN)
        assert found == {old: Code.MAY_GO}
        assert there(sandbox, old)
        done = delete_inactive(pipeline.where, "delete", order, dry_run=False)
        assert {one.topic: one.outcome for one in done if one.ledger_id < 0 and namespace in one.topic} == {
            old: Outcome.REMOVED,
            changed: Outcome.REFUSED,
        }
        assert not there(sandbox, old)
        assert not existing(sandbox, ids[old])
        for topic in (unread, open_, held, changed, live):
            assert there(sandbox, topic)
        assert existing(sandbox, ids[unread]) == set(ids[unread])  # of the others the broker had trimmed what was read
        producer.send(b"still here")
        producer.close()
        again = delete_inactive(pipeline.where, "again", order, dry_run=False)
        assert {one.outcome for one in again if one.topic == old} == {Outcome.NOTHING}

        order = Order(subscriptions.plan_id, subscriptions.digest)
        consumer = client.subscribe(open_, "s")
        first_one = unsubscribed(pipeline, order, namespace)
        assert first_one[unread] == InactiveKept.NOT_LOADED
        used = InactiveKept.USED_LATELY, Code.CHANGED_SINCE_PLAN
        assert first_one[open_] in (*used, InactiveKept.LAST_SUBSCRIPTION)  # whichever is seen first
        assert subscribed(sandbox, open_)
        consumer.close()
        admin.topic("GET", unread, "/stats")  # loads it
        wait_listed(sandbox, unread)
        assert unsubscribed(pipeline, order, namespace)[unread] == Code.CHANGED_SINCE_PLAN  # nobody knows by whom
        topics.publish(client, unread, contents[:20])
        fourth, report = reported(pipeline)
        _, (subscriptions, _) = make_inactive_plans(pipeline.where, fourth, report)
        order = Order(subscriptions.plan_id, subscriptions.digest)
        with sandbox.metadata() as zk:
            last = znodes.listed_ledgers(zk, unread)[-1]
            topics.publish(client, unread, contents)  # a rollover: its broker counts all that it added since the load
            wait_for("the rollover", lambda: znodes.listed_ledgers(zk, unread)[-1] > last)
        # a broker deletes a topic without subscriptions, and here with its data, as nothing is retained
        assert unsubscribed(pipeline, order, namespace)[unread] == InactiveKept.LAST_SUBSCRIPTION
        client.subscribe(unread, "other").close()
        assert unsubscribed(pipeline, order, namespace)[unread] == Code.BROKER_DELETED
        assert not subscribed(sandbox, unread)
        assert there(sandbox, unread)


def test_what_functions_read_by_stays(sandbox: Cluster, pipelines: Callable[[Mapping[str, Any]], Pipeline]) -> None:
    """Their metadata is as the workers' classes write it; its topic is unloaded, and stays so."""
    namespace = new_namespace(sandbox, "functions", BUNDLES)
    metadata, topic = (f"persistent://{namespace}/{name}" for name in ("metadata", "read"))
    said = {"period": f"{PERIOD}s", "subscriptions": [namespace], "functions_metadata": metadata}
    pipeline = pipelines({"inactivity": said})
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        keep_inactive_topics(admin, namespace)
        topics.publish(client, metadata, entries(GOLDEN / "functions" / "requests.values.bin"))
        for name in ("enriching", "s3-größer", "s"):
            client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest).close()
        topics.publish(client, topic, topics.payloads(10))
        since = time.time()
        for one in (metadata, topic):
            admin.unload(one)
        wait_unlisted(sandbox, [metadata, topic])
        wait_until_unloaded_counts(since)
        reported(pipeline)
        time.sleep(PERIOD)
        with sandbox.metadata() as zk:
            before = at_rest(zk, [f"/managed-ledgers/{namespace}"])
            _, report = reported(pipeline)
            assert transactions(zk, [f"/managed-ledgers/{namespace}"]) == before
        assert not report.problems
        found = {row["cursor"]: row["kept"] for row in report.cursors.to_pylist() if row["topic"] == topic}
        of_function = InactiveKept.FUNCTION_SUBSCRIPTION
        assert found == {"enriching": of_function, "s3-größer": of_function, "s": None}

        topics.publish(client, metadata, [b"no metadata"])
        epoch, report = reported(pipeline)
        _, (plan, rows) = make_inactive_plans(pipeline.where, epoch, report)
        assert not plan.actionable
        assert topic not in rows.column("topic").to_pylist()
        assert any(gap.text.startswith(f"{metadata} cannot be read whole") for gap in plan.gaps)
