"""One topic that is to be loaded, as far as its visit has come, and whether its policies are still what they were.

Belongs here: values, what a policy that changed meanwhile means for them, and what came of a visit. Not here: its
steps (``visits.py``), who judges the topic before (``load_run.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from pulsar_lifecycle.lifecycle.load.fresh import TopicNow
from pulsar_lifecycle.lifecycle.load.monitors import Monitors
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.runs.control import PendingUnload
from pulsar_lifecycle.topics.retention_policy import MS_PER_MINUTE
from pulsar_lifecycle.values.codes import Code, Why


class LoadStep(StrEnum):
    """Why a step of a load ended as it did."""

    IN_METADATA = "in_metadata"
    """Metadata says so."""
    NOT_IN_TIME = "not_in_time"
    """Not within `load.timeout`."""
    MORE_WENT = "more_went"
    """It is through, and its broker took more ledgers off its list than retention and TTL let go: the reason says
    which. Something else acts on it, such as a policy that changed meanwhile."""
    LESS_WENT = "less_went"
    """It is through, and ledgers that were to go are still on its list: the reason says which."""
    ACKS_NOT_READ = "acks_not_read"
    """Its broker had not read, within `load.timeout`, all that a subscription of it acknowledged in transactions, or
    does not say so. It is not unloaded while that is so: an unload amid it may keep that broker from reading any more.
    The next run unloads it. If it says so again, restart the broker."""


@dataclass
class Visit:
    """A topic that is to be loaded by ``broker``; empty: whoever takes its bundle. ``before``: as it was judged.

    ``owned_since``: when (ms) that broker took the bundle, None where no lock says so. ``loaded_at``: when (ms) it was
    asked for first; 0 where nobody loaded it for us. ``unanswered``: its broker may still do what it was told, and load
    it again for that.
    ``unread``: what its broker has not read yet of acknowledgements in transactions (``unloads.unread_acks``).
    ``may_be_deleted``: its broker may delete it as inactive meanwhile, as the settings say. ``trims``: what its broker
    takes off its list, by the rule; ``may_trim``: by the end of the visit. ``gone``: it is deleted.
    ``leaving``: subscriptions that are to be deleted, with the czxid and version of their z-nodes as they were judged;
    ``together``: those of them that go on all partitions, or on none;
    ``expiry_minutes``: the time that some of them are past, None if none goes by it;
    ``unsubscribed``: those that were, ``stays``: why others are still there. ``monitors``: as brokers and policies said
    last, at ``checked_at`` (ms).
    """

    topic: Topic
    broker: str
    before: TopicNow
    retention_minutes: int
    ttl_seconds: int
    expiry_minutes: int | None = None
    leaving: Mapping[str, tuple[int, int]] = field(default_factory=dict[str, tuple[int, int]])
    together: Collection[str] = ()
    owned_since: int | None = None
    unanswered: bool = False
    pending: PendingUnload | None = None
    loaded_at: int = 0
    failure: Why | None = None
    unread: str | None = None
    going: set[int] = field(default_factory=set[int])
    targets: Mapping[str, Position] = field(default_factory=dict[str, Position])
    told_at: int = 0
    checked_at: int = 0
    may_be_deleted: bool = False
    trims: Collection[int] = ()
    may_trim: Collection[int] = ()
    gone: bool = False
    monitors: Monitors | None = None
    unsubscribed: set[str] = field(default_factory=set[str])
    stays: dict[str, Why] = field(default_factory=dict[str, Why])


def changed_policy(visit: Visit, monitors: Monitors | None) -> Why | None:
    """Whether nothing may expire of a topic any more, as its TTL, or the time for its subscriptions, is another one."""
    namespace = str(visit.topic.namespace)
    known = monitors is not None and namespace in monitors.ttl.by_namespace
    ttl = monitors.ttl.of(visit.topic) if monitors and known else None
    if ttl != visit.ttl_seconds:
        said = "not known" if ttl is None else f"{ttl} s"
        text = f"its TTL is {said} by now, was {visit.ttl_seconds} s: nothing more was expired"
        return Why(Code.CHANGED_MEANWHILE, text)
    expiry = monitors.expiry.get(namespace) if monitors else None
    if visit.expiry_minutes is not None and expiry != visit.expiry_minutes:
        said = "not known" if expiry is None else f"{expiry} min"
        text = f"its subscriptions expire after {said} by now, was {visit.expiry_minutes} min: no more were deleted"
        return Why(Code.CHANGED_MEANWHILE, text)
    return None


def came_of(visit: Visit, left: set[int], now: int) -> Why:
    """What left the list of a topic that is unloaded, and what was to leave it.

    A ledger without entries leaves at any load. So does a last one whose retention time, which that began, is over.
    """
    expected = {i for i, row in visit.before.rows.items() if row and row["entries"] == 0}.union(visit.may_trim)
    if 0 < visit.retention_minutes * MS_PER_MINUTE < now - visit.loaded_at:
        expected.update(visit.before.ids[-1:])
    kept = "".join(f"; subscription {name} stays: {why}" for name, why in visit.stays.items())
    text = f"it is unloaded{kept}; {len(left)} ledgers left its list"
    if more := left - expected:
        return Why(LoadStep.MORE_WENT, f"{text}, and {sorted(more)} were not to go")
    if less := set(visit.trims) - left:
        return Why(LoadStep.LESS_WENT, f"{text}, and {sorted(less)} were to go, too")
    return Why(LoadStep.IN_METADATA, text)
