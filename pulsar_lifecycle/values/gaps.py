"""Gaps: what makes a scan not covered, and a plan report-only. A code to count by, a place to look at, a sentence.

Belongs here: the codes and their value. Not here: finding gaps (``scan/coverage.py``, ``scan/shrinkage.py``,
``scan/neighbours.py``, ``scan/evidence.py``).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator


class GapCode(StrEnum):
    """What is wrong."""

    SHARING_UNDECLARED = "sharing_undeclared"
    """``bookkeeper.shared_with`` does not say who else keeps ledgers in this BookKeeper."""
    ROOT_NOT_SCANNED = "root_not_scanned"
    """``bookkeeper.shared_with`` names a root now that the scan did not read."""
    SAME_ROOT_TWICE = "same_root_twice"
    """A root of ``bookkeeper.shared_with`` is our own, or another one of them."""
    TABLE_NOT_READ = "table_not_read"
    """A table of a root was not read."""
    ROOT_MISSING = "root_missing"
    """The root of a table does not exist, and something should be there."""
    ZNODE_UNREAD = "znode_unread"
    """A z-node could not be read, or not listed."""
    ZNODE_UNDECODABLE = "znode_undecodable"
    """A z-node could not be decoded, and no acknowledgement lifts that, or there is none."""
    CHILDREN_DIFFER = "children_differ"
    """A z-node's own count of its children differs from what was listed."""
    UNACCOUNTED = "unaccounted"
    """What was listed is not all decoded, empty or confirmed gone."""
    REFERENCE_UNREAD = "reference_unread"
    """A reference that is not in a z-node could not be read; the place is who has it."""
    CONTEXT_UNREAD = "context_unread"
    """Namespaces, shadow topics or the under-replicated ledgers could not be read."""
    BROKERS_UNANSWERED = "brokers_unanswered"
    """The brokers did not say which topics they have loaded."""
    BROKERS_DENIED = "brokers_denied"
    """Our role may not ask the brokers which topics they have loaded."""
    OTHER_ROOT = "other_root"
    """Another cluster's metadata is on our ZooKeeper, and no setting speaks of it."""
    OTHER_ROOT_UNLISTED = "other_root_unlisted"
    """Another cluster's metadata could be where we may not look."""
    OTHER_BOOKIES = "other_bookies"
    """Bookies of another BookKeeper instance are registered below our root."""
    OTHER_CLUSTER = "other_cluster"
    """The scan began on another metadata store than it ended on."""
    HISTORY_BROKEN = "history_broken"
    """The metadata store is not a later state of what earlier scans saw."""
    CLOCK_WRONG = "clock_wrong"
    """A scan that ended before this one is dated after it."""
    LISTING_SHRANK = "listing_shrank"
    """BookKeeper lists much fewer ledgers than the last covered scan saw, and we did not delete them."""
    LOST_REFERENCES = "lost_references"
    """Too much that the last covered scan saw listed is listed by nothing now, and is still in BookKeeper."""
    WORD_WITHDRAWN = "word_withdrawn"
    """The scan is covered only by a word of the operator that is not in force any more."""
    UNCONFIRMED = "unconfirmed"
    """Of a plan: no covered scan long enough before confirms it."""
    BELOW_FLOOR = "below_floor"
    """Of a plan: a waiting time is set below its floor."""
    ATTEMPT_UNREAD = "attempt_unread"
    """Of a plan: a z-node of an offload attempt of ours cannot be read."""
    POLICIES_UNKNOWN = "policies_unknown"
    """Of a plan: policies in force, or by which names functions subscribe, could not be read, or the brokers'
    configurations differ."""
    EARLIER_VERSION = "earlier_version"
    """Another version found it: it kept the sentence alone, or a code that this one does not know."""


BROKERS_NOT_ANSWERING = (GapCode.BROKERS_UNANSWERED, GapCode.BROKERS_DENIED)
"""The scan does not know which topics brokers had loaded."""


@dataclass(frozen=True, slots=True)
class Gap:
    """One gap; ``where`` is the z-node, the table and its root (``TABLE@ROOT``), or the setting that it is about."""

    code: GapCode
    where: str
    text: str

    def __str__(self) -> str:
        """The sentence."""
        return self.text

    @property
    def line(self) -> str:
        """As pages and commands show it: the code, by which the docs say what to do, and the sentence."""
        return f"{self.code}: {self.text}"


FEW = 3
"""Gaps that a sentence names: it stands in refusals, ticks and alerts, and a scan may lack thousands of z-nodes."""


def in_words(gaps: Iterable[Gap]) -> str:
    """Gaps on one line: the first few, and how many more there are."""
    lines = [gap.line for gap in gaps]
    more = [f"and {len(lines) - FEW} more"] if len(lines) > FEW else []
    return "; ".join([*lines[:FEW], *more])


def _of_any_version(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    return [Gap(GapCode.EARLIER_VERSION, "", one) if isinstance(one, str) else _known(one) for one in value]


def _known(value: Any) -> Any:
    """The same gap under a code of this version."""
    if isinstance(value, dict) and value.get("code") not in {*GapCode}:
        return {**value, "code": GapCode.EARLIER_VERSION}
    return value


Gaps = Annotated[tuple[Gap, ...], BeforeValidator(_of_any_version)]
"""The gaps of a stored scan or plan; earlier versions kept sentences, or had other codes."""


def _broken_of_any_version(value: Any) -> Any:
    return (Gap(GapCode.HISTORY_BROKEN, "", value) if value else None) if isinstance(value, str) else value


def brokers_gap(code: GapCode, error: str) -> Gap:
    """A code of :data:`BROKERS_NOT_ANSWERING`, with why."""
    return Gap(code, "", f"the brokers did not say what they have loaded: {error}")


def _brokers_of_any_version(value: Any) -> Any:
    return (brokers_gap(GapCode.BROKERS_UNANSWERED, value) if value else None) if isinstance(value, str) else value


BrokersGap = Annotated[Gap | None, BeforeValidator(_brokers_of_any_version)]
"""That brokers did not say what they have loaded; earlier versions kept why, or ""."""

StoredGap = Annotated[Gap | None, BeforeValidator(_broken_of_any_version)]
"""The gap of a stored scan that is not of a later state of the store; earlier versions kept the sentence, or ""."""
