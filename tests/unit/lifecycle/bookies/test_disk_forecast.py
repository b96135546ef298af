"""When disks are full: what counts of their history."""

from dataclasses import replace

import pytest

from pulsar_lifecycle.lifecycle.bookies.disk_forecast import Filled, days_until_full

DAY = 86_400_000


@pytest.mark.parametrize(
    ("history", "days"),
    [
        ([], None),
        ([(0, 100)], None),
        ([(0, 100), (DAY, 90)], 9.0),
        ([(0, 100), (DAY, 90), (2 * DAY, 80)], 8.0),
        ([(0, 100), (DAY, 100)], None),
        ([(0, 90), (DAY, 100)], None),
        ([(0, 100), (0, 90)], None),
        ([(0, 100), (DAY - 1, 90)], None),
        ([(0, 10), (DAY, 0)], 0.0),
    ],
)
def test_days_until_full(history, days):
    filled = [Filled(at, 200, free) for at, free in history]
    now = filled[-1].at if filled else 0
    assert days_until_full(filled, now) == (days if days is None else pytest.approx(days))


def used(*amounts, total=200, logs=None):
    """A point a day."""
    return [Filled(n * DAY, total, total - amount, n if logs is None else logs[n]) for n, amount in enumerate(amounts)]


def test_a_disk_is_full_where_its_bookie_becomes_read_only():
    assert days_until_full(used(100, 110), DAY, 0.9) == pytest.approx(7.0)
    assert days_until_full(used(180, 190), DAY, 0.9) == 0.0


def test_days_count_from_now_though_a_bookie_answered_days_ago():
    assert days_until_full(used(100, 110), 4 * DAY) == pytest.approx(6.0)
    assert days_until_full(used(100, 110), 40 * DAY) == 0.0


def test_a_larger_disk_is_no_turn():
    history = [*used(100, 110), Filled(2 * DAY, 400, 280, 2), Filled(3 * DAY, 400, 270, 3)]
    assert days_until_full(history, 3 * DAY) == pytest.approx(27.0)


def test_a_bookie_that_was_replaced_begins_anew():
    before = used(180, 190, 200)
    after = [Filled((3 + n) * DAY, 200, 200 - 10 * n, n) for n in range(2)]
    assert days_until_full([*before, after[0]], 3 * DAY) is None
    assert days_until_full([*before, *after], 4 * DAY) == pytest.approx(19.0)
    assert days_until_full([*before, replace(after[0], newest_log=-1), *after], 4 * DAY) == pytest.approx(19.0)


def test_a_smaller_disk_begins_anew():
    after = [Filled((3 + n) * DAY, 100, 90 - 10 * n, 3 + n) for n in range(2)]
    assert days_until_full([*used(180, 190, 200), *after], 4 * DAY) == pytest.approx(8.0)


def test_what_a_wrong_clock_dated_ahead_and_disks_of_no_size_say_nothing():
    history = used(100, 110)
    assert days_until_full([*history, Filled(DAY, 0, 0), Filled(99 * DAY, 200, 200)], DAY) == pytest.approx(9.0)
