"""Deliberate faults of delete records, to prove that the simulator bites.

Belongs here: one context manager per mutation. Not here: how many seeds each may take (``test_mutations.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from pulsar_lifecycle.delete_records import absence, cut_rules, partition_answers
from pulsar_lifecycle.delete_records.partition import PartitionView
from pulsar_lifecycle.delete_records.request import Absence, Presence
from pulsar_lifecycle.delete_records.times import time_offsets
from pulsar_lifecycle.delete_records.times.publish_times import Span
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.topics import low_watermark
from tests.simulation.mutations.mutation import Mutation


def take_the_ledger_of_the_position() -> AbstractContextManager[Any]:
    """The ledger that a position lies in goes, too."""

    def below(view: Any, mark: Any, *, rolled: bool = False) -> tuple[int, ...]:
        return tuple(e.ledger_id for e in view.extents[:-1] if e.ledger_id <= mark.ledger_id)

    return patch.object(cut_rules, "whole_below", below)


@contextmanager
def move_back() -> Iterator[None]:
    """A topic keeps the position that was asked for last."""
    with ExitStack() as patched:
        for module in (low_watermark, cut_rules):
            patched.enter_context(patch.object(module, "highest", lambda old, asked: asked))
        yield


def answer_early() -> AbstractContextManager[Any]:
    """Nobody looks whether the ledgers are gone."""

    def all_gone(ports: Any, root: str, ledgers: Any, **_: Any) -> list[Absence]:
        return [Absence(one.ledger_id, Presence.GONE) for one in ledgers]

    return patch.object(partition_answers, "wait_until_gone", all_gone)


def answer_unkept() -> AbstractContextManager[Any]:
    """Nobody looks whether the topic keeps the low watermark."""

    def kept(row: Any, asked: Any, info: Any, *_: Any) -> partition_answers._Kept:
        return partition_answers._Kept(asked, listed=frozenset(item.ledger_id for item in info.ledgers))

    return patch.object(partition_answers, "_kept_by", kept)


def answer_without_bookies() -> AbstractContextManager[Any]:
    """Nobody waits until the bookies have collected."""
    return patch.object(absence, "_on_bookies", lambda *_: {})


def forget_earlier_runs() -> AbstractContextManager[Any]:
    """No bookie is asked of what earlier runs deleted."""
    before = partition_answers.left_before
    return patch.object(partition_answers, "left_before", lambda *a, **k: replace(before(*a, **k), journalled={}))


def move_to_the_end() -> AbstractContextManager[Any]:
    """Subscriptions are moved past all that there is."""

    def last(view: PartitionView, position: Any) -> Position:
        return Position(view.extents[-1].ledger_id, view.extents[-1].entries - 1)

    return patch.object(PartitionView, "last_below", last)


def believe_the_search() -> AbstractContextManager[Any]:
    """A time is where a search over times finds it, whatever lies below."""
    answer = time_offsets._answer

    def searched(question: Any, place: Any, found: Any) -> Any:
        blind = replace(found, first_newer=None, goes_back=False) if isinstance(found, Span) else found
        return answer(question, place, blind)

    return patch.object(time_offsets, "_answer", searched)


def answer_for_one_another() -> AbstractContextManager[Any]:
    """Each partition of a request is answered with what became of the next one."""
    answers = partition_answers.answers

    def turned(*given: Any, **more: Any) -> dict[Any, Any]:
        found = answers(*given, **more)
        results = list(found.values())
        return dict(zip(found, results[1:] + results[:1], strict=True))

    return patch.object(partition_answers, "answers", turned)


def go_by_the_name() -> AbstractContextManager[Any]:
    """A topic is the one that was planned if it has its name."""
    return patch.object(cut_rules, "replaced", lambda *_: None)


def answer_without_buckets() -> AbstractContextManager[Any]:
    """No bucket is asked for the objects of offloaded copies."""
    return patch.object(absence, "_in_buckets", lambda *_: {})


def forget_the_ledger_of_the_position() -> AbstractContextManager[Any]:
    """Nobody looks for the ledger that the low watermark lies in, once it left the list."""
    ledgers = partition_answers._ledgers

    def others(row: Any, kept: Any, earlier: Any) -> Any:
        return {i: one for i, one in ledgers(row, kept, earlier).items() if i != kept.left}

    return patch.object(partition_answers, "_ledgers", others)


RECORDS: Mapping[str, Mutation] = {
    "take the ledger that a position lies in": take_the_ledger_of_the_position,
    "move low watermarks back": move_back,
    "answer before the ledgers are gone": answer_early,
    "answer whatever low watermark is kept": answer_unkept,
    "answer before the bookies have collected": answer_without_bookies,
    "ask no bookie of what earlier runs deleted": forget_earlier_runs,
    "move subscriptions past the low watermark": move_to_the_end,
    "believe a search over publish times": believe_the_search,
    "answer partitions for one another": answer_for_one_another,
    "answer whatever topic has the name by now": go_by_the_name,
}

OFFLOADED_RECORDS: Mapping[str, Mutation] = {
    "answer before the objects are gone": answer_without_buckets,
    "answer before the ledger of the low watermark is gone": forget_the_ledger_of_the_position,
}
