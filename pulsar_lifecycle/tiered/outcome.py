"""What became of the ledgers of an offload run, and how the journal is told.

Belongs here: the words of one step about one ledger. Not here: the steps (``tiered/commit.py``,
``tiered/bookkeeper_copies.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.formats.deletion_message import LedgerComponent
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs.journal_rows import Details, Step, Subject, Writer
from pulsar_lifecycle.topics.write import TopicRun
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import Verified
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase

POLICY = "offload.loaded_topics"


@dataclass(frozen=True, slots=True)
class OffloadOutcome:
    """What became of one ledger; ``ledger_id`` -1 speaks of the topic, or of an attempt that cannot be read.

    ``ledgers``: how many it speaks of, if it is the topic.
    """

    topic: str
    ledger_id: int
    outcome: Outcome
    why: Why
    bytes: int = 0
    uuid: str = ""
    ledgers: int = 1

    @property
    def reason(self) -> str:
        """Why, as a sentence."""
        return self.why.text

    @property
    def waits_for_read_check(self) -> bool:
        """Whether it was left only because its broker must read the first ledger of its location."""
        return self.why.code is Code.READ_CHECK_DUE


def outcome_of(attempt: Attempt, outcome: Outcome, why: Why) -> OffloadOutcome:
    """What became of an attempt."""
    return OffloadOutcome(attempt.topic, attempt.ledger_id, outcome, why, uuid=str(attempt.uuid))


@dataclass(frozen=True, slots=True)
class OfCopy:
    """Details of every row here: the UUID of the offloaded copy; empty where it is about none."""

    uuid: str


@dataclass(frozen=True, slots=True)
class Several:
    """Details of a row that speaks of a topic: of how many of its ledgers."""

    ledgers: int


def record(
    run: TopicRun,
    ports: Ports,
    outcomes: Sequence[OffloadOutcome],
    details: Mapping[int, Details] | None = None,
    *,
    action: Action = Action.OFFLOAD,
    phase: Phase = Phase.OFFLOAD,
) -> None:
    """One journal row per ledger; ``details`` by ledger id go beside its UUID."""
    known, now, writer = details or {}, ports.clock.now_ms(), writer_of(run)
    ports.journal.record(
        [journal_row(writer, one, known.get(one.ledger_id, ()), now, action=action, phase=phase) for one in outcomes]
    )


def record_topics(run: TopicRun, ports: Ports, outcomes: Sequence[OffloadOutcome], action: Action) -> None:
    """One journal row per topic, of so many of its ledgers together."""
    now, writer = ports.clock.now_ms(), writer_of(run)
    phase = Phase.OFFLOAD if action is Action.OFFLOAD else Phase.COPY_DELETION
    rows = [journal_row(writer, one, (Several(one.ledgers),), now, action=action, phase=phase) for one in outcomes]
    ports.journal.record(rows)


def writer_of(run: TopicRun) -> Writer:
    """Who journals: the run, and the plan that it works off."""
    return Writer(run.run_id, run.cluster, run.plan_id)


def journal_row(
    writer: Writer,
    one: OffloadOutcome,
    details: Details,
    now: int,
    *,
    action: Action = Action.OFFLOAD,
    phase: Phase = Phase.OFFLOAD,
) -> JournalRow:
    """The journal's row of a step of offloading a ledger, or of another ``action`` about its offload."""
    about = Subject(
        one.ledger_id,
        LedgerComponent.MANAGED_LEDGER.value,
        one.topic,
        one.bytes,
        next((each.checksum for each in details if isinstance(each, Verified)), ""),
        (*details, OfCopy(one.uuid)),
    )
    return writer.row(Step(action, phase), about, one.outcome, one.why, now)
