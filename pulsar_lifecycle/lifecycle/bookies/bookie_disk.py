"""Why a bookie's disk is as full as it is: what metadata places there, what it holds, and what it waits for.

Belongs here: the rule, as codes. Placement and what bookies said come in. Not here: asking bookies (``disk_run.py``).
Upstream: ``GarbageCollectorThread``, ``LedgerDirsMonitor`` and the defaults of ``ServerConfiguration``,
bookkeeper-server 4.17.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from types import MappingProxyType

import pyarrow as pa

from pulsar_lifecycle.errors import AccessDenied, LifecycleError, NotFound
from pulsar_lifecycle.formats.bookie_status import BookieStatus, LedgerDirectory
from pulsar_lifecycle.lifecycle.bookies.placement import Placed, Placement

DEFAULTS: Mapping[str, str] = {
    "gcWaitTime": "600000",
    "diskUsageThreshold": "0.95",
    "diskUsageWarnThreshold": "0.90",
    "journalMaxSizeMB": "2048",
    "minorCompactionThreshold": "0.2",
    "minorCompactionInterval": "3600",
    "majorCompactionThreshold": "0.8",
    "majorCompactionInterval": "86400",
    "logSizeLimit": str(1 << 30),
    "isThrottleByBytes": "false",
    "compactionRateByEntries": "1000",
    "compactionRateByBytes": "1000000",
    "forceAllowCompaction": "false",
    "ledgerStorageClass": "org.apache.bookkeeper.bookie.SortedLedgerStorage",
}
"""What BookKeeper 4.17 takes for a setting that its configuration file does not have."""


class DiskVerdict(StrEnum):
    """What a bookie's disk waits for."""

    NOT_REGISTERED = "not_registered"
    """Metadata places ledgers there, and no such bookie is registered: it is down, or gone for good."""
    NO_HTTP_SERVER = "no_http_server"
    """It has no HTTP server (httpServerEnabled), so nothing is known of its disks."""
    DENIED = "denied"
    """Its HTTP server refuses to answer us."""
    UNANSWERED = "unanswered"
    """Its HTTP server did not answer, or not as BookKeeper does."""
    NO_METRICS = "no_metrics"
    """It has no Prometheus metrics (statsProviderClass), or another ledgerStorageClass than DbLedgerStorage, whose
    metrics do not tell by ledger directory: so what its entry logs hold is not known."""

    NOT_COLLECTED = "not_collected_yet"
    """It has not collected since its start, so what its entry logs hold is not known. It does after `gcWaitTime`."""

    READ_ONLY = "read_only"
    """It takes no writes: a ledger disk is over diskUsageThreshold, or an operator made it so. It may not answer."""
    SUSPENDED = "compaction_suspended"
    """Compaction is suspended: over the HTTP API, or as a disk is over diskUsageWarnThreshold."""
    COMPACTING = "compacting"
    """It collects or compacts now."""
    WAITS_FOR_GC = "waits_for_gc"
    """Its index still has ledgers that are deleted in metadata: its next collection takes them out."""
    MAY_WAIT_FOR_GC = "may_wait_for_gc"
    """Its index may have ledgers that are deleted in metadata: it had more than are closed there now, and which of the
    open ones hold data only bookies know. Its next collection takes out what is deleted."""
    WAITS_FOR_COMPACTION = "waits_for_compaction"
    """Entry logs hold deleted bytes among live ones: a compaction below its threshold frees them."""
    NOTHING_TO_FREE = "nothing_to_free"
    """Its entry logs hold little beside live bytes, or are too live on the whole for a major compaction."""

    @property
    def known(self) -> bool:
        """Whether the bookie said what its disks hold."""
        return self not in UNKNOWN


UNWRITABLE = frozenset({DiskVerdict.READ_ONLY, DiskVerdict.NOT_REGISTERED})
"""Verdicts of bookies that take no entries."""
FULL_WITHIN_DAYS = 7
"""Bookies whose disks fill up sooner need somebody."""
UNKNOWN = frozenset(
    {
        DiskVerdict.NOT_REGISTERED,
        DiskVerdict.NO_HTTP_SERVER,
        DiskVerdict.DENIED,
        DiskVerdict.UNANSWERED,
        DiskVerdict.NO_METRICS,
        DiskVerdict.NOT_COLLECTED,
    }
)
"""Verdicts that leave open what can be freed."""

_DIRECTORY = pa.struct(
    [
        pa.field("path", pa.string()),
        pa.field("usage", pa.float64()),
        pa.field("entry_logs", pa.int64()),
        pa.field("live_bytes", pa.int64()),
        pa.field("ledgers", pa.int64()),
    ]
)
BOOKIE_DISK = pa.schema(
    [
        pa.field("bookie", pa.string()),
        pa.field("verdict", pa.string()),
        pa.field("detail", pa.string()),
        pa.field("total", pa.int64()),
        pa.field("free", pa.int64()),
        pa.field("fullest", pa.float64()),
        pa.field("read_only_above", pa.float64()),
        pa.field("directories", pa.list_(_DIRECTORY)),
        pa.field("entry_log_ids", pa.list_(pa.int64())),
        pa.field("entry_logs", pa.int64()),
        pa.field("log_bytes", pa.int64()),
        pa.field("live_bytes", pa.int64()),
        pa.field("ledgers_stored", pa.int64()),
        pa.field("ledgers_placed", pa.int64()),
        pa.field("ledgers_unsized", pa.int64()),
        pa.field("ledgers_under_replicated", pa.int64()),
        pa.field("bytes_placed", pa.int64()),
        pa.field("bytes_to_collect", pa.int64()),
        pa.field("bytes_to_compact", pa.int64()),
        pa.field("asked_at", pa.int64()),
    ]
)
"""One row per bookie. ``fullest``: the share in use of its fullest ledger disk (0 to 1); above ``read_only_above`` a
disk takes no more writes (``diskUsageThreshold``; earlier versions had no such column). ``directories``: of each ledger
directory the share of its disk that is in use, and what the columns of these names have of all together.
``entry_log_ids``: of all its entry logs, those being written too; their files are called so in hexadecimal. How large
a single one is BookKeeper does not say, only that it is closed at ``logSizeLimit``. ``entry_logs`` are those that
are written to no more, and ``log_bytes`` what they take, at most, if ``logSizeLimit`` was never larger than now: where
the live bytes are more than that, it was, and 1 GiB a log, which is the most there is, is the bound. ``live_bytes`` and
``ledgers_stored`` are what they and the index had after the last collection. ``*_placed``: by metadata now;
``ledgers_unsized`` of them are not closed, and their bytes not in ``bytes_placed``, and ``ledgers_under_replicated``
lack a copy, there or on another bookie of theirs, as BookKeeper's auditor has marked them. Copies that are too many no
metadata tells: bookies hold them beside what is placed there, until their next collection. ``bytes_to_collect``: live
ones beyond ``bytes_placed``: of deleted ledgers, or of the unsized ones. What was written since the last collection
hides as much.
``bytes_to_compact``: what logs take beside the live ones, at most, as ``log_bytes`` does. Null: not known."""


@dataclass(frozen=True, slots=True)
class BookieDisk:
    """What is known of one bookie, and the verdict; ``status`` is None where it did not answer.

    ``unplaced``: ledgers of the cluster whose bookies nobody knows. Any of them may be there.
    """

    bookie: str
    verdict: DiskVerdict
    placed: Placed
    status: BookieStatus | None
    detail: str = ""
    asked_at: int = 0
    unplaced: int = 0

    @property
    def live_bytes(self) -> int | None:
        """Bytes in its entry logs of ledgers that existed at its last collection; None where there was none yet."""
        if self.status is None or self.status.directories is None or not self.status.collected:
            return None
        return sum(one.live_bytes for one in self.status.directories)

    @property
    def log_bytes(self) -> int | None:
        """Bytes of its entry logs that are written to no more, at most: a log is closed at ``logSizeLimit``."""
        return None if self.status is None or self.status.directories is None else log_bytes(self.status)

    @property
    def bytes_to_collect(self) -> int | None:
        """Bytes that its last collection kept beyond those placed there: of deleted ledgers, or of open ones.

        What was written since hides as much.
        """
        return None if self.live_bytes is None else max(0, self.live_bytes - self.placed.bytes)

    @property
    def bytes_to_compact(self) -> int | None:
        """What its entry logs take beside live bytes, at most."""
        return None if self.live_bytes is None or self.log_bytes is None else max(0, self.log_bytes - self.live_bytes)

    def row(self) -> dict[str, object]:
        """A row of ``BOOKIE_DISK``."""
        status, directories = self.status, (self.status.directories if self.status else None)
        known = directories if status and status.collected else None
        return {
            "bookie": self.bookie,
            "verdict": self.verdict.value,
            "detail": self.detail,
            "total": status and status.total,
            "free": status and status.free,
            "fullest": status and fullest(status),
            "read_only_above": status and number(status, "diskUsageThreshold"),
            "directories": None if directories is None else [_directory(one) for one in directories],
            "entry_log_ids": status and list(status.entry_log_ids),
            "entry_logs": None if status is None or directories is None else closed_logs(status),
            "log_bytes": self.log_bytes,
            "live_bytes": self.live_bytes,
            "ledgers_stored": None if known is None else sum(one.ledgers for one in known),
            "ledgers_placed": self.placed.ledgers,
            "ledgers_unsized": self.placed.unsized,
            "ledgers_under_replicated": self.placed.under_replicated,
            "bytes_placed": self.placed.bytes,
            "bytes_to_collect": self.bytes_to_collect,
            "bytes_to_compact": self.bytes_to_compact,
            "asked_at": self.asked_at,
        }


def _directory(one: LedgerDirectory) -> dict[str, object]:
    counted = ("entry_logs", "live_bytes", "ledgers") if one.collected else ()
    return {name: getattr(one, name) for name in ("path", "usage", *counted)}


def judge(
    registered: Mapping[str, bool],
    answers: Mapping[str, BookieStatus | LifecycleError],
    placement: Placement,
    now: int,
    asked: Mapping[str, int] = MappingProxyType({}),
) -> list[BookieDisk]:
    """Every bookie that is registered or that metadata places a ledger on, by id.

    ``registered``: bookie -> whether as read-only. ``answers``: what each of them answered, and ``asked`` when (ms), at
    ``now`` where that does not say.
    """
    found: list[BookieDisk] = []
    for bookie in sorted({*registered, *placement.bookies}):
        answer, at = answers.get(bookie), asked.get(bookie, now)
        placed = placement.bookies.get(bookie, Placed())
        if bookie not in registered:
            found.append(BookieDisk(bookie, DiskVerdict.NOT_REGISTERED, placed, None, asked_at=at))
        elif isinstance(answer, BookieStatus):
            disk = BookieDisk(bookie, DiskVerdict.NOTHING_TO_FREE, placed, answer, "", at, placement.unknown)
            verdict, detail = _verdict(disk, answer, registered[bookie])
            found.append(replace(disk, verdict=verdict, detail=detail))
        else:
            verdict, detail = _no_answer(answer), str(answer or "it was not asked")
            if registered[bookie]:
                verdict, detail = DiskVerdict.READ_ONLY, f"registered as read-only; {verdict.value}: {detail}"
            found.append(BookieDisk(bookie, verdict, placed, None, detail, at))
    return found


def fullest(status: BookieStatus) -> float | None:
    """The share in use of its fullest ledger disk, of all of them where it does not say more.

    It says 0 of a disk until it has looked at it, each ``diskCheckInterval``.
    """
    usages = [one.usage for one in status.directories or () if one.usage]
    if usages:
        return max(usages)
    return (status.total - status.free) / status.total if status.total > 0 else None


def closed_logs(status: BookieStatus) -> int:
    """Its entry logs that are written to no more: as of its last collection, less what it has deleted since."""
    now = max(0, status.entry_log_files - len(status.directories or ()))  # one of each directory is being written
    return min(now, sum(one.entry_logs for one in status.directories or ())) if status.collected else now


def log_bytes(status: BookieStatus) -> int:
    """What :func:`closed_logs` take, at most."""
    return min(closed_logs(status) * largest_log(status), status.total - status.free)


def largest_log(status: BookieStatus) -> int:
    """What one of its entry logs takes, at most.

    Live bytes beyond that prove that some were closed by a larger ``logSizeLimit`` than now.
    """
    limit = int(number(status, "logSizeLimit"))
    live = sum(one.live_bytes for one in status.directories or ()) if status.collected else 0
    return LARGEST_LOG if live > closed_logs(status) * limit else limit


LARGEST_LOG = 1 << 30
"""``BookKeeperConstants.MAX_LOG_SIZE_LIMIT``: a bookie with a larger ``logSizeLimit`` does not start."""


def configured(status: BookieStatus, name: str) -> str:
    """A setting of a bookie (one of ``DEFAULTS``), as text: what its file says, else BookKeeper's default."""
    return status.configuration.get(name, DEFAULTS[name])


def number(status: BookieStatus, name: str) -> float:
    """As :func:`configured`; the default where the file has no number, which no bookie starts with."""
    try:
        return float(configured(status, name))
    except ValueError:
        return float(DEFAULTS[name])


def _no_answer(error: LifecycleError | None) -> DiskVerdict:
    if isinstance(error, AccessDenied):
        return DiskVerdict.DENIED
    return DiskVerdict.NO_HTTP_SERVER if isinstance(error, NotFound) else DiskVerdict.UNANSWERED


def _verdict(disk: BookieDisk, status: BookieStatus, read_only: bool) -> tuple[DiskVerdict, str]:
    full = fullest(status) or 0.0
    warn, limit = number(status, "diskUsageWarnThreshold"), number(status, "diskUsageThreshold")
    space, why = waits_for(disk, status)
    also = "" if space == DiskVerdict.NOTHING_TO_FREE else f"; {space.value}: {why}" if why else f"; {space.value}"
    kinds = [name for name, is_so in (("minor", status.minor_suspended), ("major", status.major_suspended)) if is_so]
    by = "over the HTTP API" if full < warn else "by itself as its disk is full, or over the HTTP API"
    suspended = f"{' and '.join(kinds)} compaction, {by}" if kinds else ""
    if read_only or status.read_only:
        too = f"; suspended: {suspended}" if suspended else ""
        said = ": an operator made it so, or a disk was fuller" if 0 < full < limit else ""
        text = f"its fullest disk is at {full:.1%}, diskUsageThreshold is {limit:.1%}{said}"
        return DiskVerdict.READ_ONLY, f"{text}{too}{also}"
    if suspended:
        return DiskVerdict.SUSPENDED, f"{suspended}{also}"
    if any(one.running for one in status.compactions) or status.collecting:
        return DiskVerdict.COMPACTING, ""
    if full >= warn:
        return DiskVerdict.SUSPENDED, f"its fullest disk is at {full:.1%}, diskUsageWarnThreshold is {warn:.1%}{also}"
    return space, why


def waits_for(disk: BookieDisk, status: BookieStatus) -> tuple[DiskVerdict, str]:
    """What the space that could be freed waits for, whatever stops the bookie from freeing it."""
    if status.directories is None:
        storage = configured(status, "ledgerStorageClass").rpartition(".")[2]
        if status.configuration.get("statsProviderClass") and storage != "DbLedgerStorage":
            return (
                DiskVerdict.NO_METRICS,
                f"its ledgerStorageClass is {storage}: only DbLedgerStorage has metrics by ledger directory",
            )
        if status.configuration.get("statsProviderClass"):
            text = (
                "its configuration has a statsProviderClass, and /metrics has no ledger directory: does a proxy answer?"
            )
            return DiskVerdict.NO_METRICS, text
        return DiskVerdict.NO_METRICS, "set statsProviderClass in its configuration"
    if not status.collected:
        return DiskVerdict.NOT_COLLECTED, f"it collects every {number(status, 'gcWaitTime') / 60_000:g} min"
    stored = sum(one.ledgers for one in status.directories)
    deleted, beyond = stored - disk.placed.ledgers - disk.unplaced, disk.bytes_to_collect or 0
    if deleted > 0:
        wait = number(status, "gcWaitTime") / 60_000
        return DiskVerdict.WAITS_FOR_GC, f"{deleted} ledgers; it collects every {wait:g} min"
    if stored > disk.placed.ledgers - disk.placed.unsized and beyond > number(status, "logSizeLimit"):
        unread = f", or of the {disk.unplaced} that cannot be read" if disk.unplaced else ""
        text = f"{beyond >> 30} GiB of deleted ledgers, or of the {disk.placed.unsized} that are open{unread}"
        return DiskVerdict.MAY_WAIT_FOR_GC, text
    minor, major = (number(status, f"{kind}CompactionThreshold") for kind in ("minor", "major"))
    live, held = disk.live_bytes or 0, disk.log_bytes or 0
    if to_compact(status):
        hours = number(status, "minorCompactionInterval") / 3600, number(status, "majorCompactionInterval") / 3600
        return (
            DiskVerdict.WAITS_FOR_COMPACTION,
            f"{live / held:.0%} of its entry logs is live, or more where restarts closed some early; logs "
            f"below {minor:.0%} are compacted every {hours[0]:g} h, below {major:.0%} every {hours[1]:g} h",
        )
    closed = disk.placed.ledgers - disk.placed.unsized
    if not stored and closed:
        text = f"its index had no ledger at its last collection, metadata places {closed} closed ones there now"
        return DiskVerdict.NOTHING_TO_FREE, f"{text}: written since, or lost"
    if disk.placed.bytes - 2 * live > 10 * number(status, "logSizeLimit"):
        text = (
            f"it had {live >> 30} GiB live at its last collection, metadata places {disk.placed.bytes >> 30} GiB there"
        )
        return DiskVerdict.NOTHING_TO_FREE, f"{text} now: written since, or lost"
    newer = status.entry_log_files - len(status.directories) - sum(one.entry_logs for one in status.directories)
    text = f"{newer} of its entry logs are newer than its last collection, which tells nothing of them"
    return DiskVerdict.NOTHING_TO_FREE, text if newer > 1 else ""


def to_compact(status: BookieStatus) -> int:
    """Bytes that a major compaction could free, at most; 0 where its logs are too live on the whole, or not known."""
    if status.directories is None or not status.collected:
        return 0
    live, held = sum(one.live_bytes for one in status.directories), log_bytes(status)
    enough = held - live > number(status, "logSizeLimit") and live < number(status, "majorCompactionThreshold") * held
    return held - live if enough else 0
