"""What equal input gives is made once: half of a schedule's scans read z-nodes that did not change since the last one.

Belongs here: skipping a conversion whose result is known because all that goes into it is equal. Reading and decoding
z-nodes is never skipped, nor any decision, so every fault and every mutation of the engine comes before or after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar
from unittest.mock import patch

import pyarrow as pa

from pulsar_lifecycle.metastore import walk

P = ParamSpec("P")
T = TypeVar("T")

KEPT = 64


@contextmanager
def shared_batches() -> Iterator[None]:
    """Within it, rows equal to the last ones of the same table and first path give the same batch."""
    make = walk.Rows.batch
    known: dict[tuple[int, str], tuple[Any, pa.RecordBatch]] = {}

    def batch(self: walk.Rows, wanted: pa.Schema, columns: Mapping[str, Any]) -> pa.RecordBatch:
        key = id(wanted), self.nodes[0][walk.PATH]
        given = wanted, self.nodes, self.troubles, self.listed, columns
        before = known.get(key)
        if before is not None and before[0] == given:
            return before[1]
        made = make(self, wanted, columns)
        known[key] = given, made
        return made

    with patch.object(walk.Rows, "batch", batch):
        yield


def shared(make: Callable[P, T]) -> Callable[P, T]:
    """``make``, which gives the same of the same Arrow tables and names (nothing changes them), done once of late."""
    known: dict[tuple[Any, ...], tuple[Any, T]] = {}

    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> T:
        key = tuple(one if isinstance(one, str) else id(one) for one in args)
        found = known.get(key)
        if found is None:
            if len(known) == KEPT:
                del known[next(iter(known))]
            known[key] = found = args, make(*args, **kwargs)  # keeps args, whose ids no other object then has
        return found[1]

    return made
