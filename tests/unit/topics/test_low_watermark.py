"""The property of a topic that holds its low watermark: strict, and never moved back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.managed_ledger import LOW_WATERMARK, LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.metastore import topics
from pulsar_lifecycle.model import MessagePosition
from pulsar_lifecycle.topics import low_watermark
from tests.kit.fakes.metadata_store import FakeZooKeeper

IDS = st.integers(0, (1 << 63) - 1)
POSITIONS = st.builds(MessagePosition, IDS, IDS, st.integers(0, (1 << 31) - 1))
NEAR = st.builds(MessagePosition, st.integers(0, 3), st.integers(0, 3), st.integers(0, 3))


@given(POSITIONS)
def test_a_position_is_read_as_it_was_written(position):
    assert MessagePosition.parse(str(position)) == position
    assert low_watermark.of({LOW_WATERMARK: str(position), "else": "x"}) == position


@given(st.text(max_size=30))
def test_nothing_is_guessed(text):
    try:
        found = low_watermark.of({LOW_WATERMARK: text})
    except CorruptFormat:
        return
    assert str(found) == text


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("", 0),
        ("5", 0),
        ("5:", 0),
        ("-1", 0),
        ("5:-1", 0),
        ("+5:1", 0),
        ("05:1", 0),
        ("5:01", 0),
        ("5:1:0", 0),
        (" 5:1", 0),
        ("5:1\n", 0),
        ("5:1:2:3", 0),
        ("٥:1", 0),
        ("9223372036854775808:1", 0),
        ("5:9223372036854775808", 2),
        ("5:1:2147483648", 4),
    ],
)
def test_what_is_no_position_is_named_with_its_place(text, offset):
    with pytest.raises(CorruptFormat) as caught:
        low_watermark.of({LOW_WATERMARK: text})
    assert (caught.value.what, caught.value.offset) == (f"property {LOW_WATERMARK}", offset)


def test_a_topic_without_the_property_has_none():
    assert low_watermark.of({}) is None
    assert low_watermark.of({"owner": "shop"}) is None


@given(st.lists(NEAR, min_size=1))
def test_it_never_moves_back(asked):
    info = ManagedLedgerInfo((LedgerInfo(7),), properties={"owner": "shop"})
    seen = []
    for one in asked:
        info = managed_ledger.decode(managed_ledger.encode(low_watermark.raised(info, one)))
        seen.append(low_watermark.of(info.properties))
    assert seen == sorted(seen)
    assert seen[-1] == max(asked)
    assert info.properties["owner"] == "shop"
    assert info.ledgers == (LedgerInfo(7),)


@given(NEAR, NEAR)
def test_what_changes_nothing_is_the_same_value(old, asked):
    info = low_watermark.raised(ManagedLedgerInfo(), old)
    assert (low_watermark.raised(info, asked) is info) == (asked <= old)


@given(st.lists(NEAR, min_size=1).flatmap(lambda asked: st.tuples(st.just(asked), st.permutations(asked))))
def test_what_brokers_are_asked_to_keep_may_come_in_any_order(asked):
    properties = {"owner": "shop"}
    for one in asked[1]:
        before = low_watermark.of(properties)
        properties |= low_watermark.kept_by_broker(one)
        assert low_watermark.of(properties) == low_watermark.highest(before, one)
    info = low_watermark.raised(ManagedLedgerInfo(properties=properties), MessagePosition(4, 0))
    assert info.properties == {"owner": "shop", LOW_WATERMARK: "4:0"}


@pytest.mark.parametrize("name", [LOW_WATERMARK, f"{LOW_WATERMARK}.7:3"])
def test_no_position_is_named_with_its_own_property(name):
    with pytest.raises(CorruptFormat) as caught:
        low_watermark.of({**low_watermark.kept_by_broker(MessagePosition(1, 1)), name: "soon"})
    assert caught.value.what == f"property {name}"


def test_a_property_that_holds_no_position_is_not_replaced():
    info = ManagedLedgerInfo(properties={LOW_WATERMARK: "soon"})
    with pytest.raises(CorruptFormat):
        low_watermark.raised(info, MessagePosition(1, 1))


def test_a_scan_has_the_property_as_it_is_written():
    zookeeper = FakeZooKeeper()
    store = zookeeper.session()
    several = {LOW_WATERMARK: "7:3", f"{LOW_WATERMARK}.7:10": "7:10", f"{LOW_WATERMARK}.7:9": "7:9", "owner": "8:0"}
    for name, properties in {"a": several, "b": {}, "c": {**several, LOW_WATERMARK: "soon"}}.items():
        data = managed_ledger.encode(ManagedLedgerInfo((LedgerInfo(7),), properties=properties))
        store.create(f"/managed-ledgers/shop/eu/persistent/{name}", data, parents=True)
    (batch,) = topics.read_managed_ledgers(store, topics.topic_units(store))
    rows = {row["topic"][-1]: (row["low_watermark"], row["problem"]) for row in batch.to_pylist()}
    assert rows == {"a": ("7:10", None), "b": (None, None), "c": ("soon", None)}


@given(st.lists(NEAR, max_size=6), NEAR | st.none(), st.data())
def test_what_is_passed_may_go_in_any_order(kept, own, data):
    properties = {LOW_WATERMARK: str(own)} if own else {}
    for position in kept:
        properties |= low_watermark.kept_by_broker(position)
    passed = low_watermark.passed(properties)
    assert LOW_WATERMARK not in passed
    assert len(properties) - len(passed) <= 2
    gone = data.draw(st.sets(st.sampled_from(passed))) if passed else ()
    left = {name: text for name, text in properties.items() if name not in gone}
    assert low_watermark.of(left) == low_watermark.of(properties)


@given(NEAR | st.none(), st.integers(0, 4), st.integers(0, 4))
def test_the_first_visible_entry_is_the_first_that_is_not_below(watermark, ledger_id, entry_id):
    visible = entry_id >= low_watermark.first_visible(watermark, ledger_id)
    last_of_entry = MessagePosition(ledger_id, entry_id, (1 << 31) - 1)
    assert visible == (watermark is None or last_of_entry >= watermark)
