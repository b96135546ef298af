"""Did the metadata store go back in time? Counters that only ever grow tell a restored backup from the store we knew.

Belongs here: the counters and their comparison. Not here: reading them (``scan/history_check.py``), what else makes a
plan report-only (``scan/coverage.py``). After a restore ledger ids are issued again, deleted ledgers are back, and
references written since the backup are gone: nothing that was learnt before may be combined with what is read now.
"""

from __future__ import annotations

from dataclasses import dataclass

from pulsar_lifecycle.values.gaps import Gap, GapCode

ELECTION_BITS = 32
"""A zxid's lower bits; the upper ones count leader elections (org.apache.zookeeper.server.util.ZxidUtils)."""

UNKNOWN = -1

NO_LEASE = (0, UNKNOWN)
"""As ``StoreCounters.lease``: there is no such z-node. Transactions are counted from 1."""


@dataclass(frozen=True, slots=True)
class StoreCounters:
    """Counters of one metadata store at one moment; :data:`UNKNOWN` compares with nothing.

    ``zxid``: its latest transaction. ``ids_issued``: changes to the children of ``/ledgers/idgen`` (Stat.cversion, 32
    bits, wraps): each ledger id that is issued adds to it. ``lease``: (czxid, version) of our lease's z-node, or
    :data:`NO_LEASE`: each deletion run adds to the version, and nothing of ours removes it.
    """

    fingerprint: str
    zxid: int
    ids_issued: int = UNKNOWN
    lease: tuple[int, int] = (UNKNOWN, UNKNOWN)


def went_back(now: StoreCounters, before: StoreCounters, when: str) -> Gap | None:
    """How the store of ``now`` cannot be the later state of the store of ``before``; None if it can.

    ``when`` says when ``before`` was, as in "scan 2026...".
    """
    if now.fingerprint != before.fingerprint:
        return _broken(
            f"this is another metadata store than at {when}: its fingerprint is {now.fingerprint}, "
            f"it was {before.fingerprint}"
        )
    if now.zxid < before.zxid:
        elected, was = now.zxid >> ELECTION_BITS, before.zxid >> ELECTION_BITS
        leader = f", by an earlier leader (epoch {elected}, it was {was})" if elected < was else ""
        return _broken(f"{BACK}: its newest transaction is {now.zxid:#x}, at {when} it was {before.zxid:#x}{leader}")
    if UNKNOWN not in (now.ids_issued, before.ids_issued) and _behind(now.ids_issued, before.ids_issued):
        counted = f"counter {now.ids_issued}, {before.ids_issued}"
        return _broken(f"{BACK}: it has issued fewer ledger ids than at {when} ({counted})")
    if UNKNOWN in (now.lease[0], before.lease[0]) or before.lease == NO_LEASE:
        return None
    if now.lease == NO_LEASE:
        return _broken(f"{BACK}: our lease's z-node does not exist, at {when} it did")
    if now.lease[0] != before.lease[0]:
        return _broken(
            f"{BACK}: transaction {now.lease[0]:#x} created our lease's z-node, at {when} it was {before.lease[0]:#x}"
        )
    if now.lease[1] < before.lease[1]:
        return _broken(f"{BACK}: our lease has version {now.lease[1]}, at {when} it had {before.lease[1]}")
    return None


def _broken(text: str) -> Gap:
    return Gap(GapCode.HISTORY_BROKEN, "", text)


BACK = "the metadata store went back in time"

WHAT_TO_DO = (
    "a backup was restored, or the settings name another cluster: everything is report-only. Once you know which, and "
    "the brokers run well on it, `pulsar-lifecycle accept-restore REASON` sets all earlier scans aside; two new scans, "
    "orphans.confirm_after apart, then begin afresh"
)


def _behind(now: int, before: int) -> bool:
    """Smaller, for a 32-bit counter that wraps."""
    return (now - before) & 0xFFFF_FFFF >= 0x8000_0000
