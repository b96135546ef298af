"""What the journal says of read checks: where brokers could read offloaded ledgers, and where they could not."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow.compute as pc

from pulsar_lifecycle.ports import JournalReader
from pulsar_lifecycle.runs.journal_rows import details_of
from pulsar_lifecycle.values.copies import NamespaceLocation, OffloadLocation, offload_location
from pulsar_lifecycle.values.outcomes import Action, Outcome


@dataclass(frozen=True, slots=True)
class ReadAt:
    """Details of a read check: the metadata store's fingerprint, the location, the broker that was asked.

    ``held``: the mzxid with which a failed read held its location, ``after``: the one that a read that worked found
    there before it began. They tell which was first, whatever the clocks say.
    """

    store: str
    namespace: str
    driver: str
    metadata: tuple[tuple[str, str], ...]
    broker: str = ""
    held: int | None = None
    after: int | None = None

    @property
    def location(self) -> NamespaceLocation:
        """Which location, of one namespace."""
        return self.namespace, self.driver, tuple(sorted(self.metadata))


def locations_that_passed(rows: Iterable[Mapping[str, Any]], store: str, now: int) -> dict[NamespaceLocation, int]:
    """The locations that brokers of this metadata store read when they were asked last, and when (ms) that was.

    ``rows`` are the journal's of action ``read-check``; what a clock dated later than ``now`` (ms) shows
    nothing.
    """
    last: dict[NamespaceLocation, tuple[int, bool]] = {}
    for row in _sound(rows, now):
        if found := _read_at(row["detail"], store):
            word = row["at"], row["outcome"] != Outcome.CHECK_PASSED  # of two at once the one that says no
            last[found.location] = max(last.get(found.location, word), word)
    return {location: at for location, (at, failed) in last.items() if not failed}


def locations_that_failed(
    rows: Iterable[Mapping[str, Any]], store: str, now: int, noes: Collection[str] = (Outcome.CHECK_FAILED,)
) -> frozenset[OffloadLocation]:
    """The locations of which a broker of this metadata store has said one of ``noes``, and that none has read since.

    A read in the same run by another broker does not count: what it could read the first one could not. Other outcomes
    than these and ``CHECK_PASSED`` do not count; ``rows`` as above. What is dated later than ``now`` is of a clock that
    was ahead: such a ``CHECK_FAILED`` stands until a read that began after its location was held, a
    ``CHECK_UNANSWERED``, which holds none, not at all.
    """
    words = [row for row in _sound(rows, now) if row["outcome"] in (*noes, Outcome.CHECK_PASSED)]
    left: dict[OffloadLocation, set[_No]] = {}
    reads: dict[OffloadLocation, list[_Read]] = {}
    for row in sorted(
        words, key=lambda row: (row["at"], row["outcome"] != Outcome.CHECK_PASSED)
    ):  # of two at once the no stands
        found = _read_at(row["detail"], store)
        if found is None or (row["outcome"] == Outcome.CHECK_UNANSWERED and row["at"] > now):
            continue
        where = offload_location(found.driver, dict(found.metadata))
        noes_there = left.setdefault(where, set())
        if row["outcome"] == Outcome.CHECK_PASSED:
            read = _Read(row["run_id"], found.broker, found.after or 0)
            reads.setdefault(where, []).append(read)
            noes_there -= {no for no in noes_there if read.speaks_for(no)}
        else:
            noes_there.add(_No(row["run_id"], found.broker, found.held or 0))
    for where, some in reads.items():
        left[where] -= {
            no for no in left[where] if any(0 < no.held <= one.after and one.speaks_for(no) for one in some)
        }
    return frozenset(where for where, noes_there in left.items() if noes_there)


@dataclass(frozen=True, slots=True)
class _No:
    """A read that failed; ``held``: the mzxid of the z-node that says so, 0 if none does."""

    run_id: str
    broker: str
    held: int


@dataclass(frozen=True, slots=True)
class _Read:
    """A read that worked; ``after``: the mzxid of its location's z-node when it began, 0 if there was none."""

    run_id: str
    broker: str
    after: int

    def speaks_for(self, no: _No) -> bool:
        """Whether it says anything of what that one could not read."""
        return no.run_id != self.run_id or bool(self.broker and no.broker == self.broker)


def _sound(rows: Iterable[Mapping[str, Any]], now: int) -> Iterator[Mapping[str, Any]]:
    return (row for row in rows if row["outcome"] != Outcome.CHECK_PASSED or row["at"] <= now)


def _read_at(detail: str, store: str) -> ReadAt | None:
    """Which read a row is of; None if it is another store's, or not ours."""
    found = details_of(ReadAt, detail)
    return found if found and found.store == store else None


def passed_locations(journal: JournalReader, cluster: str, store: str, now: int) -> dict[NamespaceLocation, int]:
    """``locations_that_passed`` of a metadata store (its fingerprint), at ``now`` (ms)."""
    return locations_that_passed(_reads(journal, cluster), store, now)


def failed_locations(
    journal: JournalReader, cluster: str, store: str, now: int, noes: Collection[str] = (Outcome.CHECK_FAILED,)
) -> frozenset[OffloadLocation]:
    """``locations_that_failed`` of a metadata store (its fingerprint), at ``now`` (ms)."""
    return locations_that_failed(_reads(journal, cluster), store, now, noes)


def _reads(journal: JournalReader, cluster: str) -> list[dict[str, Any]]:
    mine = (pc.field("cluster") == cluster) & (pc.field("action") == Action.READ_CHECK)
    return journal.find(mine, ["run_id", "outcome", "detail", "at"]).to_pylist()
