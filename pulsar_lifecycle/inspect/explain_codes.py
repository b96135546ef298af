"""What ``explain`` can answer of one ledger: the verdict, and why.

Belongs here: the codes and the answer's fields. Not here: how an answer is found, and its sentence
(``inspect/explain.py``).
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from pulsar_lifecycle.values.codes import Why


class Verdict(StrEnum):
    """The answer in a word."""

    IN_USE = "in_use"
    """Something refers to it now."""
    MAY_GO = "may_go"
    """An orphan by every rule, in a covered scan and now."""
    KEPT = "kept"
    """Nothing refers to it now, and a rule keeps it."""
    UNJUDGED = "unjudged"
    """Nothing its owner has refers to it, and no scan says whether anything else does."""
    DANGLING = "dangling"
    """BookKeeper does not have it, and something refers to it."""
    DELETED = "deleted"
    """Our journal says which run deleted it."""
    GONE = "gone"
    """It is not there any more, and our journal has no deletion of it (yet)."""
    UNKNOWN = "unknown"
    """No trace of it anywhere."""


class ExplainCode(StrEnum):
    """Why ``explain`` answers so, where neither the verdict says it all nor a code of findings or of the journal."""

    IN_LAST_SCAN = "in_last_scan"
    """Its owner does not refer to it now, and in the last scan something did: the next scan tells."""
    NOT_JUDGED_YET = "not_judged_yet"
    """The last scan did not judge it, and its broker must be asked: the next scan or deletion run tells."""
    WRITTEN_SINCE = "written_since"
    """Free by the last scan, and its topic was loaded or written since: the next scan or deletion run tells."""
    NEWER_THAN_SCAN = "newer_than_scan"
    """It was made after the last scan began: the next scan tells."""
    NOT_COVERED = "not_covered"
    """The last scan could not read everything that may refer to it, or does not count any more."""
    NO_NEW_SCAN = "no_new_scan"
    """Our first phase took it off its topic's list, and no scan began since."""
    DEAD_LETTER = "dead_letter"
    """A run of ours began to delete its copy in BookKeeper, and the message about that is a dead letter."""
    NO_INTENT = "no_intent"
    """A run of ours began to delete its copy in BookKeeper, and no message about that is under way."""
    READ_OFFLOADED = "read_offloaded"
    """It was deleted in BookKeeper, and its topic reads it from the object store."""
    NEXT_RUN_SAYS = "next_run_says"
    """The run that was about to delete it ended before it could say so: the next one will."""
    NEVER_SAID = "never_said"
    """The run that was about to delete it never said so, and no run looks back so far."""
    LAST_SCAN_KNEW = "last_scan_knew"
    """The last scan knew it, and our journal has no deletion of it."""
    JOURNAL_KNOWS = "journal_knows"
    """Our journal knows it, and has no deletion of it in BookKeeper."""


class LedgerVerdict(NamedTuple):
    """The verdict on a ledger, and why; its code is the verdict itself where that says it all.

    ``run_id``: the run that deleted it, or was about to. ``again``: when (ms) its age keeps it no more.
    """

    verdict: Verdict
    why: Why
    run_id: str = ""
    again: int | None = None
