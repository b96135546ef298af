"""What a ledger is that nothing needs: orphan, leftover, or kept, and why.

Belongs here: the rule of an orphan decision, over Arrow tables, in two steps. ``judge`` looks at ledgers and the set
of referenced ids; ``decide_pending`` adds what the topic tells (for compacted ledgers and delayed-index snapshots).
Both are pure: the time comes in with the context. When in doubt a ledger is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pulsar_lifecycle.formats.ledger_metadata import (
    COMPONENT_BUCKET,
    COMPONENT_COMPACTED_LEDGER,
    COMPONENT_SCHEMA,
    LedgerState,
)
from pulsar_lifecycle.model import cursor_name
from pulsar_lifecycle.scan.snapshot_memory import KEPT_BECAUSE, NOT_ASKED, RESTING, Memory
from pulsar_lifecycle.topics.protection import Protection, owner_rule
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.findings import COMPONENTS, Context, Finding
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.owner_names import OWNER_TAGS, owner_in, owner_of
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.tables import FINDINGS, Problem
from pulsar_lifecycle.values.topic_load import COMPACTS_NOT

NEEDS_OWNER = (COMPONENT_COMPACTED_LEDGER, COMPONENT_BUCKET)
"""Components whose owner's state decides: ``judge`` leaves them to ``decide_pending``."""

PENDING = "pending"
"""What ``judge`` writes for a row that ``decide_pending`` must decide."""

CODES: tuple[type[StrEnum], ...] = (Finding, Code, Protection, Memory)
"""What column ``code`` has members of: the finding itself where that says it all."""


def code_of(row: Mapping[str, Any]) -> StrEnum:
    """The code of a finding (``tables.FINDINGS``); of one that an earlier version stored without, the finding."""
    return _MEMBERS[row["code"] or row["finding"]]


_MEMBERS: dict[str, StrEnum] = {str(one): one for codes in CODES for one in codes}


class _Verdict(NamedTuple):
    """What was decided of a row, under the names that ``tables.FINDINGS`` has for it."""

    finding: str
    code: str
    reason: str


def judge(ledgers: pa.Table, refs: Referenced, context: Context) -> pa.Table:
    """Findings (``tables.FINDINGS``) for one range of ledgers (``tables.BOOKKEEPER_LEDGERS``).

    Ledgers in use give no row. Rows of components in ``NEEDS_OWNER`` that pass everything else come out as ``PENDING``.
    """
    suspects = _suspects(ledgers, refs)
    count = suspects.num_rows
    if not count:
        return _NOTHING
    columns = _described(suspects)
    verdicts: list[_Verdict] = []
    number = np.full(count, -1, dtype=np.int32)  # in ``verdicts``; -1: not decided yet

    def decide(where: Any, finding: str, text: str, code: StrEnum | None = None) -> None:
        number[np.asarray(where, dtype=bool) & (number < 0)] = len(verdicts)
        verdicts.append(_Verdict(finding, code or finding, text))

    text = {
        name: _texts(columns[name]) for name in ("component", "namespace", "topic", "cursor", "bucket_key", "state")
    }
    problem, error = _texts(suspects.column("problem")), _texts(suspects.column("error"))
    tagged = _texts(suspects.column("application")) == "pulsar"
    ids = _numbers(columns["ledger_id"], -1)
    ctime = _numbers(columns["ctime"], 0)
    age = context.now - ctime

    decide(problem == Problem.EMPTY, Finding.EMPTY_ZNODE, "the z-node has no data")
    for row in np.flatnonzero(problem == Problem.CORRUPT):  # each with its own error
        number[row] = len(verdicts)
        verdicts.append(_Verdict(Finding.UNDECODABLE, Finding.UNDECODABLE, error[row]))
    decide(
        _in(ids, refs.offloaded), Finding.OFFLOAD_LEFTOVER, "offloaded, and its BookKeeper copy is listed as deleted"
    )
    decide(~tagged, Finding.FOREIGN, "not tagged application=pulsar", Code.NOT_TAGGED)
    decide(~_in(text["component"], COMPONENTS), Finding.KEPT, "unknown component", Code.UNKNOWN_COMPONENT)
    decide(text["topic"] == "", Finding.KEPT, "its tags name no owner", Protection.UNNAMED_OWNER)
    nameless = (text["component"] == COMPONENT_BUCKET) & ((text["cursor"] == "") | (text["bucket_key"] == ""))
    decide(nameless, Finding.KEPT, "its tags name no cursor or no bucket key", Code.UNNAMED_CURSOR)
    for mask, rule in _owner_rules(text["namespace"], text["topic"], context):
        foreign = rule.code is Protection.UNKNOWN_NAMESPACE
        decide(mask, Finding.FOREIGN if foreign else Finding.KEPT, rule.text, rule.code)
    for names, rule in (
        (context.holds, Why(Protection.LEGAL_HOLD, "legal hold on a topic or a namespace with these schemas")),
        (context.shared_namespaces, Why(Protection.SHARED_NAMESPACE, "schemas of another cluster's namespace too")),
    ):
        theirs = context.schemas_of(names)
        owned = _in(text["topic"], theirs) | _in(text["namespace"], theirs)
        decide((text["component"] == COMPONENT_SCHEMA) & owned, Finding.KEPT, rule.text, rule.code)
    closed = text["state"] == "CLOSED"
    decide(~closed & (age < context.grace), Finding.OPEN, "never closed, and younger than the grace period")
    decide(~closed, Finding.OPEN_ORPHAN, "never closed: no broker rolled it over, nothing refers to it")
    no_age = "its age is unknown: ctime is missing or in the future"
    decide((ctime <= 0) | (age < 0), Finding.KEPT, no_age, Code.UNKNOWN_AGE)
    decide(age < context.grace, Finding.TOO_YOUNG, "younger than the grace period")
    decide(_in(ids, context.under_replicated), Finding.KEPT, "under-replicated", Code.UNDER_REPLICATED)
    other_open = (
        "another unreferenced ledger of its topic is open: some broker may be writing it; if it stays so, close it: "
        "`findings --finding open`, or `open_orphan`, names it, and `bookkeeper shell readledger -ledgerid LEDGER -r` "
        "closes it"
    )
    decide(_in(text["topic"], context.open_topics), Finding.KEPT, other_open, Code.OTHER_OPEN)
    decide(_in(text["component"], NEEDS_OWNER), PENDING, "")
    unreferenced = "closed, older than the grace period, and nothing refers to it"
    decide(number < 0, Finding.ORPHAN, unreferenced, Code.UNREFERENCED)
    return _found(columns, verdicts, number)


def decide_pending(pending: pa.Table) -> pa.Table:
    """Decide rows that ``judge`` left pending (``OWNER_FACTS`` -> ``tables.FINDINGS``)."""
    component = _texts(pending.column("component"))
    state = _texts(pending.column("load_state"))
    compaction = _texts(pending.column("compaction"))
    memory = _texts(pending.column("memory"))
    exists: Any = pending.column("topic_exists").fill_null(False).to_numpy()
    resting = ~exists | _in(state, RESTING)
    bucket = component == COMPONENT_BUCKET
    free = resting | np.where(bucket, memory == Memory.NOTHING, _in(compaction, COMPACTS_NOT))
    verdicts = [
        _FREE if may_go else _held(known) if is_bucket else _COMPACTED
        for may_go, is_bucket, known in zip(free.tolist(), bucket.tolist(), memory.tolist(), strict=True)
    ]
    columns = {name: pending.column(name) for name in FINDINGS.names}
    return _found(columns, verdicts, np.arange(len(verdicts)))


_FREE = _Verdict(
    Finding.ORPHAN,
    Code.NOT_HELD,
    "closed, older than the grace period, nothing refers to it, and no broker can hold it",
)
_COMPACTED = _Verdict(
    Finding.KEPT,
    Code.COMPACTION_POSSIBLE,
    "its topic is loaded and a compaction may be running: its output is referenced nowhere yet",
)


def _held(memory: str) -> _Verdict:
    """Why a snapshot stays: its topic's broker may hold it in memory, or was not asked."""
    if memory not in KEPT_BECAUSE:
        return _Verdict(Finding.KEPT, Code.NOT_ASKED, NOT_ASKED)
    return _Verdict(Finding.KEPT, memory, KEPT_BECAUSE[Memory(memory)])


def copy_deletion_rule(row: Mapping[str, Any], context: Context) -> tuple[Outcome, Why] | None:
    """Why a copy in BookKeeper stays that our own run began to delete: (outcome of its message, why), or None.

    ``row`` is of ``tables.BOOKKEEPER_LEDGERS``. These are the rules of an orphan that hold for a ledger that its topic
    lists, too.
    """
    if rule := owner_rule(*owner_in(row), context):
        return Outcome.KEPT, rule
    if row["state"] != LedgerState.CLOSED.name:
        return Outcome.KEPT, Why(Code.NEVER_CLOSED, "offloaded, and never closed in BookKeeper")
    if row["ledger_id"] in context.under_replicated:
        return Outcome.RETRYING, Why(Code.UNDER_REPLICATED, "under-replicated")
    return None


def _owner_rules(namespaces: Any, topics: Any, context: Context) -> list[tuple[Any, Why]]:
    """One (mask, why) per distinct answer of ``owner_rule``, computed once per distinct topic."""
    first = dict(zip(reversed(topics), reversed(namespaces), strict=True))
    answers = {topic: owner_rule(namespace, topic, context) for topic, namespace in first.items()}
    numbers = {answer: number for number, answer in enumerate(dict.fromkeys(answers.values()))}
    number_of = {topic: numbers[answer] for topic, answer in answers.items()}
    given = np.fromiter(map(number_of.__getitem__, topics), np.intp, len(topics))
    return [(given == number, answer) for answer, number in numbers.items() if answer]


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


def _found(columns: Mapping[str, Any], verdicts: Sequence[_Verdict], number: Any) -> pa.Table:
    """``tables.FINDINGS`` of these columns and what was decided: for each row its ``number`` in ``verdicts``."""
    decided = {
        name: pa.array(list(map(str, some)), pa.string()).take(pa.array(number))
        for name, some in zip(_Verdict._fields, zip(*verdicts, strict=True), strict=True)
    }
    whole = {**columns, **decided}
    return pa.Table.from_arrays([whole[name] for name in FINDINGS.names], schema=FINDINGS)
