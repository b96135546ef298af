"""When a partition is answered: its low watermark is kept with the topic, and what is below it is gone everywhere.

Belongs here: the answer's conditions, waiting for them. Not here: looking for a ledger (``absence.py``), deleting.
Source: KIP-107, "the result of a partition will be available within RequestTimeoutMs".
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.delete_records import cut_rules
from pulsar_lifecycle.delete_records.absence import DeletedLedger, had_others, look, wait_until_gone
from pulsar_lifecycle.delete_records.cut_rules import Refusal
from pulsar_lifecycle.delete_records.leftovers import (
    Earlier,
    Ledgers,
    ListedBefore,
    both,
    closing_open,
    copies_in,
    copies_of,
    left_before,
    listed_before,
    low_watermarks_of_others,
    pending_unloads_of,
    planned,
    unless_of_others,
    unless_pending,
)
from pulsar_lifecycle.delete_records.request import (
    NO_WATERMARK,
    Absence,
    DeleteRecordsResult,
    Lacks,
    Presence,
    TopicPartition,
    failed,
)
from pulsar_lifecycle.delete_records.times.compacted_views import holding_views
from pulsar_lifecycle.delete_records.times.readable_ledgers import ReadableLedger, readable_ledgers
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError
from pulsar_lifecycle.formats import ledger_metadata, managed_ledger
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.journal.archive import as_deleted, brought_back, last_archived, restored_ever
from pulsar_lifecycle.journal.first_phase_marks import asked_offloads, marked_ledgers
from pulsar_lifecycle.journal.intents import IntentState
from pulsar_lifecycle.journal.queries import dead_letter_reasons, filed_since, read_intent_states
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, MessagePosition, Topic
from pulsar_lifecycle.ports import Node, Unread
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.topics import low_watermark
from pulsar_lifecycle.topics.topic_run import topic_ports
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Outcome, Phase
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError

Row = Mapping[str, Any]
"""A row of ``RECORDS``."""


def answers(
    cluster: Cluster,
    rows: Sequence[Row],
    refused: Mapping[TopicPartition, Refusal | None],
    *,
    planned_at: int,
    wait_ms: int = 0,
    bookies: bool = False,
    listed: ListedBefore | None = None,
) -> dict[TopicPartition, DeleteRecordsResult]:
    """The result of every partition of a plan made at ``planned_at`` (ms). Read-only.

    What is not proven after ``wait_ms`` has error ``TIMEOUT``. ``refused``: what an apply found, None for a partition
    that became what the plan says. ``bookies``: every bookie that had a replica must say that it has no entry of what
    must be gone, and once more ``bookkeeper.flush_interval`` later, as far as ``wait_ms`` lets. That is not known where
    another installation deleted by a request, or one whose lake is lost. ``listed``: what scans before the plan tell.
    """
    with topic_ports(cluster, read_only=True, buckets=True) as ports:
        listed = listed or listed_before(cluster, ports, rows, planned_at)
        earlier = left_before(cluster, ports, rows, planned_at, listed, bookies=bookies)
        deadline = ports.clock.now_ms() + wait_ms
        root = cluster.settings.bookkeeper.ledgers_root
        flush_ms = int(cluster.settings.bookkeeper.flush_interval * 1000)
        where: dict[int, Absence] = {}
        while True:  # topics are read once more after the wait: one of them may be another one by then
            found, kept, going = _asked(ports, root, rows, refused, earlier)
            ledgers = {i: one for own in going.values() for i, one in own.items() if i not in where}
            if not ledgers:
                break
            if bookies:
                ledgers = _with_metadata(cluster, rows, planned_at, ledgers)
            ordered = [ledgers[i] for i in sorted(ledgers)]
            absent = wait_until_gone(ports, root, ordered, bookies=bookies, deadline_ms=deadline, flush_ms=flush_ms)
            where |= {one.ledger_id: one for one in absent}
        left = {i: one for own in going.values() for i, one in own.items()}
        deletable = [i for i in left if where[i].presence in _DELETABLE]
        sent = sent_at(cluster, deletable)
        unsent = set(deletable).difference(sent)
        if sent and queue_is_empty(ports):  # another installation took the messages, or they are lost
            still = look(ports, root, [left[i] for i in sorted(sent)], bookies=False)
            unsent |= {one.ledger_id for one in still if one.presence in _DELETABLE}
        back = brought_back(cluster.journal_reader, cluster.settings.cluster, unsent.difference(sent))
        dead = _dead_letters(cluster, deletable)
        retried = _retried(cluster, {i: at for i, at in sent.items() if i not in unsent and i not in dead})
        stuck = [name for name, own in going.items() if not own.keys().isdisjoint({*retried, *dead})]
        closing = closing_open(cluster, stuck)
        for name, own in kept.items():
            there = [where[i] for i in going.get(name, ()) if not where[i].gone]
            result = _result(own, there, unsent, back, retried, dead, closing.get(name, ""))
            trimmed = earlier.trimmed.get(name, {})  # nobody's undo would bring those back
            lost = copies_in({i: one for i, one in going.get(name, {}).items() if i not in trimmed})
            found[Topic.parse(name)] = replace(result, lost_copies=lost)
        for topic, refusal in holding_views(ports, root, _below(found)).items():  # last: one may be made meanwhile
            found[topic] = failed(refusal.error, refusal.why)
        pending = pending_unloads_of(ports.store)
    since = [(row, kept[row["topic"]].gone(row)) for row in rows if row["topic"] in kept]
    copyless = {row["topic"] for row, gone in since if earlier.copyless(row, gone)}
    others, known = low_watermarks_of_others(cluster, rows), dict[TopicPartition, DeleteRecordsResult]()
    for topic, result in found.items():
        trimmed, before, copies = str(topic) not in earlier.trimmed, others.get(str(topic)), str(topic) in copyless
        if result:
            known[topic] = unless_of_others(result, before, trimmed=trimmed, copies=copies, bookies=bookies)
    return {topic: unless_pending(result) if topic in pending else result for topic, result in known.items()}


def _below(results: Mapping[TopicPartition, DeleteRecordsResult | None]) -> dict[TopicPartition, MessagePosition]:
    """Before which position nothing may be readable anywhere, of each partition that has no error."""
    done = [(topic, one, one.low_watermark) for topic, one in results.items() if one]
    return {t: min(at, one.first_readable or at) for t, one, at in done if isinstance(at, MessagePosition)}


def any_awaited(rows: Sequence[Row], refused: Mapping[TopicPartition, Refusal | None]) -> bool:
    """Whether any partition of a plan can be answered without an error, now or later."""
    return any(_refused(row, refused) is None for row in rows)


def look_now(
    cluster: Cluster,
    rows: Sequence[Row],
    refused: Mapping[TopicPartition, Refusal | None],
    planned_at: int,
    listed: ListedBefore,
    *,
    bookies: bool,
) -> list[Absence]:
    """Where what left its topic is, of topics that lack nothing else: by bookies, or else by buckets. Read-only."""
    with topic_ports(cluster, read_only=True, buckets=True) as ports:
        root = cluster.settings.bookkeeper.ledgers_root
        earlier = left_before(cluster, ports, rows, planned_at, listed, bookies=bookies)
        _, _, going = _asked(ports, root, rows, refused, earlier)
        ledgers = {i: one for own in going.values() for i, one in own.items()}
        if bookies:
            ledgers = {i: replace(one, copies=()) for i, one in ledgers.items()}
            ledgers = _with_metadata(cluster, rows, planned_at, ledgers)
        return look(ports, root, [ledgers[i] for i in sorted(ledgers)], bookies=bookies)


def sent_at(cluster: Cluster, ledgers: Collection[int]) -> dict[int, int]:
    """When (ms) the last message was sent that asks for the deletion of a ledger or its copy, by our journal.

    A ledger is missing where no message is known that asks for it, or where a deletion run has ended that message.
    """
    if not ledgers:
        return {}
    journal, name, asked = cluster.journal_reader, cluster.settings.cluster, frozenset(ledgers)
    found: dict[int, int] = {}
    for (ledger_id, _), at in chain(marked_ledgers(journal, name).items(), asked_offloads(journal, name).items()):
        if ledger_id in asked:
            found[ledger_id] = max(at, found.get(ledger_id, at))
    return found


def _retried(cluster: Cluster, sent: Mapping[int, int]) -> dict[int, str]:
    """Why the last deletion run that took the message of a ledger sent it back, by our journal.

    Nothing of a message that became a dead letter and was sent again since: no run has taken it.
    """
    if not sent:
        return {}
    phase, outcome = pc.field("phase"), pc.field("outcome")
    back = (phase == Phase.DELETE) & (outcome == Outcome.RETRYING)
    anew = (phase == Phase.REDRIVE) & (outcome == Outcome.SENT)
    wanted = (pc.field("cluster") == cluster.settings.cluster) & (back | anew)
    wanted = wanted & pc.field("ledger_id").isin(sorted(sent)) & filed_since(min(sent.values()))
    columns = ["ledger_id", "action", "phase", "reason", "at"]
    rows = cluster.journal_reader.find(wanted, columns).sort_by("at").to_pylist()
    last = {(row["ledger_id"], row["action"]): row for row in rows if row["at"] >= sent[row["ledger_id"]]}
    return {ledger_id: row["reason"] for (ledger_id, _), row in last.items() if row["phase"] == Phase.DELETE}


def _dead_letters(cluster: Cluster, ledgers: Collection[int]) -> dict[int, str]:
    """Of these ledgers, those with a message that is a dead letter, and why it became one."""
    if not ledgers:
        return {}
    journal, name = cluster.journal_reader, cluster.settings.cluster
    intents = read_intent_states(journal, name, pa.array(sorted(ledgers), pa.int64()))
    dead = intents.filter(pc.equal(intents.column("state"), IntentState.DEAD_LETTER)).to_pylist()
    if not dead:
        return {}
    why = dead_letter_reasons(journal, name, min(row["at"] for row in dead))
    return {row["ledger_id"]: why[row["ledger_id"], row["action"]].text for row in dead}


def queue_is_empty(ports: Ports) -> bool:
    """Whether no message waits for a deletion run, due or not; False where brokers do not say it."""
    try:
        return not ports.queue.backlog()
    except LifecycleError:
        return False


def _asked(
    ports: Ports,
    root: str,
    rows: Sequence[Row],
    refused: Mapping[TopicPartition, Refusal | None],
    earlier: Earlier,
) -> tuple[dict[TopicPartition, DeleteRecordsResult | None], Mapping[str, _Kept], Mapping[str, Ledgers]]:
    """Results that are known, what the other topics keep, and what must be gone of those that lack nothing."""
    found = {Topic.parse(row["topic"]): _refused(row, refused) for row in rows}
    asked = [row for row in rows if found[Topic.parse(row["topic"])] is None]
    kept = _kept(ports, root, asked)
    answered = [(row, one) for row in asked if not (one := kept[row["topic"]]).lacks]
    going = {row["topic"]: _ledgers(row, one, earlier.of(row["topic"], one.listed)) for row, one in answered}
    return found, kept, going


def _refused(row: Row, refused: Mapping[TopicPartition, Refusal | None]) -> DeleteRecordsResult | None:
    if row["error"] is not None:
        text = f"{row['reason']} ({_OF_THE_PLAN})"
        return DeleteRecordsResult(NO_WATERMARK, RecordsError(row["error"]), text, row["code"])
    refusal = refused.get(Topic.parse(row["topic"]))
    return failed(refusal.error, refusal.why) if refusal else None


@dataclass(frozen=True, slots=True)
class _Kept:
    """What a topic's z-node says of the low watermark ``asked`` for, or what it ``lacks`` for an answer (``error``).

    ``asked`` is what the plan proves, so that is answered: a later request may have raised the one that is kept, and
    have taken ledgers off the list that this plan does not know. ``stays``: the ledger that was to be rolled and go,
    and has messages above the low watermark after all; or -1. ``left``: the ledger that the low watermark is in the
    middle of, if its topic does not list it any more; or -1. Its broker trimmed it, or the topic was deleted; what is
    below the low watermark is gone once that ledger is. ``first_readable``: from where on brokers can show messages.
    ``listed``: ledgers that the topic lists.
    """

    asked: MessagePosition
    lacks: Why | None = None
    stays: int = -1
    left: int = -1
    first_readable: MessagePosition | None = None
    error: RecordsError = RecordsError.TIMEOUT
    listed: frozenset[int] = frozenset()

    def gone(self, row: Row) -> set[int]:
        """What its topic listed when its row was planned, has no message that is to stay, and is listed no more."""
        return {*row["ledgers"], *([self.left] if self.left >= 0 else [])} - self.listed


_OF_THE_PLAN = "found by the plan, which leaves it out: once that has changed, plan again"
"""Of a partition that no apply begins with: applying the same plan again is no help."""
_DELETABLE = (Presence.Z_NODE, Presence.OBJECT)
"""Where a ledger is that a deletion run has yet to delete."""
_LEAKED_PLAN = "apply a plan of leaked ledgers (job `apply_plan`; none younger than orphans.grace_period)"
_BUCKET_SWEEP = "sweep the bucket (jobs `inventory_objects`, `sweep_objects`)"
_WAYS_OUT = {
    Presence.BOOKIE_UNANSWERED: "a bookie that was decommissioned never answers: have its disks wiped, and ask without "
    "`--wait-for-bookies`",
    Presence.OBJECT_UNREAD: "the bucket must answer, and be one of object_store.buckets in these settings",
}
"""What may be wrong where waiting is no help."""


def _result(
    kept: _Kept,
    there: Sequence[Absence],
    unsent: Collection[int],
    back: Collection[int],
    retried: Mapping[int, str],
    dead: Mapping[int, str],
    closing: str,
) -> DeleteRecordsResult:
    if kept.lacks:
        return failed(kept.error, kept.lacks)
    if not there:
        return DeleteRecordsResult(kept.asked, first_readable=kept.first_readable or kept.asked)
    first = there[0]
    code: StrEnum = first.presence
    where = f" ({', '.join(first.where)})" if first.where else ""
    text = f"{len(there)} of its ledgers are not proven gone, the first: {first.ledger_id}, {first.presence}{where}; "
    if given_up := [one.ledger_id for one in there if one.ledger_id in dead]:
        code = Lacks.REDRIVE
        text += (
            f"the messages of {len(given_up)} of them became dead letters, ledger {given_up[0]}: {dead[given_up[0]]}"
            f"{closing}; once that is mended, send them again (job `redrive_dead_letters`), then ask again"
        )
    elif restored := [one.ledger_id for one in there if one.ledger_id in back]:
        code = Lacks.RESTORED
        text += (
            f"an undo brought {len(restored)} of them back, the first: {restored[0]}: if they are to go all the same, "
            f"{_LEAKED_PLAN}, then ask again"
        )
    elif leaked := [one.ledger_id for one in there if one.ledger_id in unsent]:
        code = Lacks.MESSAGE
        stored = all(one.presence is Presence.OBJECT for one in there if one.ledger_id in leaked)
        text += (
            f"no message of ours asks for {len(leaked)} of them, the first: {leaked[0]}: "
            f"{_BUCKET_SWEEP if stored else _LEAKED_PLAN}, or have the installation whose message asks for them run "
            "`delete_pending`, then ask again"
        )
    elif any(one.presence in _DELETABLE for one in there):
        code = Lacks.DELETION
        text += "run `delete_pending`, or wait for it, then ask again"
        if hindered := [i for one in there if (i := one.ledger_id) in retried]:
            code = Lacks.SENT_BACK
            text += f"; the last deletion run sent {len(hindered)} of them back, ledger {hindered[0]}: "
            text += retried[hindered[0]] + closing
    else:
        text += "wait, then ask again"
        text += "".join(
            f"; {way}" for presence, way in _WAYS_OUT.items() if any(one.presence is presence for one in there)
        )
    return failed(RecordsError.TIMEOUT, Why(code, text), there)


def _kept(ports: Ports, root: str, rows: Sequence[Row]) -> dict[str, _Kept]:
    """By topic."""
    ports.store.sync("/")
    paths = [f"{MANAGED_LEDGERS_ROOT}/{Topic.parse(row['topic']).managed_ledger}" for row in rows]
    nodes = ports.store.read(paths)
    infos = {row["topic"]: _info(path, node) for row, path, node in zip(rows, paths, nodes, strict=True)}
    replaced = {
        row["topic"]: refusal
        for row, node in zip(rows, nodes, strict=True)
        if isinstance(node, Node) and (refusal := cut_rules.replaced(row, node.stat.czxid, node.stat.ctime))
    }
    asked = {row["topic"]: MessagePosition.parse(row["low_watermark"]) for row in rows}
    rolled = {
        row["topic"]: info
        for row in rows
        if row["rolls"] and isinstance(info := infos[row["topic"]], ManagedLedgerInfo)
        if any(item.ledger_id == asked[row["topic"]].ledger_id for item in info.ledgers)
    }
    ends = dict(zip(rolled, readable_ledgers(ports, root, list(rolled.values())), strict=True)) if rolled else {}
    found: dict[str, _Kept] = {}
    for row in rows:
        topic, info = row["topic"], infos[row["topic"]]
        if topic in replaced:
            found[topic] = _Kept(asked[topic], replaced[topic].why, error=replaced[topic].error)
        elif isinstance(info, Why):
            found[topic] = _Kept(asked[topic], info)
        elif info is None:
            error = RecordsError.UNKNOWN_PARTITION
            found[topic] = _Kept(asked[topic], Why(error, f"{topic} does not exist any more"), error=error)
        else:
            found[topic] = _kept_by(row, asked[topic], info, ends.get(topic, ()))
    return found


def _info(path: str, node: Node | Unread | None) -> ManagedLedgerInfo | Why | None:
    """What a topic's z-node holds, or why nobody knows; None if there is none."""
    if node is None:
        return None
    if isinstance(node, Unread):
        return Why(Code.TOPIC_UNREAD, f"{path} could not be read: {node.reason}")
    try:
        return managed_ledger.decode(node.data)
    except CorruptFormat as error:
        return Why(Code.TOPIC_UNREAD, str(error))


def _kept_by(
    row: Row, asked: MessagePosition, info: ManagedLedgerInfo, ledgers: Sequence[ReadableLedger] | LifecycleError
) -> _Kept:
    try:
        watermark = low_watermark.of(info.properties)
    except CorruptFormat as error:
        return _Kept(asked, Why(Code.TOPIC_UNREAD, str(error)))
    if row["end"] is None:
        return _Kept(asked)  # it had no ledger: nothing is below, and nothing is kept with the topic
    if watermark is None or watermark < asked:
        text = f"its low watermark is {watermark or 'not kept yet'}, {asked} is asked for"
        return _Kept(asked, Why(Lacks.NOT_KEPT, text))
    if isinstance(ledgers, LifecycleError):
        text = f"whether ledger {asked.ledger_id} may go is not known: {ledgers}"
        return _Kept(asked, Why(Code.LENGTH_UNKNOWN, text))
    above = any(one.ledger_id == asked.ledger_id and one.last_entry_id >= asked.entry_id for one in ledgers)
    stays = asked.ledger_id if above else -1
    listed = frozenset(item.ledger_id for item in info.ledgers)
    if left := listed.intersection(row["ledgers"]) - {stays}:
        return _Kept(asked, Why(Lacks.LISTED, f"its topic lists ledger {min(left)} still"))
    within = asked.ledger_id if (asked.entry_id, asked.batch_index) > (0, 0) else -1
    cut_off = within if within not in listed else -1
    first = MessagePosition(min(listed), 0) if listed else asked
    return _Kept(asked, None, stays, cut_off, first, listed=listed)


def _ledgers(row: Row, kept: _Kept, earlier: Ledgers) -> Ledgers:
    """What must be gone: what is planned but for one ledger, and what left the list in ``earlier`` runs or since.

    The ledger that the low watermark lies in may have been taken off the list, and put back by a restore.
    """
    left = {kept.left: DeletedLedger(kept.left, None, copies_of(row).get(kept.left, ()))} if kept.left >= 0 else {}
    own = planned(row) | left
    before = {i: one for i, one in earlier.items() if i != kept.asked.ledger_id or i in own}
    return {i: one for i, one in both(both(left, before), planned(row)).items() if i != kept.stays}


def _with_metadata(cluster: Cluster, rows: Sequence[Row], planned_at: int, ledgers: Ledgers) -> Ledgers:
    """The same ledgers with their last metadata, as the archive has it: it names their bookies.

    It counts only if the ledger was deleted as it was archived, and has not come back since. What the plan names must
    have been archived later: it may have come back before, and have been replicated to others. Another cluster's ledger
    of the same id says nothing of ours, and its bookies may have the names of ours. Others may have had any that an
    undo touched, as its z-node counts anew, whether it is archived or there.
    """
    name = cluster.settings.cluster
    restored = restored_ever(cluster.journal_reader, name, ledgers)
    found = {i: replace(one, others=i in restored) for i, one in ledgers.items()}
    nodes = [n for n in last_archived(cluster.journal_reader, name, ledger_ids=list(ledgers)) if n.cluster == name]
    then = {i for row in rows for i in (row["ledger_id"], *row["ledgers"], *row["leftovers"])}
    nodes = [node for node in nodes if node.at >= planned_at or node.ledger_id not in then]
    nodes = as_deleted(cluster.journal_reader, name, nodes)
    for node in nodes:
        try:
            metadata = ledger_metadata.decode(node.data)
        except LifecycleError:
            continue
        one = found[node.ledger_id]
        others = one.others or had_others(node.version, metadata)
        found[node.ledger_id] = replace(one, metadata=metadata, others=others)
    return found
