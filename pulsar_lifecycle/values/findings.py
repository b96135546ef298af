"""What a scan found of a ledger, and the context in which that is judged.

Belongs here: the values. Not here: the rule (``deletion/planning/orphans.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any

from pyroaring import BitMap64

from pulsar_lifecycle.formats.deletion_message import LedgerComponent
from pulsar_lifecycle.formats.ledger_metadata import (
    COMPONENT_BUCKET,
    COMPONENT_COMPACTED_LEDGER,
    COMPONENT_MANAGED_LEDGER,
    COMPONENT_SCHEMA,
)
from pulsar_lifecycle.values.owner_names import parent_of, schema_owner

_COMPONENTS = {
    COMPONENT_MANAGED_LEDGER: LedgerComponent.MANAGED_LEDGER,
    COMPONENT_SCHEMA: LedgerComponent.SCHEMA_STORAGE,
    COMPONENT_COMPACTED_LEDGER: LedgerComponent.COMPACTED_LEDGER,
    COMPONENT_BUCKET: LedgerComponent.DELAYED_INDEX_BUCKET,
}


def component_of(tag: str, cursor: str | None) -> LedgerComponent:
    """The message's component for a ledger's tags; a cursor ledger is a managed ledger with a cursor tag."""
    return LedgerComponent.MANAGED_CURSOR if tag == COMPONENT_MANAGED_LEDGER and cursor else _COMPONENTS[tag]


class Finding(StrEnum):
    """What a ledger that is not plainly in use turns out to be."""

    ORPHAN = "orphan"
    """Nothing refers to it, and every rule agrees that it may go."""
    OFFLOAD_LEFTOVER = "offload_leftover"
    """Offloaded and listed as deleted in BookKeeper, yet still there."""
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
    """Unreferenced, and kept by the rule that ``code`` names."""


COMPONENTS = (COMPONENT_MANAGED_LEDGER, COMPONENT_COMPACTED_LEDGER, COMPONENT_SCHEMA, COMPONENT_BUCKET)
"""Values of the ``component`` tag (LedgerMetadataUtils, 4.0.7)."""


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
    overtaken_topics: frozenset[str] = frozenset()
    """Those of ``open_topics`` of which no broker can list any such ledger: a write of ours came before it."""
    offload_buckets: frozenset[str] = frozenset()
    """Where a deletion run may delete offloaded copies; none without an object store."""

    def at(self, now: int) -> Context:
        """The same context at another time (ms)."""
        return replace(self, now=now)

    def without_grace(self) -> Context:
        """The same for ledgers that our first phase took off their topics' lists: they wait for no grace period.

        Nor for the end of an open ledger that a load left which a write of ours came before.
        """
        return replace(self, grace=0, open_topics=self.writable_topics)

    def of_whole_topics(self) -> Context:
        """The same for topics that go whole: once a z-node is gone nothing shows that a write of ours came first."""
        return replace(self, overtaken_topics=frozenset())

    @property
    def writable_topics(self) -> frozenset[str]:
        """Topics of which no ledger may leave the list, as no deletion run would delete it."""
        return self.open_topics - self.overtaken_topics

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
