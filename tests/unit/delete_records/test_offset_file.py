"""The offset file: what is read of it, and what is wrong with it, by line and field."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestration.delete_records import RecordsOffset
from pulsar_lifecycle.delete_records.offset_file import RequestedOffset, parse_offset_file
from pulsar_lifecycle.delete_records.request import END, Timestamp, parse_offset
from pulsar_lifecycle.errors import UsageError
from pulsar_lifecycle.model import MessagePosition, Topic

TOPIC = Topic.parse("persistent://acme/orders/placed")


def entry(**fields: object) -> str:
    return json.dumps({"topic": str(TOPIC), "offset": -1} | fields)


def file(*entries: str, version: str = "1") -> str:
    return '{"partitions": [\n' + ",\n".join(entries) + f'],\n"version": {version}}}'


def test_a_file_of_many_partitions() -> None:
    text = file(*(entry(partition=number, offset="5:3") for number in range(30_000)))
    assert parse_offset_file(text, "f.json")[-1].where == "f.json: line 30001"


def test_a_file_of_kafkas_shape() -> None:
    text = file(
        entry(partition=0, offset="5:3"),
        entry(partition=1, offset="5:3:2"),
        entry(topic="persistent://acme/orders/other", offset="-1"),
        entry(topic="persistent://acme/orders/third", offset="@1795514400000"),
    )
    assert parse_offset_file(text, "f.json") == [
        RequestedOffset(TOPIC, 0, MessagePosition(5, 3), "f.json: line 2"),
        RequestedOffset(TOPIC, 1, MessagePosition(5, 3, 2), "f.json: line 3"),
        RequestedOffset(Topic.parse("persistent://acme/orders/other"), None, END, "f.json: line 4"),
        RequestedOffset(
            Topic.parse("persistent://acme/orders/third"), None, Timestamp(1795514400000), "f.json: line 5"
        ),
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "line 1: no JSON"),
        ('{"partitions": [\n{,', "line 2: no JSON"),
        ("[]", "line 1: the file: expected an object"),
        ("[" * 100_000, "nested too deeply"),
        ("{}", "line 1: partitions: missing"),
        ('{"partitions": []}', "line 1: partitions: expected a list with at least one entry"),
        (file(entry(), version="2"), "line 3: version: expected 1, found 2"),
        (file(entry(), "7"), "line 3: partitions[1]: expected an object"),
        (file('{"topic": "x"}'), "line 2: partitions[0].offset: missing"),
        (file('{"offset": -1}'), "line 2: partitions[0].topic: missing"),
        (file(entry(topic="placed")), "line 2: partitions[0].topic: topic name"),
        (file(entry(topic=7)), "line 2: partitions[0].topic: expected a name, found 7"),
        (file(entry(topic="non-persistent://a/b/c")), "stores nothing"),
        (file(entry(topic="persistent://a/b/c\0d")), "line 2: partitions[0].topic: topic name: 'c\\x00d' is none that"),
        (file(entry(topic="persistent://a/b/..")), "line 2: partitions[0].topic: topic name: '..' is none that"),
        (file(entry(topic="persistent://a/b\0/c")), "'b\\x00' is no name of a tenant or a namespace"),
        (file(entry(topic="persistent://a b/c/d")), "'a b' is no name of a tenant or a namespace"),
        (file(entry(topic="persistent://a/../d")), "'..' is no name of a tenant or a namespace"),
        (file(entry(partition=-1)), "line 2: partitions[0].partition: expected a number from 0 on, found -1"),
        (file(entry(partition=True)), "line 2: partitions[0].partition"),
        (file(entry(topic=f"{TOPIC}-partition-3", partition=0)), "is a partition already"),
        (file(entry(offset=-2)), "line 2: partitions[0].offset: expected LEDGER:ENTRY"),
        (file(entry(offset="5:0:00")), "line 2: partitions[0].offset: expected LEDGER:ENTRY"),
        (file(entry(offset="5")), "line 2: partitions[0].offset: expected LEDGER:ENTRY"),
        (file(entry(offset=1.5)), "line 2: partitions[0].offset"),
        (file(entry(offset="@2026-11-24T10:00:00")), "a time with its zone"),
        (file(entry(ofset=3)), "line 2: partitions[0].ofset: unknown"),
        (file('{\n"topic": "persistent://a/b/c",\n"offset": "x"\n}'), "line 4: partitions[0].offset"),
        (file('{"topic": "persistent://a/b/c", "offset": -1, "offset": -1}'), "partitions[0].offset: there twice"),
        (file(entry(), entry()), "line 3: partitions[1]: persistent://acme/orders/placed is asked for already"),
        (file(entry().replace("-1", "9" * 5000)), "no file of offsets"),
        (file(entry(offset="9" * 5000 + ":0")), "line 2: partitions[0].offset: expected LEDGER:ENTRY"),
        (file(entry(offset="@" + "9" * 5000)), "line 2: partitions[0].offset: expected @ and ms"),
    ],
)
def test_what_is_wrong_is_named_by_line_and_field(text: str, said: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_offset_file(text, "f.json")
    assert str(error.value).startswith("f.json: ")
    assert said in str(error.value)


@given(st.text() | st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists).map(json.dumps))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        parse_offset_file(text)
    except UsageError:
        return
    raise AssertionError("it has no entries")


@given(
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 63) - 1),
    st.integers(0, (1 << 31) - 1),
)
def test_a_position_is_read_as_it_is_written(ledger: int, entry: int, batch: int) -> None:
    position = MessagePosition(ledger, entry, batch)
    assert parse_offset(str(position)) == parse_offset(f"{ledger}:{entry}:{batch}") == position


@given(st.datetimes(timezones=st.timezones()).filter(lambda at: at.year > 1971))
def test_a_time_is_read_in_any_zone(at: object) -> None:
    offset = parse_offset(f"@{at.isoformat()}")  # type: ignore[attr-defined]
    assert isinstance(offset, Timestamp)
    assert abs(offset.ms - at.timestamp() * 1000) <= 1  # type: ignore[attr-defined]
    assert parse_offset(str(offset)) == offset


def test_a_time_within_a_millisecond_leaves_what_was_published_in_that_millisecond() -> None:
    at = parse_offset("@2026-11-24T10:00:00.123Z")
    assert [parse_offset(f"@2026-11-24T10:00:00.123{rest}Z") for rest in ("500", "999")] == [at, at]


@pytest.mark.parametrize(
    ("topic", "offset", "said"),
    [
        ("c", "-1", "partitions[0].topic: topic name"),
        ("non-persistent://a/b/c", "-1", "partitions[0].topic: non-persistent://a/b/c stores nothing"),
        ("persistent://a/b/c", "x", "partitions[0].offset: expected LEDGER:ENTRY"),
    ],
)
def test_a_jobs_configuration_names_the_field(topic: str, offset: str, said: str) -> None:
    with pytest.raises(UsageError) as refused:
        RecordsOffset(topic=topic, offset=offset).asked(0)
    assert said in str(refused.value)
