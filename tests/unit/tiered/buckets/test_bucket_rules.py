"""What the objects of the buckets are: pairing, what names them, where to look, and the plan as a value."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.copies import object_pairs
from pulsar_lifecycle.copies.object_pairs import ObjectKind, ObjectPair, StoredObject, UnknownObject
from pulsar_lifecycle.formats.deletion_message import LedgerType
from pulsar_lifecycle.formats.offload_object import data_key, index_key, uuid_of
from pulsar_lifecycle.tiered.buckets import bucket_rules
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.tables import OBJECTS

ONE, TWO, THREE = UUID(int=1), UUID(int=2 << 64), UUID(int=3)


@given(
    st.lists(st.tuples(st.sampled_from([ONE, TWO, THREE]), st.sampled_from([1, 12, 123]), st.booleans()), unique=True)
)
def test_both_objects_of_a_copy_meet_in_a_sorted_listing(drawn: list[tuple[UUID, int, bool]]) -> None:
    keys = sorted((data_key if data else index_key)(uuid, ledger) for uuid, ledger, data in drawn)
    unknown = sorted(f"{key}-z" for key in keys)
    listed = [(key, StoredObject(len(key), 5)) for key in sorted([*keys, *unknown])]
    found = list(object_pairs.paired("b", listed))
    copies = [one for one in found if isinstance(one, ObjectPair)]
    assert {(one.uuid, one.ledger_id) for one in copies} == {(uuid, ledger) for uuid, ledger, _ in drawn}
    assert len(copies) == len({(one.uuid, one.ledger_id) for one in copies})
    assert sorted(key for one in copies for key in one.keys.values()) == keys
    assert sorted(one.key for one in found if isinstance(one, UnknownObject)) == unknown


def test_the_prefixes_of_a_uuid_and_the_gaps_between_them() -> None:
    assert bucket_rules.prefixes(1) == list("0123456789abcdef")
    assert len(bucket_rules.prefixes(2)) == 256
    assert [(gap.behind, gap.before) for gap in bucket_rules.gaps(bucket_rules.prefixes(1))] == [
        ("", "0"),
        ("9", "a"),
        ("f", ""),
    ]
    assert len(bucket_rules.gaps(bucket_rules.prefixes(2))) == 33


@given(st.text(min_size=1, max_size=4) | st.text("0159:/@`afg-~é", min_size=1, max_size=4), st.sampled_from([1, 2]))
def test_every_key_is_looked_for_in_exactly_one_place(key: str, digits: int) -> None:
    prefixes = bucket_rules.prefixes(digits)
    below = sum(key.startswith(prefix) for prefix in prefixes)
    between = sum(key in gap and key > gap.after for gap in bucket_rules.gaps(prefixes))
    assert below + between == 1


def ledger(
    ledger_id: int, uuid: UUID | None = None, *, complete: bool = True, bucket: str | None = None
) -> dict[str, Any]:
    blank = dict.fromkeys(field.name for field in tables.LEDGER_INFO)
    known = {"ledger_id": ledger_id, "entries": 3, "size": 30, "offload_bucket": bucket}
    return blank | known | {"offload_uuid": uuid and str(uuid), "offload_complete": complete if uuid else None}


def test_what_topics_name_complete_or_not_and_segments_too() -> None:
    blank = dict.fromkeys(tables.MANAGED_LEDGERS.names)
    rows = [
        blank
        | {
            "topic": "t",
            "path": "/t",
            "ledgers": [ledger(1, ONE, bucket="b"), ledger(2), ledger(3, TWO, complete=False)],
        },
        blank | {"topic": "s", "path": "/s", "ledgers": [ledger(4)]},
    ]
    rows[0]["offload_uuids"] = [str(ONE), str(TWO)]
    rows[1]["offload_uuids"] = [str(THREE)]
    found = object_pairs.offload_references(pa.RecordBatch.from_pylist(rows, tables.MANAGED_LEDGERS), "other")
    named = object_pairs.by_uuid(found.to_pylist())
    assert {
        uuid: [
            (one.ledger_id, one.complete, one.entries, one.size, one.bucket, one.root, one.topic, one.path)
            for one in some
        ]
        for uuid, some in named.items()
    } == {
        ONE: [(1, True, 3, 30, "b", "other", "t", "/t")],
        TWO: [(3, False, 3, 30, None, "other", "t", "/t")],
        THREE: [(None, False, None, None, None, "other", "s", "/s")],
    }
    assert named[ONE][0].smallest_data == 128 + 3 * 12 + 30
    assert object_pairs.offload_references(pa.RecordBatch.from_pylist([], tables.MANAGED_LEDGERS), "").num_rows == 0


def planned(uuid: UUID) -> dict[str, Any]:
    copy = ObjectPair("tiered", uuid, 7, StoredObject(100, 1), StoredObject(60, 2))
    return copy.row(ObjectKind.ORPHAN_PAIR, bucket_rules.NOTHING_NAMES_IT, "persistent://a/b/c", "a/b", "delete")


def test_a_message_names_the_attempt_and_its_bucket() -> None:
    uuid = uuid4()
    (intent,) = bucket_rules.intents(pa.Table.from_pylist([planned(uuid)], OBJECTS), "plan", 5)
    assert (intent.ledger_id, intent.ledger_type, intent.plan_id) == (7, LedgerType.OFFLOAD_LEDGER, "plan")
    assert intent.offload_context is not None
    assert uuid_of(intent.offload_context.msb, intent.offload_context.lsb) == uuid
    assert (intent.topic_name, intent.offload_context.driver_name) == ("persistent://a/b/c", "aws-s3")
    assert intent.offload_context.metadata == {"bucket": "tiered"}


SUMMARY = {
    "plan_id": "p",
    "cluster": "c",
    "fingerprint": "f",
    "epoch_id": "e",
    "confirmed_by": "d",
    "created_at": 1,
    "actionable": True,
}


@pytest.mark.parametrize("column", [name for name in OBJECTS.names if name != "ledger_id"])
def test_the_digest_covers_every_column(column: str) -> None:
    row = planned(ONE)
    other = row | {column: 9 if pa.types.is_integer(OBJECTS.field(column).type) else "another"}
    one, two = (bucket_rules.digest(pa.Table.from_pylist([some], OBJECTS), SUMMARY) for some in (row, other))
    assert one != two


def test_the_digest_covers_the_facts_and_the_order_of_equal_ledgers() -> None:
    rows = pa.Table.from_pylist([planned(ONE), planned(TWO)], OBJECTS)
    facts = {bucket_rules.digest(rows, SUMMARY | {name: "x"}) for name in SUMMARY}
    assert len(facts | {bucket_rules.digest(rows, SUMMARY)}) == len(SUMMARY) + 1
    assert bucket_rules.digest(rows, SUMMARY) == bucket_rules.digest(pa.table(rows.to_pydict(), OBJECTS), SUMMARY)
