"""The archived z-nodes of what runs deleted."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.journal.in_doubt import ARCHIVE as ARCHIVED
from pulsar_lifecycle.journal.in_doubt import JOURNAL_COLUMNS, deletions_in_doubt
from pulsar_lifecycle.journal.queries import filed_since, having
from pulsar_lifecycle.ports import Archived, JournalReader
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase


def archived_nodes(journal: JournalReader, *, ledger_id: int | None = None, run_id: str | None = None) -> pa.Table:
    """Archived z-nodes in the order of their time, all or those that match; ``tables.ARCHIVE``."""
    return journal.find_archived(having({"ledger_id": ledger_id, "run_id": run_id})).sort_by("at")


def last_archived(
    journal: JournalReader, cluster: str, *, run_id: str = "", ledger_ids: Collection[int] = ()
) -> list[Archived]:
    """The newest archived z-node of each of these ledgers, or of each that no other run archived after this one, by id.

    Who archived a ledger last is who can have deleted it. Of another cluster's archive only where this ``cluster`` has
    none of that ledger.
    """
    if run_id:
        its = journal.find_archived(pc.field("run_id") == run_id, ["ledger_id"])
        ledger_ids = set(its.column("ledger_id").to_pylist())
    condition = pc.is_in(pc.field("ledger_id"), pa.array(sorted(ledger_ids), pa.int64()))
    newest: dict[int, Archived] = {}
    for row in journal.find_archived(condition).to_pylist():
        node = Archived(**row)
        known = newest.get(node.ledger_id)
        if known is None or (known.cluster != cluster, -known.at) > (node.cluster != cluster, -node.at):
            newest[node.ledger_id] = node
    return [node for _, node in sorted(newest.items()) if run_id in ("", node.run_id)]


def as_deleted(journal: JournalReader, cluster: str, nodes: Sequence[Archived]) -> list[Archived]:
    """Those of a ``cluster``'s ``nodes`` that their runs deleted, by the journal, and no undo has touched since."""
    if not nodes:
        return []
    ids = pa.array(sorted({node.ledger_id for node in nodes}), pa.int64())
    deleted = (pc.field("action") == Action.DELETE_LEDGER) & (pc.field("outcome") == Outcome.DELETED)
    mine = (pc.field("cluster") == cluster) & pc.is_in(pc.field("ledger_id"), ids)
    condition = mine & filed_since(min(node.at for node in nodes)) & (deleted | (pc.field("phase") == Phase.UNDO))
    by_run: dict[tuple[str, int], int] = {}
    undone: dict[int, int] = {}
    for row in journal.find(condition, ["run_id", "ledger_id", "phase", "at"]).to_pylist():
        ledger_id, at = int(row["ledger_id"]), int(row["at"])
        if row["phase"] == Phase.UNDO:
            undone[ledger_id] = max(at, undone.get(ledger_id, at))
        else:
            by_run[row["run_id"], ledger_id] = max(at, by_run.get((row["run_id"], ledger_id), at))
    return [n for n in nodes if by_run.get((n.run_id, n.ledger_id), -1) >= n.at > undone.get(n.ledger_id, -1)]


def restored_ever(journal: JournalReader, cluster: str, ledger_ids: Collection[int] | None = None) -> frozenset[int]:
    """Ledgers of a ``cluster``, all or of these, that an undo has ever touched.

    Their z-nodes may have been created anew, and topics list them by somebody's hand.
    """
    if ledger_ids is not None and not ledger_ids:
        return frozenset()
    condition = (pc.field("cluster") == cluster) & (pc.field("phase") == Phase.UNDO)
    if ledger_ids is not None:
        condition &= pc.is_in(pc.field("ledger_id"), pa.array(sorted(ledger_ids), pa.int64()))
    return frozenset(journal.find(condition, ["ledger_id"]).column("ledger_id").to_pylist())


def brought_back(journal: JournalReader, cluster: str, ledger_ids: Collection[int]) -> frozenset[int]:
    """Of these ledgers of a ``cluster``, those whose z-nodes an undo created anew, or began to, and left there."""
    if not ledger_ids:
        return frozenset()
    mine = (pc.field("cluster") == cluster) & pc.field("ledger_id").isin(sorted(ledger_ids))
    decided = pc.field("outcome").isin([*_BACK, Outcome.NOT_RECREATED, Outcome.LOST])
    found = journal.find(mine & (pc.field("phase") == Phase.UNDO) & decided, ["ledger_id", "outcome", "at"])
    last = {row["ledger_id"]: row["outcome"] for row in found.sort_by("at").to_pylist()}
    return frozenset(ledger_id for ledger_id, outcome in last.items() if outcome in _BACK)


_BACK = (Outcome.RECREATING, Outcome.RECREATED, Outcome.UNCONFIRMED, Outcome.RESTORED)


def nodes_in_doubt(journal: JournalReader, cluster: str, since: int) -> list[Archived]:
    """What a cluster's runs archived at ``since`` (ms) or later, and did not say what became of it."""
    recent = filed_since(since) & (pc.field("cluster") == cluster)
    archived = journal.find_archived(recent, ARCHIVED.names)
    if not archived.num_rows:
        return []
    phases = pc.field("phase").isin([Phase.DELETE, Phase.UNDO])
    found = deletions_in_doubt(archived, journal.find(recent & phases, JOURNAL_COLUMNS.names))
    ids = pa.array(sorted({ledger_id for _, ledger_id, _ in found}), pa.int64())
    rows = journal.find_archived(recent & pc.is_in(pc.field("ledger_id"), ids)) if found else None
    nodes = [Archived(**row) for row in rows.to_pylist()] if rows else []
    return list({key: n for n in nodes if (key := (n.run_id, n.ledger_id, n.at)) in found}.values())
