"""What several scans say together."""

from __future__ import annotations

import pyarrow as pa
from pyroaring import BitMap64

from pulsar_lifecycle.scan.confirmation import confirmed_by_all, in_use_at_any, unrefuted
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.tables import FINDINGS

FREE = Referenced()


def using(*ledgers: int, offloaded: tuple[int, ...] = ()) -> Referenced:
    return Referenced(BitMap64(ledgers), BitMap64(offloaded))


def plan(*rows: tuple[int, str]) -> pa.Table:
    return pa.Table.from_pylist([{"ledger_id": i, "topic": topic} for i, topic in rows], FINDINGS)


def test_one_scan_that_found_a_ledger_in_use_is_enough() -> None:
    found = in_use_at_any([FREE, using(3, offloaded=(5,)), FREE, using(4)])
    assert (list(found.needed), list(found.offloaded)) == ([3, 4], [5])
    assert in_use_at_any([]) == FREE


def test_a_plan_leaves_out_what_a_scan_in_between_found_in_use() -> None:
    rows = plan((1, "persistent://a/b/c"), (2, "persistent://a/b/c"), (3, "persistent://a/b/c"))
    assert confirmed_by_all(rows, using(1, offloaded=(3,)), ()).column("ledger_id").to_pylist() == [2]
    assert confirmed_by_all(rows, FREE, ()).equals(rows)


def test_a_plan_leaves_out_what_was_the_source_of_a_shadow_topic_meanwhile() -> None:
    rows = plan((1, "persistent://a/b/c"), (2, "persistent://a/b/d-partition-3"), (3, "persistent://a/b/e"))
    sources = {"persistent://a/b/c", "persistent://a/b/d"}
    assert confirmed_by_all(rows, FREE, sources).column("ledger_id").to_pylist() == [3]


def test_a_mark_that_a_later_scan_refuted_waives_nothing() -> None:
    marks = {(1, "x"): 10, (1, "later"): 20, (2, "y"): 20, (3, "z"): 10, (4, "w"): 30}
    scans = [(10, using(1, 2, 3, 4)), (20, using(1, 2, 4)), (21, using(offloaded=(2,)))]
    assert unrefuted(marks, scans) == {(1, "later"): 20, (3, "z"): 10, (4, "w"): 30}
    assert unrefuted(marks, []) == marks
