"""Applying a plan: its intents go to the deletion topic, each journalled.

Belongs here: refusing what must not be applied, sending, resuming. Not here: deleting (``deletion/batch.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo
from pulsar_lifecycle.ports import Clock, DeletionQueue, Journal, JournalRow, MetadataStore, Sent
from pulsar_lifecycle.runs import control, plan_checks
from pulsar_lifecycle.runs.caps import Caps, Order
from pulsar_lifecycle.runs.journal_rows import MessageSent, Step, Subject, Writer
from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import copy_of
from pulsar_lifecycle.values.findings import component_of
from pulsar_lifecycle.values.outcomes import Outcome, Phase, action_of
from pulsar_lifecycle.values.plans import deletion_plan
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary


def intents(rows: pa.Table, plan_id: str, sent_at: int) -> Iterable[PendingDeleteLedgerInfo]:
    """One message per plan row."""
    for row in rows.to_pylist():
        yield PendingDeleteLedgerInfo(
            topic_name=row["topic"],
            component=component_of(row["component"], row["cursor"]),
            ledger_id=row["ledger_id"],
            cursor_name=row["cursor"] or "",
            schema_id=row["schema_id"] or "",
            bucket_key=row["bucket_key"] or "",
            plan_id=plan_id,
            czxid=row["czxid"],
            ctime=row["ctime"],
            sent_at=sent_at,
        )


SEND_BATCH = 1_000


@dataclass(frozen=True, slots=True)
class Applied:
    """How an apply ended; ``already`` were sent by an earlier apply of the same plan, ``left`` were not tried."""

    sent: int
    already: int
    failed: int
    first_error: str
    left: int = 0

    @property
    def problem(self) -> str | None:
        """What went wrong, for people."""
        left = f", and {self.left} were not tried after that" if self.left else ""
        return f"{self.failed} intents could not be sent{left}, the first: {self.first_error}" if self.failed else None


def chosen(
    order: Order,
    caps: Caps,
    summary: PlanSummary,
    rows: pa.Table,
    *,
    cluster: str,
    fingerprint: str,
    now: int,
    valid_for_ms: int,
) -> pa.Table:
    """The rows to apply, lowest ids first; those that were sent before are among them, so that a retry sends no more.

    ``caps``: those in effect for ``order``. Raises RefusedBy.
    """
    found = deletion_plan.digest(rows, summary.to_json())
    plans.check_applicable(
        summary,
        found,
        digest_given=order.digest,
        cluster=cluster,
        fingerprint=fingerprint,
        now=now,
        valid_for_ms=valid_for_ms,
    )
    some = plan_checks.within(rows, order.namespaces).sort_by("ledger_id").slice(0, order.limit or rows.num_rows)
    plan_checks.check_caps(summary, some, caps)
    return some


def send_intents(
    run_id: str,
    summary: PlanSummary,
    rows: pa.Table,
    already_sent: frozenset[int],
    *,
    store: MetadataStore,
    queue: DeletionQueue,
    journal: Journal,
    clock: Clock,
    deliver_after_ms: int,
    progress: Callable[[str], None],
    intents: Callable[[pa.Table, str, int], Iterable[PendingDeleteLedgerInfo]] = intents,
) -> Applied:
    """Send one message per row that was not sent before; batches are journalled as they are acknowledged.

    A crash between a send and its journal row repeats the message, which the deletion run finds gone. A batch of which
    nothing was acknowledged is the last: each may take as long as its timeout. ``intents`` makes the messages of some
    rows, by plan id and time (ms). Raises Paused.
    """
    todo = rows.filter(pc.invert(pc.is_in(rows.column("ledger_id"), pa.array(sorted(already_sent), pa.int64()))))
    sent = failed = left = 0
    first_error = ""
    for start in range(0, todo.num_rows, SEND_BATCH):
        control.check_not_paused(store)
        now = clock.now_ms()
        batch = list(intents(todo.slice(start, SEND_BATCH), summary.plan_id, now))
        sizes = todo.slice(start, SEND_BATCH).column("logical_bytes").to_pylist()
        outcomes = queue.send(batch, deliver_after_ms)
        journal.record([_row(run_id, summary, one, size, now) for one, size in zip(outcomes, sizes, strict=True)])
        errors = [one.error for one in outcomes if one.error is not None]
        sent += len(outcomes) - len(errors)
        failed += len(errors)
        first_error = first_error or (errors[0] if errors else "")
        progress(f"{sent} of {todo.num_rows} intents sent, {failed} failed")
        if len(errors) == len(outcomes):
            left = todo.num_rows - sent - failed
            break
    return Applied(sent, rows.num_rows - todo.num_rows, failed, first_error, left)


def _row(run_id: str, summary: PlanSummary, one: Sent, size: int, now: int) -> JournalRow:
    info = one.info
    message = MessageSent(one.message_id.hex(), copy_of(info) or None)
    about = Subject(info.ledger_id, info.component.value, info.topic_name, size, details=(message,))
    outcome, why = Outcome.SENT, Why(Code.PLANNED, "planned as an orphan")
    if one.error is not None:
        outcome, why = Outcome.SEND_FAILED, Why(Code.NOT_SENT, one.error)
    writer = Writer(run_id, summary.cluster, summary.plan_id)
    return writer.row(
        Step(action_of(info.ledger_type), Phase.SEND),
        about,
        outcome,
        why,
        now,
    )
