"""Deliberate faults of the deletion of offloaded copies.

Belongs here: one context manager per mutation, by what the product would do. Not here: how many seeds each may take
(``test_mutations.py``).
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from pulsar_lifecycle.copies import whole_copies
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.deletion import offloaded_copies
from pulsar_lifecycle.deletion.decision import Decision, ObjectSeen, Run
from pulsar_lifecycle.values.copies import bucket_of
from pulsar_lifecycle.values.referenced import Referenced
from tests.simulation.mutations.mutation import Mutation


@contextmanager
def any_copy_may_go() -> Iterator[None]:
    """An offloaded copy is deleted whatever metadata names it."""
    with patch.object(offloaded_copies, "in_use", lambda run, ports, d, why, since=0: None):
        yield


def copies_unchecked() -> AbstractContextManager[Any]:
    """What an object says of its age and origin is not looked at."""

    def judge(run: Run, d: Decision, found: Any) -> None:
        d.objects = tuple(ObjectSeen(bucket_of(d.info), one.key, 0, "", 0) for one in found)

    return patch.object(offloaded_copies, "_judge", judge)


@contextmanager
def _comparing(change: Callable[[list[int]], list[int]]) -> Iterator[None]:
    """Two copies are read whole, and of the checksums of each only what ``change`` makes of them is compared."""
    real = whole_copies.compare

    def compare(what: str, some: whole_copies.Checksums, other: str, others: whole_copies.Checksums) -> Any:
        def changed(checksums: whole_copies.Checksums) -> whole_copies.Checksums:
            yield array("I", change([one for several in checksums for one in several]))

        return real(what, changed(some), other, changed(others))

    with patch.object(whole_copies, "compare", compare):
        yield


def compare_a_sample() -> AbstractContextManager[Any]:
    """The first and the last entry of two copies say enough of all."""
    return _comparing(lambda sums: [sum_ if n in (0, len(sums) - 1) else 0 for n, sum_ in enumerate(sums)])


def compare_the_lengths() -> AbstractContextManager[Any]:
    """Two copies with as many entries are the same."""
    return _comparing(lambda sums: [0] * len(sums))


def only_the_newest_listing_counts() -> AbstractContextManager[Any]:
    """What no topic lists at the newest scan is nobody's, whatever the scans before it saw listed."""
    real = offloaded_copies._copy_evidence
    return patch.object(offloaded_copies, "_copy_evidence", lambda run: replace(real(run), earlier=Referenced()))


LARGE = 200
"""Bytes of a data object: those with one entry have fewer."""


@contextmanager
def compare_small_copies() -> Iterator[None]:
    """A large copy is not read before it goes."""
    real = offloaded_copies.why_unlike

    def hasty(unnamed: Any, location: Location, places: Any, **ports: Any) -> Any:
        head = ports["objects"].head(location.bucket, location.data_key)
        return None if head and head.size > LARGE else real(unnamed, location, places, **ports)

    with patch.object(offloaded_copies, "why_unlike", hasty):
        yield


COPIES: Mapping[str, Mutation] = {
    "delete offloaded copies that metadata names": any_copy_may_go,
    "delete objects whatever their age and origin": copies_unchecked,
    "compare a sample of two copies": compare_a_sample,
    "compare the lengths of two copies": compare_the_lengths,
    "compare only copies that are small": compare_small_copies,
    "forget that earlier scans found the ledger of a copy listed": only_the_newest_listing_counts,
}
