"""An epoch: what one scan counted, what it covers, and the gaps that it has.

Belongs here: the values. Not here: the proof (``scan/coverage.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

from pydantic import BeforeValidator, TypeAdapter

from pulsar_lifecycle.values.gaps import BrokersGap, Gap, GapCode, Gaps, StoredGap
from pulsar_lifecycle.values.store_history import UNKNOWN, StoreCounters
from pulsar_lifecycle.words import WordKind


def _of_any_version(value: Any) -> Any:
    return [("", one) if isinstance(one, str) else one for one in value]


UnreadPaths = Annotated[tuple[tuple[str, str], ...], BeforeValidator(_of_any_version)]


@dataclass(frozen=True, slots=True)
class Census:
    """Counts of one table of one root: every listed z-node is decoded, confirmed gone, empty, corrupt or unread."""

    table: str
    root: str
    listed: int
    decoded: int
    gone: int
    empty: int
    corrupt: tuple[str, ...] = ()
    """Paths of undecodable z-nodes, :data:`SHOWN` at most."""
    unread: UnreadPaths = ()
    """What could not be read: path, and why; of a scan of an earlier version only the latter."""
    mismatched: tuple[str, ...] = ()
    """Parents whose own count of children differs from the rows below them."""
    corrupt_beyond: int = 0
    """Undecodable z-nodes that ``corrupt`` does not name."""
    missing_root: bool = False
    """There is nothing of it: not even its root exists."""
    broker_error: BrokersGap = None
    """Why the brokers did not say what they have loaded, of ``topics`` alone; None if they did."""

    @property
    def undecodable(self) -> int:
        """How many z-nodes could not be decoded."""
        return len(self.corrupt) + self.corrupt_beyond


def census_from_json(document: Mapping[str, Any]) -> Census:
    """A census from the plain values of ``dataclasses.asdict``, lists for tuples. Raises ValueError for others."""
    return _CENSUS.validate_python(document)


@dataclass(frozen=True, slots=True)
class Epoch:
    """One scan of the cluster, with what is needed to judge it and the next one."""

    epoch_id: str
    cluster: str
    fingerprint: str
    started_at: int
    finished_at: int
    census: tuple[Census, ...]
    max_ledger_id: int
    max_czxid: int
    """Of the ledgers listed, which happens before references are read: what is not newer was looked for."""
    shared_with: tuple[str, ...] | None
    acknowledged: tuple[str, ...] = ()
    gaps: Gaps = field(default=())
    zxid: int = 0
    """The metadata store's latest transaction when the scan ended."""
    ids_issued: int = UNKNOWN
    lease: tuple[int, int] = (UNKNOWN, UNKNOWN)
    """With ``zxid``: the store's :class:`~pulsar_lifecycle.values.store_history.StoreCounters` when the scan ended."""
    broken: StoredGap = None
    """Why no earlier scan can be compared with this one; every later scan inherits it until it is accepted."""
    relied_on: tuple[tuple[WordKind, str], ...] = ()
    """The operator's words, beside ``acknowledged``, without which there were more gaps: kind and subject."""

    @property
    def counters(self) -> StoreCounters:
        """The metadata store's counters when the scan ended."""
        return StoreCounters(self.fingerprint, self.zxid, self.ids_issued, self.lease)

    @property
    def covered(self) -> bool:
        """True when the proof holds."""
        return not self.gaps

    @property
    def ledgers(self) -> int:
        """How many ledgers BookKeeper listed: what shares of the cluster are of."""
        return next(one.listed for one in self.census if one.table == "bookkeeper_ledgers")

    def covers(self, shared_with: Sequence[str] | None) -> bool:
        """Whether the proof holds for the roots that are declared now: one declared since then was not read."""
        return self.covered and shared_with is not None and set(shared_with) <= set(self.shared_with or ())

    def rests_on(self, in_force: Collection[tuple[WordKind, str]]) -> list[str]:
        """What this proof holds by, of the operator's words, that is not ``in_force`` now: it does not hold then."""
        corrupt = {path for census in self.census for path in census.corrupt}
        znodes = [(WordKind.ACKNOWLEDGED_ZNODE, path) for path in corrupt.intersection(self.acknowledged)]
        return sorted(subject for kind, subject in {*znodes, *self.relied_on} if (kind, subject) not in in_force)

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        return asdict(self)

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Epoch:
        """The inverse of :meth:`to_json`. Raises ValueError for another shape."""
        return _EPOCH.validate_python(document)


_CENSUS, _EPOCH = TypeAdapter(Census), TypeAdapter(Epoch)


def rests_on_withdrawn(epoch: Epoch, in_force: Collection[tuple[WordKind, str]]) -> Gap | None:
    """Why a scan proves nothing any more: it holds by a word of the operator that is withdrawn; None if not so."""
    subjects = epoch.rests_on(in_force)
    if not subjects:
        return None
    text = (
        f"scan {epoch.epoch_id} is covered only by what the settings file said then of {subjects[0]}: it does not say "
        "so any more, or that has expired; repair it or say it again, then scan again"
    )
    return Gap(GapCode.WORD_WITHDRAWN, epoch.epoch_id, text)


def last_covered(previous: Iterable[Epoch], fingerprint: str) -> Epoch | None:
    """The newest covered epoch of a metadata store, however old: what got lost since stays a gap."""
    covered = (e for e in previous if e.covered and e.fingerprint == fingerprint)
    return max(covered, key=lambda e: e.started_at, default=None)


DAY_MS = 86_400_000
KEPT_WHOLE_MS = 2 * DAY_MS
KEPT_DAYS = 30


def forgotten(began: Mapping[str, int], counting: Iterable[Epoch], every: Iterable[Epoch], now: int) -> list[str]:
    """Epochs that are kept no longer: all of 48 hours stay, then the last covered one of each of 30 days.

    The newest of each cluster stays in any case, and the last covered one of each metadata store, however old and
    even if set aside: what got lost since stays a gap. ``began``: when (ms) each epoch began, by id, finished or not;
    ``counting``: the finished ones that are not set aside, ``every``: these, too; both oldest first. ``now`` is ms.
    """
    finished = {e.epoch_id: e for e in counting}
    daily = {(e.fingerprint, e.started_at // DAY_MS): e.epoch_id for e in finished.values() if e.covered}
    kept = {epoch_id for (_, day), epoch_id in daily.items() if day > now // DAY_MS - KEPT_DAYS}
    kept |= set({e.cluster: e.epoch_id for e in finished.values()}.values())
    covered = (e for e in every if e.covered and e.started_at <= now)
    kept |= set({(e.cluster, e.fingerprint): e.epoch_id for e in covered}.values())
    return sorted(name for name, at in began.items() if at < now - KEPT_WHOLE_MS and name not in kept)
