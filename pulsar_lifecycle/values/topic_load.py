"""Whether a topic is loaded, how that is known, and the sentence that says so.

Belongs here: the values. Not here: finding out (``metastore/load_state.py``).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LoadState(StrEnum):
    """Whether a broker has a topic loaded; whatever is not sure counts as loaded."""

    LOADED = "loaded"
    UNLOADED = "unloaded"
    NEVER_LOADED = "never_loaded"
    """Its z-node has no ledgers."""


class LoadReason(StrEnum):
    """How it is known whether a topic is loaded, or why that is not known."""

    LISTED = "listed"
    """A broker lists it; ``load_detail`` is the broker."""
    AT_REST = "at_rest"
    """It is on no broker's list, its last ledger is closed, and its z-node was left alone for a while."""
    NO_LEDGERS = "no_ledgers"
    """Its z-node has none: no broker ever loaded it."""
    UNREAD = "unread"
    """Its z-node was not read."""
    BROKERS_UNANSWERED = "brokers_unanswered"
    """The brokers did not say what they have loaded; ``load_detail`` is the error."""
    WRITTEN_LATELY = "written_lately"
    """Its z-node was written within three intervals of the brokers' statistics."""
    TERMINATED = "terminated"
    """It is terminated, so its closed last ledger says nothing."""
    LAST_LEDGER_NOT_CLOSED = "last_ledger_not_closed"
    """``load_detail`` is the ledger's state, empty if BookKeeper does not have it."""


class CompactionStatus(StrEnum):
    """What the owner broker says of a topic's compaction (``LongRunningProcessStatus.Status`` in Pulsar 4.0)."""

    NOT_RUN = "NOT_RUN"
    RUNNING = "RUNNING"
    SUCCESS = "SUCCESS"
    ERROR = "ERROR"
    UNKNOWN = "UNKNOWN"
    """It did not say; no broker's word. Whatever is none of these is as much as that."""


class PendingAcks(StrEnum):
    """How far a broker is with the log of a subscription's acknowledgements in transactions.

    ``PendingAckHandleState`` in Pulsar 4.0.7. A broker reads such a log anew each time that it loads the topic.
    """

    NONE = "None"
    """There is none, or the broker begins, or begins again, in a moment."""
    INITIALIZING = "Initializing"
    READY = "Ready"
    ERROR = "Error"
    """It gave up, and reads no more of it."""
    CLOSE = "Close"
    """The topic is being unloaded."""
    OFF = "off"
    """The broker has no transactions, and reads none; no broker's word."""


READS_NO_ACKS = frozenset({PendingAcks.READY, PendingAcks.ERROR, PendingAcks.OFF})
"""The broker is done with a log that there is."""

COMPACTS_NOT = frozenset({CompactionStatus.NOT_RUN, CompactionStatus.SUCCESS})
"""No compaction is under way, and none ended without naming what it had written."""

_TEXTS = {
    LoadReason.LISTED: "listed by {}",
    LoadReason.AT_REST: "on no broker's list, last ledger closed, z-node left alone",
    LoadReason.NO_LEDGERS: "its z-node has no ledgers",
    LoadReason.UNREAD: "its z-node was not read",
    LoadReason.BROKERS_UNANSWERED: "the brokers did not answer: {}",
    LoadReason.WRITTEN_LATELY: "its z-node was written too recently to know",
    LoadReason.TERMINATED: "it is terminated: its last ledger says nothing",
    LoadReason.LAST_LEDGER_NOT_CLOSED: "its last ledger is {}",
}


@dataclass(frozen=True, slots=True)
class TopicLoad:
    """One topic's load state; ``detail`` is what ``reason`` says of it."""

    state: LoadState
    reason: LoadReason
    detail: str = ""

    @property
    def text(self) -> str:
        """The reason as a sentence."""
        nothing = "not in BookKeeper" if self.reason is LoadReason.LAST_LEDGER_NOT_CLOSED else ""
        return _TEXTS[self.reason].format(self.detail or nothing)
