"""The journal's words for what became of a message, of its ledger, and of a mark.

Belongs here: names that are written into the journal and read back from it. Not here: which one a case deserves.
"""

from __future__ import annotations

from pulsar_lifecycle.formats.deletion_message import LedgerType

DELETE_LEDGER = "delete-ledger"
DELETE_OFFLOADED = "delete-offload-ledger"
"""Actions: on BookKeeper's copy of a ledger, on its offloaded copy."""


def action_of(ledger_type: LedgerType) -> str:
    """The action of a message about this copy of a ledger."""
    return DELETE_LEDGER if ledger_type is LedgerType.LEDGER else DELETE_OFFLOADED


SENT = "sent"
SEND_FAILED = "send-failed"
"""Outcomes of phases ``send`` and ``redrive``."""

DELETED = "deleted"
GONE = "gone"
KEPT = "kept"
REFUSED = "refused"
RETRYING = "retrying"
DEAD_LETTERED = "dead-lettered"
WAITING = "waiting"
"""Outcomes of phase ``delete``. ``deleted``, ``gone``, ``kept`` and ``refused`` are final. ``retrying``: sent to the
retry topic, or to the dead-letter topic after the last retry. ``waiting``: it cannot be this message's fault; it stays
in the queue uncounted.
"""

NOT_DELETED = "not-deleted"
"""What ``waiting`` is for a row of a plan that is worked off without messages: nothing waits, apply the plan again."""

FINAL = frozenset({DELETED, GONE, KEPT, REFUSED})

MARKED = "marked"
LEFT = "left"
"""Outcomes of phase ``mark``: a ledger is leaving its topic's metadata by our own compare-and-set; it stayed there."""

OFFLOAD = "offload"
RELEASE = "release-bookkeeper-copy"
"""Actions: copying a ledger to the object store; giving up its copy in BookKeeper after that."""

PREPARED = "prepared"
VERIFIED = "verified"
OFFLOADED = "offloaded"
ROLLED_BACK = "rolled-back"
ABANDONED = "abandoned"
TAKING_BACK = "taking-back"
"""Outcomes of action ``offload``. ``prepared``: its attempt is open. ``verified``: read back whole, every entry's
checksum agreed; ``detail`` has what the objects were then. ``offloaded``: its topic's metadata says so.
``rolled-back``: its topic's metadata names it no more; ``taking-back``: it is about to, as an operator said so.
``abandoned``: its objects are gone.
"""

READ_THROUGH_BROKER = "read-through-broker"
"""Action, and phase: having a broker read an offloaded ledger; ``detail`` has where it is."""

SEEN = "seen"
UNSEEN = "unseen"
UNANSWERED = "unanswered"
"""Outcomes of action ``read-through-broker``: it read it, and it reads the object store first; it could not; it did not
answer, or would not be asked.
"""

ABORT_UPLOAD = "abort-upload"
"""Action, and phase: dropping an upload that an offload run of ours left behind."""

ABORTING = "aborting"
ABORTED = "aborted"
"""Outcomes of action ``abort-upload``, beside ``kept`` and ``retrying``: it is about to be dropped; it is gone."""

RELEASED = "released"
"""Outcome of action ``release-bookkeeper-copy``: its topic's metadata says that its copy in BookKeeper is given up."""
