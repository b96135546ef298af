"""What the library needs from the outside world, as Protocols; ``io/`` implements them, the tests fake them.

Belongs here: interfaces and the values that cross them. Not here: anything that knows a vendor. Every adapter turns
its vendor's errors into ``pulsar_lifecycle.errors`` and never retries a write whose outcome it does not know.
Times are milliseconds since the epoch, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.model import Position, Topic

# ---------------------------------------------------------------------------------------------------------- metadata


@dataclass(frozen=True, slots=True)
class Stat:
    """What ZooKeeper knows of a z-node (org.apache.zookeeper.data.Stat)."""

    czxid: int
    mzxid: int
    ctime: int
    mtime: int
    version: int
    cversion: int
    ephemeral_owner: int
    data_length: int
    num_children: int
    pzxid: int


@dataclass(frozen=True, slots=True)
class Node:
    """A z-node as read."""

    path: str
    data: bytes
    stat: Stat


@dataclass(frozen=True, slots=True)
class Unread:
    """A z-node that is there and could not be read (no permission, say); never to be taken for absent."""

    path: str
    reason: str


@dataclass(frozen=True, slots=True)
class Children:
    """The names below a z-node, unsorted, with the node's own count from its Stat at the same moment."""

    path: str
    names: tuple[str, ...]
    num_children: int


ScanRow = tuple[str, bytes, int, int, int, int, int, int, tuple[str, ...]]
"""path, data, czxid, mzxid, ctime, mtime, version, num_children, names (empty unless children were asked for)."""


@dataclass(frozen=True, slots=True)
class ScanBatch:
    """One step of a scan: what was found, what is not there, what is there and could not be read."""

    rows: list[ScanRow]
    gone: list[str]
    unread: list[Unread]


@dataclass(frozen=True, slots=True)
class Deletion:
    """Delete ``path`` if its data version is still ``version``."""

    path: str
    version: int


@dataclass(frozen=True, slots=True)
class DeletionResult:
    """What became of one :class:`Deletion`: ``deleted``, ``gone`` (was not there) or ``changed`` (another version)."""

    path: str
    outcome: str


class MetadataStore(Protocol):
    """ZooKeeper as a tree of versioned nodes; reads are bulk (multiRead), writes single or guarded batches."""

    def sync(self, path: str = "/") -> None:
        """Make the following reads on this session see every write that was acknowledged before this call."""
        ...

    def zxid(self) -> int:
        """The store's latest transaction id, after a sync; only a store restored from a backup goes back."""
        ...

    def read(self, paths: Sequence[str]) -> list[Node | Unread | None]:
        """Data and Stat of many z-nodes, in order; None where there is none. Any number of paths."""
        ...

    def children(self, paths: Sequence[str]) -> list[Children | Unread | None]:
        """Child names of many z-nodes, in order; None where the node does not exist."""
        ...

    def scan(self, paths: Iterable[str], *, children: bool = False) -> Iterator[ScanBatch]:
        """Read any number of z-nodes as bare tuples, batch by batch in the order given: the fast way to read millions.

        With ``children`` each row also has the names below it, from the same request.
        """
        ...

    def create(self, path: str, data: bytes = b"", *, ephemeral: bool = False, parents: bool = False) -> Stat:
        """Create a z-node. Raises Conflict if it exists, OutcomeUnknown if the connection broke."""
        ...

    def write(self, path: str, data: bytes, version: int, beside: str = "") -> Stat:
        """Compare-and-set; with ``beside`` only while that z-node is there. Raises Conflict, NotFound, OutcomeUnknown.

        A z-node that was deleted and created again begins anew with its versions; ``beside`` tells it from the one
        that was read. Conflict stands for another version, and for ``beside`` that is not there.
        """
        ...

    def delete(self, path: str, version: int) -> None:
        """Delete one z-node. Raises Conflict on another version, NotFound, OutcomeUnknown."""
        ...

    def delete_many(self, deletions: Sequence[Deletion], guard: tuple[str, int]) -> list[DeletionResult]:
        """Delete in transactions that also check that z-node ``guard[0]`` still has version ``guard[1]``.

        One bad operation aborts a transaction: it is taken out with its outcome and the rest is sent again. After a
        lost connection the batch is read again, and what is absent counts as ``deleted``. Raises LeaseLost when the
        guard does not hold; then what was not yet deleted stays.
        """
        ...

    def latency_ms(self) -> float:
        """Latest round trip of the latency probe on its own session, in milliseconds."""
        ...

    def close(self) -> None:
        """End the session; ephemeral nodes go with it."""
        ...


# ----------------------------------------------------------------------------------------------------------- ledgers


@dataclass(frozen=True, slots=True)
class Entry:
    """One BookKeeper entry: ``payload`` without the digest header, already verified."""

    ledger_id: int
    entry_id: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class EntryBatch:
    """Payloads of consecutive entries of a ledger from ``first`` on, already verified; never empty."""

    first: int
    payloads: list[bytes]


@dataclass(frozen=True, slots=True)
class ReplicaCheck:
    """What the bookies of a closed ledger gave when each was asked for entries that it should have.

    ``entries`` is how many the ledger has, ``asked`` of how many every replica was asked; ``asked * write quorum``
    copies were expected and ``held`` came with the right digest. Of the entries asked for, ``thin`` came from fewer
    bookies than the write quorum, ``lost`` from none while all of theirs answered, ``unproven`` from none while one of
    theirs was silent. ``missing`` counts by bookie the copies it answered not to have, or that are damaged; ``silent``
    says by bookie why it gave no answer, which is never taken for "gone".
    """

    entries: int
    asked: int
    held: int
    thin: int
    lost: int
    unproven: int
    missing: Mapping[str, int]
    silent: Mapping[str, str]

    @property
    def every_entry(self) -> bool:
        """Whether every entry was asked for, not a sample."""
        return self.asked == self.entries


class LedgerReader(Protocol):
    """Reads BookKeeper entries without ever recovering or fencing a ledger."""

    def last_entry(self, ledger_id: int, metadata: LedgerMetadata) -> Entry | None:
        """The last entry of a ledger, confirmed or not (open cursor ledgers need LAC+1); None if it has none.

        Raises NotFound when every replica says the ledger is gone, Unavailable when too few replicas answered to know.
        """
        ...

    def last_entries(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[Entry | LifecycleError | None]:
        """:meth:`last_entry` of many ledgers in few round trips, in order; what it would raise stands in the list."""
        ...

    def read(self, ledger_id: int, metadata: LedgerMetadata, first: int, last: int) -> list[Entry]:
        """Entries first..last, both inclusive. Raises NotFound, StoreError, Unavailable, CorruptFormat."""
        ...

    def stream(self, ledger_id: int, metadata: LedgerMetadata, first: int, last: int) -> Iterator[EntryBatch]:
        """Entries first..last of a closed ledger, both inclusive, in order, a batch of some MiB at most at a time.

        For any number of entries: reads ahead of a slow consumer by a bounded number of bytes. Also the ledger's length
        must add up. Raises UsageError at once for a ledger that is not closed or entries it does not have; then as
        :meth:`read`, after the entries before the one that failed. One that is not read to its end is to be closed.
        """
        ...

    def check_replicas(self, ledgers: Sequence[tuple[int, LedgerMetadata]]) -> list[ReplicaCheck]:
        """Ask every replica of closed ledgers whether it still holds its entries, in order; never raises for a bookie.

        Which entries: ``formats.striping.telling_entries``.
        """
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


# ----------------------------------------------------------------------------------------------------------- brokers


BEFORE_ALL = Position(-1, -1)
"""The position before a topic's first message."""


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """What a cursor has behind it: all up to ``mark_delete``, and beyond it ``ranges`` (first excluded, last not)."""

    mark_delete: Position
    ranges: tuple[tuple[Position, Position], ...] = ()

    def __contains__(self, position: Position) -> bool:
        """Whether the message, or the whole batch, at a position is acknowledged."""
        return position <= self.mark_delete or any(first < position <= last for first, last in self.ranges)


@dataclass(frozen=True, slots=True)
class TopicInternals:
    """What the owner broker holds in memory of one loaded topic (``internalStats``).

    Cursors are keyed by the name of their z-node; ``cursor_ledgers`` has only those with a ledger of their own.
    ``last_confirmed`` is the position of the last message, or the one before the first.
    """

    state: str
    ledgers: tuple[int, ...]
    cursor_ledgers: Mapping[str, int]
    cursor_properties: Mapping[str, Mapping[str, int]]
    compacted_ledger: int | None
    schema_ledgers: tuple[int, ...]
    acknowledged: Mapping[str, Acknowledged] = field(default_factory=dict[str, Acknowledged])
    last_confirmed: Position = BEFORE_ALL


class BrokerAdmin(Protocol):
    """The admin REST API; only calls that do not load a topic, except where a docstring says so."""

    def brokers(self) -> list[str]:
        """Broker ids (``host:webport``) of the cluster."""
        ...

    def loaded_topics(self) -> dict[str, str]:
        """Full topic name -> broker id, from every broker's ``/broker-stats/topics``.

        The list lags by ``statsUpdateFrequencyInSecs`` (60). Raises if any broker does not answer.
        """
        ...

    def internal_stats(self, topic: Topic) -> TopicInternals:
        """Loads the topic: ask only for a topic that is loaded already."""
        ...

    def compaction_status(self, topic: Topic) -> str:
        """``NOT_RUN``, ``RUNNING``, ``SUCCESS`` or ``ERROR``. Loads the topic: ask only for a loaded one."""
        ...

    def stats_interval_ms(self) -> int:
        """How often brokers refresh ``/broker-stats/topics`` (``statsUpdateFrequencyInSecs``), the longest of all."""
        ...

    def configurations(self) -> dict[str, Mapping[str, str]]:
        """Broker id -> its runtime configuration: what broker.conf and dynamic settings come to, as text."""
        ...

    def topic_policies(self, topic: Topic, names: Sequence[str]) -> dict[str, Mapping[str, Any]]:
        """A topic's own policies of these names (``offloadPolicies``, ``retention``); what is not set is left out.

        Of a partition: those of its partitioned topic. Loads nothing. Raises StoreError where the cluster has no topic
        policies (``topicLevelPoliciesEnabled``).
        """
        ...

    def read_entry(self, topic: Topic, position: Position) -> None:
        """Have the topic's broker read one stored entry. Loads the topic. Raises NotFound where it has no such one."""
        ...

    def create_partitioned_topic(self, topic: Topic, partitions: int) -> None:
        """Create a partitioned topic; an existing one with the same number is fine, another number raises Conflict."""
        ...

    def create_topic(self, topic: Topic) -> None:
        """Create a non-partitioned topic; an existing one is fine."""
        ...

    def partitions(self, topic: Topic) -> int | None:
        """Number of partitions; 0 for an existing non-partitioned topic, None where there is no such topic."""
        ...

    def create_subscription(self, topic: Topic, subscription: str, position: str = "earliest") -> None:
        """Create a durable subscription on one partition or topic; an existing one is fine. Loads the topic."""
        ...

    def subscriptions(self, topic: Topic) -> list[str]:
        """Names of the durable subscriptions. Loads the topic."""
        ...

    def backlog(self, topic: Topic, subscription: str) -> int:
        """``msgBacklog`` of one subscription of one partition or topic. Loads the topic."""
        ...

    def unload(self, topic: Topic) -> None:
        """Make its broker forget a topic, so that the next load reads its z-node afresh; may be repeated.

        Loads a topic that is not loaded, first. Raises NotFound for a missing topic, OutcomeUnknown.
        """
        ...

    def delete_topic(self, topic: Topic, force: bool) -> None:
        """The broker's own DELETE of one topic or partition with its cursors and ledgers.

        Without ``force`` the broker refuses a topic with connected clients (StoreError). Raises NotFound for a missing
        topic, Conflict for a partitioned one, OutcomeUnknown.
        """
        ...

    def close(self) -> None:
        """Close the connection pool."""
        ...


# ------------------------------------------------------------------------------------------------------------- queue


@dataclass(frozen=True, slots=True)
class Received:
    """A message taken from the deletion queue.

    ``info`` is None when the bytes are no valid message, and ``problem`` then says why; ``raw`` is the message as it
    came. ``message_id`` is a serialized MessageIdData; ``handle`` belongs to the adapter. ``topic`` is empty for a row
    of a plan that is worked off without messages.
    """

    message_id: bytes
    topic: str
    raw: bytes
    properties: Mapping[str, str]
    publish_time: int
    info: PendingDeleteLedgerInfo | None
    problem: str
    handle: object = field(repr=False, compare=False, default=None)


@dataclass(frozen=True, slots=True)
class Sent:
    """Outcome of one send: ``error`` is empty when the broker acknowledged it."""

    info: PendingDeleteLedgerInfo
    message_id: bytes
    error: str


@dataclass(frozen=True, slots=True)
class Postponed:
    """Outcome of one ``reconsume_later``: sent as retry number ``times``, or ``dead``-lettered, unless ``error``."""

    message: Received
    times: int
    dead: bool
    error: str


class DeletionQueue(Protocol):
    """``persistent://pulsar/system/__ledger_deletion`` with its durable subscription ``ledger-deletion``."""

    def send(self, infos: Sequence[PendingDeleteLedgerInfo], deliver_after_ms: int) -> list[Sent]:
        """Make sure of topics and subscriptions, send one message per info, in order, and wait for every receipt."""
        ...

    def backlog(self) -> int:
        """Messages of the main and the retry topic that the subscription has not acknowledged."""
        ...

    def receive(self, limit: int, wait_ms: int) -> list[Received]:
        """Up to ``limit`` messages of the Shared subscription; fewer, or none, once ``wait_ms`` have passed."""
        ...

    def acknowledge(self, messages: Sequence[Received]) -> None:
        """Acknowledge for good; surely sent once the queue is closed, and unconfirmed: a lost one comes again."""
        ...

    def reconsume_later(self, messages: Sequence[Received], delay_ms: int, max_times: int) -> list[Postponed]:
        """Send copies to the retry topic, due after ``delay_ms``, as a Java consumer's ``reconsumeLater`` does.

        One that went there ``max_times`` times already goes to the dead-letter topic instead. Waits for every
        receipt; acknowledges nothing.
        """
        ...

    def release(self, messages: Sequence[Received]) -> None:
        """Neither deleted nor acknowledged: the subscription hands them out again once this queue is closed."""
        ...

    def close(self) -> None:
        """Close producers and consumers."""
        ...


@dataclass(frozen=True, slots=True)
class Resent:
    """Outcome of sending a dead letter again: ``error`` is empty when the broker acknowledged it."""

    message: Received
    message_id: bytes
    error: str


class DeadLetterQueue(Protocol):
    """``persistent://pulsar/system/__ledger_deletion-DLQ`` with its durable subscription ``ledger-deletion``."""

    def backlog(self) -> int:
        """Dead letters that the subscription has not acknowledged."""
        ...

    def take(self, limit: int, wait_ms: int) -> list[Received]:
        """Up to ``limit`` dead letters, fewer once ``wait_ms`` have passed; each once until this queue is closed."""
        ...

    def send_again(self, messages: Sequence[Received]) -> list[Resent]:
        """Send each to the main topic without what its retries wrote; waits for every receipt, acknowledges none."""
        ...

    def acknowledge(self, messages: Sequence[Received]) -> None:
        """Acknowledge for good; unconfirmed: a lost one comes again."""
        ...

    def close(self) -> None:
        """Give back what was taken and not acknowledged."""
        ...


@dataclass(frozen=True, slots=True)
class Page:
    """What waits in a part of a partition, in its order.

    ``upto`` is the position of the last message looked at, acknowledged or not; ``end``: none was behind it.
    """

    messages: tuple[Received, ...]
    upto: Position
    end: bool


class QueueReader(Protocol):
    """Looks at what waits in the queue's topics and takes nothing."""

    def partitions(self, topic: Topic) -> list[Topic]:
        """The partitions of a topic, itself if it has none, nothing where it does not exist."""
        ...

    def backlog(self, part: Topic) -> int:
        """Messages of one partition that the subscription has not acknowledged."""
        ...

    def waiting(self, part: Topic, after: Position | None, limit: int) -> Page:
        """Look at about ``limit`` messages of a partition: the first ones that wait, or those behind ``after``.

        Messages that are acknowledged are left out; delayed ones are there. Raises NotFound without the subscription.
        """
        ...

    def close(self) -> None:
        """Close the connections."""
        ...


# ----------------------------------------------------------------------------------------------------------- objects

Payload = bytes | bytearray | memoryview
"""The bytes of an object or a part."""

OCTET_STREAM = "application/octet-stream"


@dataclass(frozen=True, slots=True)
class ObjectHead:
    """What a bucket knows of an object without its bytes; the keys of ``metadata`` (user metadata) in lower case."""

    key: str
    size: int
    etag: str
    last_modified: int
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ObjectDeletion:
    """What became of one deletion: done (or nothing was there) unless ``error``.

    ``marker``: the bucket is versioned, and the bytes stay behind a delete marker.
    """

    key: str
    error: str = ""
    marker: bool = False


@dataclass(frozen=True, slots=True)
class ObjectSummary:
    """An object as a listing shows it; ``etag`` without quotes."""

    key: str
    size: int
    etag: str
    last_modified: int


@dataclass(frozen=True, slots=True)
class Part:
    """A part of an upload that the service has acknowledged; numbers start at 1."""

    number: int
    etag: str
    size: int


@dataclass(frozen=True, slots=True)
class Upload:
    """An upload that was begun and neither completed nor aborted: its parts take space that no object shows."""

    key: str
    upload_id: str
    initiated: int


class ObjectStore(Protocol):
    """Buckets of an S3 service; only those that the settings name, any other raises Refused. Threads may share one.

    Every method raises NotFound for a bucket that is not there, AccessDenied, and Unavailable after the configured
    attempts.
    """

    def head(self, bucket: str, key: str) -> ObjectHead | None:
        """An object's head, None where there is no such object."""
        ...

    def head_many(self, bucket: str, keys: Sequence[str]) -> list[ObjectHead | LifecycleError | None]:
        """:meth:`head` of many objects at once, in order; what it would raise stands in the list."""
        ...

    def get(self, bucket: str, key: str, start: int = 0, length: int | None = None, if_match: str = "") -> bytes:
        """The bytes [``start``, ``start + length``), or to the end; fewer only where the object ends.

        Raises NotFound for an object that is not there, Conflict when its ETag is not, or no longer, ``if_match``:
        pass the head's to read one object in several ranges. An answer that breaks off is taken up where it broke.
        """
        ...

    def stream(
        self, bucket: str, key: str, start: int = 0, length: int | None = None, if_match: str = ""
    ) -> Generator[bytes, None, None]:
        """:meth:`get` in pieces, as they come, by one request. Close it if it is not read to its end."""
        ...

    def list_objects(
        self, bucket: str, prefix: str = "", page: int = 1000, after: str = ""
    ) -> Iterator[list[ObjectSummary]]:
        """The objects whose key begins with ``prefix``, in pages of at most ``page``, which is at most 1000.

        In the order of their keys; ``after`` leaves out those up to it. A listing that ends before the service says
        that it is complete raises.
        """
        ...

    def put(
        self, bucket: str, key: str, data: Payload, metadata: Mapping[str, str], content_type: str = OCTET_STREAM
    ) -> str:
        """Write an object in one request, over one of that key; returns its ETag.

        Raises OutcomeUnknown when no answer tells: read its head.
        """
        ...

    def begin_upload(self, bucket: str, key: str, metadata: Mapping[str, str], content_type: str = OCTET_STREAM) -> str:
        """Begin an object in parts; returns the upload's id. :meth:`list_uploads` shows one whose answer got lost."""
        ...

    def upload_part(self, bucket: str, key: str, upload_id: str, number: int, data: Payload) -> Part:
        """Send part ``number`` (1 to 10,000); may be repeated, the last one counts.

        All parts but the last need 5 MiB. Several may be under way at once. ``data`` is not copied: leave it alone
        until this returns. Raises NotFound for an upload that is not there (any more).
        """
        ...

    def complete_upload(self, bucket: str, key: str, upload_id: str, parts: Sequence[Part]) -> str:
        """Make the parts one object, over one of that key; returns its ETag.

        Raises OutcomeUnknown when no answer tells: read the object's head. StoreError when a part is missing or is
        another one now, NotFound for an upload that is not there: then no object was made.
        """
        ...

    def abort_upload(self, bucket: str, key: str, upload_id: str) -> None:
        """Drop an upload and its parts; one that is not there (any more) is fine.

        No part may be under way: the service may keep one that arrives afterwards.
        """
        ...

    def list_uploads(self, bucket: str, prefix: str = "", page: int = 1000) -> Iterator[list[Upload]]:
        """The uploads under way whose key begins with ``prefix``, in pages like :meth:`list_objects`."""
        ...

    def delete_many(self, bucket: str, keys: Sequence[str]) -> list[ObjectDeletion]:
        """Delete objects in batches, in order; an absent one counts as deleted.

        What could not be asked for, or was asked for without an answer, has an ``error``: read again.
        """
        ...

    def close(self) -> None:
        """Close all connections."""
        ...


# --------------------------------------------------------------------------------------------------- journal, archive


@dataclass(frozen=True, slots=True)
class JournalRow:
    """One decision or effect; DESIGN section 5. Unknown text fields are empty, unknown numbers 0."""

    run_id: str
    cluster: str
    plan_id: str
    ledger_id: int
    component: str
    topic: str
    action: str
    phase: str
    outcome: str
    reason: str
    bytes: int
    checksum: str
    detail: str
    at: int


@dataclass(frozen=True, slots=True)
class Archived:
    """A ledger z-node as it was before its deletion: enough to restore it."""

    run_id: str
    cluster: str
    ledger_id: int
    path: str
    data: bytes
    version: int
    czxid: int
    ctime: int
    at: int

    @property
    def node(self) -> Node:
        """The z-node, with as much of its Stat as was kept."""
        size = len(self.data)
        stat = Stat(self.czxid, self.czxid, self.ctime, self.ctime, self.version, 0, 0, size, 0, self.czxid)
        return Node(self.path, self.data, stat)


class Journal(Protocol):
    """Durable, append-only; a call returns only when its rows survive a crash of this machine."""

    def record(self, rows: Sequence[JournalRow]) -> str:
        """Store rows as one closed object; returns its location."""
        ...

    def archive(self, nodes: Sequence[Archived]) -> str:
        """Store z-nodes about to be deleted as one closed object; returns its location."""
        ...


class Clock(Protocol):
    """Time, so that tests can have their own."""

    def now_ms(self) -> int:
        """Milliseconds since the epoch."""
        ...

    def sleep(self, seconds: float) -> None:
        """Wait."""
        ...
