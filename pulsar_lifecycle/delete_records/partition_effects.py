"""Deleting the records of one partition: cursors move, its current ledger rolls, ledgers go, its low watermark rises.

Belongs here: the effects, their order, and that they repeat harmlessly. Not here: the rules (``cut_rules.py``), who is
asked for which partition (``apply_run.py``), and when a partition is answered (``partition_answers.py``).

Order: judge anew, move cursors, roll, judge again, then one compare-and-set that takes the ledgers off the list and
raises the low watermark, a message for each ledger before it (``trimming/trim.py``). Where no ledger goes the low
watermark alone is raised, by the broker that has the topic loaded, or else by compare-and-set. Killed anywhere, the
same plan applied again finds what is done and does the rest.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from pulsar_lifecycle.bundles.guard import others_loaded
from pulsar_lifecycle.delete_records import cut_rules
from pulsar_lifecycle.delete_records.cut_rules import Cut, Refusal
from pulsar_lifecycle.delete_records.partition import PartitionView
from pulsar_lifecycle.delete_records.request import END, Options, TopicPartition
from pulsar_lifecycle.delete_records.times.offsets import cut_since
from pulsar_lifecycle.delete_records.topic_view import Clusters, Read, losing, read_partition, unreplicated
from pulsar_lifecycle.errors import AccessDenied, BundleShared, LifecycleError, Refused, Unavailable
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.metastore.load_state import BrokerAnswers
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, MessagePosition, Position, Topic, cursor_name
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.control import PendingUnload
from pulsar_lifecycle.runs.journal_rows import Details, Step, Subject, Writer
from pulsar_lifecycle.topics import low_watermark, snapshot
from pulsar_lifecycle.topics.first_phase import LedgerOutcome
from pulsar_lifecycle.topics.unloads import RunGuard, unread_acks
from pulsar_lifecycle.topics.write import STOPPING, EditOutcome, TopicRun, edit_topic, lost_by_load
from pulsar_lifecycle.trimming.trim import TrimOrder, trim_topic
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError

TRIES = 3
"""How often the low watermark is written before another run must do it: its topic may be loaded meanwhile."""
PASSED_AT_MOST = 8
"""Positions that brokers keep of earlier requests; each is a property of the topic, and removing one is a request."""
REMOVED_AT_ONCE = 32
"""How many of them one request has removed; the next one has more."""


@dataclass(frozen=True, slots=True)
class Raised:
    """Details of phase ``raise``: the low watermark, what was asked for, and ``before``, which was there already.

    The latter only where no request that our journal knows had put it there.
    """

    low_watermark: str
    asked: str
    before: str = ""


@dataclass(frozen=True, slots=True)
class MovedCursor:
    """Details of phase ``move-cursor``: the subscription, where it was, and the entry that it goes on behind."""

    cursor: str
    old_position: str
    past: str


_ERRORS: Mapping[Outcome, RecordsError] = {
    Outcome.REFUSED: RecordsError.LEDGER_STAYS,
    Outcome.LEFT: RecordsError.CHANGED,
    Outcome.LEFT_TO_BROKER: RecordsError.LOADED,
    Outcome.FAILED: RecordsError.BROKER_FAILED,
}
"""What the outcome of a ledger that was to leave, and did not, makes of its partition."""
_UNANSWERED = (Code.SERVER_FAILED, Code.NOT_SENT, Code.NOT_UNLOADED)
"""A server, the deletion topic, or a broker that was to unload did not do it: that is a time-out, whatever came of the
ledger. The unloads that a partition needs are kept for it before."""


def timed_out(brokers: BrokerAnswers, topic: str, what: str) -> str:
    """That the time of the broker that has a topic was over before ``what``."""
    broker = brokers.brokers.loaded.get(topic) or "the metadata store"
    return f"the time-out of {broker} was over before {what}: run again"


class _TimeOut(LifecycleError):
    """What a broker may take for all its partitions is over, and what is begun with this one is whole."""


class PartitionDeletion:
    """One launch's work on one partition, by its ``row`` of the plan (``RECORDS``).

    ``named``: subscriptions without which nothing of it may go. After ``deadline`` (ms) no step follows the first
    one, but those of a topic that was loaded for it.
    """

    def __init__(
        self,
        run: TopicRun,
        ports: Ports,
        guard: RunGuard,
        brokers: BrokerAnswers,
        clusters: Mapping[TopicPartition, Clusters],
        row: Mapping[str, Any],
        deadline: int,
        named: Collection[str] = (),
    ) -> None:
        self._clusters, self._named = clusters, named
        self._deadline: int | None = deadline
        self._stepped = False
        self._run, self._ports, self._guard, self._brokers, self._row = run, ports, guard, brokers, row
        self._topic = Topic.parse(row["topic"])
        self._low_watermark = MessagePosition.parse(row["low_watermark"])
        self._options = Options(move_cursors=bool(row["moved_cursors"]), exact=row["exact"])

    def delete(self) -> Refusal | None:
        """Why the partition did not become what the plan says; None if it did. Raises Paused, LeaseLost, Overloaded."""
        try:
            refusal = self._delete()
        except STOPPING:
            raise
        except _TimeOut as error:
            refusal = Refusal.plain(RecordsError.TIMEOUT, str(error))
        except AccessDenied as error:
            refusal = Refusal.plain(RecordsError.NOT_AUTHORIZED, str(error))
        except BundleShared as error:
            refusal = Refusal(RecordsError.BROKER_FAILED, Why(Code.BUNDLE_SHARED, str(error)))
        except Unavailable as error:
            refusal = Refusal(RecordsError.TIMEOUT, Why(Code.SERVER_FAILED, str(error)))
        except Refused as error:
            refusal = Refusal.of(RecordsError.CHANGED, error)
        except LifecycleError as error:
            refusal = Refusal.plain(RecordsError.BROKER_FAILED, str(error))
        self._journal_raise(*((Outcome.LEFT, refusal.why) if refusal else (Outcome.DONE, _RAISED)))
        return refusal

    def _delete(self) -> Refusal | None:
        self._guard.check(self._ports.store)
        if control.has_pending_unload(self._ports.store, self._topic):
            return Refusal(
                RecordsError.BROKER_FAILED, Why(Code.UNLOAD_PENDING, "an unload of it is pending: run again")
            )
        looked = self._look()
        if isinstance(looked, Refusal):
            return looked
        read, cut = looked
        if refusal := losing(read.view, cut, self._lost):
            return refusal
        unloads = self._unloads(read, cut)
        if not self._guard.unloads.keep(self._topic, unloads):
            text = f"it needs {unloads} more of the unloads that this run may do (trimming.max_unloads): run again"
            return Refusal.plain(RecordsError.UNLOADS_USED_UP, text)
        try:
            if (cut.moved or cut.rolls) and (why := others_loaded(self._ports.admin, self._topic)):
                return Refusal(RecordsError.BROKER_FAILED, why)
            return self._cut(read, cut)
        finally:
            if unloads:
                self._give_back()

    def _lost(self, view: PartitionView) -> Why | None:
        """By a load of the partition, as it is now."""
        return lost_by_load(self._run, self._ports, view.topic, dry_run=True)

    def _check(self) -> None:
        """Before each step that may be left to another run: raise Paused, LeaseLost, or _TimeOut.

        No time-out before a step is made: a partition whose looks alone take as long would never be done.
        """
        self._guard.check(self._ports.store)
        if self._stepped and self._deadline is not None and self._ports.clock.now_ms() > self._deadline:
            raise _TimeOut(timed_out(self._brokers, str(self._topic), "all was done with this partition"))

    def _unloads(self, read: Read, cut: Cut) -> int:
        """How many the partition may need: one that closes its current ledger, one that follows our write or load.

        One more before that where an earlier unload failed.
        """
        view = read.view
        raises = view.watermark is None or cut.low_watermark > view.watermark
        written = self._run.writes_loaded(self._topic) and (cut.ledgers or (raises and not view.broker))
        follows = bool(cut.rolls or (written if view.loaded else cut.moved))
        return int(cut.rolls) + follows + (follows and self._guard.unloads.tries_before(self._topic))

    def _give_back(self) -> None:
        """The unloads that it did not need, unless one of them is pending: the end of the run does that."""
        with contextlib.suppress(LifecycleError):
            if not control.has_pending_unload(self._ports.store, self._topic):
                self._guard.unloads.give_back(self._topic)

    def _cut(self, read: Read, cut: Cut) -> Refusal | None:
        self._check()
        if cut.moved or cut.rolls:
            if not read.view.loaded:  # its broker is to unload it again, whatever becomes of this run
                pending = PendingUnload(self._topic, True, self._ports.clock.now_ms(), self._guard.guard[0])
                control.note_unload(self._ports.store, pending)
                self._run = replace(self._run, loaded_topics=frozenset({str(self._topic)}))  # by us, so we may write it
                self._deadline = None  # and nobody else for some minutes, so that another run could not go on
            for name, at in cut.moved:
                self._move(read, cut, name, at)
            if cut.rolls:
                self._roll(read)
            looked = self._look_moved()
            if isinstance(looked, Refusal):
                return looked
            read, cut = looked
            self._check()
        if self._row["no_undo"]:
            self._forbid_undo(read.view, cut)
        return self._trim(read, cut) or self._raise()

    def _look(self) -> tuple[Read, Cut] | Refusal:
        """The partition as it is now, and what the plan's low watermark cuts off it."""
        self._ports.store.sync("/")
        read = read_partition(self._run, self._ports, self._brokers, self._topic)
        if isinstance(read, Refusal):
            return read
        if replaced := self._replaced(read.node):
            return replaced
        if missing := cut_rules.subscription_missing(self._named, read.view.positions):
            return Refusal(RecordsError.CHANGED, missing)
        at_end = self._row["rolls"] and self._low_watermark == read.view.end
        if at_end and read.view.info.terminated is not None:
            text = f"{self._topic} was terminated since the plan was made, and its last ledger stays: plan again"
            return Refusal.plain(RecordsError.CHANGED, text)
        if refusal := cut_rules.unmeasured(read.view, self._low_watermark):
            return refusal
        cut = cut_rules.cut_at(read.view, END if at_end else self._low_watermark, replace(self._options, exact=False))
        if self._is_done(read.view, cut):
            cut = replace(cut, moved=())
        planned = {one["cursor"] for one in self._row["moved_cursors"]}
        if new := sorted(name for name, _ in cut.moved if name not in planned):
            text = f"subscription {new[0]} stands below {self._low_watermark}, and is not of the plan: plan again"
            return Refusal(RecordsError.CURSOR_BELOW, Why(RecordsError.CHANGED, text))
        writes = self._run.writes_loaded(self._topic)
        if refusal := cut_rules.refuse(read.view, cut, self._options, self._run.context, may_write_loaded=writes):
            return cut_rules.outrun(self._row, refusal)
        return unreplicated(read.view, self._clusters) or self._cut_since(read.view) or (read, cut)

    def _is_done(self, view: PartitionView, cut: Cut) -> bool:
        """Whether an apply has made of it what the plan says: a cursor that came below since loses nothing by it."""
        raised = view.watermark is not None and view.watermark >= self._low_watermark
        return raised and not cut.rolls and frozenset(self._row["ledgers"]).isdisjoint(cut.ledgers)

    def _cut_since(self, view: PartitionView) -> Refusal | None:
        """A message may have been on its way across the position when the plan was made, and be there by now."""
        if self._row["end"] is None:
            return None
        end, unfinished = MessagePosition.parse(self._row["end"]), self._row["unfinished"]
        return cut_since(self._ports, self._run.ledgers_root, view, self._low_watermark, end, unfinished)

    def _look_moved(self) -> tuple[Read, Cut] | Refusal:
        """The partition once its cursors are persisted where they were moved to; a broker may do so a little later.

        One that has just loaded it replaces the cursors' ledgers, and deletes those that their z-nodes named before.
        """
        looked = self._look()
        for seconds in snapshot.LOOKS_AFTER[1:]:
            if isinstance(looked, Refusal):
                if looked.why.code is not Code.CURSORS_UNREAD:
                    return looked
            elif not looked[1].moved:
                return looked
            self._ports.clock.sleep(seconds)
            self._check()
            looked = self._look()
        if isinstance(looked, Refusal) or not looked[1].moved:
            return looked
        name, at = looked[1].moved[0]
        text = f"its broker was asked to move subscription {name}, and has it at {at} still: run again in a minute"
        return Refusal(RecordsError.TIMEOUT, Why(Code.SERVER_FAILED, text))

    def _move(self, read: Read, cut: Cut, name: str, at: Position) -> None:
        past = read.view.last_below(cut.low_watermark)
        details = (MovedCursor(name, str(at), str(past)),)
        self._check()
        self._journal(Phase.MOVE_CURSOR, Outcome.BEGUN, Why(Code.ABOUT_TO, "its broker is asked to move it"), details)
        self._ports.admin.move_cursor(self._topic, name, past)
        self._journal(Phase.MOVE_CURSOR, Outcome.DONE, Why(Code.PLANNED, f"it stood at {at}"), details)
        self._stepped = True

    def _roll(self, read: Read) -> None:
        last = read.view.extents[-1].ledger_id
        self._wait_for_acks(read.view)
        self._check()
        about = Why(Code.ABOUT_TO, f"its broker is asked to close ledger {last}, by an unload")
        self._journal(Phase.ROLL, Outcome.BEGUN, about)
        self._guard.unloads.wait()
        self._guard.unloads.take(self._topic)
        self._ports.admin.unload(self._topic)
        if not self._is_followed(last):  # the unload closed it, and only a load begins another: no client may come
            self._ports.admin.subscriptions(self._topic)
        self._guard.unloads.wait_for_acks(self._ports.store, self._ports.admin, self._topic)  # else it stays loaded
        self._journal(Phase.ROLL, Outcome.DONE, Why(Code.PLANNED, f"ledger {last} is closed, and another follows"))
        self._stepped = True

    def _wait_for_acks(self, view: PartitionView) -> None:
        """Until its broker has read what subscriptions acknowledged in transactions. Raises Unavailable."""
        store, admin = self._ports.store, self._ports.admin
        if not view.broker and unread_acks(store, admin, self._topic):
            admin.subscriptions(self._topic)  # its broker reads them once it is loaded
        if unread := self._guard.unloads.wait_for_acks(store, admin, self._topic):
            raise Unavailable(f"its last ledger is not closed by an unload yet: {unread}; run again")

    def _is_followed(self, last: int) -> bool:
        self._ports.store.sync("/")
        _, info = snapshot.topic_node(self._ports.store, self._topic)
        return any(item.ledger_id > last for item in info.ledgers)

    def _forbid_undo(self, view: PartitionView, cut: Cut) -> None:
        """Before anything goes: whoever undoes a deletion reads these rows, and leaves their ledgers alone.

        Another run may have taken some of the plan's ledgers off the list, and an undo could bring them back.
        """
        stay = {extent.ledger_id for extent in view.extents}.difference(cut.ledgers)
        going = {*self._row["ledgers"], *self._row["leftovers"]}.difference(stay)
        writer, now = Writer(self._run.run_id, self._run.cluster, self._run.plan_id), self._ports.clock.now_ms()
        step, why = Step(Action.DELETE_RECORDS, Phase.NO_UNDO), Why(Code.NO_UNDO, "its plan forbids to undo it")
        topic = str(self._topic)
        rows = [writer.row(step, Subject(i, "", topic), Outcome.DONE, why, now) for i in sorted(going)]
        if rows:
            self._ports.journal.record(rows)

    def _trim(self, read: Read, cut: Cut) -> Refusal | None:
        """Take off what was planned and is whole below the low watermark, and raise that with the same write."""
        going = frozenset(cut.ledgers) & frozenset(self._row["ledgers"])
        if not going:
            return None
        counted, rules = frozenset(self._row["ledgers"]), (self._lost_subscription,) if self._named else ()
        order = TrimOrder(self._topic, going, counted=counted, rules=rules, change=self._raised)
        self._stepped = True
        for one in trim_topic(self._run, self._ports, self._guard, order, read.reading):
            if error := _ERRORS.get(one.outcome):
                return Refusal(RecordsError.TIMEOUT if one.why.code in _UNANSWERED else error, _why(one))
        return None

    def _lost_subscription(self) -> Why | None:
        """Asked just before the ledgers leave the list: one may have been deleted since the partition was read."""
        path = f"{MANAGED_LEDGERS_ROOT}/{self._topic.managed_ledger}"
        there = snapshot.cursors(self._ports.store, path)
        return cut_rules.subscription_missing(self._named, {cursor_name(name) for name in there})

    def _raised(self, info: ManagedLedgerInfo) -> ManagedLedgerInfo:
        return low_watermark.raised(info, self._low_watermark)

    def _raise(self) -> Refusal | None:
        """The low watermark, where no write of the list of ledgers has raised it."""
        if self._row["end"] is None:
            return None  # it had no ledger when the plan was made: nothing is below, and nothing to keep
        asked = False
        for tries in range(TRIES):
            self._ports.store.sync("/")
            node, info = snapshot.topic_node(self._ports.store, self._topic)
            if replaced := self._replaced(node):
                return replaced
            if self._raised(info) is info:
                if asked:
                    self._forget_passed(info)
                return None
            looked = self._look()
            if isinstance(looked, Refusal):
                return looked
            self._check()
            view = looked[0].view
            if view.loaded and not view.broker and not self._run.writes_loaded(self._topic):
                text = (
                    f"it counts as loaded, and no broker lists it ({view.loaded}): run again in a few minutes; if that "
                    f"is no help, name it in {_ANY}, or have a client read it and run again then"
                )
                return Refusal(RecordsError.LOADED, Why(Code.TOPIC_LOADED, text))
            if tries == 0:
                self._journal_raise(Outcome.BEGUN, Why(Code.ABOUT_TO, "its low watermark is raised"))
            if asked := bool(view.broker):
                self._ports.admin.set_properties(self._topic, low_watermark.kept_by_broker(self._low_watermark))
            else:
                edit_topic(self._run, self._ports, self._guard, self._topic, self._change, _ANY)
        return Refusal.plain(RecordsError.CHANGED, f"its low watermark was written {TRIES} times and is not there")

    def _forget_passed(self, info: ManagedLedgerInfo) -> None:
        """Have the broker remove what it kept for earlier requests, once that is a lot: the z-node must not grow.

        The next request does what fails here.
        """
        names = low_watermark.passed(info.properties)
        for name in names[:REMOVED_AT_ONCE] if len(names) >= PASSED_AT_MOST else ():
            self._guard.check(self._ports.store)
            try:
                self._ports.admin.remove_property(self._topic, name)
            except LifecycleError:
                break

    def _change(self, node: Node, info: ManagedLedgerInfo) -> tuple[ManagedLedgerInfo, dict[int, EditOutcome]]:
        return info if self._replaced(node) else self._raised(info), {}

    def _replaced(self, node: Node) -> Refusal | None:
        return cut_rules.replaced(self._row, node.stat.czxid, node.stat.ctime)

    def _journal_raise(self, outcome: Outcome, why: Why) -> None:
        self._journal(Phase.RAISE, outcome, why, (Raised(str(self._low_watermark), self._row["asked"]),))

    def _journal(self, phase: Phase, outcome: Outcome, why: Why, details: Details = ()) -> None:
        writer = Writer(self._run.run_id, self._run.cluster, self._run.plan_id)
        about = Subject(-1, "", str(self._topic), self._row["bytes"], details=details)
        now = self._ports.clock.now_ms()
        self._ports.journal.record([writer.row(Step(Action.DELETE_RECORDS, phase), about, outcome, why, now)])


_ANY = "trimming.loaded_topics"
_RAISED = Why(Code.PLANNED, "its low watermark is kept with the topic, and no ledger below it is listed")


def _why(one: LedgerOutcome) -> Why:
    return one.why if one.ledger_id < 0 else one.why.put(f"ledger {one.ledger_id}: {one.reason}")
