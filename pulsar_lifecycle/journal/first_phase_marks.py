"""What our own runs took off lists: ledgers of topics, by marks that stand, and snapshots that cursors named."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats.cursor import snapshot_ledger
from pulsar_lifecycle.formats.deletion_message import LedgerType, decode_deletion_message
from pulsar_lifecycle.journal.queries import OFFLOADED_COPIES, filed_since, rows_of_outcome
from pulsar_lifecycle.metastore.list_writes import ListWrite
from pulsar_lifecycle.ports import JournalReader
from pulsar_lifecycle.runs.journal_rows import details_of
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.copies import Asked, CopyNamed, bucket_of
from pulsar_lifecycle.values.outcomes import Outcome, Phase


def marked_ledgers(journal: JournalReader, cluster: str) -> dict[tuple[int, int], int]:
    """What our first phase took out of topics and nothing has ended since: (id, czxid) -> when (ms).

    Only ledgers that BookKeeper held then. A mark ends when a deletion run settles the ledger, or when the first phase
    says that it stayed after all.
    """
    rows = ((row, details_of(_LedgerNode, row["detail"])) for row in _open(journal, cluster, False))
    return {(row["ledger_id"], node.czxid): row["at"] for row, node in rows if node}


@dataclass(frozen=True, slots=True)
class _LedgerNode:
    """The ledger's z-node as the details of a mark name it; one that names none waives nothing."""

    czxid: int


def taken_off(journal: JournalReader, cluster: str, since: int) -> set[int]:
    """Ledgers that our first phase took off their topics' lists at ``since`` (ms) or later, whatever became of them."""
    mine = (pc.field("cluster") == cluster) & (pc.field("phase") == Phase.MARK)
    marked = rows_of_outcome(journal, Outcome.MARKED, since, mine, ["ledger_id", "at"])
    if not marked.num_rows:
        return set()
    left = rows_of_outcome(journal, Outcome.LEFT, since, mine, ["ledger_id", "at"])
    return set(open_marks(marked, left).column("ledger_id").to_pylist())


Marks = Sequence[tuple[tuple[str, int], str]]
"""Topics, each with a ledger that our first phase was to take off its list, and an outcome; in the order of time."""


def marks_of(journal: JournalReader, cluster: str, topics: Collection[str], since: int = 0) -> Marks:
    """What our first phase said at ``since`` (ms) or later of ledgers of these topics."""
    mine = pc.field("topic").isin(sorted(topics)) & (pc.field("cluster") == cluster)
    marks = mine & (pc.field("phase") == Phase.MARK) & (pc.field("ledger_id") >= 0) & filed_since(since)
    rows = journal.find(marks, ["topic", "ledger_id", "outcome", "at"]).to_pylist()
    rows.sort(key=lambda row: (row["at"], row["outcome"] != Outcome.MARKED))
    return [((row["topic"], row["ledger_id"]), row["outcome"]) for row in rows]


def list_writes(journal: JournalReader, cluster: str, topics: Collection[str], since: int) -> dict[str, set[ListWrite]]:
    """By topic the writes of its list, at ``since`` (ms) or later, that our first phase took ledgers off by.

    A run makes one of a topic. One whose answer was lost is missing.
    """
    mine = pc.field("topic").isin(sorted(topics)) & (pc.field("cluster") == cluster)
    marks = mine & (pc.field("phase") == Phase.MARK)
    found: dict[str, set[ListWrite]] = {}
    for row in rows_of_outcome(journal, Outcome.REMOVED, since, marks, ["topic", "detail"]).to_pylist():
        if write := details_of(ListWrite, row["detail"]):
            found.setdefault(row["topic"], set()).add(write)
    return found


def unnamed_snapshots(journal: JournalReader, cluster: str, since: int) -> set[int]:
    """Snapshots that our repairs of delayed indexes took from cursors at ``since`` (ms) or later.

    Those of a repair that was killed are among them, as it may have come so far.
    """
    condition = (pc.field("cluster") == cluster) & (pc.field("phase") == Phase.REPAIR_INDEX) & filed_since(since)
    rows = journal.find(condition, ["run_id", "topic", "outcome", "detail", "at"]).to_pylist()
    taken: set[int] = set()
    begun: dict[tuple[str, ...], set[int]] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        if (edit := details_of(_BucketsEdited, row["detail"])) is None:
            continue
        repair = row["run_id"], row["topic"], edit.subscription
        begun.pop(repair, None)
        named = map(snapshot_ledger, set(edit.before.values()) - set(edit.after.values()))
        gone = {one for one in named if one is not None}
        if row["outcome"] == Outcome.BEGUN:
            begun[repair] = gone
        elif row["outcome"] == Outcome.DONE:
            taken |= gone
    return taken.union(*begun.values())


@dataclass(frozen=True, slots=True)
class _BucketsEdited:
    """The bucket properties of a subscription, before and after, as the details of a repair have them."""

    subscription: str
    before: dict[str, str]
    after: dict[str, str]


def marked_offloads(journal: JournalReader, cluster: str) -> dict[tuple[int, Asked], int]:
    """The same of offloaded copies, several of a ledger perhaps: (id, which copy) -> when; :func:`open_copies`."""
    asked = ((row["ledger_id"], asked_of(row), row["at"]) for row in _open(journal, cluster, True))
    return {(ledger_id, copy): at for ledger_id, copy, at in asked if copy}


def asked_offloads(journal: JournalReader, cluster: str) -> dict[tuple[int, Asked], int]:
    """The same, without those whose own message a deletion run has kept or refused since: none is known to wait.

    Anyone may send a message about a copy; what became of one that is not known to be ours ends none of ours.
    """
    marks = [(mark, copy) for mark in _open(journal, cluster, True) if (copy := asked_of(mark))]
    if not marks:
        return {}
    said = (pc.field("cluster") == cluster) & (pc.field("phase") == Phase.DELETE) & OFFLOADED_COPIES
    since = filed_since(min(mark["at"] for mark, _ in marks))
    ended = said & pc.field("outcome").isin([Outcome.KEPT, Outcome.REFUSED]) & since
    columns = ["ledger_id", "topic", "plan_id", "code", "at", "detail"]
    rows: dict[int, list[dict[str, Any]]] = {}
    for row in with_copies(journal.find(ended, columns)).to_pylist():
        rows.setdefault(row["ledger_id"], []).append(row)
    return {
        (mark["ledger_id"], copy): mark["at"]
        for mark, copy in marks
        if not any(_of_its_message(row, mark, copy) for row in rows.get(mark["ledger_id"], ()))
    }


def _of_its_message(row: Mapping[str, Any], mark: Mapping[str, Any], copy: Asked) -> bool:
    """Whether what a deletion run said of a ledger is known to be of the message that went with this mark.

    What was sent back has another id, but the plan that it was sent by, which names a ledger's copy once. Our first
    phase asks for no copy of another driver than we read.
    """
    told, about = details_of(_MessageEnded, row["detail"]), asked_of(row)
    if told is None or about is None or row["at"] < mark["at"]:
        return False
    sent = details_of(_MessagesSent, mark["detail"])
    if told.message and sent and sent.messages.get(LedgerType.OFFLOAD_LEDGER.value) == told.message:
        return True
    if not mark["plan_id"] or (row["plan_id"], row["topic"]) != (mark["plan_id"], mark["topic"]):
        return False
    bucket = about.bucket
    if told.raw is not None:  # it was refused, perhaps for its bucket
        try:
            bucket = bucket_of(decode_deletion_message(bytes.fromhex(told.raw)))
        except (CorruptFormat, ValueError):
            return False
    elif row["code"] == Code.OTHER_DRIVER:
        return False
    return copy.asks_for(about.uuid, copy.bucket if bucket is None else bucket)


@dataclass(frozen=True, slots=True)
class _MessageEnded:
    """The message that a deletion run ended, as the details of its row have it; ``raw`` of one that was refused."""

    message: str = ""
    raw: str | None = None


@dataclass(frozen=True, slots=True)
class _MessagesSent:
    """The ids of the messages that went with a mark, by what they are about."""

    messages: dict[str, str]


def _open(journal: JournalReader, cluster: str, offloaded: bool) -> list[dict[str, Any]]:
    """Marks that stand, of ledgers' copies in BookKeeper or of the offloaded ones; oldest first."""
    mine = pc.field("cluster") == cluster
    marked = rows_of_outcome(journal, Outcome.MARKED, 0, mine & (pc.field("phase") == Phase.MARK))
    if not marked.num_rows:
        return []
    phase, outcome = pc.field("phase"), pc.field("outcome")
    stayed = mine & (phase == Phase.MARK) & (outcome == Outcome.LEFT)
    settled = (
        mine
        & (phase == Phase.DELETE)
        & (OFFLOADED_COPIES if offloaded else ~OFFLOADED_COPIES)
        & outcome.isin(ENDS[offloaded])
    )
    left = journal.find(stayed, ["ledger_id", "at"])
    if offloaded:
        ended = journal.find(settled, ["ledger_id", "at", "detail"])
        return open_copies(with_copies(marked), left, with_copies(ended)).to_pylist()
    ended = journal.find(settled, ["ledger_id", "at"])
    return open_marks(marked, pa.concat_tables([left, ended])).to_pylist()


def with_copies(rows: pa.Table) -> pa.Table:
    """Rows, with which copy each is about: ``copy`` (:class:`CopyNamed`), and the ``uuid`` and ``bucket`` of that."""
    for name in ("uuid", "bucket"):
        found = pc.extract_regex(rows.column("detail"), f'"{name}": "(?P<{name}>[^"]*)"')
        rows = rows.append_column(name, pc.struct_field(found, name))
    uuid, bucket = rows.column("uuid"), rows.column("bucket")
    cases = pc.make_struct(pc.is_null(uuid), pc.equal(uuid, ""), pc.is_null(bucket))
    copy = pc.case_when(cases, CopyNamed.ANY, CopyNamed.NONE, CopyNamed.IN_ANY_BUCKET, CopyNamed.ONE)
    return rows.append_column("copy", copy)


def asked_of(row: Mapping[str, Any]) -> Asked | None:
    """The copy that a row of :func:`with_copies` is about; None if about none, or not as we write it."""
    copy = CopyNamed(row["copy"])
    if copy is CopyNamed.ANY:
        return Asked(row["topic"])
    with contextlib.suppress(ValueError):
        if copy is not CopyNamed.NONE:
            return Asked(row["topic"], UUID(row["uuid"]), row["bucket"])
    return None


def open_copies(marked: pa.Table, left: pa.Table, settled: pa.Table) -> pa.Table:
    """As :func:`open_marks`, of offloaded copies: a row that settles one copy ends the mark of no other.

    ``marked`` and ``settled`` are of :func:`with_copies`. Whatever settles a copy that a mark may be about ends it.
    ``left``: ``ledger_id at`` of what ends every mark of a ledger.
    """
    keys = {
        CopyNamed.ANY: ["ledger_id"],
        CopyNamed.IN_ANY_BUCKET: ["ledger_id", "uuid"],
        CopyNamed.ONE: ["ledger_id", "uuid", "bucket"],
    }
    return pa.concat_tables(
        [
            _not_ended(open_marks(marked.filter(pc.field("copy") == copy), settled, key), left, ["ledger_id"])
            for copy, key in keys.items()
        ]
    )


def open_marks(marked: pa.Table, ended: pa.Table, key: Sequence[str] = ("ledger_id",)) -> pa.Table:
    """The newest mark of each ledger that nothing ended at its time (``at``, ms) or later; oldest first.

    ``marked``: journal rows; ``ended``: ``at`` of whatever ends a mark, and the same ``key``. A ledger may be taken off
    a list, deleted, restored, and taken off again.
    """
    marked = marked.sort_by("at").append_column("row", pa.array(range(marked.num_rows), pa.int64()))
    newest = marked.group_by(list(key), use_threads=False).aggregate([("row", "last")]).column("row_last")
    marked = marked.filter(pc.is_in(marked.column("row"), newest.combine_chunks())).drop_columns("row")
    return _not_ended(marked, ended, key)


def _not_ended(marks: pa.Table, ended: pa.Table, key: Sequence[str]) -> pa.Table:
    """Marks of which no row of ``ended`` with the same ``key`` is as young, or younger."""
    if not marks.num_rows or not ended.num_rows:
        return marks
    key = list(key)
    ends = ended.group_by(key, use_threads=False).aggregate([("at", "max")])
    marks = marks.append_column("row", pa.array(range(marks.num_rows), pa.int64()))
    last = marks.select([*key, "row", "at"]).join(ends, key, join_type="left outer", use_threads=False)
    stand = last.filter(pc.less(pc.fill_null(last.column("at_max"), -1), last.column("at")))
    return marks.filter(pc.is_in(marks.column("row"), stand.column("row").combine_chunks())).drop_columns("row")


ENDS = {False: (Outcome.DELETED, Outcome.GONE, Outcome.KEPT), True: (Outcome.DELETED, Outcome.GONE)}
"""Outcomes of phase ``delete`` that end a mark, of BookKeeper's copy and of the offloaded one.

What a message says of a ledger in BookKeeper is checked against its z-node, so that ``kept`` is about what was marked;
of an offloaded copy anyone may send a message that is kept.
"""
