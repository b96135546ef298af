# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# pyright: reportUnknownParameterType=false, reportUnknownLambdaType=false, reportAttributeAccessIssue=false
# pyright: reportMissingTypeStubs=false
# pyarrow and pyroaring have no types.
"""What a ledger is that nothing needs: orphan, leftover, or kept, and why.

Belongs here: the rule of an orphan decision, over Arrow tables, in two steps. ``judge`` looks at ledgers and the set
of referenced ids; ``settle`` adds what the topic tells (for compacted ledgers and delayed-index snapshots). Both are
pure: the time comes in with the context. When in doubt a ledger is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Namespace, Topic, cursor_name
from pulsar_lifecycle.plan.outcomes import KEPT, RETRYING
from pulsar_lifecycle.plan.references import Referenced
from pulsar_lifecycle.plan.snapshots import KEPT_BECAUSE, NOT_ASKED, Memory
from pulsar_lifecycle.plan.tables import CORRUPT, EMPTY, FINDINGS, GONE


class Finding(StrEnum):
    """What a ledger that is not plainly in use turns out to be."""

    ORPHAN = "orphan"
    """Nothing refers to it, and every rule agrees that it may go."""
    OFFLOAD_LEFTOVER = "offload_leftover"
    """Offloaded and marked deleted in BookKeeper, yet still there."""
    OPEN_ORPHAN = "open_orphan"
    """Nothing refers to it, past the grace period, and never closed: reported, not deleted."""
    DANGLING = "dangling_reference"
    """Metadata refers to it and BookKeeper does not have it."""
    DAMAGED = "damaged_entry"
    """One of its entries held references and cannot be read any more: everything of their owner is kept."""
    UNANSWERED = "unanswered_memory"
    """Its broker fails at saying what it has in memory of a topic: everything of the topic is kept. Has no ledger."""
    EMPTY_ZNODE = "empty_znode"
    """A ledger z-node without data."""
    UNDECODABLE = "undecodable"
    """A ledger z-node that could not be decoded."""
    FOREIGN = "foreign"
    """Not Pulsar's, or of a namespace that no declared root has."""
    TOO_YOUNG = "too_young"
    """Unreferenced, but younger than the grace period."""
    OPEN = "open"
    """Unreferenced, young, and still open or in recovery."""
    KEPT = "kept"
    """Unreferenced, and kept by the rule that ``reason`` names."""


COMPONENTS = ("managed-ledger", "compacted-ledger", "schema", "delayed-index-bucket")
"""Values of the ``component`` tag (LedgerMetadataUtils, 4.0.7)."""

NEEDS_OWNER = ("compacted-ledger", "delayed-index-bucket")
"""Components whose owner's state decides: ``judge`` leaves them to ``settle``."""

PENDING = "pending"
"""What ``judge`` writes for a row that ``settle`` must decide."""


def _empty() -> BitMap64:
    return BitMap64()


@dataclass(frozen=True, slots=True)
class Context:
    """What the decision needs beside the tables; small enough to go to every executor.

    ``now`` and ``grace`` are ms. ``namespaces`` exist under a declared root; ``gone_namespaces`` were named as gone by
    the operator; ``shared_namespaces`` exist under another cluster's root, whose brokers we cannot ask;
    ``kept_namespaces`` could not be read whole. ``holds`` are tenants, namespaces or full topic names.
    ``shadow_sources`` are full topic names that some shadow topic reads from.
    """

    now: int
    grace: int
    namespaces: frozenset[str]
    gone_namespaces: frozenset[str] = frozenset()
    shared_namespaces: frozenset[str] = frozenset()
    kept_namespaces: frozenset[str] = frozenset()
    holds: frozenset[str] = frozenset()
    shadow_sources: frozenset[str] = frozenset()
    system_topics: bool = False
    under_replicated: BitMap64 = field(default_factory=_empty)
    kept_topics: frozenset[str] = frozenset()
    """Topics with references in an entry that is lost, or that their broker does not tell.

    Of schemas the partitioned parent, with all its partitions.
    """
    open_topics: frozenset[str] = frozenset()
    """Topics of which an unreferenced ledger is open: some broker, perhaps of another cluster, may be writing them.

    Also as whose their schemas go (:func:`schema_owner`).
    """
    offload_buckets: frozenset[str] = frozenset()
    """Where a deletion run may delete offloaded copies; none without an object store."""

    def at(self, now: int) -> Context:
        """The same context at another time (ms)."""
        return replace(self, now=now)

    @property
    def held_parents(self) -> frozenset[str]:
        """Partitioned topics of which some partition is on hold: its schemas are the parent's."""
        return frozenset(parent_of(name) for name in self.holds if parent_of(name) != name)

    def schemas_of(self, names: frozenset[str]) -> list[str]:
        """As whose the schemas of these topics and namespaces go, where that is another name."""
        return sorted({schema_owner(name) for name in names} - names)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: sorted(v) if isinstance(v, frozenset | BitMap64) else v for name, v in values.items()}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Context:
        """The inverse of :meth:`to_json`."""
        values: dict[str, Any] = {n: frozenset(v) if isinstance(v, list) else v for n, v in document.items()}
        values["under_replicated"] = BitMap64(document["under_replicated"])
        return cls(**values)


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
    error = _texts(suspects.column("error"))
    tagged = _texts(suspects.column("application")) == "pulsar"
    ids = _numbers(columns["ledger_id"], -1)
    ctime = _numbers(columns["ctime"], 0)
    age = context.now - ctime

    decide(error == EMPTY, Finding.EMPTY_ZNODE, "the z-node has no data")
    decide(_where(error, lambda said: said.startswith(CORRUPT)), Finding.UNDECODABLE, error)
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


OWNER_FACTS = pa.schema(
    [
        *FINDINGS,
        pa.field("topic_exists", pa.bool_()),
        pa.field("load_state", pa.string()),
        pa.field("compaction", pa.string()),
        pa.field("memory", pa.string()),
    ]
)
"""Pending findings joined with what is known of their topic; nulls where there is no such topic. ``memory``: what its
broker can hold of a delayed-index snapshot (``snapshots.Memory``), null for other components and where it rests."""

RESTING = ("unloaded", "never_loaded")
"""Load states in which no broker has anything of a topic in memory."""


def rests(topic_exists: bool | None, load_state: str | None) -> bool:
    """Whether no broker has anything of a topic in memory: it is gone, or at rest."""
    return not topic_exists or load_state in RESTING


def settle(pending: pa.Table) -> pa.Table:
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


NEVER = (
    "pulsar/system/__ledger_deletion",
    "/__transaction_log_",
    "__transaction_pending_ack",
    "/transaction_coordinator_",
)
"""Parts of topic names whose ledgers are never deleted by us: our own queue, and transactions."""


def owner_rule(namespace: str, topic: str, context: Context) -> tuple[str, str] | None:
    """Why an owner's ledgers are kept: (finding, reason), or None where the owner is no reason.

    ``namespace`` is ``T/NS``, ``topic`` the full name.
    """
    local = topic.rpartition("/")[2]
    if any(part in topic for part in NEVER):
        return Finding.KEPT, "deletion queue or transaction: never deleted"
    if namespace not in context.namespaces and namespace not in context.gone_namespaces:
        return (
            Finding.FOREIGN,
            f"namespace {namespace} exists under no declared root: foreign or gone (bookkeeper.gone_namespaces)",
        )
    if namespace in context.shared_namespaces:
        return Finding.KEPT, f"namespace {namespace} is another cluster's too: only its own brokers know what they hold"
    if namespace in context.kept_namespaces:
        return Finding.KEPT, f"namespace {namespace} could not be read whole"
    if context.kept_topics and not context.kept_topics.isdisjoint((topic, schema_owner(topic))):
        return Finding.KEPT, (
            "references of its topic, or of its schemas, are in an entry that is gone or damaged, or in the memory of "
            "a broker that fails at saying so"
        )
    if context.holds and not context.holds.isdisjoint(holders(namespace, topic)):
        return Finding.KEPT, "legal hold"
    if context.holds and topic in context.held_parents:
        return Finding.KEPT, "legal hold on one of its partitions"
    if not context.shadow_sources.isdisjoint((topic, holders(namespace, topic)[-1])):
        return Finding.KEPT, "source of a shadow topic"
    if not context.system_topics and (local.startswith("__") or namespace == "pulsar/system"):
        return (
            Finding.KEPT,
            "system topic (orphans.system_topics opts in; to trim or delete it trimming.system_topics, too)",
        )
    return None


def released_rule(row: Mapping[str, Any], context: Context) -> tuple[str, str] | None:
    """Why a copy in BookKeeper stays that our own run gave up: (outcome of its message, reason), or None.

    ``row`` is of ``tables.BOOKKEEPER_LEDGERS``. These are the rules of an orphan that hold for a ledger that its topic
    lists, too.
    """
    if rule := owner_rule(*owner_in(row), context):
        return KEPT, f"{rule[0]}: {rule[1]}"
    if row["state"] != LedgerState.CLOSED.name:
        return KEPT, "offloaded, and never closed in BookKeeper"
    return (RETRYING, "under-replicated") if row["ledger_id"] in context.under_replicated else None


def holders(namespace: str, topic: str) -> tuple[str, str, str, str]:
    """Everything a legal hold may name to hold this topic: tenant, namespace, topic, partitioned parent."""
    return namespace.partition("/")[0], namespace, topic, parent_of(topic)


def topic_of(kind: str, owner: str) -> Topic | None:
    """The topic of a reference's owner (``tables.REFERENCES``); None for a name that Pulsar gives no topic or schema.

    A schema's topic is the partitioned parent.
    """
    namespace, _, name = owner.rpartition("/")
    try:
        return Topic.from_managed_ledger(f"{namespace}/persistent/{name}" if kind == "R5" else owner)
    except CorruptFormat:
        return None


def owners_to_keep(lost: Iterable[tuple[str, str]]) -> tuple[frozenset[str], frozenset[str]]:
    """``Context.kept_topics``, and namespaces to keep, where references of (kind, owner) cannot be known.

    What a strangely named owner referred to may be anything in its namespace.
    """
    topics = {(kind, owner): topic_of(kind, owner) for kind, owner in lost}
    strange = {_namespace_in(kind, owner) for (kind, owner), topic in topics.items() if not topic}
    return frozenset(str(topic) for topic in topics.values() if topic), frozenset(strange)


def has_a_name(kind: str, owner: str) -> bool:
    """Whether :func:`owners_to_keep` can keep whatever a reference's owner refers to."""
    if topic_of(kind, owner):
        return True
    try:
        return bool(Namespace.parse(_namespace_in(kind, owner)))
    except CorruptFormat:
        return False


def _namespace_in(kind: str, owner: str) -> str:
    return owner.rpartition("/")[0] if kind == "R5" else owner.partition("/persistent/")[0]


def names_in_tags(ledgers: pa.RecordBatch | pa.Table) -> set[str]:
    """Every topic that the tags of ledgers (:data:`OWNER_TAGS`) name."""
    tags = set(zip(*(ledgers.column(tag).to_pylist() for tag in OWNER_TAGS), strict=True))
    return {owner_of(*owned)[1] for owned in tags} - {""}


def schema_owner(name: str) -> str:
    """As whose a topic's or a namespace's schemas go: a partition's as its parent's, V1 names without the cluster.

    ``name`` is a full topic name or a namespace; anything else comes back as it is.
    """
    try:
        if "://" not in name:
            return str(replace(Namespace.parse(name), cluster=None))
        topic = Topic.parse(name).partitioned_parent
    except CorruptFormat:
        return name
    return str(replace(topic, namespace=replace(topic.namespace, cluster=None)))


def full_names(topics: Iterable[str]) -> frozenset[str]:
    """Names as somebody wrote them, and the full names that TopicName.get makes of short ones: ``T/NS/x`` and ``x``."""
    return frozenset(name for topic in topics for name in (topic, _full_name(topic)))


def _full_name(name: str) -> str:
    if "://" in name:
        return name
    return f"persistent://{name}" if name.count("/") == 2 else f"persistent://public/default/{name}"


def parent_of(topic: str) -> str:
    """The partitioned topic that a full topic name is a partition of; the name itself if it is none."""
    parent, found, number = topic.rpartition("-partition-")
    return parent if found and number.isdecimal() else topic


def _owner_rules(namespaces: Any, topics: Any, context: Context) -> list[tuple[Any, str, str]]:
    """One (mask, finding, reason) per distinct answer of ``owner_rule``, computed once per distinct topic."""
    first = dict(zip(reversed(topics), reversed(namespaces), strict=True))
    answers = {topic: owner_rule(namespace, topic, context) for topic, namespace in first.items()}
    numbers = {answer: number for number, answer in enumerate(dict.fromkeys(answers.values()))}
    number_of = {topic: numbers[answer] for topic, answer in answers.items()}
    given = np.fromiter(map(number_of.__getitem__, topics), np.intp, len(topics))
    return [(given == number, *answer) for answer, number in numbers.items() if answer]


_NEEDED_TO_JUDGE = ("error", "application", "length", "write_quorum", "bucket_cursor")
"""Columns of ``tables.BOOKKEEPER_LEDGERS`` that decide, beside those of ``tables.FINDINGS`` and ``OWNER_TAGS``."""

_NOTHING = FINDINGS.empty_table()


def _suspects(ledgers: pa.Table, refs: Referenced) -> pa.Table:
    """Ledgers that nothing needs in BookKeeper; undecodable z-nodes are suspects too, vanished ones are not."""
    wanted = {*FINDINGS.names, *OWNER_TAGS, *_NEEDED_TO_JUDGE}
    there = ledgers.select([name for name in ledgers.column_names if name in wanted])
    ids, error = there.column("ledger_id"), there.column("error")
    if ids.null_count or error.null_count < len(error):
        there = there.filter(pc.and_(pc.is_valid(ids), pc.fill_null(pc.not_equal(error, GONE), True)))
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


OWNER_TAGS = ("component", "managed_ledger", "schema_id", "compacted_topic", "bucket_topic")
"""The columns that :func:`owner_of` takes, in its order."""


def written_topics(ledgers: pa.RecordBatch | pa.Table) -> set[str]:
    """``Context.open_topics`` of unreferenced ledgers that are not closed: their owners, and as whose schemas go."""
    owners = names_in_tags(ledgers)
    return owners | set(map(schema_owner, owners))


def owner_in(row: Mapping[str, Any]) -> tuple[str, str]:
    """:func:`owner_of` of a row of ``tables.BOOKKEEPER_LEDGERS``."""
    return owner_of(*(row[tag] for tag in OWNER_TAGS))


@lru_cache(maxsize=4096)
def owner_of(
    component: str | None, managed_ledger: str | None, schema_id: str | None, compacted: str | None, bucket: str | None
) -> tuple[str, str]:
    """(namespace, full topic name) of the ledger with these tags; empty strings where they name none.

    A schema's topic is the partitioned parent. A name that does not read back as itself, or that no z-node can have,
    counts as none: it would send a later check to another topic.
    """
    try:
        if component == "managed-ledger" and managed_ledger:
            topic = Topic.from_managed_ledger(managed_ledger)
        elif component == "compacted-ledger" and compacted:
            topic = Topic.parse(compacted)
        elif component == "delayed-index-bucket" and bucket:
            topic = Topic.parse(bucket)
        elif component == "schema" and schema_id:
            namespace, _, name = schema_id.rpartition("/")
            topic = Topic.from_managed_ledger(f"{namespace}/persistent/{name}")
        else:
            return "", ""
        unclear = topic.domain != "persistent" or topic.local in (".", "..") or Topic.parse(str(topic)) != topic
    except CorruptFormat:
        return "", ""
    return ("", "") if unclear else (str(topic.namespace), str(topic))


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
