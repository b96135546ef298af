"""What closing an epoch makes of references that could not be read."""

from __future__ import annotations

import pyarrow as pa

from pulsar_lifecycle.plan.tables import REFERENCES
from pulsar_lifecycle.spark.findings import unread_references


def test_one_unread_reference_shows_among_thousands_that_are_gone() -> None:
    """Only so many errors are kept; what is gone is no gap and must not crowd out what is."""
    gone = [
        {"kind": "R3", "owner": f"t/n/persistent/{n}", "error": f"gone: /topic-{n}: no z-node"} for n in range(3000)
    ]
    unread = [{"kind": "R5", "owner": "t/n/x", "error": "unread: /one: no answer"}] * 2
    batch = pa.RecordBatch.from_pylist([*gone, *unread], REFERENCES)
    errors, owners = unread_references([batch])
    assert errors == ["unread: /one: no answer"]
    assert owners == {(row["kind"], row["owner"]) for row in gone}
