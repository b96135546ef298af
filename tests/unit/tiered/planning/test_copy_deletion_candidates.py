"""Which offloaded ledgers lose their copy in BookKeeper, by lag, driver, brokers and bucket."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.offload_plan import OffloadChoice, OffloadCode
from tests.kit.scenes.tiered.offload_candidates import (
    LAG,
    LAST,
    NOW,
    POLICY,
    complete,
    judged,
    kept,
    ledger,
    one,
    state,
)

# ------------------------------------------------------------------------------------------------------------ deleting


@pytest.mark.parametrize(
    ("lag", "since", "action"),
    [
        (1000, NOW - 1000, OffloadChoice.DONE),
        (1000, NOW - 1001, OffloadChoice.DELETE_COPY),
        (1000, NOW + 5, OffloadChoice.DONE),
        (1000, None, OffloadChoice.DONE),
        (1000, 0, OffloadChoice.DONE),
        (0, NOW, OffloadChoice.DONE),
        (0, NOW - 1, OffloadChoice.DELETE_COPY),
        (-1, 0, OffloadChoice.DONE),
        (None, 0, OffloadChoice.DONE),
    ],
)
def test_the_copy_in_bookkeeper_goes_once_our_lag_has_passed(lag: int | None, since: int | None, action: str) -> None:
    assert one(complete(1, offloaded_at=since), our_lag_ms=lag)[0] == action


@pytest.mark.parametrize("lag", [0, 1000, None])
def test_no_copy_is_deleted_where_brokers_delete_by_themselves(lag: int | None) -> None:
    """They prove nothing, and do it while we refuse: only a report is made, and the plan says why."""
    policy = replace(POLICY, deletion_lag_ms=lag)
    for item in (complete(1), complete(1, bookkeeper_deleted=True)):
        assert one(item, policy, leftovers={1}) == (OffloadChoice.BROKERS_DELETE, OffloadCode.BROKERS_DELETE)
    assert one(complete(1, offloaded_at=NOW), policy)[0] == OffloadChoice.DONE
    assert one(ledger(1), policy)[0] == OffloadChoice.OFFLOAD


def test_what_a_run_would_leave_to_brokers_is_said_before_it() -> None:
    deleted = complete(3, bookkeeper_deleted=True)
    rows = judged(state(ledger(1), complete(2), deleted, ledger(4, size=0), LAST, left=True), leftovers={3})
    assert {i: row["outlook"] for i, row in rows.items()} == {
        1: Outcome.LEFT_TO_BROKER,
        2: Outcome.LEFT_TO_BROKER,
        3: "",  # nothing is written
        4: "",
        99: "",
    }
    assert {row["outlook"] for row in judged(state(ledger(1), LAST)).values()} == {""}


def test_what_a_run_has_done_since_the_scan_is_planned_no_more() -> None:
    since = {OffloadChoice.OFFLOAD: {1}, OffloadChoice.DELETE_COPY: {2}}
    done = (OffloadChoice.DONE, OffloadCode.DONE_SINCE)
    assert one(ledger(1), done_since=since) == one(complete(2), done_since=since) == done
    assert one(ledger(2), done_since=since)[0] == OffloadChoice.OFFLOAD
    assert one(complete(1), done_since=since)[0] == OffloadChoice.DELETE_COPY


def test_a_driver_that_does_not_act_deletes_no_copy() -> None:
    assert one(complete(1), replace(POLICY, driver="azureblob"))[0] == OffloadChoice.DONE
    assert one(complete(1), replace(POLICY, driver=""))[0] == OffloadChoice.DONE


def test_what_is_listed_as_deleted_is_done_unless_bookkeeper_has_it_still() -> None:
    gone = complete(1, bookkeeper_deleted=True)
    assert one(gone) == (OffloadChoice.DONE, OffloadCode.BOOKKEEPER_DELETED)
    assert one(gone, leftovers={2})[0] == OffloadChoice.DONE
    assert one(gone, leftovers={1})[0] == OffloadChoice.DELETE_COPY
    assert one(ledger(1, bookkeeper_deleted=True), leftovers={1})[0] == OffloadChoice.KEEP
    assert one(complete(1, offloaded_at=NOW), leftovers={1})[0] == OffloadChoice.DONE


@pytest.mark.parametrize("bookkeeper_deleted", [False, True])
def test_an_offload_without_a_name_is_never_proven_so_never_deleted(bookkeeper_deleted: bool) -> None:
    nameless = complete(1, bookkeeper_deleted=bookkeeper_deleted, offload_uuid=None)
    assert one(nameless, leftovers={1}) == (OffloadChoice.DONE, OffloadCode.NO_UUID)


@pytest.mark.parametrize("driver", ["azureblob", ""])
def test_what_is_listed_as_deleted_stays_where_its_driver_does_not_act(driver: str) -> None:
    gone = complete(1, bookkeeper_deleted=True)
    assert one(gone, replace(POLICY, driver=driver), leftovers={1})[0] == OffloadChoice.DONE


@pytest.mark.parametrize(("lag", "offloads"), [(0, False), (1000, False), (-1, True), (None, True)])
@pytest.mark.parametrize("ours", [False, True])
@pytest.mark.parametrize("everything", [False, True])
def test_where_brokers_read_bookkeeper_first_no_copy_there_comes_to_go(
    lag: int | None, offloads: bool, ours: bool, everything: bool
) -> None:
    """The read check would read the very copy that goes; brokers may not be able to read the other."""
    policy = replace(POLICY, deletion_lag_ms=lag, tiered_first=False)
    our_lag = LAG if ours else None
    action, code = one(ledger(1), policy, our_lag_ms=our_lag, everything=everything)
    assert action == (OffloadChoice.OFFLOAD if offloads else OffloadChoice.KEEP)
    assert offloads or code == OffloadCode.BOOKKEEPER_FIRST
    for item in (complete(1), complete(1, bookkeeper_deleted=True)):
        said = one(item, policy, our_lag_ms=our_lag, everything=everything, leftovers={1})
        assert said == (OffloadChoice.DONE, OffloadCode.BOOKKEEPER_FIRST)


def test_copies_are_the_brokers_to_delete_unless_they_are_ours() -> None:
    theirs = replace(POLICY, deletion_lag_ms=LAG)
    for item in (complete(1), complete(1, bookkeeper_deleted=True)):
        assert one(item, theirs, leftovers={1}, our_lag_ms=None) == (OffloadChoice.DONE, OffloadCode.BROKERS_DELETE)
    assert one(ledger(1), our_lag_ms=None)[0] == OffloadChoice.OFFLOAD


def test_thresholds_and_retention_are_no_matter_of_copy_deletions() -> None:
    assert one(complete(1), replace(POLICY, threshold_bytes=-1))[0] == OffloadChoice.DELETE_COPY
    assert one(complete(1), replace(POLICY, threshold_seconds=60), retention=kept(1, 1))[0] == OffloadChoice.DELETE_COPY


@pytest.mark.parametrize("bookkeeper_deleted", [False, True])
def test_a_copy_is_looked_for_where_it_lies_whatever_the_policy_says_by_now(bookkeeper_deleted: bool) -> None:
    item = complete(1, offload_bucket="old", bookkeeper_deleted=bookkeeper_deleted)
    row = judged(state(item, LAST), leftovers={1})[1]
    assert (row["action"], row["bucket"]) == (OffloadChoice.DELETE_COPY, "old")
    row = judged(state(item, LAST), leftovers={1}, buckets={"b"})[1]
    assert (row["action"], row["bucket"]) == (OffloadChoice.DONE, "old")
    assert row["code"] == OffloadCode.NO_BUCKET
    assert "name old in object_store.buckets" in row["reason"]
    theirs = replace(POLICY, deletion_lag_ms=LAG)
    said = one(item, theirs, leftovers={1}, buckets={"b"}, our_lag_ms=None)
    assert said == (OffloadChoice.DONE, OffloadCode.BROKERS_DELETE)


@pytest.mark.parametrize("named", [None, ""])
def test_a_copy_of_which_its_topic_names_no_bucket_cannot_be_proven(named: str | None) -> None:
    assert one(complete(1, offload_bucket=named)) == (OffloadChoice.DONE, OffloadCode.NO_BUCKET)


def test_what_is_offloaded_again_goes_where_its_policy_says() -> None:
    row = judged(state(ledger(1, offload_bucket="old"), LAST))[1]
    assert (row["action"], row["bucket"]) == (OffloadChoice.OFFLOAD, "b")
