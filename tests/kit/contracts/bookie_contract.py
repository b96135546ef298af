"""What every BookieAdmin does: tests for the fake and for the real adapter."""

import pytest

from pulsar_lifecycle.errors import NotFound


class BookieAdminContract:
    """What the real adapter and the fake have in common; needs the fixtures ``bookies`` and ``bookie`` (one's id)."""

    def test_registered_bookies_are_listed(self, bookies, bookie):
        assert bookies.bookies()[bookie] is False

    def test_a_bookie_says_what_its_disks_hold(self, bookies, bookie):
        status = bookies.status(bookie)
        assert status.bookie == bookie
        assert not status.read_only
        assert 0 < status.free < status.total
        assert status.entry_log_files >= 1
        assert len(status.compactions) == len(status.directories) == 1
        (directory,) = status.directories
        assert directory.live_bytes >= directory.entry_logs >= 0
        assert 0 < directory.usage < 1
        assert float(status.configuration["diskUsageThreshold"]) > 0

    def test_compaction_is_suspended_and_resumed_any_number_of_times(self, bookies, bookie):
        for suspended in (True, True, False, False):
            (bookies.suspend_compaction if suspended else bookies.resume_compaction)(bookie)
            status = bookies.status(bookie)
            assert (status.minor_suspended, status.major_suspended) == (suspended, suspended)

    @pytest.mark.parametrize("major", [False, True])
    def test_a_collection_is_started(self, bookies, bookie, major):
        bookies.collect(bookie, major=major)
        assert bookies.status(bookie).bookie == bookie

    def test_an_unknown_bookie_is_not_found(self, bookies):
        for ask in (bookies.status, bookies.suspend_compaction, bookies.resume_compaction):
            with pytest.raises(NotFound, match="nowhere:1"):
                ask("nowhere:1")
        with pytest.raises(NotFound, match="nowhere:1"):
            bookies.collect("nowhere:1", major=True)
