"""Who collects that has not done so yet, what stops a run, and which settings of a bookie keep its disk full."""

import pytest

from pulsar_lifecycle.formats.bookie_status import LedgerDirectory
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import judge
from pulsar_lifecycle.lifecycle.bookies.collection import (
    CollectionChoice,
    StopReason,
    cluster_trouble,
    plan_collection,
    remedies,
    standing_on,
)
from pulsar_lifecycle.lifecycle.bookies.placement import Placed, Placement
from pulsar_lifecycle.values.codes import Why
from tests.kit.fakes.bookie_admin import status

GB = 1 << 30


@pytest.mark.parametrize(
    ("now", "expected"),
    [
        ({"a": False, "b": True}, None),
        ({"a": False, "b": True, "new": False}, None),
        ({"b": True}, Why(StopReason.BOOKIE_AWAY, "bookie a is not registered any more")),
        ({"a": True, "b": True}, Why(StopReason.BOOKIE_READ_ONLY, "bookie a has become read-only")),
    ],
)
def test_what_went_wrong_with_the_bookies_since(now, expected):
    assert cluster_trouble({"a": False, "b": True}, now) == expected


@pytest.mark.parametrize(
    ("configuration", "usage", "expected"),
    [
        ({"isThrottleByBytes": "true"}, 0.5, []),
        ({}, 0.5, ["isThrottleByBytes=true"]),
        ({"isThrottleByBytes": "true", "minorCompactionThreshold": "0"}, 0.5, ["minorCompactionThreshold"]),
        ({"isThrottleByBytes": "true", "majorCompactionInterval": "0"}, 0.5, ["forceAllowCompaction=true"]),
        ({"isThrottleByBytes": "true"}, 0.92, ["own major compaction rests"]),
        ({"isThrottleByBytes": "true"}, 0.97, ["set diskUsageThreshold=0.990 "]),
        ({"isThrottleByBytes": "true", "journalMaxSizeMB": "64"}, 0.97, ["set diskUsageThreshold=0.975 "]),
        ({"isThrottleByBytes": "true"}, 0.985, ["enlarge the disk"]),
        ({"isThrottleByBytes": "true"}, 1.0, ["enlarge the disk"]),
    ],
)
def test_settings_that_keep_a_disk_full_are_named_with_what_to_set(configuration, usage, expected):
    directory, read_only = LedgerDirectory("/l", 40, 10 * GB, 100, usage), usage > 0.95
    said = status("b", free=10 * GB, directories=(directory,), read_only=read_only, configuration=configuration)
    (one,) = judge({"b": read_only}, {"b": said}, Placement({}), 5)
    found = remedies(one)
    assert len(found) == len(expected)
    assert all(text in line for text, line in zip(expected, found, strict=True))
    assert all("collect, without any other setting" in line for line in found if read_only)


@pytest.mark.parametrize(
    ("usage", "minor", "major", "expected"),
    [
        (0.5, True, True, True),
        (0.92, False, True, False),
        (0.92, True, True, True),
        (0.97, True, True, False),
    ],
)
def test_what_a_full_disk_suspends_is_not_to_be_resumed(usage, minor, major, expected):
    """The bookie suspends it again at its next look at the disk, and resumes it once that is less full."""
    directory = LedgerDirectory("/l", 40, 10 * GB, 100, usage)
    said = status("b", directories=(directory,), minor_suspended=minor, major_suspended=major)
    (one,) = judge({"b": False}, {"b": said}, Placement({}), 5)
    assert any("resume_compaction" in line for line in remedies(one)) is expected


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        (range(4), range(4), "It stands on one of entry logs 0, 1, 2"),
        (range(13), [0, 11, 12, 13], "It stands on one of entry logs 0, b; it is through with 1, 2, 3, 4"),
        ([9, 10, 11, 12], [10, 12, 13], "It stands on entry log a; it is through with 9, b"),
        ([9, 10], [10, 11], ""),
        (range(20), range(20), "7, 8, 9 and 9 more"),
    ],
)
def test_a_run_says_on_which_entry_logs_a_compaction_may_stand(before, now, expected):
    """Those that were there before it and are there still, but for the one that was written."""
    said = status("a", entry_log_ids=tuple(before)), status("a", entry_log_ids=tuple(now))
    found = standing_on(*said)
    assert expected in found
    assert bool(found) == bool(expected)


@pytest.mark.parametrize(
    ("logs", "expected"), [(41, (CollectionChoice.COLLECT, 35 * GB)), (6, (CollectionChoice.LITTLE_TO_FREE, 0))]
)
def test_one_that_has_not_collected_since_its_start_collects_for_what_is_not_placed_there(logs, expected):
    directory = LedgerDirectory("/l", 0, 0, 0, 0.5, collected=False)
    said = status("b", free=10 * GB, directories=(directory,), entry_log_ids=tuple(range(logs)))
    disks = judge({"b": False}, {"b": said}, Placement({"b": Placed(5 * GB, 100)}), 5)
    (row,) = plan_collection(disks, {}, GB)
    assert (row.choice, row.bytes) == expected
