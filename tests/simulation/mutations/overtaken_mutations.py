"""Deliberate faults of what is known of loads that a write of the product came before.

Belongs here: one context manager per mutation. Not here: how many seeds each may take (``test_mutations.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

from pulsar_lifecycle.metastore.list_writes import ListWrite
from pulsar_lifecycle.scan import epochs as scan_epochs
from tests.simulation.mutations.mutation import Mutation


def whatever_was_older() -> AbstractContextManager[Any]:
    """No broker lists what it made before our write, however long before."""
    return patch.object(ListWrite, "came_before", lambda self, czxid, ctime: czxid < self.list_written)


def whatever_is_newer() -> AbstractContextManager[Any]:
    """No broker lists what it made after the write that ours replaced, were it after ours."""
    return patch.object(ListWrite, "came_before", lambda self, czxid, ctime: czxid > self.list_read)


def go_by_the_name() -> AbstractContextManager[Any]:
    """A topic is the one that was written if it has its name."""
    return patch.object(ListWrite, "is_of", lambda self, czxid, version: True)


def one_open_ledger_for_all() -> AbstractContextManager[Any]:
    """A topic with one such ledger has no other open one."""

    def writable(ledgers: Any, standing: Mapping[str, Any]) -> set[str]:
        names = scan_epochs.owner_names.written_topics(ledgers)
        rows = ledgers.to_pylist()
        known = {r["managed_ledger"] for r in rows for w in standing.get(r["managed_ledger"], ()) if _before(w, r)}
        return {name for name in names if not any(name.endswith(k.rpartition("/")[2]) for k in known)}

    return patch.object(scan_epochs, "_writable", writable)


def _before(write: ListWrite, row: Mapping[str, Any]) -> bool:
    return write.came_before(row["czxid"], row["ctime"])


@contextmanager
def whatever_was_restored() -> Iterator[None]:
    """Transactions are numbered as they were when we wrote, though the store was restored since."""
    real = scan_epochs.list_writes

    def every(journal: Any, cluster: str, topics: Collection[str], since: int) -> Any:
        return real(journal, cluster, topics, 0)

    def numbered(self: ListWrite, czxid: int, ctime: int) -> bool:
        return self.list_read < czxid < self.list_written

    with patch.object(scan_epochs, "list_writes", every), patch.object(ListWrite, "came_before", numbered):
        yield


OVERTAKEN: Mapping[str, Mutation] = {
    "free what left a list beside open ledgers from before the write that ours replaced": whatever_was_older,
    "free what left a list beside open ledgers from after our write": whatever_is_newer,
    "free what left a list beside the open ledgers of another topic of its name": go_by_the_name,
    "free what left a list beside one more open ledger": one_open_ledger_for_all,
    "free what left a list by the numbers of writes before a restore": whatever_was_restored,
}
