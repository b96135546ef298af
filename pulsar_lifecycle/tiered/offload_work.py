"""What an offload run does with its plan: attempts, copies, commits, read checks, deletion of BookKeeper copies.

Belongs here: the order of these, and whose outcome an error is. Not here: beginning a run (``tiered/offload_run.py``),
the rules and the effects (``tiered/commit.py``, ``tiered/upload.py``, ``tiered/bookkeeper_copies.py``).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.errors import LifecycleError, RefusedBy
from pulsar_lifecycle.journal.offloads import verified_copies
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.control import Lease
from pulsar_lifecycle.tiered import bookkeeper_copies, commit, revert
from pulsar_lifecycle.tiered.commit import OffloadRequest, Proven, ReadCheckFailed
from pulsar_lifecycle.tiered.interrupted import Ownership, finish_attempts
from pulsar_lifecycle.tiered.offload_tasks import Item, TaskResult, as_attempt, offload_request, spread
from pulsar_lifecycle.tiered.outcome import OffloadOutcome, outcome_of, record, record_topics, writer_of
from pulsar_lifecycle.tiered.planning.run_selection import (
    Row,
    by_topic,
    grouped_by,
    location_of,
)
from pulsar_lifecycle.tiered.read_check import ASKED, ReadCheck, Unheld
from pulsar_lifecycle.topics.unloads import RunGuard, finish_unloads
from pulsar_lifecycle.topics.write import STOPPING, TopicRun
from pulsar_lifecycle.values.codes import Code, Why, why_refused
from pulsar_lifecycle.values.copies import OffloadLocation
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans.offload_plan import OffloadChoice


class OffloadWork:
    """The driver's side of a run; ``outcomes`` has what became of every ledger so far.

    ``competing``: topics whose brokers may delete copies by themselves. ``unread``: locations that brokers could not
    read before it began.
    """

    def __init__(
        self,
        cluster: Cluster,
        run: TopicRun,
        ports: Ports,
        guard: RunGuard,
        lease: Lease,
        read_check: ReadCheck,
        ownership: Ownership,
        competing: Collection[str],
        unread: Collection[OffloadLocation],
    ) -> None:
        self.outcomes: list[OffloadOutcome] = []
        self.unread = unread
        self._cluster, self._run, self._ports, self._guard = cluster, run, ports, guard
        self._lease, self._read_check, self._ownership, self._competing = lease, read_check, ownership, competing
        self._resumed: dict[int, Attempt] = {}
        self._failed_proofs: set[int] = set()
        """Ledgers whose offloaded copies could not be proven in this run."""

    def finish_attempts(self, planned: pa.Table, progress: Callable[[str], None]) -> None:
        """What earlier runs left: pending unloads and interrupted attempts; those still wanted are finished."""
        ids = pa.array([one.ledger_id for one in attempts.whole(attempts.open_attempts(self._ports.store))], pa.int64())
        rows = planned.filter(
            (pc.field("action") == OffloadChoice.OFFLOAD) & pc.field("ledger_id").isin(ids)
        ).to_pylist()
        wanted = {row["ledger_id"]: offload_request(row, self._cluster.settings) for row in rows}
        finish_unloads(self._ports.store, self._ports.admin, self._ports.clock, self._guard, wait=False)
        resumed, outcomes = finish_attempts(
            self._run, self._ports, self._guard, wanted, self._read_check, self._ownership, progress
        )
        self._resumed = {attempt.ledger_id: attempt for attempt in resumed}
        self.outcomes += outcomes
        if self._read_check.unheld:
            raise Unheld(self._read_check.unheld)

    def offload(self, wave: Sequence[Row], progress: Callable[[str], None]) -> None:
        """Open attempts, copy and prove, commit topic by topic."""
        items: list[Item] = []
        for topic, rows in by_topic(wave):
            new = [
                offload_request(row, self._cluster.settings) for row in rows if row["ledger_id"] not in self._resumed
            ]
            again = [self._resumed[row["ledger_id"]] for row in rows if row["ledger_id"] in self._resumed]
            items += [Item(attempt, True, False) for attempt in again]
            items += self._begin(topic, new)
        answers = self._spread(items, wave, progress)
        proven: dict[str, list[Proven]] = {}
        for answer in answers:
            attempt, verified = answer.item.attempt, answer.verified
            if verified is None:
                reason = f"{answer.why}; nothing says that it is offloaded"
                reason += "" if answer.refused else ": run again, which goes on with it"
                failed = outcome_of(attempt, Outcome.FAILED, answer.why.put(reason))
                record(self._run, self._ports, [failed])
                self.outcomes.append(failed)
            else:
                one = Proven(attempt, verified.entries, verified.length, verified)
                proven.setdefault(attempt.topic, []).append(one)
        for name, some in proven.items():
            self._commit(Topic.parse(name), some)
        over = {one.ledger_id: one for one in self.outcomes if one.waits_for_read_check}
        for name, some in proven.items():  # those that could not be the read check, once another one was
            topic = Topic.parse(name)
            late = [p for p in some if p.attempt.ledger_id in over and not self._read_check.due(topic, p.attempt)]
            if late:
                for one in late:
                    self.outcomes.remove(over[one.attempt.ledger_id])
                self._commit(topic, late)

    def _commit(self, topic: Topic, some: Sequence[Proven]) -> None:
        self._guarded(
            topic,
            lambda: commit.commit_topic(self._run, self._ports, self._guard, topic, some, self._read_check),
        )

    def _begin(self, topic: Topic, new: Sequence[OffloadRequest]) -> list[Item]:
        begun: list[Attempt] = []

        def begin() -> list[OffloadOutcome]:
            opened, outcomes = commit.begin_topic(
                self._run, self._ports, self._guard, topic, new, self._cluster.ids.uuid, self._read_check
            )
            begun.extend(opened)
            return outcomes

        self._guarded(topic, begin)
        return [Item(attempt, False, False) for attempt in begun]

    def read_first(self, rows: Sequence[Row], progress: Callable[[str], None]) -> None:
        """Have every broker that owns topics of these read at each location, before any copy in BookKeeper goes.

        Through ledgers that are proven just before. Where one cannot, no copy is deleted at its location.
        """
        if self._read_check.waived:
            return
        scouts: dict[tuple[OffloadLocation, str], list[list[Row]]] = {}
        for name, some in grouped_by(rows, itemgetter("topic")).items():
            owner = self._read_check.owners.of(self._ports.store, self._run.brokers, Topic.parse(name))
            for where, there in grouped_by(some, location_of).items():
                scouts.setdefault((where, owner), []).append(sorted(there, key=lambda row: row["bytes"] or 0))
        chosen_ones = {key: random.sample(topics, min(ASKED, len(topics))) for key, topics in scouts.items()}
        asked = [row for topics in chosen_ones.values() for some in topics for row in some[:ASKED]]
        whole = self._proven(list({row["ledger_id"]: row for row in asked}.values()), progress)
        # Of bundles that no broker has last: a location that another has read needs no broker to take one.
        for (where, owner), topics in sorted(chosen_ones.items(), key=lambda one: not one[0][1]):
            for some in topics:
                if self._read_check.reads(where, owner) or where in self._read_check.blocked:
                    break
                topic = Topic.parse(some[0]["topic"])
                due = [one for one in whole.get(str(topic), []) if one.ledger_id in {row["ledger_id"] for row in some}]
                if due:
                    self._guarded(topic, lambda topic=topic, due=due: self._read(topic, due), Action.COPY_DELETION)

    def _read(self, topic: Topic, due: Sequence[bookkeeper_copies.Due]) -> list[OffloadOutcome]:
        bookkeeper_copies.read_first(
            self._run, self._ports, self._guard, topic, due, self._lag_ms(topic), self._read_check
        )
        return []

    def _lag_ms(self, topic: Topic) -> int | None:
        """Our own deletion lag; None where brokers have one, too: they prove nothing."""
        return None if str(topic) in self._competing else int(self._cluster.settings.offload.deletion_lag * 1000)

    def begin_deletions(self, wave: Sequence[Row], progress: Callable[[str], None]) -> None:
        """Read the offloaded copies back whole once more; then begin to delete those in BookKeeper, in any order.

        Else a few topics that cannot be read would be the ones asked for their location in every run.
        """
        whole = self._proven([row for row in wave if row["ledger_id"] not in self._failed_proofs], progress)
        for name in random.sample(list(whole), len(whole)):
            topic = Topic.parse(name)
            self._guarded(
                topic,
                lambda topic=topic, some=whole[name]: bookkeeper_copies.begin_deletions(
                    self._run, self._ports, self._guard, topic, some, self._lag_ms(topic), self._read_check
                ),
                Action.COPY_DELETION,
            )

    def _proven(self, rows: Sequence[Row], progress: Callable[[str], None]) -> dict[str, list[bookkeeper_copies.Due]]:
        """Topic -> its ledgers whose offloaded copies were read back whole just now; of the others it is told."""
        declared = self._cluster.settings.object_store
        assert declared is not None
        where = declared.endpoint, declared.region
        known = verified_copies(self._cluster.journal_reader, self._run.cluster, [row["ledger_id"] for row in rows])
        whole: dict[str, list[bookkeeper_copies.Due]] = {}
        wrong: dict[str, list[bookkeeper_copies.FailedProof]] = {}
        again = [as_attempt(row, self._cluster.settings) for row in rows]
        items = [Item(one, True, True, known.get((one.ledger_id, one.uuid))) for one in again]
        for answer in self._spread(items, rows, progress):
            attempt, location = answer.item.attempt, answer.item.location
            if not answer.verified:
                self._failed_proofs.add(attempt.ledger_id)
            if answer.verified:
                due = bookkeeper_copies.Due(attempt.ledger_id, location, answer.verified, *where)
                whole.setdefault(attempt.topic, []).append(due)
            elif answer.disproved:
                disproved = bookkeeper_copies.FailedProof(attempt.ledger_id, location, answer.why, *where)
                wrong.setdefault(attempt.topic, []).append(disproved)
            else:
                unproven = outcome_of(attempt, *self._unproven(answer))
                record(self._run, self._ports, [unproven], action=Action.COPY_DELETION, phase=Phase.COPY_DELETION)
                self.outcomes.append(unproven)
        for name, some in wrong.items():
            self._guarded(
                Topic.parse(name),
                lambda name=name, some=some: self._record_failed_proofs(Topic.parse(name), some),
                Action.COPY_DELETION,
            )
        return whole

    def _unproven(self, answer: TaskResult) -> tuple[Outcome, Why]:
        """What becomes of one of which nothing was shown, as it could not be read."""
        topic, ledger_id = Topic.parse(answer.item.attempt.topic), answer.item.attempt.ledger_id
        if bookkeeper_copies.has_gone(self._run, self._ports, topic, ledger_id):
            return Outcome.REFUSED, Why(
                Code.BOOKKEEPER_DELETED, "its topic lists its copy in BookKeeper as deleted, and it has gone"
            )
        why = f"its copy in BookKeeper stays: its offloaded copy could not be proven: {answer.why}"
        return Outcome.FAILED, answer.why.put(why)

    def _record_failed_proofs(
        self, topic: Topic, some: Sequence[bookkeeper_copies.FailedProof]
    ) -> list[OffloadOutcome]:
        told = bookkeeper_copies.record_failed_proofs(self._ports, self._run, topic, some)
        unproven = [one.ledger_id for one in told if one.outcome == Outcome.PROOF_FAILED]
        if unproven and self._cluster.settings.offload.revert_unproven:
            self.outcomes += told
            return self._revert(topic, unproven)
        return told

    def _revert(self, topic: Topic, ledgers: Sequence[int]) -> list[OffloadOutcome]:
        """Let a topic read these from BookKeeper again, where it has them whole.

        What the topic lists as deleted there, a deletion run may be deleting: for those its lease is taken.
        """
        run, ports, guard = self._run, self._ports, self._guard
        foreign, gone = bookkeeper_copies.before_revert(ports, topic, ledgers)
        if foreign:
            left = [OffloadOutcome(str(topic), one, Outcome.FOREIGN_ATTEMPT, foreign) for one in ledgers]
            record(run, ports, left)
            return left
        policy = bookkeeper_copies.policy_for(ports, topic, self._read_check)
        outcomes: list[OffloadOutcome] = []
        if there := [one for one in ledgers if one not in gone]:
            outcomes += revert.revert_topic(run, ports, guard, topic, there, even_if_deleted=False, policy=policy)
        if gone:
            what = f"reverting offloads in run {run.run_id}"
            with control.held_lease(self._cluster.settings, ports.store, ports.clock, what):
                outcomes += revert.revert_topic(run, ports, guard, topic, gone, policy=policy)
        return outcomes

    @property
    def untold(self) -> bool:
        """Whether a read failed of which deletion runs that are under way could not be told."""
        return bool(self._read_check.unheld)

    def finish(self) -> None:
        """Look after the topics that were written as unloaded."""
        left = finish_unloads(self._ports.store, self._ports.admin, self._ports.clock, self._guard, wait=True)
        self.outcomes += still_pending(left)

    def _guarded(
        self, topic: Topic, work: Callable[[], Sequence[OffloadOutcome]], action: Action = Action.OFFLOAD
    ) -> None:
        """``work`` about one topic; an error that concerns it alone becomes its outcome, and a refusal is journalled.

        A failed read check stops all, and so does a failed read of which deletion runs could not be told.
        """
        try:
            self.outcomes += work()
        except (*STOPPING, ReadCheckFailed, Unheld):
            raise
        except RefusedBy as refusal:
            refused = OffloadOutcome(str(topic), -1, Outcome.REFUSED, why_refused(refusal))
            record_topics(self._run, self._ports, [refused], action)
            self.outcomes.append(refused)
        except LifecycleError as error:
            self.outcomes.append(OffloadOutcome(str(topic), -1, Outcome.FAILED, Why(Code.SERVER_FAILED, str(error))))

    def _spread(self, items: Sequence[Item], rows: Sequence[Row], progress: Callable[[str], None]) -> list[TaskResult]:
        sizes = {row["ledger_id"]: row["bytes"] or 0 for row in rows}
        return spread(self._cluster, writer_of(self._run), self._lease.guard, items, sizes, progress)


def still_pending(left: Mapping[str, str]) -> list[OffloadOutcome]:
    """Topics whose unload is pending at the end of a run, each with why."""
    return [
        OffloadOutcome(name, -1, Outcome.FAILED, Why(Code.UNLOAD_PENDING, f"an unload of it is pending: {why}"))
        for name, why in left.items()
    ]
