"""A topic with offloaded ledgers and messages about their copies, over the fakes.

Belongs here: the cluster, and what happens to it. Not here: what a test expects.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from uuid import UUID, uuid4

from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.values.copies import Asked
from pulsar_lifecycle.values.outcomes import Action, Outcome
from tests.kit.simulated.offloaded import BUCKET, Offloading, attempt

TOPIC = Topic.parse("persistent://acme/orders/a+b c~é-partition-0")
OTHER = Topic.parse("persistent://acme/orders/other")


class OffloadedScene(Offloading):
    """A live offloaded ledger, and the objects of one whose ledger left its topic more than a week ago."""

    def __init__(self) -> None:
        super().__init__()
        self.live_uuid, self.gone_uuid = uuid4(), uuid4()
        self.live, self.last, self.gone = (self.ledger(TOPIC) for _ in range(3))
        self.cluster.remove(self.cluster.path(self.gone))
        self.list(TOPIC)
        self.cluster.topic(OTHER, [self.ledger(OTHER)])
        self.live_keys = self.put(self.live_uuid, self.live, TOPIC)
        self.gone_keys = self.put(self.gone_uuid, self.gone, TOPIC)
        self.age()

    def list(self, topic: Topic, **others: OffloadContext) -> None:
        contexts = {self.live: attempt(self.live_uuid, bookkeeper_deleted=True)} | {
            int(i[1:]): c for i, c in others.items()
        }
        self.cluster.topic(topic, sorted({self.live, self.last, *contexts}), offloaded=contexts)

    @property
    def intent(self) -> PendingDeleteLedgerInfo:
        return self.message(self.gone_uuid, self.gone, TOPIC)

    def mark(self, ledger_id: int, topic: Topic = TOPIC, uuid: UUID | None = None, bucket: str | None = None) -> None:
        self.marked[ledger_id, Asked(str(topic), uuid, bucket)] = self.cluster.clock.now_ms()

    @property
    def keys(self) -> set[str]:
        return self.buckets.keys(BUCKET)

    def one(
        self, outcome: str, code: StrEnum, reason: str = "", wrap: Callable[[Ports], Ports] = lambda ports: ports
    ) -> None:
        """The one message on the queue ends like this, and nothing was deleted; ``reason`` where one code has many."""
        keys = self.keys
        (decision,) = self.delete(wrap)
        assert (decision.outcome, decision.code) == (outcome, code), decision.reason
        assert reason in decision.reason
        assert self.keys == keys
        assert not [r for r in self.store.requests if r[0] == "delete_many"]
        (row,) = [row for row in self.cluster.journal.rows if row.action != Action.OPERATOR_WORD]
        assert (row.phase, row.outcome, row.code, row.reason) == ("delete", outcome, code, decision.reason)
        waits = outcome in (Outcome.WAITING, Outcome.RETRYING)
        assert len(self.cluster.deletion_topics.waiting) == waits
