"""``queue dead-letters``: every one of them, with its reason, and none is taken."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pulsar_lifecycle.deletion_queue.queue_topics import DLQ_TOPIC
from pulsar_lifecycle.formats.deletion_message import (
    LedgerComponent,
    PendingDeleteLedgerInfo,
    encode_deletion_message,
)
from pulsar_lifecycle.values.tables import DEAD_LETTERS
from tests.kit.command import command_over
from tests.kit.fakes.deletion_queue import FakeDeletionTopics, FakeQueueReader
from tests.kit.settings import write_settings

TOPIC = "persistent://acme/orders/placed"


def test_every_dead_letter_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_settings(tmp_path, monkeypatch)
    topics = FakeDeletionTopics()
    for number in range(60):
        info = PendingDeleteLedgerInfo(topic_name=TOPIC, component=LedgerComponent.MANAGED_LEDGER, ledger_id=number)
        topics.publish(encode_deletion_message(info), {"RECONSUMETIMES": "11"}, 0, DLQ_TOPIC)
    topics.publish(b"no JSON", {}, 0, DLQ_TOPIC)
    run = command_over(queue_reader=lambda: FakeQueueReader(topics))
    assert run("queue", "dead-letters", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["count"], [row["ledger_id"] for row in found["rows"]]) == (61, [*range(60), -1])
    assert {tuple(row) for row in found["rows"]} == {tuple(DEAD_LETTERS.names)}
    assert {row["retries"] for row in found["rows"]} == {10, 0}
    assert run("queue", "dead-letters") == 0
    out = capsys.readouterr().out
    assert out.startswith("61 dead letters\n")
    assert out.count("not_journalled") == 60
