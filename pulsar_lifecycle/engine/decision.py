"""What one message of the deletion queue becomes: its outcome, and what a run knows when it decides.

Belongs here: the values that deciding (``deletion.py``, ``owners.py``) and acting share. Not here: any rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol
from uuid import UUID

from pulsar_lifecycle.engine.inventory import Brokers
from pulsar_lifecycle.formats import offload_object
from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo
from pulsar_lifecycle.plan import orphans
from pulsar_lifecycle.plan.offloads import OffloadUuids
from pulsar_lifecycle.plan.outcomes import WAITING, Waiting
from pulsar_lifecycle.plan.references import Referenced
from pulsar_lifecycle.ports import (
    BrokerAdmin,
    Clock,
    DeletionQueue,
    Journal,
    LedgerReader,
    MetadataStore,
    Node,
    ObjectStore,
    Received,
)

Place = tuple[str, str, tuple[tuple[str, str], ...]]
"""A namespace, and by what its brokers read offloaded ledgers: driver (in lower case) and its properties."""

Site = tuple[str, str, str, str]
"""A location of offloaded ledgers, of whatever namespace: driver (in lower case), bucket, region, endpoint."""


class NamedUuids(Protocol):
    """The offload attempts that the metadata of one epoch names; may be read only when it is asked."""

    def named(self, uuids: Iterable[UUID]) -> set[UUID]:
        """Those of ``uuids`` that any LedgerInfo of any root names. Raises NotFound where the epoch has no list."""
        ...


@dataclass(frozen=True, slots=True)
class NamedByAny:
    """What at least one of several epochs names."""

    epochs: tuple[NamedUuids, ...]

    def named(self, uuids: Iterable[UUID]) -> set[UUID]:
        """As :class:`NamedUuids` says."""
        asked = list(uuids)
        return set[UUID]().union(*(epoch.named(asked) for epoch in self.epochs))


@dataclass(frozen=True, slots=True)
class Released:
    """An offloaded ledger whose copy in BookKeeper our own run gave up, and what its objects were then (``proof``).

    ``czxid`` is of its z-node in BookKeeper.
    """

    topic: str
    uuid: UUID
    bucket: str
    czxid: int
    proof: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Asked:
    """An offloaded copy that our first phase asks to be deleted; None, where its mark does not say which: any."""

    topic: str
    uuid: UUID | None = None
    bucket: str | None = None


@dataclass(frozen=True, slots=True)
class OffloadEvidence:
    """What a deletion run knows about offloaded copies: ``now`` and ``earlier`` of the epochs of Evidence.

    ``undecoded`` counts topic z-nodes of either epoch that could not be decoded: they may name anything. ``marked`` is
    what our own journal says we took out of a topic's metadata, as long as its offloaded copy is not settled: ledger
    id -> (which copy, when in ms). ``released``: what it says of ledgers that their topics still list, as long as they
    are not settled. ``unseen``: locations that, when the run began, a broker could not read, and none has read since.
    """

    now: NamedUuids = field(default_factory=OffloadUuids)
    earlier: NamedUuids = field(default_factory=OffloadUuids)
    undecoded: int = 0
    marked: Mapping[int, tuple[Asked, int]] = field(default_factory=dict[int, tuple[Asked, int]])
    released: Mapping[int, Released] = field(default_factory=dict[int, Released])
    unseen: frozenset[Site] = frozenset()


@dataclass(frozen=True, slots=True)
class OffloadPolicy:
    """What the operator says of the object store.

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
    one must have looked for it: ``earlier_czxid`` is of the newest ledger it listed. ``context.now`` is replaced by
    the run's, and its sources of shadow topics are those of all these epochs.

    ``marked`` is what our own journal says we took out of a topic's metadata and that is not settled yet: ledger id ->
    (czxid, when). For these, grace period and earlier scan are no question; ``refs`` must be younger than the mark, and
    no epoch since may have found the ledger in use.
    """

    refs: Referenced
    started_at: int
    earlier: Referenced
    earlier_started_at: int
    earlier_czxid: int
    context: orphans.Context
    marked: Mapping[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    offloads: OffloadEvidence = field(default_factory=OffloadEvidence)

    def marked_at(self, ledger_id: int, czxid: int) -> int | None:
        """When (ms) our own first phase took exactly this ledger out of its topic's metadata; None if it did not."""
        found = self.marked.get(ledger_id)
        return found[1] if found and found[0] == czxid else None


def copy_of(info: PendingDeleteLedgerInfo) -> str:
    """The UUID of the offloaded copy that a message is about; empty if it is about none."""
    context = info.offload_context
    return str(offload_object.uuid_of(context.msb, context.lsb)) if context else ""


def bucket_of(info: PendingDeleteLedgerInfo) -> str:
    """The bucket where a message says that the offloaded copy is; empty if it names none."""
    return info.offload_context.metadata.get("bucket", "") if info.offload_context else ""


@dataclass(slots=True)
class Tools:
    """The ports of one worker.

    ``sent_back``: what it sent to the retry topic because it waits (digest, retries). ``pace`` is told the bytes of
    entries before they are read whole, and may wait.
    """

    store: MetadataStore
    reader: LedgerReader
    admin: BrokerAdmin
    queue: DeletionQueue
    journal: Journal
    clock: Clock
    objects: ObjectStore | None = None
    sent_back: set[tuple[bytes, int]] = field(default_factory=set[tuple[bytes, int]])
    pace: Callable[[int], object] = int


@dataclass(frozen=True, slots=True)
class Run:
    """What all workers of one run share.

    ``now`` decides every age: the time when the lease was taken, by the metadata store's clock or ours, whichever is
    behind, so that a clock that is wrong only keeps more. ``brokers`` were asked after it: a topic that they do not
    list and whose z-node was left alone until then cannot have been loaded since without its z-node showing it.
    """

    run_id: str
    cluster: str
    guard: tuple[str, int]
    ledgers_root: str
    now: int
    brokers: Brokers
    evidence: Evidence
    batch: int
    retry_delay_ms: int
    max_retries: int
    deletes_per_second: float
    bytes_per_second: float
    slow_above_ms: float
    stop_above_ms: float
    offload: OffloadPolicy | None = None
    waiting_delay_ms: int = 1_800_000


@dataclass(slots=True)
class Decision:
    """One message and what became of it; ``outcome`` is one of ``plan.outcomes``.

    ``waiting`` says what it waits for, if it does; ``sent_back``: its copy is in the retry topic, behind the others.
    """

    message: Received
    outcome: str = ""
    reason: str = ""
    node: Node | None = None
    length: int = 0
    path: str = ""
    checksum: str = ""
    waiting: Waiting | None = None
    sent_back: bool = False
    extra: dict[str, Any] = field(default_factory=dict[str, Any])
    info: PendingDeleteLedgerInfo = field(init=False)
    """The message's content; only messages that have one have it."""

    def __post_init__(self) -> None:
        if self.message.info is not None:
            self.info = self.message.info

    def settle(self, outcome: str, reason: str) -> None:
        """Decide, once: later calls change nothing."""
        if not self.outcome:
            self.outcome, self.reason = outcome, reason
            self.waiting = Waiting.OTHER if outcome == WAITING else None

    def wait(self, waiting: Waiting, reason: str) -> None:
        """Decide that it waits, for what, once."""
        if not self.outcome:
            self.outcome, self.reason, self.waiting = WAITING, reason, waiting
