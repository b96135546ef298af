"""Which of the operator's words are in force, and what of that is news: what a run journals and ``status`` shows.

Belongs here: comparing what the settings say with what runs knew before. Not here: the words (``words.py``),
keeping and journalling them (``journal/operator_words.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.words import Word, WordKind

SHOWN_FOR = 30 * 86_400_000
"""How long (ms) a word that has ended is still shown."""


@dataclass(frozen=True, slots=True)
class KnownWord:
    """A word as runs know it; ``until`` is a date (ISO 8601) or empty.

    ``since`` (ms): when a run first met it. ``ended`` (ms): when a run first missed it, 0 while it is in force; ``how``
    is then ``withdrawn`` or ``expired``, and ``in-force`` before.
    """

    kind: WordKind
    subject: str
    by: str
    why: str
    until: str
    since: int
    ended: int = 0
    how: Outcome = Outcome.IN_FORCE

    @property
    def key(self) -> tuple[WordKind, str]:
        """What makes two words the same."""
        return self.kind, self.subject


def meet(known: Sequence[KnownWord], said: Sequence[Word], now: int) -> tuple[list[KnownWord], list[KnownWord]]:
    """(the words as they stand at ``now`` (ms), those of them that are news): new, changed, withdrawn, expired.

    ``known``: how they stood before. One that ended stands until :data:`SHOWN_FOR` has passed, or it is said again.
    """
    before = {word.key: word for word in known}
    stand: dict[tuple[WordKind, str], KnownWord] = {}
    for word in said:
        if word.holds(now):
            until = word.until.isoformat() if word.until else ""
            old = before.get((word.kind, word.subject))
            since = old.since if old and not old.ended else now
            one = KnownWord(word.kind, word.subject, word.by, word.why, until, since)
            stand[one.key] = one
    expired = {(word.kind, word.subject) for word in said}
    for key, old in before.items():
        if key in stand or (old.ended and now - old.ended > SHOWN_FOR):
            continue
        how = Outcome.EXPIRED if key in expired else Outcome.WITHDRAWN
        stand[key] = old if old.ended else replace(old, ended=now, how=how)
    return list(stand.values()), [word for key, word in stand.items() if word != before.get(key)]
