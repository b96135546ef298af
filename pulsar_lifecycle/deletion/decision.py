"""What one message of the deletion queue becomes: its outcome, and what a run knows when it decides.

Belongs here: the values that deciding (``deciding.py``) and acting (``batch.py``) share. Not here: any rule.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from pulsar_lifecycle.deletion.run_evidence import DeclaredBuckets, Evidence
from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.ports import (
    Node,
    Received,
)
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.copies import CopyDeletion, OffloadLocation
from pulsar_lifecycle.values.outcomes import Outcome, Waiting


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
    offload: DeclaredBuckets | None = None
    waiting_delay_ms: int = 1_800_000


@dataclass(frozen=True, slots=True)
class ObjectSeen:
    """An object of an offloaded copy: its size in bytes, when (ms) it was last changed."""

    bucket: str
    key: str
    size: int
    etag: str
    last_modified: int


@dataclass(slots=True)
class Decision:
    """One message and what became of it; ``outcome`` is one of ``values.outcomes``, ``code`` says why.

    ``reason`` is that as a sentence. ``waiting`` says what it waits for, if it does;
    ``sent_back``: its copy is in the retry topic, behind the others.
    """

    message: Received
    outcome: Outcome | None = None
    code: StrEnum | None = None
    reason: str = ""
    node: Node | None = None
    length: int = 0
    path: str = ""
    checksum: str = ""
    waiting: Waiting | None = None
    sent_back: bool = False
    reconsume_times: int | None = None
    """How often it was tried, once its copy is in the retry topic; None: as its message says."""
    waiting_since: int = 0
    """When (ms) it began to wait, if it was sent back."""
    copy_deletion: CopyDeletion | None = None
    """Our own run's deletion of this copy in BookKeeper, if that is why it may go."""
    site: OffloadLocation | None = None
    """Where the offloaded copy of a ledger whose copy in BookKeeper goes is, by its topic."""
    cursor_exists: bool = False
    """Whether the cursor that its message names has a z-node."""
    bucket: str = ""
    """The bucket of the offloaded copy, once it is one of ours."""
    listed: LedgerInfo | None = None
    """How its topic lists the ledger of an offloaded copy that may go."""
    objects: tuple[ObjectSeen, ...] = ()
    """The objects of the offloaded copy, as they were last seen."""
    info: PendingDeleteLedgerInfo = field(init=False)
    """The message's content; only messages that have one have it."""

    def __post_init__(self) -> None:
        if self.message.info is not None:
            self.info = self.message.info

    def decide(self, outcome: Outcome, code: StrEnum, reason: str) -> None:
        """Decide, once: later calls change nothing."""
        if not self.outcome:
            self.outcome, self.code, self.reason = outcome, code, reason
            self.waiting = Waiting.OTHER if outcome == Outcome.WAITING else None

    def wait(self, waiting: Waiting, reason: str, code: Code | None = None) -> None:
        """Decide that it waits, for what, once; ``code`` where that does not say it all."""
        if not self.outcome:
            self.outcome, self.code, self.reason, self.waiting = Outcome.WAITING, code or waiting, reason, waiting
