"""Deletions that were archived and never journalled, because their run ended in between: whose they were.

Belongs here: telling which they are from archive and journal, and writing the missing rows. Of offloaded copies, which
no archive holds, only telling. Not here: reading either.
Whoever archived a ledger last, under the lease, is the only one who can have deleted it since: every deletion checks
the lease, and archives the z-node as it is then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.metastore import bookkeeper_ledgers
from pulsar_lifecycle.ports import Archived, Journal, JournalRow, MetadataStore, Node, Unread
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer, details_of
from pulsar_lifecycle.values import owner_names
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.findings import component_of
from pulsar_lifecycle.values.outcomes import FINAL, Action, Outcome, Phase

WITHIN_MS = 7 * 86_400_000
"""How far back a run looks for what earlier ones left unsaid."""

NOT_KNOWN = "whether it was deleted is not known"
"""How the sentence of ``Code.OUTCOME_UNKNOWN`` begins."""

TWIN = "another message of this batch is about the same ledger"
"""The sentence of ``Code.TWIN``."""

SAYS_NOTHING = (Code.OUTCOME_UNKNOWN, Code.TWIN)
"""Codes of messages whose rows do not say what became of the ledger, or of the objects."""

ARCHIVE = pa.schema([("run_id", pa.string()), ("ledger_id", pa.int64()), ("at", pa.int64())])
"""The archive's columns that :func:`deletions_in_doubt` takes."""

JOURNAL_COLUMNS = pa.schema(
    [*ARCHIVE, *((name, pa.string()) for name in ("phase", "action", "outcome", "code", "checksum"))],
)
"""The journal's columns that :func:`deletions_in_doubt` takes."""


def deletions_in_doubt(archived: pa.Table, journal: pa.Table) -> set[tuple[str, int, int]]:
    """(run id, ledger id, when archived) of what was archived last of its ledger, and nothing was said of since.

    ``archived`` (:data:`ARCHIVE`) and ``journal`` (:data:`JOURNAL_COLUMNS`) are of one cluster, in any order. A row of
    the journal is about an archived z-node if it has a checksum. A later one of another run has found it there: that
    settles it as well as a word of its own, or an undo that restored it since.
    """
    keys = ["run_id", "ledger_id"]
    not_done = pc.is_in(journal.column("outcome"), pa.array([Outcome.WAITING, Outcome.NOT_DELETED]))
    not_known = pc.and_(not_done, _says_nothing(journal))
    decided = pc.and_(
        pc.equal(journal.column("phase"), Phase.DELETE), pc.equal(journal.column("action"), Action.DELETE_LEDGER)
    )
    decided = pc.and_(decided, pc.not_equal(pc.fill_null(journal.column("checksum"), ""), ""))
    looked = journal.filter(decided)
    said = (
        journal.filter(pc.and_(decided, pc.invert(not_known)))
        .group_by(keys, use_threads=False)
        .aggregate([("at", "max")])
    )
    joined = archived.select(ARCHIVE.names).join(said, keys, join_type="left outer", use_threads=False)
    without_row = pc.less(pc.fill_null(joined.column("at_max"), -1), joined.column("at"))
    ids = joined.filter(without_row).column("ledger_id").unique()
    if not len(ids):
        return set()
    restored = pc.and_(
        pc.equal(journal.column("phase"), Phase.UNDO), pc.equal(journal.column("outcome"), Outcome.RESTORED)
    )
    back = journal.filter(restored).group_by("ledger_id", use_threads=False).aggregate([("at", "max")]).to_pylist()
    settled_at = {row["ledger_id"]: row["at_max"] for row in back}
    found_by: dict[int, list[tuple[int, str]]] = {}
    for row in looked.filter(pc.is_in(looked.column("ledger_id"), ids)).to_pylist():
        found_by.setdefault(row["ledger_id"], []).append((row["at"], row["run_id"]))
    last: dict[int, tuple[int, bool, str]] = {}
    for row in joined.filter(pc.is_in(joined.column("ledger_id"), ids)).to_pylist():
        settled = (row["at_max"] is not None and row["at_max"] >= row["at"]) or any(
            at > row["at"] and run_id != row["run_id"] for at, run_id in found_by.get(row["ledger_id"], ())
        )
        found = (row["at"], settled, row["run_id"])
        last[row["ledger_id"]] = max(found, last.get(row["ledger_id"], found))
    return {
        (run_id, ledger_id, at)
        for ledger_id, (at, settled, run_id) in last.items()
        if not settled and settled_at.get(ledger_id, -1) < at
    }


def _says_nothing(journal: pa.Table) -> pa.ChunkedArray:
    """Which rows have one of the codes :data:`SAYS_NOTHING`, or none, as earlier versions wrote: that may be one."""
    code = journal.column("code")
    return pc.or_(pc.is_in(code, pa.array(SAYS_NOTHING)), pc.is_null(code))


def absent(store: MetadataStore, nodes: Sequence[Archived]) -> list[Archived]:
    """Those of ``nodes`` that are not there now."""
    return [one for one, node in _now(store, nodes) if node is None]


def _now(store: MetadataStore, nodes: Sequence[Archived]) -> list[tuple[Archived, Node | Unread | None]]:
    if not nodes:
        return []
    store.sync("/")
    return list(zip(nodes, store.read([one.path for one in nodes]), strict=True))


def resolve(
    run_id: str,
    nodes: Sequence[Archived],
    ordered: Mapping[int, str],
    store: MetadataStore,
    journal: Journal,
    ledgers_root: str,
) -> int:
    """Journal the ``nodes`` in doubt that are not there as deleted by the runs that archived them; returns how many.

    To be called under the lease. ``ordered``: ledger id -> the plan that ordered its deletion, if known. What is there
    still needs no word: it is decided again. What was created again since, by another transaction, was deleted before.
    """
    now = _now(store, nodes)
    gone = [one for one, n in now if n is None or (isinstance(n, Node) and n.stat.czxid != one.czxid)]
    gone.sort(key=lambda one: (one.at, one.ledger_id))
    for _, day in groupby(gone, key=lambda one: datetime.fromtimestamp(one.at / 1000, UTC).date()):
        journal.record(_rows(run_id, list(day), ordered, ledgers_root))
    return len(gone)


def lost_copies(rows: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Objects of offloaded copies that are gone for good: ``s3://BUCKET/KEY`` -> the row of the run that deleted it.

    ``rows`` are a cluster's journal in the order of its time; those of other actions do not count. What a run was about
    to delete is its own unless a later word of one that looked at them says otherwise: a run may die, or get no answer.
    The ``objects`` of a row that does not know are those from before the deletion.
    """
    said: dict[int, list[Mapping[str, Any]]] = {}
    last: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        if row["action"] != Action.DELETE_OFFLOADED:
            continue
        if row["outcome"] in (Outcome.DELETING, Outcome.DELETED):
            last |= dict.fromkeys(_objects(row), row)
        if row["phase"] == Phase.DELETE and _says_something(row):
            said.setdefault(row["ledger_id"], []).append(row)

    def lost(row: Mapping[str, Any]) -> bool:
        words = [one for one in said.get(row["ledger_id"], ()) if one["at"] >= row["at"] and _same_copy(one, row)]
        gone = any(one["outcome"] in (Outcome.DELETED, Outcome.GONE) for one in words)
        return gone or not any(details_of(_Objects, one["detail"]) for one in words)

    return {name: row for name, row in last.items() if lost(row)}


def _says_something(row: Mapping[str, Any]) -> bool:
    """Of a row of an earlier version, which has no code, only a final outcome says something."""
    return row["code"] not in SAYS_NOTHING if row["code"] else row["outcome"] in FINAL


def _objects(row: Mapping[str, Any]) -> list[str]:
    if found := details_of(_Objects, row["detail"]):
        return [f"s3://{one.bucket}/{one.key}" for one in found.objects]
    return [f"the copy of ledger {row['ledger_id']}"]


def _same_copy(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two rows about a ledger are about one copy of it; one that does not say is about any."""
    found, known = details_of(_CopyNamed, one["detail"]), details_of(_CopyNamed, other["detail"])
    if found is None or known is None:
        return True
    return _agree(found.uuid, known.uuid) and _agree(found.bucket, known.bucket)


def _agree(one: str | None, other: str | None) -> bool:
    return one is None or other is None or one == other


@dataclass(frozen=True, slots=True)
class _ObjectNamed:
    bucket: str
    key: str


@dataclass(frozen=True, slots=True)
class _Objects:
    """The objects that details of a deletion name."""

    objects: list[_ObjectNamed]


@dataclass(frozen=True, slots=True)
class _CopyNamed:
    """The offloaded copy that details of a row name, as far as they do."""

    uuid: str | None = None
    bucket: str | None = None


@dataclass(frozen=True, slots=True)
class WrittenBy:
    """Details of a row that another run wrote: that run."""

    written_by: str


def _rows(run_id: str, nodes: Sequence[Archived], ordered: Mapping[int, str], ledgers_root: str) -> list[JournalRow]:
    read = [one.node for one in nodes]
    rows: list[JournalRow] = []
    for one, tags in zip(nodes, bookkeeper_ledgers.ledger_dictionaries(read, ledgers_root), strict=True):
        component = component_of(tags["component"], tags["cursor"]).value if tags["component"] else ""
        about = Subject(
            one.ledger_id,
            component,
            owner_names.owner_in(tags)[1],
            tags["length"] or 0,
            hashlib.sha256(one.data).hexdigest(),
            (WrittenBy(run_id),),
        )
        why = Why(Code.RUN_ENDED, "its run ended before it could say so")
        rows.append(
            Writer(one.run_id, one.cluster, ordered.get(one.ledger_id, "")).row(
                Step(Action.DELETE_LEDGER, Phase.DELETE), about, Outcome.DELETED, why, one.at
            )
        )
    return rows
