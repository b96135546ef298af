"""Reverting an offload: the ledger is read from BookKeeper again, and its objects may go."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Generator, Mapping
from dataclasses import replace
from typing import cast
from uuid import UUID

from pulsar_lifecycle.copies import attempts, listed_ledgers
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats import ledger_metadata, ledger_path
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import EntryBatch, Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.tiered.outcome import POLICY, OffloadOutcome, record
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.unloads import RunGuard
from pulsar_lifecycle.topics.write import STOPPING, Change, EditOutcome, TopicRun, edit_topic
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Outcome


def unlike_bookkeeper(item: LedgerInfo, entries: int, length: int) -> Why | None:
    """How BookKeeper's ledger differs from what its topic says of it; None if it does not."""
    if (item.size or length, item.entries or entries) == (length, entries):
        return None
    text = f"its topic says {item.entries} entries of {item.size} bytes, BookKeeper {entries} of {length}"
    return Why(Code.UNLIKE_BOOKKEEPER, text)


def revert_topic(
    run: TopicRun,
    ports: Ports,
    guard: RunGuard,
    topic: Topic,
    ledger_ids: Collection[int],
    *,
    even_if_deleted: bool = True,
    policy: str = POLICY,
) -> list[OffloadOutcome]:
    """Let a topic read offloaded ledgers from BookKeeper again, where it has them whole: for objects that are damaged.

    The objects stay; nothing names them any more. A ledger may then be offloaded anew. ``even_if_deleted``: even where
    its topic lists BookKeeper's copy as deleted, which may be there still; then the caller holds the deletion lease,
    too. ``policy`` and what is raised as ``edit_topic``.
    """
    guard.check(ports.store)
    planned = plan_revert(run, ports, topic, ledger_ids, guard)
    outcomes = [one for one in planned if one.outcome != Outcome.GOES]
    going = {one.ledger_id: UUID(one.uuid) for one in planned if one.outcome == Outcome.GOES}
    if going:
        about = Why(Code.ABOUT_TO, "its topic is about to read it from BookKeeper again")
        record(
            run,
            ports,
            [replace(one, outcome=Outcome.REVERTING, why=about) for one in planned if one.ledger_id in going],
        )
        change = reverted_info(run, ports, topic, going, even_if_deleted=even_if_deleted, alone_matters=False)
        said = edit_topic(run, ports, guard, topic, change, policy)
        done = [
            OffloadOutcome(str(topic), i, one.outcome, one.why, uuid=str(going[i])) for i, one in sorted(said.items())
        ]
        try:
            record(run, ports, done)
        except STOPPING:
            raise
        except LifecycleError as failure:
            done = [replace(one, why=one.why.put(f"{one.why}; the journal does not say so: {failure}")) for one in done]
        outcomes += done
    return outcomes


def plan_revert(
    run: TopicRun, ports: Ports, topic: Topic, ledger_ids: Collection[int], guard: RunGuard | None = None
) -> list[OffloadOutcome]:
    """What :func:`revert_topic` would do; writes nothing. Reads whole in BookKeeper what may be reverted."""
    ports.store.sync("/")
    node, info = snapshot.topic_node(ports.store, topic)
    items = {item.ledger_id: item for item in info.ledgers}
    opened = attempts.of_ledgers(ports.store, ledger_ids)
    foreign = listed_ledgers.open_attempt(info)
    found: list[OffloadOutcome] = []
    for ledger_id in sorted(set(ledger_ids)):
        item = items.get(ledger_id)
        uuid = item.offload.uuid if item and item.offload and item.offload.complete else None
        if item is None:
            outcome, why = Outcome.REFUSED, Why(Code.DELISTED, "its topic does not list it")
        elif uuid is None:
            outcome, why = Outcome.REFUSED, Why(Code.NOT_OFFLOADED, "it is not offloaded")
        elif ledger_id in opened:
            outcome, why = (
                Outcome.REFUSED,
                Why(Code.ATTEMPT_OPEN, f"an attempt of ours is open: {attempts.path_of(ledger_id)}"),
            )
        elif late := _deleted_of_late(run, node, item):
            outcome, why = Outcome.REFUSED, late
        elif problem := not_whole_in_bookkeeper(run, ports, topic, item, guard):
            outcome, why = Outcome.REFUSED, problem
        elif foreign:
            outcome, why = Outcome.FOREIGN_ATTEMPT, foreign
        else:
            outcome, why = Outcome.GOES, _IN_BOOKKEEPER
        found.append(OffloadOutcome(str(topic), ledger_id, outcome, why, uuid=str(uuid or "")))
    return found


_IN_BOOKKEEPER = Why(Code.FROM_BOOKKEEPER, "its topic reads it from BookKeeper again")


LOOK_EVERY = 2_000
"""How long (ms) a ledger is read without a look at the pause z-node and the lease."""


def not_whole_in_bookkeeper(
    run: TopicRun, ports: Ports, topic: Topic, item: LedgerInfo, guard: RunGuard | None = None
) -> Why | None:
    """Why BookKeeper's copy cannot stand for the offloaded one; None once every entry was read and verified.

    With a ``guard`` raises Paused and LeaseLost meanwhile.
    """
    if problem := without_bookkeeper(run, ports, topic, item.ledger_id):
        return problem
    node = ports.store.read([ledger_path.ledger_path(item.ledger_id, run.ledgers_root)])[0]
    if not isinstance(node, Node):
        return Why(Code.NOT_IN_BOOKKEEPER, "its z-node in BookKeeper cannot be read")
    looked = ports.clock.now_ms()
    try:
        metadata = ledger_metadata.decode(node.data)
        last = metadata.last_entry_id
        if problem := unlike_bookkeeper(item, last + 1, metadata.length):
            return Why(Code.NOT_IN_BOOKKEEPER, problem.text)
        stream = cast(Generator[EntryBatch, None, None], ports.reader.stream(item.ledger_id, metadata, 0, last))
        with contextlib.closing(stream):
            for _ in stream:
                if guard and ports.clock.now_ms() - looked >= LOOK_EVERY:
                    guard.check(ports.store)
                    looked = ports.clock.now_ms()
    except STOPPING:
        raise
    except LifecycleError as error:
        return Why(Code.NOT_IN_BOOKKEEPER, f"BookKeeper cannot give it whole: {error}")
    return None


BROKER_DELETES_FOR = 300_000
"""How long (ms) a broker may try to delete a copy after it listed it as deleted: three times a minute apart, whatever
the topic's metadata says by then (ManagedLedgerImpl.asyncDeleteLedger)."""


def _deleted_of_late(run: TopicRun, node: Node, item: LedgerInfo) -> Why | None:
    """Why a broker may still be deleting the copy in BookKeeper that its topic lists as deleted; None if none is.

    By the run's time, which is never ahead of the metadata store's.
    """
    if item.offload is None or not item.offload.bookkeeper_deleted:
        return None
    left = node.stat.mtime + BROKER_DELETES_FOR - run.now
    if left <= 0:
        return None
    text = f"it may be listed as deleted only just now, and its broker be deleting it: again in {left // 1000 + 1} s"
    return Why(Code.BOOKKEEPER_DELETED, text)


def reverted_info(
    run: TopicRun,
    ports: Ports,
    topic: Topic,
    uuids: Mapping[int, UUID],
    *,
    even_if_deleted: bool,
    alone_matters: bool = True,
) -> Change:
    """Offloads by ledger id that its topic's metadata is to forget; ``even_if_deleted``: those, too.

    ``alone_matters``: even beside an attempt of its broker, which that ends: what no broker can read is worse.
    """

    def one(node: Node, item: LedgerInfo) -> EditOutcome:
        offload = item.offload
        if offload is None:
            return EditOutcome(Outcome.REVERTED, _IN_BOOKKEEPER)
        if not offload.complete or offload.uuid != uuids[item.ledger_id]:
            return EditOutcome(
                Outcome.FAILED, Why(Code.COPY_DIFFERS, f"its topic names another offload by now, {offload.uuid}")
            )
        if offload.bookkeeper_deleted and not even_if_deleted:
            return EditOutcome(
                Outcome.FAILED,
                Why(Code.BOOKKEEPER_DELETED, "its copy in BookKeeper is listed as deleted: it stays offloaded"),
            )
        if why := _deleted_of_late(run, node, item):
            return EditOutcome(Outcome.REFUSED, why)
        if problem := without_bookkeeper(run, ports, topic, item.ledger_id):
            return EditOutcome(Outcome.FAILED, problem.put(f"it stays offloaded: {problem}"))
        return EditOutcome(Outcome.REVERTED, _IN_BOOKKEEPER, changes=True)

    def change(node: Node, info: ManagedLedgerInfo) -> tuple[ManagedLedgerInfo, dict[int, EditOutcome]]:
        if not alone_matters and (foreign := listed_ledgers.open_attempt(info)):
            return info, dict.fromkeys(uuids, EditOutcome(Outcome.FOREIGN_ATTEMPT, foreign))
        delisted = EditOutcome(Outcome.FAILED, Why(Code.DELISTED, "its topic does not list it any more"))
        said = dict.fromkeys(uuids, delisted)
        said |= {item.ledger_id: one(node, item) for item in info.ledgers if item.ledger_id in uuids}
        back = {ledger_id for ledger_id, word in said.items() if word.changes}
        ledgers = tuple(replace(item, offload=None) if item.ledger_id in back else item for item in info.ledgers)
        return replace(info, ledgers=ledgers), said

    return change


def without_bookkeeper(run: TopicRun, ports: Ports, topic: Topic, ledger_id: int) -> Why | None:
    """Why the copy in BookKeeper cannot be relied on; None if it can."""
    row = snapshot.ledger_rows(ports.store, [ledger_id], run.ledgers_root)[ledger_id]
    return listed_ledgers.copy_of(ledger_id, row, topic).problem
