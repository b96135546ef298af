"""Dropping uploads that our own offload runs left behind."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import BrokenAttempt
from pulsar_lifecycle.errors import LifecycleError, Refused
from pulsar_lifecycle.formats.deletion_message import LedgerComponent
from pulsar_lifecycle.ports import (
    Clock,
    Journal,
    MetadataStore,
    ObjectStore,
)
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer
from pulsar_lifecycle.tiered.buckets import bucket_rules
from pulsar_lifecycle.tiered.buckets.bucket_listing import Began, Row, batched
from pulsar_lifecycle.tiered.buckets.bucket_rules import Rules
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import BegunAttempt
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase


@dataclass(frozen=True, slots=True)
class Sweep:
    """One run over a plan's uploads."""

    run_id: str
    cluster: str
    plan_id: str


@dataclass(frozen=True, slots=True)
class _Upload:
    """Details of a row: the upload."""

    bucket: str
    key: str
    upload: str


@dataclass(frozen=True, slots=True)
class UploadOutcome:
    """What became of one planned upload: ``aborted``, ``kept``, or ``retrying`` (apply the plan again)."""

    bucket: str
    key: str
    upload_id: str
    ledger_id: int
    topic: str
    outcome: Outcome
    why: Why

    @property
    def reason(self) -> str:
        """Why, as a sentence."""
        return self.why.text

    @property
    def subject(self) -> Subject:
        """What its journal row speaks of."""
        upload = _Upload(self.bucket, self.key, self.upload_id)
        return Subject(self.ledger_id, LedgerComponent.MANAGED_LEDGER.value, self.topic, details=(upload,))


def abort_uploads(
    sweep: Sweep,
    rows: Iterable[Row],
    rules: Rules,
    began: Began,
    *,
    store: MetadataStore,
    objects: ObjectStore,
    journal: Journal,
    clock: Clock,
) -> Iterator[list[UploadOutcome]]:
    """Drop uploads that a plan names, a batch at a time, each looked at again. Raises Paused and what the stores raise.

    The journal says of each that it is about to be dropped before it is. Repeating it is harmless.
    """
    for some in batched(iter(rows)):
        control.check_not_paused(store)
        store.sync("/")
        known = attempts.of_ledgers(store, {row["ledger_id"] for row in some})
        ours = began({row["ledger_id"] for row in some})
        kept = {row["upload_id"]: _why_not(objects, row, rules, known.get(row["ledger_id"]), ours) for row in some}
        going = [row for row in some if not kept[row["upload_id"]]]
        _record(
            sweep, journal, clock, [_outcome(row, Outcome.ABORTING, Why(Code.ABOUT_TO, row["reason"])) for row in going]
        )
        done = [_abort(objects, row) for row in going]
        done += [_outcome(row, Outcome.KEPT, why) for row in some if (why := kept[row["upload_id"]])]
        _record(sweep, journal, clock, done)
        yield done


def _why_not(
    objects: ObjectStore,
    row: Row,
    rules: Rules,
    known: attempts.Attempt | BrokenAttempt | None,
    ours: Mapping[UUID, BegunAttempt],
) -> Why | None:
    """Why a planned upload is not dropped as things are now; None if it is."""
    if isinstance(known, BrokenAttempt):
        text = f"whether it is an open offload attempt of ours cannot be known: {known.path}: {known.why}"
        return Why(Code.ATTEMPT_UNREAD, text)
    uuid = UUID(row["uuid"])
    there = _find(objects, row)
    if there is None:
        return Why(Code.NOT_THERE, "it does not exist any more")
    rules = replace(rules, open_attempts=frozenset({known.uuid} if known else ()))
    rule = bucket_rules.upload_rule(row["key"], there, rules, named=False, begun=ours.get(uuid))
    return None if rule.goes else rule.why


def _find(objects: ObjectStore, row: Row) -> int | None:
    """When (ms) the upload began; None if it is not there."""
    for page in objects.list_uploads(row["bucket"], row["key"]):
        for one in page:
            if (one.key, one.upload_id) == (row["key"], row["upload_id"]):
                return one.initiated
    return None


def _abort(objects: ObjectStore, row: Row) -> UploadOutcome:
    try:
        objects.abort_upload(row["bucket"], row["key"], row["upload_id"])
        if _find(objects, row) is None:
            return _outcome(row, Outcome.ABORTED, Why(Code.LEFT_BEHIND, row["reason"]))
        return _outcome(row, Outcome.RETRYING, Why(Code.STILL_THERE, "it is still there"))
    except Refused:
        raise
    except LifecycleError as error:
        return _outcome(
            row, Outcome.RETRYING, Why(Code.OUTCOME_UNKNOWN, f"whether it was aborted is not known: {error}")
        )


def _outcome(row: Row, outcome: Outcome, why: Why) -> UploadOutcome:
    where = (row["bucket"], row["key"], row["upload_id"], row["ledger_id"], row["topic"])
    return UploadOutcome(*where, outcome, why)


def _record(sweep: Sweep, journal: Journal, clock: Clock, some: Sequence[UploadOutcome]) -> None:
    now, writer = clock.now_ms(), Writer(sweep.run_id, sweep.cluster, sweep.plan_id)
    journal.record(
        [
            writer.row(Step(Action.ABORT_UPLOAD, Phase.ABORT_UPLOAD), one.subject, one.outcome, one.why, now)
            for one in some
        ]
    )
