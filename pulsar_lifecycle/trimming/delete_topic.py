"""The first phase for a whole topic: a message for each of its ledgers, then the broker's own DELETE.

Belongs here: which ledgers a topic names, and the order of sending, journalling and deleting. The broker deletes the
ledgers itself; the messages catch those that it fails to. If it refuses the topic or fails half-way, or if it cannot be
known whether it went, the messages find what is left in use and are kept. Offloaded copies that no deletion run could
delete get none. Not here: schema ledgers, which other partitions and the messages that consumers hold may need: the
orphan scan finds those that no locator and no entry index names.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pulsar_lifecycle.bundles.guard import others_loaded
from pulsar_lifecycle.copies import listed_ledgers
from pulsar_lifecycle.copies.listed_ledgers import BookKeeperCopy
from pulsar_lifecycle.errors import LifecycleError, OutcomeUnknown, RefusedBy
from pulsar_lifecycle.formats import ledger_path, managed_ledger
from pulsar_lifecycle.formats.deletion_message import LedgerComponent, PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.model import COMPACTION_CURSOR, Topic, cursor_name
from pulsar_lifecycle.ports import JournalRow, Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.topics import protection, snapshot
from pulsar_lifecycle.topics.first_phase import (
    NOT_COUNTED,
    LedgerOutcome,
    guarded,
    journal_row,
    mark_of,
    of_topic,
    send_messages,
)
from pulsar_lifecycle.topics.unloads import RunGuard
from pulsar_lifecycle.topics.write import SHADOWS_SEEN_FOR, TopicRun
from pulsar_lifecycle.trimming import trim_rules
from pulsar_lifecycle.values.codes import Code, Why, why_refused
from pulsar_lifecycle.values.outcomes import Outcome

TOPIC_DELETED = Why(Code.TOPIC_DELETED, "its topic is deleted")
"""Why of outcome ``removed``: the broker deleted the topic, and of its ledgers those that it could."""

BROKER_ALONE = Why(Code.MAY_GO, "its broker alone deletes it, with its topic: no message can be sent about it")
"""Why of outcome ``goes`` of a listed ledger whose tags, or whose copy's location, allow no message."""

SHOWN_NAMES = 10
"""Subscriptions that a dry run names, in the order of their names."""

_Named = tuple[Mapping[str, Any] | None, Sequence[PendingDeleteLedgerInfo], int]
"""A ledger's row of ``tables.BOOKKEEPER_LEDGERS``, None where BookKeeper does not have it; its messages; its bytes."""


Rule = Callable[[Node], Why | None]
"""Says of a topic's z-node, read now, why the topic stays beside what protects it; None if it may go."""


def _no_rule(_: Node) -> None:
    return None


def plan_topic_deletion(run: TopicRun, ports: Ports, topic: Topic, rule: Rule = _no_rule) -> list[LedgerOutcome]:
    """Every ledger that would go with :func:`delete_topic`, by a message or by the broker alone; writes nothing."""

    def look() -> list[LedgerOutcome]:
        node, named = _named(run, ports, topic, rule)
        text = f"its broker is to delete it, and its ledgers at once; {_subscriptions(run, ports, node, named)}"
        alone = [one for one in managed_ledger.decode(node.data).ledgers if one.ledger_id not in named]
        data = LedgerComponent.MANAGED_LEDGER.value
        rows = snapshot.ledger_rows(ports.store, [one.ledger_id for one in alone], run.ledgers_root)
        stored = {i: BookKeeperCopy(i, row).on_disk for i, row in rows.items()}
        return [
            *_outcomes(topic, named, Outcome.GOES, Why(Code.MAY_GO, "its topic is to be deleted")),
            *(
                LedgerOutcome(
                    str(topic), one.ledger_id, Outcome.GOES, BROKER_ALONE, one.size or 0, data, stored[one.ledger_id]
                )
                for one in alone
            ),
            of_topic(topic, Outcome.GOES, Code.MAY_GO, text),
        ]

    return guarded(topic, look)


def delete_topic(
    run: TopicRun,
    ports: Ports,
    guard: RunGuard,
    topic: Topic,
    force: bool,
    counted: Collection[int] | None = None,
    rule: Rule = _no_rule,
) -> list[LedgerOutcome]:
    """Send a message for every ledger that a topic names, then let its broker delete it.

    ``counted``: the ledgers that were counted against the caps; a topic that has others by now is refused. The row of
    ledger -1 says what became of the topic. ``rule`` is asked before the messages, and again before the request.
    Raises Paused, LeaseLost, Overloaded.
    """
    return guarded(topic, lambda: _delete(run, ports, guard, topic, force, counted, rule))


def _delete(
    run: TopicRun,
    ports: Ports,
    guard: RunGuard,
    topic: Topic,
    force: bool,
    counted: Collection[int] | None,
    rule: Rule,
) -> list[LedgerOutcome]:
    guard.check(ports.store)
    node, named = _named(run, ports, topic, rule)
    if counted is not None and not named.keys() | _ids(managed_ledger.decode(node.data)) <= set(counted):
        raise RefusedBy(trim_rules.Stays.NOT_COUNTED, f"{topic} has ledgers that {NOT_COUNTED}")
    if why := others_loaded(ports.admin, topic):
        raise RefusedBy(why.code, why.text)
    todo = [message for _, messages, _ in named.values() for message in messages]
    lengths = {i: length for i, (_, _, length) in named.items()}
    sent = send_messages(run, ports, todo, lengths, "its broker is asked to delete its topic next")
    unsent = next((one for one in sent if one.error is not None), None)
    if unsent:
        reason = f"nothing was deleted: the message of ledger {unsent.info.ledger_id} was not acknowledged"
        return _journalled(run, ports, topic, named, Outcome.LEFT, Why(Code.NOT_SENT, f"{reason}: {unsent.error}"))
    _journalled(run, ports, topic, named, Outcome.MARKED, Why(Code.ABOUT_TO, "its topic is about to be deleted"))
    try:
        _refuse(run, ports, topic, rule)
        ports.store.sync("/")
        again, now = snapshot.topic_node(ports.store, topic)  # last: where topics are many, those looks take minutes
        if (again.stat.czxid, _ids(now)) != (node.stat.czxid, _ids(managed_ledger.decode(node.data))):
            raise RefusedBy(Code.CHANGED_MEANWHILE, f"{topic} lists other ledgers by now: run again")
    except RefusedBy as refusal:
        why = why_refused(refusal).put(f"nothing was deleted: {refusal}")
        return _journalled(run, ports, topic, named, Outcome.LEFT, why)
    guard.check(ports.store)
    failure, unknown = "its z-node is still there", False
    try:
        ports.admin.delete_topic(topic, force)
    except LifecycleError as error:
        failure, unknown = str(error), isinstance(error, OutcomeUnknown)
    if snapshot.is_gone(ports, node, lambda: guard.check(ports.store), wait=unknown):
        return _journalled(run, ports, topic, named, Outcome.REMOVED, TOPIC_DELETED)
    why = Why(Code.TOPIC_STAYS, f"its topic is not deleted, so its messages will find it in use and be kept: {failure}")
    if unknown:
        why = Why(Code.OUTCOME_UNKNOWN, f"whether its broker still deletes its topic is not known: {failure}")
    had = [i for i, (row, _, _) in named.items() if row]
    nodes = ports.store.read([ledger_path.ledger_path(i, run.ledgers_root) for i in had])
    deleted = Why(Code.BROKER_DELETED, f"the broker deleted it, but not its topic: {failure}")
    gone = {i: deleted for i, now in zip(had, nodes, strict=True) if now is None}
    yet = ", yet" if unknown else ""
    text = f"the broker deleted {len(gone)} of its {len(had)} ledgers, but not the topic{yet}: {failure}; run again"
    left = Outcome.MARKED if unknown else Outcome.LEFT
    return _journalled(run, ports, topic, named, left, why, gone, why.put(text) if gone else why)


def _subscriptions(run: TopicRun, ports: Ports, node: Node, named: Mapping[int, _Named]) -> str:
    """Which durable subscriptions go with a topic, and which of them have unread messages, by what is persisted."""
    cursors = snapshot.cursors(ports.store, node.path)
    names = sorted(cursor_name(name) for name in cursors if name != COMPACTION_CURSOR)
    if not names:
        return "it has no durable subscription"
    found = f"its durable subscriptions ({len(names)}) go with it: {_some(names)}"
    try:
        positions = snapshot.positions(ports, run.ledgers_root, node.path, cursors)
    except RefusedBy as refusal:
        return f"{found}; whether messages are unread is not known: {refusal}"
    listed = managed_ledger.decode(node.data).ledgers
    copies = {i: BookKeeperCopy(i, row) for i, (row, _, _) in named.items()}
    unread = [
        name
        for name in names
        if not all(trim_rules.acknowledged(item, copies.get(item.ledger_id), positions[name]) for item in listed)
    ]
    if not unread:
        return f"{found}; all have read all"
    return f"{found}; messages are, or may be, unread by {_some(unread)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN_NAMES]) + (f" and {len(names) - SHOWN_NAMES} more" if names[SHOWN_NAMES:] else "")


def _ids(info: ManagedLedgerInfo) -> list[int]:
    return [item.ledger_id for item in info.ledgers]


def _refuse(run: TopicRun, ports: Ports, topic: Topic, rule: Rule, max_age: int = 0) -> tuple[Node, ManagedLedgerInfo]:
    """The topic's z-node, read now. Raises Refused if the topic must not go.

    The broker's DELETE takes the source's ledgers from a shadow topic that reads them, so before it those count that
    are made now: a look at them (all topics' z-nodes) may be ``max_age`` ms old.
    """
    ports.store.sync("/")
    node, info = snapshot.topic_node(ports.store, topic)
    protected = run.topic_rule(topic, snapshot.shadow_source(ports.store, topic, info), max_age)
    if why := protected or protection.deletion_rule(topic, run.context.of_whole_topics()) or rule(node):
        raise RefusedBy(why.code, why.text)
    return node, info


def _named(run: TopicRun, ports: Ports, topic: Topic, rule: Rule) -> tuple[Node, dict[int, _Named]]:
    """The topic's z-node, and every ledger that it and its cursors name and that is the topic's. Raises Refused."""
    node, info = _refuse(run, ports, topic, rule, SHADOWS_SEEN_FOR)
    cursors = snapshot.cursors(ports.store, node.path)
    listed = {item.ledger_id: item for item in info.ledgers}
    ids = sorted(listed.keys() | snapshot.named_by_cursors(ports, run.ledgers_root, node.path, cursors))
    now = ports.clock.now_ms()
    named: dict[int, _Named] = {}
    for ledger_id, row in snapshot.ledger_rows(ports.store, ids, run.ledgers_root).items():
        own = trim_rules.tagged_message(topic, row, now) if row else None
        messages = [own] if own else []
        offload = listed[ledger_id].offload if ledger_id in listed else None
        if offload and not listed_ledgers.copy_rule(offload, run.context):
            messages += trim_rules.data_messages(topic, listed[ledger_id], None, now)
        if messages:
            length = (row or {}).get("length") or 0
            size = (listed[ledger_id].size or 0) if ledger_id in listed else 0
            named[ledger_id] = row, messages, max(length, size)  # what is only offloaded weighs as much
    return node, named


def _outcomes(topic: Topic, named: Mapping[int, _Named], outcome: Outcome, why: Why) -> list[LedgerOutcome]:
    return [
        LedgerOutcome(str(topic), i, outcome, why, length, messages[0].component.value, BookKeeperCopy(i, row).on_disk)
        for i, (row, messages, length) in named.items()
    ]


def _journalled(
    run: TopicRun,
    ports: Ports,
    topic: Topic,
    named: Mapping[int, _Named],
    outcome: Outcome,
    why: Why,
    deleted: Mapping[int, Why] = {},
    of_all: Why | None = None,
) -> list[LedgerOutcome]:
    """Journal one row per ledger; returns them and one for the topic, whose why is ``of_all`` if that is given.

    ``deleted``: ledgers that the broker deleted all the same.
    """
    now = ports.clock.now_ms()
    outcomes = [replace(m, why=deleted.get(m.ledger_id, why)) for m in _outcomes(topic, named, outcome, why)]
    rows: list[JournalRow] = []
    for one, (_, messages, _) in zip(outcomes, named.values(), strict=True):
        rows.append(journal_row(run, one, messages[0].ledger_type, (mark_of(messages),), now))
    ports.journal.record(rows)
    return [
        *outcomes,
        LedgerOutcome(str(topic), -1, outcome if outcome == Outcome.REMOVED else Outcome.FAILED, of_all or why),
    ]
