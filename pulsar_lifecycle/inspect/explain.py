"""Why one ledger is kept or may go: what its owners say now, joined with what the lake remembers of it.

Belongs here: looking one ledger up afresh through the ports, and the answer. Not here: the rule, which is that of
``deletion/planning/orphans.py``; reading the lake; printing. Nothing is written, no broker is asked and no topic is
loaded, so what brokers hold in memory is not seen: an answer never deletes anything, and the deletion run asks for
itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.deletion.copy_deletions import NO_OBJECT_STORE, holds_of
from pulsar_lifecycle.deletion.owner_check import read_instead
from pulsar_lifecycle.deletion.planning import orphans
from pulsar_lifecycle.errors import AccessDenied
from pulsar_lifecycle.formats import ledger_path, managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import COMPONENT_SCHEMA
from pulsar_lifecycle.inspect.explain_codes import ExplainCode, LedgerVerdict, Verdict
from pulsar_lifecycle.inspect.ledger_history import History
from pulsar_lifecycle.journal.in_doubt import ARCHIVE, JOURNAL_COLUMNS, WITHIN_MS, deletions_in_doubt, lost_copies
from pulsar_lifecycle.journal.intents import IntentState
from pulsar_lifecycle.metastore import bookkeeper_ledgers
from pulsar_lifecycle.metastore.schemas import read_schemas
from pulsar_lifecycle.metastore.topics import read_cursors, read_managed_ledgers
from pulsar_lifecycle.metastore.walk import SCHEMAS_ROOT, Unit
from pulsar_lifecycle.model import COMPACTION_CURSOR, MANAGED_LEDGERS_ROOT, Topic
from pulsar_lifecycle.ports import LedgerReader, MetadataStore, Node, Unread
from pulsar_lifecycle.scan import references as kinds
from pulsar_lifecycle.scan import stored_references
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.findings import Context, Finding
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase, Waiting
from pulsar_lifecycle.values.owner_names import owner_in
from pulsar_lifecycle.values.tables import Problem

Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class OwnersNow:
    """What owners say now: rows of ``tables.REFERENCES`` for one ledger, the z-nodes asked, what was not readable.

    ``offloads``: its copies in tiered storage, in words. ``copies``: the keys of those that topics name as complete.
    ``written``: when the newest of the topics' z-nodes was (ms). ``copy_kept``: why a deletion run would not delete
    a copy in BookKeeper that is listed as deleted. ``stale``: z-nodes whose R3 no broker goes by.
    """

    references: pa.Table
    asked: tuple[str, ...]
    trouble: tuple[str, ...]
    offloads: tuple[str, ...] = ()
    copies: tuple[str, ...] = ()
    written: int = 0
    copy_kept: Why | None = None
    stale: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer, more reasons, and all it rests on.

    ``ledger`` is the row of ``tables.BOOKKEEPER_LEDGERS`` as read now, None where there is no z-node.
    """

    ledger_id: int
    answer: LedgerVerdict
    notes: tuple[str, ...]
    ledger: Row | None
    path: str
    topic: str
    look: OwnersNow
    history: History

    @property
    def verdict(self) -> Verdict:
        """The answer in a word."""
        return self.answer.verdict

    @property
    def code(self) -> StrEnum:
        """Why, as a code."""
        return self.answer.why.code


def explain(
    ledger_id: int, history: History, *, store: MetadataStore, reader: LedgerReader, now: int, ledgers_root: str
) -> Explanation:
    """Explain one ledger at ``now`` (ms). Raises what ``store`` raises; an unreadable owner keeps the ledger."""
    store.sync("/")
    path = ledger_path.ledger_path(ledger_id, ledgers_root)
    node = store.read([path])[0]
    rows = bookkeeper_ledgers.ledger_rows([node] if isinstance(node, Node) else [], ledgers_root)
    ledger = rows.to_pylist()[0] if rows.num_rows else None
    topic = owner_in(ledger)[1] if ledger else ""
    owners, schemas = _owners(ledger, history)
    found = look(store, reader, ledger_id, owners, schemas, ledgers_root)
    if history.deletes_copy(ledger) and not found.trouble:
        found = replace(found, copy_kept=_copy_kept(store, ledger_id, history))
    if isinstance(node, Unread):
        answer = _kept(Code.UNREAD, f"its z-node cannot be read: {node.reason}")
    elif ledger is None:
        answer = _absent(found, history, now)
    else:
        answer = _present(ledger_id, rows, found, history, now)
    notes = (*_notes(answer.verdict, ledger, found, history), *found.offloads, *found.trouble)
    return Explanation(ledger_id, answer, notes, ledger, path, topic, found, history)


# -------------------------------------------------------------------------------------------------------- fresh look


def look(
    store: MetadataStore,
    reader: LedgerReader,
    ledger_id: int,
    managed_ledgers: Iterable[str],
    schema_ids: Iterable[str],
    ledgers_root: str,
) -> OwnersNow:
    """Everything below these owners' z-nodes, and in the entries they lead to, that refers to the ledger."""
    topic_paths = [f"{MANAGED_LEDGERS_ROOT}/{name}" for name in sorted(set(managed_ledgers))]
    schema_paths = [f"{SCHEMAS_ROOT}/{name}" for name in sorted(set(schema_ids))]
    units = [_unit(path) for path in topic_paths]
    topics = _table(read_managed_ledgers(store, units), tables.MANAGED_LEDGERS)
    cursors = _table(read_cursors(store, units), tables.MANAGED_CURSORS)
    schemas = _table(read_schemas(store, [_unit(path) for path in schema_paths]), tables.SCHEMAS)
    read = [table.filter(pc.is_null(table.column("problem"))) for table in (topics, cursors, schemas)]
    compactions = [
        (row["managed_ledger"], row["path"], row["cursors_ledger_id"])
        for row in read[1].to_pylist()
        if row["cursor"] == COMPACTION_CURSOR and row["cursors_ledger_id"] >= 0
    ]
    locators = [
        (row["schema_id"], row["path"], [(v["version"], v["ledger_id"], v["entry_id"]) for v in row["versions"]])
        for row in read[2].to_pylist()
    ]
    stored = kinds.table_of(
        [
            *stored_references.compaction_references(store, reader, compactions, ledgers_root),
            *stored_references.schema_references(store, reader, locators, ledgers_root),
        ]
    )
    makers = (kinds.from_managed_ledgers, kinds.from_cursors, kinds.from_schemas)
    parts = [make(table) for make, table in zip(makers, read, strict=True) if table.num_rows]
    every = pa.concat_tables([*parts, stored])
    trouble = [
        f"{row['path']}: {row['error']}"
        for t in (topics, cursors, schemas)
        for row in t.to_pylist()
        if row["problem"] not in (None, Problem.GONE)
    ]
    trouble += [f"{row['problem']}: {row['error']}" for row in stored.to_pylist() if row["problem"]]
    mine = every.filter(pc.fill_null(pc.equal(every.column("ledger_id"), ledger_id), False))
    rows = read[0].to_pylist()
    offloads = _offloads(store, ledger_id, rows)
    copies = (
        f"{item['offload_uuid']}-ledger-{ledger_id}"
        for row in rows
        for item in row["ledgers"]
        if item["ledger_id"] == ledger_id and item["offload_uuid"] and item["offload_complete"]
    )
    written = max((row["mtime"] for row in rows), default=0)
    return OwnersNow(
        mine, (*topic_paths, *schema_paths), tuple(trouble), tuple(offloads), tuple(copies), written,
        stale=kinds.stale_copies(every),
    )  # fmt: skip


def _offloads(store: MetadataStore, ledger_id: int, topics: Iterable[Row]) -> Iterator[str]:
    """What topics' metadata, and our own open attempts, say of a ledger in tiered storage."""
    for row in topics:
        for item in row["ledgers"]:
            if item["ledger_id"] == ledger_id and item["offload_uuid"]:
                copy = f"{item['offload_uuid']}-ledger-{ledger_id}, as {row['path']} says"
                deleted = "; its topic lists its copy in BookKeeper as deleted" if item["bookkeeper_deleted"] else ""
                complete = item["offload_complete"]
                yield f"offloaded as {copy}{deleted}" if complete else f"offload under way, or broken off: {copy}"
    for attempt in attempts.of_ledgers(store, [ledger_id]).values():
        said = f"under {attempt.uuid}" if isinstance(attempt, Attempt) else f"that cannot be read: {attempt.why}"
        yield f"an offload attempt of ours is open: {attempts.path_of(ledger_id)}, {said}"


def _copy_kept(store: MetadataStore, ledger_id: int, history: History) -> Why | None:
    """What a deletion run asks about a copy in BookKeeper that is listed as deleted, but for objects and brokers."""
    deletion, evidence = history.copy_deletion, history.evidence
    if deletion is None or evidence is None:
        return None
    topic = Topic.parse(deletion.topic)
    node = readable(store.read([f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"])[0], deletion.topic)
    where = read_instead(store, managed_ledger.decode(node.data if node else b""), ledger_id, deletion, topic)
    if isinstance(where, Why):
        return where
    if not history.buckets:
        return Why(Waiting.NO_OBJECT_STORE, NO_OBJECT_STORE)
    if deletion.bucket not in history.buckets:
        return Why(Waiting.OBJECT_STORE_DENIES, f"{deletion.bucket} is not one of object_store.buckets")
    return holds_of(store, {ledger_id: where}, evidence.offloads).get(ledger_id)


def _unit(path: str) -> Unit:
    parent, _, name = path.rpartition("/")
    return Unit(parent, (name,), 1)


def _table(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(list(batches), schema)


def _owners(ledger: Row | None, history: History) -> tuple[set[str], set[str]]:
    """Managed ledgers and schema ids to ask: the owner by the tags, and whoever referred to it in the scan."""
    owners: set[str] = set()
    schemas: set[str] = set()
    for row in history.references.to_pylist():
        (schemas if row["kind"] == "R5" else owners).add(row["owner"])
    topic = owner_in(ledger)[1] if ledger else ""
    if ledger and topic and ledger["component"] == COMPONENT_SCHEMA:
        schemas.add(ledger["schema_id"])
    elif topic:
        owners.add(Topic.parse(topic).managed_ledger)
    elif not owners | schemas:  # a ledger that is gone: what the lake wrote down of it names its topic
        past = [row["topic"] for row in ((history.finding,) if history.finding else history.journal) if row["topic"]]
        owners.update(Topic.parse(name).managed_ledger for name in past[-1:])
    return owners, schemas


# ------------------------------------------------------------------------------------------------------- the verdict


def _absent(found: OwnersNow, history: History, now: int) -> LedgerVerdict:
    named = [row for row in found.references.to_pylist() if row["kind"] != "R3" or row["referrer"] not in found.stale]
    needing = [row for row in named if row["keeps_bookkeeper_copy"]]
    deletions = history.deletions()
    if needing:
        text = f"BookKeeper does not have it, but {_referring(needing)}"
        return LedgerVerdict(Verdict.DANGLING, Why(Verdict.DANGLING, text))
    unsaid = deletions_in_doubt(
        pa.Table.from_pylist(list(history.archived), ARCHIVE),
        pa.Table.from_pylist(list(history.journal), JOURNAL_COLUMNS),
    )
    for run_id, _, at in unsaid:
        return LedgerVerdict(Verdict.GONE, _unsaid(run_id, now - at <= WITHIN_MS), run_id)
    if deletions:
        run_id, reason = deletions[-1]["run_id"], deletions[-1]["reason"]
        if set(found.copies) - _lost_of(found, history.journal):
            text = f"run {run_id} deleted it in BookKeeper, its topic reads it offloaded: {reason}"
            return LedgerVerdict(Verdict.DELETED, Why(ExplainCode.READ_OFFLOADED, text), run_id)
        return LedgerVerdict(Verdict.DELETED, Why(Verdict.DELETED, f"run {run_id} deleted it: {reason}"), run_id)
    if named:
        return _gone(Code.BOOKKEEPER_DELETED, "its topic says that it was offloaded and its BookKeeper copy deleted")
    for row in reversed(history.journal):
        marked = (row["action"], row["phase"]) == (Action.DELETE_LEDGER, Phase.MARK)
        if marked and row["code"] in (Code.TOPIC_DELETED, Code.BROKER_DELETED):
            text = f"its broker deleted it with its topic, which run {row['run_id']} had it delete"
            return LedgerVerdict(Verdict.GONE, Why(Code(row["code"]), text), row["run_id"])
    if found.trouble:
        return _gone(Code.UNREAD, "BookKeeper does not have it; what its owner says could not all be read")
    if history.references.num_rows or history.finding:
        text = "the last scan knew it, now BookKeeper does not have it; our journal has no deletion of it"
        return _gone(ExplainCode.LAST_SCAN_KNEW, text)
    if history.journal:
        text = "BookKeeper does not have it; our journal knows it and has no deletion of it there"
        return _gone(ExplainCode.JOURNAL_KNOWS, text)
    text = "BookKeeper does not have it, and neither scans nor journal know it"
    return LedgerVerdict(Verdict.UNKNOWN, Why(Verdict.UNKNOWN, text))


def _gone(code: StrEnum, text: str) -> LedgerVerdict:
    return LedgerVerdict(Verdict.GONE, Why(code, text))


def _unsaid(run_id: str, lately: bool) -> Why:
    """Why a deletion that a run never told of is no ``deleted``."""
    text = f"run {run_id} was about to delete it and ended before it could say so"
    if lately:
        return Why(ExplainCode.NEXT_RUN_SAYS, f"{text}: the next one will")
    return Why(
        ExplainCode.NEVER_SAID,
        f"{text}. No run looks back further than {WITHIN_MS // 86_400_000} days: take it as deleted by that run. If it "
        "should not have been, the job undo_deletions with its id says whether the bookies still have it",
    )


def _present(ledger_id: int, rows: pa.Table, found: OwnersNow, history: History, now: int) -> LedgerVerdict:
    needing = _needing(found.references)
    if needing:
        return LedgerVerdict(Verdict.IN_USE, Why(Verdict.IN_USE, _referring(needing)))
    if found.trouble:
        return _kept(Code.UNREAD, "whether its owner refers to it could not be read")
    epoch, context, ledger = history.epoch, history.context, rows.to_pylist()[0]
    if history.marks(ledger):
        return _marked(rows, found, history, now)
    if epoch is None or context is None:
        text = "its owner does not refer to it; only a scan can tell whether anything else does"
        return LedgerVerdict(Verdict.UNJUDGED, Why(Verdict.UNJUDGED, text))
    seen = _needing(history.references)
    if seen:
        text = f"not so now, but in the last scan {_referring(seen)}: the next scan tells"
        return _kept(ExplainCode.IN_LAST_SCAN, text)
    every = pa.concat_tables([found.references, history.references])
    judged = orphans.judge(rows, kinds.referenced(every), context.at(now)).to_pylist()[0]
    if judged["finding"] == orphans.PENDING:  # depends on what its broker said, which only a scan asks
        if history.finding is None:
            text = "the last scan did not judge it yet: the next scan or deletion run asks its broker"
            return _kept(ExplainCode.NOT_JUDGED_YET, text)
        judged = history.finding
        if judged["finding"] == Finding.ORPHAN and found.written >= epoch.started_at:
            text = (
                "free by the last scan, but its topic was loaded or written since: the next scan or deletion run asks"
            )
            return _kept(ExplainCode.WRITTEN_SINCE, text)
    why = Why(orphans.code_of(judged), judged["reason"])
    if judged["finding"] == Finding.OFFLOAD_LEFTOVER and history.deletes_copy(ledger):
        return _copy_deletion(ledger, found, history, context.at(now))
    if judged["finding"] != Finding.ORPHAN:
        young = judged["finding"] == Finding.TOO_YOUNG
        return LedgerVerdict(Verdict.KEPT, why, again=ledger["ctime"] + context.grace if young else None)
    if rows.column("ctime")[0].as_py() >= epoch.started_at:
        return _kept(ExplainCode.NEWER_THAN_SCAN, "made after the last scan began: the next scan tells")
    if uncovered := history.uncovered():
        return LedgerVerdict(Verdict.KEPT, uncovered)
    if history.evidence and (unconfirmed := history.evidence.unconfirmed(ledger_id, ledger["czxid"], ledger["ctime"])):
        return LedgerVerdict(Verdict.KEPT, unconfirmed)
    return LedgerVerdict(Verdict.MAY_GO, why)


def _kept(code: StrEnum, text: str) -> LedgerVerdict:
    return LedgerVerdict(Verdict.KEPT, Why(code, text))


COPY_DELETION = "offloaded, and a run of ours began to delete its copy in BookKeeper"
TAKEN_OFF = "our first phase took it off its topic's list"


def _copy_deletion(ledger: Row, found: OwnersNow, history: History, context: Context) -> LedgerVerdict:
    """A deletion run waives for it that its topic lists it, as long as the copy deletion's own message is there."""
    intent = history.intent()
    if rule := orphans.copy_deletion_rule(ledger, context):
        return _kept(rule[1].code, f"{COPY_DELETION}, but {rule[1]}")
    if intent == IntentState.DEAD_LETTER:
        text = f"{COPY_DELETION}; its intent is a dead letter: the job redrive_dead_letters sends it again"
        return _kept(ExplainCode.DEAD_LETTER, text)
    if intent != IntentState.IN_FLIGHT:
        last = f"its last intent was {intent}" if intent else "our journal has no intent"
        text = f"{COPY_DELETION}; {last}: the next offload plan proves its offloaded copy anew"
        return _kept(ExplainCode.NO_INTENT, text)
    if kept := found.copy_kept:
        return _kept(kept.code, f"{COPY_DELETION}, but {kept}")
    return LedgerVerdict(
        Verdict.MAY_GO, Why(Code.BOOKKEEPER_DELETED, f"{COPY_DELETION}: the next deletion run deletes that copy")
    )


def _marked(rows: pa.Table, found: OwnersNow, history: History, now: int) -> LedgerVerdict:
    """A deletion run waives grace period and earlier scan for it, and nothing else."""
    epoch, context = history.epoch, history.context
    after = history.marked is not None and epoch is not None and history.marked[1] < epoch.started_at
    seen = _needing(history.references) if after else []
    if seen:
        return _kept(ExplainCode.IN_LAST_SCAN, f"{TAKEN_OFF}, but in the last scan {_referring(seen)}")
    if context is not None:
        every = pa.concat_tables([found.references, history.references]) if after else found.references
        waived = context.at(now).without_grace()
        judged = orphans.judge(rows, kinds.referenced(every), waived).to_pylist()[0]
        if judged["finding"] not in (Finding.ORPHAN, orphans.PENDING):
            return _kept(orphans.code_of(judged), f"{TAKEN_OFF}, but {judged['reason']}")
    if epoch is None or not after:
        return _kept(ExplainCode.NO_NEW_SCAN, f"{TAKEN_OFF}: the next deletion run after a new scan deletes it")
    if uncovered := history.uncovered():
        return _kept(uncovered.code, f"{TAKEN_OFF}, but {uncovered}")
    return LedgerVerdict(Verdict.MAY_GO, Why(Code.TAKEN_OFF, f"{TAKEN_OFF}: the next deletion run deletes it"))


def _lost_of(found: OwnersNow, journal: Iterable[Mapping[str, Any]]) -> set[str]:
    """Those copies that its topic names, and that our journal says we deleted."""
    lost = lost_copies(journal)
    return {key for key in found.copies if any(key in name for name in lost)}


def _needing(rows: pa.Table) -> list[Row]:
    return [row for row in rows.to_pylist() if row["keeps_bookkeeper_copy"]]


def _referring(rows: list[Row]) -> str:
    first = f"{rows[0]['referrer']} ({kinds.KINDS[rows[0]['kind']].name})"
    return f"{first} refers to it" if len(rows) == 1 else f"{first} and {len(rows) - 1} more refer to it"


def _notes(verdict: Verdict, ledger: Mapping[str, Any] | None, found: OwnersNow, history: History) -> list[str]:
    """What an operator should know beside the answer."""
    notes: list[str] = []
    deletions = history.deletions()
    if ledger and deletions:
        notes.append("our journal says it was deleted: it was restored since, or its id was issued again")
    for row in {id(row): row for row in lost_copies(history.journal).values()}.values():
        known = row["outcome"] == Outcome.DELETED
        done = "deleted an offloaded copy of it" if known else "was the last to delete an offloaded copy of it"
        why = row["reason"] if known else "it ended before it could say so, or got no answer"
        other = "; not the one that its topic names" if found.copies and not _lost_of(found, [row]) else ""
        notes.append(f"run {row['run_id']} {done}, which no undo brings back{other}: {why}")
    if verdict is Verdict.MAY_GO:
        ours = history.marks(ledger) or history.deletes_copy(ledger)
        if not ours and not history.sent_lately() and not history.applicable():
            notes.append("no actionable plan has it: a second scan, orphans.confirm_after later, must agree first")
        notes.append("before it is deleted its owner is asked again, its broker's memory too")
    if verdict is Verdict.DELETED:
        lost = False
        for row in history.journal:
            lost = (row["phase"], row["outcome"]) == (Phase.UNDO, Outcome.LOST) or (lost and row not in deletions)
        if lost:
            notes.append("the job undo_deletions found it lost since: the bookies have collected its entries")
        elif any(row["phase"] == Phase.NO_UNDO for row in history.journal):
            notes.append("its records were deleted with --no-undo: the job undo_deletions does not restore it")
        else:
            notes.append(
                "until the bookies' next garbage collection, the job undo_deletions restores it from the archive"
            )
    return notes


def readable(node: Node | Unread | None, path: str) -> Node | None:
    """The z-node or None. Raises AccessDenied for one that is there and cannot be read."""
    if isinstance(node, Unread):
        raise AccessDenied(f"{path}: {node.reason}")
    return node
