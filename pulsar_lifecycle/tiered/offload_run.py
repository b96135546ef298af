# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import.
"""An offload run as a whole: attempts opened on the driver, ledgers copied and proven on executors, topics committed.

Belongs here: composing plan, leases, effects and tasks. Not here: the rules and the effects (``tiered/commit.py``,
``tiered/upload.py``, ``tiered/bookkeeper_copies.py``), which rows of the plan (``tiered/run_selection.py``), what one
task does (``tiered/offload_tasks.py``). Ledgers go in waves, the topics with the most bytes first, so that a topic is
committed at once and a crash costs at most one wave's work.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.errors import (
    LifecycleError,
    Refused,
)
from pulsar_lifecycle.journal import operator_words
from pulsar_lifecycle.journal.offloads import verified_copies
from pulsar_lifecycle.journal.read_checks import failed_locations, passed_locations
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.records import plans
from pulsar_lifecycle.records.codes import Code, Why
from pulsar_lifecycle.records.copies import OffloadLocation
from pulsar_lifecycle.records.epoch import Epoch
from pulsar_lifecycle.records.outcomes import CHECK_FAILED, FOREIGN_ATTEMPT, PROOF_FAILED, REFUSED, UNANSWERED
from pulsar_lifecycle.records.outcomes import OFFLOAD as OFFLOAD_ACTION
from pulsar_lifecycle.records.outcomes import RELEASE as RELEASE_ACTION
from pulsar_lifecycle.records.plans import offload_plan
from pulsar_lifecycle.records.plans.offload_plan import OFFLOAD, RELEASE
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import check_limit
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.control import Lease
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.tiered import bookkeeper_copies, commit, revert
from pulsar_lifecycle.tiered.commit import OffloadRequest, Proven, ReadCheckFailed
from pulsar_lifecycle.tiered.interrupted import Ownership, finish_attempts
from pulsar_lifecycle.tiered.offload_planning import policies_now
from pulsar_lifecycle.tiered.offload_tasks import Answer, Item, as_attempt, offload_request, spread
from pulsar_lifecycle.tiered.outcome import OffloadOutcome, outcome_of, record, record_topics
from pulsar_lifecycle.tiered.read_check import ASKED, ReadCheck, Unheld
from pulsar_lifecycle.tiered.run_selection import (
    Row,
    Waiting,
    by_topic,
    chosen,
    grouped_by,
    held_back,
    in_agreement,
    location_of,
    waves,
)
from pulsar_lifecycle.topics.topic_run import owners_rules, topic_run, topic_tools, unloads_of
from pulsar_lifecycle.topics.unloads import RunGuard, finish_unloads
from pulsar_lifecycle.topics.write import FAILED, STOPPING, TopicRun


@dataclass(frozen=True, slots=True)
class OffloadOrder:
    """A plan, and how much of it: ``limit`` ledgers (0: all that the settings' caps allow)."""

    plan_id: str
    digest: str
    limit: int = 0


def offload_now(
    cluster: Cluster, run_id: str, order: OffloadOrder, progress: Callable[[str], None]
) -> list[OffloadOutcome]:
    """Release and offload what a plan names. Raises Refused, NotFound, Paused, LeaseLost; a rerun goes on.

    In this order: a topic that was just written counts as loaded, so one that offloads in every run would never
    release. What waits for that is offloaded by a run in which nothing is due to go.
    """
    with _begun(cluster, run_id, order) as (work, rows, planned):
        try:
            work.finish_attempts(planned, progress)
            leaving = [row for row in rows if row["action"] == RELEASE]
            work.read_first(leaving, progress)
            some = list(waves(leaving))
            for wave in random.sample(some, len(some)):
                work.release(wave, progress)
            for wave in waves([row for row in rows if row["action"] == OFFLOAD], work.unread):
                work.offload(wave, progress)
        except ReadCheckFailed as failed:
            why = Why(Code.READ_CHECK_FAILED, str(failed))
            work.outcomes[:0] = [OffloadOutcome(failed.outcomes[-1].topic, -1, FAILED, why), *failed.outcomes]
        except Unheld as unheld:
            work.outcomes[:0] = [OffloadOutcome("", -1, FAILED, Why(Code.UNTOLD, str(unheld)))]
        try:
            work.finish()
        except LifecycleError as error:
            if not work.untold:
                raise
            why = Why(Code.SERVER_FAILED, str(error))
            work.outcomes.append(OffloadOutcome("", -1, FAILED, why))  # what could not be told must be read
    return work.outcomes


@contextmanager
def _begun(cluster: Cluster, run_id: str, order: OffloadOrder) -> Iterator[tuple[_Work, list[Row], pa.Table]]:
    """Check that we may act on this plan, and hold the offload lease for as long as the work lasts.

    Gives what this run works on, and all that is planned.
    """
    settings = cluster.settings
    check_limit(order.limit)
    if settings.object_store is None:
        raise Refused("object_store is not set: there is nowhere to offload to")
    with topic_tools(cluster, buckets=True) as ports:
        control.check_not_paused(ports.store)
        fingerprint = evidence.check_store(cluster, ports.store)
        now = ports.clock.now_ms()
        plan, rows = cluster.lake.offload_plan(order.plan_id)
        if plan.cluster != settings.cluster:
            raise Refused(f"plan {plan.plan_id} is for cluster {plan.cluster}, the settings say {settings.cluster}")
        found = offload_plan.digest(rows, plan.to_json())
        valid = int(settings.orphans.plan_valid_for * 1000)
        plans.check_applicable(
            plan, found, digest_given=order.digest, fingerprint=fingerprint, now=now, valid_for_ms=valid
        )
        epoch = evidence.newest_epoch(cluster, fingerprint)
        evidence.refuse_old_evidence(epoch, now, valid)
        with _acting(cluster, run_id, epoch, ports) as (run, guard, lease):
            caps = settings.offload
            ports.store.sync("/")
            now_in_force = policies_now(cluster, rows.column("topic").unique().to_pylist())
            agreed, against = in_agreement(rows, now_in_force, release=releases(settings))
            waiting = Waiting(run, ports.store, lambda: guard.check(ports.store))
            unread = failed_locations(
                cluster.journal_reader, run.cluster, fingerprint, ports.clock.now_ms(), (CHECK_FAILED, UNANSWERED)
            )
            some = chosen(agreed, order.limit, caps.max_ledgers, caps.max_bytes, waiting.without, unread)
            named = cluster.lake.named_uuids(epoch.epoch_id)
            ownership = Ownership(settings.object_store.pulsar_cluster or settings.cluster, named)
            read_check = ReadCheck(
                settings.offload.waive_read_check,
                {name for name, (policy, _) in now_in_force.items() if policy.tiered_first},
                passed_locations(cluster.journal_reader, run.cluster, fingerprint, ports.clock.now_ms()),
                fingerprint,
            )
            competing = {name for name, (policy, _) in now_in_force.items() if policy.brokers_release}
            work = _Work(cluster, run, ports, guard, lease, read_check, ownership, competing, unread)
            work.outcomes += against
            for action, name in ((OFFLOAD, OFFLOAD_ACTION), (RELEASE, RELEASE_ACTION)):
                left = waiting.outcomes(action)
                if action == RELEASE:
                    left += held_back(agreed, some, waiting.rows, unread)
                record_topics(run, ports, left, name)
                work.outcomes += left
            yield work, some, rows


def releases(settings: Settings) -> bool:
    """Whether a run releases copies in BookKeeper: they are ours to release, and deletion is not switched off."""
    return settings.offload.release == "ours" and settings.deletion.topicTwoPhaseDeletionEnabled


@contextmanager
def _acting(cluster: Cluster, run_id: str, epoch: Epoch, ports: Ports) -> Iterator[tuple[TopicRun, RunGuard, Lease]]:
    """The offload lease, for as long as the work lasts. Raises Refused.

    ``ports`` must be what all leases of the run were taken with: a session that expires takes its leases along, and
    only its own writes fail by that.
    """
    settings = cluster.settings
    if settings.offload.waive_read_check and not control.is_sandbox(ports.store):
        raise Refused("offload.waive_read_check: only a cluster with the sandbox's marker may")
    with control.held_lease(
        settings, ports.store, ports.clock, f"offload run {run_id}", control.OFFLOAD_LEASE
    ) as lease:
        now = min(lease.taken_at, ports.clock.now_ms())
        operator_words.note_words(cluster, run_id)
        run = topic_run(cluster, run_id, ports, owners_rules(cluster, epoch, now), now, settings.offload.loaded_topics)
        yield run, RunGuard(lease.guard, unloads_of(settings, ports.clock)), lease


def revert_offloads(
    cluster: Cluster, run_id: str, topic: Topic, ledger_ids: Collection[int], *, dry_run: bool
) -> list[OffloadOutcome]:
    """``tiered.revert.revert_topic`` under both leases; a dry run writes nothing, and needs none.

    Raises Refused, NotFound, Paused, LeaseLost.
    """
    settings = cluster.settings
    if dry_run:
        with topic_tools(cluster, read_only=True) as ports:
            now = ports.clock.now_ms()
            context = owners_rules(
                cluster, evidence.newest_epoch(cluster, evidence.check_store(cluster, ports.store)), now
            )
            run = topic_run(cluster, run_id, ports, context, now, settings.offload.loaded_topics)
            return revert.plan_revert(run, ports, topic, ledger_ids)
    with topic_tools(cluster, buckets=settings.object_store is not None) as ports:
        store = ports.store
        control.check_not_paused(store)
        epoch = evidence.newest_epoch(cluster, evidence.check_store(cluster, store))
        with (
            control.held_lease(settings, store, ports.clock, f"reverting offloads in run {run_id}"),
            _acting(cluster, run_id, epoch, ports) as (run, guard, _),
        ):
            finish_unloads(store, ports.admin, ports.clock, guard, wait=False)
            outcomes = revert.revert_topic(run, ports, guard, topic, ledger_ids)
            left = finish_unloads(store, ports.admin, ports.clock, guard, wait=True)
    return outcomes + still_pending(left)


def still_pending(left: Mapping[str, str]) -> list[OffloadOutcome]:
    """Topics whose unload is pending at the end of a run, each with why."""
    return [
        OffloadOutcome(name, -1, FAILED, Why(Code.UNLOAD_PENDING, f"an unload of it is pending: {why}"))
        for name, why in left.items()
    ]


class _Work:
    """The driver's side of a run; ``outcomes`` has what became of every ledger so far.

    ``competing``: topics whose brokers may release copies by themselves. ``unread``: locations that brokers could not
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
        self._cluster, self._run, self._tools, self._guard = cluster, run, ports, guard
        self._lease, self._read_check, self._ownership, self._competing = lease, read_check, ownership, competing
        self._resumed: dict[int, Attempt] = {}
        self._failed_proofs: set[int] = set()
        """Ledgers whose offloaded copies could not be proven in this run."""

    def finish_attempts(self, planned: pa.Table, progress: Callable[[str], None]) -> None:
        """What earlier runs left: pending unloads and interrupted attempts; those still wanted are finished."""
        ids = pa.array([one.ledger_id for one in attempts.whole(attempts.open_attempts(self._tools.store))], pa.int64())
        rows = planned.filter((pc.field("action") == OFFLOAD) & pc.field("ledger_id").isin(ids)).to_pylist()
        wanted = {row["ledger_id"]: offload_request(row, self._cluster.settings) for row in rows}
        finish_unloads(self._tools.store, self._tools.admin, self._tools.clock, self._guard, wait=False)
        resumed, outcomes = finish_attempts(
            self._run, self._tools, self._guard, wanted, self._read_check, self._ownership, progress
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
                reason = f"{answer.reason}; nothing says that it is offloaded"
                reason += "" if answer.refused else ": run again, which goes on with it"
                failed = outcome_of(attempt, FAILED, Why(Code.NOT_COPIED, reason))
                record(self._run, self._tools, [failed])
                self.outcomes.append(failed)
            else:
                one = Proven(attempt, verified.entries, verified.length, asdict(verified))
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
            lambda: commit.commit_topic(self._run, self._tools, self._guard, topic, some, self._read_check),
        )

    def _begin(self, topic: Topic, new: Sequence[OffloadRequest]) -> list[Item]:
        begun: list[Attempt] = []

        def begin() -> list[OffloadOutcome]:
            opened, outcomes = commit.begin_topic(
                self._run, self._tools, self._guard, topic, new, self._cluster.ids.uuid
            )
            begun.extend(opened)
            return outcomes

        self._guarded(topic, begin)
        return [Item(attempt, False, False) for attempt in begun]

    def read_first(self, rows: Sequence[Row], progress: Callable[[str], None]) -> None:
        """Have every broker that owns topics of these read at each location, before any copy in BookKeeper goes.

        Through ledgers that are proven just before. Where one cannot, nothing is released at its location.
        """
        if self._read_check.waived:
            return
        scouts: dict[tuple[OffloadLocation, str], list[list[Row]]] = {}
        for name, some in grouped_by(rows, itemgetter("topic")).items():
            owner = self._read_check.owners.of(self._tools.store, self._run.brokers, Topic.parse(name))
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
                    self._guarded(topic, lambda topic=topic, due=due: self._read(topic, due))

    def _read(self, topic: Topic, due: Sequence[bookkeeper_copies.Due]) -> list[OffloadOutcome]:
        bookkeeper_copies.read_first(
            self._run, self._tools, self._guard, topic, due, self._lag_ms(topic), self._read_check
        )
        return []

    def _lag_ms(self, topic: Topic) -> int | None:
        """Our own deletion lag; None where brokers have one, too: they prove nothing."""
        return None if str(topic) in self._competing else int(self._cluster.settings.offload.deletion_lag * 1000)

    def release(self, wave: Sequence[Row], progress: Callable[[str], None]) -> None:
        """Read the offloaded copies back whole once more; then release those in BookKeeper, in any order.

        Else a few topics that cannot be read would be the ones asked for their place in every run.
        """
        whole = self._proven([row for row in wave if row["ledger_id"] not in self._failed_proofs], progress)
        for name in random.sample(list(whole), len(whole)):
            topic = Topic.parse(name)
            self._guarded(
                topic,
                lambda topic=topic, some=whole[name]: bookkeeper_copies.release_topic(
                    self._run, self._tools, self._guard, topic, some, self._lag_ms(topic), self._read_check
                ),
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
                disproved = bookkeeper_copies.FailedProof(attempt.ledger_id, location, answer.reason, *where)
                wrong.setdefault(attempt.topic, []).append(disproved)
            else:
                why = f"its copy in BookKeeper stays: its offloaded copy could not be proven: {answer.reason}"
                stays = outcome_of(attempt, FAILED, Why(Code.OBJECTS_UNREAD, why))
                record(self._run, self._tools, [stays], action=RELEASE_ACTION, phase=bookkeeper_copies.PHASE)
                self.outcomes.append(stays)
        for name, some in wrong.items():
            self._guarded(
                Topic.parse(name), lambda name=name, some=some: self._record_failed_proofs(Topic.parse(name), some)
            )
        return whole

    def _record_failed_proofs(
        self, topic: Topic, some: Sequence[bookkeeper_copies.FailedProof]
    ) -> list[OffloadOutcome]:
        told = bookkeeper_copies.record_failed_proofs(self._tools, self._run, topic, some)
        unproven = [one.ledger_id for one in told if one.outcome == PROOF_FAILED]
        if unproven and self._cluster.settings.offload.revert_unproven:
            self.outcomes += told
            return self._revert(topic, unproven)
        return told

    def _revert(self, topic: Topic, ledgers: Sequence[int]) -> list[OffloadOutcome]:
        """Let a topic read these from BookKeeper again, where it has them whole.

        What the topic has released there already, a deletion run may be deleting: for those its lease is taken.
        """
        run, ports, guard = self._run, self._tools, self._guard
        foreign, gone = bookkeeper_copies.before_revert(ports, topic, ledgers)
        if foreign:
            left = [
                OffloadOutcome(str(topic), one, FOREIGN_ATTEMPT, Why(Code.BROKERS_ATTEMPT, foreign)) for one in ledgers
            ]
            record(run, ports, left)
            return left
        policy = bookkeeper_copies.policy_for(ports, topic, self._read_check)
        outcomes: list[OffloadOutcome] = []
        if there := [one for one in ledgers if one not in gone]:
            outcomes += revert.revert_topic(run, ports, guard, topic, there, released=False, policy=policy)
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
        left = finish_unloads(self._tools.store, self._tools.admin, self._tools.clock, self._guard, wait=True)
        self.outcomes += still_pending(left)

    def _guarded(self, topic: Topic, work: Callable[[], Sequence[OffloadOutcome]]) -> None:
        """``work`` about one topic; an error that concerns it alone becomes its outcome.

        A failed read check stops all, and so does a failed read of which deletion runs could not be told.
        """
        try:
            self.outcomes += work()
        except (*STOPPING, ReadCheckFailed, Unheld):
            raise
        except Refused as refusal:
            self.outcomes.append(OffloadOutcome(str(topic), -1, REFUSED, Why(Code.TOPIC_REFUSED, str(refusal))))
        except LifecycleError as error:
            self.outcomes.append(OffloadOutcome(str(topic), -1, FAILED, Why(Code.SERVER_FAILED, str(error))))

    def _spread(self, items: Sequence[Item], rows: Sequence[Row], progress: Callable[[str], None]) -> list[Answer]:
        sizes = {row["ledger_id"]: row["bytes"] or 0 for row in rows}
        return spread(self._cluster, self._run.run_id, self._lease.guard, items, sizes, progress)
