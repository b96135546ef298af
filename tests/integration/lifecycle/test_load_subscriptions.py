"""Cursors that go by a load, on real brokers: subscriptions past their expiration time, and that of deduplication.

And what subscriptions acknowledged in transactions, which must not go.

The brokers do by themselves what production's do, every minute at most.
"""

from __future__ import annotations

import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulsar
import pytest

from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.lifecycle.load.load_run import load_topics
from pulsar_lifecycle.lifecycle.load.visit import LoadStep
from pulsar_lifecycle.lifecycle.subscription_deletion import Subscription
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.journal_rows import details_of
from pulsar_lifecycle.values.outcomes import Action, Outcome
from pulsar_lifecycle.values.topic_load import PendingAcks
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics, znodes
from sandbox.servers.toolchain import find_tools
from tests.integration.lifecycle.loads import CONTENTS, expiry, no_retention, notes, pipeline_of, planned
from tests.integration.lifecycle.retention import BUNDLES, HOUR, close_earlier, keep_inactive_topics, loaded
from tests.integration.pipeline import listed, new_namespace, wait_unlisted, wait_until_unloaded_counts

pytestmark = pytest.mark.integration

DAY = 86_400_000
PROGRAM = Path(__file__).parent / "AcknowledgedInTransactions.java"
NAMES = {"abandoned", "caught-up", "live"}
"""Subscriptions: nobody is at the first, nor at the second, which has read all; the third is in use, or was lately."""


def filled(client: pulsar.Client, admin: Admin, topic: str) -> list[int]:
    """A topic with all three, of which the first has read nothing, unloaded; returns its ledgers."""
    for name in NAMES:
        client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest).close()
    ids = list(dict.fromkeys(topics.publish(client, topic, CONTENTS)))
    for name in ("caught-up", "live"):
        admin.topic("POST", topic, f"/subscription/{name}/skip_all")
    admin.unload(topic)
    return ids


def subscriptions(cluster: Cluster, topic: str) -> set[str]:
    with cluster.metadata() as zk:
        return set(zk.get_children(znodes.topic_znode(topic)))


def rewrite(cluster: Cluster, topic: str, name: str, **changes: Any) -> None:
    """Change what the z-node of a subscription says, whose topic no broker has."""
    path = f"{znodes.topic_znode(topic)}/{name}"
    with cluster.metadata() as zk:
        data, stat = zk.get(path)
        info = cursor_format.decode(data)
        assert info.cursors_ledger_id == -1
        zk.set(path, cursor_format.encode(replace(info, **changes)), version=stat.version)


def test_a_visit_deletes_what_a_broker_that_kept_the_topic_would_have(
    production: Cluster, spark: None, tmp_path: Path
) -> None:
    cluster = production
    unloaded, twin = (f"persistent://{new_namespace(cluster, name)}/t" for name in ("expiring", "twin"))
    spaces = {topic: topic.removeprefix("persistent://").removesuffix("/t") for topic in (unloaded, twin)}
    with pulsar_client(cluster.service_url) as client, Admin(cluster.admin_url) as admin:
        for topic, minutes in ((unloaded, 7 * 24 * 60), (twin, 1)):
            no_retention(admin, spaces[topic])
            keep_inactive_topics(admin, spaces[topic])
            admin.call("POST", f"/v2/namespaces/{spaces[topic]}/subscriptionExpirationTime", minutes)
        ids = filled(client, admin, unloaded)
        filled(client, admin, twin)
        long_ago = int(time.time() * 1000) - 8 * DAY
        for name in ("abandoned", "caught-up"):
            rewrite(cluster, unloaded, name, last_active=long_ago)
        consumer = client.subscribe(twin, "live")
        wait_unlisted(cluster, [unloaded])
        wait_until_unloaded_counts(time.time())

        pipeline = pipeline_of(cluster, tmp_path, [spaces[unloaded]], subscription_expiry=[spaces[unloaded]])
        plan, rows = planned(pipeline)
        row = rows[unloaded]
        assert (row["needs"], row["kept"]) == (["last_ledger_expired", "subscription_expired"], None)
        assert set(ids) <= set(row["trims"])
        expired = set(row["expired_subscriptions"])
        assert expired == {"abandoned", "caught-up"}
        wait_for("the twin's broker to delete the same", lambda: subscriptions(cluster, twin) == NAMES - expired)
        consumer.close()

        (one,) = load_topics(pipeline.where, "run", Order(plan.plan_id, plan.digest), dry_run=False)
        assert (one.outcome, one.unsubscribed) == (Outcome.DONE, ("abandoned", "caught-up")), one
        assert subscriptions(cluster, unloaded) == {"live"}
        assert set(ids).isdisjoint(listed(cluster, unloaded))
        wait_unlisted(cluster, [unloaded])
        assert unloaded not in loaded(cluster)
        assert notes(cluster) == []
        said = journal_rows(pipeline.where.journal_reader, run_id="run").to_pylist()
        deleted = [one for one in said if one["action"] == Action.DELETE_SUBSCRIPTION]
        assert [one["outcome"] for one in deleted] == [Outcome.BEGUN, Outcome.DONE] * 2
        about = details_of(Subscription, deleted[0]["detail"])
        assert about
        assert replace(about, czxid=None) == Subscription("abandoned", ids[0], -1)


def test_a_load_frees_what_ended_deduplication_held_and_ends_none(
    production: Cluster, spark: None, tmp_path: Path
) -> None:
    """Brokers take global policies first: deduplication that only a topic's own turn on would forget its producers."""
    cluster = production
    namespace = new_namespace(cluster, "deduplicated", BUNDLES)
    on, ended, late = names = [f"persistent://{namespace}/{name}" for name in ("on", "ended", "late")]
    with pulsar_client(cluster.service_url) as client, Admin(cluster.admin_url) as admin:
        no_retention(admin, namespace)
        keep_inactive_topics(admin, namespace)
        ids: dict[str, set[int]] = {}
        for topic in names:
            client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest).close()
            admin.topic("POST", topic, "/deduplicationEnabled", True)
            wait_for("deduplication", lambda one=topic: "pulsar.dedup" in subscriptions(cluster, one))
            ids[topic] = set(topics.publish(client, topic, CONTENTS))
        admin.topic("POST", ended, "/subscription/s/skip_all")
        admin.topic("POST", late, "/retention?isGlobal=true", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
        for topic in names:
            admin.unload(topic)
        admin.topic("DELETE", ended, "/deduplicationEnabled")
        wait_unlisted(cluster, names)
        wait_until_unloaded_counts(time.time())
        admin.call("POST", f"/v2/namespaces/{namespace}/messageTTL", 1)

        pipeline = pipeline_of(cluster, tmp_path, [namespace])
        plan, rows = planned(pipeline)
        assert rows[late]["kept"] == "deduplication_would_forget"
        assert "deduplication_ended" in rows[ended]["needs"]
        assert ids[ended].intersection(listed(cluster, ended)) <= set(rows[ended]["trims"])
        found = load_topics(pipeline.where, "load", Order(plan.plan_id, plan.digest), dry_run=False)
        assert not [one for one in found if one.outcome is Outcome.FAILED], found
        wait_unlisted(cluster, names)
        assert ids[ended].isdisjoint(listed(cluster, ended))
        assert {topic: "pulsar.dedup" in subscriptions(cluster, topic) for topic in names} == {
            on: True,
            ended: False,
            late: True,
        }


def acknowledge(cluster: Cluster, topic: str) -> None:
    """Every second message, each in a transaction; and the very last one in a transaction that stays open."""
    tools = find_tools(lambda _: None)
    java = [tools.java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", tools.pulsar, str(PROGRAM)]
    said = subprocess.run(
        [*java, cluster.service_url, topic, str(len(CONTENTS))], stdout=subprocess.PIPE, timeout=120, check=True
    )
    assert b"acknowledged" in said.stdout.splitlines()


def delivered(client: pulsar.Client, topic: str) -> list[bytes]:
    """What subscription ``s`` gets; all of it is acknowledged."""
    consumer = client.subscribe(topic, "s", consumer_type=pulsar.ConsumerType.Shared)
    found: list[bytes] = []
    try:
        while True:
            message = consumer.receive(10_000 if not found else 3_000)
            found.append(message.data())
            consumer.acknowledge(message)
    except pulsar.Timeout:
        return found
    finally:
        consumer.close()


def test_what_was_acknowledged_in_transactions_is_whole_after_a_visit(
    production: Cluster, spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = production
    namespace = new_namespace(cluster, "acknowledged", BUNDLES)
    topic = f"persistent://{namespace}/t"
    states: list[PendingAcks | str] = []
    pending_acks, unload = HttpBrokerAdmin.pending_acks, HttpBrokerAdmin.unload

    def asked(admin: HttpBrokerAdmin, about: Topic, subscription: str) -> PendingAcks:
        assert (str(about), subscription) == (topic, "s")
        state = PendingAcks.INITIALIZING if len(states) < 3 else pending_acks(admin, about, subscription)
        states.append(state)
        return state

    def told(admin: HttpBrokerAdmin, about: Topic) -> None:
        states.append("unload")
        unload(admin, about)

    with pulsar_client(cluster.service_url) as client, Admin(cluster.admin_url) as admin:
        keep_inactive_topics(admin, namespace)
        for name in ("s", "t"):  # the second one uses no transactions
            client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest).close()
        first, last = dict.fromkeys(topics.publish(client, topic, CONTENTS))
        acknowledge(cluster, topic)
        admin.unload(topic)
        wait_unlisted(cluster, [topic])
        close_earlier(cluster, [topic])  # so its first ledger is past the TTL, its last one is not
        no_retention(admin, namespace)
        expiry(admin, namespace, HOUR // 1000)
        wait_until_unloaded_counts(time.time())

        pipeline = pipeline_of(cluster, tmp_path, [namespace])
        plan, rows = planned(pipeline)
        assert rows[topic]["kept"] is None, rows[topic]
        monkeypatch.setattr(HttpBrokerAdmin, "pending_acks", asked)
        monkeypatch.setattr(HttpBrokerAdmin, "unload", told)
        (one,) = load_topics(pipeline.where, "run", Order(plan.plan_id, plan.digest), dry_run=False)
        assert (one.outcome, one.why.code) == (Outcome.DONE, LoadStep.IN_METADATA), one
        assert states[:3] == [PendingAcks.INITIALIZING] * 3
        assert states[-2:] == [PendingAcks.READY, "unload"]
        assert notes(cluster) == []
        wait_unlisted(cluster, [topic])
        assert listed(cluster, topic)[0] == last

        left = [one for number, one in enumerate(CONTENTS) if number >= 50 and number % 2]
        assert delivered(client, topic) == left[:-1]  # the very last one waits for its transaction
        topics.publish(client, topic, topics.payloads(3, "later"))
        assert delivered(client, topic) == topics.payloads(3, "later")
        stats = admin.call("GET", f"/v3/transactions/pendingAckStats/{namespace}/t/s")
        assert (stats["state"], stats["ongoingTxnSize"]) == ("Ready", 1)
    assert first not in listed(cluster, topic)
