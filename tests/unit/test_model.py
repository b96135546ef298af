"""Names and positions, as org.apache.pulsar.common.naming.TopicName has them."""

from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.model import Namespace, Position, Topic, cursor_name, cursor_nodes, decode_name, encode_name

UNICODE = st.text(st.characters(exclude_categories=["Cs"]), min_size=1)
WORD = st.from_regex(r"[-=:.\w]{1,12}", fullmatch=True)
V2_LOCAL = UNICODE.filter(lambda text: "/" not in text)
NAMESPACES = st.builds(Namespace, WORD, WORD, st.none() | WORD)
TOPICS = st.builds(
    Topic, st.builds(Namespace, WORD, WORD), V2_LOCAL, st.sampled_from(["persistent", "non-persistent"])
) | st.builds(Topic, st.builds(Namespace, WORD, WORD, WORD), UNICODE)


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("plain-_.*9", "plain-_.*9"),
        ("a b", "a+b"),
        ("~!'(+/:", "%7E%21%27%28%2B%2F%3A"),
        ("ü€", "%C3%BC%E2%82%AC"),
    ],
)
def test_names_as_urlencoder_writes_them(name, encoded):
    assert encode_name(name) == encoded
    assert decode_name(encoded) == name


@pytest.mark.parametrize("encoded", ["", "a b", "~", "%7e", "%FF", "%41", "a/b", "%zz"])
def test_names_that_encode_to_something_else_are_refused(encoded):
    with pytest.raises(CorruptFormat):
        decode_name(encoded)


def test_broken_text_has_no_name():
    with pytest.raises(CorruptFormat):
        encode_name("a\ud800")


@given(UNICODE)
def test_names_round_trip(name):
    assert decode_name(encode_name(name)) == name
    assert encode_name(name).isascii()


@given(TOPICS)
def test_topics_round_trip_in_both_spellings(topic):
    assert Topic.parse(str(topic)) == topic
    assert Topic.from_managed_ledger(topic.managed_ledger) == topic
    assert pickle.loads(pickle.dumps(topic)) == topic


@given(NAMESPACES)
def test_namespaces_round_trip(namespace):
    assert Namespace.parse(str(namespace)) == namespace


@given(st.text())
def test_nothing_but_corrupt_format_escapes(text):
    for parse in (Topic.parse, Topic.from_managed_ledger, Namespace.parse, decode_name):
        try:
            parse(text)
        except CorruptFormat:
            continue


def test_v1_names():
    topic = Topic.parse("persistent://t/us-west/ns/a/b")
    assert (topic.namespace, topic.local) == (Namespace("t", "ns", "us-west"), "a/b")
    assert topic.managed_ledger == "t/us-west/ns/persistent/a%2Fb"
    assert topic.schema_id == "t/ns/a%2Fb"


@pytest.mark.parametrize(
    "text",
    [
        "t/ns/x",
        "persistent://t/ns",
        "persistent://t/ns/",
        "persistent:///ns/x",
        "other://t/ns/x",
        "persistent://t//ns/x",
    ],
)
def test_what_is_no_topic(text):
    with pytest.raises(CorruptFormat):
        Topic.parse(text)


@pytest.mark.parametrize(
    "name", ["t/ns/x", "t/ns/other/x", "t/c/ns/persistent", "t/ns/persistent/a b", "t/ns/persistent/"]
)
def test_what_is_no_managed_ledger(name):
    with pytest.raises(CorruptFormat):
        Topic.from_managed_ledger(name)


@pytest.mark.parametrize(
    ("local", "partition", "parent"),
    [
        ("x", None, "x"),
        ("x-partition-0", 0, "x"),
        ("x-partition-12", 12, "x"),
        ("x-partition-2147483647", 2147483647, "x"),
        ("x-partition-2147483648", None, "x-partition-2147483648"),
        ("x-partition-01", None, "x-partition-01"),
        ("x-partition--1", None, "x-partition--1"),
        ("x-partition-", None, "x-partition-"),
        ("x-partition-1-DLQ", None, "x-partition-1-DLQ"),
        ("x-partition-1\n", None, "x-partition-1\n"),
        ("x-partition-3-partition-1", 1, "x-partition-3"),
    ],
)
def test_partitions(local, partition, parent):
    topic = Topic(Namespace("t", "ns"), local)
    assert topic.partition == partition
    assert topic.partitioned_parent == Topic(Namespace("t", "ns"), parent)
    assert topic.schema_id == f"t/ns/{encode_name(parent)}"


def test_positions_order_and_print():
    assert Position(1, 9) < Position(2, -1)
    assert str(Position(2, -1)) == "2:-1"


@pytest.mark.parametrize(
    ("encoded", "name"),
    [
        ("a%2Bb+c", "a+b c"),
        ("__compaction", "__compaction"),
        ("pulsar.repl.eu:1", "pulsar.repl.eu:1"),
        ("pulsar.repl.eu%3A1", "pulsar.repl.eu:1"),
        ("pulsar.repl.us=2", "pulsar.repl.us=2"),
        ("%zz", "%zz"),
        ("%ff", "%ff"),
    ],
)
def test_cursors_are_shown_by_a_name_that_leads_back_to_their_z_node(encoded, name):
    assert cursor_name(encoded) == name
    assert encoded in cursor_nodes(name)


@given(st.text(st.characters(exclude_characters="/", exclude_categories=["Cs"]), min_size=1))
def test_every_cursor_z_node_is_found_by_its_shown_name(encoded):
    nodes = cursor_nodes(cursor_name(encoded))
    assert encoded in nodes
    assert len(nodes) == len(set(nodes))
    assert {cursor_name(node) for node in nodes} == {cursor_name(encoded)}
