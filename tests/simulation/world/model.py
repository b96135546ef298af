"""What brokers have, in metadata and in memory, as the simulator knows it: topics, cursors, ledgers, schemas.

Belongs here: values. Not here: what follows from them (``truth.py``), and what changes them (``world.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import OffloadContext
from pulsar_lifecycle.model import Position, Topic
from tests.kit.simulated.cluster import (
    ENTRY_BYTES,
    bucket_tags,
    compacted_tags,
    confusable_topics,
    cursor_tags,
    data_tags,
    schema_tags,
)

HOUR = 3_600_000
MOST_LEDGERS = 40
LISTING_LAG = 60_000
BOOKKEEPER = "BookKeeper"
ONE_ENTRY = (b"x" * ENTRY_BYTES,)
"""What most ledgers have."""

TOPICS = confusable_topics("acme/orders/__change_events", "pulsar/system/__transaction_log_0")
ELSEWHERE = Topic.parse("persistent://foreign/app/t")
COMPACTION = "__compaction"


@dataclass
class Ledger:
    """What a ledger was made for; ``born`` is the true time (ms)."""

    kind: str
    topic: Topic
    born: int
    cursor: str = ""
    span: tuple[int, int] = (0, 0)
    state: LedgerState = LedgerState.CLOSED
    entries: tuple[bytes, ...] = ()
    """What was written to it, whatever has become of its copies; only of data."""


@dataclass
class Cursor:
    """A subscription. ``compacted`` is what the broker takes for the compacted ledger, ``noted`` the z-node's copy.

    ``at`` is the ledger it stands in, by the z-node: the last entry of its cursor ledger knows better.
    """

    ledger: int = -1
    compacted: int | None = None
    noted: int | None = None
    at: int = 0
    exact: Position | None = None
    """Where a reset put it, as long as that is in ledger ``at``; else it stands before the first entry there."""
    buckets: dict[tuple[int, int], int] = field(default_factory=dict)
    swallowed: dict[tuple[int, int], int] = field(default_factory=dict)
    """Snapshots whose key was never stored: only the broker's memory has them."""
    active: int | None = None
    """When (ms) a client was last at it, by the z-node."""
    acked: set[tuple[int, int]] = field(default_factory=set)
    """(ledger, entry) of what is acknowledged from ledger ``at`` on, by the z-node."""
    broken: bool = False
    """Whether somebody broke its index of delayed messages, and nobody has repaired it since."""


class PolicyEvent(NamedTuple):
    """Policies of a topic by their Java names, global ones if ``everywhere``; None deletes them. ``ledger`` has it."""

    ledger: int
    topic: Topic
    everywhere: bool
    policies: Mapping[str, Any] | None


@dataclass
class ModelTopic:
    """A topic as its broker has it. ``away``: its z-nodes are gone for some hours and will be restored. ``moved``: they
    are not taken away, or given another name, any more. ``pinned``: nor are those of topics that shadow it.
    ``unscanned``: a shadow topic that no covered scan saw: nobody outside could know of it, were it taken away.
    """

    name: Topic
    ledgers: list[int] = field(default_factory=list)
    offloaded: dict[int, OffloadContext] = field(default_factory=dict)
    cursors: dict[str, Cursor] = field(default_factory=dict)
    loaded: bool = False
    memory: set[int] = field(default_factory=set)
    readers: dict[str, dict[tuple[int, int], int]] = field(default_factory=dict)
    """Non-durable subscriptions and their snapshots: only the broker's memory has either."""
    unlisted: set[int] = field(default_factory=set)
    """Snapshots that a dispatcher goes on with whose cursor is no longer among the topic's."""
    compacting: int | None = None
    shadow_of: str = ""
    terminated: bool = False
    away: bool = False
    moved: bool = False
    pinned: bool = False
    unscanned: bool = False
    apart: bool = False
    """Whether no act of chance is done to it."""
    due: dict[tuple[int, int], int] = field(default_factory=dict)
    """When (ms) delayed messages are due, by (ledger, entry)."""
    first: tuple[bytes, ...] = ONE_ENTRY
    """What a broker writes to a new ledger of it."""
    said: list[PolicyEvent] = field(default_factory=list)
    """What a topic ``__change_events`` has of the policies of others, in its order."""
    stale: dict[int, OffloadContext | None] = field(default_factory=dict)
    """Offloads as its broker has them in memory, where we have written others since it loaded the topic."""


@dataclass
class Model:
    """Everything that a restore of the metadata store takes back."""

    topics: dict[Topic, ModelTopic] = field(default_factory=dict)
    ledgers: dict[int, Ledger] = field(default_factory=dict)
    schemas: dict[str, list[int]] = field(default_factory=dict)
    pending: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Schema ledgers whose locator is not written yet: ledger -> (schema id, when it will be)."""
    returns: list[tuple[int, Topic]] = field(default_factory=list)
    listings: list[tuple[int, Topic]] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)
    elsewhere: dict[int, str] = field(default_factory=dict)
    """Ledgers that another system on the same BookKeeper needs."""
    overtaken: dict[int, int] = field(default_factory=dict)
    """Open ledgers that no broker can list, as a write of ours came before: -> what created the topic's z-node."""


@dataclass(frozen=True)
class Counters:
    """What only ever grows: transactions, ledger ids that were issued, and leases that were taken.

    ``lease_born`` is the transaction that created the lease's z-node, 0 if there is none.
    """

    zxid: int
    ids: int
    lease_born: int
    lease: int

    def can_follow(self, then: Counters) -> bool:
        """Whether these may be of the same history, later."""
        same_lease = not then.lease_born or self.lease_born == then.lease_born
        return same_lease and self.zxid >= then.zxid and self.ids >= then.ids and self.lease >= then.lease


def tags_of(made: Ledger) -> Mapping[str, str] | None:
    topic = made.topic
    if made.kind == "foreign":
        return None
    if made.kind == "data":
        return data_tags(topic)
    if made.kind == "cursor":
        return cursor_tags(topic, made.cursor)
    if made.kind == "schema":
        return schema_tags(topic.schema_id)
    if made.kind == "compacted":
        return compacted_tags(topic)
    return bucket_tags(topic, made.cursor, *made.span)
