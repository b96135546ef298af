"""What the library needs from the outside world, as Protocols; ``io/`` implements them, the tests fake them.

Belongs here: interfaces and the values that cross them. Not here: anything that knows a vendor. Every adapter turns
its vendor's errors into ``pulsar_lifecycle.errors`` and never retries a write whose outcome it does not know.
Times are milliseconds since the epoch, sizes bytes.
"""

from pulsar_lifecycle.ports.alerts import Alerts
from pulsar_lifecycle.ports.bookies import BookieAdmin
from pulsar_lifecycle.ports.brokers import (
    BEFORE_ALL,
    Acknowledged,
    BrokerAdmin,
    BrokerStatistics,
    TopicConnections,
    TopicInternals,
)
from pulsar_lifecycle.ports.cluster_ports import ClusterPorts, Connect
from pulsar_lifecycle.ports.journal import (
    Archived,
    ArchivedSnapshot,
    Clock,
    Counting,
    Ids,
    Journal,
    JournalReader,
    JournalRow,
)
from pulsar_lifecycle.ports.lake import Lake
from pulsar_lifecycle.ports.ledgers import (
    Entry,
    EntryBatch,
    LedgerReader,
    LedgerShape,
    LedgerWriter,
    ReplicaCheck,
    Traces,
)
from pulsar_lifecycle.ports.metadata import (
    Children,
    Deletion,
    DeletionResult,
    MetadataStore,
    Node,
    NodeDeletion,
    ScanBatch,
    ScanRow,
    Stat,
    Unread,
)
from pulsar_lifecycle.ports.objects import (
    OCTET_STREAM,
    ObjectDeletion,
    ObjectHead,
    ObjectStore,
    ObjectSummary,
    Part,
    Payload,
    Upload,
)
from pulsar_lifecycle.ports.queue import (
    DeadLetterQueue,
    DeletionQueue,
    Page,
    Postponed,
    QueueReader,
    Received,
    Resent,
    Sent,
)

__all__ = [
    "BEFORE_ALL",
    "OCTET_STREAM",
    "Acknowledged",
    "Alerts",
    "Archived",
    "ArchivedSnapshot",
    "BookieAdmin",
    "BrokerAdmin",
    "BrokerStatistics",
    "Children",
    "Clock",
    "ClusterPorts",
    "Connect",
    "Counting",
    "DeadLetterQueue",
    "Deletion",
    "DeletionQueue",
    "DeletionResult",
    "Entry",
    "EntryBatch",
    "Ids",
    "Journal",
    "JournalReader",
    "JournalRow",
    "Lake",
    "LedgerReader",
    "LedgerShape",
    "LedgerWriter",
    "MetadataStore",
    "Node",
    "NodeDeletion",
    "ObjectDeletion",
    "ObjectHead",
    "ObjectStore",
    "ObjectSummary",
    "Page",
    "Part",
    "Payload",
    "Postponed",
    "QueueReader",
    "Received",
    "ReplicaCheck",
    "Resent",
    "ScanBatch",
    "ScanRow",
    "Sent",
    "Stat",
    "TopicConnections",
    "TopicInternals",
    "Traces",
    "Unread",
    "Upload",
]
