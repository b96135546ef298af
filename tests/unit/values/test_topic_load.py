"""The sentences that say how it is known whether a topic is loaded."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.values.topic_load import LoadReason, LoadState, TopicLoad


@pytest.mark.parametrize(
    ("reason", "detail", "text"),
    [
        (LoadReason.LISTED, "broker-1", "listed by broker-1"),
        (LoadReason.BROKERS_UNANSWERED, "timed out", "the brokers did not answer: timed out"),
        (LoadReason.LAST_LEDGER_NOT_CLOSED, "OPEN", "its last ledger is OPEN"),
        (LoadReason.LAST_LEDGER_NOT_CLOSED, "", "its last ledger is not in BookKeeper"),
    ],
)
def test_a_reason_is_a_sentence_with_its_detail(reason: LoadReason, detail: str, text: str) -> None:
    assert TopicLoad(LoadState.LOADED, reason, detail).text == text


@pytest.mark.parametrize("reason", LoadReason)
def test_every_reason_has_a_sentence(reason: LoadReason) -> None:
    assert TopicLoad(LoadState.LOADED, reason).text
