"""What the journal says of offloaded copies: begun, proven, unproven, deleted in BookKeeper, deleted themselves."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.journal.archive import last_archived
from pulsar_lifecycle.journal.first_phase_marks import asked_of, open_marks, with_copies
from pulsar_lifecycle.journal.in_doubt import lost_copies
from pulsar_lifecycle.journal.queries import OFFLOADED_COPIES, rows_of_outcome
from pulsar_lifecycle.ports import JournalReader, JournalRow
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import details_of
from pulsar_lifecycle.values.copies import BegunAttempt, CopyDeletion, Verified
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase


def copy_deletion_of(topic: str, detail: str) -> CopyDeletion | None:
    """What a ``marked`` row of ours says was proven; None of a row that we did not write."""
    copy, proof = details_of(_CopyAt, detail), details_of(Verified, detail)
    return CopyDeletion(topic, copy.uuid, copy.bucket, copy.czxid, proof) if copy and proof else None


@dataclass(frozen=True, slots=True)
class _Copy:
    """The UUID of an offloaded copy, as details of a row have it."""

    uuid: UUID


@dataclass(frozen=True, slots=True)
class _CopyAt:
    """The copy that details of a copy deletion name, and the z-node of the ledger in BookKeeper."""

    uuid: UUID
    bucket: str
    czxid: int


def sent_copies(journal: JournalReader, plan_id: str) -> frozenset[UUID]:
    """UUIDs of the offloaded copies of a plan whose intents the journal says were sent."""
    mine = (pc.field("plan_id") == plan_id) & OFFLOADED_COPIES
    return frozenset(uuid for uuid, _ in attempts_in(rows_of_outcome(journal, Outcome.SENT, 0, mine)))


def deleted_copies(
    journal: JournalReader, cluster: str, run_id: str = "", ledger_ids: Collection[int] = ()
) -> list[str]:
    """Objects of offloaded copies, ``s3://BUCKET/KEY``, that a run deleted, or that went with these ledgers.

    No archive holds them; :func:`lost_copies`. With a ledger goes what the run deleted that archived it last, and the
    copy that our first phase last took off its topic's list. Any other copy of it was an orphan of its own.
    """
    mine = pc.field("cluster") == cluster
    if run_id:
        its = mine & OFFLOADED_COPIES & (pc.field("run_id") == run_id)
        ledger_ids = set(journal.find(its, ["ledger_id"]).column("ledger_id").to_pylist())
    about = mine & pc.is_in(pc.field("ledger_id"), pa.array(sorted(ledger_ids), pa.int64()))
    rows = with_copies(journal.find(about & OFFLOADED_COPIES).sort_by("at"))
    lost = lost_copies(rows.to_pylist())
    if run_id:
        return sorted(name for name, row in lost.items() if row["run_id"] == run_id)
    runs = {node.ledger_id: node.run_id for node in last_archived(journal, cluster, ledger_ids=ledger_ids)}
    marked = with_copies(
        rows_of_outcome(journal, Outcome.MARKED, 0, about & (pc.field("phase") == Phase.MARK)).sort_by("at")
    )
    marks = {row["ledger_id"]: row for row in marked.to_pylist()}
    return sorted(
        name
        for name, row in lost.items()
        if row["run_id"] == runs.get(row["ledger_id"]) or _asks_for(marks.get(row["ledger_id"]), row)
    )


def _asks_for(mark: Mapping[str, Any] | None, row: Mapping[str, Any]) -> bool:
    """Whether a mark asked for the copy that ``row`` is about."""
    if mark is None or row["at"] < mark["at"]:
        return False
    asked, gone = asked_of(mark), asked_of(row)
    return asked is not None and gone is not None and asked.asks_for(gone.uuid, gone.bucket)


def begun_attempts(journal: JournalReader, cluster: str, ledger_ids: Collection[int]) -> dict[UUID, BegunAttempt]:
    """Every offload attempt on these ledgers that our own runs ever began."""
    ids = pa.array(sorted(ledger_ids), pa.int64())
    mine = (
        (pc.field("cluster") == cluster) & (pc.field("action") == Action.OFFLOAD) & pc.is_in(pc.field("ledger_id"), ids)
    )
    rows = list(attempts_in(journal.find(mine).sort_by("at")))
    began = {uuid for uuid, row in rows if row["outcome"] == Outcome.PREPARED}
    return {uuid: BegunAttempt(row["topic"], row["at"]) for uuid, row in rows if uuid in began}


def attempts_in(rows: pa.Table) -> Iterator[tuple[UUID, dict[str, Any]]]:
    """Rows whose ``detail`` names an offloaded copy, each after its UUID."""
    for row in rows.to_pylist():
        if copy := details_of(_Copy, row["detail"]):
            yield copy.uuid, row


def copy_deletions(journal: JournalReader, cluster: str) -> dict[int, CopyDeletion]:
    """Ledgers whose copies in BookKeeper we began to delete, and what their objects were then, until they are deleted.

    Or until a later proof of those objects failed.
    """
    mine = pc.field("cluster") == cluster
    marked = rows_of_outcome(journal, Outcome.MARKED, 0, mine & (pc.field("action") == Action.COPY_DELETION))
    if not marked.num_rows:
        return {}
    ended = mine & (
        (
            (pc.field("phase") == Phase.DELETE)
            & ~OFFLOADED_COPIES
            & pc.field("outcome").isin((Outcome.DELETED, Outcome.GONE))
        )
        | ((pc.field("action") == Action.COPY_DELETION) & (pc.field("outcome") == Outcome.PROOF_FAILED))
    )
    rows = open_marks(marked, journal.find(ended, ["ledger_id", "at"])).to_pylist()
    found = {row["ledger_id"]: copy_deletion_of(row["topic"], row["detail"]) for row in rows}
    return {ledger_id: deletion for ledger_id, deletion in found.items() if deletion}


def verified_copies(
    journal: JournalReader, cluster: str, ledger_ids: Collection[int]
) -> dict[tuple[int, UUID], Verified]:
    """What the objects of these ledgers were when we read them back whole: (ledger id, UUID) -> the last proof."""
    ids = pa.array(sorted(ledger_ids), pa.int64())
    mine = (
        (pc.field("cluster") == cluster) & (pc.field("action") == Action.OFFLOAD) & pc.is_in(pc.field("ledger_id"), ids)
    )
    found: dict[tuple[int, UUID], Verified] = {}
    for row in rows_of_outcome(journal, Outcome.VERIFIED, 0, mine).sort_by("at").to_pylist():
        copy, proof = details_of(_Copy, row["detail"]), details_of(Verified, row["detail"])
        if copy and proof:  # without them it is proven anew
            found[row["ledger_id"], copy.uuid] = proof
    return found


def failed_proofs(journal: JournalReader, cluster: str) -> dict[tuple[int, UUID], JournalRow]:
    """Offloaded copies of which the last proof failed: (ledger id, UUID) -> the journal's row that says so."""
    mine = pc.field("cluster") == cluster
    found: dict[tuple[int, UUID], JournalRow] = {}
    for row in (
        rows_of_outcome(journal, Outcome.PROOF_FAILED, 0, mine & (pc.field("action") == Action.COPY_DELETION))
        .sort_by("at")
        .to_pylist()
    ):
        if copy := details_of(_Copy, row["detail"]):
            found[row["ledger_id"], copy.uuid] = JournalRow(**row)
    if not found:
        return found
    ids = pa.array(sorted({ledger_id for ledger_id, _ in found}), pa.int64())
    whole = (
        mine & (pc.field("action") == Action.OFFLOAD) & pc.field("outcome").isin((Outcome.VERIFIED, Outcome.REVERTED))
    )
    for row in journal.find(whole & pc.is_in(pc.field("ledger_id"), ids)).to_pylist():
        copy = details_of(_Copy, row["detail"])
        known = found.get((row["ledger_id"], copy.uuid)) if copy else None
        if copy is None or known is None:
            continue
        # A run proves no copy again that it disproved: its own proof was before, whatever its executors' clocks say.
        before = row["outcome"] == Outcome.VERIFIED and row["run_id"] == known.run_id
        if not before and known.at < row["at"]:
            del found[row["ledger_id"], copy.uuid]
    return found


def failed_proofs_now(cluster: Cluster, epoch_id: str) -> list[JournalRow]:
    """Rows of :func:`failed_proofs` whose copies an epoch names, by ledger id. Raises as the lake does."""
    rows = failed_proofs(cluster.journal_reader, cluster.settings.cluster)
    named = cluster.lake.offload_uuids(epoch_id).named(uuid for _, uuid in rows) if rows else set()
    return [row for (_, uuid), row in sorted(rows.items()) if uuid in named]
