"""What a deletion run knows of the whole cluster before it decides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from uuid import UUID

from pulsar_lifecycle.values import findings
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import Asked, CopyDeletion, OffloadLocation
from pulsar_lifecycle.values.offload_uuids import NamedUuids, OffloadUuids
from pulsar_lifecycle.values.referenced import Referenced


@dataclass(frozen=True, slots=True)
class OffloadEvidence:
    """What a deletion run knows about offloaded copies: ``now`` and ``earlier`` of the epochs of Evidence.

    ``undecoded`` counts topic z-nodes of either epoch that could not be decoded: they may name anything. ``marked`` is
    what our own journal says we took out of a topic's metadata, as long as its offloaded copy is not settled: (ledger
    id, which copy) -> when (ms). ``copy_deletions``: what it says of ledgers that their topics still list, as long as
    they are not settled. ``failed_locations``: those that, when the run began, a broker could not read, and none has
    since.
    """

    now: NamedUuids = field(default_factory=OffloadUuids)
    earlier: NamedUuids = field(default_factory=OffloadUuids)
    undecoded: int = 0
    marked: Mapping[tuple[int, Asked], int] = field(default_factory=dict[tuple[int, Asked], int])
    copy_deletions: Mapping[int, CopyDeletion] = field(default_factory=dict[int, CopyDeletion])
    failed_locations: frozenset[OffloadLocation] = frozenset()

    def marked_at(self, ledger_id: int, topic: str, uuid: UUID, bucket: str) -> int | None:
        """When (ms) our own first phase last took this ledger, with this copy, off this topic's list; None if never."""
        asked = (Asked(topic), Asked(topic, uuid), Asked(topic, uuid, bucket))
        return max((at for one in asked if (at := self.marked.get((ledger_id, one))) is not None), default=None)


@dataclass(frozen=True, slots=True)
class DeclaredBuckets:
    """The buckets that the operator declares, and what is in them.

    ``cluster``: the name that objects of this cluster carry. ``exclusive``: no other cluster of that name ever wrote
    into these buckets.
    """

    buckets: frozenset[str]
    cluster: str
    exclusive: bool = False


@dataclass(frozen=True, slots=True)
class Evidence:
    """What a deletion run knows of the whole cluster: covered epochs and the owners' rules.

    ``refs`` is of the newest epoch, started at ``started_at``; ``earlier`` is of one at least ``confirm_after`` older,
    started at ``earlier_started_at``, and of every one in between. A ledger must be absent from all, and the earlier
    one must have looked for it: ``earlier_czxid`` is of the newest ledger it listed. While no covered epoch is that
    old, ``earlier_started_at`` is None, and ``earlier`` is of every one there is. ``context.now`` is replaced by the
    run's, and its sources of shadow topics are those of all these epochs.

    ``marked`` is what our own journal says we took out of a topic's metadata and that is not settled yet: (ledger id,
    czxid) -> when. For these, grace period and earlier scan are no question; ``refs`` must be younger than the mark,
    and no epoch since may have found the ledger in use.
    """

    refs: Referenced
    started_at: int
    earlier: Referenced
    earlier_started_at: int | None
    earlier_czxid: int
    context: findings.Context
    marked: Mapping[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    offloads: OffloadEvidence = field(default_factory=OffloadEvidence)

    def unconfirmed(self, ledger_id: int, czxid: int, ctime: int) -> Why | None:
        """Why the earlier scan does not confirm that nothing needs this ledger; None if it does."""
        if ledger_id in self.earlier.needed or ledger_id in self.earlier.offloaded:
            return _not_confirmed("an earlier scan still found a reference")
        if self.earlier_started_at is None:
            return _not_confirmed(NO_EARLIER_SCAN)
        if czxid > self.earlier_czxid or ctime >= self.earlier_started_at:
            return _not_confirmed("younger than the earlier of two scans")
        return None

    def marked_at(self, ledger_id: int, czxid: int) -> int | None:
        """When (ms) our own first phase took exactly this ledger out of its topic's metadata; None if it did not."""
        return self.marked.get((ledger_id, czxid))


NO_EARLIER_SCAN = "no covered scan is older than the newest by orphans.confirm_after yet"


def _not_confirmed(text: str) -> Why:
    return Why(Code.NOT_CONFIRMED, f"not confirmed: {text}; the orphan scan goes on looking")
