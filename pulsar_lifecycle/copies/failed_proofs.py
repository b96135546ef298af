"""Ledgers whose offloaded copy failed a proof: z-nodes of ours that a deletion run which is under way sees.

Belongs here: making, reading and removing them. Not here: the proof (``tiered/proof.py``), what stands in the journal
(``tiered/bookkeeper_copies.py``): a deletion run reads that once, when it begins, and may go on for hours.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection

from pulsar_lifecycle.errors import Conflict, NotFound, OutcomeUnknown
from pulsar_lifecycle.ports import MetadataStore, Node
from pulsar_lifecycle.runs.control import ROOT

DISPROVED = f"{ROOT}/disproved"


def path_of(ledger_id: int) -> str:
    """The z-node that keeps a ledger's copy in BookKeeper."""
    return f"{DISPROVED}/{ledger_id}"


def hold(store: MetadataStore, ledger_id: int) -> None:
    """Returns only when the z-node is known to be there. Raises OutcomeUnknown, and what the store raises."""
    for _ in range(3):
        with contextlib.suppress(OutcomeUnknown):
            with contextlib.suppress(Conflict):  # it is there
                store.create(path_of(ledger_id), b"", parents=True)
            return
    raise OutcomeUnknown(f"{path_of(ledger_id)}: whether it was written is not known")


def held(store: MetadataStore, ledger_ids: Collection[int]) -> set[int]:
    """Those of the ledgers that have such a z-node, or one that cannot be read."""
    ids = sorted(ledger_ids)
    store.sync("/")
    found = store.read([path_of(one) for one in ids])
    return {one for one, node in zip(ids, found, strict=True) if node is not None}


def let_go(store: MetadataStore, ledger_ids: Collection[int]) -> None:
    """Their offloaded copies were proven whole; one left behind keeps its ledger until the next proof."""
    ids = sorted(ledger_ids)
    for node in store.read([path_of(one) for one in ids]):
        if isinstance(node, Node):
            with contextlib.suppress(NotFound, Conflict, OutcomeUnknown):
                store.delete(node.path, node.stat.version)
