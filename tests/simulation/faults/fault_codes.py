"""F1-F30: everything that goes wrong, by its code, so that a run can count that none is there in name only.

Belongs here: the names. Not here: the faults (``injections.py``, ``states.py``, ``queue_faults.py``, ``disasters.py``,
``traps.py``).
"""

from __future__ import annotations

NAMES = {
    "F1": "crash before or after a call of a port",
    "F2": "duplicate, reordered, late, redelivered intents; lost acknowledgements",
    "F3": "connection lost, outcome unknown",
    "F4": "stale reads before sync, stale lists of loaded topics",
    "F5": "a listing that skips a child",
    "F6": "topic loaded or unloaded meanwhile",
    "F7": "topic deleted and created again under its name",
    "F8": "schema, cursor, compaction, snapshot or reference made meanwhile",
    "F9": "metadata store restored from a backup",
    "F10": "two runs at once",
    "F11": "clock skew, ctime 0 or in the future",
    "F12": "brokers or z-nodes that answer with an error, all or some",
    "F13": "z-node corrupted",
    "F14": "ZooKeeper slow",
    "F15": "bookie down",
    "F16": "object store fails, of journal, archive or offloaded ledgers, before or after it did its part",
    "F17": "offload attempts incomplete, offloaded copies of listed ledgers",
    "F18": "executor lost, speculative duplicate task",
    "F19": "poison and forged messages, dead letters sent again",
    "F20": "plan of another cluster, or not the plan that was looked at",
    "F21": "other systems and a declared cluster on the same BookKeeper",
    "F22": "a broker of another version deletes what is queued; weeks without us",
    "F23": "brokers that hand out few unacknowledged messages, and a flood of one sender",
    "F24": "topics vanish while their ledgers stay, entries that name ledgers are damaged",
    "F25": "a second cluster on the same ZooKeeper that nobody declared",
    "F26": "two copies of a ledger that differ amid their entries, one of which nothing names",
    "F27": "a topic whose z-node is away at two scans and there between them",
    "F28": "a shadow topic whose z-node is away while its source is trimmed",
    "F29": "a broker that never says what it has in memory of one topic",
    "F30": "a broker that loads a topic as it is trimmed, and leaves an open ledger; other open ledgers of its name",
}
