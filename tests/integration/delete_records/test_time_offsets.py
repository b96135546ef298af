"""Where times fall in a topic of a real broker, loaded and unloaded: as its messages say, without loading it."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import httpx
import pulsar
import pytest

from pulsar_lifecycle.delete_records.times.readable_ledgers import end_of, readable_ledgers
from pulsar_lifecycle.delete_records.times.time_offsets import Question, resolve
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, MessagePosition, Topic
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs.cluster import Cluster as Where
from pulsar_lifecycle.runs.tasks import LocalTasks
from pulsar_lifecycle.settings import load_settings
from sandbox.cluster import Cluster
from tests.integration.pipeline import settings_file

pytestmark = pytest.mark.integration

TOPIC = Topic.parse("persistent://public/default/times-of-day")
ROUNDS, BATCHED = 130, 3
"""More entries than two ledgers have; each third one is a batch."""


def _publish(client: pulsar.Client) -> None:
    client.subscribe(str(TOPIC), "keep").close()
    single = client.create_producer(str(TOPIC), batching_enabled=False)
    batches = client.create_producer(
        str(TOPIC),
        batching_enabled=True,
        batching_max_publish_delay_ms=60_000,
        compression_type=pulsar.CompressionType.LZ4,
    )
    for i in range(ROUNDS):
        single.send(b"%d" % i)
        if i % 3 == 0:
            for n in range(BATCHED):
                batches.send_async(b"%d, %d" % (i, n), lambda *_: None)
            batches.flush()
    single.close()
    batches.close()


def _messages(client: pulsar.Client) -> list[tuple[MessagePosition, int]]:
    """Every message's position and publish time, as a client reads them."""
    found: list[tuple[MessagePosition, int]] = []
    with closing(client.create_reader(str(TOPIC), pulsar.MessageId.earliest)) as reader:
        while reader.has_message_available():
            message = reader.read_next(60_000)
            where = message.message_id()
            position = MessagePosition(where.ledger_id(), where.entry_id(), max(0, where.batch_index()))
            found.append((position, message.publish_timestamp()))
    return found


def test_times_fall_where_messages_say(sandbox: Cluster, tmp_path: Path):
    where = Where(load_settings(settings_file(sandbox, tmp_path)), Connections, given=LocalTasks(2))
    root = where.settings.bookkeeper.ledgers_root
    client = pulsar.Client(sandbox.service_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    with closing(client):
        _publish(client)
        messages = _messages(client)
    assert len(messages) == ROUNDS + BATCHED * -(-ROUNDS // 3)
    with where.ports(read_only=True) as opened:
        ports = Ports(opened.store, opened.reader, None, None, None, opened.clock, None)

        def node() -> Node:
            opened.store.sync("/")
            (found,) = opened.store.read([f"{MANAGED_LEDGERS_ROOT}/{TOPIC.managed_ledger}"])
            assert isinstance(found, Node)
            return found

        def answers() -> None:
            info = managed_ledger.decode(node().data)
            (ledgers,) = readable_ledgers(ports, root, [ManagedLedgerInfo(info.ledgers)])
            assert isinstance(ledgers, tuple), ledgers
            start = MessagePosition(ledgers[0].ledger_id, 0)
            times = sorted({at + more for _, at in messages[:: len(messages) // 20] for more in (0, 1)} | {0, 1 << 42})
            questions = [Question(TOPIC, ledgers, start, timestamp=at) for at in times]
            for asked, found in zip(times, resolve(where, questions), strict=True):
                newer = [position for position, at in messages if at >= asked]
                expected = MessagePosition(newer[0].ledger_id, newer[0].entry_id) if newer else end_of(ledgers)
                assert found.position == expected, asked
                assert found.goes.messages == sum(position < expected for position, _ in messages)

        answers()  # its last ledger is open
        topic = f"{sandbox.admin_url}/admin/v2/persistent/{TOPIC.namespace}/{TOPIC.local}"
        httpx.put(f"{topic}/unload", timeout=120).raise_for_status()
        before = node().stat
        answers()
        time.sleep(1)
        assert node().stat == before  # a load writes it
