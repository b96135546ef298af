"""Whether a copy can be deleted: the rule over a scan's tables says what the rule on one ledger says."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from pyroaring import BitMap64

from pulsar_lifecycle.copies.listed_ledgers import COPY_COLUMNS, copies_of, kept_copies, kept_copy
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, OffloadContext, OffloadSegment
from pulsar_lifecycle.metastore.topics import ledger_row
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.findings import Context

TOPIC = Topic.parse("persistent://acme/orders/a")
SEGMENT = OffloadSegment(UUID(int=1), True, 1, 1, 1, "aws-s3", {})
OFFLOADS = st.none() | st.builds(
    OffloadContext,
    uuid=st.sampled_from([None, UUID(int=7)]),
    complete=st.booleans(),
    bookkeeper_deleted=st.booleans(),
    timestamp=st.just(1),
    driver_name=st.sampled_from([None, "", "aws-s3", "S3", "filesystem"]),
    driver_metadata=st.sampled_from([{}, {"bucket": "b"}, {"bucket": "other"}]),
    segments=st.sampled_from([(), (SEGMENT,)]),
)
ROWS = st.none() | st.fixed_dictionaries(
    {
        "application": st.sampled_from(["pulsar", None]),
        "component": st.sampled_from(["managed-ledger", "schema", None]),
        "managed_ledger": st.sampled_from([TOPIC.managed_ledger, "acme/orders/persistent/b", None]),
        "cursor": st.sampled_from([None, "", "s"]),
        "state": st.sampled_from(["CLOSED", "OPEN", None]),
        "problem": st.sampled_from([None, "unread"]),
    }
)


@settings(max_examples=1000, deadline=None)
@given(st.lists(st.tuples(OFFLOADS, ROWS), max_size=5), st.frozensets(st.integers(0, 4)), st.booleans())
def test_tables_and_values_agree(drawn: list[Any], under_replicated: frozenset[int], store: bool) -> None:
    context = Context(
        now=0,
        grace=0,
        namespaces=frozenset(),
        under_replicated=BitMap64(under_replicated),
        offload_buckets=frozenset({"b"} if store else ()),
    )
    infos = [LedgerInfo(i, 1, 10, 1, offload) for i, (offload, _) in enumerate(drawn)]
    rows = {i: row and {**row, "ledger_id": i, "error": ""} for i, (_, row) in enumerate(drawn)}
    copies = copies_of(rows, TOPIC, context)
    expected = {one.ledger_id for one in infos if kept_copy(one, copies[one.ledger_id], context)}
    schema = pa.schema([tables.MANAGED_LEDGERS.field(name) for name in ("managed_ledger", "ledgers")])
    listed = pa.table([[TOPIC.managed_ledger], [[ledger_row(one) for one in infos]]], schema=schema)
    known = pa.schema([tables.BOOKKEEPER_LEDGERS.field(name) for name in COPY_COLUMNS])
    bookkeeper = pa.Table.from_pylist([row for row in rows.values() if row], known)
    found = kept_copies(listed, pa.array(range(len(infos)), pa.int64()), bookkeeper, context)
    assert set(found.to_pylist()) == expected
