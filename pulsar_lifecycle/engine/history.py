"""Refusing to act on a metadata store that went back in time: what every effect asks before it begins.

Belongs here: reading the counters and comparing them with the newest scan's. Not here: the comparison
(``plan/history.py``), the scans' own proof (``plan/coverage.py``).
"""

from __future__ import annotations

from pulsar_lifecycle.engine.control import LEASE
from pulsar_lifecycle.errors import Refused
from pulsar_lifecycle.plan.coverage import Epoch
from pulsar_lifecycle.plan.history import UNKNOWN, WHAT_TO_DO, Marks, went_back
from pulsar_lifecycle.ports import MetadataStore, Node


def read_marks(store: MetadataStore, fingerprint: str, ledgers_root: str) -> Marks:
    """The store's counters now; three z-nodes at most are read."""
    zxid = store.zxid()
    issued, lease = store.read([f"{ledgers_root}/idgen", LEASE])
    return Marks(
        fingerprint,
        zxid,
        issued.stat.cversion if isinstance(issued, Node) else UNKNOWN,
        (lease.stat.czxid, lease.stat.version) if isinstance(lease, Node) else (UNKNOWN, UNKNOWN),
    )


def check_history(store: MetadataStore, newest: Epoch | None, fingerprint: str, ledgers_root: str) -> None:
    """Raise Refused if the store is not the later state of the one that the newest finished scan saw.

    ``newest``: of this cluster's name, covered or not, whatever its fingerprint; without one there is nothing to
    compare with.
    """
    found = broken_since(store, newest, fingerprint, ledgers_root)
    if found:
        raise Refused(found)


def broken_since(store: MetadataStore, newest: Epoch | None, fingerprint: str, ledgers_root: str) -> str:
    """What :func:`check_history` would refuse with; empty if it would not."""
    if newest is None:
        return ""
    if newest.broken:
        return newest.broken
    found = went_back(read_marks(store, fingerprint, ledgers_root), newest.marks, f"scan {newest.epoch_id}")
    return f"{found}; {WHAT_TO_DO}" if found else ""
