"""The first phase: messages to the deletion queue before ledgers leave their topic's list, and the journal's rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from pulsar_lifecycle.errors import LifecycleError, RefusedBy
from pulsar_lifecycle.formats.deletion_message import LedgerType, PendingDeleteLedgerInfo
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow, Sent
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs.journal_rows import Details, MessageSent, Step, Subject, Writer
from pulsar_lifecycle.topics.write import STOPPING, TopicRun
from pulsar_lifecycle.values.codes import Code, Why, why_refused
from pulsar_lifecycle.values.copies import bucket_of, copy_of
from pulsar_lifecycle.values.outcomes import Outcome, Phase, action_of

NOT_COUNTED = "could not go when this launch's caps were checked, and count in none of them: run again"
"""End of the reason for what may go by now, and is not among what was counted."""


@dataclass(frozen=True, slots=True)
class LedgerOutcome:
    """What became of one ledger of one topic, and why; ``ledger_id`` -1 speaks of the topic as a whole.

    ``bytes`` as its topic lists them; ``on_disk``: of all its replicas in BookKeeper, 0 where nobody knows.
    """

    topic: str
    ledger_id: int
    outcome: Outcome
    why: Why
    bytes: int = 0
    component: str = ""
    on_disk: int = 0

    @property
    def reason(self) -> str:
        """Why, as a sentence."""
        return self.why.text


def of_topic(topic: Topic | str, outcome: Outcome, code: StrEnum, text: str) -> LedgerOutcome:
    """What became of a topic as a whole."""
    return LedgerOutcome(str(topic), -1, outcome, Why(code, text))


def guarded(topic: Topic, work: Callable[[], list[LedgerOutcome]]) -> list[LedgerOutcome]:
    """``work`` about one topic; an error that concerns it alone becomes its outcome."""
    try:
        return work()
    except STOPPING:
        raise
    except RefusedBy as refusal:
        return [LedgerOutcome(str(topic), -1, Outcome.REFUSED, why_refused(refusal))]
    except LifecycleError as error:
        return [of_topic(topic, Outcome.FAILED, Code.SERVER_FAILED, str(error))]


Report = Callable[[Sequence[LedgerOutcome]], None]
"""Called with what became of each topic as soon as it is known: a run that is stopped later returns nothing."""


def send_messages(
    run: TopicRun,
    ports: Ports,
    messages: Sequence[PendingDeleteLedgerInfo],
    lengths: Mapping[int, int],
    reason: str = "its topic is written next",
) -> list[Sent]:
    """Send messages about ledgers of these lengths (bytes), and journal each with phase ``send``, sent for a reason.

    They name the run's plan, so that the deletion run that takes them does, too.
    """
    if not messages:
        return []
    named = [replace(one, plan_id=run.plan_id) for one in messages] if run.plan_id else messages
    outcomes = ports.queue.send(named, run.deliver_after_ms)
    now = ports.clock.now_ms()
    rows: list[JournalRow] = []
    for sent in outcomes:
        info = sent.info
        outcome, why = Outcome.SENT, Why(Code.PLANNED, reason)
        if sent.error is not None:
            outcome, why = Outcome.SEND_FAILED, Why(Code.NOT_SENT, sent.error)
        length = lengths.get(info.ledger_id, 0)
        one = LedgerOutcome(info.topic_name, info.ledger_id, outcome, why, length, info.component.value)
        rows.append(journal_row(run, one, info.ledger_type, (MessageSent(sent.message_id.hex()),), now, Phase.SEND))
    ports.journal.record(rows)
    return outcomes


@dataclass(frozen=True, slots=True)
class Mark:
    """Details of a mark: the copies that a ledger's messages are about; empty where it asks for none.

    ``czxid`` is what waives the grace period of exactly the ledger whose own message went with the mark.
    """

    czxid: int | None
    uuid: str
    bucket: str


@dataclass(frozen=True, slots=True)
class MarkMessages:
    """Details of a mark: the messages that went with it, by what they are about."""

    messages: Mapping[str, str]


def mark_of(messages: Sequence[PendingDeleteLedgerInfo]) -> Mark:
    """What a mark asks for, by the messages about its ledger."""
    own = next((m.czxid for m in messages if m.ledger_type is LedgerType.LEDGER), None)
    return Mark(own, "".join(map(copy_of, messages)), "".join(map(bucket_of, messages)))


def journal_row(
    run: TopicRun, one: LedgerOutcome, kind: LedgerType, details: Details, now: int, phase: Phase = Phase.MARK
) -> JournalRow:
    """The journal's row for what became of a ledger whose (first) message is about the copy ``kind``."""
    writer = Writer(run.run_id, run.cluster, run.plan_id)
    about = Subject(one.ledger_id, one.component, one.topic, one.bytes, details=details)
    return writer.row(Step(action_of(kind), phase), about, one.outcome, one.why, now)
