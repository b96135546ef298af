"""What the page of a run shows of many partitions."""

from __future__ import annotations

from typing import Any

import pytest

from assets.pages.show import SAMPLE
from orchestration.delete_records import of_both


@pytest.mark.parametrize(
    ("failed", "fine", "shown"),
    [(0, 9, (0, 9)), (9, 0, (9, 0)), (90, 90, (25, 25)), (90, 3, (47, 3)), (3, 90, (3, 47)), (90, 0, (SAMPLE, 0))],
)
def test_partitions_with_an_error_hide_no_others(failed: int, fine: int, shown: tuple[int, int]) -> None:
    rows: list[dict[str, Any]] = [{"error": None}] * fine + [{"error": "cursor_below"}] * failed
    found = [row["error"] is None for row in of_both(rows)]
    assert (found.count(False), found.count(True)) == shown
    assert found == sorted(found)
