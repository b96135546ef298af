"""What bookies are asked and told over their HTTP admin API."""

from __future__ import annotations

from typing import Protocol

from pulsar_lifecycle.formats.bookie_status import BookieStatus


class BookieAdmin(Protocol):
    """The HTTP admin API of the bookies of one cluster, by bookie id."""

    def bookies(self) -> dict[str, bool]:
        """Every registered bookie, and whether it is registered as read-only."""
        ...

    def status(self, bookie: str) -> BookieStatus:
        """What it says of itself.

        Raises NotFound for a bookie that is not registered or has no HTTP server, AccessDenied, Unavailable, StoreError
        for an answer that is not BookKeeper's.
        """
        ...

    def collect(self, bookie: str, *, major: bool) -> None:
        """Start a garbage collection now, and a minor or a major compaction with it; returns at once.

        While a forced one runs, another is ignored. Raises as :meth:`status`, and OutcomeUnknown.
        """
        ...

    def suspend_compaction(self, bookie: str) -> None:
        """Suspend minor and major compaction until they are resumed or the bookie restarts; may be repeated."""
        ...

    def resume_compaction(self, bookie: str) -> None:
        """Resume both; may be repeated."""
        ...
