"""Deliberate faults of scans, and of what they prove.

Belongs here: one context manager per mutation, by what the product would do. Not here: how many seeds each may take
(``test_mutations.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from pulsar_lifecycle.deletion import deletion_run, owner_check
from pulsar_lifecycle.deletion.decision import Run
from pulsar_lifecycle.metastore import walk
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.scan import epochs as scan_epochs
from pulsar_lifecycle.scan import evidence, history_check, snapshot_inquiry, snapshot_memory, stored_references
from pulsar_lifecycle.scan.neighbours import Neighbours
from pulsar_lifecycle.scan.shrinkage import Limits
from pulsar_lifecycle.scan.snapshot_memory import Memory
from pulsar_lifecycle.values import owner_names
from pulsar_lifecycle.values.tables import Problem, Trouble
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.world.ports import SimStore


@contextmanager
def unreadable_is_gone_to_scans() -> Iterator[None]:
    """A scan takes a z-node that may not be read for one that is gone."""
    real = walk.scanned

    def blind(store: Any, paths: list[str], listed: Any) -> Any:
        for rows in real(store, paths, listed):
            for index, trouble in rows.troubles.items():
                if trouble.problem is Problem.UNREAD and trouble.error.startswith("no permission"):
                    rows.troubles[index] = Trouble(Problem.GONE, "")
            yield rows

    with patch.object(walk, "scanned", blind):
        yield


@contextmanager
def trust_any_scan() -> Iterator[None]:
    """Act on the newest scan, covered or not."""

    def newest(cluster: Any, fingerprint: str) -> Any:
        epochs = cluster.lake.epochs(fingerprint)
        if not epochs:
            raise deletion_run.NotFound("no scan")
        return epochs[-1]

    with patch.object(evidence, "newest_epoch", newest):
        yield


@contextmanager
def skipped_children_ignored() -> Iterator[None]:
    """Take a listing for whole although its parent counts more children."""
    real = SimStore.children

    def agreeing(self: SimStore, paths: Sequence[str]) -> Any:
        return [replace(c, num_children=len(c.names)) if hasattr(c, "names") else c for c in real(self, paths)]

    with patch.object(SimStore, "children", agreeing):
        yield


def only_two_scans_count() -> AbstractContextManager[Any]:
    """What the scans between the two found in use is nobody's business."""
    return patch.object(deletion_run, "since", lambda cluster, earlier, epoch: [earlier])


@contextmanager
def shadows_are_forgotten() -> Iterator[None]:
    """Only the newest scan says which topics are the sources of shadow topics."""

    def newest(cluster: Any, epoch: Any) -> Any:
        return cluster.lake.context(epoch.epoch_id)

    with patch.object(evidence, "context_of", newest):
        yield


def time_goes_forward() -> AbstractContextManager[Any]:
    """Nobody looks whether the metadata store went back in time."""
    return patch.object(history_check, "broken_since", lambda *given: None)


def cursors_have_z_nodes() -> AbstractContextManager[Any]:
    """A snapshot whose cursor has no z-node is nobody's."""
    real = snapshot_memory.before_asking

    def hasty(*, stored_cursor: bool, **known: Any) -> Memory | None:
        return real(stored_cursor=True, **known) if stored_cursor else Memory.NOTHING

    return patch.object(snapshot_memory, "before_asking", hasty)


@contextmanager
def trimmed_snapshots_are_free() -> Iterator[None]:
    """A snapshot whose range the topic has no ledgers of is nobody's: a scan finds all free, and a run keeps others."""
    at_scan, at_deletion = snapshot_inquiry._memory, owner_check._decide_pending

    def trimmed(key: str | None, first: int | None) -> bool:
        return bool(key and first is not None and int(key.split("_")[2]) < first)

    def scanned(row: Mapping[str, Any], inquiry: Any) -> Memory | None:
        return Memory.NOTHING if snapshot_inquiry._held_perhaps(row) else at_scan(row, inquiry)

    def decide(run: Run, ports: Ports, topic: Any, node: Any, info: Any, internals: Any, pending: Any) -> None:
        first = min((item.ledger_id for item in info.ledgers), default=None)
        left = [d for d in pending if not trimmed(d.info.bucket_key, first)]
        at_deletion(run, ports, topic, node, info, internals, left)

    with patch.object(snapshot_inquiry, "_memory", scanned), patch.object(owner_check, "_decide_pending", decide):
        yield


def whenever_it_was_loaded() -> AbstractContextManager[Any]:
    """A broker that has no cursor of that name in memory has no snapshot of it, however long it has the topic."""
    real = snapshot_memory.before_asking

    def hasty(**known: Any) -> Memory | None:
        found = real(**known)
        return None if found is Memory.LOADED_BEFORE else found

    return patch.object(snapshot_memory, "before_asking", hasty)


def losses_counted_by_number() -> AbstractContextManager[Any]:
    """A hundred may always get lost."""
    real = Limits.exceeded
    return patch.object(Limits, "exceeded", lambda self, loss: real(self, loss) if len(loss.lost) > 100 else None)


@contextmanager
def damage_keeps_nobody() -> Iterator[None]:
    """An entry that cannot be read named nothing."""
    nobody = frozenset[str]()
    with (
        patch.object(owner_names, "owners_to_keep", lambda lost: (nobody, nobody)),
        patch.object(scan_epochs, "_once_called", lambda *given: nobody),
    ):
        yield


def no_answer_names_nothing() -> AbstractContextManager[Any]:
    """A broker that does not say what it has in memory has nothing there."""
    return patch.object(stored_references, "_no_answer", lambda *given: list[Any]())


def no_answer_stops_all() -> AbstractContextManager[Any]:
    """Whatever a broker does not say may be anybody's."""
    return patch.object(stored_references, "_of_this_topic", lambda error: False)


def nobody_looks_around() -> AbstractContextManager[Any]:
    """What else stands on the ZooKeeper is nobody's business."""
    return patch.object(scan_epochs, "look_around", lambda *given: Neighbours())


SCANS: Mapping[str, Mutation] = {
    "treat unreadable as gone when scanning": unreadable_is_gone_to_scans,
    "act on a scan that is not covered": trust_any_scan,
    "never look whether the store went back in time": time_goes_forward,
    "forget what the scans between two found": only_two_scans_count,
    "forget shadow topics that the newest scan did not see": shadows_are_forgotten,
    "count what got lost instead of weighing it": losses_counted_by_number,
    "keep no owner of a damaged entry": damage_keeps_nobody,
    "take no answer for an empty memory": no_answer_names_nothing,
    "stop every plan for what a broker does not say of one topic": no_answer_stops_all,
    "never look for another cluster on the ZooKeeper": nobody_looks_around,
    "take listings for whole": skipped_children_ignored,
    "free snapshots of cursors without a z-node": cursors_have_z_nodes,
    "free snapshots whose range is trimmed": trimmed_snapshots_are_free,
    "free snapshots of whatever cursor a broker does not name": whenever_it_was_loaded,
}
