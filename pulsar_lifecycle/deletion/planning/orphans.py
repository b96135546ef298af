# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportAttributeAccessIssue=false
# pyright: reportMissingTypeStubs=false
# pyarrow and pyroaring have no types.
"""What a ledger is that nothing needs: orphan, leftover, or kept, and why.

Belongs here: the rule of an orphan decision, over Arrow tables, in two steps. ``judge`` looks at ledgers and the set
of referenced ids; ``decide_pending`` adds what the topic tells (for compacted ledgers and delayed-index snapshots).
Both are pure: the time comes in with the context. When in doubt a ledger is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import cursor_name
from pulsar_lifecycle.records.codes import Code
from pulsar_lifecycle.records.findings import COMPONENTS, Context, Finding
from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.records.owner_names import OWNER_TAGS, owner_in, owner_of
from pulsar_lifecycle.records.referenced import Referenced
from pulsar_lifecycle.records.tables import FINDINGS, Problem
from pulsar_lifecycle.scan.snapshot_memory import KEPT_BECAUSE, NOT_ASKED, RESTING, Memory
from pulsar_lifecycle.topics.protection import owner_rule

NEEDS_OWNER = ("compacted-ledger", "delayed-index-bucket")
"""Components whose owner's state decides: ``judge`` leaves them to ``decide_pending``."""

PENDING = "pending"
"""What ``judge`` writes for a row that ``decide_pending`` must decide."""


def judge(ledgers: pa.Table, refs: Referenced, context: Context) -> pa.Table:
    """Findings (``tables.FINDINGS``) for one range of ledgers (``tables.BOOKKEEPER_LEDGERS``).

    Ledgers in use give no row. Rows of components in ``NEEDS_OWNER`` that pass everything else come out as ``PENDING``.
    """
    suspects = _suspects(ledgers, refs)
    count = suspects.num_rows
    if not count:
        return _NOTHING
    columns = _described(suspects)
    finding = np.full(count, Finding.KEPT.value, dtype=object)
    reason = np.full(count, "", dtype=object)
    open_ = np.ones(count, dtype=bool)  # not decided yet

    def decide(where: Any, what: str, why: str | Any) -> None:
        mask = np.asarray(where, dtype=bool) & open_
        finding[mask] = what
        reason[mask] = why[mask] if isinstance(why, np.ndarray) else why
        open_[mask] = False

    text = {
        name: _texts(columns[name]) for name in ("component", "namespace", "topic", "cursor", "bucket_key", "state")
    }
    problem, error = _texts(suspects.column("problem")), _texts(suspects.column("error"))
    tagged = _texts(suspects.column("application")) == "pulsar"
    ids = _numbers(columns["ledger_id"], -1)
    ctime = _numbers(columns["ctime"], 0)
    age = context.now - ctime

    decide(problem == Problem.EMPTY, Finding.EMPTY_ZNODE, "the z-node has no data")
    decide(problem == Problem.CORRUPT, Finding.UNDECODABLE, error)
    decide(_in(ids, refs.offloaded), Finding.OFFLOAD_LEFTOVER, "offloaded, and its BookKeeper copy is marked deleted")
    decide(~tagged, Finding.FOREIGN, "not tagged application=pulsar")
    decide(~_in(text["component"], COMPONENTS), Finding.KEPT, "unknown component")
    decide(text["topic"] == "", Finding.KEPT, "its tags name no owner")
    nameless = (text["component"] == "delayed-index-bucket") & ((text["cursor"] == "") | (text["bucket_key"] == ""))
    decide(nameless, Finding.KEPT, "its tags name no cursor or no bucket key")
    for mask, what, why in _owner_rules(text["namespace"], text["topic"], context):
        decide(mask, what, why)
    for names, why in (
        (context.holds, "legal hold on a topic or a namespace with these schemas"),
        (context.shared_namespaces, "schemas of another cluster's namespace too"),
    ):
        theirs = context.schemas_of(names)
        owned = _in(text["topic"], theirs) | _in(text["namespace"], theirs)
        decide((text["component"] == "schema") & owned, Finding.KEPT, why)
    closed = text["state"] == "CLOSED"
    decide(~closed & (age < context.grace), Finding.OPEN, "never closed, and younger than the grace period")
    decide(~closed, Finding.OPEN_ORPHAN, "never closed: no broker rolled it over, nothing refers to it")
    decide((ctime <= 0) | (age < 0), Finding.KEPT, "its age is unknown: ctime is missing or in the future")
    decide(age < context.grace, Finding.TOO_YOUNG, "younger than the grace period")
    decide(_in(ids, context.under_replicated), Finding.KEPT, "under-replicated")
    decide(
        _in(text["topic"], context.open_topics),
        Finding.KEPT,
        "another unreferenced ledger of its topic is open: some broker may be writing it",
    )
    decide(_in(text["component"], NEEDS_OWNER), PENDING, "")
    decide(open_, Finding.ORPHAN, "closed, older than the grace period, and nothing refers to it")
    return _found(columns, finding, reason)


def decide_pending(pending: pa.Table) -> pa.Table:
    """Decide rows that ``judge`` left pending (``OWNER_FACTS`` -> ``tables.FINDINGS``)."""
    component = _texts(pending.column("component"))
    state = _texts(pending.column("load_state"))
    compaction = _texts(pending.column("compaction"))
    memory = _texts(pending.column("memory"))
    exists: Any = pending.column("topic_exists").fill_null(False).to_numpy()
    resting = ~exists | _in(state, RESTING)
    bucket = component == "delayed-index-bucket"
    free = resting | np.where(bucket, memory == Memory.NOTHING, _in(compaction, ("NOT_RUN", "SUCCESS")))
    why_kept = np.where(
        bucket,
        np.array([KEPT_BECAUSE.get(code, NOT_ASKED) for code in memory], dtype=object),
        "its topic is loaded and a compaction may be running: its output is referenced nowhere yet",
    )
    finding = np.where(free, Finding.ORPHAN.value, Finding.KEPT.value)
    reason = np.where(
        free, "closed, older than the grace period, nothing refers to it, and no broker can hold it", why_kept
    )
    return _found({name: pending.column(name) for name in FINDINGS.names}, finding, reason)


def released_rule(row: Mapping[str, Any], context: Context) -> tuple[Outcome, Code | Finding, str] | None:
    """Why a copy in BookKeeper stays that our own run released: (outcome of its message, code, reason), or None.

    ``row`` is of ``tables.BOOKKEEPER_LEDGERS``. These are the rules of an orphan that hold for a ledger that its topic
    lists, too.
    """
    if rule := owner_rule(*owner_in(row), context):
        return Outcome.KEPT, Finding(rule[0]), f"{rule[0]}: {rule[1]}"
    if row["state"] != LedgerState.CLOSED.name:
        return Outcome.KEPT, Code.NEVER_CLOSED, "offloaded, and never closed in BookKeeper"
    if row["ledger_id"] in context.under_replicated:
        return Outcome.RETRYING, Code.UNDER_REPLICATED, "under-replicated"
    return None


def _owner_rules(namespaces: Any, topics: Any, context: Context) -> list[tuple[Any, str, str]]:
    """One (mask, finding, reason) per distinct answer of ``owner_rule``, computed once per distinct topic."""
    first = dict(zip(reversed(topics), reversed(namespaces), strict=True))
    answers = {topic: owner_rule(namespace, topic, context) for topic, namespace in first.items()}
    numbers = {answer: number for number, answer in enumerate(dict.fromkeys(answers.values()))}
    number_of = {topic: numbers[answer] for topic, answer in answers.items()}
    given = np.fromiter(map(number_of.__getitem__, topics), np.intp, len(topics))
    return [(given == number, *answer) for answer, number in numbers.items() if answer]


_NEEDED_TO_JUDGE = ("problem", "error", "application", "length", "write_quorum", "bucket_cursor")
"""Columns of ``tables.BOOKKEEPER_LEDGERS`` that decide, beside those of ``tables.FINDINGS`` and ``OWNER_TAGS``."""

_NOTHING = FINDINGS.empty_table()


def _suspects(ledgers: pa.Table, refs: Referenced) -> pa.Table:
    """Ledgers that nothing needs in BookKeeper; undecodable z-nodes are suspects too, vanished ones are not."""
    wanted = {*FINDINGS.names, *OWNER_TAGS, *_NEEDED_TO_JUDGE}
    there = ledgers.select([name for name in ledgers.column_names if name in wanted])
    ids, problem = there.column("ledger_id"), there.column("problem")
    if ids.null_count or problem.null_count < len(problem):
        there = there.filter(pc.and_(pc.is_valid(ids), pc.fill_null(pc.not_equal(problem, Problem.GONE), True)))
        ids = there.column("ledger_id")
    numbers = ids.to_numpy()
    unneeded = BitMap64(numbers.astype(np.uint64)) - refs.needed
    if not unneeded:
        return there.slice(0, 0)
    if len(unneeded) == len(numbers):
        return there
    return there.filter(pa.array(np.isin(numbers, np.array(unneeded.to_array(), dtype=np.int64))))


def _described(suspects: pa.Table) -> dict[str, Any]:
    """The columns of FINDINGS that are known before anything is decided, namespace and topic worked out of the tags."""
    columns: dict[str, Any] = dict(zip(suspects.column_names, suspects.columns, strict=True))
    tags = list(zip(*(columns[tag].to_pylist() for tag in OWNER_TAGS), strict=True))
    owner = {owned: owner_of(*owned) for owned in set(tags)}
    owners = [owner[owned] for owned in tags]
    length = _numbers(columns["length"], 0)
    quorum = np.maximum(_numbers(columns["write_quorum"], 1), 1)
    cursors = [
        cursor_name(encoded) if encoded else bucket
        for encoded, bucket in zip(columns["cursor"].to_pylist(), columns["bucket_cursor"].to_pylist(), strict=True)
    ]
    return columns | {
        "namespace": pa.array([namespace for namespace, _ in owners], pa.string()),
        "topic": pa.array([topic for _, topic in owners], pa.string()),
        "cursor": pa.array(cursors, pa.string()),
        "logical_bytes": pa.array(length),
        "physical_bytes": pa.array(length * quorum),
    }


def _texts(column: Any) -> Any:
    if column.null_count == len(column):
        return np.full(len(column), "", dtype=object)
    return (column.fill_null("") if column.null_count else column).to_numpy(zero_copy_only=False)


def _numbers(column: Any, missing: int) -> Any:
    return np.asarray(column.fill_null(missing) if column.null_count else column, dtype=np.int64)


def _where(values: Any, holds: Callable[[Any], bool]) -> Any:
    return np.fromiter(map(holds, values), dtype=bool, count=len(values))


def _in(values: Any, known: BitMap64 | Collection[str]) -> Any:
    if not known:
        return np.zeros(len(values), dtype=bool)
    members: Any = known if isinstance(known, BitMap64) else frozenset(known)
    return _where(values.tolist(), members.__contains__)


def _found(columns: Mapping[str, Any], finding: Any, reason: Any) -> pa.Table:
    """``tables.FINDINGS`` of these columns and what was decided."""
    decided = {
        "finding": pa.array([str(f) for f in finding], pa.string()),
        "reason": pa.array(reason, pa.string()),
    }
    whole = {**columns, **decided}
    return pa.Table.from_arrays([whole[name] for name in FINDINGS.names], schema=FINDINGS)
