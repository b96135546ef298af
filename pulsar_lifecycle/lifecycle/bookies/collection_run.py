"""Make bookies collect: a minor compaction first, a major one where much is left, few bookies at a time.

Belongs here: the order of telling and watching, and the journal. Not here: which bookies, and what stops a run
(``collection.py``). A run that dies leaves nothing behind: what a bookie has begun it ends, and the next run
finds it at it, and tells no other rack until it is through. It never suspends anything (``suspension.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from pulsar_lifecycle.errors import LeaseLost, LifecycleError, OutcomeUnknown, RefusedBy
from pulsar_lifecycle.formats.bookie_racks import DEFAULT_RACK
from pulsar_lifecycle.formats.bookie_status import BookieStatus
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import BookieDisk, to_compact
from pulsar_lifecycle.lifecycle.bookies.collection import (
    CollectionChoice,
    CollectionEnd,
    PlannedCollection,
    Progress,
    StopReason,
    cluster_trouble,
    collected_since,
    compacted,
    in_gone_logs,
    is_at_it,
    plan_collection,
    restarted,
    standing_on,
    waves,
)
from pulsar_lifecycle.lifecycle.bookies.collection_planning import of_the_plan, planned_bookies, read_racks
from pulsar_lifecycle.lifecycle.bookies.disk_run import build_bookie_disk
from pulsar_lifecycle.ports import BookieAdmin, Clock, Journal, MetadataStore
from pulsar_lifecycle.run_settings import CollectionSettings
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import BookieTold, Step, Subject, Writer
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.refusals import RefusalCode

POLL = 5.0
"""Seconds between two looks at a collecting bookie."""


@dataclass(frozen=True, slots=True)
class Collected:
    """What became of one bookie.

    ``freed``: how many bytes more its disks have free, clients writing meanwhile; no more than the entry logs that are
    gone can have had (``collection.in_gone_logs``).
    ``why`` has a :class:`StopReason` where something stopped the run, or a :class:`CollectionEnd`, else the outcome.
    """

    bookie: str
    rack: str
    outcome: Outcome
    why: Why
    freed: int = 0


def plan_now(
    cluster: Cluster, only: Collection[str] | None = None, order: Order | None = None
) -> tuple[list[PlannedCollection], list[BookieDisk]]:
    """What :func:`collect_bookies` would do now, and what the bookies said. Writes nothing to the cluster.

    ``only``: these bookies, however little they could free; none of the others. ``order``: a plan; of its bookies those
    that could free much still.

    Raises Refused where there is no covered scan that is young enough, the metadata store went back in time, or the
    plan may not be applied; NotFound.
    """
    plan, disks, _ = _judged_now(cluster, only, order)
    return plan, disks


def _judged_now(
    cluster: Cluster, only: Collection[str] | None, order: Order | None
) -> tuple[list[PlannedCollection], list[BookieDisk], list[str]]:
    """:func:`plan_now`, and the bookies that the plan of an order has."""
    least = cluster.settings.collection.min_bytes
    with cluster.ports(read_only=True) as ports:
        fingerprint = evidence.check_store(cluster, ports.store)
        epoch = evidence.usable_epoch(cluster, fingerprint, ports.clock.now_ms())
        racks = read_racks(ports.store)
    ordered = planned_bookies(cluster, order, fingerprint) if order else []
    disks, _ = build_bookie_disk(cluster, epoch.epoch_id)
    if only is not None:
        disks = [one for one in disks if one.bookie in only]
    plan = plan_collection(disks, racks, least if only is None else 0)
    return (of_the_plan(plan, ordered, racks) if order else plan), disks, ordered


def collect_bookies(
    cluster: Cluster,
    run_id: str,
    say: Callable[[str], None],
    only: Collection[str] | None = None,
    order: Order | None = None,
) -> tuple[list[PlannedCollection], list[Collected]]:
    """Make the bookies of :func:`plan_now` collect: the plan, and what became of every bookie to collect, in its order.

    Raises Refused, Paused, NotFound before anything is told. Repeated, it tells those that have much to free still.
    """
    settings = cluster.settings
    with cluster.ports() as ports:
        control.check_not_paused(ports.store)
        if control.is_held(ports.store, control.LEASE):
            raise RefusedBy(
                RefusalCode.LEASE_HELD,
                f"a run deletes or restores ledgers now ({control.holder_of(control.LEASE)}): what a collection takes "
                "cannot be undone, so wait until that run ends",
            )
        with control.held_lease(
            settings, ports.store, ports.clock, f"collection run {run_id}", control.COLLECTION_LEASE
        ) as lease:
            plan, _, ordered = _judged_now(cluster, only, order)
            run = CollectionRun(
                run_id, settings.cluster, settings.collection, plan, lease.guard,
                ports.store, ports.bookies, ports.journal, ports.clock, say,
                order.plan_id if order else "", ordered,
            )  # fmt: skip
            return plan, run.all()


@dataclass
class _Watched:
    """A bookie that was told to collect; ``moved_at`` (ms) is when something last changed there.

    ``told``: what it said before that, ``before``: before it was told anything. ``began``: it answered that it begins,
    or was seen at it since. ``error``: why it did not answer last; None if it did.
    """

    before: BookieStatus
    told: BookieStatus
    status: BookieStatus
    major: bool
    moved_at: int
    began: bool = False
    error: LifecycleError | None = None

    def take(self, status: BookieStatus, now: int) -> None:
        """What it says at ``now`` (ms)."""
        self.error = None
        if Progress.of(status) != Progress.of(self.status):
            self.moved_at = now
        self.status = status


@dataclass
class CollectionRun:
    """One run. ``guard``: its lease; whoever has that by now tells the bookies.

    ``plan_id``: the stored plan that it applies, if it does; ``ordered``: the bookies that this has.
    """

    run_id: str
    cluster: str
    settings: CollectionSettings
    plan: Sequence[PlannedCollection]
    guard: tuple[str, int]
    store: MetadataStore
    bookies: BookieAdmin
    journal: Journal
    clock: Clock
    say: Callable[[str], None]
    plan_id: str = ""
    ordered: Collection[str] = ()
    _done: list[Collected] = field(default_factory=list[Collected])
    _registered: Mapping[str, bool] = field(default_factory=dict[str, bool])
    _beside: dict[str, _Watched] = field(default_factory=dict[str, "_Watched"])
    """Bookies that were at it without this run's word: no other rack may begin until they are through."""

    def all(self) -> list[Collected]:
        """Wave after wave, until all are through or something stops the run."""
        self._registered = self.bookies.bookies()
        for row in self.plan:
            if row.choice is CollectionChoice.AT_IT:
                self._watch_beside(row.bookie)
            if row.bookie in self.ordered and row.choice is not CollectionChoice.COLLECT:
                self._note(row.bookie, Outcome.LEFT, Why(row.choice, f"{row.choice.value}, {row.verdict.value}"))
        why = None
        for wave in waves(self.plan, self.settings.at_once):
            why = why or self._may_not_start(self._rack(wave[0]))
            if why:
                for bookie in wave:
                    self._end(bookie, Outcome.NOT_STARTED, why)
            else:
                why = self._collect(wave)
        return self._done

    def _may_not_start(self, rack: str) -> Why | None:
        """Why no bookie of a rack may be told now.

        Waits while a run deletes or restores ledgers, and while a bookie of another rack is at it.
        """
        said = ""
        while not (why := self._forbidden() or self._trouble()):
            if held := self._held():
                waits = f"{held}: what bookies collect cannot be undone"
            elif other := self._other_rack(rack):
                if why := self._stalled(other, self._beside[other]):
                    return why
                waits = f"{other}, of another rack, collects or compacts already"
                if error := self._beside[other].error:
                    waits += f", or may: {error}"
            else:
                break
            if waits != said:
                self.say(f"waits: {waits}")
            said = waits
            self.clock.sleep(POLL)
        return why

    def _rack(self, bookie: str) -> str:
        return next((row.rack for row in self.plan if row.bookie == bookie), DEFAULT_RACK)

    def _watch_beside(self, bookie: str) -> None:
        failure: LifecycleError | None = None
        try:
            status = self.bookies.status(bookie)
        except LifecycleError as error:
            status, failure = _nothing_said(bookie), error
        major = any(one.major for one in status.compactions)
        self._beside[bookie] = _Watched(status, status, status, major, self.clock.now_ms(), error=failure)

    def _other_rack(self, rack: str) -> str:
        """A bookie that may hold copies of what a rack's have, and is at it without this run's word; empty if none.

        One that does not answer, busy as it is, counts until it does; one that is away stops the run.
        """
        for bookie, one in list(self._beside.items()):
            if self._rack(bookie) == rack != DEFAULT_RACK:
                continue
            try:
                status = self.bookies.status(bookie)
            except LifecycleError as error:
                one.error = error
                return bookie
            if not is_at_it(status):
                del self._beside[bookie]
                continue
            one.take(status, self.clock.now_ms())
            return bookie
        return ""

    def _held(self) -> Why | None:
        """Whether a run may delete or restore ledgers now."""
        try:
            if not control.is_held(self.store, control.LEASE):
                return None
            text = f"a run holds {control.LEASE}"
        except LifecycleError as error:
            text = f"whether a run holds {control.LEASE} is not known: {error}"
        return Why(StopReason.LEDGERS_DELETED, text)

    def _forbidden(self) -> Why | None:
        """Why this run may tell no bookie any more."""
        try:
            if self.store.read([control.PAUSE])[0] is not None:
                return Why(StopReason.PAUSED, f"paused: {control.PAUSE} exists")
            control.check_lease(self.store, self.guard)
        except LeaseLost as error:
            return Why(StopReason.LEASE_LOST, str(error))
        except LifecycleError as error:
            return Why(StopReason.UNANSWERED, str(error))
        return None

    def _trouble(self) -> Why | None:
        try:
            return cluster_trouble(self._registered, self.bookies.bookies())
        except LifecycleError as error:
            return Why(StopReason.UNANSWERED, f"which bookies are registered is not known: {error}")

    def _collect(self, wave: Sequence[str]) -> Why | None:
        """Collect these at once; why the run stops here, None if it does not."""
        watched: dict[str, _Watched] = {}
        for bookie in wave:
            try:
                status = self.bookies.status(bookie)
            except LifecycleError as error:
                self._end(bookie, Outcome.UNANSWERED, Why(Outcome.UNANSWERED, str(error)))
                continue
            one = _Watched(status, status, status, False, self.clock.now_ms())
            if is_at_it(status):
                self._beside[bookie] = one
                self._end(bookie, Outcome.LEFT_AT_IT, Why(Outcome.LEFT_AT_IT, "it was at it already"), one)
            elif why := self._tell(bookie, one):
                self._end(bookie, Outcome.UNANSWERED, why)
            else:
                watched[bookie] = one
        through = f"through: {', '.join(wave)}"
        while watched:
            self.clock.sleep(POLL)
            if stop := self._look(watched):
                for bookie, one in watched.items():
                    self._end(bookie, Outcome.LEFT_AT_IT, stop, one)
                return stop
            self.say(", ".join(_progress(bookie, one) for bookie, one in watched.items()) or through)
        return None

    def _look(self, watched: dict[str, _Watched]) -> Why | None:
        """Ask each of them once; those that are through are watched no more."""
        for bookie, one in list(watched.items()):
            try:
                status = self.bookies.status(bookie)
            except LifecycleError as error:  # away or busy: the list of bookies says which, and patience ends
                status, one.error = None, error
            if status is not None:
                anew = restarted(one.before, one.status, status)
                one.began |= is_at_it(status)
                one.take(status, self.clock.now_ms())
                if anew:
                    why = Why(Outcome.RESTARTED, "launch the job again")
                    self._end(bookie, Outcome.RESTARTED, why, watched.pop(bookie))
                elif not is_at_it(status):
                    self._next(bookie, watched)
                elif stop := self._slow(bookie, status):
                    return stop
            if bookie in watched and (stop := self._stalled(bookie, one)):
                return stop
        return self._trouble()

    def _next(self, bookie: str, watched: dict[str, _Watched]) -> None:
        """Begin the major compaction of one whose minor compaction ended, where much is left; else it is through."""
        one = watched[bookie]
        ran = compacted(one.told, one.status, major=one.major)
        uncounted = collected_since(one.told, one.status) is False
        if uncounted or not (ran or one.began):
            why = Why(CollectionEnd.BEGIN_UNKNOWN, f"whether it began a {_kind(one.major)} compaction is not known")
            if uncounted and one.began:
                text = (
                    "it answered, but a ledger directory counts no collection since: does a proxy answer, or does its "
                    "log say that the collection failed?"
                )
                why = Why(CollectionEnd.UNCOUNTED, text)
            self._end(bookie, Outcome.UNANSWERED, why, watched.pop(bookie))
            return
        code: StrEnum = Outcome.COLLECTED if ran else CollectionEnd.NOT_COMPACTED
        text = f"{_kind(one.major)} compaction" if ran else "deleted ledgers collected; no compaction ran there"
        if not one.major and one.status.directories is None:
            code = CollectionEnd.MAJOR_UNKNOWN if ran else code
            text += "; whether a major one would free much is not known: /metrics has no ledger directory any more"
        much = to_compact(one.status) >= self.settings.min_bytes
        if one.major and ran and much and not in_gone_logs(one.before, one.status):
            code = CollectionEnd.NO_LOG_WENT
            text += "; yet no entry log is gone: had it no room, its own log says `Error compacting entry log`"
        if one.major or not ran or not much:
            self._end(bookie, Outcome.COLLECTED, Why(code, text), watched.pop(bookie))
            return
        one.major, one.moved_at = True, self.clock.now_ms()
        if why := self._forbidden() or self._held() or self._tell(bookie, one):
            why = why.put(f"{text}; the major one was not begun: {why}")
            self._end(bookie, Outcome.COLLECTED, why, watched.pop(bookie))

    def _slow(self, bookie: str, status: BookieStatus) -> Why | None:
        limit = self.settings.max_add_latency * 1000
        if status.add_latency_ms is None or status.add_latency_ms <= limit:
            return None
        text = f"{bookie}: adds take {status.add_latency_ms:.0f} ms, collection.max_add_latency is {limit:.0f} ms"
        return Why(StopReason.SLOW_ADDS, text)

    def _stalled(self, bookie: str, one: _Watched) -> Why | None:
        still = self.clock.now_ms() - one.moved_at
        if still <= self.settings.stalled_after * 1000:
            return None
        if one.error:
            text = f"{bookie}: no progress was seen for {_long(still)}, as it does not answer: {one.error}"
            return Why(StopReason.STALLED, text)
        at = ", ".join(str(number) for number, each in enumerate(one.status.compactions) if each.running)
        where = f" in ledger directory {at} (of ledgerDirectories, from 0)" if at else ""
        log = f" {logs}." if (logs := standing_on(one.before, one.status)) else ""
        text = (
            f"{bookie}: {_kind(one.major)} compaction shows no progress for {_long(still)}{where}.{log} Its "
            "own log names the entry log (`Compaction progress`); if it stands still there, restart the bookie"
        )
        return Why(StopReason.STALLED, text)

    def _tell(self, bookie: str, one: _Watched) -> Why | None:
        """Have it collect; why it does not, None if it may: one whose answer got lost is watched as well."""
        self._note(bookie, Outcome.COLLECTING, Why(Outcome.COLLECTING, f"{_kind(one.major)} compaction"))
        one.told, one.began = one.status, False
        try:
            self.bookies.collect(bookie, major=one.major)
            one.began = True
        except OutcomeUnknown:
            return None
        except LifecycleError as error:
            return Why(Outcome.UNANSWERED, str(error))
        return None

    # ------------------------------------------------------------------------------------------------------ journal

    def _end(self, bookie: str, outcome: Outcome, why: Why, one: _Watched | None = None) -> None:
        freed = _freed(outcome, one)
        self._note(bookie, outcome, why, one)
        self._done.append(Collected(bookie, self._rack(bookie), outcome, why, freed))

    def _note(self, bookie: str, outcome: Outcome, why: Why, one: _Watched | None = None) -> None:
        detail = BookieTold(bookie)
        if one:
            logs = (one.before.entry_log_files, one.status.entry_log_files)
            detail = BookieTold(bookie, (one.before.free, one.status.free), logs)
        freed = _freed(outcome, one)
        about = Subject(-1, "Bookie", "", freed, details=(detail,))
        step = Step(Action.COLLECT_BOOKIE, Phase.COLLECT_BOOKIE)
        writer = Writer(self.run_id, self.cluster, self.plan_id)
        self.journal.record([writer.row(step, about, outcome, why.put(f"{bookie}: {why}"), self.clock.now_ms())])


def _progress(bookie: str, one: _Watched) -> str:
    return f"{bookie}: {_kind(one.major)} compaction, {one.status.free >> 30} GiB free, {one.before.free >> 30} before"


def _freed(outcome: Outcome, one: _Watched | None) -> int:
    """Bytes that the disks have free beyond those before, as far as its entry logs can be why.

    One that was started anew may have other disks.
    """
    if one is None or outcome is Outcome.RESTARTED or one.status.total != one.before.total:
        return 0
    return min(max(0, one.status.free - one.before.free), in_gone_logs(one.before, one.status))


def _long(ms: int) -> str:
    return f"{ms // 60_000} minutes" if ms >= 120_000 else f"{ms // 1000} s"


def _nothing_said(bookie: str) -> BookieStatus:
    """Of a bookie that has not answered yet: whatever it says next is progress."""
    return BookieStatus(bookie, False, 0, 0, False, False, False, (), (), None, None, {})


def _kind(major: bool) -> str:
    return "major" if major else "minor"
