"""The bookies' HTTP admin API in memory; passes the contract of tests/kit/contracts/bookie_contract.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pulsar_lifecycle.errors import LifecycleError, NotFound
from pulsar_lifecycle.formats.bookie_status import BookieStatus, Compaction, LedgerDirectory

IDLE = Compaction(False, False, False, last_minor=0, last_major=0, minors=0, majors=0)


def status(bookie: str, **changes: object) -> BookieStatus:
    """An idle bookie with one ledger directory, of which the disk is half full, and the entry logs that it counts."""
    directory = LedgerDirectory("/ledgers", entry_logs=10, live_bytes=10 << 30, ledgers=100, usage=0.5)
    found = BookieStatus(
        bookie, False, 100 << 30, 50 << 30, False, False, False, (IDLE,), tuple(range(11)), (directory,), 1.0,
        {"diskUsageThreshold": "0.95", "forceAllowCompaction": "true"},
    )  # fmt: skip
    changed = replace(found, **changes)  # type: ignore[arg-type]
    directories = changed.directories or ()
    logs = sum(one.entry_logs + 1 for one in directories)  # one of each directory is being written
    return replace(changed, entry_log_ids=tuple(range(logs))) if {"entry_log_ids"}.isdisjoint(changes) else changed


class FakeBookieAdmin:
    """Set ``statuses`` to say what the bookies are like; an error there is raised by every call about that bookie.

    ``collections`` lists what was started: (bookie, major). ``on_collect`` is called before it.
    """

    def __init__(self, *bookies: str) -> None:
        self.statuses: dict[str, BookieStatus | LifecycleError] = {bookie: status(bookie) for bookie in bookies}
        self.collections: list[tuple[str, bool]] = []
        self.on_collect: Callable[[str, bool], None] = lambda bookie, major: None

    def bookies(self) -> dict[str, bool]:
        return {b: not isinstance(said, LifecycleError) and said.read_only for b, said in self.statuses.items()}

    def status(self, bookie: str) -> BookieStatus:
        said = self.statuses.get(bookie, NotFound(f"bookie {bookie} is not registered"))
        if isinstance(said, LifecycleError):
            raise said
        return said

    def collect(self, bookie: str, *, major: bool) -> None:
        self.status(bookie)
        self.on_collect(bookie, major)
        self.collections.append((bookie, major))

    def suspend_compaction(self, bookie: str) -> None:
        self.statuses[bookie] = replace(self.status(bookie), minor_suspended=True, major_suspended=True)

    def resume_compaction(self, bookie: str) -> None:
        self.statuses[bookie] = replace(self.status(bookie), minor_suspended=False, major_suspended=False)
