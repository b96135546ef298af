"""New ledger ids from the counter that every client of a BookKeeper cluster draws from.

Source: PulsarLedgerIdGenerator, pulsar-metadata 4.0.7. Ids of 31 bits come from ``idgen/ID-``. Once they are used up,
``idgen-long`` is there, and an id is the number of its newest ``HOB-`` child and a counter below it.
"""

from __future__ import annotations

import contextlib

from pulsar_lifecycle.errors import Conflict, NotFound, StoreError
from pulsar_lifecycle.formats.ledger_path import MAX_SHORT
from pulsar_lifecycle.ports import Children, MetadataStore, Unread

_HIGH = "HOB-"
_LOW_BITS = 32
_MAX_LOW = (1 << 31) - 1  # ZooKeeper's counter is an int


def next_ledger_id(store: MetadataStore, root: str) -> int:
    """An id that nobody else gets. Raises OutcomeUnknown if the answer got lost: then that id is never used."""
    (long,) = store.children([f"{root}/idgen-long"])
    if isinstance(long, Unread):
        raise StoreError(f"{root}/idgen-long: {long.reason}")
    if long is None:
        short = _sequence(store, f"{root}/idgen")
        if 0 <= short < MAX_SHORT:
            return short
        long = Children("", (), 0)
    highs = [int(name.removeprefix(_HIGH)) for name in long.names if name.startswith(_HIGH)]
    high = max(highs, default=1)
    low = _sequence(store, f"{root}/idgen-long/{_HIGH}{high:010d}")
    if not 0 <= low <= _MAX_LOW:
        high += 1
        low = _sequence(store, f"{root}/idgen-long/{_HIGH}{high:010d}")
    return high << _LOW_BITS | low


def _sequence(store: MetadataStore, parent: str) -> int:
    try:
        return store.sequence(f"{parent}/ID-")
    except NotFound:
        with contextlib.suppress(Conflict):  # another client made it meanwhile
            store.create(parent, parents=True)
        return store.sequence(f"{parent}/ID-")
