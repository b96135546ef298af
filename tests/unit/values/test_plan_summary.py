"""The summary of a plan: its JSON, also as earlier versions stored it."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary

SUMMARY = PlanSummary("orphans-e-1", "test", "f", "e", "d", 1, True, (), 1, 2, 3, 4, "digest")


def test_a_summary_survives_its_json() -> None:
    assert PlanSummary.from_json(SUMMARY.to_json()) == SUMMARY


@pytest.mark.parametrize("kind", PlanKind)
def test_repairs_of_an_earlier_version_count_as_ordered_and_nothing_else_does(kind: PlanKind) -> None:
    document = SUMMARY.to_json() | {"plan_id": f"{kind}-e-1"}
    assert not PlanSummary.from_json(document).ordered
    del document["ordered"]
    assert PlanSummary.from_json(document).ordered is (kind is PlanKind.DELAYED_INDEX)
