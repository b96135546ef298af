"""Errors as what values keep of them: a text, which is never empty."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.errors import CorruptFormat, Failed, NotFound, RefusedBy, Unavailable
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.metastore.load_state import Brokers, load_state
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.topic_load import LoadReason


@pytest.mark.parametrize("error", [Unavailable(), Failed(""), NotFound(""), RefusedBy(Code.UNREAD, "")])
def test_an_error_without_a_message_has_its_name(error: Exception) -> None:
    assert str(error) == type(error).__name__


def test_an_error_with_a_message_has_that_alone() -> None:
    assert str(Unavailable("no answer")) == "no answer"
    assert str(CorruptFormat("entry", 3, "a digest")) == "entry: at byte 3: expected a digest"


def test_brokers_that_fail_without_a_word_are_not_taken_for_ones_that_list_nothing() -> None:
    unanswered = Brokers.failed(Unavailable())
    info = ManagedLedgerInfo()
    assert load_state(info, 0, None, None, unanswered, 1_000_000).reason is LoadReason.BROKERS_UNANSWERED
