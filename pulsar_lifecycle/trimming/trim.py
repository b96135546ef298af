"""The first phase for a topic that lives on: take ledgers off its list once their deletion messages are acknowledged.

Belongs here: the order of the steps for one topic, and for a run. The rule is ``trimming/trim_rules.py``; the second
phase (``deletion/batch.py``) looks at everything afresh, so nothing here can delete data. Not here: topics that go
whole (``trimming/delete_topic.py``). Source: PIP-186, "The first phase".

Order: judge, send, judge again, journal ``marked``, note the pending unload, look at the cursors, one compare-and-set,
unload, journal ``removed`` or ``left``. Killed anywhere, it repeats harmlessly: a message about a ledger that is still
listed is kept by the second phase, and a pending unload is made by whichever run comes next. A compare-and-set that
was lost, or whose outcome is unknown, is judged by what is there afterwards; nothing is ever compensated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from pulsar_lifecycle.bundles.placing import bundles
from pulsar_lifecycle.errors import LifecycleError, RefusedBy
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.deletion_message import LedgerType, PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.metastore.list_writes import ListWrite
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow, Sent
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.control import BrokenPendingUnload, PendingUnload
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.first_phase import (
    NOT_COUNTED,
    LedgerOutcome,
    Mark,
    MarkMessages,
    Report,
    guarded,
    journal_row,
    mark_of,
    of_topic,
    send_messages,
)
from pulsar_lifecycle.topics.snapshot import TopicReading
from pulsar_lifecycle.topics.unloads import RunGuard, UnloadAttempt, finish_unloads
from pulsar_lifecycle.topics.write import (
    TRIES,
    TopicRun,
    TopicWrite,
    left_loaded,
    unload_first,
)
from pulsar_lifecycle.trimming import trim_rules
from pulsar_lifecycle.trimming.trim_rules import Stays
from pulsar_lifecycle.trimming.trim_view import TrimView, look
from pulsar_lifecycle.values.codes import Code, Why, why_refused
from pulsar_lifecycle.values.outcomes import Outcome

_POLICY = "trimming.loaded_topics"


def as_it_is(info: ManagedLedgerInfo) -> ManagedLedgerInfo:
    """A write that changes nothing but the list of ledgers."""
    return info


@dataclass(frozen=True, slots=True)
class TrimOrder:
    """Ledgers to be taken off one topic's list: those named, and every listed one up to ``up_to`` (inclusive).

    ``counted``: those of them that were counted against the caps, where they were: no other may go. ``rules``: asked
    whenever the topic is judged, each says why none of the ledgers may go by the policies of now, or nothing.
    ``change``: what else the same write makes of the topic's metadata.
    """

    topic: Topic
    ledgers: frozenset[int] = frozenset()
    up_to: int = -1
    counted: frozenset[int] | None = None
    rules: tuple[Callable[[], Why | None], ...] = ()
    change: Callable[[ManagedLedgerInfo], ManagedLedgerInfo] = as_it_is

    def asked(self, info: ManagedLedgerInfo) -> frozenset[int]:
        """Ledger ids; those that the topic does not list are among them if they were named."""
        return self.ledgers | {item.ledger_id for item in info.ledgers if item.ledger_id <= self.up_to}


def no_report(marked: Sequence[LedgerOutcome]) -> None:
    """A report that nobody wants."""


def trim_topics(
    run: TopicRun, ports: Ports, guard: RunGuard, orders: Sequence[TrimOrder], report: Report = no_report
) -> list[LedgerOutcome]:
    """Finish what earlier runs left pending, trim each topic, and look after those that were written as unloaded.

    An error that concerns one topic is that topic's outcome. Raises Paused, LeaseLost, Overloaded.
    """
    still_pending = finish_unloads(ports.store, ports.admin, ports.clock, guard, wait=False)
    outcomes: list[LedgerOutcome] = []
    by_topic = merged(orders)
    for topic in trim_rules.spread((bundle, topic) for topic, bundle in bundles(ports.store, by_topic).items()):
        if why := still_pending.get(str(topic)):
            found = [
                of_topic(
                    topic,
                    Outcome.FAILED,
                    Code.UNLOAD_PENDING,
                    f"nothing was trimmed, an unload of it was pending: {why}; run again",
                )
            ]
        else:
            found = trim_topic(run, ports, guard, by_topic[topic])
        report(found)
        outcomes += found
    still = finish_unloads(ports.store, ports.admin, ports.clock, guard, wait=True)
    return outcomes + [
        of_topic(name, Outcome.FAILED, Code.UNLOAD_PENDING, f"an unload of it is pending: {why}")
        for name, why in still.items()
    ]


def trim_topic(
    run: TopicRun, ports: Ports, guard: RunGuard, order: TrimOrder, reading: TopicReading | None = None
) -> list[LedgerOutcome]:
    """One topic of :func:`trim_topics`; no unload of it must be pending. Raises Paused, LeaseLost, Overloaded.

    ``reading``: who has just read the topic to judge it need not have it read again before the messages are sent.
    """
    return guarded(order.topic, _Trim(run, ports, guard, order, reading).run)


def plan_trim(run: TopicRun, ports: Ports, order: TrimOrder) -> list[LedgerOutcome]:
    """What :func:`trim_topics` would do with one topic; writes nothing."""

    def planned() -> list[LedgerOutcome]:
        pending = [one for one in control.pending_unloads(ports.store) if one.topic == order.topic]
        if broken := next((one.why for one in pending if isinstance(one, BrokenPendingUnload)), None):
            why = f"nothing would be trimmed, an unload of it is pending: {broken}"
            return [of_topic(order.topic, Outcome.FAILED, Code.UNLOAD_PENDING, why)]
        view = _look(run, ports, order, _read(run, ports, order))
        if not view.verdicts:
            return [_nothing_asked(order, view.info)]
        loaded = view.why_loaded(run)
        stays = left_loaded(run, ports, order.topic, loaded, _POLICY, dry_run=True) if loaded else None
        code, texts = Code.MAY_GO, [str(loaded)] if loaded else []
        if any(isinstance(one, PendingUnload) and one.loaded for one in pending):
            code, texts = Code.AFTER_UNLOAD, ["only if the pending unload of its topic succeeds first", *texts]
        goes = (Outcome.LEFT_TO_BROKER, stays) if stays else (Outcome.GOES, Why(code, "; ".join(texts)))
        return [view.outcome(v.ledger_id, *goes) if v.goes else view.stays(v) for v in view.verdicts]

    return guarded(order.topic, planned)


def merged(orders: Sequence[TrimOrder]) -> dict[Topic, TrimOrder]:
    """One order per topic, for everything that any of ``orders`` asks of it."""
    found: dict[Topic, TrimOrder] = {}
    for order in orders:
        known = found.get(order.topic, order)
        counted = None if known.counted is None or order.counted is None else known.counted | order.counted
        up_to = max(known.up_to, order.up_to)
        rules = tuple(dict.fromkeys((*known.rules, *order.rules)))
        change = order.change if known.change is as_it_is else known.change
        found[order.topic] = TrimOrder(order.topic, known.ledgers | order.ledgers, up_to, counted, rules, change)
    return found


def _nothing_asked(order: TrimOrder, info: ManagedLedgerInfo) -> LedgerOutcome:
    first = min((item.ledger_id for item in info.ledgers), default=None)
    begins = "lists no ledger" if first is None else f"begins with ledger {first}"
    return of_topic(order.topic, Outcome.NOTHING, Code.NOTHING_LISTED, f"it {begins}: none is up to {order.up_to}")


def _read(run: TopicRun, ports: Ports, order: TrimOrder, before: TopicReading | None = None) -> TopicReading:
    """Read a topic afresh. Raises Refused naming what cannot be known of it."""
    ports.store.sync("/")
    return TopicReading(ports.store, run.ledgers_root, order.topic, order.asked, before)


def _look(run: TopicRun, ports: Ports, order: TrimOrder, reading: TopicReading) -> TrimView:
    return look(run, ports, order.topic, reading, order.asked(reading.info), order.rules)


class _Trim:
    """One topic: what was sent, what was marked, and whether our write may have reached its z-node."""

    def __init__(
        self, run: TopicRun, ports: Ports, guard: RunGuard, order: TrimOrder, reading: TopicReading | None
    ) -> None:
        self._run, self._ports, self._guard, self._order = run, ports, guard, order
        self._reading = reading
        self._sent: dict[int, dict[LedgerType, Sent]] = {}
        self._asked: dict[int, Mark] = {}
        """Ledger id -> what its acknowledged messages ask for, once somebody wanted to know."""
        self._marked: dict[int, LedgerOutcome] = {}
        self._marks: dict[int, Mark] = {}
        """Ledger id -> what its journalled mark names."""
        self._outcomes: dict[int, LedgerOutcome] = {}
        self._write = TopicWrite(ports, guard, order.topic)

    def run(self) -> list[LedgerOutcome]:
        try:
            for _ in range(TRIES):
                if self._try():
                    break
            else:
                why = f"its topic's z-node changed {TRIES} times while it was judged; run again"
                if self._write.unknown:
                    raise RefusedBy(Code.CHANGED_MEANWHILE, why)
                self._leave_rest(Why(Code.CHANGED_MEANWHILE, why))
        except LifecycleError as error:
            self._write.finish_after(error)
            if not self._marked or not isinstance(error, RefusedBy) or self._write.unknown:
                self._journal_what_is_there(error)
                raise
            self._leave_rest(why_refused(error))
        still_pending = self._write.finish(sure=True)
        self._journal_outcomes(still_pending)
        return [self._outcomes[i] for i in sorted(self._outcomes)]

    def _try(self) -> bool:
        """Judge from the start and act; False when the z-node changed under us."""
        ports = self._ports
        self._guard.check(ports.store)
        reading, self._reading = self._reading, None  # another try begins anew
        view = _look(self._run, ports, self._order, reading or _read(self._run, ports, self._order))
        if self._account_for_lost_write(view):
            return True
        if not view.verdicts:
            self._outcomes[-1] = _nothing_asked(self._order, view.info)
        for v in view.verdicts:
            if not v.goes and v.ledger_id not in self._outcomes:
                left = v.ledger_id in self._marked
                self._outcomes[v.ledger_id] = view.outcome(v.ledger_id, Outcome.LEFT, v.why) if left else view.stays(v)
        if not view.goes:
            return True
        loaded = view.why_loaded(self._run)
        stays = left_loaded(self._run, ports, view.topic, loaded, _POLICY, guard=self._guard) if loaded else None
        if not stays and not (view := self._counted_only(view)).goes:
            return True
        if loaded and not stays:
            tried = unload_first(ports, self._guard, view.topic)
            if tried is UnloadAttempt.UNLOADED:
                return False
            stays = tried if isinstance(tried, Why) else None
        if stays:
            for ledger_id in view.goes:
                outcome = Outcome.LEFT if ledger_id in self._marked else Outcome.LEFT_TO_BROKER
                self._outcomes[ledger_id] = view.outcome(ledger_id, outcome, stays)
            return True
        leaving = self._send(view)
        return self._remove(view, leaving, bool(loaded)) if leaving else True

    def _counted_only(self, view: TrimView) -> TrimView:
        """Without the ledgers that could not go when the caps were checked; they are refused."""
        counted = self._order.counted
        if counted is None:
            return view
        for ledger_id in view.goes:
            if ledger_id not in counted:
                self._outcomes[ledger_id] = view.outcome(
                    ledger_id, Outcome.REFUSED, Why(Stays.NOT_COUNTED, f"it {NOT_COUNTED}")
                )
        return replace(view, verdicts=[v for v in view.verdicts if not v.goes or v.ledger_id in counted])

    def _account_for_lost_write(self, view: TrimView) -> bool:
        """Forget what an earlier try found, except what left meanwhile; True if all that was marked did."""
        self._outcomes.clear()
        self._write.seen(view.node.stat.version)
        gone = {i: one for i, one in self._marked.items() if i not in view.listed}
        why = Why(Code.DELISTED, "its topic does not list it any more")
        self._outcomes |= {i: replace(one, why=why) for i, one in gone.items()}
        if not gone or len(gone) < len(self._marked):
            return False
        next_run = Why(Code.MAY_GO, "its turn comes with the next run")
        self._outcomes |= {
            v.ledger_id: view.outcome(v.ledger_id, Outcome.REFUSED, v.stays or next_run)
            for v in view.verdicts
            if v.ledger_id not in gone
        }
        return True

    def _send(self, view: TrimView) -> list[int]:
        """Send what was not acknowledged yet; returns the ids that may leave now, a prefix of those that go."""
        now = self._ports.clock.now_ms()
        messages = {i: trim_rules.data_messages(view.topic, view.listed[i], view.copies.get(i), now) for i in view.goes}
        todo = [m for i in view.goes for m in messages[i] if not self._acknowledged(m)]
        lengths = {i: view.length(i) for i in view.goes}
        for sent in send_messages(self._run, self._ports, todo, lengths):
            self._sent.setdefault(sent.info.ledger_id, {})[sent.info.ledger_type] = sent
            self._asked.pop(sent.info.ledger_id, None)
        leaving = trim_rules.prefix(view.goes, {i for i in view.goes if all(map(self._acknowledged, messages[i]))})
        for ledger_id in view.goes[len(leaving) :]:
            errors = [self._sent[ledger_id][m.ledger_type].error for m in messages[ledger_id]]
            why = Why(Stays.NOT_PREFIX, "a ledger before it stays")
            if failed := [one for one in errors if one is not None]:
                why = Why(Code.NOT_SENT, f"its message was not acknowledged: {failed[0]}")
            self._outcomes[ledger_id] = view.outcome(ledger_id, Outcome.LEFT, why)
        return leaving

    def _acknowledged(self, message: PendingDeleteLedgerInfo) -> bool:
        sent = self._sent.get(message.ledger_id, {}).get(message.ledger_type)
        if sent is None or sent.error is not None:
            return False
        return (sent.info.czxid, sent.info.offload_context) == (message.czxid, message.offload_context)

    def _remove(self, view: TrimView, leaving: Sequence[int], loaded: bool) -> bool:
        """Everything from the second look to the compare-and-set; False when the topic must be judged again."""
        store = self._ports.store
        if loaded:
            self._guard.unloads.wait()
        reading = _read(self._run, self._ports, self._order, view.reading)
        again = _look(self._run, self._ports, self._order, reading)
        if again.node.stat.version != view.node.stat.version or not set(leaving) <= set(again.goes):
            return False
        removed = {
            i: view.outcome(i, Outcome.REMOVED, Why(Code.TAKEN_OFF, "taken off its topic's list")) for i in leaving
        }
        about_to = Why(Code.ABOUT_TO, "about to be taken off its topic's list")
        marks = {i: self._mark(i) for i in leaving}
        self._journal([view.outcome(i, Outcome.MARKED, about_to) for i in leaving if self._marks.get(i) != marks[i]])
        self._marks |= marks
        self._marked |= removed
        self._guard.check(store)
        self._write.note_unload(loaded)
        if not self._acknowledged_by_all(view, leaving):
            return False
        kept = tuple(item for item in view.info.ledgers if item.ledger_id not in removed)
        data = managed_ledger.encode(self._order.change(replace(view.info, ledgers=kept)))
        if not self._write.write(view.node, data, view.checked_path):
            return False
        self._outcomes |= removed
        return True

    def _acknowledged_by_all(self, view: TrimView, leaving: Sequence[int]) -> bool:
        """Whether no cursor needs what leaves: a subscription may have been made or reset since.

        The last look before the write, so that as little time as possible is left for another one.
        """
        ports = self._ports
        ports.store.sync("/")
        cursors = snapshot.cursors(ports.store, view.node.path)
        positions = snapshot.positions(ports, self._run.ledgers_root, view.node.path, cursors)
        items = [(item, view.copies.get(item.ledger_id)) for item in view.info.ledgers if item.ledger_id in leaving]
        return all(
            trim_rules.acknowledged(item, copy, position) for position in positions.values() for item, copy in items
        )

    def _leave_rest(self, why: Why) -> None:
        """Whatever was marked and is not known to have left."""
        for ledger_id, one in self._marked.items():
            self._outcomes.setdefault(ledger_id, replace(one, outcome=Outcome.LEFT, why=why))
        if not self._marked:
            self._outcomes[-1] = LedgerOutcome(str(self._order.topic), -1, Outcome.FAILED, why)

    def _journal_what_is_there(self, error: LifecycleError) -> None:
        """The last word on what was marked before an error, if the topic can be read; else ``marked`` remains it."""
        if not self._marked:
            return
        with contextlib.suppress(LifecycleError):
            self._ports.store.sync("/")
            _, info = snapshot.topic_node(self._ports.store, self._order.topic)
            listed = {item.ledger_id for item in info.ledgers}
            here = (Outcome.LEFT, Why(Code.SERVER_FAILED, f"its topic lists it still: {error}"))
            gone = (Outcome.REMOVED, Why(Code.DELISTED, f"its topic does not list it any more; then: {error}"))
            said = {i: here if i in listed else gone for i in self._marked}
            self._journal([replace(self._marked[i], outcome=o, why=why) for i, (o, why) in said.items()])

    def _journal_outcomes(self, still_pending: Why | None) -> None:
        suffix = f"; an unload of its topic is pending: {still_pending}" if still_pending else ""
        after = [one for one in self._outcomes.values() if one.ledger_id in self._marked or one.outcome == Outcome.LEFT]
        self._journal([replace(one, why=one.why.put(one.reason + suffix)) for one in after] if suffix else after)

    def _journal(self, said: Sequence[LedgerOutcome]) -> None:
        """One row per ledger."""
        now = self._ports.clock.now_ms()
        self._ports.journal.record([self._row(one, now) for one in said])

    def _mark(self, ledger_id: int) -> Mark:
        """What its acknowledged messages ask for."""
        if ledger_id not in self._asked:
            sent = self._sent.get(ledger_id, {})
            self._asked[ledger_id] = mark_of([s.info for s in sent.values() if s.error is None])
        return self._asked[ledger_id]

    def _row(self, one: LedgerOutcome, now: int) -> JournalRow:
        sent = self._sent.get(one.ledger_id, {})
        kind = LedgerType.LEDGER if LedgerType.LEDGER in sent else LedgerType.OFFLOAD_LEDGER
        messages = MarkMessages({kind.value: s.message_id.hex() for kind, s in sent.items()})
        details: list[MarkMessages | Mark | ListWrite] = [messages, self._mark(one.ledger_id)]
        if one.outcome is Outcome.REMOVED and self._write.list_write:
            details.append(self._write.list_write)
        return journal_row(self._run, one, kind, details, now)
