"""Why a message, a ledger or an offload became what its journal row says: column ``code``.

Belongs here: the codes. Not here: what became of it (``outcomes.py``), nor the sentence, which is made where a code is
chosen and stands in column ``reason``. A message that waits has the code of what it waits for
(``outcomes.Waiting``), one that a rule of the scan keeps has that of the finding (``findings.Finding``).
"""

from __future__ import annotations

from enum import StrEnum


class Code(StrEnum):
    """Why it is so."""

    UNREFERENCED = "unreferenced"
    """Deleted: nothing refers to it."""
    COPY_RELEASED = "copy_released"
    """Deleted: its topic released the copy in BookKeeper, and the offloaded one is whole."""
    NOT_THERE = "not_there"
    """It did not exist any more, or somebody else deleted it at the same moment."""
    RUN_ENDED = "run_ended"
    """Deleted by a run that ended before it could say so; a later run found that out."""
    PLANNED = "planned"
    """Its message was sent."""
    SENT_AGAIN = "sent_again"
    """Its dead letter was sent again."""
    NOT_SENT = "not_sent"
    """Its message was not acknowledged."""
    UNPARSEABLE = "unparseable"
    """The message is not as PIP-186, or we, write it."""
    MISMATCH = "mismatch"
    """The message is not about this ledger, bucket or object."""
    SENDERS_CLOCK = "senders_clock"
    """The clock of the message's sender is ahead."""
    STILL_IN_USE = "still_in_use"
    """Something refers to it. It is only held: retried or not, nothing failed."""
    NOT_KNOWN_YET = "not_known_yet"
    """The brokers' lists lag behind a load or an unload, our own unloads too: nothing failed."""
    UNDER_REPLICATED = "under_replicated"
    """BookKeeper is replicating it."""
    NOT_CONFIRMED = "not_confirmed"
    """The earlier of two scans does not agree."""
    DELISTED = "delisted"
    """Its topic does not list it any more: the next scan decides."""
    NEVER_CLOSED = "never_closed"
    """Its topic lists it as offloaded, and in BookKeeper it was never closed."""
    DAMAGED_REFERENCE = "damaged_reference"
    """An entry that could name it is lost."""
    UNREAD = "unread"
    """Its z-node, its owner or a reference could not be read."""
    OBJECTS_UNREAD = "objects_unread"
    """Its objects, or those of another copy, could not be looked at."""
    OTHER_DRIVER = "other_driver"
    """Its objects are of a driver that we do not delete with."""
    NOT_OURS = "not_ours"
    """Its objects are not known to be of this cluster, or are younger than the message."""
    LAST_COPY = "last_copy"
    """No other copy of the ledger is known to be whole."""
    NOT_PROVEN = "not_proven"
    """Its offloaded copy is not what was proven, or failed a proof since."""
    NOT_DELETED = "not_deleted"
    """It was to be deleted, and is there still."""
    CHANGED_MEANWHILE = "changed_meanwhile"
    """It, or what its topic says of it, changed between the decision and the deletion."""
    OUTCOME_UNKNOWN = "outcome_unknown"
    """Whether it was deleted is not known."""
    TWIN = "twin"
    """Another message of the batch is about the same ledger: it shares that one's outcome, and says nothing itself."""
    READ_CHECK_DUE = "read_check_due"
    """Its broker must read the first offloaded ledger of its location, and could not be asked to."""
    TOPIC_DELETED = "topic_deleted"
    """Its topic was deleted whole."""
    BROKER_DELETED = "broker_deleted"
    """The broker deleted it, and its topic is there still."""


EARLIER = {
    "whether it was deleted is not known": Code.OUTCOME_UNKNOWN,
    "another message of this batch is about the same ledger": Code.TWIN,
    "its topic is deleted": Code.TOPIC_DELETED,
    "the broker deleted it, but not its topic": Code.BROKER_DELETED,
}
"""How the reasons of rows began that earlier versions wrote without a code, as far as something depends on it."""


def code_of(code: str | None, reason: str | None) -> str:
    """A row's code; of a row that an earlier version wrote, by its reason. Empty if neither says."""
    if code is not None:
        return code
    return next((known for begins, known in EARLIER.items() if (reason or "").startswith(begins)), "")
