"""What may be wrong with a delayed index, by code, and what that does to messages.

Not here: how it is found (``index_findings.py``).
"""

from __future__ import annotations

from enum import StrEnum


class BucketProblem(StrEnum):
    """Why a bucket that a cursor names cannot be read."""

    BAD_KEY = "bad_key"
    """The property is not as brokers write it."""
    NO_LEDGER = "no_ledger"
    """Its snapshot's ledger does not exist, in the metadata store or on any bookie."""
    NOT_CLOSED = "not_closed"
    """Its snapshot's ledger was never closed: a broker that loads the topic closes it, and has what was written."""
    UNDECODABLE = "undecodable"
    """An entry of its snapshot is none, or there are fewer than entry 0 describes."""
    UNREAD = "unread"
    """Its snapshot could not be read; it may be whole."""


class IndexFinding(StrEnum):
    """What is wrong with the index of a subscription."""

    LOST = "lost"
    """A bitmap says that these messages are indexed, and no segment has them: brokers take them for tracked, and
    deliver them only after the subscription is reset or its index rebuilt."""
    MERGED_AND_LOST = "merged_and_lost"
    """A merged bucket lacks what was due first of each bucket that it was made of (apache/pulsar#26251). Entry 0 lacks
    it too: broker 4.0.7, once it loads the topic, reads those messages one by one and keeps them in memory."""
    NOT_INDEXED = "not_indexed"
    """Delayed, not acknowledged, of a ledger that is sealed, and in no bucket: a broker that loads the topic reads them
    one by one and keeps them in memory."""
    GAP = "gap"
    """Delayed messages before a bucket and in the range of none, too few for one of their own: a broker that loads the
    topic seals them, with later ones, over the bucket that follows. One that loads it after that deletes one of the
    two, and delivers little of what is delayed until it loads the topic once more."""
    NO_BUCKETS = "no_buckets"
    """Delayed messages enough for buckets, and the subscription has none: a broker that loads the topic reads all of
    them one by one and keeps them in memory. So does the tracker in memory, and one that fell back to it."""
    DUPLICATE = "duplicate"
    """Indexed more than once: in two buckets, or twice in one. Brokers count it twice, and may load a bucket's next
    segment late or never."""
    WRONG_TIME = "wrong_time"
    """Indexed for another time than the message says."""
    POINTS_NOWHERE = "points_nowhere"
    """Indexed entries that the topic does not have, and did not have: once one is due, a broker tries to read it again
    and again, and delivers nothing else that was delayed."""
    OUT_OF_RANGE = "out_of_range"
    """Indexed in a bucket whose range does not cover their ledger."""
    OVERLAPPING_RANGES = "overlapping_ranges"
    """Two buckets of the cursor cover one ledger: a broker that loads the topic deletes one of them."""
    KEY_WITHOUT_LEDGER = "key_without_ledger"
    """A bucket's ledger does not exist: a broker that loads the topic keeps the whole index in memory. One that has the
    ledger open delivers until it needs the bucket's next segment, and then nothing that was delayed."""
    LEDGER_WITHOUT_KEY = "ledger_without_key"
    """A snapshot that is tagged with this cursor, and that none of its properties names."""
    ORPHAN = "orphan"
    """A snapshot whose tagged cursor does not exist; the plan of orphans judges it."""
    BITMAP_UNLIKE_SEGMENTS = "bitmap_unlike_segments"
    """Entry 0's bitmaps or times are not those of the segments."""
    UNDECODABLE = "undecodable"
    """A snapshot, or a bucket's property, is not as brokers write it. With a bad property, a broker delivers nothing
    that was delayed; with a bad segment, nothing from there on; with a bad entry 0, it keeps the index in memory."""
    UNREAD = "unread"
    """A snapshot, or a ledger of the topic, could not be read: nothing is said of it."""
    PASSED = "passed"
    """All messages of a bucket are due by now, and it is still there."""
    RECOVERY_FALLBACK = "recovery_fallback"
    """A broker that loads the topic cannot recover a bucket: it keeps this whole subscription in memory, silently."""


class Harm(StrEnum):
    """What a finding does to messages."""

    LOST = "lost"
    """Messages are never delivered, as it is now."""
    LATE = "late"
    """Messages may be delivered late."""
    EARLY = "early"
    """Messages may be delivered early."""
    MEMORY = "memory"
    """Brokers need more memory, or read more; every message is delivered in time."""
    SPACE = "space"
    """Bytes that nobody needs."""
    UNKNOWN = "unknown"
    """Nothing is known."""


HARM = {
    IndexFinding.LOST: Harm.LOST,
    IndexFinding.MERGED_AND_LOST: Harm.MEMORY,
    IndexFinding.NOT_INDEXED: Harm.MEMORY,
    IndexFinding.GAP: Harm.LATE,
    IndexFinding.NO_BUCKETS: Harm.MEMORY,
    IndexFinding.DUPLICATE: Harm.LATE,
    IndexFinding.WRONG_TIME: Harm.LATE,
    IndexFinding.POINTS_NOWHERE: Harm.LATE,
    IndexFinding.OUT_OF_RANGE: Harm.LATE,
    IndexFinding.OVERLAPPING_RANGES: Harm.LATE,
    IndexFinding.KEY_WITHOUT_LEDGER: Harm.LATE,
    IndexFinding.LEDGER_WITHOUT_KEY: Harm.SPACE,
    IndexFinding.ORPHAN: Harm.SPACE,
    IndexFinding.BITMAP_UNLIKE_SEGMENTS: Harm.LATE,
    IndexFinding.UNDECODABLE: Harm.LATE,
    IndexFinding.UNREAD: Harm.UNKNOWN,
    IndexFinding.PASSED: Harm.SPACE,
    IndexFinding.RECOVERY_FALLBACK: Harm.MEMORY,
}
"""What each finding does at worst, as seen on brokers 4.0.7 that loaded topics whose snapshots had been spoilt so."""

RED = frozenset({Harm.LOST, Harm.LATE, Harm.EARLY})
"""What turns a check red."""
