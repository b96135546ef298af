"""A write of a topic's list of ledgers by us, and which ledgers of brokers it came before.

Belongs here: the transactions of such a write, and the rule. Not here: which open ledgers it is asked of
(``scan/epochs.py``).

A broker reads the topic's z-node, makes a ledger, and lists it by a compare-and-set that names the version it read, or
that its own last write made (ManagedLedgerImpl 4.0.7: ``initializeBookKeeper``, ``createComplete``). After a
BadVersion its managed ledger is fenced for good, and the next load reads anew. So a ledger that was made after the
write which ours replaced, and before ours, was never listed and never will be.
"""

from __future__ import annotations

from dataclasses import dataclass

LOAD_MS = 60_000
"""How long (ms) brokers wait for a new ledger by default: ``managedLedgerMetadataOperationsTimeoutSeconds``.

A ledger that is older by more at our write is no sign of a load that it came before: the rule would hold, but another
cluster's broker, whose root nobody declared, may have made it.
"""


@dataclass(frozen=True, slots=True)
class ListWrite:
    """Details of what left a list: our write of the topic's z-node, by its Stat.

    ``topic_czxid``: the transaction that created the z-node. ``list_read`` and ``list_written``: that of the write
    which ours replaced, and of ours. ``list_version``, ``list_written_at``: the version that ours made, and when (ms),
    by the metadata store.
    """

    topic_czxid: int
    list_read: int
    list_written: int
    list_version: int
    list_written_at: int

    def came_before(self, czxid: int, ctime: int) -> bool:
        """Whether no broker can list the ledger whose z-node this transaction created, at ``ctime`` (ms).

        It must be a data ledger of the topic, and the topic must be of this write still: :meth:`is_of`.
        """
        return self.list_read < czxid < self.list_written and 0 <= self.list_written_at - ctime <= LOAD_MS

    def is_of(self, czxid: int, version: int) -> bool:
        """Whether a z-node of the topic's name is the one that was written: not created anew, and not put back."""
        return czxid == self.topic_czxid and version >= self.list_version
