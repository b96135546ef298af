"""Which topics need a broker: the rule over tables says of each topic what a walk over its ledgers says."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.lifecycle.held.open_ledgers import OPEN_SIZES
from pulsar_lifecycle.lifecycle.load.going_subscriptions import Inactive
from pulsar_lifecycle.lifecycle.load.ledgers_once_loaded import TopicTables
from pulsar_lifecycle.lifecycle.load.load_rules import LoadChoice, LoadNeed, topics_to_load
from pulsar_lifecycle.lifecycle.load.monitors import Monitors, TopicDeletion
from pulsar_lifecycle.lifecycle.retention_inputs import NAMED_POSITIONS
from pulsar_lifecycle.lifecycle.verdicts import RETENTION_TOPICS
from pulsar_lifecycle.topics.load_losses import LoadLosses, Replication
from pulsar_lifecycle.topics.policies import InForce
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.plans import load_plan

NOW = 1_700_000_000_000
MINUTE = 60_000


@dataclass(frozen=True)
class Made:
    """A topic: its ledgers as (minutes since it was closed, entries, bytes), oldest first; policies; its cursor."""

    ledgers: tuple[tuple[int, int, int], ...]
    minutes: int
    ttl_minutes: int
    cursor: tuple[int, int] | None
    protected: bool
    active: int | None
    named: bool

    def ends(self) -> list[int]:
        return [NOW - age * MINUTE for age, _, _ in self.ledgers]


@st.composite
def topics(draw: st.DrawFn) -> Made:
    ages = sorted(draw(st.lists(st.integers(0, 50), min_size=1, max_size=6)), reverse=True)
    ledgers = tuple((age, draw(st.integers(1, 5)), draw(st.integers(1, 1000))) for age in ages)
    at = draw(st.integers(0, len(ages) - 1))
    return Made(
        ledgers,
        draw(st.sampled_from([-1, 0, 1, 10, 30])),
        draw(st.sampled_from([0, 0, 5, 20])),
        draw(st.none() | st.just((at, draw(st.integers(-1, ledgers[at][1] - 1))))),
        draw(st.booleans()),
        draw(st.none() | st.integers(0, 100)),
        draw(st.booleans()),
    )


def judged(
    made: list[Made], expiry: int, *, closed: bool = False, inactive: Inactive | None = None
) -> dict[int, dict[str, Any]]:
    """Rows of ``TOPICS_TO_LOAD`` by the number of the topic. ``closed``: brokers have closed its cursor."""
    listed: list[dict[str, Any]] = []
    inputs: list[dict[str, Any]] = []
    last: list[dict[str, Any]] = []
    cursors: list[dict[str, Any]] = []
    ttl: dict[str, int | None] = {}
    for number, one in enumerate(made):
        name, managed = f"persistent://t/{number}/a", f"t/{number}/persistent/a"
        ids = [number * 100 + n for n in range(len(one.ledgers))]
        rows = zip(ids, one.ledgers, one.ends(), strict=True)
        inner = [{"ledger_id": i, "entries": e, "size": s, "closed_at": at} for i, (_, e, s), at in rows]
        ttl[f"t/{number}"] = one.ttl_minutes * 60
        plain = [{"ledger_id": row["ledger_id"], "timestamp": row["closed_at"]} for row in inner]
        path = f"/managed-ledgers/{managed}"
        named = {"topic": name, "managed_ledger": managed, "namespace": f"t/{number}", "path": path}
        listed.append({**named, "ledgers": plain})
        at = (ids[one.cursor[0]], one.cursor[1]) if one.cursor else (None, None)
        inputs.append(
            {
                "managed_ledger": managed,
                "ledgers": inner,
                "retention_minutes": one.minutes,
                "retention_mb": -1,
                "durable_cursors": int(one.cursor is not None),
                "slowest_ledger_id": at[0],
                "slowest_entry_id": at[1],
                "kept": "legal_hold" if one.protected else None,
            }
        )
        last.append({"ledger_id": ids[-1], "state": "CLOSED", "mtime": one.ends()[-1] - 1})
        if one.cursor:
            active = None if one.active is None else NOW - one.active * MINUTE
            own = {"path": path, "managed_ledger": managed, "cursor": "s", "last_active": active}
            own |= {"cursors_ledger_id": -1 if closed else 7, "mtime": NOW, "replicated_subscription": False}
            cursors.append({**own, "ledger_id": at[0], "entry_id": at[1]})
    all_ = [{**one, "length": one["size"], "write_quorum": 2} for row in inputs for one in row["ledgers"]]
    stored = pa.Table.from_pylist(all_, tables.BOOKKEEPER_LEDGERS)
    seen = TopicTables(
        pa.Table.from_pylist(listed, tables.MANAGED_LEDGERS),
        pa.Table.from_pylist(inputs, RETENTION_TOPICS),
        pa.Table.from_pylist(last, tables.BOOKKEEPER_LEDGERS),
        pa.Table.from_pylist(cursors, NAMED_POSITIONS),
        pa.array([], pa.string()),
        OPEN_SIZES.empty_table(),
        pa.array(["namespace"] * len(made)),
        lambda _: stored,
    )
    off: dict[str, TopicDeletion | None] = dict.fromkeys(ttl, TopicDeletion(False))
    here: dict[str, Replication | None] = dict.fromkeys(ttl, Replication())
    holds: dict[str, bool | None] = dict.fromkeys(ttl, False)
    never: dict[str, int | None] = dict.fromkeys(ttl, 0)
    layers = InForce(holds), InForce(never), LoadLosses(InForce(here))
    monitors = Monitors(InForce(ttl), InForce(off), dict.fromkeys(ttl, expiry), *layers)
    choice = LoadChoice(frozenset(f"t/{number}" for number, one in enumerate(made) if one.named))
    rows = topics_to_load(seen, monitors, choice, NOW, inactive or Inactive()).to_pylist()
    return {row["ledger_id"] // 100: row for row in rows}


def expected(one: Made) -> tuple[set[str], int, int] | None:
    """Needs, bytes at once, bytes in all; None for a topic that needs no broker."""
    count, final = len(one.ledgers), len(one.ledgers) - 1

    def acknowledged(n: int, cursor: tuple[int, int] | None) -> bool:
        return cursor is None or n < cursor[0] or (n == cursor[0] and cursor[1] + 1 == one.ledgers[n][1])

    def old(n: int) -> bool:
        return 0 <= one.minutes < one.ledgers[n][0]

    cursor = one.cursor
    expired: set[int] = set()
    for n in range(count):
        if acknowledged(n, one.cursor):
            continue
        if not 0 < one.ttl_minutes < one.ledgers[n][0]:
            break
        cursor = (n, one.ledgers[n][1] - 1)
        expired.add(n)
    due = [acknowledged(n, one.cursor) and old(n) for n in range(count)]
    needs = {LoadNeed.LAST_LEDGER_EXPIRED.value} if all(due) else set[str]()
    needs |= {LoadNeed.PAST_TTL.value} if expired and one.minutes >= 0 else set()
    if not needs:
        return None
    goes: list[int] = []
    for n in range(count):
        if not acknowledged(n, cursor) or not (one.minutes == 0 if n == final else old(n)):
            break
        goes.append(n)
    ours: list[int] = []  # by metadata
    for n in range(final):
        if not due[n] or one.protected:
            break
        ours.append(n)
    at_once = sum(one.ledgers[n][2] for n in goes if n not in ours)
    later = one.ledgers[final][2] if final not in goes and (due[final] or final in expired) else 0
    return needs, at_once, at_once + later


@given(st.lists(topics(), min_size=1, max_size=5))
def test_the_rule_says_what_a_walk_says(made: list[Made]) -> None:
    rows = judged(made, 0)
    for number, one in enumerate(made):
        wanted = expected(one)
        row = rows.get(number)
        assert (row is None) == (wanted is None)
        if row and wanted:
            assert (set(row["needs"]), row["bytes_at_once"], row["bytes"]) == wanted
            assert row["physical_bytes"] == 2 * row["bytes"]


@given(st.lists(topics(), min_size=1, max_size=5), st.sampled_from([0, 30]))
def test_nothing_is_loaded_without_order_or_where_a_broker_would_do_more(made: list[Made], expiry: int) -> None:
    for number, row in judged(made, expiry).items():
        one = made[number]
        expires = expiry and one.cursor  # within a day
        assert (row["kept"] is None) == (one.named and not one.protected and not expires and row["bytes"] > 0)
        assert row["bytes"] <= sum(size for _, _, size in one.ledgers)
        assert (row["second_visit_at"] is None) or row["second_visit_at"] == NOW + one.minutes * MINUTE


@given(st.lists(topics(), min_size=1, max_size=5))
def test_what_goes_with_an_expired_subscription_is_what_goes_without_any(made: list[Made]) -> None:
    rows, without = judged(made, 30, closed=True), judged([replace(one, cursor=None) for one in made], 30)
    for number, one in enumerate(made):
        row = rows.get(number)
        if one.cursor is None or one.active is None or one.active <= 30:
            assert row is None or not row["expired_subscriptions"]
            continue
        assert (row is None) or row["expired_subscriptions"] == ["s"]
        assert row is None or row["kept"] is not None
        other = without.get(number)
        if row and other:
            for name in ("trims", "may_trim"):
                assert row[name] == other[name]
        if one.minutes >= 0 and any(not _read(one, n) for n in range(len(one.ledgers))):
            assert row
            assert str(LoadNeed.SUBSCRIPTION_EXPIRED) in row["needs"]


@given(st.lists(topics(), min_size=1, max_size=5), st.lists(st.booleans(), min_size=5, max_size=5))
def test_what_goes_with_an_inactive_one_is_what_goes_without_any(made: list[Made], ordered: list[bool]) -> None:
    """And it goes of the topics alone that are named, whether or not that frees anything."""
    named = {f"persistent://t/{number}/a": {"s": number} for number in range(len(made)) if ordered[number]}
    rows = judged(made, 0, inactive=Inactive(named))
    without, plain = judged([replace(one, cursor=None) for one in made], 0), judged(made, 0)
    for number, one in enumerate(made):
        row = rows.get(number)
        if not (ordered[number] and one.cursor):
            assert row == plain.get(number)
            continue
        assert row
        assert (load_plan.inactive(row), row["expired_subscriptions"]) == ({"s": number}, [])
        assert str(LoadNeed.SUBSCRIPTION_INACTIVE) in row["needs"]
        assert (row["kept"] is None) == (one.named and not one.protected)
        if other := without.get(number):
            for name in ("trims", "may_trim"):
                assert row[name] == other[name]


def _read(one: Made, number: int) -> bool:
    assert one.cursor
    at, entry = one.cursor
    return number < at or (number == at and entry + 1 == one.ledgers[number][1])


@given(topics())
def test_a_topic_without_ttl_frees_nothing_that_is_not_acknowledged(one: Made) -> None:
    if one.ttl_minutes or one.cursor is None:
        return
    row = judged([one], 0).get(0)
    read = one.ledgers[: one.cursor[0] + 1]
    assert row is None or row["bytes"] <= sum(size for _, _, size in read)
