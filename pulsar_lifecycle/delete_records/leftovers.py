"""What an answer must find gone, as values: what goes by a plan, and what left its topic's list before.

Whoever asks again must not be told that all is gone while what an earlier run took off the list waits in the queue.
BookKeeper's own tags tell whose they are, as the newest scan read them. What left a list since, and which copies wait,
our journal has. Not here: looking whether it is gone (``absence.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pyarrow.compute as pc

from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.delete_records.absence import DeletedLedger, without_entries
from pulsar_lifecycle.delete_records.partition import PartitionView
from pulsar_lifecycle.delete_records.partition_effects import Raised
from pulsar_lifecycle.delete_records.request import DeleteRecordsResult, Lacks, NotAsked, TopicPartition, failed
from pulsar_lifecycle.delete_records.times.compacted_views import left_views
from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.formats import ledger_path
from pulsar_lifecycle.formats.ledger_metadata import COMPONENT_COMPACTED_LEDGER, COMPONENT_MANAGED_LEDGER
from pulsar_lifecycle.formats.offload_object import S3_DRIVERS
from pulsar_lifecycle.journal.archive import restored_ever
from pulsar_lifecycle.journal.first_phase_marks import Marks, marked_offloads, marks_of
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.model import MessagePosition, Topic
from pulsar_lifecycle.ports import MetadataStore
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.control import BrokenPendingUnload
from pulsar_lifecycle.runs.journal_rows import details_of
from pulsar_lifecycle.scan.listed_ever import AskedTopic, Listed, ListedLedger, ever_listed
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.epoch import Epoch, last_covered
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.outcomes import Outcome, Phase
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from pulsar_lifecycle.values.plans.plan_kind import PlanKind, kind_of

_DAY_MS = 86_400_000

Row = Mapping[str, Any]
"""A row of a plan (``RECORDS``)."""
Ledgers = dict[int, DeletedLedger]
"""Ledgers that must be gone, by their ids."""


def copies_stored(copies: Iterable[Location]) -> list[dict[str, Any]]:
    """Column ``copies`` of a row."""
    return [{"ledger_id": one.ledger_id, "bucket": one.bucket, "uuid": str(one.uuid)} for one in copies]


def planned(row: Row) -> Ledgers:
    """What goes by a row and what it found left before, with the offloaded copies of both."""
    copies = copies_of(row)
    return {i: DeletedLedger(i, None, copies.get(i, ())) for i in (*row["ledgers"], *row["leftovers"])}


def copies_in(ledgers: Ledgers) -> int:
    """How many offloaded copies they have: no undo brings back what is deleted of one."""
    return sum(len(one.copies) for one in ledgers.values())


def copies_of(row: Row) -> Mapping[int, tuple[Location, ...]]:
    """The offloaded copies that a row names, by ledger."""
    found: dict[int, tuple[Location, ...]] = {}
    for one in row["copies"]:
        at = Location(one["bucket"], UUID(one["uuid"]), one["ledger_id"])
        found[at.ledger_id] = (*found.get(at.ledger_id, ()), at)
    return found


def add_leftovers(
    cluster: Cluster,
    epoch: Epoch,
    ports: Ports,
    rows: Sequence[dict[str, Any]],
    views: Mapping[TopicPartition, PartitionView],
) -> None:
    """Fill columns ``leftovers`` and ``lost_copies`` of rows of a plan that have no error, and add to their ``copies``.

    ``views``: the partitions of those rows, as they were when they were planned.
    """
    going = [row for row in rows if row["error"] is None]
    view_of = {str(topic): view for topic, view in views.items()}
    uncompacted = [row["topic"] for row in going if view_of[row["topic"]].compacted is None]
    since = epoch.started_at - _DAY_MS  # clocks may differ
    found = left_lists(cluster, going, since, epoch)
    for topic, ledger_id in _compacted(cluster, epoch, uncompacted):
        found.setdefault(topic, {})[ledger_id] = DeletedLedger(ledger_id, None)
    listed = {topic: {item.ledger_id for item in view.info.ledgers} for topic, view in view_of.items()}
    asked = [(topic, i) for topic, own in found.items() for i in sorted(own.keys() - listed[topic])]
    root = cluster.settings.bookkeeper.ledgers_root
    nodes = ports.store.read([ledger_path.ledger_path(i, root) for _, i in asked])
    left: dict[str, list[int]] = {}
    for (topic, ledger_id), node in zip(asked, nodes, strict=True):
        if found[topic][ledger_id].copies or (node is not None and not without_entries(node)):
            left.setdefault(topic, []).append(ledger_id)
    for row in going:
        row["leftovers"] = left.get(row["topic"], [])
        row["copies"] += copies_stored(copy for i in row["leftovers"] for copy in found[row["topic"]][i].copies)
        row["lost_copies"] = copies_in(planned(row))


@dataclass(frozen=True, slots=True)
class Earlier:
    """Ledgers that left their topics' lists, by who says so; :meth:`of` leaves out what a topic lists now.

    ``journalled``: our journal says that they left. ``tagged``: BookKeeper has them, tagged with the topic.
    ``trimmed``: brokers trimmed them; topics are missing of which not all is known. ``ours``: each topic with a ledger
    that our runs took off its list.
    """

    journalled: Mapping[str, Ledgers]
    ours: Collection[tuple[str, int]]
    tagged: Mapping[str, Ledgers]
    trimmed: Mapping[str, Ledgers]

    def of(self, topic: str, listed: Collection[int]) -> Ledgers:
        """Of a topic that lists these ledgers now."""
        there = both(self.tagged.get(topic, {}), self.trimmed.get(topic, {}))
        return {i: one for i, one in there.items() if i not in listed} | self.journalled.get(topic, {})

    def copyless(self, row: Row, gone: Collection[int]) -> bool:
        """Whether brokers trimmed any of these ledgers since the plan, which names no copy: it may have one by then."""
        named = copies_of(row)
        return any((row["topic"], i) not in self.ours and i not in named for i in gone)


@dataclass(frozen=True, slots=True)
class ListedBefore:
    """What topics ever listed below the low watermarks of rows, where that is known, and the newest scan before."""

    newest: Epoch | None
    ledgers: Mapping[str, Listed]


def listed_before(cluster: Cluster, ports: Ports, rows: Sequence[Row], planned_at: int) -> ListedBefore:
    """By the covered scans that are kept and ended when the plan was made, at ``planned_at`` (ms), or before.

    As long as they are kept it does not change. It may read all of them: whoever looks again keeps it.
    """
    asked = {row["topic"]: _asked_topic(row) for row in rows if row["error"] is None}
    fingerprint = cluster_fingerprint(ports.store, cluster.settings.bookkeeper.ledgers_root)
    epochs = cluster.lake.epochs(fingerprint) if asked else []
    epochs = [one for one in epochs if one.covered and one.finished_at <= planned_at]
    return ListedBefore(epochs[-1] if epochs else None, ever_listed(cluster, epochs, asked))


def left_before(
    cluster: Cluster, ports: Ports, rows: Sequence[Row], planned_at: int, listed: ListedBefore, *, bookies: bool
) -> Earlier:
    """Of the rows that have no error; a ledger may have been offloaded since the plan, too."""
    going = [row for row in rows if row["error"] is None]
    tagged = tagged_since(cluster, ports, going, planned_at, bookies=bookies)
    marks = marks_of(cluster.journal_reader, cluster.settings.cluster, [row["topic"] for row in going]) if going else []
    removed = {one for one, outcome in dict(marks).items() if outcome == Outcome.REMOVED}
    # what a run left, or an undo brought back, brokers may have trimmed since
    put_back = restored_ever(cluster.journal_reader, cluster.settings.cluster, {i for _, i in removed})
    ours = {(topic, i) for topic, i in removed if i not in put_back}
    trimmed = _trimmed_by_brokers(cluster, going, ours, listed)
    return Earlier(left_lists(cluster, going, marks=marks), ours, tagged, trimmed)


def left_lists(
    cluster: Cluster, rows: Sequence[Row], since: int = 0, epoch: Epoch | None = None, marks: Marks | None = None
) -> dict[str, Ledgers]:
    """By topic, what left its list below the low watermark that a row plans, with the copies that wait for a deletion.

    By our journal, at ``since`` (ms) or later (or by these ``marks``), or was about to; what waits, whenever it left.
    With ``epoch`` also by the tags that this scan read. The ledger that the low watermark lies in is among them, if it
    left.
    """
    below = {row["topic"]: MessagePosition.parse(row["low_watermark"]) for row in rows}
    if not below:
        return {}
    if marks is None:
        marks = marks_of(cluster.journal_reader, cluster.settings.cluster, below, since)
    left = [one for one, outcome in marks if outcome in _OFF] + (_tagged(cluster, epoch, below) if epoch else [])
    copies = _waiting_copies(cluster, below)  # also where these settings name no bucket: those of the apply did
    found: dict[str, Ledgers] = {}
    for topic, one in [*((topic, DeletedLedger(i, None)) for topic, i in left), *copies]:
        if MessagePosition(one.ledger_id, 0) < below[topic]:
            own = found.setdefault(topic, {})
            own[one.ledger_id] = _joined(own.get(one.ledger_id, one), one)
    return found


def tagged_since(
    cluster: Cluster, ports: Ports, rows: Sequence[Row], planned_at: int, *, bookies: bool
) -> dict[str, Ledgers]:
    """By topic, its ledgers below the low watermark that a row plans, listed or not, by the tags that a scan read.

    By the newest one and the newest that is covered, if they ended after the plan was made, at ``planned_at`` (ms):
    else the plan knows them. A broker may have begun to delete one of them, and have lost that, after the scan that the
    plan rests on. So it may have left a compacted view behind. With ``bookies`` also by the scan that the plan rests
    on: a broker may have deleted one of them before the plan, and bookies have it still.
    """
    below = {row["topic"]: MessagePosition.parse(row["low_watermark"]) for row in rows}
    root = cluster.settings.bookkeeper.ledgers_root
    fingerprint = cluster_fingerprint(ports.store, root)
    epochs = cluster.lake.epochs(fingerprint) if below else []
    newest = {one.epoch_id: one for one in (*epochs[-1:], last_covered(epochs, fingerprint)) if one}
    since = [one for one in newest.values() if one.finished_at > planned_at]
    before = last_covered([one for one in epochs if one.finished_at <= planned_at], fingerprint) if bookies else None
    found: dict[str, Ledgers] = {}
    for epoch in (*since, *filter(None, [before])):
        for topic, ledger_id in _tagged(cluster, epoch, below):
            if MessagePosition(ledger_id, 0) < below[topic]:
                found.setdefault(topic, {})[ledger_id] = DeletedLedger(ledger_id, None, tagged=True)
    views: dict[TopicPartition, set[int]] = {}
    for topic, ledger_id in (one for epoch in since for one in _compacted(cluster, epoch, sorted(below))):
        views.setdefault(Topic.parse(topic), set()).add(ledger_id)
    for topic, left in left_views(ports, root, views, {Topic.parse(one): at for one, at in below.items()}).items():
        found.setdefault(str(topic), {}).update({i: DeletedLedger(i, None) for i in left})
    return found


def closing_open(cluster: Cluster, topics: Collection[str]) -> dict[str, str]:
    """By topic, a ledger that is on no list and was never closed, by the newest scan, and what closes it, in words.

    As long as it is open, none of what left the list is deleted, unless a write of ours came before the load that
    left it there.
    """
    newest = cluster.lake.epochs(cluster=cluster.settings.cluster)[-1:] if topics else []
    found: dict[str, str] = {}
    for epoch in newest:
        with suppress(NotFound):  # a scan that failed before it judged
            written = sorted(set(topics) - cluster.lake.context(epoch.epoch_id).overtaken_topics) or [""]
            where = pc.field("finding").isin([Finding.OPEN, Finding.OPEN_ORPHAN]) & pc.field("topic").isin(written)
            parts = cluster.parts(epoch.epoch_id, "findings")
            for batch in cluster.lake.batches(parts, ["topic", "ledger_id", "finding"], where):
                for row in batch.to_pylist():
                    young = row["finding"] == Finding.OPEN  # a compaction may be writing it
                    once = f"once a scan finds it {Finding.OPEN_ORPHAN}, " if young else ""
                    close = f"{once}`bookkeeper shell readledger -ledgerid {row['ledger_id']} -r` closes it"
                    found[row["topic"]] = f"; ledger {row['ledger_id']} is on no list and open: {close}"
    return found


def forbidding(cluster: Cluster, rows: Sequence[Row]) -> list[Row]:
    """The same rows; those that forbid an undo have in ``leftovers`` all that left the list before, by our journal.

    What earlier runs deleted can be undone as long as bookies have it, whether or not it was there for the plan.
    """
    earlier = left_lists(cluster, [row for row in rows if row["no_undo"]])
    return [{**row, "leftovers": sorted({*row["leftovers"], *earlier.get(row["topic"], ())})} for row in rows]


def low_watermarks_of_others(cluster: Cluster, rows: Sequence[Row]) -> dict[str, str]:
    """By topic, a low watermark that it had by no request that our journal knows, when a row was planned or before.

    Another installation, or a lake that is lost, knows what was deleted below it. An apply writes down that it found
    one (``before`` of phase ``raise``): the next plan finds a low watermark of ours.
    """
    going = {row["topic"]: row for row in rows if row["error"] is None}
    if not going:
        return {}
    mine = pc.field("topic").isin(sorted(going)) & (pc.field("cluster") == cluster.settings.cluster)
    requests = mine & pc.field("phase").isin([Phase.RAISE, Phase.MARK])
    columns = ["topic", "phase", "outcome", "plan_id", "detail", "at"]
    begun, ended, raised = set[tuple[str, str]](), set[tuple[str, str]](), set[tuple[str, str]]()
    others: dict[str, str] = {}
    for row in cluster.journal_reader.find(requests, columns).sort_by("at").to_pylist():
        topic, one = row["topic"], (row["topic"], row["plan_id"])
        if kind_of(row["plan_id"]) not in _REQUESTS or row["at"] < going[topic]["ctime"]:  # of another one of its name
            continue
        if row["phase"] == Phase.MARK:
            begun.add(one)
            continue
        if (detail := details_of(Raised, row["detail"])) is None:
            continue
        if detail.before:
            others.setdefault(topic, detail.before)
        elif row["outcome"] in (Outcome.BEGUN, Outcome.DONE):  # what was begun may be done, and its run killed then
            ended.add(one)
            raised.add((topic, detail.low_watermark))
    raised |= _planned_marks(cluster, begun - ended)
    for topic, row in going.items():
        if (watermark := row["old_low_watermark"]) and (topic, watermark) not in raised:
            others.setdefault(topic, watermark)
    return others


def unless_of_others(
    result: DeleteRecordsResult, before: str | None, *, trimmed: bool, copies: bool, bookies: bool
) -> DeleteRecordsResult:
    """An answer, with what nobody was asked for it; ``before``: the low watermark it had by no request of ours.

    Whose bookies would have to be asked is not known then. ``trimmed``: brokers may have trimmed what is not known.
    ``copies``: they have trimmed what may have copies that are not known.
    """
    if result.error:
        return result
    if before is None or not bookies:
        parts = {NotAsked.TRIMMED: trimmed, NotAsked.COPIES: copies, NotAsked.OTHERS: before is not None}
        return replace(result, not_asked=tuple(one for one, is_so in parts.items() if is_so))
    text = (
        f"its low watermark was {before} by no request that this journal knows: what that deleted is not known here, "
        "and bookies may have it; ask the installation that deleted it, or ask without `--wait-for-bookies`"
    )
    return failed(RecordsError.TIMEOUT, Why(Lacks.REQUEST, text))


def pending_unloads_of(store: MetadataStore) -> set[TopicPartition]:
    """Topics that were written while they were loaded, and are to be unloaded."""
    found = control.pending_unloads(store)
    return {one.topic for one in found if one.topic and (isinstance(one, BrokenPendingUnload) or one.loaded)}


def unless_pending(result: DeleteRecordsResult) -> DeleteRecordsResult:
    """An answer of a topic that is to be unloaded: until then its broker may show what has left the list."""
    text = "an unload of it is pending (`pulsar-lifecycle status`), and until then its broker may show what went"
    if result.error:
        named = result.code == Code.UNLOAD_PENDING
        return result if named else replace(result, reason=f"{result.reason}; {text}")
    return failed(RecordsError.BROKER_FAILED, Why(Code.UNLOAD_PENDING, f"{text}: run again"))


_OFF = (Outcome.MARKED, Outcome.REMOVED)
_REQUESTS = (PlanKind.DELETE_RECORDS, PlanKind.CONSUMED_RECORDS)


def _planned_marks(cluster: Cluster, begun: Collection[tuple[str, str]]) -> set[tuple[str, str]]:
    """Topics with the low watermarks that runs by these plans may have raised: they ended before they could say so.

    Those of a plan that is not kept any more are missing.
    """
    found = set[tuple[str, str]]()
    for plan_id in {plan_id for _, plan_id in begun}:
        with suppress(NotFound):
            rows = cluster.lake.delete_records_plan(plan_id)[1].to_pylist()
            found |= {(row["topic"], row["low_watermark"]) for row in rows if (row["topic"], plan_id) in begun}
    return found


def both(some: Ledgers, others: Ledgers) -> Ledgers:
    """All of them, each with every copy of it."""
    return {i: _joined(some.get(i, one), others.get(i, one)) for i, one in (some | others).items()}


def _joined(one: DeletedLedger, same: DeletedLedger) -> DeletedLedger:
    copies = tuple(dict.fromkeys((*one.copies, *same.copies)))
    return replace(one, copies=copies, tagged=one.tagged and same.tagged)


def _asked_topic(row: Row) -> AskedTopic:
    before = MessagePosition.parse(row["low_watermark"]).ledger_id
    return AskedTopic(row["czxid"], row["ctime"], before, frozenset(row["ledgers"]))


def _trimmed_by_brokers(
    cluster: Cluster, rows: Sequence[Row], ours: Collection[tuple[str, int]], listed: ListedBefore
) -> dict[str, Ledgers]:
    """What brokers took off each topic's list below the low watermark that a row plans; ``ours`` is what we took.

    A topic is missing if not all of its ledgers and offloaded copies are known. A copy that no list names is known if
    the newest scan has an inventory of the buckets.
    """
    left: dict[str, dict[int, ListedLedger]] = {}
    for row in rows:
        if (own := listed.ledgers.get(topic := row["topic"])) is not None:
            known = {*row["ledgers"], *(i for i in own if (topic, i) in ours)}
            left[topic] = {i: one for i, one in own.items() if i not in known}
    copyless = {i: t for t, own in left.items() for i, one in own.items() if not one.info.get("offload_complete")}
    inventory = _stored_copies(cluster, listed.newest, copyless) if listed.newest and copyless else {}
    found: dict[str, Ledgers] = {}
    for topic, own in left.items():
        copies = {i: _copies_of_listed(cluster, one, listed.newest, inventory) for i, one in own.items()}
        known_copies = {i: some for i, some in copies.items() if some is not None}
        if len(known_copies) == len(own):
            found[topic] = {i: DeletedLedger(i, None, some) for i, some in known_copies.items()}
    return found


def _copies_of_listed(
    cluster: Cluster, ledger: ListedLedger, newest: Epoch | None, inventory: Mapping[int, tuple[Location, ...]] | None
) -> tuple[Location, ...] | None:
    """The offloaded copies of a ledger that brokers took off its list by now; None where they are not known here."""
    info, store = ledger.info, cluster.settings.object_store
    if info.get("offload_complete"):
        driver, bucket = (info.get("offload_driver") or "").lower(), info["offload_bucket"]
        ours = store is not None and bucket in store.buckets and driver in S3_DRIVERS
        return (Location(bucket, UUID(info["offload_uuid"]), info["ledger_id"]),) if ours else None
    if inventory is None or newest is None or ledger.epoch_id == newest.epoch_id:
        return None  # it may have been offloaded since
    return inventory.get(info["ledger_id"], ())


def _stored_copies(
    cluster: Cluster, epoch: Epoch, ledgers: Mapping[int, str]
) -> Mapping[int, tuple[Location, ...]] | None:
    """The offloaded copies of ledgers, each of a topic, by a scan's inventory of the buckets.

    None where it has none, and where it cannot tell whose they are: others may use these buckets.
    """
    store = cluster.settings.object_store
    if store is None or not store.exclusive:
        return None
    found: dict[int, tuple[Location, ...]] = {}
    where = pc.field("ledger_id").isin(sorted(ledgers)) & pc.field("uuid").is_valid()
    try:
        parts = cluster.parts(epoch.epoch_id, "objects")
    except NotFound:
        return None
    for batch in cluster.lake.batches(parts, ["ledger_id", "bucket", "uuid", "topic"], where):
        for row in batch.to_pylist():
            copy = Location(row["bucket"], UUID(row["uuid"]), row["ledger_id"])
            if row["topic"] in (None, "", ledgers[copy.ledger_id]):
                found[copy.ledger_id] = (*found.get(copy.ledger_id, ()), copy)
    return found


def _tagged(cluster: Cluster, epoch: Epoch, topics: Collection[str]) -> list[tuple[str, int]]:
    """By the tags of BookKeeper's z-nodes: data ledgers of these topics."""
    names = {Topic.parse(topic).managed_ledger: topic for topic in topics}
    mine = pc.field("managed_ledger").isin(sorted(names)) & (pc.field("component") == COMPONENT_MANAGED_LEDGER)
    where = mine & pc.field("cursor").is_null()
    parts = cluster.parts(epoch.epoch_id, "bookkeeper_ledgers")
    found: list[tuple[str, int]] = []
    for batch in cluster.lake.batches(parts, ["managed_ledger", "ledger_id"], where):
        found += [(names[row["managed_ledger"]], row["ledger_id"]) for row in batch.to_pylist()]
    return found


def _compacted(cluster: Cluster, epoch: Epoch, topics: Sequence[str]) -> list[tuple[str, int]]:
    """By the same tags: compacted views of topics. A broker that ends meanwhile leaves behind one that was replaced.

    Nobody reads that any more; it has messages of whatever keys there were, from ledgers that are gone.
    """
    where = pc.field("compacted_topic").isin(sorted(topics)) & (pc.field("component") == COMPONENT_COMPACTED_LEDGER)
    parts = cluster.parts(epoch.epoch_id, "bookkeeper_ledgers") if topics else []
    batches = cluster.lake.batches(parts, ["compacted_topic", "ledger_id"], where)
    return [(row["compacted_topic"], row["ledger_id"]) for batch in batches for row in batch.to_pylist()]


def _waiting_copies(cluster: Cluster, topics: Collection[str]) -> list[tuple[str, DeletedLedger]]:
    """By our journal: topics, each with a ledger whose offloaded copy a message asks to be deleted."""
    marks = marked_offloads(cluster.journal_reader, cluster.settings.cluster)
    return [
        (asked.topic, DeletedLedger(ledger_id, None, (Location(asked.bucket, asked.uuid, ledger_id),)))
        for ledger_id, asked in marks
        if asked.topic in topics and asked.bucket and asked.uuid
    ]
