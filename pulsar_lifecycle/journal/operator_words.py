"""The journal's rows about the operator's words.

Not here: which of them are news (``values/known_words.py``), the words themselves (``words.py``).
"""

from __future__ import annotations

from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.journal_rows import Step, Subject, Writer
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.known_words import KnownWord, meet
from pulsar_lifecycle.values.outcomes import Action, Phase


def journal_row(run_id: str, cluster: str, word: KnownWord, now: int) -> JournalRow:
    """One word that is in force, or has ended; ``detail`` holds all of it, ``reason`` is for reading."""
    why = Why(word.kind, f"{word.subject}: {word.why or 'no reason given'}")
    about = Subject(-1, word.kind.value, "", details=(word,))
    return Writer(run_id, cluster).row(Step(Action.OPERATOR_WORD, Phase.OPERATOR_WORD), about, word.how, why, now)


def note_words(cluster: Cluster, run_id: str) -> None:
    """Journal what is new of the operator's words, before anything is done under them. Raises StoreError."""
    settings, now = cluster.settings, cluster.clock.now_ms()
    stand, news = meet(cluster.lake.words(settings.cluster), settings.words(), now)
    if news:  # the journal first: said twice is better than never
        cluster.journal.record([journal_row(run_id, settings.cluster, word, now) for word in news])
        cluster.lake.store_words(settings.cluster, stand)
