"""Checks have a number: Dagster draws it over time, and an empty picture where there is none. And they have words."""

from __future__ import annotations

from collections import Counter

import dagster as dg
import pyarrow as pa
import pytest

from assets.delayed_index import check_results as delayed_results
from assets.deletion import queue_age
from assets.findings import LOADABLE, NAMED, loadable_result
from assets.late_messages import late_result
from assets.lifecycle.activity import check_result as activity_result
from assets.lifecycle.bookies import bookies_shown
from assets.lifecycle.bookies import check_results as bookie_results
from assets.lifecycle.storage import check_result as storage_result
from assets.pages import show
from assets.pages.growth import growth_shown
from assets.references import coverage_result
from pulsar_lifecycle.delayed_index.stored.check_run import Checked
from pulsar_lifecycle.delayed_index.stored.index_codes import IndexFinding
from pulsar_lifecycle.deletion_queue.queue_state import QueueState
from pulsar_lifecycle.errors import StoreError
from pulsar_lifecycle.formats.bookie_status import LedgerDirectory
from pulsar_lifecycle.inspect.automation import Growth
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import judge
from pulsar_lifecycle.lifecycle.bookies.placement import Placement
from pulsar_lifecycle.lifecycle.load.failing_loads import FAILING_LOADS, LoadFailure
from pulsar_lifecycle.lifecycle.storage_run import Totals
from pulsar_lifecycle.runs.automation_rule import Amount
from pulsar_lifecycle.values.epoch import Epoch
from tests.kit.builders import A_GAP
from tests.kit.fakes.bookie_admin import status

EPOCH = Epoch("e", "c", "f", 1, 2, (), 1, 1, (), gaps=(A_GAP,))
RESULTS = [
    coverage_result(EPOCH),
    *delayed_results("c", Checked(0, {})),
    *bookie_results("c", [], {}),
    late_result("c", [], 0),
    activity_result(pa.table({"topic": pa.array([], pa.string())})),
    storage_result(Totals(), Totals()),
    growth_shown(dg.AssetKey("p"), [Growth("retention", Amount(1, 1), None, False)]),
    queue_age(QueueState((), (), ()), 0),
    loadable_result(dg.AssetKey("d"), FAILING_LOADS.empty_table()),
]


@pytest.mark.parametrize("result", RESULTS, ids=lambda result: result.check_name)
def test_a_check_has_a_number(result: dg.AssetCheckResult) -> None:
    assert any(isinstance(value, dg.IntMetadataValue | dg.FloatMetadataValue) for value in result.metadata.values())


FAILED = [
    coverage_result(EPOCH),
    *delayed_results("c", Checked(0, Counter({IndexFinding.UNREAD: 7}))),
    activity_result(pa.table({"topic": ["t"]})),
    storage_result(Totals(1, 2, 3), Totals(1, 2, 4)),
]


@pytest.mark.parametrize("result", [*RESULTS, *FAILED], ids=lambda result: result.check_name)
def test_a_check_has_words(result: dg.AssetCheckResult) -> None:
    said = result.description or ""
    assert said
    assert "Totals" not in said


def test_a_table_has_no_word_for_what_is_not_known() -> None:
    assert show.markdown(["expired by", "set at"], [("not known", None)]).endswith("| not known |  |")


def test_coverage_counts_the_gaps_and_names_each_by_its_code() -> None:
    found = coverage_result(EPOCH)
    assert (found.passed, found.metadata["gaps"].value) == (False, 1)
    (gap,) = EPOCH.gaps
    assert (found.description or "").startswith(f"{gap.code}: ")
    assert str(found.metadata["missing"].value).startswith(f"- {gap.code}: ")


def test_what_a_bookie_fails() -> None:
    said = {"a": status("a", read_only=True, major_suspended=True), "b": status("b", read_only=True)}
    found = bookie_results("c", judge(dict.fromkeys(said, True), said, Placement({}), 1), {"a": 6.9, "b": 7.1})
    assert {one.check_name: (one.metadata["found"].value, one.severity.value) for one in found} == {
        "bookies_writable": (2, "ERROR"),
        "compaction_not_suspended": (1, "WARN"),
        "disks_not_full_soon": (1, "ERROR"),
    }
    assert all(one.metadata["what to do"].value for one in found)
    passed = bookie_results("c", [], {})
    assert all(one.passed and "what to do" not in one.metadata for one in passed)


def test_a_disk_that_a_bookie_does_not_tell_of_is_not_known() -> None:
    disks = (LedgerDirectory("/a", 1, 1, 1), LedgerDirectory("/b", 1, 1, 1, usage=0.5))
    (judged,) = judge({"a": True}, {"a": status("a", directories=disks)}, Placement({}), 1)
    assert "/b 50.0%, /a not known" in str(bookies_shown([judged], Placement({}), {})["bookies"].records)


def test_topics_that_fail_to_load_are_named_with_code_and_reason() -> None:
    code = LoadFailure.LAST_LEDGER_UNRECOVERABLE.value
    row = {"topic": "t", "code": code, "ledger_id": 7, "why": "last ledger 7 is not closed"}
    twice = [row, {**row, "code": LoadFailure.CURSOR_UNDECODABLE.value, "cursor": "s", "why": "cursor s: 0 bytes"}]
    found = loadable_result(dg.AssetKey("d"), pa.Table.from_pylist(twice, FAILING_LOADS))
    assert (found.check_name, found.passed, found.severity) == (LOADABLE, False, dg.AssetCheckSeverity.ERROR)
    assert (found.description, found.metadata["found"].value) == ("1 topics that no broker can load whole", 1)
    assert f"| t | {code} | last ledger 7 is not closed |" in str(found.metadata["topics"].value)
    assert "by code" not in found.metadata
    assert "pulsar-lifecycle code CODE" in str(found.metadata["what to do"].value)
    events = [{**row, "topic": f"t{n}"} for n in range(NAMED)] + [twice[1]]
    many = loadable_result(dg.AssetKey("d"), pa.Table.from_pylist(events, FAILING_LOADS))
    assert f"| {code} | {NAMED} |" in str(many.metadata["by code"].value)
    assert f"| {LoadFailure.CURSOR_UNDECODABLE.value} | 1 |" in str(many.metadata["by code"].value)
    unknown = loadable_result(dg.AssetKey("d"), StoreError("/ledgers/available: not authorized"))
    assert (unknown.passed, unknown.severity) == (False, dg.AssetCheckSeverity.WARN)
    assert (unknown.description or "").endswith("is not known: /ledgers/available: not authorized")


def test_what_would_be_late_says_so_in_words() -> None:
    codes = Counter({IndexFinding.KEY_WITHOUT_LEDGER: 2})
    found, *_ = delayed_results("c", Checked(0, codes))
    assert (found.passed, found.severity) == (False, dg.AssetCheckSeverity.ERROR)
    assert "2 key_without_ledger" in (found.description or "")
