"""What a plan's digest is taken over: each row as ``json.dumps`` writes it."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from pulsar_lifecycle.values.plans import canonical

SCHEMA = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("b", pa.bool_()),
        pa.field("a", pa.string()),
        pa.field("names", pa.list_(pa.string())),
        pa.field("share", pa.float64()),
    ]
)
TEXTS = st.none() | st.text(max_size=5)
ROWS = st.fixed_dictionaries(
    {
        "ledger_id": st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
        "b": st.none() | st.booleans(),
        "a": TEXTS,
        "names": st.none() | st.lists(TEXTS, max_size=3),
        "share": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    }
)


@settings(max_examples=500, deadline=None)
@given(st.lists(ROWS, min_size=1, max_size=5))
def test_rows_are_written_as_json_writes_them(rows: list[dict[str, Any]]) -> None:
    expected = "".join(json.dumps(row, sort_keys=True, ensure_ascii=False) + "\n" for row in rows)
    (batch,) = pa.Table.from_pylist(rows, SCHEMA).combine_chunks().to_batches()
    assert canonical(batch) == expected.encode()
    behind = batch.slice(len(rows) - 1)
    assert canonical(behind) == (json.dumps(rows[-1], sort_keys=True, ensure_ascii=False) + "\n").encode()
