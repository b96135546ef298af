"""Deleting the copy in BookKeeper of an offloaded ledger, once its objects are proven whole and its lag has passed.

Belongs here: both ends of it. Before: what may be deleted as its topic is now, its message, and one compare-and-set of
``bookkeeperDeleted`` with its unload. After: what the deletion run asks before it deletes a ledger that its topic still
lists (``deletion/batch.py`` has the order, ``deletion/owner_check.py`` calls). Not here: the proof
(``tiered/proof.py``), copies that were offloaded just now (``tiered/commit.py``).

Order: prove, send the message, journal ``marked`` with the proof, compare-and-set, journal ``bookkeeper-deleted``.
Killed anywhere, it repeats harmlessly: without the compare-and-set the message finds its ledger in use; after it the
ledger is an offload leftover, which the next plan has again. Source: ManagedLedgerImpl.internalTrimLedgers (4.0.7).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pulsar_lifecycle.copies import attempts, failed_proofs, listed_ledgers
from pulsar_lifecycle.copies.location import OffloadedCopy, location_of
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.errors import Refused
from pulsar_lifecycle.formats.deletion_message import LedgerComponent, PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.tiered.asked_entries import InconclusiveRead
from pulsar_lifecycle.tiered.outcome import POLICY, OffloadOutcome, record
from pulsar_lifecycle.tiered.read_check import ASKED, ReadCheck, why_unread
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.first_phase import send_messages
from pulsar_lifecycle.topics.unloads import RunGuard
from pulsar_lifecycle.topics.write import SHADOWS_SEEN_FOR, Change, EditOutcome, TopicRun, edit_topic, why_loaded
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import OffloadLocation, Verified
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase


@dataclass(frozen=True, slots=True)
class Due:
    """An offloaded ledger whose copy in BookKeeper may go: its objects were proven whole under this UUID.

    ``endpoint`` and ``region``: of the object store that they were proven in.
    """

    ledger_id: int
    location: Location
    verified: Verified
    endpoint: str
    region: str


def begin_deletions(
    run: TopicRun,
    ports: Ports,
    guard: RunGuard,
    topic: Topic,
    due: Sequence[Due],
    lag_ms: int | None,
    read_check: ReadCheck,
) -> list[OffloadOutcome]:
    """Send a ``Ledger`` message for each ledger that may go, and list its copy in BookKeeper as deleted.

    With a lag of None or below 0 only what its topic lists as deleted may go. What nothing else speaks against its
    broker reads first, unless it has read its location in this run; a topic that was loaded for that alone, and by
    nobody since, is then written whatever the policy says of loaded ones, and unloaded. Raises Paused, LeaseLost,
    Refused where the topic cannot be read, and what the stores raise.
    """
    view = _look(run, ports, guard, topic, due, lag_ms, read_check)
    outcomes, going = dict(view.outcomes), view.going
    record(run, ports, list(outcomes.values()), action=Action.COPY_DELETION, phase=Phase.COPY_DELETION)
    unread = _unread(run, ports, guard, topic, [(one, view.items[one.ledger_id]) for one in going], read_check)
    record(run, ports, list(unread.values()), action=Action.COPY_DELETION, phase=Phase.COPY_DELETION)
    outcomes |= unread
    going = [one for one in going if one.ledger_id not in unread]
    messages = [_message(topic, one, view.rows, ports.clock.now_ms()) for one in going]
    lengths = {one.ledger_id: one.verified.length for one in going}
    sent = {one.info.ledger_id: one for one in send_messages(run, ports, messages, lengths)}
    for one in going:
        if sent[one.ledger_id].error is not None:
            why = Why(Code.NOT_SENT, f"its message was not acknowledged: {sent[one.ledger_id].error}")
            outcomes[one.ledger_id] = OffloadOutcome(str(topic), one.ledger_id, Outcome.LEFT, why)
    going = [one for one in going if sent[one.ledger_id].error is None]
    if not going:
        return [outcomes[i] for i in sorted(outcomes)]
    czxids = {i: row["czxid"] for i, row in view.rows.items() if row}
    about_to = Why(Code.ABOUT_TO, "its copy in BookKeeper is about to be deleted")
    about = [OffloadOutcome(str(topic), one.ledger_id, Outcome.MARKED, about_to) for one in going]
    failed_proofs.let_go(ports.store, [one.ledger_id for one in going])
    _record(run, ports, about, going, czxids)
    policy = policy_for(ports, topic, read_check)
    said = edit_topic(run, ports, guard, topic, _deleting_copies({d.ledger_id: d for d in going}, view.lag), policy)
    done = [OffloadOutcome(str(topic), i, one.outcome, one.why, lengths[i]) for i, one in sorted(said.items())]
    _record(run, ports, done, going, czxids)
    outcomes |= {one.ledger_id: one for one in done}
    return [outcomes[i] for i in sorted(outcomes)]


def policy_for(ports: Ports, topic: Topic, read_check: ReadCheck) -> str:
    """The setting that must name a topic to be written, if it counts as loaded; none where we have loaded it."""
    ports.store.sync("/")
    node, _ = snapshot.topic_node(ports.store, topic)
    return "" if read_check.has_loaded(topic, node) else POLICY


def read_first(
    run: TopicRun,
    ports: Ports,
    guard: RunGuard,
    topic: Topic,
    due: Sequence[Due],
    lag_ms: int | None,
    read_check: ReadCheck,
) -> None:
    """Have a topic's broker read what could be deleted of it, unless it has read its location in this run.

    To be done with a topic of every broker before any copy is deleted: one that fails speaks against the others.
    Raises as :func:`begin_deletions`.
    """
    view = _look(run, ports, guard, topic, due, lag_ms, read_check)
    _unread(run, ports, guard, topic, [(one, view.items[one.ledger_id]) for one in view.going], read_check)


@dataclass(frozen=True, slots=True)
class _View:
    """A topic at one moment: what may be deleted (``going``), and what becomes of the other ledgers that are due."""

    going: list[Due]
    outcomes: Mapping[int, OffloadOutcome]
    items: Mapping[int, LedgerInfo]
    rows: Mapping[int, Mapping[str, Any] | None]
    lag: _Lag


def _look(
    run: TopicRun,
    ports: Ports,
    guard: RunGuard,
    topic: Topic,
    due: Sequence[Due],
    lag_ms: int | None,
    read_check: ReadCheck,
) -> _View:
    guard.check(ports.store)
    ports.store.sync("/")
    node, info = snapshot.topic_node(ports.store, topic)
    ids = [one.ledger_id for one in due]
    rows = snapshot.ledger_rows(ports.store, ids, run.ledgers_root)
    rule = run.topic_rule(topic, snapshot.shadow_source(ports.store, topic, info), SHADOWS_SEEN_FOR)
    ours = attempts.of_ledgers(ports.store, ids)
    loaded = why_loaded(ports.store, run.ledgers_root, run.brokers, run.now, topic, node, info)
    stays = f"its topic counts as loaded ({loaded}), and {POLICY} does not name it" if loaded else ""
    lag = _Lag(min(run.now, ports.clock.now_ms()), lag_ms)
    by_id = {item.ledger_id: item for item in info.ledgers}
    last = max(by_id, default=-1)
    foreign = listed_ledgers.open_attempt(info)
    may_write = run.writes_loaded(topic) or read_check.has_loaded(topic, node)
    outcomes: dict[int, OffloadOutcome] = {}
    going: list[Due] = []
    for one in due:
        item, row = by_id.get(one.ledger_id), rows[one.ledger_id]
        why = rule or listed_ledgers.copy_of(one.ledger_id, row, topic).problem
        why = why or _obstacle(item, last, one, lag) or _not_as_proven(item, row, one.verified)
        if not why and one.ledger_id in ours:
            why = Why(Code.ATTEMPT_OPEN, "its offload attempt is still open: no broker may have read it yet")
        if why:
            outcomes[one.ledger_id] = OffloadOutcome(str(topic), one.ledger_id, Outcome.REFUSED, why)
        elif foreign:
            outcomes[one.ledger_id] = OffloadOutcome(str(topic), one.ledger_id, Outcome.FOREIGN_ATTEMPT, foreign)
        elif stays and not may_write and not _bookkeeper_deleted(item):
            outcomes[one.ledger_id] = OffloadOutcome(
                str(topic), one.ledger_id, Outcome.LEFT_TO_BROKER, Why(Code.TOPIC_LOADED, stays)
            )
        else:
            going.append(one)
    return _View(going, outcomes, by_id, rows, lag)


def _unread(
    run: TopicRun,
    ports: Ports,
    guard: RunGuard,
    topic: Topic,
    going: Sequence[tuple[Due, LedgerInfo]],
    read_check: ReadCheck,
) -> dict[int, OffloadOutcome]:
    """Those whose copy in BookKeeper stays because no broker has shown that it can read the other one."""
    copies: dict[int, OffloadedCopy] = {}
    asked: dict[OffloadLocation, EditOutcome | None] = {}
    not_readable: dict[OffloadLocation, EditOutcome] = {}
    tried: Counter[OffloadLocation] = Counter()
    for one, item in going:
        copy = OffloadedCopy.of_item(item, one.verified.entries)
        assert copy is not None  # its offload is complete: _obstacle
        copies[one.ledger_id] = copy
    begin = ports.clock.now_ms() % max(1, len(going))  # with another one each time: the first ones may never be shown
    for one, _ in (*going[begin:], *going[:begin]):
        copy = copies[one.ledger_id]
        where = location_of(copy)
        if where in asked or tried[where] == ASKED:
            continue
        tried[where] += 1
        try:
            asked[where] = why_unread(run, ports, guard, topic, copy, read_check)
        except InconclusiveRead as no_report:  # its next one may do
            why = f"no broker has read its location yet, of ledger {one.ledger_id}: {no_report}"
            not_readable[where] = EditOutcome(Outcome.FAILED, Why(Code.LOCATION_UNREAD, why))
    found: dict[int, OffloadOutcome] = {}
    for one, _ in going:
        copy = copies[one.ledger_id]
        where = location_of(copy)
        if said := asked.get(where, not_readable.get(where)):
            why = said.why.put(f"its copy in BookKeeper stays: {said.reason}")
            found[one.ledger_id] = OffloadOutcome(str(topic), one.ledger_id, said.outcome, why, uuid=str(copy.uuid))
    return found


@dataclass(frozen=True, slots=True)
class FailedProof:
    """An offloaded copy whose proof failed; the others as of :class:`Due`."""

    ledger_id: int
    location: Location
    why: Why
    endpoint: str
    region: str


def record_failed_proofs(
    ports: Ports, run: TopicRun, topic: Topic, failed: Sequence[FailedProof]
) -> list[OffloadOutcome]:
    """Journal that copies are not what they should be; the copies in BookKeeper stay of those that a topic reads.

    What the topic does not read, or not there, is ``refused``: of its own nothing was shown. Raises as
    :func:`begin_deletions`.
    """
    ports.store.sync("/")
    _, info = snapshot.topic_node(ports.store, topic)
    by_id = {item.ledger_id: item for item in info.ledgers}
    found: list[OffloadOutcome] = []
    for one in failed:
        item, uuid = by_id.get(one.ledger_id), str(one.location.uuid)
        why = _another(item, one)
        reason = (
            f"its offloaded copy is not proven, and its copy in BookKeeper stays: {one.why}; put the object back, "
            f"or launch revert_offloads for {topic} and this ledger"
        )
        said = (Outcome.REFUSED, why) if why else (Outcome.PROOF_FAILED, Why(Code.NOT_PROVEN, reason))
        found.append(OffloadOutcome(str(topic), one.ledger_id, *said, item.size or 0 if item else 0, uuid))
    where = {one.ledger_id: (CopyAt(one.location.bucket),) for one in failed}
    try:
        for one in found:  # a deletion run that is under way has read the journal already
            if one.outcome == Outcome.PROOF_FAILED:
                failed_proofs.hold(ports.store, one.ledger_id)
    finally:
        record(run, ports, found, where, action=Action.COPY_DELETION, phase=Phase.COPY_DELETION)
    return found


def has_gone(run: TopicRun, ports: Ports, topic: Topic, ledger_id: int) -> bool:
    """Whether a topic lists a copy in BookKeeper as deleted, and BookKeeper has it no more: nothing is left to do."""
    ports.store.sync("/")
    if snapshot.ledger_rows(ports.store, [ledger_id], run.ledgers_root)[ledger_id] is not None:
        return False
    try:
        _, info = snapshot.topic_node(ports.store, topic)
    except Refused:
        return False
    return _bookkeeper_deleted(next((item for item in info.ledgers if item.ledger_id == ledger_id), None))


def before_revert(ports: Ports, topic: Topic, ledger_ids: Sequence[int]) -> tuple[Why | None, list[int]]:
    """A broker's open attempt, which comes first, and which of the ledgers their topic lists as deleted in BookKeeper.

    Raises Refused if the topic cannot be read.
    """
    _, info = snapshot.topic_node(ports.store, topic)
    gone = sorted(i.ledger_id for i in info.ledgers if i.ledger_id in ledger_ids and _bookkeeper_deleted(i))
    return listed_ledgers.open_attempt(info), gone


@dataclass(frozen=True, slots=True)
class _Lag:
    """The deletion lag (ms; None or below 0: no copy goes by itself) and what time it is, by the clock behind."""

    now: int
    lag_ms: int | None

    def unmet(self, offloaded_at: int | None) -> Why | None:
        """Why an offload of that time (ms) must wait; None if it need not."""
        if self.lag_ms is None or self.lag_ms < 0:
            return Why(Code.LAG, "no deletion lag is set")
        if offloaded_at and self.now - offloaded_at > self.lag_ms:
            return None
        return Why(Code.LAG, f"its deletion lag of {self.lag_ms // 1000} s has not passed")


def _bookkeeper_deleted(item: LedgerInfo | None) -> bool:
    return item is not None and item.offload is not None and item.offload.bookkeeper_deleted


def _obstacle(item: LedgerInfo | None, last: int, due: Due, lag: _Lag) -> Why | None:
    """Why a topic's own metadata speaks against deleting the copy in BookKeeper; None if it does not."""
    if why := _another(item, due):
        return why
    assert item is not None
    assert item.offload is not None
    if item.ledger_id == last:
        return Why(Code.LAST_LEDGER, "the last ledger of its topic: a broker that loads it forgets its offload")
    return None if item.offload.bookkeeper_deleted else lag.unmet(item.offload.timestamp)


def _another(item: LedgerInfo | None, due: Due | FailedProof) -> Why | None:
    """Why a topic's metadata names another copy than the one that was looked at; None if it names that."""
    offload = item.offload if item else None
    if item is None:
        return Why(Code.DELISTED, "its topic does not list it any more")
    if OffloadedCopy.of_item(item, 0) is None or offload is None:
        return Why(Code.NOT_OFFLOADED, "its offload is not complete")
    return _elsewhere(offload, due)


def _elsewhere(offload: OffloadContext, due: Due | FailedProof) -> Why | None:
    """How a complete offload is another than what was looked at; None if it is the same."""
    bucket = offload.driver_metadata.get("bucket")
    if offload.uuid != due.location.uuid or bucket != due.location.bucket:
        return Why(Code.COPY_DIFFERS, f"it is offloaded as {offload.uuid} in {bucket}: that was not proven")
    endpoint, region = (offload.driver_metadata.get(name, "") for name in ("serviceEndpoint", "region"))
    if endpoint and endpoint.rstrip("/") != due.endpoint:
        proven = due.endpoint or "the endpoint of the region"
        return Why(Code.COPY_DIFFERS, f"it is offloaded to {endpoint}, what was proven is at {proven}")
    if region and not endpoint and region != due.region:
        proven = due.region or "none"
        return Why(Code.COPY_DIFFERS, f"it is offloaded to region {region}, what was proven is in {proven}")
    return None


def _not_as_proven(item: LedgerInfo | None, row: Mapping[str, Any] | None, verified: Verified) -> Why | None:
    """How BookKeeper or the topic differ from what was proven; None if they do not."""
    assert item is not None
    assert row is not None
    proven = verified.entries, verified.length
    for who, found in (
        ("BookKeeper", (row["entries"], row["length"])),
        ("its topic", (item.entries or row["entries"], item.size or row["length"])),
    ):
        if found != proven:
            said = f"{who} says {found[0]} entries of {found[1]} bytes"
            return Why(Code.UNLIKE_BOOKKEEPER, f"{said}, its offloaded copy has {proven[0]} of {proven[1]}")
    return None


def _message(
    topic: Topic, due: Due, rows: Mapping[int, Mapping[str, int] | None], sent_at: int
) -> PendingDeleteLedgerInfo:
    row = rows[due.ledger_id]
    assert row is not None
    return PendingDeleteLedgerInfo(
        topic_name=str(topic),
        component=LedgerComponent.MANAGED_LEDGER,
        ledger_id=due.ledger_id,
        czxid=row["czxid"],
        ctime=row["ctime"],
        sent_at=sent_at,
    )


def _deleting_copies(due: Mapping[int, Due], lag: _Lag) -> Change:
    def change(node: Node, info: ManagedLedgerInfo) -> tuple[ManagedLedgerInfo, dict[int, EditOutcome]]:
        delisted = EditOutcome(Outcome.LEFT, Why(Code.DELISTED, "its topic does not list it any more"))
        said = dict.fromkeys(due, delisted)
        deleted = Why(Code.COMMITTED, "its topic lists its copy in BookKeeper as deleted")
        last = max((item.ledger_id for item in info.ledgers), default=-1)
        foreign = listed_ledgers.open_attempt(info)
        ledgers: list[LedgerInfo] = []
        for item in info.ledgers:
            one = due.get(item.ledger_id)
            if one is not None:
                why = _obstacle(item, last, one, lag)
                if why:
                    said[item.ledger_id] = EditOutcome(Outcome.LEFT, why)
                elif foreign:
                    said[item.ledger_id] = EditOutcome(Outcome.FOREIGN_ATTEMPT, foreign)
                elif _bookkeeper_deleted(item):
                    said[item.ledger_id] = EditOutcome(Outcome.BOOKKEEPER_DELETED, deleted)
                else:
                    assert item.offload is not None  # _obstacle: it is complete
                    said[item.ledger_id] = EditOutcome(Outcome.BOOKKEEPER_DELETED, deleted, changes=True)
                    item = replace(item, offload=replace(item.offload, bookkeeper_deleted=True))
            ledgers.append(item)
        return replace(info, ledgers=tuple(ledgers)), said

    return change


@dataclass(frozen=True, slots=True)
class CopyAt:
    """Details of a copy deletion: the bucket of the offloaded copy, the z-node of the ledger in BookKeeper."""

    bucket: str
    czxid: int | None = None


def _record(
    run: TopicRun, ports: Ports, outcomes: Sequence[OffloadOutcome], due: Sequence[Due], czxids: Mapping[int, int]
) -> None:
    uuids = {one.ledger_id: str(one.location.uuid) for one in due}
    proof = {one.ledger_id: (CopyAt(one.location.bucket, czxids[one.ledger_id]), one.verified) for one in due}
    record(
        run,
        ports,
        [replace(one, uuid=uuids[one.ledger_id]) for one in outcomes],
        proof,
        action=Action.COPY_DELETION,
        phase=Phase.COPY_DELETION,
    )
