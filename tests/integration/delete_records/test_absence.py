"""Whether a deleted ledger is gone, asked of a real bookie before and after its garbage collection."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import httpx
import pulsar
import pytest

from pulsar_lifecycle.delete_records.absence import DeletedLedger, look, wait_until_gone
from pulsar_lifecycle.delete_records.request import Presence
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.settings import load_settings
from pulsar_lifecycle.sources import closed_ledgers
from sandbox.cluster import Cluster
from tests.integration.pipeline import settings_file

pytestmark = pytest.mark.integration

TOPIC = Topic.parse("persistent://public/default/deleted-and-gone")
A_WHILE_MS = 300_000


def test_a_deleted_ledger_is_gone_once_its_bookies_have_collected(sandbox: Cluster, tmp_path: Path):
    settings = load_settings(settings_file(sandbox, tmp_path))
    root = settings.bookkeeper.ledgers_root
    client = pulsar.Client(sandbox.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with closing(client):
        client.subscribe(str(TOPIC), "keep").close()
        producer = client.create_producer(str(TOPIC), batching_enabled=False)
        for i in range(120):
            producer.send(b"%d" % i)
    with Connections(settings) as opened:
        ports = Ports(opened.store, opened.reader, opened.admin, None, None, opened.clock, None)
        chosen = closed_ledgers.of_topic(opened.store, TOPIC, root)
        ledgers = [DeletedLedger(ledger_id, metadata) for ledger_id, metadata in chosen.ledgers]
        assert len(ledgers) == 2
        assert {one.presence for one in look(ports, root, ledgers, bookies=True)} == {Presence.Z_NODE}
        traces = opened.reader.find_traces(chosen.ledgers)
        assert all(one.holding == one.bookies for one in traces)

        topic = f"{sandbox.admin_url}/admin/v2/persistent/{TOPIC.namespace}/{TOPIC.local}"
        httpx.delete(topic, params={"force": "true"}, timeout=120).raise_for_status()
        assert all(one.gone for one in wait_until_gone(ports, root, ledgers, bookies=False, deadline_ms=_soon()))
        for bookie in opened.bookies.bookies():
            opened.bookies.collect(bookie, major=False)
        answers = wait_until_gone(ports, root, ledgers, bookies=True, deadline_ms=_soon(), every_ms=500)
        assert {one.presence for one in answers} == {Presence.GONE}


def _soon() -> int:
    return int(time.time() * 1000) + A_WHILE_MS
