"""Where the disk goes: one reason for each ledger, and sums that are those of BookKeeper's list."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_lifecycle.lifecycle.reasons import LEDGER_REASONS, Reason
from pulsar_lifecycle.lifecycle.storage import STORAGE_COLUMNS, STORAGE_REPORT, shortened, summed
from pulsar_lifecycle.values.tables import BOOKKEEPER_LEDGERS, Problem

MANY = settings(max_examples=200, deadline=None)
IDS = st.integers(0, 6)
SCHEMA = pa.schema([BOOKKEEPER_LEDGERS.field(name) for name in STORAGE_COLUMNS])
ORDER = list(Reason)

ledgers = st.lists(
    st.fixed_dictionaries(
        {
            "ledger_id": st.none() | IDS,
            "length": st.none() | st.integers(0, 1 << 40),
            "write_quorum": st.none() | st.integers(0, 5),
            "problem": st.none() | st.sampled_from([str(problem) for problem in Problem]),
        }
    ),
    max_size=20,
)
topics = st.sampled_from(
    [(None, None), ("t/a", None), *((f"t/{n}", f"persistent://t/{n}/{name}") for n in "ab" for name in "xyz")]
)
reasons = st.lists(
    st.tuples(IDS, st.sampled_from(ORDER), topics).map(
        lambda row: {"ledger_id": row[0], "reason": str(row[1]), "namespace": row[2][0], "topic": row[2][1]}
    ),
    max_size=30,
)


def plainly(rows: list[dict[str, Any]], said: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """The same sums, ledger by ledger."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row in rows:
        if row["problem"] == Problem.GONE:
            continue
        about = [one for one in said if one["ledger_id"] == row["ledger_id"]]
        first = min(about, key=lambda one: ORDER.index(Reason(one["reason"])), default=None)
        if first is None:
            first = {"namespace": None, "topic": None, "reason": str(Reason.UNJUDGED)}
        key = (first["namespace"], first["topic"], first["reason"])
        size = row["length"] or 0
        replicas = max(1, 1 if row["write_quorum"] is None else row["write_quorum"])
        for name, amount in (
            ("ledgers", 1),
            ("ledgers_unsized", row["length"] is None),
            ("bytes", size),
            ("physical_bytes", size * replicas),
        ):
            found[*key, name] += int(amount)
    return found


def counted(table: pa.Table) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for row in table.to_pylist():
        for name in ("ledgers", "ledgers_unsized", "bytes", "physical_bytes"):
            found[row["namespace"], row["topic"], row["reason"], name] += row[name]
    return found


def totals(found: Counter[tuple[Any, ...]]) -> Counter[str]:
    sums: Counter[str] = Counter()
    for key, amount in found.items():
        sums[key[-1]] += amount
    return sums


def report(rows: list[dict[str, Any]], *parts: list[dict[str, Any]]) -> pa.Table:
    batches = [pa.RecordBatch.from_pylist(part, LEDGER_REASONS) for part in parts]
    return summed(pa.Table.from_pylist(rows, SCHEMA), batches)


@given(ledgers, reasons, reasons)
@MANY
def test_every_ledger_counts_once_under_the_first_of_its_reasons(
    rows: list[dict[str, Any]], some: list[dict[str, Any]], more: list[dict[str, Any]]
) -> None:
    table = report(rows, some, more)
    assert table.schema == STORAGE_REPORT
    expected = plainly(rows, [*some, *more])
    assert totals(counted(table)) == totals(expected)
    assert by_reason(counted(table)) == by_reason(expected)
    lone = list({(one["ledger_id"], one["reason"]): one for one in [*some, *more]}.values())
    assert counted(report(rows, *([one] for one in lone))) == plainly(rows, lone)


def by_reason(found: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    sums: Counter[tuple[Any, ...]] = Counter()
    for (_, _, reason, name), amount in found.items():
        sums[reason, name] += amount
    return sums


@given(ledgers, reasons, st.integers(0, 3))
@MANY
def test_leaving_topics_out_leaves_the_sums_of_each_namespace_and_reason(
    rows: list[dict[str, Any]], said: list[dict[str, Any]], shown: int
) -> None:
    whole = report(rows, said)
    short = shortened(whole, shown)
    assert short.schema == STORAGE_REPORT

    def by(table: pa.Table) -> Counter[tuple[Any, ...]]:
        sums: Counter[tuple[Any, ...]] = Counter()
        for (namespace, _, reason, name), amount in counted(table).items():
            sums[namespace, reason, name] += amount
        return sums

    assert by(short) == by(whole)
    kept = {(row["namespace"], row["topic"]) for row in short.to_pylist() if row["topic"]}
    sizes: dict[str, Counter[str]] = {}
    for row in whole.to_pylist():
        if row["topic"]:
            sizes.setdefault(row["namespace"], Counter())[row["topic"]] += row["physical_bytes"]
    for namespace, topics_ in sizes.items():
        own = {topic for space, topic in kept if space == namespace}
        assert len(own) == min(shown, len(topics_))
        left = [size for topic, size in topics_.items() if topic not in own]
        assert not own or max(left, default=0) <= min(topics_[topic] for topic in own)
    assert {key: row for key, row in counted(short).items() if key[1]} == {
        key: row for key, row in counted(whole).items() if (key[0], key[1]) in kept
    }
