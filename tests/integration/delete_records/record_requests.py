"""Requests to delete records of a real cluster, as one operator makes them; what is published and read beside them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import pulsar

from pulsar_lifecycle.delete_records.apply_run import NO_PATIENCE, Patience, apply_delete_records
from pulsar_lifecycle.delete_records.records_planning import plan_delete_records
from pulsar_lifecycle.delete_records.request import PLAIN, DeleteRecordsResult, Offset, Options
from pulsar_lifecycle.model import MessagePosition, Topic
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.topics import low_watermark
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting import topics
from tests.integration.pipeline import Pipeline

SETTINGS = {
    "orphans": {"grace_period": "7d"},  # what the first phase marked must not wait for it
    "deletion": {"twoPhaseDeletionReconsumeLaterInSeconds": 1},
    "trimming": {"loaded_topics": True},
    "pulsar": {"request_timeout": "8s"},
}
QUICK = {"zookeeper": {"session_timeout": "8s"}}
"""The lease of a run that was killed is soon free."""
CONTENTS = topics.payloads(120)
"""More than two ledgers: the sandbox's brokers begin one every 50 entries."""

MORE = [f"after the kill {n}".encode() for n in range(10)]
COLLECTED = Patience(answers=300, bookies=True, finish=True, collect=True)
"""Until every bookie has collected: they are made to, and would do so by themselves in an hour only."""


@dataclass
class Records:
    """One operator's requests, with a lake of his own."""

    sandbox: Cluster
    pipeline: Pipeline

    def plan(self, offsets: Mapping[str, Offset], options: Options = PLAIN) -> dict[str, dict[str, Any]]:
        asked = {Topic.parse(name): offset for name, offset in offsets.items()}
        self.summary, rows = plan_delete_records(self.pipeline.where, asked, options)
        return {row["topic"]: row for row in rows.to_pylist()}

    def apply(self, patience: Patience = NO_PATIENCE, *, dry_run: bool = False) -> dict[str, DeleteRecordsResult]:
        order = Order(self.summary.plan_id, self.summary.digest)
        run_id = f"records-{uuid4().hex[:8]}"
        found = apply_delete_records(self.pipeline.where, run_id, order, dry_run=dry_run, patience=patience)
        return {str(topic): result for topic, result in found.items()}

    def answered(self, patience: Patience = NO_PATIENCE) -> dict[str, DeleteRecordsResult]:
        """Scans and deletion runs until nothing of the plan is to be waited for, or for good."""
        return self.delete_until(lambda results: not any(one.error for one in results.values()), patience)

    def delete_until(
        self, done: Callable[[dict[str, DeleteRecordsResult]], bool], patience: Patience = NO_PATIENCE
    ) -> dict[str, DeleteRecordsResult]:
        """Scans and deletion runs until what the plan would answer now is ``done``, or in vain for five minutes."""
        results: dict[str, DeleteRecordsResult] = {}

        def answer() -> bool:
            results.update(self.apply(patience, dry_run=True))
            return done(results)

        found = self.pipeline.delete_until(answer)
        if not done(results):
            print(*found, *told(results), sep="\n")  # a test that fails on them shows why
        return results


def publish(sandbox: Cluster, topic: str, contents: Sequence[bytes] = CONTENTS) -> list[int]:
    """The ledger of each message."""
    with pulsar_client(sandbox.service_url) as client:
        return topics.publish(client, topic, contents)


def read_all(sandbox: Cluster, topic: str) -> list[bytes]:
    with (
        pulsar_client(sandbox.service_url) as client,
        closing(client.create_reader(topic, pulsar.MessageId.earliest)) as reader,
    ):
        found: list[bytes] = []
        while reader.has_message_available():
            found.append(reader.read_next(60_000).data())
        return found


def watermark(sandbox: Cluster, topic: str) -> str:
    with Admin(sandbox.admin_url) as admin:
        return str(low_watermark.of(admin.topic("GET", topic, "/properties")))


def position(ledgers: Sequence[int], number: int, entry: int) -> MessagePosition:
    """An entry of the ledger at an index."""
    return MessagePosition(list(dict.fromkeys(ledgers))[number], entry)


def left(ledgers: Sequence[int], mark: MessagePosition) -> list[bytes]:
    """What a reader sees once whole ledgers below a position are gone."""
    return [content for ledger, content in zip(ledgers, CONTENTS, strict=True) if ledger >= mark.ledger_id]


def told(results: Mapping[str, DeleteRecordsResult]) -> list[str]:
    return [f"{one.error}: {one.reason}" for one in results.values()]
