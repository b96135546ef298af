"""The queue of delayed messages by due time, beside a list that is sorted anew."""

from __future__ import annotations

import numpy as np
import pytest

from pulsar_lifecycle.delayed_index.tracking.due_queue import LAST, TimeQueue
from pulsar_lifecycle.formats.delayed_indexes import Indexes


@pytest.mark.parametrize("times", [3, 40, 100_000])
def test_messages_come_by_time_ledger_and_entry(times):
    """More than are brought to the front at once, many of them due at one time, some added meanwhile."""
    rng = np.random.default_rng(times)
    queue, left = TimeQueue(), []
    for turn in range(12):
        count = 9_000 if turn < 3 else 400
        added = Indexes(rng.integers(0, times, count), rng.integers(0, 5, count), np.arange(count) + 10_000 * turn)
        queue.add(added)
        queue.add_one(turn % times, 2, 900_000 + turn)
        left = sorted([*left, *added.triples(), (turn % times, 2, 900_000 + turn)])
        until = (int(rng.integers(0, times)), 3, 20_000) if turn % 2 else (LAST, LAST, LAST)
        limit = int(rng.choice([1, 50, 3_000]))
        expected = [one for one in left if one <= until][:limit]
        assert queue.next_time() == left[0][0]
        assert queue.due(until[0]) == sum(one[0] <= until[0] for one in left)
        assert queue.pop(limit, until).triples() == expected
        left = left[len(expected) :]
        assert len(queue) == len(left)
    assert queue.pop(1_000_000, (LAST, LAST, LAST)).triples() == left
    assert (len(queue), queue.next_time()) == (0, None)
