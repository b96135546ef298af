"""Gaps of the coverage proof that say what they are: a code to count by, a place to look at, a sentence to read.

Belongs here: the codes and their value. Not here: finding gaps (``scan/coverage.py``, ``scan/shrinkage.py``,
``scan/neighbours.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class GapCode(StrEnum):
    """What is wrong."""

    OTHER_ROOT = "other_root"
    """Another cluster's metadata is on our ZooKeeper, and no setting speaks of it."""
    OTHER_ROOT_UNSEEN = "other_root_unseen"
    """Another cluster's metadata could be where we may not look."""
    OTHER_BOOKIES = "other_bookies"
    """Bookies of another BookKeeper instance are registered below our root."""
    LOST_REFERENCES = "lost_references"
    """Too much that the last covered scan saw listed is listed by nothing now, and is still in BookKeeper."""


@dataclass(frozen=True, slots=True)
class Gap:
    """One gap; ``where`` is the z-node, or the table and its root, that it is about."""

    code: GapCode
    where: str
    text: str
