"""Whether deleted ledgers are gone: what each server says, what no answer is worth, and waiting."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

import pytest

from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.delete_records.absence import DeletedLedger, look, wait_until_gone
from pulsar_lifecycle.delete_records.request import Absence, Presence
from pulsar_lifecycle.errors import Paused, Unavailable
from pulsar_lifecycle.formats import ledger_path
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment, encode
from pulsar_lifecycle.ports.bundle import Ports
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.ledger_reader import FakeLedgerReader
from tests.kit.fakes.metadata_store import FakeZooKeeper
from tests.kit.fakes.object_store import FakeBuckets, FakeObjectStore

BUCKET = "tiered"
ROOT = "/ledgers"
METADATA = LedgerMetadata(
    LedgerState.CLOSED,
    2,
    2,
    2,
    (Segment(0, ("b1", "b2")), Segment(5, ("b3", "b2"))),
    last_entry_id=9,
    length=100,
    digest_type=DigestType.CRC32C,
)


class Scene:
    """Two ledgers whose z-nodes are gone; bookies have the entries of the first until they collect."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = FakeZooKeeper().session()
        self.reader = FakeLedgerReader()
        self.buckets = FakeBuckets(self.clock)
        self.buckets.create(BUCKET)
        self.objects = FakeObjectStore(self.buckets, {BUCKET})
        self.ports = Ports(self.store, self.reader, None, None, None, self.clock, self.objects)
        self.copy = Location(BUCKET, UUID(int=7), 1)
        self.ledgers = [DeletedLedger(1, METADATA, (self.copy,)), DeletedLedger(2, METADATA)]
        self.reader.payloads[1] = [b"x"] * 10

    def collect(self, *bookies: str) -> None:
        for bookie in bookies:
            self.reader.collected.setdefault(bookie, set()).add(1)

    def cookies(self, *bookies: str) -> None:
        for path in (f"{ROOT}/cookies", *(f"{ROOT}/cookies/{bookie}" for bookie in bookies)):
            self.store.create(path, parents=True)

    def look(self, *, bookies: bool = True) -> list[tuple[Presence, tuple[str, ...]]]:
        return [(one.presence, one.where) for one in look(self.ports, ROOT, self.ledgers, bookies=bookies)]

    def wait(self, seconds: float, **options) -> list[Absence]:
        deadline = self.clock.now_ms() + int(seconds * 1000)
        return wait_until_gone(self.ports, ROOT, self.ledgers, bookies=True, deadline_ms=deadline, **options)


@pytest.fixture
def scene() -> Scene:
    return Scene()


GONE = (Presence.GONE, ())


def test_what_bookies_have_is_not_gone_until_every_one_of_every_segment_collected(scene):
    assert scene.look() == [(Presence.ON_BOOKIE, ("b1", "b2", "b3")), GONE]
    scene.collect("b1", "b2")
    assert scene.look() == [(Presence.ON_BOOKIE, ("b3",)), GONE]
    scene.collect("b3")
    assert scene.look() == [GONE, GONE]


def test_bookies_are_asked_only_on_request(scene):
    assert scene.look(bookies=False) == [GONE, GONE]


def test_a_bookie_without_an_answer_proves_nothing(scene):
    scene.collect("b1", "b2", "b3")
    scene.reader.unanswered = {"b2"}
    assert scene.look() == [(Presence.BOOKIE_UNANSWERED, ("b2",))] * 2


def test_a_bookie_that_has_entries_says_more_than_one_without_an_answer(scene):
    scene.reader.unanswered = {"b2"}
    assert scene.look()[0] == (Presence.ON_BOOKIE, ("b1", "b3"))


def test_without_metadata_every_bookie_of_the_cluster_is_asked(scene):
    scene.ledgers = [DeletedLedger(1, None)]
    scene.cookies("b1", "b2", "b3", "b4")
    assert scene.look() == [(Presence.ON_BOOKIE, ("b1", "b2", "b3", "b4"))]
    scene.collect("b1", "b2", "b3", "b4")
    scene.reader.unanswered = {"b4"}
    assert scene.look() == [(Presence.BOOKIE_UNANSWERED, ("b4",))]
    scene.reader.unanswered = set()
    assert scene.look() == [GONE]


def test_a_bookie_that_runs_without_its_cookie_is_asked_too(scene):
    scene.ledgers = [DeletedLedger(1, None)]
    scene.cookies("b1")
    for path in ("b2", "readonly/b3"):
        scene.store.create(f"{ROOT}/available/{path}", parents=True)
    assert scene.look() == [(Presence.ON_BOOKIE, ("b1", "b2", "b3"))]


@pytest.mark.parametrize("listed", [False, True])
def test_without_metadata_and_without_bookies_nobody_knows_whom_to_ask(scene, listed):
    if listed:
        scene.cookies()
    scene.ledgers = [DeletedLedger(3, None)]
    assert scene.look() == [(Presence.BOOKIES_UNKNOWN, ())]
    assert scene.look(bookies=False) == [GONE]


@pytest.mark.parametrize("short", ["cookies", "available", "available/readonly"])
def test_a_listing_that_lacks_bookies_does_not_say_whom_to_ask(scene, monkeypatch, short):
    scene.ledgers = [DeletedLedger(1, None)]
    scene.cookies("b1", "b2")
    scene.store.create(f"{ROOT}/available/readonly/b3", parents=True)
    scene.collect("b1", "b2", "b3")
    assert scene.look() == [GONE]
    real = scene.store.children

    def one_less(paths):
        path = f"{ROOT}/{short}"
        return [replace(c, names=c.names[1:]) if c and c.path == path else c for c in real(paths)]

    monkeypatch.setattr(scene.store, "children", one_less)
    assert scene.look() == [(Presence.BOOKIES_UNKNOWN, ())]


def test_a_z_node_that_is_there_comes_before_all_else(scene):
    path = ledger_path.ledger_path(1, ROOT)
    scene.store.create(path, b"", parents=True)
    assert scene.look()[0] == (Presence.Z_NODE, (path,))


@pytest.mark.parametrize("times_written", [1, 2])
def test_every_bookie_is_asked_for_an_entry_that_was_never_confirmed_if_others_had_the_ledger(scene, times_written):
    """Another bookie took the place of b1 before anything was confirmed: the metadata does not name b1 any more."""
    closed = replace(METADATA, segments=(Segment(0, ("b2", "b3")),), last_entry_id=-1, length=0)
    path = ledger_path.ledger_path(1, ROOT)
    scene.store.create(path, b"", parents=True)
    for version in range(times_written):
        scene.store.write(path, encode(closed), version)
    scene.ledgers = [DeletedLedger(1, None, tagged=True)]
    scene.cookies("b1", "b2", "b3")
    scene.collect("b2", "b3")
    assert scene.look() == [GONE if times_written == 1 else (Presence.Z_NODE, ("b1",))]
    scene.reader.unanswered = {"b1"}
    assert scene.look() == [GONE if times_written == 1 else (Presence.BOOKIE_UNANSWERED, ("b1",))]
    assert scene.look(bookies=False) == [GONE]


@pytest.mark.parametrize("role", ["data_key", "index_key"])
def test_one_object_of_an_offloaded_copy_is_enough(scene, role):
    key = getattr(scene.copy, role)
    scene.collect("b1", "b2", "b3")
    scene.buckets.put(BUCKET, key, b"")
    assert scene.look() == [(Presence.OBJECT, (f"s3://{BUCKET}/{key}",)), GONE]
    scene.objects.delete_many(BUCKET, [key])
    assert scene.look() == [GONE, GONE]


@pytest.mark.parametrize("trouble", ["unavailable", "foreign bucket", "no object store"])
def test_a_bucket_that_does_not_answer_proves_nothing(scene, trouble):
    scene.collect("b1", "b2", "b3")
    if trouble == "foreign bucket":
        scene.ledgers[0] = DeletedLedger(1, METADATA, (Location("theirs", UUID(int=7), 1),))
    elif trouble == "no object store":
        scene.ports.objects = None
    else:
        scene.objects.before = _unavailable
    assert [presence for presence, _ in scene.look()] == [Presence.OBJECT_UNREAD, Presence.GONE]


def _unavailable(name, bucket, keys):
    raise Unavailable("no answer")


def test_waiting_ends_with_the_collection(scene):
    def collect() -> None:
        if scene.clock.slept == [5.0, 5.0, 5.0]:
            scene.collect("b1", "b2", "b3")

    assert all(one.gone for one in scene.wait(600, stop=collect))
    assert scene.clock.slept == [5.0] * 3


def test_waiting_ends_with_the_time_and_says_what_is_left(scene):
    first, second = scene.wait(12)
    assert (first.presence, second.presence) == (Presence.ON_BOOKIE, Presence.GONE)
    assert scene.clock.slept == [5.0, 5.0, 2.0]


def test_without_time_there_is_one_look(scene):
    assert [one.gone for one in scene.wait(0)] == [False, True]
    assert scene.clock.slept == []


def test_only_what_is_not_gone_is_asked_for_again(scene):
    asked = []
    find = scene.reader.find_traces
    scene.reader.find_traces = lambda ledgers: asked.append([i for i, _ in ledgers]) or find(ledgers)
    scene.wait(10)
    assert asked == [[1, 2], [1], [1, 2]]  # the last time at all of them


def test_what_came_back_while_others_were_waited_for_is_not_gone(scene):
    """An undo puts a z-node back, for example."""
    path = ledger_path.ledger_path(2, ROOT)

    def undo() -> None:
        if scene.reader.collected:
            return
        scene.collect("b1", "b2", "b3")
        scene.store.create(path, b"", parents=True)

    assert [one.presence for one in scene.wait(60, stop=undo)] == [Presence.GONE, Presence.Z_NODE]
    assert sum(scene.clock.slept) == 60


def test_a_bookie_that_crashed_before_its_flush_has_again_what_it_collected(scene):
    scene.collect("b1", "b2", "b3")

    def crash() -> None:
        if scene.clock.slept == [30.0]:
            scene.reader.collected.clear()
        elif scene.clock.slept == [30.0, 5.0]:
            scene.collect("b1", "b2", "b3")

    assert all(one.gone for one in scene.wait(600, flush_ms=30_000, stop=crash))
    assert scene.clock.slept == [30.0, 5.0, 30.0]  # a whole flush after the collection that came last


def test_a_flush_is_waited_for_no_longer_than_there_is_time(scene):
    scene.collect("b1", "b2", "b3")
    assert all(one.gone for one in scene.wait(12, flush_ms=30_000))
    assert scene.clock.slept == [12.0]
    assert all(one.gone for one in scene.wait(0, flush_ms=30_000))
    assert scene.clock.slept == [12.0]


def test_waiting_can_be_ended_from_outside(scene):
    def stop() -> None:
        raise Paused("an operator paused")

    with pytest.raises(Paused):
        scene.wait(600, stop=stop)
