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
from pulsar_lifecycle.delete_records.leftovers import listed_before
from pulsar_lifecycle.delete_records.partition_answers import (
    answers,
    any_awaited,
    look_now,
    queue_is_empty,
    sent_at,
)
from pulsar_lifecycle.delete_records.records_planning import ask_brokers
from pulsar_lifecycle.delete_records.request import Absence, DeleteRecordsResult, Presence, TopicPartition
from pulsar_lifecycle.deletion.deletion_run import delete_pending
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.deletion.workers import FAILURES, RunEnd
from pulsar_lifecycle.errors import LifecycleError, RefusedBy
from pulsar_lifecycle.lifecycle.bookies.collection_run import collect_bookies
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.progress import unsaid
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.topics.topic_run import deliver_after_ms_of, topic_ports
from pulsar_lifecycle.topics.write import STOPPING
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from pulsar_lifecycle.values.refusals import RefusalCode

AT_LEAST_MS = 5_000
"""Between two deletion runs, however short the settings' delays are."""
BY_ITSELF_MS = 30_000
"""How long a broker may take to delete a ledger that it has trimmed itself: nothing else is waited for."""
LOOKED_AFTER_MS = 30_000
"""Between two looks at bookies that have something, while a ledger is there that nothing deletes."""
TRIED_AGAIN_AFTER_MS = 60_000
"""Between two tries of partitions that timed out. Another broker has them by then, if theirs is dead."""
TRIED_FOR_MS = 600_000
"""How long they are tried, and no longer than half of the wait: the rest is for the answers of all others."""

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
    once no deletion run would delete anything more, those bookies collect that have entries of what is deleted. What
    hinders a deletion run or a collection is said with each partition that waits for it.
    """
    work = _Finishing(cluster, run_id, rows, refused, planned_at, progress, cluster.clock.now_ms() + wait_ms)
    work.delete(again)
    stuck = bool(work.not_deleted())  # by any of them: that keeps no other partition from its answer
    if collect and bookies and (work.left_ms or not stuck):
        work.collect()
    if stuck and bookies:
        work.wait_for_bookies()
    left = work.left_ms
    if stuck:
        flush_ms = int(cluster.settings.bookkeeper.flush_interval * 1000) if bookies else 0
        left = min(left, BY_ITSELF_MS + flush_ms)
    if any_awaited(rows, refused):
        progress(f"waiting for at most {left // 1000} s until everything is proven gone")
    found = answers(cluster, rows, refused, planned_at=planned_at, wait_ms=left, bookies=bookies, listed=work.listed)
    return work.hindered(found)


def make_covered(cluster: Cluster, run_id: str, progress: Callable[[str], None]) -> None:
    """Scan once more where the newest scan is not covered, as one made while a broker did not answer.

    Nobody acts on such a scan. Whoever finished while a broker was down has made such a scan. Raises Refused for what
    keeps everybody from acting, also while a broker does not answer yet: another scan would not be covered either.
    """
    with cluster.ports(read_only=True) as ports:
        fingerprint = evidence.check_may_act(cluster, ports.store)
    try:
        evidence.newest_epoch(cluster, fingerprint)
    except RefusedBy as refusal:
        if refusal.code is not RefusalCode.SCAN_NOT_COVERED:
            raise
        with topic_ports(cluster, read_only=True) as ports:
            if ask_brokers(ports).unanswered:
                raise
        progress(f"{refusal}: another scan begins")
        judged_scan.scan(cluster, run_id)


class _Finishing:
    """What is left of a request until ``deadline`` (ms), and what hinders it."""

    def __init__(
        self,
        cluster: Cluster,
        run_id: str,
        rows: Sequence[Row],
        refused: Mapping[TopicPartition, Refusal | None],
        planned_at: int,
        progress: Callable[[str], None],
        deadline: int,
    ) -> None:
        self._cluster, self._run_id, self._runs = cluster, run_id, count(1)
        self._rows, self._refused, self._planned_at = rows, refused, planned_at
        self._progress, self._clock, self._deadline = progress, cluster.clock, deadline
        self._trouble = ""
        with topic_ports(cluster, read_only=True) as ports:
            self.listed = listed_before(cluster, ports, rows, planned_at)

    @property
    def left_ms(self) -> int:
        """How long there is yet."""
        return max(0, self._deadline - self._clock.now_ms())

    def delete(self, again: Again) -> None:
        """Scans and deletion runs until none would take anything more, and no partition has timed out."""
        due: int | None = None
        next_try = self._clock.now_ms() + TRIED_AGAIN_AFTER_MS
        last_try = self._clock.now_ms() + min(TRIED_FOR_MS, self.left_ms // 2)
        while self.left_ms:
            unanswered = self._timed_out() if next_try <= last_try else []
            if unanswered and self._clock.now_ms() >= next_try:
                if self._try_again(again, unanswered):
                    last_try = 0
                next_try = self._clock.now_ms() + TRIED_AGAIN_AFTER_MS
                if len(self._timed_out()) < len(unanswered):
                    due = None  # a deletion run goes once the last messages are delivered
                continue
            until = min(self._deadline, next_try) if unanswered else self._deadline
            waiting = self.not_deleted()
            sent = sent_at(self._cluster, waiting)
            if not sent or (due is not None and _nothing_waits(self._cluster)):  # no deletion run will take any of them
                if not unanswered:
                    return
                self._sleep(until)
                continue
            if due is None:
                due = max(sent.values()) + _delivered_after(self._cluster)
            if (early := due - self._clock.now_ms()) > 0:
                hindered = f"; {self._trouble}" if self._trouble else ""
                begins = f"a deletion run begins in {early // 1000} s{hindered}"
                self._progress(f"{len(waiting)} ledgers are to be deleted: {begins}")
                self._sleep(min(due, until))
                continue
            self._trouble = _unanswered(self._cluster)
            if self._trouble:
                due = self._clock.now_ms() + TRIED_AGAIN_AFTER_MS
                continue
            self._progress(f"{len(waiting)} ledgers are to be deleted: a scan and a deletion run begin")
            self._trouble = _delete(self._cluster, self._next_run())  # a run leaves what itself has sent back
            due = self._clock.now_ms() + _comes_again_after(self._cluster)

    def not_deleted(self) -> frozenset[int]:
        """Ledgers that left their topics and are there still, in BookKeeper's metadata or in a bucket."""
        found = self._look(bookies=False)
        return frozenset(one.ledger_id for one in found if not one.gone)

    def collect(self) -> None:
        """Have the bookies collect that say that they have entries of ledgers that are deleted."""
        found = self._at_bookies()
        holding = frozenset(bookie for one in found if one.presence is Presence.ON_BOOKIE for bookie in one.where)
        self._progress(f"{len(holding)} bookies that have entries of it are to collect")
        hindered = _collect(self._cluster, self._run_id, holding)
        self._trouble = "; ".join(filter(None, (self._trouble, hindered)))

    def wait_for_bookies(self) -> None:
        """Until every bookie has said of all ledgers that are deleted that it has nothing."""
        while self.left_ms and any(one.presence in _ON_BOOKIES for one in self._at_bookies()):
            self._progress(f"waiting for at most {self.left_ms // 1000} s until no bookie has anything")
            self._sleep(self._clock.now_ms() + LOOKED_AFTER_MS)

    def hindered(
        self, found: Mapping[TopicPartition, DeleteRecordsResult]
    ) -> dict[TopicPartition, DeleteRecordsResult]:
        """The same answers; those that wait for a deletion or a collection say what hindered it."""
        if not self._trouble:
            return dict(found)
        planned = {Topic.parse(row["topic"]) for row in self._rows if row["error"] is None}
        waiting = [t for t, one in found.items() if one.error and t in planned and not self._refused.get(t)]
        return {**found, **{t: replace(found[t], reason=f"{found[t].reason}; {self._trouble}") for t in waiting}}

    def _timed_out(self) -> list[Row]:
        """Those that an apply began with, or did not come to, while their broker, or another server, did not answer."""
        found = [(row, self._refused.get(Topic.parse(row["topic"]))) for row in self._rows]
        return [row for row, refusal in found if refusal and refusal.error is RecordsError.TIMEOUT]

    def _try_again(self, again: Again, unanswered: Sequence[Row]) -> bool:
        """Whether that was the last try, as after a pause. What hinders it is said.

        Each of these partitions keeps what it was refused for.
        """
        first = unanswered[0]["topic"]
        self._progress(f"{len(unanswered)} partitions that timed out are tried again, the first: {first}")
        try:
            make_covered(self._cluster, self._next_run(), self._progress)
            again(unanswered, self.left_ms / 1000)
        except LifecycleError as error:
            self._progress(f"they were not tried again: {error}")
            return isinstance(error, STOPPING)
        return False

    def _at_bookies(self) -> Sequence[Absence]:
        return self._look(bookies=True)

    def _look(self, *, bookies: bool) -> Sequence[Absence]:
        return look_now(self._cluster, self._rows, self._refused, self._planned_at, self.listed, bookies=bookies)

    def _next_run(self) -> str:
        return f"{self._run_id}-{next(self._runs)}"

    def _sleep(self, until: int) -> None:
        self._clock.sleep(max(0, min(until, self._deadline) - self._clock.now_ms()) / 1000)


_ON_BOOKIES = (Presence.ON_BOOKIE, Presence.BOOKIE_UNANSWERED, Presence.BOOKIES_UNKNOWN)


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


def _unanswered(cluster: Cluster) -> str:
    """Why a scan would not be covered now, so that no deletion run would take anything; empty if all brokers answer."""
    try:
        with topic_ports(cluster, read_only=True) as ports:
            answers = ask_brokers(ports)
    except LifecycleError as error:
        return f"no deletion run goes until brokers answer: {error}"
    if unknown := answers.brokers.unknown:
        return f"no deletion run goes until brokers answer: {unknown}"
    unanswered = answers.unanswered.items()
    return "; ".join(f"no deletion run goes until broker {one} answers: {why}" for one, why in unanswered)


def _delete(cluster: Cluster, run_id: str) -> str:
    """Scan, so that the scan is younger than all messages, then run a deletion; returns what hindered that."""
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
