"""The plan as a value: confirmation, digest, what makes it applicable, caps, intents."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from pulsar_lifecycle.deletion.planning import confirmed_orphans
from pulsar_lifecycle.errors import RefusedBy
from pulsar_lifecycle.formats.deletion_message import decode_deletion_message, encode_deletion_message
from pulsar_lifecycle.runs import apply, plan_checks
from pulsar_lifecycle.runs.caps import Caps
from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.plans import deletion_plan
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.refusals import RefusalCode
from pulsar_lifecycle.values.tables import FINDINGS
from tests.kit.builders import A_GAP
from tests.kit.refused import refused_by

TOPIC = "persistent://t/n/a+b c~é"


def finding(ledger_id: int, /, **changes: Any) -> dict[str, Any]:
    row = {
        "ledger_id": ledger_id,
        "finding": Finding.ORPHAN.value,
        "code": Code.UNREFERENCED.value,
        "component": "managed-ledger",
        "namespace": "t/n",
        "topic": TOPIC,
        "logical_bytes": 10,
        "physical_bytes": 30,
        "czxid": ledger_id * 10,
        "ctime": ledger_id * 100,
    }
    return row | changes


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), FINDINGS)


def planned(rows: pa.Table, **changes: Any) -> PlanSummary:
    summary = PlanSummary(
        plan_id="p",
        cluster="c",
        fingerprint="f",
        epoch_id="e2",
        confirmed_by="e1",
        created_at=1000,
        actionable=True,
        gaps=(),
        ledgers=rows.num_rows,
        logical_bytes=0,
        physical_bytes=0,
        cluster_ledgers=100,
        digest="",
    )
    summary = replace(summary, **changes)
    return replace(summary, digest=deletion_plan.digest(rows, summary.to_json()))


def test_only_what_both_scans_found_to_be_the_same_orphan_is_planned() -> None:
    now = table(*(finding(n) for n in (9, 3, 4, 5, 6, 7)), finding(8, finding="kept"))
    before = table(
        finding(9),
        finding(3),
        finding(4, czxid=1),  # another ledger had the id
        finding(5, ctime=1),
        finding(6, finding="too_young"),
        finding(8),
        finding(10),
    )
    assert confirmed_orphans.confirm(now, before).column("ledger_id").to_pylist() == [3, 9]
    assert confirmed_orphans.confirm(now, before.slice(0, 0)).num_rows == 0


def test_the_digest_is_of_the_rows_in_any_order_and_of_what_makes_the_plan_actionable() -> None:
    rows = table(finding(1), finding(2))
    summary = planned(rows)
    assert planned(rows.take([1, 0])).digest == summary.digest
    assert planned(pa.Table.from_batches([*rows.slice(1).to_batches(), *rows.slice(0, 1).to_batches()])) == summary
    for column in ("ledger_id", "topic", "component", "czxid", "ctime", "code", "reason", "path", "physical_bytes"):
        value = "x" if FINDINGS.field(column).type == pa.string() else 77
        assert planned(table(finding(1), finding(2, **{column: value}))).digest != summary.digest
    for fact in ("plan_id", "cluster", "fingerprint", "epoch_id", "confirmed_by"):
        assert planned(rows, **{fact: "other"}).digest != summary.digest
    assert planned(rows, created_at=1).digest != planned(rows, cluster_ledgers=1).digest != summary.digest
    assert planned(rows, actionable=False).digest != summary.digest


def check(summary: PlanSummary, rows: pa.Table, **changes: Any) -> None:
    given: dict[str, Any] = {"digest_given": summary.digest, "cluster": "c", "fingerprint": "f", "now": 1000}
    given["valid_for_ms"] = 500
    plans.check_applicable(summary, deletion_plan.digest(rows, summary.to_json()), **(given | changes))


def test_a_plan_may_be_applied_while_it_is_valid() -> None:
    rows = table(finding(1))
    for now in (1000, 1500):
        check(planned(rows), rows, now=now)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"digest_given": "0"}, RefusalCode.PLAN_DIFFERS),
        ({"fingerprint": "g"}, RefusalCode.OTHER_CLUSTER),
        ({"cluster": "renamed"}, RefusalCode.OTHER_CLUSTER),
        ({"now": 1501}, RefusalCode.PLAN_EXPIRED),
        ({"now": 999}, RefusalCode.PLAN_EXPIRED),
    ],
)
def test_a_plan_that_does_not_fit_is_refused(changes: dict[str, Any], code: RefusalCode) -> None:
    rows = table(finding(1))
    with refused_by(code):
        check(planned(rows), rows, **changes)


@pytest.mark.parametrize(
    ("now", "said"),
    [(-9000, "plan p is dated 10 s ahead of this host's clock"), (120_000, "is 1 minutes old, valid for 0")],
)
def test_a_refusal_says_whether_the_plan_or_the_clock_is_to_blame(now: int, said: str) -> None:
    rows = table(finding(1))
    with pytest.raises(RefusedBy, match=said):
        check(planned(rows), rows, now=now)


def test_a_plan_that_was_touched_is_refused() -> None:
    rows = table(finding(1))
    summary = planned(rows, actionable=False, gaps=(A_GAP,))
    with refused_by(RefusalCode.REPORT_ONLY):
        check(summary, rows)
    for tampered, with_rows in [
        (replace(summary, actionable=True), rows),
        (replace(summary, created_at=1200), rows),
        (planned(rows), table(finding(1), finding(2))),
        (planned(rows), table(finding(2))),
        (planned(rows), rows.slice(0, 0)),
    ]:
        with refused_by(RefusalCode.PLAN_DIFFERS):
            check(tampered, with_rows)


def test_a_plan_of_an_earlier_version_is_refused() -> None:
    rows = table(finding(1, code=None))
    with refused_by(RefusalCode.OLD_VERSION, "plan p"):
        check(planned(table(finding(1))), rows)


CAPS = Caps(max_ledgers=10, max_share=0.1, max_bytes=300, max_ledgers_per_topic=10)


@pytest.mark.parametrize(
    ("cap", "value"), [("max_ledgers", 9), ("max_share", 0.099), ("max_bytes", 299), ("max_ledgers_per_topic", 9)]
)
def test_each_cap_holds_at_its_bound(cap: str, value: float) -> None:
    rows = table(*(finding(n) for n in range(10)))
    summary = planned(rows)
    plan_checks.check_caps(summary, rows, CAPS)
    with refused_by(RefusalCode(cap), cap):
        plan_checks.check_caps(summary, rows, replace(CAPS, **{cap: value}))


@pytest.mark.parametrize(
    ("kind", "counted"),
    [
        (PlanKind.ORPHANS, "ledgers"),
        (PlanKind.OBJECTS, "objects"),
        (PlanKind.INACTIVE_TOPICS, "topics"),
        (PlanKind.INACTIVE_SUBSCRIPTIONS, "subscriptions"),
        (PlanKind.DELAYED_INDEX, "subscriptions"),
    ],
)
@pytest.mark.parametrize("cap", ["max_ledgers", "max_share", "max_ledgers_per_topic"])
def test_a_cap_says_what_it_counts(kind: PlanKind, counted: str, cap: str) -> None:
    rows = table(finding(1), finding(2))
    summary = replace(planned(rows), plan_id=f"{kind}-1")
    with refused_by(RefusalCode(cap), f"2 {counted}"):
        plan_checks.check_caps(summary, rows, replace(CAPS, **{cap: 0.001 if cap == "max_share" else 1}))


def test_nothing_is_under_every_cap_and_an_empty_cluster_has_no_share() -> None:
    plan_checks.check_caps(planned(table()), table(), CAPS)
    with refused_by(RefusalCode.MAX_SHARE):
        plan_checks.check_caps(planned(table(), cluster_ledgers=0), table(finding(1)), CAPS)


KEY = "#pulsar.internal.delayed.bucket_1_2"


@pytest.mark.parametrize(
    ("tags", "component"),
    [
        ({}, "Managed-Ledger"),
        ({"cursor": "a/b ~é"}, "Managed-Cursor"),
        ({"component": "schema", "schema_id": "t/n/a%2Bb"}, "Schema-Storage"),
        ({"component": "compacted-ledger"}, "Compacted-Ledger"),
        ({"component": "delayed-index-bucket", "cursor": "s", "bucket_key": KEY}, "Delayed-Index-Bucket"),
    ],
)
def test_an_intent_says_all_that_is_compared_again(tags: dict[str, Any], component: str) -> None:
    (info,) = apply.intents(table(finding(4, **tags)), "p", 7)
    assert decode_deletion_message(encode_deletion_message(info)) == info
    assert (info.component.value, info.topic_name, info.ledger_id) == (component, TOPIC, 4)
    assert (info.czxid, info.ctime, info.plan_id, info.sent_at) == (40, 400, "p", 7)
    assert info.cursor_name == tags.get("cursor", "")
    assert info.schema_id == tags.get("schema_id", "")
    assert info.bucket_key == tags.get("bucket_key", "")
