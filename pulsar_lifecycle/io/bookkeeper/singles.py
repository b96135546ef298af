"""One entry each of many ledgers: all asked for at once, each of one replica; where that will not do, of the others.

Belongs here: the common case, with little work for each entry. Not here: who else is asked, and what it means if none
has the entry (``stream.py``), which entry is a ledger's last (``answers.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats import striping
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata
from pulsar_lifecycle.io.bookkeeper.answers import verified_run
from pulsar_lifecycle.io.bookkeeper.connection import BookieCode, BookieRequest, BookieResponse
from pulsar_lifecycle.io.bookkeeper.pool import BookiePool
from pulsar_lifecycle.io.bookkeeper.stream import LedgerStream
from pulsar_lifecycle.ports import Entry

Wanted = tuple[int, LedgerMetadata, int]
"""Ledger id, its metadata, entry id."""


def read_each(bookies: BookiePool, wanted: Sequence[Wanted]) -> list[Entry | LifecycleError]:
    """The entries in order, verified; in the place of one that cannot be read, what iterating its stream raises."""
    found: list[Entry | LifecycleError | None] = [None] * len(wanted)
    due = 0

    def take(at: int, answer: BookieResponse | LifecycleError) -> None:
        nonlocal due
        due -= 1
        if isinstance(answer, BookieResponse) and answer.code == BookieCode.OK:
            ledger_id, metadata, entry_id = wanted[at]
            run = verified_run(answer, metadata, ledger_id, entry_id, 1)
            if run.payloads:
                found[at] = Entry(ledger_id, entry_id, run.payloads[0])

    for at, (ledger_id, metadata, entry_id) in enumerate(wanted):
        replicas = striping.replicas(metadata, entry_id)
        if replicas:
            due += 1
            # By the ledger's id: entries of the same number are not all asked of the same bookie.
            bookies.ask(replicas[ledger_id % len(replicas)], BookieRequest(ledger_id, entry_id, partial(take, at)))
    while due:
        bookies.wait()
    streams = {
        at: LedgerStream(bookies, ledger_id, metadata, entry_id, entry_id)
        for at, (ledger_id, metadata, entry_id) in enumerate(wanted)
        if found[at] is None
    }
    for stream in streams.values():
        stream.start()  # all of them before the first is waited for
    return [_only(wanted[at][0], streams[at]) if entry is None else entry for at, entry in enumerate(found)]


def _only(ledger_id: int, stream: LedgerStream) -> Entry | LifecycleError:
    try:
        (batch,) = stream
    except LifecycleError as error:
        return error
    return Entry(ledger_id, batch.first, batch.payloads[0])
