"""One command that ends with the answer: scans and deletion runs until what left its topic is gone everywhere.

Belongs here: when a deletion run can do something, and asking once more. Not here: taking ledgers off their topics
(``apply_run.py``), what makes an answer (``partition_answers.py``), deleting (``deletion/``). A deletion run works off
all that waits in the queue, whoever sent it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from pulsar_lifecycle.delete_records.cut_rules import Refusal
from pulsar_lifecycle.delete_records.partition_answers import (
    answers,
    any_awaited,
    look_now,
    queue_is_empty,
    sent_at,
)
from pulsar_lifecycle.delete_records.request import Absence, DeleteRecordsResult, Presence, TopicPartition
from pulsar_lifecycle.deletion.deletion_run import delete_pending
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.deletion.workers import FAILURES, RunEnd
from pulsar_lifecycle.errors import LifecycleError, RefusedBy
from pulsar_lifecycle.lifecycle.bookies.collection_run import collect_bookies
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.records.plans.delete_records_plan import RecordsError
from pulsar_lifecycle.records.refusals import RefusalCode
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.progress import unsaid
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.topics.topic_run import deliver_after_ms_of, topic_ports

AT_LEAST_MS = 5_000
"""Between two deletion runs, however short the settings' delays are."""
BY_ITSELF_MS = 30_000
"""How long a broker may take to delete a ledger that it has trimmed itself: nothing else is waited for."""
LOOKED_AFTER_MS = 30_000
"""Between two looks at bookies that have something, while a ledger is there that nothing deletes."""
TRIED_AGAIN_AFTER_MS = 60_000
"""Between two tries of partitions that timed out. Another broker has them by then, if theirs is dead."""

Row = Mapping[str, Any]
"""A row of ``RECORDS``."""
Again = Callable[[Sequence[Row], float], None]
"""Applies rows once more, for so many seconds at most; updates what is ``refused``."""


def finish(
    cluster: Cluster,
    run_id: str,
    rows: Sequence[Row],
    refused: Mapping[TopicPartition, Refusal | None],
    again: Again,
    *,
    planned_at: int,
    wait_ms: int,
    bookies: bool = False,
    collect: bool = False,
    progress: Callable[[str], None] = unsaid,
) -> dict[TopicPartition, DeleteRecordsResult]:
    """Have everything deleted that left its topic, within ``wait_ms``, and answer as :func:`answers` does.

    Partitions that timed out are tried ``again`` meanwhile. ``planned_at``: when (ms) the plan was made. ``collect``:
    once nothing else has anything, those bookies collect that have entries. What hinders a deletion run or a collection
    is said with each partition that waits for it.
    """
    clock, trouble, runs = cluster.clock, "", count(1)
    deadline = clock.now_ms() + wait_ms
    due: int | None = None
    next_try = clock.now_ms() + TRIED_AGAIN_AFTER_MS
    while (left := deadline - clock.now_ms()) > 0:
        silent = _timed_out(rows, refused)
        if silent and clock.now_ms() >= next_try:
            progress(f"{len(silent)} partitions that timed out are tried again, the first: {silent[0]['topic']}")
            _try_again(cluster, f"{run_id}-{next(runs)}", again, silent, left, progress)
            next_try = clock.now_ms() + TRIED_AGAIN_AFTER_MS
            if len(_timed_out(rows, refused)) < len(silent):
                due = None  # a deletion run goes once the last messages are delivered
            continue
        until_try = max(0, next_try - clock.now_ms()) if silent else left
        waiting = _not_deleted(cluster, rows, refused)
        sent = sent_at(cluster, waiting)
        if not sent or (due is not None and _nothing_waits(cluster)):  # no deletion run will take any of them
            if not silent:
                break
            clock.sleep(min(until_try, left) / 1000)
            continue
        if due is None:
            due = max(sent.values()) + _delivered_after(cluster)
        if (early := due - clock.now_ms()) > 0:
            hindered = f"; {trouble}" if trouble else ""
            progress(f"{len(waiting)} ledgers are to be deleted: a deletion run begins in {early // 1000} s{hindered}")
            clock.sleep(min(early, left, until_try) / 1000)
            continue
        progress(f"{len(waiting)} ledgers are to be deleted: a scan and a deletion run begin")
        trouble = _delete(cluster, f"{run_id}-{next(runs)}")  # a run leaves what itself has sent back
        due = clock.now_ms() + _comes_again_after(cluster)
    stuck = _not_deleted(cluster, rows, refused)  # by any of them: that keeps no other partition from its answer
    left = max(0, deadline - clock.now_ms())
    if collect and bookies and (left or not stuck):
        holding = _bookies_holding(look_now(cluster, rows, refused, planned_at))
        progress(f"{len(holding)} bookies that have entries of it are to collect")
        trouble = _collect(cluster, run_id, holding) or (trouble if stuck else "")
        left = max(0, deadline - clock.now_ms())
    if stuck:
        while bookies and left and _bookies_awaited(look_now(cluster, rows, refused, planned_at)):
            progress(f"waiting for at most {left // 1000} s until no bookie has anything")
            clock.sleep(min(LOOKED_AFTER_MS, left) / 1000)
            left = max(0, deadline - clock.now_ms())
        flush_ms = int(cluster.settings.bookkeeper.flush_interval * 1000) if bookies else 0
        left = min(left, BY_ITSELF_MS + flush_ms)
    if any_awaited(rows, refused):
        progress(f"waiting for at most {left // 1000} s until everything is proven gone")
    found = answers(cluster, rows, refused, planned_at=planned_at, wait_ms=left, bookies=bookies)
    if trouble:
        waited_for = {Topic.parse(row["topic"]) for row in rows if row["error"] is None}
        for topic, result in found.items():
            if result.error and topic in waited_for and not refused.get(topic):
                found[topic] = replace(result, reason=f"{result.reason}; {trouble}")
    return found


def make_covered(cluster: Cluster, run_id: str, progress: Callable[[str], None]) -> None:
    """Scan once more where the newest scan is not covered, as one made while a broker was silent; nobody acts on it.

    Whoever finished while a broker was down has made such a scan. Raises Refused for what keeps everybody from acting.
    """
    with cluster.ports(read_only=True) as ports:
        fingerprint = evidence.check_may_act(cluster, ports.store)
    try:
        evidence.newest_epoch(cluster, fingerprint)
    except RefusedBy as refusal:
        if refusal.code is not RefusalCode.SCAN_NOT_COVERED:
            raise
        progress(f"{refusal}: another scan begins")
        judged_scan.scan(cluster, run_id)


def _not_deleted(
    cluster: Cluster, rows: Sequence[Row], refused: Mapping[TopicPartition, Refusal | None]
) -> frozenset[int]:
    """Ledgers that left their topics and are there still, in BookKeeper's metadata or in a bucket."""
    return frozenset(one.ledger_id for one in look_now(cluster, rows, refused) if not one.gone)


def _bookies_holding(found: Sequence[Absence]) -> frozenset[str]:
    """Bookies that say that they have entries of ledgers that are deleted."""
    return frozenset(bookie for one in found if one.presence is Presence.ON_BOOKIE for bookie in one.where)


def _bookies_awaited(found: Sequence[Absence]) -> bool:
    """Whether of any ledger that is deleted not every bookie has said yet that it has nothing."""
    return any(one.presence in _ON_BOOKIES for one in found)


_ON_BOOKIES = (Presence.ON_BOOKIE, Presence.BOOKIE_UNANSWERED, Presence.BOOKIES_UNKNOWN)


def _timed_out(rows: Sequence[Row], refused: Mapping[TopicPartition, Refusal | None]) -> list[Row]:
    """Those that an apply began with, or did not come to, while their broker, or another server, was silent."""
    found = [(row, refused.get(Topic.parse(row["topic"]))) for row in rows]
    return [row for row, refusal in found if refusal and refusal.error is RecordsError.TIMEOUT]


def _try_again(
    cluster: Cluster, run_id: str, again: Again, silent: Sequence[Row], left_ms: int, progress: Callable[[str], None]
) -> None:
    """What hinders it is said; each of these partitions keeps what it was refused for."""
    try:
        make_covered(cluster, run_id, progress)
        again(silent, left_ms / 1000)
    except LifecycleError as error:
        progress(f"they were not tried again: {error}")


def _nothing_waits(cluster: Cluster) -> bool:
    with topic_ports(cluster, read_only=True) as ports:
        return queue_is_empty(ports)


def _delivered_after(cluster: Cluster) -> int:
    """How long (ms) after it was sent a message is delivered."""
    with cluster.ports(read_only=True) as ports:
        return deliver_after_ms_of(cluster.settings, control.is_sandbox(ports.store))


def _comes_again_after(cluster: Cluster) -> int:
    """How long (ms) what a deletion run could not delete yet stays in the retry topic, at least."""
    deletion = cluster.settings.deletion
    again = min(float(deletion.twoPhaseDeletionReconsumeLaterInSeconds), deletion.waiting_delay)
    return max(AT_LEAST_MS, int(again * 1000))


def _delete(cluster: Cluster, run_id: str) -> str:
    """A scan, which must be younger than the messages, those sent again too, and a deletion run; what hindered it."""
    try:
        judged_scan.scan(cluster, run_id)
        ended = delete_pending(cluster, run_id)
    except LifecycleError as error:
        return f"the deletion run did not go: {error}"
    for one in ended:
        if isinstance(one.outcome, RunEnd) and one.outcome in FAILURES:
            return f"the deletion run: {FAILURES[one.outcome]}: {one.reason}"
    return ""


def _collect(cluster: Cluster, run_id: str, holding: Collection[str]) -> str:
    """Have the bookies collect that have entries of what is deleted; what hindered it."""
    if not holding:
        return ""
    try:
        planned, done = collect_bookies(cluster, run_id, lambda _: None, holding)
    except LifecycleError as error:
        return f"the bookies were not made to collect: {error}"
    left = dict.fromkeys(holding, "it is not registered")
    left |= {row.bookie: row.choice.value for row in planned}
    left |= {one.bookie: one.why.text for one in done}
    for bookie in [one.bookie for one in done if one.outcome is Outcome.COLLECTED]:
        del left[bookie]
    return "; ".join(f"bookie {bookie} was not made to collect: {why}" for bookie, why in sorted(left.items()))
