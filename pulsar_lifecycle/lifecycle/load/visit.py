"""One topic that is to be loaded, as far as its visit has come, and whether its policies are still what they were.

Belongs here: values, and what a policy that changed meanwhile means for them. Not here: the steps of a visit
(``visits.py``), who judges the topic before (``load_run.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pulsar_lifecycle.lifecycle.load.fresh import TopicNow
from pulsar_lifecycle.lifecycle.load.monitors import Monitors
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.runs.control import PendingUnload
from pulsar_lifecycle.values.codes import Code, Why


@dataclass
class Visit:
    """A topic that is to be loaded by ``broker``; empty: whoever takes its bundle. ``before``: as it was judged.

    ``owned_since``: when (ms) that broker took the bundle, None where no lock says so. ``untouched``: nobody loaded it
    for us, as its bundle had moved since or we may not. ``unanswered``: its broker may still do what it was told, and
    load it again for that.
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
    untouched: bool = False
    unanswered: bool = False
    pending: PendingUnload | None = None
    loaded_at: int = 0
    failure: Why | None = None
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
