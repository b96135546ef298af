"""The journal's row of what one message of the deletion queue became.

Not here: deciding (``deciding.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pulsar_lifecycle.deletion.decision import Decision, ObjectSeen, Run
from pulsar_lifecycle.formats.retry_letter import reconsume_times
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import copy_of
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase, Waiting, action_of

RAW_LIMIT = 65_536
"""Bytes of a refused message that the journal keeps."""


@dataclass(frozen=True, slots=True)
class _Offloaded:
    """The offloaded copy for which BookKeeper's goes."""

    uuid: str
    bucket: str


@dataclass(frozen=True, slots=True)
class _Detail:
    """Details of a row: the message as it came, what it waits for, the copy and the objects it is about."""

    message: str
    publish_time: int
    reconsume_times: int | None
    waiting: Waiting | None
    waiting_since: int | None
    uuid: str | None
    bucket: str | None
    objects: Sequence[ObjectSeen] | None
    offloaded: _Offloaded | None
    raw: str | None
    properties: Mapping[str, str] | None


def journal_row(
    run: Run, d: Decision, now: int, phase: Phase = Phase.DELETE, outcome: Outcome | None = None
) -> JournalRow:
    """The row of a decision, with its own outcome or the one given."""
    info = d.message.info
    waits = d.waiting if d.outcome == Outcome.WAITING else None
    refused = d.outcome == Outcome.REFUSED
    times = reconsume_times(d.message.properties) if d.reconsume_times is None else d.reconsume_times
    details = (
        _Detail(
            message=d.message.message_id.hex(),
            publish_time=d.message.publish_time,
            reconsume_times=times or None,
            waiting=waits,
            waiting_since=d.waiting_since if waits and d.sent_back else None,
            uuid=(copy_of(info) if info else "") or None,
            bucket=d.bucket or None,
            objects=d.objects or None,
            offloaded=_Offloaded(str(d.copy_deletion.uuid), d.copy_deletion.bucket) if d.copy_deletion else None,
            raw=d.message.raw[:RAW_LIMIT].hex() if refused else None,
            properties=_bounded(d.message.properties) if refused else None,
        ),
    )
    outcome = outcome or d.outcome
    assert outcome is not None
    about = Subject(-1, "", "", d.length, d.checksum, details)
    if info:
        about = Subject(info.ledger_id, info.component.value, info.topic_name, d.length, d.checksum, details)
    action = action_of(info.ledger_type) if info else Action.DELETE_LEDGER
    writer = Writer(run.run_id, run.cluster, info.plan_id if info else "")
    return writer.row(Step(action, phase), about, outcome, Why(d.code or Code.ABOUT_TO, d.reason), now)


def _bounded(properties: Mapping[str, str]) -> dict[str, str]:
    """The properties of a refused message, as many as fit :data:`RAW_LIMIT` characters."""
    kept: dict[str, str] = {}
    room = RAW_LIMIT
    for name, value in sorted(properties.items()):
        room -= len(name) + len(value)
        if room < 0:
            break
        kept[name] = value
    return kept
