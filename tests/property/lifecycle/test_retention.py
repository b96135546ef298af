"""The vectorised retention rule against a broker's own steps, transcribed for one topic, and laws of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_lifecycle.lifecycle.retention import judge
from pulsar_lifecycle.lifecycle.verdicts import GOING, RETENTION_TOPICS
from pulsar_lifecycle.topics.protection import Protection

NOW = 1_700_000_000_000
MINUTE = 60_000
MB = 1 << 20
MANY = settings(max_examples=1000, deadline=None)
SOME = settings(max_examples=200, deadline=None)


@dataclass(frozen=True)
class Ledger:
    """None is unknown."""

    ledger_id: int
    entries: int | None
    size: int | None
    closed_at: int | None


@dataclass(frozen=True)
class Case:
    """A topic, and the (ledger, entry) of every durable cursor; None: unknown."""

    ledgers: tuple[Ledger, ...] = ()
    minutes: int | None = -1
    mb: int | None = -1
    cursors: tuple[tuple[int, int], ...] | None = ()
    kept: str | None = None

    def row(self, name: str) -> dict[str, Any]:
        slowest = min(self.cursors, default=None) if self.cursors is not None else None
        return {
            "managed_ledger": name,
            "ledgers": [vars(ledger) for ledger in self.ledgers],
            "retention_minutes": self.minutes,
            "retention_mb": self.mb,
            "durable_cursors": None if self.cursors is None else len(self.cursors),
            "slowest_ledger_id": slowest[0] if slowest else None,
            "slowest_entry_id": slowest[1] if slowest else None,
            "kept": self.kept,
        }


def judged(*cases: Case, now: int = NOW) -> list[list[dict[str, Any]]]:
    """The rows of each topic's ledgers."""
    rows = [case.row(f"t/n/persistent/{number}") for number, case in enumerate(cases)]
    found = judge(pa.Table.from_pylist(rows, schema=RETENTION_TOPICS), now).to_pylist()
    assert [(row["managed_ledger"], row["ledger_id"]) for row in found] == [
        (row["managed_ledger"], ledger["ledger_id"]) for row in rows for ledger in row["ledgers"]
    ]
    return [[one for one in found if one["managed_ledger"] == row["managed_ledger"]] for row in rows]


def going(case: Case, now: int = NOW) -> set[int]:
    """What goes of a topic."""
    ((rows),) = judged(case, now=now)
    return {row["ledger_id"] for row in rows if row["verdict"] in GOING}


# ------------------------------------------------------------------------------------------- a broker, step by step


def loaded_and_trimmed(case: Case, now: int) -> set[int]:
    """The ledgers that a topic loses to a broker that loads it at ``now - 1`` and trims it at ``now``.

    ``initialize``, ``initializeBookKeeper``, ``recoveredCursor`` and ``internalTrimLedgers`` of 4.0.7, line by line.
    """
    assert case.cursors is not None
    assert case.minutes is not None
    assert case.mb is not None
    ledgers: dict[int, Any] = {ledger.ledger_id: ledger for ledger in case.ledgers}
    if ledgers:
        ledgers[max(ledgers)] = replace(ledgers[max(ledgers)], closed_at=now - 1)
    total = 0
    for ledger_id in list(ledgers):
        if ledgers[ledger_id].entries > 0:
            total += ledgers[ledger_id].size
        else:
            del ledgers[ledger_id]
    current = max((ledger.ledger_id for ledger in case.ledgers), default=0) + 100
    last_confirmed = (max(ledgers), ledgers[max(ledgers)].entries - 1) if ledgers else (current, -1)
    ledgers[current] = Ledger(current, 0, 0, 0)

    positions: list[tuple[int, int]] = []
    for position in case.cursors:
        if position[1] == -1 and position[0] not in ledgers:
            following = min((i for i in ledgers if i > position[0]), default=None)
            position = (following, -1) if following is not None else position
        if position > last_confirmed:
            position = last_confirmed
        positions.append(position)

    if not positions:
        slowest = current + 1
    else:
        reader = min(positions)
        info = ledgers.get(reader[0])
        if info is not None and reader[0] != current and info.entries == reader[1] + 1:
            slowest = reader[0] + 1
        else:
            slowest = reader[0]
    to_delete: list[int] = []
    size_to_delete = 0
    for ledger_id in sorted(i for i in ledgers if i < slowest):
        if ledger_id == current:
            break
        size_to_delete += ledgers[ledger_id].size
        over_quota = case.mb >= 0 and total - size_to_delete >= case.mb * MB
        expired = case.minutes >= 0 and now - ledgers[ledger_id].closed_at > case.minutes * MINUTE
        if expired or over_quota:
            to_delete.append(ledger_id)
        else:
            break
    return {ledger.ledger_id for ledger in case.ledgers} - set(ledgers) | set(to_delete)


# -------------------------------------------------------------------------------------------------------- cases

sizes = st.sampled_from([1, MB // 2, MB - 1, MB, MB + 1, 3 * MB])
ages = st.one_of(
    st.integers(0, 4).flatmap(lambda n: st.integers(n * MINUTE - 1, n * MINUTE + 1)), st.integers(-MINUTE, 9 * MINUTE)
)
limits = st.sampled_from([-2, -1, 0, 1, 2, 3])


@st.composite
def cases(draw: st.DrawFn) -> Case:
    ids = sorted(draw(st.sets(st.integers(3, 14), max_size=7)))
    ledgers: list[Ledger] = []
    for ledger_id in ids:
        entries = draw(st.sampled_from([0, 1, 2, 2, 3]))
        ledgers.append(Ledger(ledger_id, entries, draw(sizes) if entries else 0, NOW - draw(ages)))
    at_ends = [(one.ledger_id, one.entries - 1) for one in ledgers if one.entries is not None]
    anywhere = st.tuples(st.integers(1, 16), st.integers(-1, 4))
    position = st.one_of(st.sampled_from(at_ends), anywhere) if at_ends else anywhere
    cursors = draw(st.lists(position, max_size=3))
    return Case(tuple(ledgers), draw(limits), draw(limits), tuple(cursors))


@MANY
@given(st.lists(cases(), max_size=4))
def test_the_rule_is_what_a_broker_does(several: list[Case]) -> None:
    for case, rows in zip(several, judged(*several), strict=True):
        lost = loaded_and_trimmed(case, NOW)
        assert {row["ledger_id"] for row in rows if row["goes_when_loaded"]} == lost
        prefix: list[int] = []
        for ledger in case.ledgers[:-1]:
            if ledger.ledger_id not in lost:
                break
            prefix.append(ledger.ledger_id)
        assert [row["ledger_id"] for row in rows if row["verdict"] in GOING] == prefix


@SOME
@given(cases())
def test_a_prefix_goes_and_never_the_last(case: Case) -> None:
    gone = going(case)
    ids = [ledger.ledger_id for ledger in case.ledgers]
    assert gone == set(ids[: len(gone)])
    assert gone != set(ids) or not ids


@SOME
@given(cases())
def test_no_unacknowledged_entry_goes(case: Case) -> None:
    for ledger in case.ledgers:
        if ledger.ledger_id in going(case):
            assert ledger.entries is not None
            assert not ledger.entries or min(case.cursors or ((99, 0),)) >= (ledger.ledger_id, ledger.entries - 1)


def unlimited(limit: int | None) -> float:
    assert limit is not None
    return float("inf") if limit < 0 else limit


@SOME
@given(cases(), limits, limits)
def test_more_retention_never_frees_more(case: Case, minutes: int, mb: int) -> None:
    if unlimited(minutes) >= unlimited(case.minutes) and unlimited(mb) >= unlimited(case.mb):
        assert going(replace(case, minutes=minutes, mb=mb)) <= going(case)


@SOME
@given(cases(), st.integers(0, 10 * MINUTE))
def test_what_is_past_its_retention_stays_so(case: Case, later: int) -> None:
    assert going(case) <= going(case, now=NOW + later)


@SOME
@given(cases(), st.integers(0, 16), st.integers(-1, 4))
def test_a_cursor_in_an_earlier_ledger_never_frees_more(case: Case, ledger: int, entry: int) -> None:
    assert case.cursors is not None
    if all(ledger < cursor[0] for cursor in case.cursors):
        assert going(replace(case, cursors=(*case.cursors, (ledger, entry)))) <= going(case)


@SOME
@given(cases(), st.data())
def test_what_is_not_known_only_keeps(case: Case, data: st.DataObject) -> None:
    topic = data.draw(st.sampled_from(["minutes", "mb", "cursors", "ledger"]))
    if topic != "ledger":
        unknown = replace(case, **{topic: None})
        assert going(unknown) == set()
    elif case.ledgers:
        number = data.draw(st.integers(0, len(case.ledgers) - 1))
        field = data.draw(st.sampled_from(["entries", "size", "closed_at"]))
        ledgers = list(case.ledgers)
        ledgers[number] = replace(ledgers[number], **{field: None})
        unknown = replace(case, ledgers=tuple(ledgers))
        assert going(unknown) <= going(case)
        if field == "entries":
            assert ledgers[number].ledger_id not in going(unknown)


@SOME
@given(cases(), st.sampled_from(list(Protection)))
def test_a_protected_topic_keeps_all(case: Case, kept: Protection) -> None:
    ((rows),) = judged(replace(case, kept=str(kept)))
    assert {row["verdict"] for row in rows} <= {str(kept)}
