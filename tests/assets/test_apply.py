"""What a plan that is applied without the queue shows, and when its run fails."""

from __future__ import annotations

import dagster as dg
import pytest

from orchestration.jobs import deleted
from pulsar_lifecycle.plan.outcomes import DELETED, GONE, KEPT, NOT_DELETED
from pulsar_lifecycle.spark.deletion import STOPPED, Outcome

SLOW = Outcome(NOT_DELETED, "ZooKeeper is too slow", 3, 0)
KEPT_ONE = Outcome(KEPT, "a topic lists it", 1, 0)
DELETED_ONE = Outcome(DELETED, "", 1, 10)
GONE_ONE = Outcome(GONE, "", 1, 0)


@pytest.mark.parametrize(
    ("outcomes", "why"),
    [
        ([SLOW], "nothing was deleted, 3 ledgers stay, the first reason: not-deleted: ZooKeeper is too slow"),
        ([GONE_ONE, KEPT_ONE, SLOW], "nothing was deleted, 4 ledgers stay, the first reason: kept: a topic lists it"),
        ([DELETED_ONE, Outcome(STOPPED, "paused", 1, 0)], "the run stopped itself: paused"),
    ],
)
def test_a_run_that_stopped_or_deleted_nothing_fails_and_shows_its_outcomes(outcomes: list[Outcome], why: str) -> None:
    with pytest.raises(dg.Failure, match=why) as failure:
        deleted(outcomes)
    assert "outcomes" in failure.value.metadata


@pytest.mark.parametrize("outcomes", [[], [GONE_ONE], [DELETED_ONE, SLOW]])
def test_a_run_that_deleted_some_or_had_nothing_to_do_does_not_fail(outcomes: list[Outcome]) -> None:
    assert deleted(outcomes)["dagster/row_count"] == (DELETED_ONE in outcomes)
