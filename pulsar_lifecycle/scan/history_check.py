"""Refusing to act on a metadata store that went back in time: what every effect asks before it begins.

Belongs here: reading the counters. Not here: the comparison with what the scans saw (``values/store_history.py``,
``scan/coverage.py``).
"""

from __future__ import annotations

from collections.abc import Sequence

from pulsar_lifecycle.errors import RefusedBy
from pulsar_lifecycle.ports import MetadataStore, Node, Unread
from pulsar_lifecycle.runs.control import LEASE
from pulsar_lifecycle.scan.coverage import history_broken
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.gaps import Gap
from pulsar_lifecycle.values.refusals import RefusalCode
from pulsar_lifecycle.values.store_history import NO_LEASE, UNKNOWN, StoreCounters


def read_counters(store: MetadataStore, fingerprint: str, ledgers_root: str) -> StoreCounters:
    """The store's counters now; three z-nodes at most are read."""
    zxid = store.zxid()
    issued, lease = store.read([f"{ledgers_root}/idgen", LEASE])
    return StoreCounters(
        fingerprint,
        zxid,
        issued.stat.cversion if isinstance(issued, Node) else UNKNOWN,
        _lease(lease),
    )


def _lease(node: Node | Unread | None) -> tuple[int, int]:
    if node is None:
        return NO_LEASE
    return (node.stat.czxid, node.stat.version) if isinstance(node, Node) else (UNKNOWN, UNKNOWN)


def check_history(store: MetadataStore, scans: Sequence[Epoch], fingerprint: str, ledgers_root: str) -> None:
    """Raise Refused if the store is not the later state of the one that every one of ``scans`` saw.

    ``scans``: the finished ones of this cluster's name, covered or not, whatever their fingerprint; without any there
    is nothing to compare with.
    """
    found = broken_since(store, scans, fingerprint, ledgers_root)
    if found:
        raise RefusedBy(RefusalCode.STORE_WENT_BACK, found.text)


def broken_since(store: MetadataStore, scans: Sequence[Epoch], fingerprint: str, ledgers_root: str) -> Gap | None:
    """What :func:`check_history` would refuse with; None if it would not."""
    return history_broken(read_counters(store, fingerprint, ledgers_root), scans) if scans else None
