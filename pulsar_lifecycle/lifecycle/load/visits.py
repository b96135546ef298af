"""Have brokers load some topics, expire their messages, trim and unload them: one step for all of them, then the next.

Belongs here: the order of steps, waiting until metadata says that one is done, and the journal. Not here: which topics
(``lifecycle/load/load_run.py``), by which rule (``lifecycle/load/load_rules.py``). A note of each topic is written
before its load and goes once it is unloaded; a run that dies leaves the note, and so does one whose broker did not
answer. Whoever comes next unloads what some broker still has.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from pulsar_lifecycle.errors import AccessDenied, BundleShared, LifecycleError, NotFound, OutcomeUnknown, Unavailable
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.lifecycle.load.fresh import FreshTopics, TopicNow, missing, missing_cursors, read_now
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.monitors import Monitors
from pulsar_lifecycle.lifecycle.load.unsubscribing import Unsubscribing
from pulsar_lifecycle.lifecycle.load.visit import LoadStep, Visit, came_of, changed_policy
from pulsar_lifecycle.lifecycle.load.visit_rows import VisitDetail
from pulsar_lifecycle.lifecycle.subscription_deletion import Deleting
from pulsar_lifecycle.metastore.load_state import NO_WORD
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.control import PendingUnload
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer
from pulsar_lifecycle.topics.bundle_owner import owned_since
from pulsar_lifecycle.topics.policies import InForce
from pulsar_lifecycle.topics.retention_policy import MS_PER_MINUTE, RetentionPolicy
from pulsar_lifecycle.topics.unloads import RunGuard, UnloadAfter, is_gone, unread_acks
from pulsar_lifecycle.topics.write import STOPPING
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase

POLL = 0.5
"""Seconds between two looks at the metadata of topics that brokers have been told something."""
STEPS = 6
"""How often ``load.timeout`` may pass in a visit: load, unsubscribe, expire, trim, unload, and before it the others of
its wave."""
AGAIN = 5.0
"""Seconds after which a broker is told again to trim, and policies are looked at again before anything is expired."""


@dataclass(frozen=True, slots=True)
class LoadedTopic:
    """What became of one topic. ``freed``: bytes that left its list; ``second_visit_at`` (ms): when more is due.

    ``unsubscribed``: subscriptions that were deleted, or would be.
    """

    topic: str
    outcome: Outcome
    why: Why
    freed: int = 0
    second_visit_at: int | None = None
    unsubscribed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Visits:
    """What every wave of visits needs. ``policies`` and ``monitors`` are those by which the topics were judged.

    ``monitors_now``: those in force in namespaces, as they are when asked; None where brokers do not agree. And the
    brokers that did not say theirs. ``protected``: what protects a topic by now, such as a hold that was set meanwhile.
    ``not_answering``: brokers that have not answered in this wave.
    """

    writer: Writer
    ports: Ports
    guard: RunGuard
    ledgers_root: str
    context: Context
    policies: InForce[RetentionPolicy | None]
    monitors: Monitors
    monitors_now: Callable[[Collection[str]], tuple[Monitors | None, Collection[str]]]
    protected: Callable[[Visit], Why | None]
    timeout_ms: int
    not_answering: set[str] = field(default_factory=set[str])

    def make(self, visits: Sequence[Visit]) -> list[LoadedTopic]:
        """Load, expire, trim and unload these topics together. Raises Paused, LeaseLost, Overloaded at once.

        What is loaded then has its note, and whoever comes next unloads it.
        """
        self.guard.check(self.ports.store)
        try:
            self._free(visits)
        except STOPPING:
            raise
        except LifecycleError as error:
            for visit in visits:
                visit.failure = visit.failure or Why(Code.SERVER_FAILED, str(error))
        return self._unload_all(visits)

    # ------------------------------------------------------------------------------------------------------- the steps

    def _free(self, visits: Sequence[Visit]) -> None:
        self._step(Phase.LOAD, visits, self._load, self._is_loaded)
        self._check_policies([visit for visit in _alive(visits) if visit.leaving])
        unsubscribing = Unsubscribing(Deleting(self.ports, self.guard, self.writer), self.ledgers_root, visits)
        for visit in _alive(visits):
            if visit.together:
                self._told(visit, unsubscribing.judge)
        due = [visit for visit in _alive(visits) if visit.leaving]
        self._step(Phase.UNSUBSCRIBE, due, partial(self._unsubscribe, unsubscribing), lambda *_: True)
        self._aim(_alive(visits))
        due = [visit for visit in _alive(visits) if visit.targets]
        self._step(Phase.EXPIRE, due, self._expire, self._is_expired)
        alive = _alive(visits)
        self._expect(alive)
        self._step(Phase.TRIM, [visit for visit in alive if visit.going], self._trim, self._is_trimmed)

    def _step(
        self,
        phase: Phase,
        visits: Sequence[Visit],
        tell: Callable[[Visit], None],
        done: Callable[[Visit, TopicNow], bool],
    ) -> None:
        """Tell each broker, then look until metadata says that it is done, or time is up."""
        self._journal(phase, visits, Outcome.BEGUN, lambda _: Why(Code.ABOUT_TO, f"{phase} next"))
        for visit in visits:
            self._told(visit, tell)
        waiting = [visit for visit in visits if not visit.failure]
        deadline = self.ports.clock.now_ms() + self.timeout_ms
        while waiting:
            self.guard.check(self.ports.store)
            now = self._fresh(waiting).topics
            waiting = [one for one in waiting if one.topic not in now or not done(one, now[one.topic])]
            self._see_gone([one for one in waiting if one.topic not in now])
            waiting = [one for one in waiting if not (one.gone or one.failure)]
            if not waiting or self.ports.clock.now_ms() >= deadline:
                break
            self.ports.clock.sleep(POLL)
            if phase is Phase.TRIM:
                self._tell_again(waiting, tell)
        for visit in waiting:
            late = Why(LoadStep.NOT_IN_TIME, f"{phase} was not done within {self.timeout_ms // 1000} s")
            visit.failure = Why(LoadStep.ACKS_NOT_READ, f"{late}: {visit.unread}") if visit.unread else late
        self._journal(phase, _alive(visits), Outcome.DONE, lambda _: Why(LoadStep.IN_METADATA, f"{phase} is done"))
        self._journal(phase, [one for one in visits if one.failure], Outcome.FAILED, lambda one: one.failure or _UNSAID)

    def _see_gone(self, visits: Sequence[Visit]) -> None:
        """Which of these topics have no z-node any more."""
        for visit, gone in zip(
            visits, missing(self.ports.store, [one.topic.managed_ledger for one in visits]), strict=True
        ):
            visit.gone = gone

    def _told(self, visit: Visit, tell: Callable[[Visit], None]) -> Why | None:
        """Tell its broker, unless something protects the topic: what that is."""
        self.guard.check(self.ports.store)
        visit.told_at = self.ports.clock.now_ms()
        if visit.broker in self.not_answering:
            later = "; its unload stays pending" if visit.loaded_at else ""
            text = f"broker {visit.broker} did not answer at another topic: it was not asked{later}"
            visit.failure, visit.unanswered = Why(LoadKept.BROKER_UNANSWERED, text), True
            return None
        if why := self.protected(visit):
            visit.failure = why
            return why
        try:
            tell(visit)
        except STOPPING:
            raise
        except LifecycleError as error:
            shared = isinstance(error, BundleShared)  # nobody was asked
            unanswered = isinstance(error, OutcomeUnknown | Unavailable) and not shared
            waits = unanswered and visit.loaded_at
            later = "; its unload stays pending, as its broker may do that later" if waits else ""
            code = Code.BUNDLE_SHARED if shared else Code.SERVER_FAILED
            visit.failure, visit.unanswered = Why(code, f"{error}{later}"), visit.unanswered or unanswered
            if unanswered and not self._answers(visit.broker):
                self.not_answering.add(visit.broker)
        return None

    def _answers(self, broker: str) -> bool:
        """Whether a broker says anything of itself; one whose name is not known counts as if it did."""
        try:
            return not broker or bool(self.ports.admin.configuration_of(broker))
        except NO_WORD:
            return False

    def _tell_again(self, waiting: Sequence[Visit], tell: Callable[[Visit], None]) -> None:
        """A trim that met another write of its broker is forgotten."""
        for visit in waiting:
            if self.ports.clock.now_ms() - visit.told_at >= AGAIN * 1000:
                visit.failure = self._told(visit, tell)

    def _note(self, visit: Visit) -> None:
        visit.pending = PendingUnload(visit.topic, False, self.ports.clock.now_ms(), self.guard.guard[0])
        control.note_unload(self.ports.store, visit.pending)

    def _load(self, visit: Visit) -> None:
        if visit.broker and owned_since(self.ports.store, visit.topic) != visit.owned_since:
            text = f"broker {visit.broker} lost its bundle since, or took it anew: the topic was left alone"
            visit.failure = Why(Code.CHANGED_MEANWHILE, text)
            return
        self._note(visit)  # anew: for how long it is watched counts from here, and others may have taken their time
        if visit.broker and (owner := self.ports.admin.owner(visit.topic)) != visit.broker:
            visit.failure = Why(Code.CHANGED_MEANWHILE, f"broker {owner} has its bundle, not {visit.broker} any more")
            return
        visit.loaded_at = self.ports.clock.now_ms()
        try:
            self.ports.admin.internal_stats(visit.topic)
        except (AccessDenied, BundleShared):  # rights are looked at first: its broker has not loaded it for us
            visit.loaded_at = 0
            raise

    def _is_loaded(self, visit: Visit, now: TopicNow) -> bool:
        """A load puts a new ledger behind the last one, and its broker reads acknowledgements in transactions."""
        if not _is_longer(visit, now):
            return False
        visit.unread = unread_acks(self.ports.store, self.ports.admin, visit.topic)
        return visit.unread is None

    def _aim(self, visits: Sequence[Visit]) -> None:
        """Where each subscription is once what is past its TTL in closed ledgers is expired.

        Loading others may have taken ``load.timeout``: a topic whose TTL is another one by now is left as it is.
        """
        for visit in visits:
            limit = self.ports.clock.now_ms() - visit.ttl_seconds * 1000
            end = visit.before.end_of_closed(limit) if visit.ttl_seconds > 0 else None
            visit.targets = {
                name: end
                for name, at in visit.before.cursors.items()
                if end is not None
                and at is not None
                and at < end
                and self.monitors.expires_messages(name)
                and name not in visit.unsubscribed
            }
        self._check_policies([visit for visit in visits if visit.targets])

    def _check_policies(self, due: Sequence[Visit]) -> None:
        """No broker is told to expire anything of a topic whose policies are others by now.

        One with policies of its own its broker has expired by the TTL of then, as it loaded it.
        """
        if not due:
            return
        now = self.ports.clock.now_ms()
        monitors, unanswered = self.monitors_now({str(visit.topic.namespace) for visit in due})
        for visit in due:
            visit.checked_at, visit.monitors = now, monitors
            if unanswered and (not visit.broker or visit.broker in unanswered):
                text = f"nothing more of it was expired, as brokers do not answer: {', '.join(sorted(unanswered))}"
                visit.failure = Why(LoadKept.BROKER_UNANSWERED, text)
            else:
                visit.failure = changed_policy(visit, monitors)

    def _check_again(self, visit: Visit) -> None:
        """A broker before it may have taken its time."""
        if self.ports.clock.now_ms() - visit.checked_at >= AGAIN * 1000:
            self._check_policies([visit])

    def _unsubscribe(self, unsubscribing: Unsubscribing, visit: Visit) -> None:
        for name in visit.leaving:
            self._check_again(visit)
            if visit.failure:
                return
            unsubscribing.delete(visit, name)
            if visit.unanswered:
                if not self._answers(visit.broker):
                    self.not_answering.add(visit.broker)
                return

    def _expire(self, visit: Visit) -> None:
        for name in visit.targets:
            self._check_again(visit)
            if visit.failure:
                return
            try:
                self.ports.admin.expire_messages(visit.topic, name, visit.ttl_seconds)
            except NotFound:
                if not all(missing_cursors(self.ports.store, visit.topic, [name])):
                    raise

    def _is_expired(self, visit: Visit, now: TopicNow) -> bool:
        """Whether each subscription is where it was to be, or deleted meanwhile."""
        behind = [name for name, end in visit.targets.items() if (at := now.cursors.get(name)) is None or at < end]
        if any(name in now.cursors for name in behind):
            return False
        return all(missing_cursors(self.ports.store, visit.topic, behind))

    def _expect(self, visits: Sequence[Visit]) -> None:
        """What the broker trims is what the rule of retention says of the topic as it is now, loaded.

        Looked at again where that cannot be said: of such a topic nothing would count as yet to be trimmed.
        """
        unsure, deadline = list(visits), self.ports.clock.now_ms() + self.timeout_ms
        while unsure:
            self.guard.check(self.ports.store)
            going = self._fresh(unsure).trimmed_by_broker(self.policies, self.context, self.ports.clock.now_ms())
            for visit in unsure:
                visit.going = going.get(visit.topic) or set()
            self._see_gone([visit for visit in unsure if visit.topic not in going])
            unsure = [visit for visit in unsure if going.get(visit.topic) is None and not visit.gone]
            if not unsure or self.ports.clock.now_ms() >= deadline:
                break
            self.ports.clock.sleep(POLL)
        for visit in unsure:
            text = f"a cursor or a ledger of it was not known for {self.timeout_ms // 1000} s: it was not trimmed"
            visit.failure = Why(LoadStep.NOT_IN_TIME, text)

    def _trim(self, visit: Visit) -> None:
        self.ports.admin.trim(visit.topic)

    def _is_trimmed(self, visit: Visit, now: TopicNow) -> bool:
        return visit.going.isdisjoint(now.ids)

    # ------------------------------------------------------------------------------------------------------- the end

    def _unload_all(self, visits: Sequence[Visit]) -> list[LoadedTopic]:
        store = self.ports.store
        not_loaded = self._not_loaded_yet([visit for visit in visits if visit.loaded_at and visit.unanswered])
        asked = [visit for visit in visits if visit.loaded_at and visit not in not_loaded]  # else it would load them
        self._journal(
            Phase.UNLOAD, asked, Outcome.BEGUN, lambda _: Why(Code.ABOUT_TO, "its broker is told to unload it next")
        )
        found: list[LoadedTopic] = []
        unloaded: list[Visit] = []
        unanswered: set[str] = set()  # each may answer again by now
        for visit in asked:
            self.guard.check(store)
            assert visit.pending is not None
            gone = partial(is_gone, store, self.ports.admin, self.ports.clock, visit.pending)
            if visit.broker in unanswered:
                text = f"it could not be unloaded: broker {visit.broker} did not answer at another topic"
                visit.failure = Why(Code.NOT_UNLOADED, text)
                continue
            if unread := unread_acks(store, self.ports.admin, visit.topic):
                late = f"its unload stays pending: {unread}"
                first = visit.failure
                visit.failure = first.put(f"{first}; {late}") if first else Why(LoadStep.ACKS_NOT_READ, late)
            elif failure := self.guard.unloads.unload(store, self.ports.admin, visit.topic, gone, UnloadAfter.LOAD):
                visit.failure = Why(Code.NOT_UNLOADED, f"it could not be unloaded: {failure}")
            else:
                unloaded.append(visit)
                continue
            if not self._answers(visit.broker):
                unanswered.add(visit.broker)
        closed = self._closed(unloaded)
        still = [visit for visit in asked if visit not in unloaded]
        after = {**(self._fresh(still).topics if still else {}), **closed}
        for visit in visits:
            if visit in unloaded and visit.topic not in closed and not visit.gone:
                open_ = Why(LoadStep.NOT_IN_TIME, "its last ledger is not closed after the unload")
                visit.failure = visit.failure or open_
            elif visit in not_loaded or (visit in unloaded and visit.unanswered):
                self._note(visit)  # the next run looks whether its broker has loaded it after all
            elif (visit in unloaded or not visit.loaded_at) and visit.pending is not None:
                control.finish_unload(store, visit.pending)
            through = self._through(visit, after.get(visit.topic))
            found.append(replace(through, unsubscribed=tuple(sorted(visit.unsubscribed))))
        for visit, one in zip(visits, found, strict=True):
            self._journal(Phase.UNLOAD, [visit], one.outcome, lambda _, one=one: one.why, one.freed)
        return found

    def _not_loaded_yet(self, visits: Sequence[Visit]) -> list[Visit]:
        """Those of some, whose load was not answered, that no broker has loaded so far, by their z-nodes."""
        now = self._fresh(visits).topics if visits else {}
        return [visit for visit in visits if visit.topic in now and not _is_longer(visit, now[visit.topic])]

    def _closed(self, visits: Sequence[Visit]) -> dict[Topic, TopicNow]:
        """The topics whose last ledger an unload has closed, or that somebody else has loaded since."""
        deadline = self.ports.clock.now_ms() + self.timeout_ms
        last: dict[Topic, int] = {}
        while True:
            now = self._fresh(visits).topics
            closed: dict[Topic, TopicNow] = {}
            for topic, one in now.items():
                newest = max(one.ids, default=-1)
                if one.last_state == LedgerState.CLOSED.name or newest > last.setdefault(topic, newest):
                    closed[topic] = one
            self._see_gone([visit for visit in visits if visit.topic not in now])
            done = all(visit.topic in closed or visit.gone for visit in visits)
            if done or self.ports.clock.now_ms() >= deadline:
                return closed
            self.ports.clock.sleep(POLL)
            self.guard.check(self.ports.store)

    def _through(self, visit: Visit, after: TopicNow | None) -> LoadedTopic:
        listed = set(after.ids) if after else set[int]() if visit.gone else set(visit.before.ids)
        freed = sum(size for i, size in visit.before.sizes.items() if i not in listed)
        last = max(visit.before.ids, default=-1)
        closed = {item.ledger_id: item.timestamp for item in after.info.ledgers} if after else {}
        later = (closed.get(last) or visit.loaded_at) + visit.retention_minutes * MS_PER_MINUTE
        second = later if last in listed and visit.retention_minutes > 0 and visit.loaded_at else None
        if visit.gone and visit.may_be_deleted:
            why = Why(Code.TOPIC_DELETED, "its broker deleted it as inactive, as load.topic_deletion lets it")
            return LoadedTopic(str(visit.topic), Outcome.DONE, why, freed)
        if visit.gone:
            return LoadedTopic(str(visit.topic), Outcome.FAILED, Why(Code.TOPIC_GONE, "somebody deleted it meanwhile"))
        left = set(visit.before.ids) - listed
        if why := visit.failure:
            why = why.put(f"{why}; {len(left)} ledgers left its list all the same") if left else why
            return LoadedTopic(str(visit.topic), Outcome.FAILED, why, freed, second)
        why = came_of(visit, left, self.ports.clock.now_ms())
        return LoadedTopic(str(visit.topic), Outcome.DONE, why, freed, second)

    # ------------------------------------------------------------------------------------------------------- reading

    def _fresh(self, visits: Sequence[Visit]) -> FreshTopics:
        return read_now(self.ports.store, self.ports.reader, self.ledgers_root, [visit.topic for visit in visits])

    def _journal(
        self,
        phase: Phase,
        visits: Sequence[Visit],
        outcome: Outcome,
        why: Callable[[Visit], Why],
        nbytes: int = 0,
    ) -> None:
        now, step = self.ports.clock.now_ms(), Step(Action.LOAD_TOPIC, phase)
        rows = [
            self.writer.row(
                step, Subject(-1, "", str(one.topic), nbytes, details=(_detail(one),)), outcome, why(one), now
            )
            for one in visits
        ]
        if rows:
            self.ports.journal.record(rows)


def _alive(visits: Sequence[Visit]) -> list[Visit]:
    return [visit for visit in visits if not visit.failure and not visit.gone]


def _is_longer(visit: Visit, now: TopicNow) -> bool:
    """Whether there is a ledger behind the last one."""
    return bool(now.ids) and now.ids[-1] > max(visit.before.ids, default=-1)


_UNSAID = Why(Code.SERVER_FAILED, "nobody said why")


def _detail(visit: Visit) -> VisitDetail:
    sizes = visit.before.sizes
    return VisitDetail(visit.broker, visit.before.ids, sorted(visit.going), [sizes[i] for i in visit.before.ids])
