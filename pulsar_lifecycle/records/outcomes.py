"""The journal's words for what became of a message, of its ledger, and of a mark.

Belongs here: names that are written into the journal and read back from it. Not here: which one a case deserves.
"""

from __future__ import annotations

from enum import StrEnum

from pulsar_lifecycle.formats.deletion_message import LedgerType

DELETE_LEDGER = "delete-ledger"
"""Action: on BookKeeper's copy of a ledger."""
DELETE_OFFLOADED = "delete-offload-ledger"
"""Action: on the offloaded copy of a ledger."""


def action_of(ledger_type: LedgerType) -> str:
    """The action of a message about this copy of a ledger."""
    return DELETE_LEDGER if ledger_type is LedgerType.LEDGER else DELETE_OFFLOADED


SENT = "sent"
"""Phases ``send`` and ``redrive``: the deletion topic has the message."""
SEND_FAILED = "send-failed"
"""Phases ``send`` and ``redrive``: the message was not acknowledged; run again."""

DELETED = "deleted"
"""Phase ``delete``, final: this run deleted it."""
GONE = "gone"
"""Phase ``delete``, final: it was not there any more. A broker deleted it, or an earlier run that was killed."""
KEPT = "kept"
"""Phase ``delete``, final: something refers to it, or a rule keeps it."""
REFUSED = "refused"
"""Phase ``delete``, final: the message is malformed, or is not about this ledger. Trims and undo: a rule forbids it."""
RETRYING = "retrying"
"""Phase ``delete``: sent to the retry topic, and counted."""
DEAD_LETTERED = "dead-lettered"
"""Phase ``delete``: sent to the dead-letter topic after the last retry."""
WAITING = "waiting"
"""Phase ``delete``: it cannot be this message's fault; it goes back behind the others, uncounted."""


class Waiting(StrEnum):
    """What a message waits for: ``waiting`` in its journal row's detail, and on its copy in the retry topic.

    With ``STOPPED`` (its run stopped itself) and ``NOT_SENT`` (its copy could not be sent) it stays where it is.
    """

    NO_SCAN = "no-scan"
    NO_OBJECT_STORE = "no-object-store"
    OBJECT_STORE_DENIES = "object-store-denies"
    UNDECODED_TOPICS = "undecoded-topics"
    UNREAD_SCAN = "unread-scan"
    UNREAD_ATTEMPT = "unread-attempt"
    UNREAD_LOCATION = "unread-location"
    TURN = "turn"
    OTHER = "other"
    STOPPED = "stopped"
    NOT_SENT = "not-sent"


WAITS_FOR = {
    Waiting.NO_SCAN: "a covered scan that began after it was sent and after its ledger left its topic: run job scan",
    Waiting.NO_OBJECT_STORE: "object_store: it is not set",
    Waiting.OBJECT_STORE_DENIES: "the object store, which does not let us look at its objects: mend object_store's "
    "credentials, permissions or buckets",
    Waiting.UNDECODED_TOPICS: "topic z-nodes that a scan could not decode: mend them, then run the job scan",
    Waiting.UNREAD_SCAN: "a scan's list of offload UUIDs, which cannot be read: run the job scan",
    Waiting.UNREAD_ATTEMPT: "a z-node of an offload attempt of ours, which cannot be read: its journal row names it",
    Waiting.UNREAD_LOCATION: "a broker that can read offloaded ledgers of their location: mend the brokers' offloader, "
    "then have an offload run read one there",
    Waiting.TURN: "its turn: of copies that are compared whole a batch reads some, the others follow by themselves",
    Waiting.OTHER: "what its journal row says",
    Waiting.STOPPED: "a run that is not stopped",
    Waiting.NOT_SENT: "the retry topic, which takes no copies",
}
"""The same in words, with what an operator does."""

NOT_DELETED = "not-deleted"
"""What ``waiting`` is for a row of a plan that is worked off without messages: nothing waits, apply the plan again."""

FINAL = frozenset({DELETED, GONE, KEPT, REFUSED})

MARKED = "marked"
"""Phase ``mark``: a ledger is leaving its topic's metadata by our own compare-and-set."""
LEFT = "left"
"""Phase ``mark``: it stayed in its topic's metadata. Offload: this run did nothing about it, the reason says why."""

OFFLOAD = "offload"
"""Action: copying a ledger to the object store."""
RELEASE = "release-bookkeeper-copy"
"""Action: releasing the copy in BookKeeper of an offloaded ledger."""

PREPARED = "prepared"
"""Offload: its attempt is open."""
VERIFIED = "verified"
"""Offload: read back whole, every entry's checksum agreed; ``detail`` has what the objects were then."""
OFFLOADED = "offloaded"
"""Offload: its topic's metadata says so."""
REVERTED = "reverted"
"""Offload: its topic's metadata names the copy no more."""
ATTEMPT_ABORTED = "attempt-aborted"
"""Offload: the objects of its attempt are removed. BookKeeper has the ledger; a later run offloads it afresh."""
REVERTING = "reverting"
"""Offload: its topic's metadata is about to name the copy no more, as an operator said so."""

READ_CHECK = "read-check"
"""Action, and phase: having a broker read an offloaded ledger; ``detail`` has where it is."""

CHECK_PASSED = "read-passed"
"""Action ``read-check``: the broker read it, and it reads the object store first."""
CHECK_FAILED = "read-failed"
"""Action ``read-check``: the broker could not read it."""
UNANSWERED = "read-unanswered"
"""Action ``read-check``: the broker did not answer, or would not be asked."""

ABORT_UPLOAD = "abort-upload"
"""Action, and phase: dropping an upload that an offload run of ours left behind."""

ABORTING = "aborting"
"""Action ``abort-upload``: the upload is about to be dropped."""
ABORTED = "aborted"
"""Action ``abort-upload``: the upload is gone."""

RELEASED = "released"
"""Action ``release-bookkeeper-copy``: its topic's metadata says that its copy in BookKeeper is released."""
PROOF_FAILED = "proof-failed"
"""Action ``release-bookkeeper-copy``: the offloaded copy that its topic reads is damaged, missing or another one. That
stands until the same ledger and UUID are ``verified`` or ``reverted``."""

FOREIGN_ATTEMPT = "foreign-attempt"
"""Its topic has an open offload attempt of its broker's, so nothing of it is written."""

LEFT_TO_BROKER = "left-to-broker"
"""Its topic is loaded, and our settings (``loaded_topics``) or a pending unload do not let us write its z-node."""

OPERATOR_WORD = "operator-word"
"""Action, and phase: a run met, or missed, a word of the operator; ``component`` is its kind, ``detail`` all of it."""

IN_FORCE = "in-force"
"""Action ``operator-word``: it holds, new or changed."""
WITHDRAWN = "withdrawn"
"""Action ``operator-word``: it is no longer in the settings file."""
EXPIRED = "expired"
"""Action ``operator-word``: its ``until`` has passed."""
