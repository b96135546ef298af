"""Where the offload of one topic stands, as ``pulsar-admin topics offload-status`` says of a broker's own.

Belongs here: the topic's z-node, our open attempts and the journal, to one state. Not here: which ledgers are to go
(``tiered/planning/``). Upstream: ``LongRunningProcessStatus`` and ``OffloadProcessStatus`` (4.0.7), which a broker
keeps in memory and forgets when it unloads the topic; this answer is stored, and no topic is loaded for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import pyarrow.compute as pc

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import JournalReader, JournalRow
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.topics.snapshot import topic_node
from pulsar_lifecycle.values.outcomes import Action, Outcome


class OffloadState(StrEnum):
    """``LongRunningProcessStatus.Status``."""

    NOT_RUN = "NOT_RUN"
    """Nothing of the topic is offloaded, and nothing was tried."""
    RUNNING = "RUNNING"
    """An attempt is open, and whoever made it may be at work."""
    SUCCESS = "SUCCESS"
    """What was tried last is offloaded."""
    ERROR = "ERROR"
    """What was tried last failed, or was interrupted."""


class OffloadStateCode(StrEnum):
    """What an offload's state rests on."""

    NOTHING = "nothing"
    """The topic's metadata names no offload, and the journal no failure."""
    OUR_ATTEMPT = "our_attempt"
    """An attempt of ours is open, and an offload run is at work."""
    BROKERS_ATTEMPT = "brokers_attempt"
    """A broker has begun an attempt; whether it is still at work is in its memory alone."""
    INTERRUPTED = "interrupted"
    """An attempt of ours is open, and no offload run is at work: the next one finishes it."""
    ATTEMPT_UNREAD = "attempt_unread"
    """A z-node of an open attempt of ours cannot be read."""
    RUN_FAILED = "run_failed"
    """The journal's last word on a ledger of the topic is a failure."""
    OFFLOADED = "offloaded"
    """The topic's metadata names complete offloads, and nothing failed since."""


@dataclass(frozen=True, slots=True)
class OffloadStatus:
    """``detail``: the attempt, or what the journal said; ``at`` (ms): since when an attempt is open, or of that word.

    ``first_not_offloaded``: the first position that is not in the object store; None of a topic without entries.
    """

    topic: Topic
    state: OffloadState
    code: OffloadStateCode
    detail: str
    at: int | None
    ledgers: int
    offloaded: int
    first_not_offloaded: Position | None


_FAILED = (Outcome.FAILED, Outcome.PROOF_FAILED, Outcome.ATTEMPT_ABORTED)
_ENDED = (*_FAILED, Outcome.OFFLOADED, Outcome.REVERTED)


def offload_status(where: Cluster, topic: Topic) -> OffloadStatus:
    """Read one topic afresh; asks no broker. Raises Refused for what is no topic, or cannot be read."""
    with where.ports(read_only=True) as ports:
        _, info = topic_node(ports.store, topic)
        open_ones = attempts.of_ledgers(ports.store, [item.ledger_id for item in info.ledgers])
        at_work = bool(open_ones) and control.is_held(ports.store, control.OFFLOAD_LEASE)
    state, code, detail, at = _state(info.ledgers, list(open_ones.values()), at_work)
    if state in (OffloadState.NOT_RUN, OffloadState.SUCCESS):
        listed = {item.ledger_id for item in info.ledgers}
        if failure := last_failure(where.journal_reader, where.settings.cluster, topic, listed):
            about = f"ledger {failure.ledger_id}: " if failure.ledger_id >= 0 else ""
            state, code = OffloadState.ERROR, OffloadStateCode.RUN_FAILED
            detail, at = f"run {failure.run_id}: {about}{failure.reason}", failure.at
    return OffloadStatus(
        topic,
        state,
        code,
        detail,
        at,
        len(info.ledgers),
        sum(bool(item.offload and item.offload.complete) for item in info.ledgers),
        _first_not_offloaded(info.ledgers),
    )


def _state(
    ledgers: Sequence[LedgerInfo], ours: Iterable[Attempt | attempts.BrokenAttempt], at_work: bool
) -> tuple[OffloadState, OffloadStateCode, str, int | None]:
    for one in ours:
        if isinstance(one, attempts.BrokenAttempt):
            return OffloadState.ERROR, OffloadStateCode.ATTEMPT_UNREAD, f"{one.path}: {one.why}", None
        detail = f"attempt {one.uuid} of ledger {one.ledger_id}, run {one.run_id}"
        if at_work:
            return OffloadState.RUNNING, OffloadStateCode.OUR_ATTEMPT, detail, one.since
        return OffloadState.ERROR, OffloadStateCode.INTERRUPTED, detail, one.since
    for item in ledgers:
        if item.offload and item.offload.uuid and not item.offload.complete:
            detail = f"attempt {item.offload.uuid} of ledger {item.ledger_id}"
            return OffloadState.RUNNING, OffloadStateCode.BROKERS_ATTEMPT, detail, None
    complete = [item for item in ledgers if item.offload and item.offload.complete]
    if complete:
        newest = max((item.offload.timestamp or 0 for item in complete if item.offload), default=0)
        return OffloadState.SUCCESS, OffloadStateCode.OFFLOADED, "", newest or None
    return OffloadState.NOT_RUN, OffloadStateCode.NOTHING, "", None


def last_failure(
    journal: JournalReader, cluster: str, topic: Topic, listed: Iterable[int] | None = None
) -> JournalRow | None:
    """The newest failure of an offload of a topic's ledgers that nothing has mended since; of ``listed`` ones only.

    A failure of the whole topic (ledger id -1) stands until a ledger of it is offloaded.
    """
    mine = (pc.field("cluster") == cluster) & (pc.field("topic") == str(topic)) & (pc.field("action") == Action.OFFLOAD)
    rows = journal.find(mine & pc.field("outcome").isin(_ENDED)).sort_by("at").to_pylist()
    known = None if listed is None else {-1, *listed}
    last: dict[int, JournalRow] = {}
    for row in rows:
        if known is None or row["ledger_id"] in known:
            last[row["ledger_id"]] = JournalRow(**row)
            if row["outcome"] == Outcome.OFFLOADED:
                last.pop(-1, None)
    failed = [row for row in last.values() if row.outcome in _FAILED]
    return max(failed, key=lambda row: row.at, default=None)


def _first_not_offloaded(ledgers: Sequence[LedgerInfo]) -> Position | None:
    for item in sorted(ledgers, key=lambda one: one.ledger_id):
        empty = item.entries == 0  # a closed one; an open one has no number
        if not empty and not (item.offload and item.offload.complete):
            return Position(item.ledger_id, 0)
    return None
