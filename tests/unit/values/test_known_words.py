"""The operator's words are met, changed, withdrawn and expired; each is news once."""

from __future__ import annotations

from datetime import date

from pulsar_lifecycle.values.known_words import SHOWN_FOR, KnownWord, meet
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.words import GoneNamespace, LegalHold, Word

DAY = 86_400_000
HOLD = LegalHold(name="acme", by="mary", why="case 12")
GONE = GoneNamespace(name="acme/old", by="mary", why="deleted", until=date(1970, 1, 3))


def told(words: list[KnownWord]) -> list[tuple[str, str, int, int]]:
    return [(word.subject, word.how, word.since, word.ended) for word in words]


def test_a_word_is_news_when_it_is_first_met_and_when_it_changes() -> None:
    stand, news = meet([], [HOLD, GONE], 5)
    assert news == stand
    assert told(stand) == [("acme", Outcome.IN_FORCE, 5, 0), ("acme/old", Outcome.IN_FORCE, 5, 0)]
    assert meet(stand, [HOLD, GONE], 9) == (stand, [])
    ((changed,), said) = (meet(stand, [HOLD.model_copy(update={"why": "case 13"}), GONE], 9)[1], stand)
    assert (changed.why, changed.since, said[0].why) == ("case 13", 5, "case 12")


def test_a_hold_that_is_gone_from_the_settings_is_withdrawn_and_shown_for_a_while() -> None:
    stand, _ = meet([], [HOLD], 5)
    stand, news = meet(stand, [], 9)
    assert told(news) == told(stand) == [("acme", Outcome.WITHDRAWN, 5, 9)]
    assert meet(stand, [], 9 + SHOWN_FOR) == (stand, [])
    assert meet(stand, [], 10 + SHOWN_FOR) == ([], [])
    assert told(meet(stand, [HOLD], 20)[1]) == [("acme", Outcome.IN_FORCE, 20, 0)]


def test_a_word_expires_by_its_date_and_not_before() -> None:
    stand, _ = meet([], [GONE], 5)
    assert meet(stand, [GONE], 3 * DAY - 1) == (stand, [])
    stand, news = meet(stand, [GONE], 3 * DAY)
    assert told(news) == [("acme/old", Outcome.EXPIRED, 5, 3 * DAY)]
    assert meet(stand, [GONE], 3 * DAY + 1) == (stand, [])
    never: list[Word] = [GONE]
    assert meet([], never, 3 * DAY) == ([], [])
