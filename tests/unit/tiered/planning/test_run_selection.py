"""Which rows of a plan a run works on: caps of each action, topics that may not be written now, what comes first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any
from uuid import uuid4

import pyarrow as pa
import pytest

from pulsar_lifecycle.errors import Paused
from pulsar_lifecycle.tiered.commit import ReadCheckFailed
from pulsar_lifecycle.tiered.offload_run import carry_out
from pulsar_lifecycle.tiered.outcome import OffloadOutcome
from pulsar_lifecycle.tiered.planning.run_selection import (
    LOOKED_AT,
    LeftToBrokers,
    Row,
    chosen,
    held_back,
    in_agreement,
    waves,
)
from pulsar_lifecycle.topics.offload_policy import DELETION_LAG, DRIVER, OffloadPolicy, in_force
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.offload_plan import CANDIDATES, OffloadChoice, OffloadCode
from tests.kit.builders import some_why
from tests.kit.scenes.tiered.offload_scene import OffloadScene as Scene
from tests.kit.scenes.tiered.offload_scene import context
from tests.kit.scenes.topic_scene import OTHER, TOPIC
from tests.kit.simulated.cluster import data_tags

MANY, HUGE = 1_000, 1 << 50


def row(ledger_id: int, action: str = OffloadChoice.OFFLOAD, size: int = 10, topic: str = str(TOPIC)) -> dict[str, Any]:
    empty = dict.fromkeys(CANDIDATES.names)
    return empty | {"ledger_id": ledger_id, "action": action, "bytes": size, "topic": topic}


def ids(rows: Sequence[Row]) -> list[int]:
    return [one["ledger_id"] for one in rows]


def table(*rows: dict[str, Any]) -> pa.Table:
    return pa.Table.from_pylist(list(rows), CANDIDATES)


# ---------------------------------------------------------------------------------------------------------------- caps


@pytest.mark.parametrize(
    ("limit", "max_ledgers", "max_bytes", "expected"),
    [
        (0, MANY, HUGE, [1, 2, 3, 4, 5]),
        (0, 2, HUGE, [1, 2, 4, 5]),
        (0, 1, HUGE, [1, 4]),
        (0, MANY, 20, [1, 2, 4, 5]),
        (0, MANY, 1, [1, 4]),
        (3, MANY, HUGE, [1, 2, 3]),
        (3, 1, HUGE, [1, 4]),
    ],
)
def test_the_oldest_ledgers_of_each_action_as_many_as_the_caps_allow(
    limit: int, max_ledgers: int, max_bytes: int, expected: list[int]
) -> None:
    rows = table(
        row(4),
        row(5),
        row(3, OffloadChoice.DELETE_COPY),
        row(2, OffloadChoice.DELETE_COPY),
        row(1, OffloadChoice.DELETE_COPY),
    )
    assert ids(chosen(rows, limit, max_ledgers, max_bytes)) == expected


def test_one_that_does_not_fit_ends_its_action() -> None:
    rows = table(row(1, size=10), row(2, size=100), row(3, size=1), row(4, OffloadChoice.DELETE_COPY, size=50))
    assert ids(chosen(rows, 0, MANY, 50)) == [1, 4]


def test_what_is_set_aside_uses_up_no_cap() -> None:
    rows = table(*(row(n) for n in range(2 * LOOKED_AT)))
    last = 2 * LOOKED_AT - 1
    assert ids(chosen(rows, 0, 2, HUGE, lambda some: [one for one in some if one["ledger_id"] in (3, last)])) == [
        3,
        last,
    ]


def test_what_brokers_could_not_read_comes_last() -> None:
    elsewhere = planned(3, OffloadChoice.DELETE_COPY) | {"topic": "persistent://acme/else/t"}
    rows = [
        planned(1, OffloadChoice.DELETE_COPY),
        planned(2, OffloadChoice.OFFLOAD),
        elsewhere,
        planned(4, OffloadChoice.OFFLOAD) | {"topic": elsewhere["topic"]},
    ]
    rows = [one | {"bucket": "c"} if one is elsewhere else one for one in rows]
    rows[3]["bucket"] = "c"
    elsewhere = rows[2]
    here = ("s3", "b", "", "")
    assert ids(chosen(table(*rows), 0, 1, HUGE)) == [1, 2]
    assert ids(chosen(table(*rows), 0, 1, HUGE, unread={here})) == [3, 4]
    several = [planned(n, OffloadChoice.DELETE_COPY) | {"topic": f"{TOPIC}-{n % 4}"} for n in range(12)]
    first, *few = ids(chosen(table(*several, elsewhere | {"ledger_id": 12}), 0, MANY, HUGE, unread={here}))
    assert first == 12
    assert len({n % 4 for n in few}) == len(few) == 3
    few = ids(chosen(table(*several), 0, MANY, HUGE, lambda some: [r for r in some if r["ledger_id"] % 4 == 1], {here}))
    assert [n % 4 for n in few] == [1]  # the topics that wait are not among those asked
    assert [ids(wave) for wave in waves([rows[1] | {"bytes": 1 << 40}, rows[3] | {"bytes": 1 << 40}], {here})] == [
        [4],
        [2],
    ]


def test_what_waits_at_a_location_that_could_not_be_read_is_told_with_its_bytes() -> None:
    """Found by the simulator: the run ended with a KeyError."""
    met: list[Row] = []

    def without(some: Sequence[Row]) -> Sequence[Row]:
        met.extend(some)
        return some

    chosen(table(planned(1, OffloadChoice.DELETE_COPY)), 0, MANY, HUGE, without, {("s3", "b", "", "")})
    assert [one["bytes"] for one in met] == [10, 10]


def test_what_stays_as_its_location_could_not_be_read_is_told() -> None:
    here, elsewhere = ("s3", "b", "", ""), "persistent://acme/else/t"
    several = [planned(n, OffloadChoice.DELETE_COPY) | {"topic": f"{TOPIC}-{n % 4}"} for n in range(12)]
    rows = table(
        *several,
        planned(12, OffloadChoice.DELETE_COPY) | {"topic": elsewhere, "bucket": "c"},
        planned(13, OffloadChoice.OFFLOAD),
    )
    taken = chosen(rows, 0, MANY, HUGE, unread={here})
    waits = [one for one in several if one["ledger_id"] == next(n for n in range(12) if n not in ids(taken))]
    found = held_back(rows, taken, waits, {here})
    assert (len(taken), sum(one.ledgers for one in found)) == (5, 8)
    assert {(one.outcome, one.ledger_id) for one in found} == {(Outcome.LEFT, -1)}
    assert elsewhere not in {one.topic for one in found}
    assert held_back(rows, taken, waits, ()) == []


# ---------------------------------------------------------------------------------------------- what is in force by now

POLICY = in_force(None, None, {DRIVER: "S3", "managedLedgerOffloadBucket": "b", DELETION_LAG: "-1"})


def planned(ledger_id: int, action: str) -> dict[str, Any]:
    return row(ledger_id, action) | {"driver": "S3", "bucket": "b", "region": "", "endpoint": ""}


@pytest.mark.parametrize(
    ("policy", "ours", "stay", "code"),
    [
        (POLICY, True, [1, 2], None),
        (POLICY, False, [1], Code.BROKERS_DELETE),
        (Why(OffloadCode.LEFT_OUT, "its bucket"), True, [], OffloadCode.LEFT_OUT),
        (replace(POLICY, tiered_first=False), True, [1], Code.BOOKKEEPER_FIRST),
        (replace(POLICY, deletion_lag_ms=0), True, [1], Code.BROKERS_DELETE),
        (replace(POLICY, deletion_lag_ms=None), True, [1], Code.BROKERS_DELETE),
        (replace(POLICY, bucket="c"), True, [2], Code.CHANGED_SINCE_PLAN),
        (replace(POLICY, driver="filesystem"), True, [], Code.CHANGED_SINCE_PLAN),
        (replace(POLICY, endpoint="https://elsewhere"), True, [], Code.CHANGED_SINCE_PLAN),
        (None, True, [], Code.NAMESPACE_GONE),
    ],
)
def test_what_changed_since_the_plan_was_made_is_left_alone(
    policy: OffloadPolicy | Why | None, ours: bool, stay: list[int], code: Code | OffloadCode | None
) -> None:
    rows = table(planned(1, OffloadChoice.OFFLOAD), planned(2, OffloadChoice.DELETE_COPY))
    found, against = in_agreement(rows, {str(TOPIC): policy} if policy else {}, {}, ours=ours)
    outcomes = [one for some in against.values() for one in some]
    assert found.column("ledger_id").to_pylist() == stay
    assert {one.why.code for one in outcomes} == ({code} if code else set())
    assert all(one.outcome == Outcome.REFUSED for one in outcomes)
    choices = {1: OffloadChoice.OFFLOAD, 2: OffloadChoice.DELETE_COPY}
    assert {choice for choice, some in against.items() if some} == {choices[i] for i in {1, 2}.difference(stay)}


def test_what_a_run_has_done_since_the_plan_was_made_is_not_done_again() -> None:
    rows = table(
        planned(1, OffloadChoice.OFFLOAD), planned(2, OffloadChoice.DELETE_COPY), planned(3, OffloadChoice.DELETE_COPY)
    )
    done = {OffloadChoice.OFFLOAD: {2}, OffloadChoice.DELETE_COPY: {1, 3}}
    found, against = in_agreement(rows, {str(TOPIC): POLICY}, done, ours=True)
    assert found.column("ledger_id").to_pylist() == [1, 2]
    (one,) = against[OffloadChoice.DELETE_COPY]
    assert (one.outcome, one.why.code, one.ledgers) == (Outcome.REFUSED, Code.CHANGED_SINCE_PLAN, 1)


# ------------------------------------------------------------------------------------------------------- loaded topics


def waiting(scene: Scene) -> LeftToBrokers:
    session = scene.session_again()
    return LeftToBrokers(session.run, scene.store, lambda: session.guard.check(scene.store))


@pytest.mark.parametrize("action", [OffloadChoice.OFFLOAD, OffloadChoice.DELETE_COPY])
def test_rows_of_a_loaded_topic_that_the_policy_does_not_name_wait(action: str) -> None:
    scene = Scene(loaded=True)
    scene.loaded_topics = False
    scene.cluster.topic(OTHER, [scene.cluster.ledger(data_tags(OTHER)) for _ in range(2)])
    scene.cluster.wait(1)
    left = waiting(scene)
    rows = [row(i, action) for i in scene.wanted] + [row(99, action, topic=str(OTHER))]
    assert ids(left.without(rows)) == [99]
    assert ids(left.rows) == scene.wanted
    (said,) = left.outcomes(action)
    assert left.outcomes(OffloadChoice.DELETE_COPY if action == OffloadChoice.OFFLOAD else OffloadChoice.OFFLOAD) == []
    assert (said.topic, said.ledger_id, said.outcome) == (str(TOPIC), -1, Outcome.LEFT_TO_BROKER)
    assert (said.ledgers, said.bytes) == (3, 30)
    assert said.why.code is Code.TOPIC_LOADED
    assert scene.objects.requests == []
    assert scene.open_attempts == []


def test_a_topic_that_was_just_written_waits() -> None:
    scene = Scene()
    scene.write(scene.ids[0], None)
    left = waiting(scene)
    assert left.without([row(i) for i in scene.wanted]) == []
    assert left.outcomes(OffloadChoice.OFFLOAD)[0].why.code is Code.TOPIC_LOADED


def test_rows_of_a_loaded_topic_that_the_policy_names_do_not_wait() -> None:
    left = waiting(Scene(loaded=True))
    assert ids(left.without([row(7)])) == [7]
    assert (left.rows, left.outcomes(OffloadChoice.OFFLOAD)) == ([], [])


def test_a_copy_that_is_listed_as_deleted_goes_whoever_has_the_topic() -> None:
    scene = Scene(loaded=True)
    scene.loaded_topics = False
    scene.write(scene.ids[0], context(uuid4(), complete=True, bookkeeper_deleted=True))
    assert ids(waiting(scene).without([row(i, OffloadChoice.DELETE_COPY) for i in scene.wanted])) == scene.ids[:1]


@pytest.mark.parametrize("data", [None, b"\xff\xff"])
def test_of_a_topic_that_cannot_be_read_the_run_itself_says_so(data: bytes | None) -> None:
    scene = Scene()
    scene.cluster.remove(scene.path)
    if data is not None:
        scene.cluster.put(scene.path, data)
    assert ids(waiting(scene).without([row(1)])) == [1]


def test_a_pause_stops_the_look() -> None:
    def paused() -> None:
        raise Paused("paused: why")

    session = Scene().session()
    with pytest.raises(Paused):
        LeftToBrokers(session.run, session.ports.store, paused).without([row(1)])


# ------------------------------------------------------------------------------------------------------------ the order


def test_copies_are_deleted_before_others_are_made() -> None:
    """A commit makes the z-node too young to be written again: what every run offloads, no run would delete."""
    done: list[tuple[str, list[int]]] = []

    class Work:
        outcomes: Sequence[OffloadOutcome] = ()
        unread = ()

        def finish_attempts(self, planned: pa.Table, _: object) -> None:
            done.append(("finish", planned.column("ledger_id").to_pylist()))

        def offload(self, rows: Sequence[Row], _: object) -> None:
            done.append((OffloadChoice.OFFLOAD, ids(rows)))

        def read_first(self, rows: Sequence[Row], _: object) -> None:
            done.append(("read first", ids(rows)))

        def begin_deletions(self, rows: Sequence[Row], _: object) -> None:
            done.append((OffloadChoice.DELETE_COPY, ids(rows)))

        def finish(self) -> None:
            done.append(("finish", []))

    work: Any = Work()
    some = [row(1), row(2, OffloadChoice.DELETE_COPY), row(3)]
    carry_out(work, some, table(*some, row(4)), print)
    assert done == [
        ("finish", [1, 2, 3, 4]),
        ("read first", [2]),
        (OffloadChoice.DELETE_COPY, [2]),
        (OffloadChoice.OFFLOAD, [1, 3]),
        ("finish", []),
    ]


def test_a_read_check_that_fails_ends_the_run_and_what_was_done_is_said() -> None:
    finished: list[bool] = []
    reverted = OffloadOutcome(str(TOPIC), 1, Outcome.REVERTED, some_why("its broker cannot read it"))
    offloaded = OffloadOutcome(str(OTHER), 9, Outcome.OFFLOADED, some_why(""))

    class Work:
        def __init__(self) -> None:
            self.outcomes: list[OffloadOutcome] = [offloaded]
            self.unread = ()

        def finish_attempts(self, planned: pa.Table, _: object) -> None: ...

        def read_first(self, rows: Sequence[Row], _: object) -> None: ...

        def offload(self, rows: Sequence[Row], _: object) -> None:
            raise ReadCheckFailed("the run stopped there", [reverted])

        def finish(self) -> None:
            finished.append(True)

    work: Any = Work()
    carry_out(work, [row(1)], table(row(1)), print)
    stopped, *others = work.outcomes
    assert (stopped.ledger_id, stopped.outcome, stopped.why.code) == (-1, Outcome.FAILED, Code.READ_CHECK_FAILED)
    assert "the run stopped there" in stopped.reason
    assert others == [reverted, offloaded]
    assert finished == [True]
