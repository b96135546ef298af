"""The deletion run in tasks: every task is a consumer of the queue, or works off a share of a plan.

Belongs here: opening the ports where the work is done and bringing the outcomes back as counts. Not here: what is
decided and done with a message (``deletion/batch.py``). The effects are durable batch by batch before a task ends.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import pyarrow as pa

from pulsar_lifecycle.deletion.batch import work_off
from pulsar_lifecycle.deletion.decision import Run
from pulsar_lifecycle.deletion.waiting import withheld
from pulsar_lifecycle.deletion_queue.missing_topics import make_sure
from pulsar_lifecycle.deletion_queue.queue_topics import (
    DELETION_TOPIC,
    RETRY_TOPIC,
    Subscriptions,
    stored_subscriptions,
    topics_of,
)
from pulsar_lifecycle.errors import (
    AccessDenied,
    LeaseLost,
    LifecycleError,
    Overloaded,
    Paused,
    Unavailable,
    UsageError,
)
from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo
from pulsar_lifecycle.journal.queries import taken_messages
from pulsar_lifecycle.ports import Connect, DeletionQueue, Postponed, Received, Sent
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs.apply import intents
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.throttle import RateBudget
from pulsar_lifecycle.values.outcomes import Outcome, Waiting
from pulsar_lifecycle.values.tables import FINDINGS


class RunEnd(StrEnum):
    """What a deletion run says of itself, among the outcomes of messages."""

    STOPPED = "stopped"
    """The run stopped itself: paused, lease lost, or ZooKeeper too slow. The run fails."""
    LIMITED = "limited"
    """A task took its share of ``deletion.max_messages`` and left the rest to the next run."""
    NOT_SENT_BACK = "not-sent-back"
    """Messages that must wait stayed at the head of the queue: the retry topic did not take their copies. The run
    fails."""
    WITHHELD = "withheld"
    """Due messages that the broker did not hand out. The run fails."""
    NOT_COMPARED = "not-compared"
    """Whether there are due messages that were not handed out could not be seen. The run fails."""


FAILURES = {
    RunEnd.STOPPED: "the run stopped itself",
    RunEnd.NOT_SENT_BACK: "messages that must wait, or failed, stay at the head of the queue",
    RunEnd.WITHHELD: "due messages were not handed out",
    RunEnd.NOT_COMPARED: "whether all due messages were handed out is not known",
}
"""Those with which a run did not do what it was to do."""


class StopCode(StrEnum):
    """Why a deletion run stopped itself."""

    PAUSED = "paused"
    """Somebody has paused all effects: ``resume``, then run it again."""
    LEASE_LOST = "lease_lost"
    """Another run took the lease."""
    ZOOKEEPER_SLOW = "zookeeper_slow"
    """ZooKeeper's latency is above ``zookeeper.stop_above``."""
    DENIED = "denied"
    """A server does not let us do what the run needs."""
    UNANSWERED = "unanswered"
    """A server does not answer, or asks to try again."""
    ERROR = "error"
    """A server answered with an error, or with what cannot be read."""


_STOP_CODES: dict[type[LifecycleError], StopCode] = {
    Paused: StopCode.PAUSED,
    LeaseLost: StopCode.LEASE_LOST,
    Overloaded: StopCode.ZOOKEEPER_SLOW,
    AccessDenied: StopCode.DENIED,
    Unavailable: StopCode.UNANSWERED,
}
"""What an error of this class says; a class below another stands before it."""


def stop_code(error: LifecycleError) -> StopCode:
    """Why a run stops that meets this error."""
    return next((code for of, code in _STOP_CODES.items() if isinstance(error, of)), StopCode.ERROR)


@dataclass(frozen=True)
class OutcomeCount:
    """How many messages ended the same way for the same ``code``; ``reason`` is that of the first one.

    What a run says of itself has a code only where it stopped (``StopCode``): else its outcome says it all.
    """

    outcome: Outcome | RunEnd
    reason: str
    ledgers: int
    bytes: int
    code: StrEnum | None = None


def delete_from_queue(cluster: Cluster, run: Run) -> list[OutcomeCount]:
    """Consume the deletion queue in all tasks that run at once until it gives nothing more.

    Topics and subscriptions that are missing are made here, before several tasks would at once. Raises what that does.
    """
    settings, tasks = cluster.settings, cluster.tasks
    with cluster.ports() as ports:

        def look() -> Subscriptions:
            return stored_subscriptions(ports.store, ports.configuration)

        make_sure(ports.admin, settings.deletion.twoPhaseDeletionLedgerDeletionParallelism, look)
    shares = min(tasks.at_once, settings.deletion.max_messages)  # each takes one at least
    outcomes = _collect(tasks.map(_Worker(settings, run, shares, None, cluster.connect), [None] * shares))
    if any(o.outcome in (RunEnd.STOPPED, RunEnd.LIMITED) for o in outcomes):  # then something is left, and why is said
        return outcomes
    return outcomes + not_handed_out(cluster, run, outcomes)


def not_handed_out(cluster: Cluster, run: Run, outcomes: Sequence[OutcomeCount]) -> list[OutcomeCount]:
    """What of the queue was due when the run began and was not handed out to it, as its own outcome."""
    try:
        with cluster.ports(read_only=True) as ports:
            parts = [part for topic in (DELETION_TOPIC, RETRY_TOPIC) for part in topics_of(ports.admin, topic)]
            found = withheld(
                ports.queue_reader,
                parts,
                run.run_id,
                run.now,
                lambda: taken_messages(ports.journal_reader, run.run_id),
            )
    except LifecycleError as error:
        return [OutcomeCount(RunEnd.NOT_COMPARED, str(error), 1, 0)]
    if not found:
        return []
    where = ", ".join(f"{part}: {count}" for part, count in found.items())
    waits = "; ".join(f"{o.ledgers} wait: {o.reason}" for o in outcomes if o.outcome == Outcome.WAITING)
    why = (
        "another consumer of subscription ledger-deletion holds them, or the broker gives no more: "
        "maxUnackedMessagesPerConsumer, maxUnackedMessagesPerSubscription, dispatch rates, deletion.idle_timeout"
    )
    return [OutcomeCount(RunEnd.WITHHELD, f"{where}; {waits or 'none waits'}; {why}", sum(found.values()), 0)]


def delete_directly(cluster: Cluster, run: Run, rows: pa.Table, plan_id: str, sent_at: int) -> list[OutcomeCount]:
    """Work off plan rows without the queue: for when no bookie is writable and intents cannot be published."""
    shares = cluster.tasks.at_once
    spread = (pa.array(range(start, rows.num_rows, shares), pa.int64()) for start in range(shares))
    pieces = [rows.take(some) for some in spread if len(some)]
    worker = _Worker(cluster.settings, run, shares, (plan_id, sent_at), cluster.connect)
    return _collect(cluster.tasks.map(worker, pieces))


def _collect(counted: Iterable[Sequence[OutcomeCount]]) -> list[OutcomeCount]:
    counts = _Counts()
    for some in counted:
        for one in some:
            counts.add(one)
    return sorted(counts.values(), key=lambda one: (one.outcome, -one.ledgers))


class _Counts(dict[tuple[Outcome | RunEnd, StrEnum | None], OutcomeCount]):
    """Outcomes by outcome and code."""

    def add(self, one: OutcomeCount) -> None:
        """Count it with those that ended the same way."""
        key = one.outcome, one.code
        before = self.get(key, replace(one, ledgers=0, bytes=0))
        self[key] = replace(before, ledgers=before.ledgers + one.ledgers, bytes=before.bytes + one.bytes)


@dataclass(frozen=True)
class _Worker:
    """One task; ``direct`` (plan id, sent at) makes the plan rows that it is given its queue."""

    settings: Settings
    run: Run
    tasks: int
    direct: tuple[str, int] | None
    connect: Connect

    def __call__(self, rows: pa.Table | None) -> list[OutcomeCount]:
        """Counts; those of ``STOPPED`` carry why it ended early."""
        counts = _Counts()
        settings = self.settings
        with self.connect(settings, reads_per_second=settings.zookeeper.reads_per_second / self.tasks) as ports:
            queue = PlanQueue(rows, *self.direct) if self.direct else ports.queue
            ports = Ports(
                ports.store, ports.reader, ports.admin, queue, ports.journal, ports.clock, ports.objects_if_set
            )
            ports.pace = RateBudget(settings.offload.read_bytes_per_second / self.tasks, ports.clock).take
            limit, taken = self.limit(queue), 0
            try:
                for decision in work_off(self.run, ports, limit, int(settings.deletion.idle_timeout * 1000)):
                    taken += 1
                    assert decision.outcome is not None
                    counts.add(OutcomeCount(decision.outcome, decision.reason, 1, decision.length, decision.code))
                    if decision.outcome == Outcome.WAITING and decision.waiting is Waiting.NOT_SENT:
                        counts.add(OutcomeCount(RunEnd.NOT_SENT_BACK, decision.reason, 1, 0, decision.code))
                if taken >= limit and self.direct is None:
                    counts.add(OutcomeCount(RunEnd.LIMITED, "deletion.max_messages: the rest is the next run's", 1, 0))
            except LifecycleError as error:
                counts.add(OutcomeCount(RunEnd.STOPPED, str(error), 1, 0, stop_code(error)))
        return list(counts.values())

    def limit(self, queue: DeletionQueue) -> int:
        """How many messages it takes: its share of a run's, but all rows of a plan, as nobody else meets the rest."""
        return queue.backlog() if self.direct else max(1, self.settings.deletion.max_messages // self.tasks)


class PlanQueue:
    """``ports.DeletionQueue`` over plan rows: the plan table is the intent log, the journal its acknowledgement."""

    def __init__(self, rows: pa.Table, plan_id: str, sent_at: int) -> None:
        self._messages = [
            Received(hashlib.sha256(f"{plan_id}/{info.ledger_id}".encode()).digest(), "", b"", {}, sent_at, info, "")
            for info in intents(rows.select(FINDINGS.names), plan_id, sent_at)
        ]

    def receive(self, limit: int, wait_ms: int) -> list[Received]:
        """The next rows."""
        some, self._messages = self._messages[:limit], self._messages[limit:]
        return some

    def send(self, infos: Sequence[PendingDeleteLedgerInfo], deliver_after_ms: int) -> list[Sent]:
        """Nothing is ever sent to a plan."""
        raise UsageError("a plan takes no intents")

    def backlog(self) -> int:
        """Rows not handed out yet."""
        return len(self._messages)

    def acknowledge(self, messages: Sequence[Received]) -> None:
        """The journal has it."""

    def reconsume_later(self, messages: Sequence[Received], delay_ms: int, max_times: int) -> list[Postponed]:
        """There is no retry topic to a plan."""
        return [Postponed(message, 0, False, "apply the plan again") for message in messages]

    def send_back(
        self, messages: Sequence[Received], notes: Sequence[Mapping[str, str]], delay_ms: int
    ) -> list[Postponed]:
        """As :meth:`reconsume_later`."""
        return self.reconsume_later(messages, delay_ms, 0)

    def release(self, messages: Sequence[Received]) -> None:
        """Applying the plan again meets it again."""

    def close(self) -> None:
        """Nothing is open."""
