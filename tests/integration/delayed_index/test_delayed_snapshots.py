"""Snapshots of delayed messages that only a broker's memory names: a subscription without a cursor z-node uses them."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.metastore import bookkeeper_ledgers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.settings import PulsarSettings, ZooKeeperSettings
from sandbox.clients import pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics
from sandbox.servers.toolchain import find_tools
from tests.integration.pipeline import Pipeline, new_namespace, wait_listed

pytestmark = pytest.mark.integration

CONSUMER = Path(__file__).with_name("ReadingDelayed.java")
MESSAGES = 150
"""Two snapshots: one for each of the topic's ledgers of 50 messages but the last."""
DUE_MS = 100_000
"""Longer than two scans, a plan and a deletion run take on a busy machine: nothing is read from a snapshot before."""
PATIENCE = 300
"""Seconds that a consumer waits for the next message: the other one begins, and all is published, before any is due."""


@contextmanager
def reading(sandbox: Cluster, topic: str, subscription: str) -> Iterator[subprocess.Popen[str]]:
    """A connected Java consumer; the Python client has no non-durable consumer of a Shared subscription."""
    tools = find_tools()
    command = [tools.java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", tools.pulsar]
    arguments = [str(CONSUMER), sandbox.service_url, topic, subscription, str(MESSAGES), str(PATIENCE)]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, text=True) as consumer:
        try:
            assert consumer.stdout is not None
            assert any(line.strip() == "subscribed" for line in consumer.stdout)  # among what the client logs
            yield consumer
        finally:
            consumer.kill()


def collect_garbage(sandbox: Cluster) -> None:
    """Bookies drop the entries of ledgers whose z-nodes are gone: a broker reads a snapshot that it has open still."""
    for bookie in sandbox.state.of_kind("bookie"):
        gc = f"{bookie.http}/api/v1/bookie/gc"
        httpx.put(gc, timeout=120).raise_for_status()
        wait_for(f"a garbage collection of {bookie.name}", lambda gc=gc: _at_rest(gc))


def _at_rest(gc: str) -> bool:
    return httpx.get(gc, timeout=120).json()["is_in_force_gc"] == "false"


def received(consumer: subprocess.Popen[str]) -> list[str]:
    """What it says at its end of how many messages came."""
    return [line for line in consumer.communicate()[0].splitlines() if line.startswith("received:")]


def snapshots_of(sandbox: Cluster, topic: str) -> set[int]:
    """The delayed-index snapshots of a topic, by their tags."""
    settings = ZooKeeperSettings(hosts=sandbox.zookeeper)
    with KazooStore(settings, read_only=True) as store:
        batches = list(bookkeeper_ledgers.read_ledgers(store, bookkeeper_ledgers.ledger_units(store)))
    rows = [row for batch in batches for row in batch.to_pylist()]
    return {row["ledger_id"] for row in rows if row["bucket_topic"] == topic and row["state"] == "CLOSED"}


def test_snapshots_that_a_connected_subscription_has_in_memory_alone_stay(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "delayed")
    # The tag on a snapshot has the name of a non-durable cursor decoded: "on+call" is "on call" there.
    names = {f"persistent://{namespace}/free": "on+call", f"persistent://{namespace}/held": "on-call"}
    free, held = names
    pipeline = pipelines({"orphans": {"grace_period": 0, "confirm_after": "0s", "legal_holds": [held]}})
    pipeline.scan()  # the first one takes longer
    with (
        reading(sandbox, free, names[free]) as of_free,
        reading(sandbox, held, names[held]) as of_held,
        pulsar_client(sandbox.service_url) as client,
    ):
        due = int(time.time() * 1000) + DUE_MS
        for topic in names:
            contents = topics.payloads(MESSAGES)
            topics.publish(client, topic, contents, deliver_at=[due + number for number in range(MESSAGES)])
        for topic in names:
            wait_listed(sandbox, topic)
            wait_for(f"the snapshots of {topic}", lambda topic=topic: len(snapshots_of(sandbox, topic)) == 2)
        made = {i for topic in names for i in snapshots_of(sandbox, topic)}
        planned = pipeline.confirmed_plan()
        pipeline.apply(pipeline.order(planned))
        pipeline.scan_and_delete()
        collect_garbage(sandbox)
        deleted = {row["ledger_id"] for row in pipeline.journal()}  # the broker deletes what it has delivered
        whole = [f"received: {MESSAGES}"]
        assert (planned.ids & made, deleted & made, received(of_free), received(of_held)) == (
            set(),
            set(),
            whole,
            whole,
        )


def test_a_broker_names_the_cursors_of_subscriptions_without_a_z_node(sandbox: Cluster) -> None:
    topic = f"persistent://{new_namespace(sandbox, 'cursors')}/t"
    settings = PulsarSettings(admin_url=sandbox.admin_url, service_url=sandbox.service_url)
    with reading(sandbox, topic, "on+call"), closing(HttpBrokerAdmin(settings)) as admin:
        assert "on+call" in admin.internal_stats(Topic.parse(topic)).cursors
