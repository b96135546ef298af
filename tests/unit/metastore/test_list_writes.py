"""Which ledgers of brokers a write of ours came before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_lifecycle.metastore.list_writes import LOAD_MS, ListWrite

WRITE = ListWrite(topic_czxid=10, list_read=50, list_written=60, list_version=4, list_written_at=1_000_000)


@pytest.mark.parametrize(
    ("czxid", "age", "never_listed"),
    [
        (51, 0, True),
        (59, LOAD_MS, True),
        (50, 0, False),  # made by the write that ours replaced, or before: that one may have listed it
        (49, 0, False),
        (60, 0, False),
        (61, -1, False),  # its broker may have read what we wrote
        (51, LOAD_MS + 1, False),
        (51, -1, False),  # numbered after a restore
    ],
)
def test_a_ledger_of_a_load_that_a_write_came_before_is_never_listed(czxid: int, age: int, never_listed: bool) -> None:
    assert WRITE.came_before(czxid, WRITE.list_written_at - age) is never_listed


def test_a_write_is_of_the_topic_that_has_its_name_as_long_as_that_was_neither_made_anew_nor_put_back() -> None:
    assert WRITE.is_of(10, 4)
    assert WRITE.is_of(10, 9)
    assert not WRITE.is_of(11, 9)
    assert not WRITE.is_of(10, 3)
    assert not replace(WRITE, topic_czxid=9).is_of(10, 4)
