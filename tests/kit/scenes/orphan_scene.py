"""A simulated cluster with two orphans of one topic, scanned twice, and the deletion queue's topics.

Belongs here: the cluster and what its journal says. Not here: what a test does with it, and expects.
"""

from __future__ import annotations

from pulsar_lifecycle.deletion_queue.missing_topics import create_missing
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from tests.kit.simulated.cluster import SimulatedCluster, data_tags
from tests.kit.simulated.pipeline import lake_of, two_scans, where

TOPIC = Topic.parse("persistent://acme/orders/x")


class OrphanScene:
    """A cluster with two orphans, and a queue whose topics have two partitions."""

    def __init__(self) -> None:
        self.servers = SimulatedCluster()
        self.servers.topic(TOPIC, [self.servers.ledger(data_tags(TOPIC))])
        self.orphans = [self.servers.ledger(data_tags(TOPIC)) for _ in range(2)]
        now, before = two_scans(self.servers)
        self.admin = self.servers.admin
        create_missing(self.admin, 2)
        self.epoch = now.epoch
        self.lake = lake_of(before, now)
        self.cluster = where(self.servers, None, self.lake)

    def said(self, ledger_id: int, outcome: Outcome, ago: int = 0, phase: Phase = Phase.SEND, plan: str = "p") -> None:
        """What the journal says of an intent, so many ms ago."""
        at = self.servers.clock.now_ms() - ago
        row = JournalRow(
            "r", "simulated", plan, ledger_id, "", str(TOPIC), Action.DELETE_LEDGER, phase, outcome, "", 1, "", "", at
        )
        self.servers.journal.record([row])
