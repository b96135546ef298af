"""The journal's words for what a row is about, and for what became of it.

Belongs here: names that are written into the journal and read back from it. Not here: which one a case deserves, nor
why it came about (``codes.py``).
"""

from __future__ import annotations

from enum import StrEnum

from pulsar_lifecycle.formats.deletion_message import LedgerType


class Action(StrEnum):
    """What a journal row is about."""

    DELETE_LEDGER = "delete-ledger"
    """Deleting BookKeeper's copy of a ledger."""
    DELETE_OFFLOADED = "delete-offload-ledger"
    """Deleting the offloaded copy of a ledger."""
    OFFLOAD = "offload"
    """Copying a ledger to the object store."""
    COPY_DELETION = "bookkeeper-copy-deletion"
    """Deleting the copy in BookKeeper of an offloaded ledger."""
    READ_CHECK = "read-check"
    """Having a broker read an offloaded ledger; ``detail`` has where it is."""
    ABORT_UPLOAD = "abort-upload"
    """Dropping an upload that an offload run of ours left behind."""
    COLLECT_BOOKIE = "collect-bookie"
    """Having a bookie collect its garbage."""
    SUSPEND_COMPACTION = "suspend-compaction"
    """Having a bookie compact nothing by itself; ``detail`` has its id."""
    RESUME_COMPACTION = "resume-compaction"
    """Having a bookie compact by itself again; ``detail`` has its id."""
    LOAD_TOPIC = "load-topic"
    """Having a broker load a topic for a while, so that it frees what only it can."""
    DELETE_TOPIC = "delete-topic"
    """Having a broker delete an inactive topic."""
    DELETE_SUBSCRIPTION = "delete-subscription"
    """Having a broker delete an inactive subscription, or one past its expiration time; ``detail`` has its name and
    where it stood."""
    DELETE_RECORDS = "delete-records"
    """Raising the low watermark of a partition; ``detail`` has the position, or the cursor that is moved."""
    REPAIR_INDEX = "repair-delayed-index"
    """Exchanging the delayed-index buckets of a subscription; ``detail`` has its bucket properties before and after."""
    WRITE_SNAPSHOT = "write-index-snapshot"
    """Writing a new snapshot of a delayed index, before a repair names it; ``detail`` has the subscription."""
    OPERATOR_WORD = "operator-word"
    """A run met, or missed, a word of the operator; ``component`` is its kind, ``detail`` all of it."""
    APPROVE_PLAN = "approve-plan"
    """Somebody approved a plan; ``detail`` has who, the digest, and until when (ms)."""


def action_of(ledger_type: LedgerType) -> Action:
    """The action of a message about this copy of a ledger."""
    return Action.DELETE_LEDGER if ledger_type is LedgerType.LEDGER else Action.DELETE_OFFLOADED


class Phase(StrEnum):
    """Which part of its action a journal row is of."""

    SEND = "send"
    """A message about the copy goes to the deletion topic."""
    REDRIVE = "redrive"
    """A dead letter goes to the deletion topic again."""
    ARCHIVE = "archive"
    """Objects of an offloaded copy are about to be deleted; the row of phase ``delete`` follows."""
    DELETE = "delete"
    """A deletion run worked off the message, or the row of a plan."""
    MARK = "mark"
    """Trims and deletions of topics: the ledger leaves its topic's metadata."""
    UNDO = "undo"
    """A deletion is undone."""
    OFFLOAD = "offload"
    """The only one of action ``offload``."""
    COPY_DELETION = "bookkeeper-copy-deletion"
    """The only one of action ``bookkeeper-copy-deletion``, but for its message's."""
    READ_CHECK = "read-check"
    """The only one of its action."""
    ABORT_UPLOAD = "abort-upload"
    """The only one of its action."""
    COLLECT_BOOKIE = "collect-bookie"
    """The only one of its action."""
    SUSPEND_COMPACTION = "suspend-compaction"
    """The only one of its action."""
    RESUME_COMPACTION = "resume-compaction"
    """The only one of its action."""
    LOAD = "load"
    """Action ``load-topic``: its broker loads it. So is what is decided about it before."""
    UNSUBSCRIBE = "unsubscribe"
    """Action ``load-topic``: its broker deletes subscriptions that are past their expiration time, each with rows of
    action ``delete-subscription``."""
    EXPIRE = "expire"
    """Action ``load-topic``: its subscriptions acknowledge what is past its TTL."""
    TRIM = "trim"
    """Action ``load-topic``: its broker trims it."""
    UNLOAD = "unload"
    """Action ``load-topic``: its broker unloads it; the row after it is the last word on the topic."""
    DELETE_TOPIC = "delete-topic"
    """The only one of its action."""
    DELETE_SUBSCRIPTION = "delete-subscription"
    """The only one of its action."""
    MOVE_CURSOR = "move-cursor"
    """Action ``delete-records``: its broker moves a subscription up to the low watermark; ``detail`` has where it was.
    """
    ROLL = "roll"
    """Action ``delete-records``: its broker closes its current ledger and begins another, so that it can go."""
    NO_UNDO = "no-undo"
    """Action ``delete-records``: the ledger leaves its topic next, and no undo brings it back."""
    RAISE = "raise"
    """Action ``delete-records``: its low watermark, begun where no ledger goes, and how a partition ended."""
    REPAIR_INDEX = "repair-delayed-index"
    """The only one of its action."""
    WRITE_SNAPSHOT = "write-index-snapshot"
    """The only one of its action: ``begun``, then ``done`` once a cursor names it, or ``removed``."""
    OPERATOR_WORD = "operator-word"
    """The only one of its action."""
    APPROVE_PLAN = "approve-plan"
    """The only one of its action."""


class Outcome(StrEnum):
    """What became of a message, a ledger, a copy, a topic, a bookie's collection or a word."""

    SENT = "sent"
    """Phases ``send`` and ``redrive``: the deletion topic has the message."""
    SEND_FAILED = "send-failed"
    """Phases ``send`` and ``redrive``: the message was not acknowledged; run again."""

    DELETING = "deleting"
    """Phase ``archive``: its objects are deleted next; ``detail`` names them."""
    DELETED = "deleted"
    """Phase ``delete``, final: this run deleted it."""
    GONE = "gone"
    """Phase ``delete``, final: it was not there any more. A broker deleted it, an earlier run that was killed did, or
    this run did, by another message about the same ledger (code ``twin``)."""
    KEPT = "kept"
    """Phase ``delete``, final: something refers to it, or a rule keeps it."""
    REFUSED = "refused"
    """Phase ``delete``, final: the message is malformed, or is not about this ledger. Trims, offload and undo: a rule
    forbids it."""
    RETRYING = "retrying"
    """Phase ``delete``: sent to the retry topic, and counted."""
    DEAD_LETTERED = "dead-lettered"
    """Phase ``delete``: sent to the dead-letter topic after the last retry."""
    WAITING = "waiting"
    """Phase ``delete``: it cannot be this message's fault; it goes back behind the others, uncounted."""
    NOT_DELETED = "not-deleted"
    """What ``waiting`` is for a row of a plan that is worked off without messages: nothing waits, apply the plan
    again."""

    MARKED = "marked"
    """Phase ``mark``: a ledger is about to leave its topic's metadata, by our own compare-and-set, or with its topic,
    which its broker is asked to delete next. With code ``outcome_unknown`` the broker did not answer, and may delete
    the topic still. Phase ``bookkeeper-copy-deletion``: its topic is about to list its copy in BookKeeper as
    deleted."""
    LEFT = "left"
    """Phase ``mark``: it stayed in its topic's metadata. Offload, actions ``load-topic`` and ``collect-bookie``: this
    run did nothing about it, the reason says why."""
    REMOVED = "removed"
    """Phase ``mark``: its topic lists it no more. Our compare-and-set took it off, or its broker deleted the topic, and
    of its ledgers those that it could (code ``topic_deleted``)."""
    NOTHING = "nothing-to-do"
    """Trims: its topic's list begins behind the ledger that is asked for, or is empty."""
    GOES = "goes"
    """What a dry run says of a ledger that would be removed, or reverted, and of a topic that would be loaded."""
    FAILED = "failed"
    """Something did not do its part, and the reason says what: run again."""

    PREPARED = "prepared"
    """Offload: its attempt is open. If its run ends early, a later offload run finishes it."""
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
    FOREIGN_ATTEMPT = "foreign-attempt"
    """Its topic has an open offload attempt of its broker's, so nothing of it is written."""
    LEFT_TO_BROKER = "left-to-broker"
    """Its topic is loaded, and our settings (``loaded_topics``) or a pending unload do not let us write its z-node."""

    BOOKKEEPER_DELETED = "bookkeeper-deleted"
    """Action ``bookkeeper-copy-deletion``: its topic's metadata says so (``bookkeeperDeleted``); a deletion run
    deletes the copy."""
    PROOF_FAILED = "proof-failed"
    """Action ``bookkeeper-copy-deletion``: the offloaded copy that its topic reads is damaged, missing or another one.
    That stands until the same ledger and UUID are ``verified`` or ``reverted``."""

    CHECK_PASSED = "read-passed"
    """Action ``read-check``: the broker read it, and it reads the object store first."""
    CHECK_FAILED = "read-failed"
    """Action ``read-check``: the broker could not read it."""
    CHECK_UNANSWERED = "read-unanswered"
    """Action ``read-check``: the broker did not answer, or would not be asked."""

    ABORTING = "aborting"
    """Action ``abort-upload``: the upload is about to be dropped."""
    ABORTED = "aborted"
    """Action ``abort-upload``: the upload is gone."""

    RESTORABLE = "restorable"
    """Undo: what a dry run says of a ledger that could come back."""
    RECREATING = "recreating"
    """Undo: the z-node is about to be there."""
    RECREATED = "recreated"
    """Undo: the z-node is there, and the second check is due."""
    NOT_RECREATED = "not-recreated"
    """Undo: ZooKeeper did not create the z-node, which is not there: run again. Earlier versions said ``unknown``, with
    code ``server_failed``."""
    RESTORED = "restored"
    """Undo: every entry asked for was shown after a garbage collection: it is back."""
    UNCONFIRMED = "unconfirmed"
    """Undo: the z-node is there, and the second check proved nothing: run again."""
    LOST = "lost"
    """Undo: past saving. Every replica of an entry answered, and none has it. Nothing is put back."""
    UNKNOWN = "unknown"
    """Undo: bookies did not answer, and none showed that the entries are gone. Nothing was done: start them and run
    again, or set ``accept_unknown``."""
    PRESENT = "present"
    """Undo: its z-node was there, nothing was to be done."""

    COLLECTING = "collecting"
    """Action ``collect-bookie``: the bookie is about to be told to collect."""
    COLLECTED = "collected"
    """Action ``collect-bookie``: its collection ended."""
    RESTARTED = "bookie-restarted"
    """Action ``collect-bookie``: it was started anew meanwhile, launch again."""
    LEFT_AT_IT = "left-collecting"
    """Action ``collect-bookie``: the run stopped; the bookie goes on by itself."""
    UNANSWERED = "unanswered"
    """Action ``collect-bookie``: whether it collects is not known: it did not answer, or counts no collection."""
    NOT_STARTED = "not-started"
    """Action ``collect-bookie``: the run stopped before its turn."""

    TELLING = "telling"
    """Actions ``suspend-compaction``, ``resume-compaction``: the bookie is about to be told, or the answer was lost;
    without another outcome of the same run it may have been told."""
    SUSPENDED = "suspended"
    """Action ``suspend-compaction``: it compacts nothing more by itself until it is resumed, or restarts."""
    RESUMED = "resumed"
    """Action ``resume-compaction``: it compacts by itself again."""
    NOT_TOLD = "not-told"
    """Actions ``suspend-compaction``, ``resume-compaction``: it could not be reached, or refused. Say it again."""

    BEGUN = "begun"
    """Actions ``load-topic``, ``delete-topic``, ``delete-subscription``, and ``delete-records`` of cursors and ledgers:
    the broker is about to be told. Actions ``repair-delayed-index``, ``write-index-snapshot``: we are about to write.
    """
    DONE = "done"
    """Actions ``load-topic``, ``delete-topic``, ``delete-subscription``: the metadata says that the broker has done it.
    Action ``delete-records``: the broker says that it has moved the cursor or closed the ledger, the low watermark is
    raised, or undo is forbidden. Actions ``repair-delayed-index``, ``write-index-snapshot``: our own write is made."""

    IN_FORCE = "in-force"
    """Action ``operator-word``: it holds, new or changed."""
    APPROVED = "approved"
    """Action ``approve-plan``: the plan may be applied by itself, until then."""
    WITHDRAWN = "withdrawn"
    """Action ``operator-word``: it is no longer in the settings file. Action ``approve-plan``: not any more."""
    EXPIRED = "expired"
    """Action ``operator-word``: its ``until`` has passed."""


FINAL = frozenset({Outcome.DELETED, Outcome.GONE, Outcome.KEPT, Outcome.REFUSED})
"""Outcomes of phase ``delete`` after which a message is not met again."""


class Waiting(StrEnum):
    """What a message waits for: ``waiting`` in its journal row's detail, and on its copy in the retry topic.

    With ``STOPPED`` (its run stopped itself) and ``NOT_SENT`` (its copy could not be sent) it stays where it is.
    """

    NO_SCAN = "no-scan"
    NO_EARLIER_SCAN = "no-earlier-scan"
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
    Waiting.NO_EARLIER_SCAN: "a covered scan that is older than the newest by orphans.confirm_after: run the job scan, "
    "and again after that time",
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
