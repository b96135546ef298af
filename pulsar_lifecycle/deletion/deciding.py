"""What of a batch of the deletion queue may go now: every message is decided afresh.

Belongs here: which questions are asked, in which order. The rule itself is ``planning/orphans.py``, the same one that
made the plan: a message only proposes. Nothing here trusts what a message says beyond which ledger to look at. Not
here: acting on it (``batch.py``), the owners' word (``owner_check.py``), offloaded copies (``offloaded_copies.py``).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pulsar_lifecycle.deletion import offloaded_copies
from pulsar_lifecycle.deletion.copy_deletions import look_at_copies
from pulsar_lifecycle.deletion.decision import Decision, Run
from pulsar_lifecycle.deletion.owner_check import in_use, look_at_owners
from pulsar_lifecycle.deletion.planning import orphans
from pulsar_lifecycle.deletion.run_evidence import NO_EARLIER_SCAN
from pulsar_lifecycle.formats import ledger_path
from pulsar_lifecycle.formats.deletion_message import LedgerComponent, LedgerType, PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.metastore.bookkeeper_ledgers import ledger_rows
from pulsar_lifecycle.model import Topic, cursor_name
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.values import findings, owner_names
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.findings import Finding, component_of
from pulsar_lifecycle.values.outcomes import Outcome, Waiting

COMPARED = [
    *("ledger_id", "length", "state", "problem", "error", "czxid", "ctime"),
    *("application", "component", "managed_ledger"),
    *("cursor", "schema_id", "compacted_topic", "bucket_key", "bucket_topic", "bucket_cursor"),
]
"""What of a ledger's row a message is compared with."""

MAY_GO = (Finding.ORPHAN, orphans.PENDING)
"""Findings of the rule that leave the last word to the owner."""

SENDERS_AHEAD_MS = 3_600_000
"""A message dated later than this from now would wait for a scan that never comes."""


def decide(run: Run, ports: Ports, decisions: Sequence[Decision]) -> None:
    """Decide every message that must not lead to a deletion now; those left without outcome may go.

    The z-nodes of the latter, as read here, are in ``node``: a deletion must name their version.
    """
    evidence = run.evidence
    latest = max(ports.clock.now_ms(), run.now) + SENDERS_AHEAD_MS
    for d in decisions:
        if d.message.info is None:
            d.decide(Outcome.REFUSED, Code.UNPARSEABLE, d.message.problem)
        elif d.message.publish_time > latest:
            why = "its sender's clock is ahead: its copy on the retry topic is dated by ours"
            d.decide(Outcome.RETRYING, Code.SENDERS_CLOCK, why)
        elif d.message.publish_time >= evidence.started_at:
            d.wait(Waiting.NO_SCAN, "no covered scan has started since it was sent")
    offloaded_copies.decide(
        run, ports, [d for d in decisions if not d.outcome and d.info.ledger_type is LedgerType.OFFLOAD_LEDGER]
    )
    live = [d for d in decisions if not d.outcome and d.info.ledger_type is LedgerType.LEDGER]
    if not live:
        return
    ports.store.sync("/")
    for d in live:
        d.path = ledger_path.ledger_path(d.info.ledger_id, run.ledgers_root)
    for d, node in zip(live, ports.store.read([d.path for d in live]), strict=True):
        if node is None:
            d.decide(Outcome.GONE, Code.NOT_THERE, "the ledger does not exist any more")
        elif not isinstance(node, Node):
            d.decide(Outcome.RETRYING, Code.UNREAD, f"its z-node could not be read: {node.reason}")
        else:
            d.node = node
            d.checksum = hashlib.sha256(node.data).hexdigest()
    live = [d for d in live if not d.outcome]
    _judge(run, ports, live)
    look_at_owners(run, ports, [d for d in live if not d.outcome])
    look_at_copies(run, ports, [d for d in live if not d.outcome])


def _judge(run: Run, ports: Ports, live: Sequence[Decision]) -> None:
    """Everything but the fresh look at the owner: tags against the message, and the orphan rule on today's z-node."""
    if not live:
        return
    evidence = run.evidence
    rows = ledger_rows([d.node for d in live if d.node], run.ledgers_root)
    by_id = {row["ledger_id"]: row for row in rows.select(COMPARED).to_pylist()}
    context = evidence.context.at(run.now)
    found = _found(rows, run, context)
    marked = {
        row["ledger_id"]: at
        for row in by_id.values()
        if (at := evidence.marked_at(row["ledger_id"], row["czxid"])) is not None
    }
    passing: dict[int, dict[str, Any]] = {}
    if marked:
        chosen = rows.filter(pc.is_in(rows.column("ledger_id"), pa.array(sorted(marked), pa.int64())))
        waived = context.without_grace()
        found |= _found(chosen, run, waived)
        # what the rule says once a replica is copied, the open ledger closed, and whoever recovers this one is through
        closed = pa.array([LedgerState.CLOSED.name] * chosen.num_rows, pa.string())
        chosen = chosen.set_column(chosen.schema.get_field_index("state"), chosen.schema.field("state"), closed)
        passing = _found(chosen, run, replace(waived, under_replicated=BitMap64(), open_topics=frozenset()))
    for d in live:
        assert d.node is not None
        row, finding = by_id[d.info.ledger_id], found.get(d.info.ledger_id)
        d.length = row["length"] or 0
        marked_at = marked.get(d.info.ledger_id)
        if mismatch := _mismatch(d.info, row):
            d.decide(Outcome.REFUSED, Code.MISMATCH, mismatch.text)
        elif marked_at is not None and marked_at >= evidence.started_at:
            d.wait(Waiting.NO_SCAN, "no covered scan has started since it left its topic")
        elif finding is None:  # a scan may have read its topic's list just before a first phase shortened it
            in_use(run, ports, d, "something refers to it", marked_at or 0)
        elif finding["finding"] == Finding.OFFLOAD_LEFTOVER and _copy_deletion(run, d, row):
            if rule := orphans.copy_deletion_rule(row, context):  # its owner has the next word
                outcome, why = rule
                d.decide(outcome, why.code, why.text)
        elif finding["finding"] not in MAY_GO:
            passes = marked_at is not None and passing[d.info.ledger_id]["finding"] in MAY_GO
            d.decide(Outcome.RETRYING if passes else Outcome.KEPT, orphans.code_of(finding), finding["reason"])
        elif marked_at is not None:
            continue
        elif evidence.earlier_started_at is None:
            d.wait(Waiting.NO_EARLIER_SCAN, f"not confirmed: {NO_EARLIER_SCAN}")
        elif why := evidence.unconfirmed(d.info.ledger_id, d.node.stat.czxid, d.node.stat.ctime):
            d.decide(Outcome.KEPT, Code.NOT_CONFIRMED, why.text)


def _copy_deletion(run: Run, d: Decision, row: Mapping[str, Any]) -> bool:
    """Whether our own run proved its offloaded copy and began to delete exactly this one: the last looks ask again."""
    deletion = run.evidence.offloads.copy_deletions.get(d.info.ledger_id)
    if deletion is None or (deletion.czxid, deletion.topic) != (row["czxid"], d.info.topic_name):
        return False
    d.copy_deletion = deletion
    return True


def _found(rows: pa.Table, run: Run, context: findings.Context) -> dict[int, dict[str, Any]]:
    found = orphans.judge(rows, run.evidence.refs, context).select(["ledger_id", "finding", "code", "reason"])
    return {row["ledger_id"]: row for row in found.to_pylist()}


def _mismatch(info: PendingDeleteLedgerInfo, row: Mapping[str, Any]) -> Why | None:
    """How a message differs from the ledger it names; None if it does not."""
    if row["problem"]:
        return Why(Code.MISMATCH, f"its z-node holds no metadata: {row['error']}")
    if row["application"] != "pulsar" or row["component"] not in findings.COMPONENTS:
        return Why(Code.MISMATCH, "not a ledger that Pulsar wrote")
    if info.czxid is not None and info.czxid != row["czxid"]:
        return Why(Code.MISMATCH, "another ledger has this id now: its z-node was created by another transaction")
    if info.ctime is not None and info.ctime != row["ctime"]:
        return Why(Code.MISMATCH, "another ledger has this id now: its z-node was created at another time")
    component = component_of(row["component"], row["cursor"])
    if info.component is not component:
        return Why(Code.MISMATCH, f"the message says {info.component.value}, the ledger is {component.value}")
    _, topic = owner_names.owner_in(row)
    named = Topic.parse(info.topic_name)
    if str(named) != topic and not (
        component is LedgerComponent.SCHEMA_STORAGE and str(named.partitioned_parent) == topic
    ):
        return Why(Code.MISMATCH, f"the message says {info.topic_name}, the ledger is of {topic or 'no topic'}")
    if component is LedgerComponent.MANAGED_CURSOR and cursor_name(row["cursor"]) != info.cursor_name:
        return Why(Code.MISMATCH, f"the message says cursor {info.cursor_name}, the ledger is of {row['cursor']}")
    if component is LedgerComponent.SCHEMA_STORAGE and info.schema_id != row["schema_id"]:
        return Why(Code.MISMATCH, f"the message says schema {info.schema_id}, the ledger is of {row['schema_id']}")
    if component is LedgerComponent.DELAYED_INDEX_BUCKET and (info.bucket_key, info.cursor_name) != (
        row["bucket_key"],
        row["bucket_cursor"],
    ):
        found = f"{row['bucket_key']} of {row['bucket_cursor']}"
        return Why(Code.MISMATCH, f"the message says {info.bucket_key} of {info.cursor_name}, the ledger is {found}")
    return None
