"""Questions to the journal that every capability asks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.journal.intents import INTENT_COLUMNS, IntentState, intent_states, to_send
from pulsar_lifecycle.ports import JournalReader
from pulsar_lifecycle.runs.journal_rows import MessageSent, details_of
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase, Waiting


def rows_of_outcome(
    journal: JournalReader, outcome: Outcome, since: int, condition: pc.Expression, columns: Sequence[str] | None = None
) -> pa.Table:
    """Journal rows of one outcome at ``since`` (ms) or later."""
    return journal.find(condition & (pc.field("outcome") == outcome) & filed_since(since), columns)


LAST_DAY = 253_402_214_400
"""The last day that has a date, in seconds: a message's publish time may be any number."""


def filed_since(since: int) -> pc.Expression:
    """The condition for rows at ``since`` (ms) or later, which skips the objects of other days."""
    # A batch is filed under the day of its first row, which may be the day before.
    day = datetime.fromtimestamp(min(max(0, since / 1000 - 86_400), LAST_DAY), UTC).date().isoformat()
    return (pc.field("at") >= since) & (pc.field("date") >= day)


def having(wanted: Mapping[str, int | str | None]) -> pc.Expression | None:
    """The condition for rows whose columns have these values (None: any)."""
    condition = None
    for name, value in wanted.items():
        if value is not None:
            term = pc.field(name) == value
            condition = term if condition is None else condition & term
    return condition


def journal_rows(
    journal: JournalReader,
    *,
    ledger_id: int | None = None,
    run_id: str | None = None,
    plan_id: str | None = None,
    topic: str | None = None,
    code: str | None = None,
    outcome: str | None = None,
) -> pa.Table:
    """Journal rows in the order of their time, all or those that match; ``tables.JOURNAL``."""
    wanted = {"ledger_id": ledger_id, "run_id": run_id, "plan_id": plan_id, "topic": topic}
    return journal.find(having({**wanted, "code": code, "outcome": outcome})).sort_by("at")


def taken_messages(journal: JournalReader, run_id: str) -> frozenset[str]:
    """Ids (hexadecimal) of the messages of the deletion queue that a run decided."""
    mine = (pc.field("run_id") == run_id) & (pc.field("phase") == Phase.DELETE)
    details = journal.find(mine, ["detail"]).column("detail").to_pylist()
    return frozenset(sent.message for detail in details if (sent := details_of(MessageSent, detail)))


def deleted_since(journal: JournalReader, since: int, cluster: str) -> int:
    """How many :func:`deleted_ids` there are."""
    return len(deleted_ids(journal, since, cluster))


def deleted_ids(journal: JournalReader, since: int, cluster: str) -> frozenset[int]:
    """Ledgers of a cluster that the journal says were deleted in BookKeeper at ``since`` (ms) or later.

    Without those that an undo restored.
    """
    mine = (pc.field("cluster") == cluster) & ~OFFLOADED_COPIES
    deleted = rows_of_outcome(journal, Outcome.DELETED, since, mine, ["ledger_id"]).column("ledger_id").to_pylist()
    if not deleted:
        return frozenset()
    restored = rows_of_outcome(journal, Outcome.RESTORED, since, mine, ["ledger_id"])
    return frozenset(deleted).difference(restored.column("ledger_id").to_pylist())


def ordered_since(journal: JournalReader, since: int, cluster: str) -> frozenset[int]:
    """Ledgers whose deletion in BookKeeper the journal says was ordered or done at ``since`` (ms) or later."""
    condition = (pc.field("cluster") == cluster) & ~OFFLOADED_COPIES & filed_since(since)
    rows = journal.find(condition & pc.field("outcome").isin([Outcome.SENT, Outcome.DELETED]), ["ledger_id"])
    return frozenset(rows.column("ledger_id").to_pylist())


def deleted_by_topic(journal: JournalReader, cluster: str, run_id: str = "") -> pa.Table:
    """What the journal says was deleted of each topic by one run of a cluster, or all: ``topic ledgers bytes``."""
    condition = pc.field("cluster") == cluster
    if run_id:
        condition &= pc.field("run_id") == run_id
    rows = rows_of_outcome(journal, Outcome.DELETED, 0, condition, ["topic", "bytes"])
    counted = rows.group_by("topic").aggregate([("bytes", "count"), ("bytes", "sum")])
    return counted.select(["topic", "bytes_count", "bytes_sum"]).rename_columns(["topic", "ledgers", "bytes"])


OFFLOADED_COPIES = pc.field("action") == Action.DELETE_OFFLOADED


def sent_ledgers(journal: JournalReader, plan_id: str) -> frozenset[int]:
    """Ledger ids of a plan whose intents the journal says were sent."""
    return frozenset(
        rows_of_outcome(journal, Outcome.SENT, 0, pc.field("plan_id") == plan_id).column("ledger_id").to_pylist()
    )


def ordered_by(journal: JournalReader, cluster: str, by: Mapping[int, int]) -> dict[int, str]:
    """The plan whose intent to delete a ledger in BookKeeper the journal says was sent last, by ledger.

    ``by``: ledger id -> until when (ms): what was sent later did not order what was deleted then.
    """
    if not by:
        return {}
    mine = (pc.field("cluster") == cluster) & (pc.field("action") == Action.DELETE_LEDGER)
    sent = mine & (pc.field("outcome") == Outcome.SENT) & pc.field("ledger_id").isin(sorted(by))
    rows = journal.find(sent, ["ledger_id", "plan_id", "at"]).sort_by("at").to_pylist()
    return {row["ledger_id"]: row["plan_id"] or "" for row in rows if row["at"] <= by[row["ledger_id"]]}


@dataclass(frozen=True, slots=True)
class DeadLetterReason:
    """Why a message became a dead letter: as a code, empty in rows of versions without codes; as a sentence."""

    code: str
    text: str


def dead_letter_reasons(journal: JournalReader, cluster: str, since: int) -> dict[tuple[int, str], DeadLetterReason]:
    """Why messages became dead letters at ``since`` (ms) or later: (ledger id, action) -> why, the last time."""
    mine = (pc.field("cluster") == cluster) & (pc.field("phase") == Phase.DELETE)
    key = ["ledger_id", "action"]
    rows = rows_of_outcome(journal, Outcome.DEAD_LETTERED, since, mine, [*key, "code", "reason", "at"]).sort_by("at")
    return {
        (row["ledger_id"], row["action"]): DeadLetterReason(row["code"] or "", row["reason"])
        for row in rows.to_pylist()
    }


def rows_of_phase(journal: JournalReader, phase: Phase) -> pa.Table:
    """Journal rows of one phase in the order of their time; ``tables.JOURNAL``."""
    return journal.find(pc.field("phase") == phase).sort_by("at")


def read_intent_states(
    journal: JournalReader, cluster: str, among: pa.Array | None = None, since: int | None = None
) -> pa.Table:
    """What became of every intent of a cluster, or of those ``among`` these ledgers; ``intents.intent_states``.

    With ``since`` (ms) only of those of which the journal says something at that time or later.
    """
    condition = (pc.field("cluster") == cluster) & pc.field("phase").isin([Phase.SEND, Phase.REDRIVE, Phase.DELETE])
    if among is not None:
        condition &= pc.is_in(pc.field("ledger_id"), among)
    if since is not None:
        condition &= filed_since(since)
    return intent_states(journal.find(condition, INTENT_COLUMNS))


def unsent(journal: JournalReader, cluster: str, rows: pa.Table, since: int) -> pa.Table:
    """Plan rows without the ledgers whose intent is in flight by journal rows of ``since`` (ms) or later."""
    ids = rows.column("ledger_id").combine_chunks()
    return to_send(rows, read_intent_states(journal, cluster, ids, since))


def pending_ledgers(journal: JournalReader, cluster: str, among: pa.Array) -> pa.Array:
    """Those ``among`` these ledgers whose message about BookKeeper's copy was sent and not decided, by the journal."""
    intents = read_intent_states(journal, cluster, among)
    about_ledger = pc.equal(intents.column("action"), Action.DELETE_LEDGER)
    sent = pc.and_(pc.equal(intents.column("state"), IntentState.IN_FLIGHT), about_ledger)
    return intents.filter(sent).column("ledger_id").combine_chunks()


def waiting_ledgers(
    journal: JournalReader, cluster: str, ledger_ids: Iterable[int], waiting: Waiting, now: int
) -> set[int]:
    """Those of the ledgers whose message about BookKeeper's copy waits for this, and was not sent again by ``now``."""
    ids = pa.array(sorted(ledger_ids), pa.int64())
    sent = (pc.field("outcome") == Outcome.SENT) & (pc.field("at") <= now)  # a later one is of a clock that was ahead
    newest = (pc.field("phase") == Phase.DELETE) | sent
    mine = (pc.field("cluster") == cluster) & newest & (pc.field("action") == Action.DELETE_LEDGER)
    columns = ["ledger_id", "outcome", "detail", "at"]
    rows = journal.find(mine & pc.is_in(pc.field("ledger_id"), ids), columns).sort_by("at")
    last = {row["ledger_id"]: row for row in rows.to_pylist()}
    return {
        ledger_id
        for ledger_id, row in last.items()
        if row["outcome"] == Outcome.WAITING and details_of(_Waits, row["detail"]) == _Waits(waiting)
    }


@dataclass(frozen=True, slots=True)
class _Waits:
    """What the details of a decision say that its message waits for."""

    waiting: Waiting
