"""Our own z-nodes of locations that a broker could not read: written for certain, emptied only by a later read."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from pulsar_lifecycle.copies import unread_locations
from pulsar_lifecycle.copies.unread_locations import TRIES, held, hold, let_go, look, path_of
from pulsar_lifecycle.errors import AccessDenied, Conflict, OutcomeUnknown, StoreError
from pulsar_lifecycle.values.copies import OffloadLocation
from tests.kit.fakes.metadata_store import FakeStore, FakeZooKeeper, Operation

HERE: OffloadLocation = ("aws-s3", "tiered", "", "http://s3:1/é/..%2f")
OTHERS: list[OffloadLocation] = [
    ("s3", *HERE[1:]),
    (HERE[0], "another", *HERE[2:]),
    (*HERE[:2], "r", HERE[3]),
    (*HERE[:3], ""),
    ("aws-s3", "", "tiered", HERE[3]),
]
PATH = path_of(HERE)


@pytest.fixture
def store() -> FakeStore:
    return FakeZooKeeper().session()


def held_here(store: FakeStore) -> bool:
    return held(store, [HERE, *OTHERS]) == {HERE}


def on(store: FakeStore, when: str, act: Callable[[], object], times: int = 1) -> None:
    """Do something before or after the first writes."""
    left = [times]

    def hook(operation: Operation) -> None:
        if operation.name in ("create", "write") and left[0]:
            left[0] -= 1
            act()

    setattr(store, when, hook)


def raises(error: Exception) -> Callable[[], object]:
    def act() -> None:
        raise error

    return act


def test_one_location_and_no_other_is_held_until_a_read_works_there(store: FakeStore) -> None:
    assert held(store, [HERE, *OTHERS]) == set()
    let_go(store, HERE, look(store, HERE))
    hold(store, HERE, "run-1", "500")
    assert held_here(store)
    named = {"driver": HERE[0], "bucket": HERE[1], "region": HERE[2], "endpoint": HERE[3]}
    assert json.loads(store.server.data(PATH)) == {**named, "run": "run-1", "said": "500"}
    let_go(store, HERE, look(store, HERE))
    assert held(store, [HERE, *OTHERS]) == set()
    hold(store, HERE, "run-2", "500" * 500_000)
    assert held_here(store)
    assert len(store.server.data(PATH)) < 2_000


@pytest.mark.parametrize("known", ["nothing", "let go", "held"])
def test_a_read_that_worked_lets_nothing_go_that_failed_after_it_began(store: FakeStore, known: str) -> None:
    if known != "nothing":
        hold(store, HERE, "run-1", "500")
    if known == "let go":
        let_go(store, HERE, look(store, HERE))
    before = look(store, HERE)
    hold(store, HERE, "run-1", "500")  # in the same words
    with pytest.raises(Conflict):
        let_go(store, HERE, before)
    assert held_here(store)


def test_nor_where_another_let_it_go_meanwhile(store: FakeStore) -> None:
    """A z-node that is deleted and made anew begins with the same version."""
    hold(store, HERE, "run-1", "500")
    before = look(store, HERE)
    let_go(store, HERE, look(store, HERE))
    let_go(store, HERE, before)
    hold(store, HERE, "run-2", "500")
    with pytest.raises(Conflict):
        let_go(store, HERE, before)
    assert held_here(store)


def test_what_somebody_has_deleted_by_hand_is_let_go(store: FakeStore) -> None:
    hold(store, HERE, "run-1", "500")
    before = look(store, HERE)
    store.delete(PATH, -1)
    let_go(store, HERE, before)
    assert held(store, [HERE]) == set()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("again", [False, True])
def test_an_unknown_outcome_of_holding_is_looked_up(store: FakeStore, when: str, again: bool) -> None:
    if again:
        hold(store, HERE, "run-1", "500")
    before = look(store, HERE)
    on(store, when, raises(OutcomeUnknown("cut")))
    hold(store, HERE, "run-2", "500")
    assert held_here(store)
    assert look(store, HERE) != before
    on(store, "before", raises(OutcomeUnknown("cut")), TRIES)
    with pytest.raises(OutcomeUnknown):
        hold(store, HERE, "run-3", "500")


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_unknown_outcome_of_letting_go_is_looked_up(store: FakeStore, when: str) -> None:
    hold(store, HERE, "run-1", "500")
    on(store, when, raises(OutcomeUnknown("cut")))
    let_go(store, HERE, look(store, HERE))
    assert held(store, [HERE]) == set()
    hold(store, HERE, "run-2", "500")
    on(store, "before", raises(OutcomeUnknown("cut")), TRIES)
    with pytest.raises(OutcomeUnknown):
        let_go(store, HERE, look(store, HERE))
    assert held_here(store)


def test_two_that_hold_at_once_both_count(store: FakeStore) -> None:
    other = store.server.session()
    on(store, "before", lambda: hold(other, HERE, "run-2", "500"))
    hold(store, HERE, "run-1", "500")
    between = look(store, HERE)
    assert between
    assert between.stat.version == 1
    on(store, "before", lambda: let_go(other, HERE, between))
    hold(store, HERE, "run-1", "500")
    assert held_here(store)


def test_what_cannot_be_read_holds_and_what_may_not_be_written_is_told(store: FakeStore) -> None:
    on(store, "before", raises(AccessDenied("no")))
    with pytest.raises(AccessDenied):
        hold(store, HERE, "run-1", "500")
    hold(store, HERE, "run-1", "500")
    let_go(store, HERE, look(store, HERE))
    store.server.unreadable.add(PATH)
    assert held_here(store)
    for act in (lambda: look(store, HERE), lambda: hold(store, HERE, "run-2", "500")):
        with pytest.raises(StoreError, match=PATH):
            act()


def test_every_location_has_a_z_node_of_its_own() -> None:
    paths = {path_of(where) for where in (HERE, *OTHERS)}
    assert len(paths) == 1 + len(OTHERS)
    assert all(path.rpartition("/")[0] == unread_locations.UNREAD_LOCATIONS for path in paths)
