"""Deliberate faults of tiered storage, to prove that its laws bite.

Belongs here: one context manager per mutation. Not here: how many seeds each may take
(``test_mutations.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from pulsar_lifecycle.copies import attempts, unread_locations
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.deletion import copy_deletions, deletion_run
from pulsar_lifecycle.errors import LifecycleError, NotFound
from pulsar_lifecycle.ports import ObjectStore, Sent
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.tiered import (
    bookkeeper_copies,
    commit,
    interrupted,
    offload_tasks,
    offload_work,
    revert,
)
from pulsar_lifecycle.tiered.buckets import bucket_listing, bucket_rules
from pulsar_lifecycle.tiered.planning import offload_planning
from pulsar_lifecycle.tiered.upload import Source
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import Verified
from tests.simulation.mutations.mutation import Mutation


def skip_the_proof() -> AbstractContextManager[Any]:
    """Two objects of some size are proof enough."""

    def unread(store: ObjectStore, location: Location, source: Source, **_: Any) -> Verified:
        data, index = (store.head(location.bucket, key) for key in (location.data_key, location.index_key))
        if data is None or index is None:
            raise NotFound("there is none")
        metadata = source.metadata
        return Verified(data.size, data.etag, index.size, index.etag, metadata.last_entry_id + 1, metadata.length, "")

    return patch.object(offload_tasks, "verify", unread)


def prove_once() -> AbstractContextManager[Any]:
    """What was proven when it was copied is never read again."""
    real = offload_tasks.verify
    return patch.object(offload_tasks, "verify", lambda *given, known=None, **more: known or real(*given, **more))


@contextmanager
def delete_copies_before_the_lag() -> Iterator[None]:
    """No copy in BookKeeper stays for any lag."""
    rows = offload_planning._Judging.rows

    def judged(self: Any, part: str) -> Any:
        return rows(replace(self, our_lag_ms=0), part)

    with (
        patch.object(offload_planning._Judging, "rows", judged),
        patch.object(bookkeeper_copies._Lag, "unmet", lambda *_: None),
    ):
        yield


@contextmanager
def abort_a_committed_attempt() -> Iterator[None]:
    """An attempt that a run left open is taken for one that its topic never got to name, whatever scans have seen."""
    with (
        patch.object(interrupted, "_state_of", lambda *_: (None, Why(Code.DELISTED, "its topic does not list it"))),
        patch.object(interrupted, "_not_its_own", lambda *_: None),
    ):
        yield


def remove_without_aborting() -> AbstractContextManager[Any]:
    """The objects of an attempt go, and a run that comes later may finish it."""
    return patch.object(attempts, "abort", lambda store, attempt: attempt)


def sweep_at_first_sight() -> AbstractContextManager[Any]:
    """Neither age nor an earlier scan keeps what the newest one finds unnamed."""
    return patch.object(bucket_rules, "why_kept", lambda *_, **__: None)


@contextmanager
def delete_copies_unread() -> Iterator[None]:
    """Copies in BookKeeper go whether or not a broker can read the others."""
    with (
        patch.object(bookkeeper_copies, "_unread", lambda *_: {}),
        patch.object(offload_work.OffloadWork, "read_first", lambda *_: None),
    ):
        yield


def go_on_unread() -> AbstractContextManager[Any]:
    """A broker that cannot read what was committed first stops nothing."""
    return patch.object(commit, "unread_by_broker", lambda *_, **__: [])


def delete_copies_unsaid() -> AbstractContextManager[Any]:
    """The journal does not say what was proven before a copy in BookKeeper is listed as deleted."""
    return patch.object(bookkeeper_copies, "_record", lambda *_: None)


def delete_copies_unsent() -> AbstractContextManager[Any]:
    """A copy in BookKeeper is listed as deleted, and its message is for later."""

    def send(run: Any, ports: Any, messages: Sequence[Any], lengths: Mapping[int, int]) -> list[Sent]:
        return [Sent(message, b"", None) for message in messages]

    return patch.object(bookkeeper_copies, "send_messages", send)


@contextmanager
def revert_beside_a_deletion_run() -> Iterator[None]:
    """An offload is reverted without the lease of deletion runs."""
    real = control.held_lease

    @contextmanager
    def held(settings: Any, store: Any, clock: Any, what: str, *path: str) -> Iterator[Any]:
        if what.startswith("reverting offloads"):
            yield None
            return
        with real(settings, store, clock, what, *path) as lease:
            yield lease

    with patch.object(control, "held_lease", held):
        yield


@contextmanager
def revert_without_asking() -> Iterator[None]:
    """BookKeeper has what it had."""
    with (
        patch.object(revert, "not_whole_in_bookkeeper", lambda *_: None),
        patch.object(revert, "without_bookkeeper", lambda *_: None),
    ):
        yield


def partial_listing_is_whole() -> AbstractContextManager[Any]:
    """A listing that breaks off has shown what there is."""
    real = bucket_listing._listed

    def listed(*given: Any) -> Iterator[Any]:
        try:
            yield from real(*given)
        except LifecycleError:
            return

    return patch.object(bucket_listing, "_listed", listed)


@contextmanager
def delete_whatever_brokers_read() -> Iterator[None]:
    """A deletion run asks for no location that a broker could not read."""
    with (
        patch.object(unread_locations, "held", lambda *_: frozenset()),
        patch.object(deletion_run, "failed_locations", lambda *_: frozenset()),
    ):
        yield


def delete_whatever_the_objects() -> AbstractContextManager[Any]:
    """What was proven once is there when the copy in BookKeeper goes."""
    return patch.object(copy_deletions, "are_whole", lambda store, copies: [None] * len(copies))


def attempts_unnoted() -> AbstractContextManager[Any]:
    """An upload begins before any z-node says so."""
    return patch.object(attempts, "begin", lambda store, attempt: None)


TIERED: Mapping[str, Mutation] = {
    "skip the proof of an offloaded copy": skip_the_proof,
    "prove an offloaded copy once and for all": prove_once,
    "delete copies before the lag": delete_copies_before_the_lag,
    "abort a committed attempt": abort_a_committed_attempt,
    "remove the objects of an attempt without aborting it": remove_without_aborting,
    "sweep without the second scan": sweep_at_first_sight,
    "delete copies that no broker has read": delete_copies_unread,
    "go on after a broker could not read": go_on_unread,
    "forget a copy deletion's journal": delete_copies_unsaid,
    "delete copies before the message is sent": delete_copies_unsent,
    "revert while a deletion run is at it": revert_beside_a_deletion_run,
    "revert without asking BookKeeper": revert_without_asking,
    "count a partial listing as whole": partial_listing_is_whole,
    "delete BookKeeper's copy whatever brokers could read": delete_whatever_brokers_read,
    "delete BookKeeper's copy whatever became of the objects": delete_whatever_the_objects,
    "upload before the attempt is noted": attempts_unnoted,
}
