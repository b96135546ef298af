"""A topic's low watermark on a real broker: the property stays with the topic whatever the broker does to it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import httpx
import pulsar
import pytest

from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, MessagePosition, Topic
from pulsar_lifecycle.settings import load_settings
from pulsar_lifecycle.topics import low_watermark
from sandbox.clients import wait_for
from sandbox.cluster import Cluster
from tests.integration.pipeline import settings_file

pytestmark = pytest.mark.integration

POSITION = MessagePosition(7, 3, 2)
"""Of no ledger of these topics: brokers do not look at the property."""
FAR_MORE_THAN_A_LEDGER = 120
"""Messages; the sandbox's brokers begin a ledger every 50 entries."""


class WrittenTopic:
    """A topic with a client on it, and the z-node as it is now."""

    def __init__(self, cluster: Cluster, store: KazooStore, client: pulsar.Client, name: str) -> None:
        self.topic = Topic.parse(f"persistent://public/default/{name}")
        self._url = f"{cluster.admin_url}/admin/v2/persistent/public/default/{quote(name, safe='')}"
        self._store, self._client = store, client
        client.subscribe(str(self.topic), "keep").close()
        self.produce(1)

    def produce(self, messages: int) -> None:
        producer = self._client.create_producer(str(self.topic), batching_enabled=False)
        for i in range(messages):
            producer.send(b"%d" % i)
        producer.close()

    def ask(self, method: str, what: str, body: dict[str, str] | None = None) -> None:
        httpx.request(method, f"{self._url}/{what}", json=body, timeout=120).raise_for_status()

    @property
    def properties(self) -> dict[str, str]:
        answer = httpx.get(f"{self._url}/properties", timeout=120)
        return answer.raise_for_status().json()

    @property
    def info(self) -> ManagedLedgerInfo:
        return managed_ledger.decode(self._node().data)

    def raise_by_compare_and_set(self, position: MessagePosition) -> None:
        node = self._node()
        raised = low_watermark.raised(managed_ledger.decode(node.data), position)
        self._store.write(node.path, managed_ledger.encode(raised), node.stat.version)
        self.ask("PUT", "unload")

    def raise_by_the_broker(self, position: MessagePosition) -> None:
        self.ask("PUT", "properties", low_watermark.kept_by_broker(position))

    def _node(self):
        self._store.sync("/")
        return self._store.read([f"{MANAGED_LEDGERS_ROOT}/{self.topic.managed_ledger}"])[0]


@pytest.mark.parametrize("way", [WrittenTopic.raise_by_the_broker, WrittenTopic.raise_by_compare_and_set])
def test_it_survives_unload_load_rollover_and_trimming(
    sandbox: Cluster, tmp_path: Path, way: Callable[[WrittenTopic, MessagePosition], None]
):
    settings = load_settings(settings_file(sandbox, tmp_path))
    client = pulsar.Client(sandbox.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with closing(KazooStore(settings.zookeeper)) as store, closing(client):
        topic = WrittenTopic(sandbox, store, client, f"watermark-{way.__name__}")
        topic.ask("PUT", "properties", {"owner": "shop"})
        way(topic, POSITION)
        expected = topic.info.properties
        assert expected["owner"] == "shop"
        assert low_watermark.of(expected) == POSITION

        topic.ask("PUT", "unload")
        assert topic.properties == expected  # this call loads it
        first = topic.info.ledgers[0].ledger_id
        topic.produce(FAR_MORE_THAN_A_LEDGER)
        assert len(topic.info.ledgers) > 2
        assert topic.info.properties == expected

        topic.ask("DELETE", "subscription/keep")
        topic.ask("POST", "trim")
        wait_for("trimming", lambda: first not in [one.ledger_id for one in topic.info.ledgers])
        topic.ask("PUT", "properties", {"owner": "store"})  # adds to those that are there
        topic.ask("PUT", "unload")
        topic.raise_by_the_broker(MessagePosition(7, 1))  # a request that comes late
        kept = topic.info.properties
        assert {**kept, **expected, "owner": "store"} == kept
        assert low_watermark.of(topic.properties) == POSITION
