"""A cluster with an orphan of each component and their messages, for one batch of a deletion run.

Belongs here: the cluster, and loading a topic of it. Not here: what a test expects.
"""

from __future__ import annotations

from collections.abc import Callable

from pulsar_lifecycle.deletion.decision import Decision
from pulsar_lifecycle.formats.deletion_message import (
    PendingDeleteLedgerInfo,
    encode_deletion_message,
)
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs.apply import intents
from tests.kit.crash import Tell, Watched
from tests.kit.simulated.cluster import (
    SimulatedCluster,
    bucket_tags,
    compacted_tags,
    cursor_tags,
    data_tags,
    schema_tags,
)
from tests.kit.simulated.pipeline import Policy, delete, scan, two_scans

TOPIC = Topic.parse("persistent://acme/orders/a+b c~é-partition-0")
OTHER = Topic.parse("persistent://acme/orders/other")


class BatchScene:
    """One orphan of every component, two scans that found them, and a queue that is empty."""

    def __init__(self) -> None:
        self.cluster = cluster = SimulatedCluster()
        self.live = cluster.ledger(data_tags(TOPIC))
        cluster.topic(TOPIC, [self.live])
        cluster.topic(OTHER, [cluster.ledger(data_tags(OTHER))])
        self.data = cluster.ledger(data_tags(TOPIC))
        self.cursor = cluster.ledger(cursor_tags(TOPIC, "s/é"))
        self.schema = cluster.ledger(schema_tags(TOPIC.schema_id))
        self.compacted = cluster.ledger(compacted_tags(TOPIC))
        self.bucket = cluster.ledger(bucket_tags(TOPIC, "s", 1, 2))
        self.orphans = {self.data, self.cursor, self.schema, self.compacted, self.bucket}
        self.policy = Policy()
        self.now, self.before = two_scans(cluster)

    def intent(self, ledger_id: int) -> PendingDeleteLedgerInfo:
        """What the plan says of an orphan."""
        rows = self.now.findings
        ids = rows.column("ledger_id").to_pylist()
        (info,) = intents(rows.slice(ids.index(ledger_id), 1), "plan", 1)
        return info

    def publish(self, *messages: PendingDeleteLedgerInfo | bytes) -> None:
        """Put messages on the queue, then let an hour pass and scan again."""
        self.put(*messages)
        self.cluster.wait(2)
        self.now = scan(self.cluster, self.policy, [self.now])

    def put(self, *messages: PendingDeleteLedgerInfo | bytes) -> None:
        """Put messages on the queue."""
        queue = self.cluster.open_queue()
        for message in messages:
            queue.topics.publish(message if isinstance(message, bytes) else encode_deletion_message(message))

    def again(self) -> None:
        """Let the retry delay pass, and scan."""
        self.cluster.wait(1)
        self.now = scan(self.cluster, self.policy, [self.now])

    def send_all(self) -> None:
        self.publish(*(self.intent(i) for i in sorted(self.orphans)))

    def delete(
        self, wrap: Callable[[Ports], Ports] = lambda ports: ports, run_id: str = "delete-run"
    ) -> list[Decision]:
        return delete(self.cluster, self.now, self.before, self.policy, wrap, run_id=run_id)

    @property
    def waiting(self) -> int:
        return len(self.cluster.deletion_topics.waiting)


def outcomes(decisions: list[Decision]) -> list[str]:
    return [d.outcome for d in decisions]


def watched(tell: Tell) -> Callable[[Ports], Ports]:
    """The run's ports, each call of which is told of as ``before PORT.NAME`` and ``after PORT.NAME``."""

    def wrap(ports: Ports) -> Ports:
        watched = {name: getattr(ports, name) for name in ("store", "reader", "admin", "queue", "journal")}
        return Ports(**{n: Watched(port, tell, f"{n}.") for n, port in watched.items()}, clock=ports.clock)

    return wrap
