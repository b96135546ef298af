"""Scan, plan, apply, scan, delete on Spark executors of their own: ``python on_executors.py SETTINGS``.

Started outside the source tree, which only the driver finds; prints one JSON document as its last line.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa


def where_the_library_is(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs on the executors, sent there by value."""
    import pulsar_lifecycle

    for _ in batches:
        yield pa.RecordBatch.from_pydict({"library": [pulsar_lifecycle.__file__], "folder": [os.getcwd()]})  # noqa: PTH109


def main(path: str) -> dict[str, Any]:
    from tests.integration.pipeline import Pipeline

    pipeline = Pipeline(Path(path), on_spark=True)
    spark = pipeline.where.spark
    found = spark.range(0, 4, 1, 4).mapInArrow(where_the_library_is, "library string, folder string").collect()
    planned = pipeline.confirmed_plan()
    applied = pipeline.apply(pipeline.order(planned))
    outcomes = pipeline.scan_and_delete("executors")
    spark.stop()
    return {
        "libraries": sorted({row["library"] for row in found}),
        "folders": sorted({row["folder"] for row in found}),
        "gaps": [gap.text for gap in planned.summary.gaps],
        "planned": sorted(planned.ids),
        "sent": applied.sent,
        "outcomes": [[o.outcome, o.reason, o.ledgers] for o in outcomes],
    }


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[3]))
    print(json.dumps(main(sys.argv[1])))
