"""Deliberate faults of deleting what nobody uses, to prove that the laws of activity bite.

Belongs here: one context manager per mutation, by what the product would do. Not here: how many seeds each may take
(``test_mutations.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pyarrow as pa

from pulsar_lifecycle.lifecycle.activity import activity_run, cursor_run, inactive_rules, last_use
from pulsar_lifecycle.lifecycle.activity.activity_tables import UseEvidence
from pulsar_lifecycle.trimming import inactive_run
from tests.simulation.mutations.mutation import Mutation


@contextmanager
def overlook_acknowledgements() -> Iterator[None]:
    """A subscription that moved between two scans counts as one that did not."""
    real = last_use._Use.at_least

    def some(self: Any, where: Any, at: Any, by: UseEvidence) -> None:
        if by is not UseEvidence.ACKNOWLEDGED:
            real(self, where, at, by)

    with patch.object(last_use._Use, "at_least", some):
        yield


def one_scan_is_enough() -> AbstractContextManager[Any]:
    """What is old is inactive, whatever our own history covers."""

    def old(activity: pa.Table, period: int, until: int) -> Any:
        return pa.array([True] * activity.num_rows, pa.bool_())

    return patch.object(inactive_rules, "_inactive", old)


def wait_for_less_than_the_period() -> AbstractContextManager[Any]:
    """A sixth of the period is enough."""
    real = activity_run.choice_of
    return patch.object(activity_run, "choice_of", lambda *_: replace(found := real(*_), period=found.period // 6))


def never_ask_the_broker() -> AbstractContextManager[Any]:
    """Subscriptions go without a question to their broker, whether it has their topic or not."""
    return patch.object(cursor_run._Deletion, "_at_broker", lambda *_: None)


def delete_topics_that_changed() -> AbstractContextManager[Any]:
    """A plan of topics is applied whatever happened to them since."""
    return patch.object(inactive_run._Deletion, "_changed", lambda *_: None)


ACTIVITY: Mapping[str, Mutation] = {
    "overlook that a subscription moved": overlook_acknowledgements,
    "take one scan for a history": one_scan_is_enough,
    "wait for less than the period": wait_for_less_than_the_period,
    "delete subscriptions without asking their broker": never_ask_the_broker,
    "delete inactive topics whatever changed since the plan": delete_topics_that_changed,
}
