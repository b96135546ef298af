"""Our own z-nodes of open offload attempts: begun once, read whole or not at all, ended by whoever they belong to."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from uuid import UUID

import pytest

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import ATTEMPTS, Attempt, BrokenAttempt
from pulsar_lifecycle.errors import AccessDenied, Conflict, LeaseLost, NotFound, OutcomeUnknown, StoreError
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.values.codes import Code
from tests.kit.fakes.metadata_store import FakeStore, FakeZooKeeper, Operation

LOCATION = (
    ("bucket", "tiered"),
    ("managedLedgerOffloadDriver", "AWS_S3"),
    ("region", ""),
    ("serviceEndpoint", "http://s3:1/é"),
)
ONE = Attempt(7, "persistent://t/n/a+b c~é-partition-0", UUID(int=9 << 120), "aws-s3", LOCATION, 5 << 20, "run", 12)


@pytest.fixture
def store() -> FakeStore:
    return FakeZooKeeper().session()


def stored(store: FakeStore, path: str = ONE.path) -> bytes:
    return store.server.data(path)


def changed(**fields: Any) -> bytes:
    """The z-node of an attempt with other JSON values."""
    zookeeper = FakeZooKeeper()
    attempts.begin(zookeeper.session(), ONE)
    return json.dumps({**json.loads(zookeeper.data(ONE.path)), **fields}, separators=(",", ":")).encode()


def on(store: FakeStore, when: str, name: str, error: Exception, times: int = 1) -> None:
    left = [times]

    def hook(operation: Operation) -> None:
        if operation.name == name and left[0]:
            left[0] -= 1
            raise error

    setattr(store, when, hook)


def test_an_attempt_is_what_it_was(store: FakeStore) -> None:
    other = replace(ONE, ledger_id=3, uuid=UUID(int=1))
    attempts.begin(store, ONE)
    attempts.begin(store, other)
    assert attempts.open_attempts(store) == [other, ONE]
    assert attempts.of_ledgers(store, [3, 4, 7]) == {3: other, 7: ONE}
    assert ONE.bucket == "tiered"


def test_without_any_there_is_none(store: FakeStore) -> None:
    assert attempts.open_attempts(store) == []
    assert attempts.of_ledgers(store, [1]) == {}
    assert attempts.of_ledgers(store, []) == {}
    attempts.end(store, ONE)


def test_a_ledger_has_one_attempt_at_a_time(store: FakeStore) -> None:
    attempts.begin(store, ONE)
    for other in (replace(ONE, uuid=UUID(int=2)), replace(ONE, run_id="other"), replace(ONE, since=13)):
        with pytest.raises(Conflict, match="another open offload attempt"):
            attempts.begin(store, other)
    assert attempts.open_attempts(store) == [ONE]
    attempts.begin(store, ONE)  # the same is no other


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("times", [1, 2])
def test_beginning_one_without_an_answer(store: FakeStore, when: str, times: int) -> None:
    on(store, when, "create", OutcomeUnknown("lost"), times)
    attempts.begin(store, ONE)
    assert attempts.open_attempts(store) == [ONE]


def test_beginning_one_that_nobody_answers_is_not_known(store: FakeStore) -> None:
    on(store, "after", "create", OutcomeUnknown("lost"), 99)
    store.before = lambda operation: None
    on(store, "before", "create", OutcomeUnknown("lost"), 99)
    with pytest.raises(OutcomeUnknown, match="whether it was written is not known"):
        attempts.begin(store, ONE)


def test_one_that_cannot_be_read_is_another(store: FakeStore) -> None:
    attempts.begin(store, ONE)
    store.server.unreadable.add(ONE.path)
    with pytest.raises(Conflict):
        attempts.begin(store, ONE)


@pytest.mark.parametrize("error", [LeaseLost("x"), StoreError("x")])
def test_an_error_while_beginning_is_raised(store: FakeStore, error: Exception) -> None:
    on(store, "before", "create", error)
    with pytest.raises(type(error)):
        attempts.begin(store, ONE)


@pytest.mark.parametrize("error", [None, OutcomeUnknown("lost"), Conflict("x"), NotFound("x")])
@pytest.mark.parametrize("when", ["before", "after"])
def test_touching_one_tells_the_stores_time_and_changes_nothing(
    store: FakeStore, when: str, error: Exception | None
) -> None:
    attempts.begin(store, ONE)
    store.server.clock.sleep(60)
    if error:
        on(store, when, "write", error, 2)
    assert attempts.touch(store, ONE) == store.server.clock.now_ms()
    assert attempts.open_attempts(store) == [ONE]


@pytest.mark.parametrize("other", [None, replace(ONE, uuid=UUID(int=2))])
def test_one_that_is_not_open_cannot_be_touched(store: FakeStore, other: Attempt | None) -> None:
    if other:
        attempts.begin(store, other)
    with pytest.raises(Conflict, match="is not open any more"):
        attempts.touch(store, ONE)
    assert attempts.open_attempts(store) == ([other] if other else [])


def test_one_that_nobody_answers_about_is_not_known(store: FakeStore) -> None:
    attempts.begin(store, ONE)
    on(store, "before", "write", OutcomeUnknown("lost"), 99)
    with pytest.raises(OutcomeUnknown, match="whether it is open is not known"):
        attempts.touch(store, ONE)


def test_it_is_ended_by_its_owner_and_harmlessly_again(store: FakeStore) -> None:
    attempts.begin(store, ONE)
    attempts.end(store, replace(ONE, uuid=UUID(int=2)))
    attempts.end(store, replace(ONE, ledger_id=8))
    assert attempts.open_attempts(store) == [ONE]
    attempts.end(store, ONE)
    attempts.end(store, ONE)
    assert attempts.open_attempts(store) == []


def test_another_that_took_its_place_is_not_ended(store: FakeStore) -> None:
    attempts.begin(store, ONE)
    other = replace(ONE, uuid=UUID(int=2))

    def replaced(operation: Operation) -> None:
        store.before = lambda operation: None
        if operation.name == "delete":
            store.delete(ONE.path, -1)
            attempts.begin(store, other)
            store.write(ONE.path, stored(store), 0)

    store.before = lambda operation: replaced(operation) if operation.name == "delete" else None
    attempts.end(store, ONE)
    assert attempts.open_attempts(store) == [other]


@pytest.mark.parametrize("when", ["before", "after"])
def test_an_end_without_an_answer_is_left_to_the_next_run(store: FakeStore, when: str) -> None:
    attempts.begin(store, ONE)
    on(store, when, "delete", OutcomeUnknown("lost"))
    attempts.end(store, ONE)
    assert attempts.open_attempts(store) == ([ONE] if when == "before" else [])


def test_a_lost_lease_is_raised_when_one_is_ended(store: FakeStore) -> None:
    attempts.begin(store, ONE)
    on(store, "before", "delete", LeaseLost("x"))
    with pytest.raises(LeaseLost):
        attempts.end(store, ONE)


BROKEN: list[Callable[[], bytes]] = [
    lambda: b"",
    lambda: b"{",
    lambda: b"[]",
    lambda: b"null",
    lambda: b"[" * 100_000,
    lambda: b"\xff",
    lambda: changed(ledger_id=8),
    lambda: changed(ledger_id="7"),
    lambda: changed(ledger_id=7.0),
    lambda: changed(ledger_id=True),
    lambda: changed(ledger_id=None),
    lambda: changed(uuid="x"),
    lambda: changed(uuid=9),
    lambda: changed(uuid=str(ONE.uuid).upper().replace("-", "")),
    lambda: changed(topic="no topic"),
    lambda: changed(topic=7),
    lambda: changed(since="12"),
    lambda: changed(block_size=None),
    lambda: changed(metadata=[]),
    lambda: changed(metadata={"bucket": "tiered"}),
    lambda: changed(metadata=[["bucket", ""]]),
    lambda: changed(metadata=[["bucket"]]),
    lambda: changed(metadata=[["bucket", 7]]),
    lambda: changed(later="version"),
    lambda: stored_pretty(),
]


def stored_pretty() -> bytes:
    return json.dumps(json.loads(changed()), indent=1).encode()


@pytest.mark.parametrize("make", BROKEN)
def test_what_is_not_ours_in_every_byte_is_broken(store: FakeStore, make: Callable[[], bytes]) -> None:
    data, other = make(), replace(ONE, ledger_id=9)
    attempts.begin(store, other)
    store.create(ONE.path, data, parents=True)
    broken, whole = attempts.open_attempts(store)
    assert (broken, whole) == (BrokenAttempt(ONE.path, broken.why), other)  # type: ignore[union-attr]
    assert attempts.whole([broken, whole]) == [other]
    assert attempts.of_ledgers(store, [9, 7]) == {9: other, 7: broken}
    attempts.end(store, ONE)
    assert stored(store) == data


@pytest.mark.parametrize("name", ["x", "007", "-7", "7 "])
def test_a_z_node_of_another_name_is_broken(store: FakeStore, name: str) -> None:
    store.create(f"{ATTEMPTS}/{name}", changed(), parents=True)
    (broken,) = attempts.open_attempts(store)
    assert isinstance(broken, BrokenAttempt)
    assert broken.path == f"{ATTEMPTS}/{name}"


def test_one_that_nobody_may_read_is_broken(store: FakeStore) -> None:
    attempts.begin(store, ONE)
    store.server.unreadable.add(ONE.path)
    (broken,) = attempts.open_attempts(store)
    assert isinstance(broken, BrokenAttempt)
    assert broken.why.code is Code.UNREAD
    assert attempts.of_ledgers(store, [7]) == {7: broken}


def test_those_that_cannot_be_listed_are_not_none(store: FakeStore) -> None:
    attempts.begin(store, ONE)
    store.server.unreadable.add(ATTEMPTS)
    with pytest.raises(AccessDenied, match="no permission"):
        attempts.open_attempts(store)


def test_one_that_ends_while_they_are_listed_is_none(store: FakeStore) -> None:
    attempts.begin(store, ONE)
    other = store.server.session()
    store.after = lambda operation: attempts.end(other, ONE) if operation.name == "children" else None
    assert attempts.open_attempts(store) == []
    assert isinstance(store.read([ATTEMPTS])[0], Node)
