# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import.
"""Journal and archive as Parquet objects in the lake: append-only, one closed object per call.

Belongs here: the two tables' schemas, where their objects lie, writing and reading them. Not here: what is recorded,
and when. Layout: ``LAKE/journal/date=YYYY-MM-DD/ID.parquet`` and ``LAKE/archive/date=YYYY-MM-DD/ID.parquet`` (UTC).
Names that begin with a dot are unfinished objects; this module and Spark skip them. ``LAKE/tallies/date=YYYY-MM-DD.
parquet`` are counts of past days that spare reading them again; they may be removed at any time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from operator import attrgetter
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from pulsar_lifecycle.engine import canary
from pulsar_lifecycle.engine.decision import Asked, Place, Released, Site
from pulsar_lifecycle.engine.offload_proof import Verified
from pulsar_lifecycle.engine.release import released_of
from pulsar_lifecycle.engine.unsettled import ARCHIVE as ARCHIVED
from pulsar_lifecycle.engine.unsettled import SAID, lost_copies, unsettled
from pulsar_lifecycle.errors import StoreError
from pulsar_lifecycle.plan import metrics
from pulsar_lifecycle.plan.objects import Begun
from pulsar_lifecycle.plan.outcomes import (
    DEAD_LETTERED,
    DELETE_LEDGER,
    DELETE_OFFLOADED,
    DELETED,
    GONE,
    KEPT,
    LEFT,
    MARKED,
    OFFLOAD,
    PREPARED,
    READ_THROUGH_BROKER,
    RELEASE,
    ROLLED_BACK,
    SENT,
    UNPROVEN,
    UNSEEN,
    VERIFIED,
    WAITING,
    Waiting,
)
from pulsar_lifecycle.plan.reconciliation import STANDING, standing
from pulsar_lifecycle.ports import Archived, JournalRow

JOURNAL = "journal"
ARCHIVE = "archive"
TALLIES = "tallies"

JOURNAL_SCHEMA = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("plan_id", pa.string(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("component", pa.string(), nullable=False),
        pa.field("topic", pa.string(), nullable=False),
        pa.field("action", pa.string(), nullable=False),
        pa.field("phase", pa.string(), nullable=False),
        pa.field("outcome", pa.string(), nullable=False),
        pa.field("reason", pa.string(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("checksum", pa.string(), nullable=False),
        pa.field("detail", pa.string(), nullable=False),
        pa.field("at", pa.int64(), nullable=False),
    ]
)
ARCHIVE_SCHEMA = pa.schema(
    [
        pa.field("run_id", pa.string(), nullable=False),
        pa.field("cluster", pa.string(), nullable=False),
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("path", pa.string(), nullable=False),
        pa.field("data", pa.binary(), nullable=False),
        pa.field("version", pa.int64(), nullable=False),
        pa.field("czxid", pa.int64(), nullable=False),
        pa.field("ctime", pa.int64(), nullable=False),
        pa.field("at", pa.int64(), nullable=False),
    ]
)


class FileJournal:
    """Journal and archive below ``lake``: an absolute folder, or a URI such as ``s3://bucket/prefix``.

    In a folder an object appears by rename after its bytes are on disk; in an object store by one upload. Any number
    of processes may write at the same time. Credentials of an object store are those of its usual environment.
    """

    def __init__(self, lake: str) -> None:
        self._lake = lake

    def record(self, rows: Sequence[JournalRow]) -> str:
        """Store rows as one object and return its location; no rows, no object, and an empty location.

        Raises StoreError when they are not known to be durable.
        """
        return self._store(JOURNAL, JOURNAL_SCHEMA, rows)

    def archive(self, nodes: Sequence[Archived]) -> str:
        """Store z-nodes as one object and return its location, like :meth:`record`."""
        return self._store(ARCHIVE, ARCHIVE_SCHEMA, nodes)

    def _store(self, kind: str, schema: pa.Schema, rows: Sequence[JournalRow] | Sequence[Archived]) -> str:
        if not rows:
            return ""
        day = datetime.fromtimestamp(rows[0].at / 1000, UTC).date().isoformat()
        columns = zip(*map(attrgetter(*schema.names), rows), strict=True)
        table = pa.table(dict(zip(schema.names, columns, strict=True)), schema)
        buffer = pa.BufferOutputStream()
        pq.write_table(table, buffer, compression="zstd")
        name = f"{uuid.uuid4().hex}.parquet"
        where = f"{self._lake}/{kind}/date={day}/{name}"
        try:
            if "://" in self._lake:
                _upload(where, buffer.getvalue())
            else:
                _write_durably(Path(self._lake), Path(where), buffer.getvalue())
        except (OSError, pa.ArrowException) as error:
            raise StoreError(f"{where}: cannot be stored durably: {error}") from error
        return where


def journal_rows(
    lake: str,
    *,
    ledger_id: int | None = None,
    run_id: str | None = None,
    plan_id: str | None = None,
    topic: str | None = None,
) -> pa.Table:
    """Journal rows in the order of their time, all or those that match; ``JOURNAL_SCHEMA``."""
    wanted = {"ledger_id": ledger_id, "run_id": run_id, "plan_id": plan_id, "topic": topic}
    return _read(lake, JOURNAL, JOURNAL_SCHEMA, wanted)


def taken_messages(lake: str, run_id: str) -> frozenset[str]:
    """Ids (hexadecimal) of the messages of the deletion queue that a run decided."""
    mine = (pc.field("run_id") == run_id) & (pc.field("phase") == "delete")
    details = _scan(lake, JOURNAL, JOURNAL_SCHEMA, mine, ["detail"]).column("detail").to_pylist()
    return frozenset(json.loads(detail).get("message", "") for detail in details)


def deleted_since(lake: str, since: int, cluster: str) -> int:
    """How many ledgers of a cluster the journal says were deleted in BookKeeper at ``since`` (ms) or later.

    Those that an undo restored do not count.
    """
    mine = (pc.field("cluster") == cluster) & ~_OFFLOADED
    deleted, restored = (
        set(_outcomes(lake, outcome, since, mine).column("ledger_id").to_pylist()) for outcome in (DELETED, "restored")
    )
    return len(deleted - restored)


def deleted_by_topic(lake: str, cluster: str, run_id: str = "") -> pa.Table:
    """What the journal says was deleted of each topic by one run of a cluster, or all: ``topic ledgers bytes``."""
    condition = pc.field("cluster") == cluster
    if run_id:
        condition &= pc.field("run_id") == run_id
    rows = _outcomes(lake, DELETED, 0, condition, ["topic", "bytes"])
    counted = rows.group_by("topic").aggregate([("bytes", "count"), ("bytes", "sum")])
    return counted.select(["topic", "bytes_count", "bytes_sum"]).rename_columns(["topic", "ledgers", "bytes"])


_OFFLOADED = pc.field("action") == DELETE_OFFLOADED


def sent_ledgers(lake: str, plan_id: str) -> frozenset[int]:
    """Ledger ids of a plan whose intents the journal says were sent."""
    return frozenset(_outcomes(lake, SENT, 0, pc.field("plan_id") == plan_id).column("ledger_id").to_pylist())


def sent_copies(lake: str, plan_id: str) -> frozenset[UUID]:
    """UUIDs of the offloaded copies of a plan whose intents the journal says were sent."""
    mine = (pc.field("plan_id") == plan_id) & _OFFLOADED
    return frozenset(uuid for uuid, _ in _attempts(_outcomes(lake, SENT, 0, mine)))


def deleted_copies(lake: str, cluster: str, run_id: str = "", ledger_ids: Collection[int] = ()) -> list[str]:
    """Objects of offloaded copies, ``s3://BUCKET/KEY``, that a run deleted, or that went with these ledgers.

    No archive holds them; :func:`lost_copies`. With a ledger goes what the run deleted that archived it last, and the
    copy that our first phase last took off its topic's list. Any other copy of it was an orphan of its own.
    """
    mine = pc.field("cluster") == cluster
    if run_id:
        its = mine & _OFFLOADED & (pc.field("run_id") == run_id)
        ledger_ids = set(_scan(lake, JOURNAL, JOURNAL_SCHEMA, its, ["ledger_id"]).column("ledger_id").to_pylist())
    about = mine & pc.is_in(pc.field("ledger_id"), pa.array(sorted(ledger_ids), pa.int64()))
    rows = _with_copies(_scan(lake, JOURNAL, JOURNAL_SCHEMA, about & _OFFLOADED).sort_by("at"))
    lost = lost_copies(rows.to_pylist())
    if run_id:
        return sorted(name for name, row in lost.items() if row["run_id"] == run_id)
    runs = {node.ledger_id: node.run_id for node in last_archived(lake, cluster, ledger_ids=ledger_ids)}
    marked = _with_copies(_outcomes(lake, MARKED, 0, about & (pc.field("phase") == "mark")).sort_by("at"))
    marks = {row["ledger_id"]: row for row in marked.to_pylist()}
    return sorted(
        name
        for name, row in lost.items()
        if row["run_id"] == runs.get(row["ledger_id"]) or _asks_for(marks.get(row["ledger_id"]), row)
    )


def _asks_for(mark: Mapping[str, Any] | None, row: Mapping[str, Any]) -> bool:
    """Whether a mark asked for the copy that ``row`` is about; null in an older version's mark asks for any."""
    if mark is None or row["at"] < mark["at"]:
        return False
    return all(mark[name] in (None, row[name]) for name in ("uuid", "bucket"))


def begun_attempts(lake: str, cluster: str, ledger_ids: Collection[int]) -> dict[UUID, Begun]:
    """Every offload attempt on these ledgers that our own runs ever began."""
    ids = pa.array(sorted(ledger_ids), pa.int64())
    mine = (pc.field("cluster") == cluster) & (pc.field("action") == OFFLOAD) & pc.is_in(pc.field("ledger_id"), ids)
    rows = list(_attempts(_scan(lake, JOURNAL, JOURNAL_SCHEMA, mine).sort_by("at")))
    began = {uuid for uuid, row in rows if row["outcome"] == PREPARED}
    return {uuid: Begun(row["topic"], row["at"]) for uuid, row in rows if uuid in began}


def _attempts(rows: pa.Table) -> Iterator[tuple[UUID, dict[str, Any]]]:
    """Rows whose ``detail`` names an offload attempt."""
    for row in rows.to_pylist():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # not as we write it: proves nothing
            yield UUID(json.loads(row["detail"])["uuid"]), row


def marked_ledgers(lake: str, cluster: str) -> dict[int, tuple[int, int]]:
    """What our first phase took out of topics and nothing has ended since: id -> (czxid, when in ms).

    Only ledgers that BookKeeper held then. A mark ends when a deletion run settles the ledger, or when the first phase
    says that it stayed after all.
    """
    rows = ((row["ledger_id"], _czxid(row["detail"]), row["at"]) for row in _open(lake, cluster, False))
    return {ledger_id: (czxid, at) for ledger_id, czxid, at in rows if czxid is not None}


def _czxid(detail: str) -> int | None:
    """The ledger's z-node as a mark names it; None where it names none, or is not a row of ours: it waives nothing."""
    try:
        found = json.loads(detail)
    except (ValueError, RecursionError):
        return None
    czxid = found.get("czxid") if isinstance(found, dict) else None
    return czxid if type(czxid) is int else None


def taken_off(lake: str, cluster: str, since: int) -> set[int]:
    """Ledgers that our first phase took off their topics' lists at ``since`` (ms) or later, whatever became of them."""
    mine = (pc.field("cluster") == cluster) & (pc.field("phase") == "mark")
    marked, left = (_outcomes(lake, outcome, since, mine, ["ledger_id", "at"]) for outcome in (MARKED, LEFT))
    return set(open_marks(marked, left).column("ledger_id").to_pylist()) if marked.num_rows else set()


def marked_offloads(lake: str, cluster: str) -> dict[int, tuple[Asked, int]]:
    """The same of offloaded copies: ledger id -> (which copy, when in ms); :func:`open_copies`."""
    found: dict[int, tuple[Asked, int]] = {}
    for row in _open(lake, cluster, True):
        with contextlib.suppress(ValueError):  # not as we write it: it asks for nothing
            uuid_of = None if row["uuid"] is None else UUID(row["uuid"])
            found[row["ledger_id"]] = Asked(row["topic"], uuid_of, row["bucket"]), row["at"]
    return found


def released_ledgers(lake: str, cluster: str) -> dict[int, Released]:
    """Ledgers whose copies in BookKeeper we gave up, and what their objects were then, until they are deleted.

    Or until a later proof of those objects failed.
    """
    mine = pc.field("cluster") == cluster
    marked = _outcomes(lake, MARKED, 0, mine & (pc.field("action") == RELEASE))
    if not marked.num_rows:
        return {}
    ended = mine & (
        ((pc.field("phase") == "delete") & ~_OFFLOADED & pc.field("outcome").isin((DELETED, GONE)))
        | ((pc.field("action") == RELEASE) & (pc.field("outcome") == UNPROVEN))
    )
    rows = open_marks(marked, _scan(lake, JOURNAL, JOURNAL_SCHEMA, ended, ["ledger_id", "at"])).to_pylist()
    found = {row["ledger_id"]: released_of(row["topic"], row["detail"]) for row in rows}
    return {ledger_id: released for ledger_id, released in found.items() if released}


def verified_copies(lake: str, cluster: str, ledger_ids: Collection[int]) -> dict[tuple[int, UUID], Verified]:
    """What the objects of these ledgers were when we read them back whole: (ledger id, UUID) -> the last proof."""
    ids = pa.array(sorted(ledger_ids), pa.int64())
    mine = (pc.field("cluster") == cluster) & (pc.field("action") == OFFLOAD) & pc.is_in(pc.field("ledger_id"), ids)
    found: dict[tuple[int, UUID], Verified] = {}
    for row in _outcomes(lake, VERIFIED, 0, mine).sort_by("at").to_pylist():
        with contextlib.suppress(ValueError, KeyError, TypeError):  # not as we write it: proven anew
            detail = json.loads(row["detail"])
            uuid_of = UUID(detail.pop("uuid"))
            found[row["ledger_id"], uuid_of] = Verified(**detail)
    return found


def unproven_copies(lake: str, cluster: str) -> dict[tuple[int, UUID], JournalRow]:
    """Offloaded copies of which the last proof failed: (ledger id, UUID) -> the journal's row that says so."""
    mine = pc.field("cluster") == cluster
    found: dict[tuple[int, UUID], JournalRow] = {}
    for row in _outcomes(lake, UNPROVEN, 0, mine & (pc.field("action") == RELEASE)).sort_by("at").to_pylist():
        if uuid_of := _uuid_in(row["detail"]):
            found[row["ledger_id"], uuid_of] = JournalRow(**row)
    if not found:
        return found
    ids = pa.array(sorted({ledger_id for ledger_id, _ in found}), pa.int64())
    whole = mine & (pc.field("action") == OFFLOAD) & pc.field("outcome").isin((VERIFIED, ROLLED_BACK))
    for row in _scan(lake, JOURNAL, JOURNAL_SCHEMA, whole & pc.is_in(pc.field("ledger_id"), ids)).to_pylist():
        uuid_of = _uuid_in(row["detail"])
        known = uuid_of and found.get((row["ledger_id"], uuid_of))
        # A run proves no copy again that it disproved: its own proof was before, whatever its executors' clocks say.
        before = known and row["outcome"] == VERIFIED and row["run_id"] == known.run_id
        if uuid_of and known and not before and known.at < row["at"]:
            del found[row["ledger_id"], uuid_of]
    return found


def _uuid_in(detail: str) -> UUID | None:
    """The UUID in the detail of a row of ours; None where there is none."""
    with contextlib.suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return UUID(json.loads(detail)["uuid"])
    return None


def seen_places(lake: str, cluster: str, store: str, now: int) -> dict[Place, int]:
    """``canary.seen_places`` of a metadata store (its fingerprint), at ``now`` (ms)."""
    return canary.seen_places(_reads(lake, cluster), store, now)


def unseen_sites(lake: str, cluster: str, store: str, now: int, noes: Collection[str] = (UNSEEN,)) -> frozenset[Site]:
    """``canary.unseen_sites`` of a metadata store (its fingerprint), at ``now`` (ms)."""
    return canary.unseen_sites(_reads(lake, cluster), store, now, noes)


def _reads(lake: str, cluster: str) -> list[dict[str, Any]]:
    mine = (pc.field("cluster") == cluster) & (pc.field("action") == READ_THROUGH_BROKER)
    return _scan(lake, JOURNAL, JOURNAL_SCHEMA, mine, ["run_id", "outcome", "detail", "at"]).to_pylist()


def _open(lake: str, cluster: str, offloaded: bool) -> list[dict[str, Any]]:
    """Marks that stand, of ledgers' copies in BookKeeper or of the offloaded ones; oldest first."""
    mine = pc.field("cluster") == cluster
    marked = _outcomes(lake, MARKED, 0, mine & (pc.field("phase") == "mark"))
    if not marked.num_rows:
        return []
    phase, outcome = pc.field("phase"), pc.field("outcome")
    stayed = mine & (phase == "mark") & (outcome == LEFT)
    settled = mine & (phase == "delete") & (_OFFLOADED if offloaded else ~_OFFLOADED) & outcome.isin(ENDS[offloaded])
    left = _scan(lake, JOURNAL, JOURNAL_SCHEMA, stayed, ["ledger_id", "at"])
    if offloaded:
        ended = _scan(lake, JOURNAL, JOURNAL_SCHEMA, settled, ["ledger_id", "at", "detail"])
        return open_copies(_with_copies(marked), left, _with_copies(ended)).to_pylist()
    ended = _scan(lake, JOURNAL, JOURNAL_SCHEMA, settled, ["ledger_id", "at"])
    return open_marks(marked, pa.concat_tables([left, ended])).to_pylist()


def _with_copies(rows: pa.Table) -> pa.Table:
    """Rows and the ``uuid`` and ``bucket`` that their ``detail`` names; null where it says nothing of one."""
    for name in ("uuid", "bucket"):
        found = pc.extract_regex(rows.column("detail"), f'"{name}": "(?P<{name}>[^"]*)"')
        rows = rows.append_column(name, pc.struct_field(found, name))
    return rows


def open_copies(marked: pa.Table, left: pa.Table, settled: pa.Table) -> pa.Table:
    """As :func:`open_marks`, of offloaded copies: a row that settles one copy ends the mark of no other.

    ``uuid`` of a mark is empty if it asks for none. Where it or ``bucket`` is null, in a row of an older version, it
    asks for any, and whatever settles such a copy of its ledger ends it. ``left``: ``ledger_id at`` of what ends every
    mark of a ledger; ``settled``: ``ledger_id at uuid bucket``, a null ends only marks that have none either.
    """
    asking = marked.filter(pc.fill_null(pc.not_equal(marked.column("uuid"), ""), True))
    stand = open_marks(asking, left)
    named, placed = (pc.is_valid(stand.column(name)) for name in ("uuid", "bucket"))
    return pa.concat_tables(
        [
            open_marks(stand.filter(pc.invert(named)), settled),
            open_marks(stand.filter(pc.and_not(named, placed)), settled, ["ledger_id", "uuid"]),
            open_marks(stand.filter(pc.and_(named, placed)), settled, ["ledger_id", "uuid", "bucket"]),
        ]
    )


def open_marks(marked: pa.Table, ended: pa.Table, key: Sequence[str] = ("ledger_id",)) -> pa.Table:
    """The newest mark of each ledger that nothing ended at its time (``at``, ms) or later; oldest first.

    ``marked``: journal rows; ``ended``: ``at`` of whatever ends a mark, and the same ``key``. A ledger may be taken off
    a list, deleted, restored, and taken off again.
    """
    key = list(key)
    marked = marked.append_column("row", pa.array(range(marked.num_rows), pa.int64())).sort_by("at")
    ends = ended.group_by(key).aggregate([("at", "max")])
    last = marked.group_by(key, use_threads=False).aggregate([("row", "last"), ("at", "last")])
    last = last.join(ends, key, join_type="left outer")
    stand = last.filter(pc.less(pc.fill_null(last.column("at_max"), -1), last.column("at_last")))
    rows = stand.column("row_last").combine_chunks()
    return marked.filter(pc.is_in(marked.column("row"), rows)).drop_columns("row")


def dead_letter_reasons(lake: str, cluster: str, since: int) -> dict[tuple[int, str], str]:
    """Why a deletion run gave messages up at ``since`` (ms) or later: (ledger id, action) -> reason, the last one."""
    mine = (pc.field("cluster") == cluster) & (pc.field("phase") == "delete")
    key = ["ledger_id", "action"]
    rows = _outcomes(lake, DEAD_LETTERED, since, mine, [*key, "reason", "at"]).sort_by("at")
    last = rows.group_by(key, use_threads=False).aggregate([("reason", "last")])
    columns = [last.column(name).to_pylist() for name in (*key, "reason_last")]
    return {(ledger_id, action): reason for ledger_id, action, reason in zip(*columns, strict=True)}


ENDS = {False: (DELETED, GONE, KEPT), True: (DELETED, GONE)}
"""Outcomes of phase ``delete`` that end a mark, of BookKeeper's copy and of the offloaded one.

What a message says of a ledger in BookKeeper is checked against its z-node, so that ``kept`` is about what was marked;
of an offloaded copy anyone may send a message that is kept.
"""


def tallied(lake: str, now: int) -> pa.Table:
    """The whole journal counted, at ``now`` (ms); ``metrics.TALLY``.

    Of a past day only its listing is read, as long as it holds the objects that were there when it was last counted.
    """
    where, today = f"{lake}/{JOURNAL}", datetime.fromtimestamp(now / 1000, UTC).date().isoformat()
    try:
        filesystem, path = pafs.FileSystem.from_uri(where)
        selector = pafs.FileSelector(path, allow_not_found=True)
        days = [i.path for i in filesystem.get_file_info(selector) if i.type is pafs.FileType.Directory]
        return metrics.add_up(
            [_tally_of(filesystem, day, f"{path.removesuffix(JOURNAL)}{TALLIES}", today) for day in days]
        )
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{where}: cannot be read: {error}") from error


AT_ONCE = 500_000
"""Rows that are counted at once."""

_OBJECTS = b"journal objects"


def _tally_of(filesystem: pafs.FileSystem, folder: str, tallies: str, today: str) -> pa.Table:
    """Count one day's folder, or read what was counted when it held the same objects."""
    found = filesystem.get_file_info(pafs.FileSelector(folder))
    objects = sorted(i.path for i in found if i.extension == "parquet" and not i.base_name.startswith("."))
    names = hashlib.sha256("\n".join(name.rpartition("/")[2] for name in objects).encode()).hexdigest().encode()
    day = folder.rpartition("/")[2]
    kept = f"{tallies}/{day}.parquet"
    if day != f"date={today}":
        with contextlib.suppress(OSError, pa.ArrowException):  # there is none, or half of one: count again
            table = pq.read_table(kept, filesystem=filesystem)
            if (table.schema.metadata or {}).get(_OBJECTS) == names:
                return table.select(metrics.TALLY.names).cast(metrics.TALLY)
    dataset = ds.dataset(objects, JOURNAL_SCHEMA, format="parquet", filesystem=filesystem)
    table, waiting, rows = metrics.TALLY.empty_table(), list[pa.RecordBatch](), 0
    for batch in dataset.scanner(columns=metrics.COUNTED).to_batches():
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= AT_ONCE:
            table = metrics.add_up([table, metrics.tally(pa.Table.from_batches(waiting))])
            waiting, rows = [], 0
    if waiting:
        table = metrics.add_up([table, metrics.tally(pa.Table.from_batches(waiting))])
    if day != f"date={today}":
        with contextlib.suppress(OSError):  # a lake that may only be read is counted anew each time
            filesystem.create_dir(tallies)
            unfinished = f"{tallies}/.{uuid.uuid4().hex}.tmp"
            pq.write_table(table.replace_schema_metadata({_OBJECTS: names}), unfinished, filesystem=filesystem)
            filesystem.move(unfinished, kept)
    return table


def _outcomes(
    lake: str, outcome: str, since: int, condition: pc.Expression, columns: list[str] | None = None
) -> pa.Table:
    return _scan(lake, JOURNAL, JOURNAL_SCHEMA, condition & (pc.field("outcome") == outcome) & _since(since), columns)


LAST_DAY = 253_402_214_400
"""The last day that has a date, in seconds: a message's publish time may be any number."""


def _since(since: int) -> pc.Expression:
    # A batch is filed under the day of its first row, which may be the day before.
    day = datetime.fromtimestamp(min(max(0, since / 1000 - 86_400), LAST_DAY), UTC).date().isoformat()
    return (pc.field("at") >= since) & (pc.field("date") >= day)


def archived_nodes(lake: str, *, ledger_id: int | None = None, run_id: str | None = None) -> pa.Table:
    """Archived z-nodes in the order of their time, all or those that match; ``ARCHIVE_SCHEMA``."""
    return _read(lake, ARCHIVE, ARCHIVE_SCHEMA, {"ledger_id": ledger_id, "run_id": run_id})


def last_archived(lake: str, cluster: str, *, run_id: str = "", ledger_ids: Collection[int] = ()) -> list[Archived]:
    """The newest archived z-node of each of these ledgers, or of each that no other run archived after this one, by id.

    Who archived a ledger last is who can have deleted it. Of another cluster's archive only where this ``cluster`` has
    none of that ledger.
    """
    if run_id:
        ledger_ids = set(_read(lake, ARCHIVE, ARCHIVE_SCHEMA, {"run_id": run_id}).column("ledger_id").to_pylist())
    condition = pc.is_in(pc.field("ledger_id"), pa.array(sorted(ledger_ids), pa.int64()))
    newest: dict[int, Archived] = {}
    for row in _scan(lake, ARCHIVE, ARCHIVE_SCHEMA, condition).to_pylist():
        node = Archived(**row)
        known = newest.get(node.ledger_id)
        if known is None or (known.cluster != cluster, -known.at) > (node.cluster != cluster, -node.at):
            newest[node.ledger_id] = node
    return [node for _, node in sorted(newest.items()) if run_id in ("", node.run_id)]


def unsettled_nodes(lake: str, cluster: str, since: int) -> list[Archived]:
    """What a cluster's runs archived at ``since`` (ms) or later, and did not say what became of it."""
    recent = _since(since) & (pc.field("cluster") == cluster)
    archived = _scan(lake, ARCHIVE, ARCHIVE_SCHEMA, recent, ARCHIVED.names)
    if not archived.num_rows:
        return []
    phases = pc.field("phase").isin(["delete", "undo"])
    found = unsettled(archived, _scan(lake, JOURNAL, JOURNAL_SCHEMA, recent & phases, SAID.names))
    ids = pa.array(sorted({ledger_id for _, ledger_id, _ in found}), pa.int64())
    rows = _scan(lake, ARCHIVE, ARCHIVE_SCHEMA, recent & pc.is_in(pc.field("ledger_id"), ids)) if found else None
    nodes = [Archived(**row) for row in rows.to_pylist()] if rows else []
    return list({key: n for n in nodes if (key := (n.run_id, n.ledger_id, n.at)) in found}.values())


def rows_of_phase(lake: str, phase: str) -> pa.Table:
    """Journal rows of one phase in the order of their time; ``JOURNAL_SCHEMA``."""
    return _read(lake, JOURNAL, JOURNAL_SCHEMA, {"phase": phase})


def intents_standing(lake: str, cluster: str) -> pa.Table:
    """What became of every intent of a cluster; ``plan.reconciliation.standing``."""
    condition = (pc.field("cluster") == cluster) & pc.field("phase").isin(["send", "redrive", "delete"])
    return standing(_scan(lake, JOURNAL, JOURNAL_SCHEMA, condition, STANDING))


def waiting_ledgers(lake: str, cluster: str, ledger_ids: Iterable[int], waiting: Waiting, now: int) -> set[int]:
    """Those of the ledgers whose message about BookKeeper's copy waits for this, and was not sent again by ``now``."""
    ids = pa.array(sorted(ledger_ids), pa.int64())
    sent = (pc.field("outcome") == SENT) & (pc.field("at") <= now)  # a later one is of a clock that was ahead
    newest = (pc.field("phase") == "delete") | sent
    mine = (pc.field("cluster") == cluster) & newest & (pc.field("action") == DELETE_LEDGER)
    columns = ["ledger_id", "outcome", "detail", "at"]
    rows = _scan(lake, JOURNAL, JOURNAL_SCHEMA, mine & pc.is_in(pc.field("ledger_id"), ids), columns).sort_by("at")
    last = {row["ledger_id"]: row for row in rows.to_pylist()}
    return {i for i, row in last.items() if row["outcome"] == WAITING and _waits_for(row["detail"]) == waiting}


def _waits_for(detail: str) -> str:
    """What the detail of a decision says that its message waits for; empty if it does not, or is not ours."""
    with contextlib.suppress(ValueError, KeyError, TypeError, RecursionError):
        return str(json.loads(detail)["waiting"])
    return ""


def _read(lake: str, kind: str, schema: pa.Schema, wanted: dict[str, int | str | None]) -> pa.Table:
    condition = None
    for name, value in wanted.items():
        if value is not None:
            term = pc.field(name) == value
            condition = term if condition is None else condition & term
    return _scan(lake, kind, schema, condition).sort_by("at")


def _scan(
    lake: str, kind: str, schema: pa.Schema, condition: pc.Expression | None, columns: list[str] | None = None
) -> pa.Table:
    """Rows that match, with all columns or some; a condition on ``date`` spares the objects of other days."""
    where = f"{lake}/{kind}"
    try:
        filesystem, path = pafs.FileSystem.from_uri(where)
        if filesystem.get_file_info(path).type is pafs.FileType.NotFound:
            return schema.empty_table().select(columns or schema.names)
        days = ds.partitioning(pa.schema([pa.field("date", pa.string())]), flavor="hive")
        found = ds.dataset(
            path,
            pa.schema([*schema, pa.field("date", pa.string())]),
            format="parquet",
            filesystem=filesystem,
            partitioning=days,
        )
        return found.to_table(columns=columns or schema.names, filter=condition)
    except (OSError, pa.ArrowException) as error:
        raise StoreError(f"{where}: cannot be read: {error}") from error


def _write_durably(lake: Path, target: Path, data: pa.Buffer) -> None:
    """Write beside the target, sync, rename, and sync every folder up to the lake: each may be new."""
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.tmp")
    with unfinished.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(target)
    for folder in (target.parent, target.parent.parent, lake):
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _upload(where: str, data: pa.Buffer) -> None:
    """One object; it becomes visible when its upload is complete."""
    filesystem, path = pafs.FileSystem.from_uri(where)
    with filesystem.open_output_stream(path) as stream:
        stream.write(data)
