"""Dead letters: what is there, and sending some of them to the deletion topic again.

Belongs here: looking, choosing, the order of steps. Not here: deciding what a message deserves; a message that was sent
again is decided by the next deletion run like any other, from its first try on.

A crash between the send and the acknowledgement repeats the message: the deletion run finds its ledger gone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.retry_letter import told_times
from pulsar_lifecycle.journal.prometheus import published
from pulsar_lifecycle.journal.queries import DeadLetterReason, dead_letter_reasons
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import (
    Clock,
    DeadLetterQueue,
    Journal,
    JournalRow,
    MetadataStore,
    QueueReader,
    Received,
    Resent,
)
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import lowered
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.control import Lease, held_lease
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer
from pulsar_lifecycle.scan.evidence import check_may_act
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.values.codes import Code, Why, check_known
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.outcomes import Outcome, Phase, Waiting, action_of

BATCH = 500
UNKNOWN = DeadLetterReason(Code.NOT_JOURNALLED, "not in our journal")

Reasons = Mapping[tuple[int, str], DeadLetterReason]
"""Why messages became dead letters, as the journal says: (ledger id, action) -> why, the last time."""


CODES = frozenset(one.value for codes in (Code, Finding, Waiting) for one in codes)
"""Codes that a journal row about a message may have."""


@dataclass(frozen=True, slots=True)
class Letter:
    """A dead letter and why it is one."""

    message: Received
    why: DeadLetterReason

    @property
    def reason(self) -> str:
        """Why, as a sentence."""
        return self.why.text

    @property
    def unparseable(self) -> bool:
        """Whether no deletion run could do anything with it but refuse it."""
        return self.message.info is None

    @property
    def topic(self) -> str:
        """The topic whose ledger it is about; empty if it does not say."""
        return self.message.info.topic_name if self.message.info else ""

    def row(self) -> dict[str, Any]:
        """As a row of :data:`tables.DEAD_LETTERS`."""
        message, info = self.message, self.message.info
        times = told_times(message.properties)
        return {
            "ledger_id": info.ledger_id if info else -1,
            "copy": info.ledger_type.value if info else "",
            "component": info.component.value if info else "",
            "topic": self.topic,
            "at": message.publish_time,
            "retries": None if times is None else max(0, times - 1),
            "code": self.why.code,
            "reason": self.reason,
            "message": message.message_id.hex() if info else message.raw[:200].decode(errors="replace"),
        }


def letters_of(messages: Iterable[Received], reasons: Reasons) -> list[Letter]:
    """Messages with their reasons; of an unparseable one it is what is wrong with it now."""
    return [
        Letter(m, _why(m.info, reasons) if m.info else DeadLetterReason(Code.UNPARSEABLE, m.problem)) for m in messages
    ]


def what_to_do(letters: Sequence[Letter]) -> str:
    """What helps against these letters: sending those again that cannot be parsed changes nothing."""
    unparseable = sum(letter.unparseable for letter in letters)
    stay = f"{unparseable} cannot be parsed and stay: look at who produces into pulsar/system" if unparseable else ""
    again = "mend that, then run the job redrive_dead_letters" if not letters or unparseable < len(letters) else ""
    return "; ".join(filter(None, (again, stay)))


def _why(info: PendingDeleteLedgerInfo, reasons: Reasons) -> DeadLetterReason:
    return reasons.get((info.ledger_id, action_of(info.ledger_type)), UNKNOWN)


@dataclass(frozen=True, slots=True)
class DeadLetters:
    """What waits in the dead-letter topic: ``count`` in all, ``messages`` the first ones of every partition.

    ``unsubscribed`` are partitions without our durable subscription: what is in them may be lost at any moment.
    """

    count: int
    messages: tuple[Received, ...]
    unsubscribed: tuple[Topic, ...]

    @property
    def oldest(self) -> int | None:
        """Publish time (ms) of the oldest one looked at."""
        return min((m.publish_time for m in self.messages), default=None)


def look(reader: QueueReader, topic: Topic, limit: int) -> DeadLetters:
    """Look at about ``limit`` messages of every partition of a topic and take none."""
    count = 0
    messages: list[Received] = []
    unsubscribed: list[Topic] = []
    for part in reader.partitions(topic):
        try:
            count += reader.backlog(part)
            messages += reader.waiting(part, None, limit).messages
        except NotFound:
            unsubscribed.append(part)
    return DeadLetters(count, tuple(messages), tuple(unsubscribed))


@dataclass(frozen=True, slots=True)
class LetterFilter:
    """Which dead letters to send again; an empty field wants all, all fields together must hold.

    ``topics`` are full names, a partitioned topic's stands for its partitions; ``namespaces`` are ``tenant/namespace``;
    ``code`` says why they became dead letters: :class:`Code`, ``Finding``, ``Waiting``. Raises UsageError for another.
    """

    ledger_ids: frozenset[int] = frozenset()
    topics: frozenset[str] = frozenset()
    namespaces: frozenset[str] = frozenset()
    code: str = ""

    def __post_init__(self) -> None:
        if self.code:
            check_known("the code of a dead letter", self.code, CODES)

    def wants(self, letter: Letter) -> bool:
        """Never one that is unparseable: the deletion run would refuse it."""
        info = letter.message.info
        if info is None:
            return False
        topic = Topic.parse(info.topic_name)
        return (
            (not self.ledger_ids or info.ledger_id in self.ledger_ids)
            and (not self.topics or not self.topics.isdisjoint({str(topic), str(topic.partitioned_parent)}))
            and (not self.namespaces or str(topic.namespace) in self.namespaces)
            and (not self.code or letter.why.code == self.code)
        )


def chosen(letters: Sequence[Letter], wanted: LetterFilter, room: int) -> list[Letter]:
    """The first ``room`` dead letters that are wanted."""
    return [letter for letter in letters if wanted.wants(letter)][: max(0, room)]


@dataclass(slots=True)
class Redriven:
    """How a redrive went; ``looked`` is how many dead letters it saw, ``withheld`` how many the broker kept back.

    A broker hands a consumer no more than ``maxUnackedMessagesPerConsumer`` (50,000) that it has not acknowledged.
    """

    looked: int = 0
    withheld: int = 0
    sent: int = 0
    failed: int = 0
    unparseable: int = 0
    first_error: str = ""
    sample: list[Letter] = field(default_factory=list[Letter])


def redrive(
    run_id: str,
    cluster: str,
    wanted: LetterFilter,
    max_messages: int,
    reasons: Reasons,
    *,
    store: MetadataStore,
    lease: Lease,
    letters: DeadLetterQueue,
    journal: Journal,
    clock: Clock,
    wait_ms: int,
    progress: Callable[[str], None],
    sample: int,
) -> Redriven:
    """Send what is wanted, journal it, acknowledge it; the rest stays where it is.

    Ends after ``max_messages``, or once none comes for ``wait_ms``. Raises Paused or LeaseLost between
    batches; nothing of a batch is then half done.
    """
    done, there = Redriven(), 0
    for taken in _batches(letters, wait_ms, lambda: _may_go_on(store, lease)):
        there = there or letters.backlog()  # after the first take, which mends a missing subscription
        seen = letters_of(taken, reasons)
        done.looked += len(seen)
        done.unparseable += sum(letter.unparseable for letter in seen)
        some = chosen(seen, wanted, max_messages - done.sent)
        receipts = letters.send_again([letter.message for letter in some])
        now = clock.now_ms()
        journal.record([_row(run_id, cluster, one, r, now) for one, r in zip(some, receipts, strict=True)])
        letters.acknowledge([receipt.message for receipt in receipts if receipt.error is None])
        errors = [receipt.error for receipt in receipts if receipt.error is not None]
        done.sent += len(receipts) - len(errors)
        done.failed += len(errors)
        done.first_error = done.first_error or (errors[0] if errors else "")
        done.sample += some[: sample - len(done.sample)]
        progress(f"{done.looked} dead letters looked at, {done.sent} sent again, {done.failed} failed")
        if done.sent >= max_messages or errors:
            break
    else:
        done.withheld = max(0, (there or letters.backlog()) - done.looked)
    return done


def _batches(letters: DeadLetterQueue, wait_ms: int, may_go_on: Callable[[], None]) -> Iterator[list[Received]]:
    while True:
        may_go_on()
        taken = letters.take(BATCH, wait_ms)
        if not taken:
            return
        yield taken


def _may_go_on(store: MetadataStore, lease: Lease) -> None:
    control.check_not_paused(store)
    control.check_lease(store, lease.guard)


@dataclass(frozen=True, slots=True)
class _Detail:
    """Details of a row: the dead letter, the message that it became, and how often it had been retried."""

    dead_letter: str
    message: str
    reconsume_times: int | None


def _row(run_id: str, cluster: str, letter: Letter, receipt: Resent, now: int) -> JournalRow:
    info = letter.message.info
    assert info is not None
    ids = letter.message.message_id.hex(), receipt.message_id.hex()
    detail = _Detail(*ids, told_times(letter.message.properties))
    about = Subject(info.ledger_id, info.component.value, info.topic_name, details=(detail,))
    outcome, why = Outcome.SENT, Why(Code.SENT_AGAIN, f"sent again; a dead letter before: {letter.reason}")
    if receipt.error is not None:
        outcome, why = Outcome.SEND_FAILED, Why(Code.NOT_SENT, receipt.error)
    writer = Writer(run_id, cluster, info.plan_id)
    return writer.row(Step(action_of(info.ledger_type), Phase.REDRIVE), about, outcome, why, now)


SAMPLE = 50
"""Letters sent again that the result shows."""


AT_ONCE = 1_000
"""Letters that a launch sends again which does not say how many."""


def at_most(settings: Settings, asked: int | None) -> int:
    """How many letters one launch sends again. Raises UsageError for more than ``apply.max_ledgers``."""
    ceiling = settings.apply.max_ledgers
    return min(AT_ONCE, ceiling) if asked is None else lowered("max_messages", asked, "apply.max_ledgers", ceiling)


def redrive_now(
    cluster: Cluster, run_id: str, wanted: LetterFilter, max_messages: int | None, progress: Callable[[str], None]
) -> Redriven:
    """Send what is wanted again, under the lease; :func:`at_most`.

    Raises Refused, Paused, LeaseLost, UsageError, and StoreError where what is sent could not be journalled.
    """
    settings = cluster.settings
    most = at_most(settings, max_messages)
    with published(cluster), cluster.ports() as ports:
        store = ports.store
        check_may_act(cluster, store)
        with held_lease(settings, store, ports.clock, f"redrive {run_id}") as lease:
            return redrive(
                run_id,
                settings.cluster,
                wanted,
                most,
                dead_letter_reasons(ports.journal_reader, settings.cluster, 0),
                store=store,
                lease=lease,
                letters=ports.dead_letters,
                journal=ports.journal,
                clock=ports.clock,
                wait_ms=int(settings.deletion.idle_timeout * 1000),
                progress=progress,
                sample=SAMPLE,
            )
