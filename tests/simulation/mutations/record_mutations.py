"""Deliberate faults of delete records, to prove that the simulator bites.

Belongs here: one context manager per mutation. Not here: how many seeds each may take (``test_mutations.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

from pulsar_lifecycle.delete_records import cut_rules, partition_answers
from pulsar_lifecycle.delete_records.absence import Absence, Presence
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
    return patch.object(partition_answers, "_kept_by", lambda row, asked, *_: partition_answers._Kept(asked))


RECORDS: Mapping[str, Mutation] = {
    "take the ledger that a position lies in": take_the_ledger_of_the_position,
    "move low watermarks back": move_back,
    "answer before the ledgers are gone": answer_early,
    "answer whatever low watermark is kept": answer_unkept,
}
