"""Asking every bookie of a deleted ledger whether it has any entry of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pulsar_lifecycle.formats.ledger_metadata import Segment
from pulsar_lifecycle.io.bookkeeper import traces
from pulsar_lifecycle.ports import Traces
from tests.kit.scenes.bookies import LEDGER, TOO_MANY_REQUESTS, ThreeBookies


@pytest.mark.parametrize(("ensemble", "write"), [(3, 3), (3, 2), (3, 1), (1, 1)])
def test_bookies_that_have_entries_hold_and_others_do_not(cluster: ThreeBookies, ensemble: int, write: int) -> None:
    metadata = cluster.metadata(ensemble, write, 1, last=99)
    cluster.fill(metadata, 100)
    bookies = tuple(cluster.ids[:ensemble])

    assert cluster.reader.find_traces([(LEDGER, metadata), (8, metadata)]) == [
        Traces(bookies, bookies, {}),
        Traces(bookies, (), {}),
    ]


def test_one_entry_in_the_middle_that_one_bookie_kept_is_a_trace(cluster: ThreeBookies) -> None:
    metadata = cluster.metadata(3, 2, 2, last=99)
    cluster.bookies[1].add(LEDGER, 50, b"left behind")

    (found,) = cluster.reader.find_traces([(LEDGER, metadata)])

    assert found.holding == ("bookie-1",)


def test_the_bookies_of_every_segment_are_asked(cluster: ThreeBookies) -> None:
    a, b, c = cluster.ids
    metadata = replace(
        cluster.metadata(1, 1, 1, last=9), segments=tuple(Segment(i * 4, (x,)) for i, x in enumerate((a, b, c)))
    )
    cluster.bookies[0].add(LEDGER, 0, b"of the first segment")

    (found,) = cluster.reader.find_traces([(LEDGER, metadata)])

    assert found == Traces((a, b, c), (a,), {})
    assert [sorted({e for _, _, e in bookie.requests}) for bookie in cluster.bookies] == [[-1], [-1, 4, 7], [-1, 8, 9]]


@pytest.mark.parametrize("last", [None, -1])
def test_an_open_and_an_empty_ledger_are_asked_for_their_last_entry(cluster: ThreeBookies, last: int | None) -> None:
    metadata = cluster.metadata(2, 2, 2, last=last)

    assert cluster.reader.find_traces([(LEDGER, metadata)]) == [Traces(("bookie-0", "bookie-1"), (), {})]


@pytest.mark.parametrize("trouble", ["stopped", "refuses", "not registered"])
def test_a_bookie_that_does_not_answer_is_unanswered_and_never_gone(cluster: ThreeBookies, trouble: str) -> None:
    if trouble == "refuses":
        cluster.bookies[0].code = TOO_MANY_REQUESTS
    elif trouble == "stopped":
        cluster.bookies[0].stop()
    else:
        cluster.ids[0] = "lost"
    metadata = cluster.metadata(2, 2, 2, last=29)

    found = cluster.reader.find_traces([(LEDGER, metadata), (8, metadata)])

    assert [(one.holding, set(one.unanswered)) for one in found] == [((), {cluster.ids[0]})] * 2


def test_any_number_of_ledgers_are_asked_for_in_portions(
    cluster: ThreeBookies, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traces, "AT_ONCE", 7)
    metadata = cluster.metadata(2, 2, 2, last=4)
    cluster.fill(metadata, 5, ledger_id=33)

    found = cluster.reader.find_traces([(ledger_id, metadata) for ledger_id in range(50)])

    assert [i for i, one in enumerate(found) if one.holding or one.unanswered] == [33]
