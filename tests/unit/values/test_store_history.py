"""Which counters of a metadata store say that it went back in time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.store_history import BACK, NO_LEASE, UNKNOWN, StoreCounters, went_back

BEFORE = StoreCounters("f", (5 << 32) + 100, ids_issued=40, lease=(7, 3))


def back(**changes: object) -> Gap | None:
    return went_back(replace(BEFORE, **changes), BEFORE, "scan e1")  # type: ignore[arg-type]


def said(**changes: object) -> str:
    found = back(**changes)
    assert found
    assert found.code is GapCode.HISTORY_BROKEN
    return found.text


def test_time_that_stands_or_goes_on_is_fine() -> None:
    assert back() is None
    assert back(zxid=6 << 32, ids_issued=41, lease=(7, 4)) is None


def test_another_store_is_told_by_both_fingerprints() -> None:
    assert said(fingerprint="g") == "this is another metadata store than at scan e1: its fingerprint is g, it was f"


def test_a_smaller_zxid_and_whether_its_leader_was_an_earlier_one() -> None:
    assert said(zxid=(5 << 32) + 99).startswith(BACK)
    assert "leader" not in said(zxid=(5 << 32) + 99)
    assert "by an earlier leader (epoch 4, it was 5)" in said(zxid=(4 << 32) + 9999)


def test_a_restored_store_whose_next_leader_made_its_zxid_grow() -> None:
    """The usual case: ZooKeeper restarts on the backup, elects, and begins a new epoch."""
    assert "fewer ledger ids" in said(zxid=6 << 32, ids_issued=39)
    assert "our lease has version 2" in said(zxid=6 << 32, lease=(7, 2))


def test_a_lease_that_is_gone_or_another_is_no_later_state() -> None:
    """Nothing of ours removes it: the backup is from before our first run, and however many ids were issued since."""
    assert "does not exist" in said(zxid=6 << 32, ids_issued=99, lease=NO_LEASE)
    assert "transaction 0x9 created our lease's z-node" in said(zxid=6 << 32, ids_issued=99, lease=(9, 50))


def test_a_first_lease_is_fine() -> None:
    assert went_back(BEFORE, replace(BEFORE, lease=NO_LEASE), "scan e1") is None


def test_what_is_not_known_compares_with_nothing() -> None:
    assert back(ids_issued=UNKNOWN, lease=(UNKNOWN, UNKNOWN)) is None
    unknown = replace(BEFORE, ids_issued=UNKNOWN, lease=(UNKNOWN, UNKNOWN))
    assert went_back(BEFORE, unknown, "scan e1") is None


@pytest.mark.parametrize(("before", "now", "behind"), [(2**31 - 1, -(2**31), False), (-(2**31), 2**31 - 1, True)])
def test_the_counter_of_ids_wraps(before: int, now: int, behind: bool) -> None:
    found = went_back(replace(BEFORE, ids_issued=now), replace(BEFORE, ids_issued=before), "scan e1")
    assert bool(found) is behind
