"""Offloading the ledgers of a topic: begun, committed once they are proven, reverted.

Belongs here: what may be offloaded as its topic is now, the order of steps, what a crash at any of them leaves. Not
here: which ledgers an operator wants (``planning/candidates.py``), copying and verifying one (``tiered/upload.py``),
attempts that earlier runs left open (``tiered/interrupted.py``).

Order: note the attempt, copy, read back, journal ``verified``, one compare-and-set per topic with its unload, journal
``offloaded``, forget the attempt. Killed anywhere, it repeats harmlessly: the next run finds the attempt, and finishes
it under the same UUID (the same ledger gives the same bytes), or removes its objects once no metadata can name them.
The first commit of a namespace and location is one ledger that its brokers must then be able to read; if
they are not, it is reverted while BookKeeper has it, and the run stops. Its attempt stays open until they have read
it: a run that finds a committed ledger with an open attempt has its brokers read it first. Where brokers read
BookKeeper first, such a read shows nothing of the bucket, and stands for no topic where they do not.
Source: PIP-17, ManagedLedgerImpl.offloadLoop (4.0.7).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from pulsar_lifecycle.copies import attempts, listed_ledgers
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.copies.location import OffloadedCopy
from pulsar_lifecycle.errors import Conflict, LifecycleError, RefusedBy
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs.journal_rows import Details
from pulsar_lifecycle.tiered.asked_entries import InconclusiveRead, entries_to_ask, why_not_read
from pulsar_lifecycle.tiered.outcome import POLICY, OffloadOutcome, outcome_of, record
from pulsar_lifecycle.tiered.read_check import (
    READ_CHECK_UNLOADS,
    READ_FIRST,
    ReadCheck,
    Unheld,
    location_before,
    read_by_broker,
    record_failed,
    record_passed,
)
from pulsar_lifecycle.tiered.revert import reverted_info, unlike_bookkeeper
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.unloads import RunGuard
from pulsar_lifecycle.topics.write import (
    SHADOWS_SEEN_FOR,
    STOPPING,
    Change,
    EditOutcome,
    TopicRun,
    edit_topic,
    left_loaded,
    why_loaded,
)
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import Verified
from pulsar_lifecycle.values.outcomes import Outcome


@dataclass(frozen=True, slots=True)
class OffloadRequest:
    """A ledger that a plan names, and where it is to go. ``metadata`` as in :class:`attempts.Attempt`."""

    ledger_id: int
    driver: str
    metadata: tuple[tuple[str, str], ...]
    block_size: int


class ReadCheckFailed(RefusedBy):
    """The brokers of a namespace cannot read what was offloaded: nothing more may be committed.

    ``outcomes``: what became of the ledgers of its topic.
    """

    def __init__(self, message: str, outcomes: Sequence[OffloadOutcome]) -> None:
        super().__init__(Code.READ_CHECK_FAILED, message)
        self.outcomes = outcomes


def begin_topic(
    run: TopicRun,
    ports: Ports,
    guard: RunGuard,
    topic: Topic,
    wanted: Sequence[OffloadRequest],
    new_uuid: Callable[[], UUID],
    read_check: ReadCheck,
) -> tuple[list[Attempt], list[OffloadOutcome]]:
    """Open an attempt on each ledger that may be offloaded now; the others come back with why not.

    None is opened that its broker would have to read first, and must not: nothing is copied for it.
    """
    guard.check(ports.store)
    ports.store.sync("/")
    node, info = snapshot.topic_node(ports.store, topic)
    obstacle = _obstacles(run, ports, topic, [one.ledger_id for one in wanted])
    begun: list[Attempt] = []
    outcomes: list[OffloadOutcome] = []
    foreign = listed_ledgers.open_attempt(info)
    loaded = why_loaded(ports.store, run.ledgers_root, run.brokers, run.now, topic, node, info)
    stays = left_loaded(run, ports, topic, loaded, POLICY) if loaded else None
    unread: str | None = None
    for one in wanted:
        why = obstacle(info, one.ledger_id)
        if not why and not dict(one.metadata).get("bucket"):
            why = Why(Code.NO_BUCKET, "no bucket is named for it")
        if why:
            outcomes.append(OffloadOutcome(str(topic), one.ledger_id, Outcome.REFUSED, why))
            continue
        if foreign:
            outcomes.append(OffloadOutcome(str(topic), one.ledger_id, Outcome.FOREIGN_ATTEMPT, foreign))
            continue
        if stays:
            outcomes.append(OffloadOutcome(str(topic), one.ledger_id, Outcome.LEFT_TO_BROKER, stays))
            continue
        attempt = Attempt(
            one.ledger_id,
            str(topic),
            new_uuid(),
            one.driver,
            one.metadata,
            one.block_size,
            run.run_id,
            ports.clock.now_ms(),
        )
        if read_check.due(topic, attempt):
            unread = why_not_read(run, ports, topic) if unread is None else unread
            if unread:
                why = Why(Code.READ_CHECK_DUE, f"{READ_FIRST}: {unread}")
                outcomes.append(OffloadOutcome(str(topic), one.ledger_id, Outcome.FAILED, why))
                continue
        try:
            attempts.begin(ports.store, attempt)
        except Conflict as error:
            outcomes.append(
                OffloadOutcome(str(topic), one.ledger_id, Outcome.REFUSED, Why(Code.ATTEMPT_OPEN, str(error)))
            )
        else:
            begun.append(attempt)
    opened = Why(Code.ATTEMPT_OPEN, "its attempt is open")
    record(run, ports, [*(outcome_of(attempt, Outcome.PREPARED, opened) for attempt in begun), *outcomes])
    return begun, outcomes


_Obstacle = Callable[[ManagedLedgerInfo, int], Why | None]
"""Why a ledger of a topic may not be offloaded, as the topic is now; None if it may."""


def _obstacles(run: TopicRun, ports: Ports, topic: Topic, ledger_ids: Collection[int]) -> _Obstacle:
    rows = snapshot.ledger_rows(ports.store, sorted(ledger_ids), run.ledgers_root)

    def obstacle(info: ManagedLedgerInfo, ledger_id: int) -> Why | None:
        rule = run.topic_rule(topic, snapshot.shadow_source(ports.store, topic, info), SHADOWS_SEEN_FOR)
        listed = {item.ledger_id: item for item in info.ledgers}
        item, row = listed.get(ledger_id), rows[ledger_id]
        if rule:
            return rule
        if item is None:
            return Why(Code.DELISTED, "its topic does not list it any more")
        if ledger_id == max(listed):
            return Why(Code.LAST_LEDGER, "the last ledger of its topic")
        if why := of_context(item):
            return why
        if problem := listed_ledgers.copy_of(ledger_id, row, topic).problem:
            return problem
        assert row is not None
        if not row["length"] or not row["entries"]:
            return Why(Code.EMPTY, "empty")
        return unlike_bookkeeper(item, row["entries"], row["length"])

    return obstacle


def of_context(item: LedgerInfo) -> Why | None:
    """Why what its topic says of a ledger's offload leaves no room for another; None if it does."""
    offload = item.offload
    if offload and offload.complete:
        return Why(Code.OFFLOADED_ALREADY, f"offloaded already, as {offload.uuid}")
    if offload and offload.bookkeeper_deleted:
        why = "its topic's metadata lists its copy in BookKeeper as deleted without a complete offload: it needs repair"
        return Why(Code.NEEDS_REPAIR, why)
    if offload and offload.segments:
        return Why(Code.STREAMING, "streaming offload: which of its objects are whole is not known")
    return None


@dataclass(frozen=True, slots=True)
class Proven:
    """An attempt whose objects were read back whole. ``verified``: what they were then; None in another run."""

    attempt: Attempt
    entries: int
    bytes: int
    verified: Verified | None

    @property
    def details(self) -> Details:
        """What the journal says of it."""
        return (self.verified,) if self.verified else ()


def commit_topic(
    run: TopicRun, ports: Ports, guard: RunGuard, topic: Topic, proven: Sequence[Proven], read_check: ReadCheck
) -> list[OffloadOutcome]:
    """Write into a topic's metadata that these ledgers are offloaded, all in one compare-and-set, and journal it.

    Once a read check has loaded its topic, the others follow whatever the policy says of loaded topics: it was unloaded
    until then, and is unloaded again. Raises ReadCheckFailed when a broker could not read the first ledger: then it was
    reverted, and nothing else was committed.
    """
    outcomes: list[OffloadOutcome] = []
    rest = list(proven)
    policy = POLICY
    not_readable: list[tuple[Proven, InconclusiveRead]] = []
    for one in proven:
        if read_check.due(topic, one.attempt):
            rest.remove(one)
            if lack := guard.unloads.lacks(READ_CHECK_UNLOADS) or guard.unloads.doubt(topic):
                why = Why(Code.READ_CHECK_DUE, f"{READ_FIRST}, and {lack}")
                outcomes.append(outcome_of(one.attempt, Outcome.LEFT_TO_BROKER, why))
                record(run, ports, outcomes[-1:])
                continue
            try:
                entries_to_ask(run, ports, topic, OffloadedCopy.of_attempt(one.attempt, one.entries))
            except InconclusiveRead as no_report:
                not_readable.append((one, no_report))
                continue
            committed = _commit(run, ports, guard, topic, [one], policy)
            outcomes += committed
            if committed[0].outcome == Outcome.OFFLOADED:
                if unread := unread_by_broker(run, ports, guard, topic, [one], read_check):
                    why = (
                        f"ledger {unread[0].ledger_id} was offloaded, and {unread[0].reason}; "
                        "the run stopped there, and nothing else was committed after it"
                    )
                    raise ReadCheckFailed(why, [*outcomes[:-1], *unread])
                policy = ""
                _forget(ports, [one], committed)
    for one, no_report in not_readable:
        if read_check.due(topic, one.attempt):
            why = Why(Code.READ_CHECK_DUE, f"{READ_FIRST}: {no_report}")
            outcomes.append(outcome_of(one.attempt, Outcome.FAILED, why))
            record(run, ports, outcomes[-1:])
        else:
            rest.append(one)
    if rest:
        committed = _commit(run, ports, guard, topic, rest, policy)
        _forget(ports, rest, committed)
        outcomes += committed
    return outcomes


def _commit(
    run: TopicRun, ports: Ports, guard: RunGuard, topic: Topic, proven: Sequence[Proven], policy: str
) -> list[OffloadOutcome]:
    by_id = {one.attempt.ledger_id: one for one in proven}
    guard.check(ports.store)
    at = attempts.touch(ports.store, proven[0].attempt)
    change = _completing(run, ports, topic, {i: one.attempt for i, one in by_id.items()}, at)
    said = edit_topic(run, ports, guard, topic, change, policy)
    outcomes = [
        replace(outcome_of(by_id[i].attempt, one.outcome, one.why), bytes=by_id[i].bytes)
        for i, one in sorted(said.items())
    ]
    record(run, ports, outcomes, {i: one.details for i, one in by_id.items()})
    return outcomes


def _completing(run: TopicRun, ports: Ports, topic: Topic, ours: Mapping[int, Attempt], at: int) -> Change:
    """``at`` (ms): the metadata store's time. With our clock behind it, the deletion lag would be over too soon."""
    obstacle = _obstacles(run, ports, topic, ours)

    def change(node: Node, info: ManagedLedgerInfo) -> tuple[ManagedLedgerInfo, dict[int, EditOutcome]]:
        delisted = EditOutcome(Outcome.REFUSED, Why(Code.DELISTED, "its topic does not list it any more"))
        said = dict.fromkeys(ours, delisted)
        foreign = listed_ledgers.open_attempt(info, {one.uuid for one in ours.values()})
        ledgers: list[LedgerInfo] = []
        for item in info.ledgers:
            attempt = ours.get(item.ledger_id)
            if attempt and not is_ours(item, attempt):
                if why := obstacle(info, item.ledger_id):
                    said[item.ledger_id] = EditOutcome(Outcome.REFUSED, why)
                elif foreign:
                    said[item.ledger_id] = EditOutcome(Outcome.FOREIGN_ATTEMPT, foreign)
                else:
                    said[item.ledger_id] = EditOutcome(Outcome.OFFLOADED, COMMITTED, changes=True)
                    item = replace(item, offload=_complete(attempt, max(at, ports.clock.now_ms())))
            elif attempt:
                said[item.ledger_id] = EditOutcome(Outcome.OFFLOADED, COMMITTED)
            ledgers.append(item)
        return replace(info, ledgers=tuple(ledgers)), said

    return change


COMMITTED = Why(Code.COMMITTED, "its topic's metadata says so")


def is_ours(item: LedgerInfo, attempt: Attempt) -> bool:
    """Whether the topic names this attempt as complete."""
    return item.offload is not None and item.offload.complete and item.offload.uuid == attempt.uuid


def _complete(attempt: Attempt, now: int) -> OffloadContext:
    return OffloadContext(attempt.uuid, True, False, now, attempt.driver, dict(attempt.metadata))


def _forget(ports: Ports, proven: Sequence[Proven], committed: Sequence[OffloadOutcome]) -> None:
    done = {one.ledger_id for one in committed if one.outcome == Outcome.OFFLOADED}
    for one in proven:
        if one.attempt.ledger_id in done:
            attempts.end(ports.store, one.attempt)


def unread_by_broker(
    run: TopicRun,
    ports: Ports,
    guard: RunGuard,
    topic: Topic,
    committed: Sequence[Proven],
    read_check: ReadCheck,
    *,
    proves: bool = True,
) -> list[OffloadOutcome]:
    """Nothing if its broker reads the first of these; else what became of them all. They are of one location.

    ``proves`` as in ``read_check.record_passed``.
    """
    copy = OffloadedCopy.of_attempt(committed[0].attempt, committed[0].entries)
    try:
        before = location_before(ports, copy)
        unread = read_by_broker(run, ports, guard, topic, copy, entries_to_ask(run, ports, topic, copy))
    except InconclusiveRead as no_report:
        return [
            outcome_of(one.attempt, Outcome.FAILED, Why(Code.READ_CHECK_UNANSWERED, str(no_report)))
            for one in committed
        ]
    if not unread:
        record_passed(run, ports, topic, copy, read_check, before, proves=proves)
        return []
    untold = ""
    try:  # before it is reverted: no later run may go by what was seen before
        record_failed(run, ports, topic, copy, read_check, unread)
    except STOPPING:
        raise
    except Unheld as failure:
        untold = f"; {failure}"
    except LifecycleError as failure:
        untold = f"; the journal does not say so: {failure}"
    uuids = {one.attempt.ledger_id: one.attempt.uuid for one in committed}
    try:
        said = edit_topic(run, ports, guard, topic, reverted_info(run, ports, topic, uuids, even_if_deleted=False), "")
    except STOPPING as stop:
        if read_check.unheld:
            raise Unheld(f"{read_check.unheld}; {stop}") from stop
        raise
    except LifecycleError as failure:
        why = Why(Code.OUTCOME_UNKNOWN, f"whether it was reverted is not known, run again: {failure}")
        said = dict.fromkeys(uuids, EditOutcome(Outcome.FAILED, why))
    after: list[OffloadOutcome] = []
    for one in committed:
        reverted = said[one.attempt.ledger_id]
        first = unread.why if reverted.outcome == Outcome.REVERTED else reverted.why
        why = first.put(f"{unread.reason}; {reverted.reason}{untold}")
        after.append(replace(outcome_of(one.attempt, reverted.outcome, why), bytes=one.bytes))
    try:
        record(run, ports, after, {one.attempt.ledger_id: one.details for one in committed})
    except STOPPING:
        raise
    except LifecycleError as failure:  # whoever catches it must stop all the same
        return [replace(one, why=one.why.put(f"{one.why}; the journal does not say so: {failure}")) for one in after]
    return after
