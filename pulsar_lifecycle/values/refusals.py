"""Why a launch is refused as a whole, as codes; the sentence is made where the rule stands.

Belongs here: what stops a run before its first effect, or all of its effects. Not here: why one ledger or topic stays
(``codes.py``, ``topics/protection.py``), why a plan is report-only (``gaps.py``).
"""

from __future__ import annotations

from enum import StrEnum


class RefusalCode(StrEnum):
    """The code of a refused launch."""

    SWITCHED_OFF = "switched_off"
    """`deletion.topicTwoPhaseDeletionEnabled` is off."""
    PLAN_DIFFERS = "plan_differs"
    """The digests of the plan's files, of its summary and of the launch are not the same: take it from its page."""
    OTHER_CLUSTER = "other_cluster"
    """The plan, or the scan, is of another cluster."""
    REPORT_ONLY = "report_only"
    """The plan has gaps: mend what they name, scan again."""
    PLAN_EXPIRED = "plan_expired"
    """The plan is older than `orphans.plan_valid_for`, or from the future: make a new one."""
    OLD_VERSION = "old_version"
    """A version before this one made the plan: make a new one."""
    SCAN_GONE = "scan_gone"
    """The scan of the plan is not kept any more: make a new one."""
    SCAN_EXPIRED = "scan_expired"
    """The scan is older than `orphans.plan_valid_for`: scan again."""
    SCAN_NOT_COVERED = "scan_not_covered"
    """The newest scan is not covered, or did not read every root that the settings name: mend its gaps, scan again."""
    SCAN_UNFINISHED = "scan_unfinished"
    """The scan is still being made, or its run ended before it did: wait, or scan again."""
    SCAN_FINISHED = "scan_finished"
    """The scan is finished, and takes no more tables: make another."""
    WORD_WITHDRAWN = "word_withdrawn"
    """The settings do not say any more what the scan counted on: scan again."""
    CLOCKS_DIFFER = "clocks_differ"
    """The scan or the plan is dated after the metadata store's time: set the clocks right, scan again."""
    STORE_WENT_BACK = "store_went_back"
    """The metadata store is not a later state of what the scans saw: see After a restore."""
    BELOW_FLOOR = "below_floor"
    """A waiting time is under its floor, which only the sandbox's marker allows."""
    MAX_LEDGERS = "max_ledgers"
    """More ledgers than `apply.max_ledgers`."""
    MAX_SHARE = "max_share"
    """A larger share of the cluster than `apply.max_share`."""
    MAX_BYTES = "max_bytes"
    """More bytes than `apply.max_bytes`."""
    MAX_LEDGERS_PER_TOPIC = "max_ledgers_per_topic"
    """More ledgers of one topic than `apply.max_ledgers_per_topic`."""
    LEASE_HELD = "lease_held"
    """Another run acts: wait until it ends."""
    NO_OBJECT_STORE = "no_object_store"
    """`object_store` is not set."""
    RACKS_UNKNOWN = "racks_unknown"
    """The bookies' racks cannot be read."""
    NOTHING_RESTORED = "nothing_restored"
    """`accept-restore`: no scan found that the metadata store was restored."""
    READ_ONLY = "read_only"
    """The connection to the metadata store was opened to read, and writes nothing."""
