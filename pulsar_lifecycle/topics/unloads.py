"""Unloads that follow our own writes of topics' z-nodes: their budget, and making those that are pending.

Belongs here: when a topic must be unloaded, and how often that is tried. Not here: the z-nodes that remember it
(``runs/control.py``) and the writes that ask for it (``trimming/trim.py``).
"""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial

from pulsar_lifecycle.bundles.guard import others_loaded
from pulsar_lifecycle.errors import AccessDenied, BundleShared, LifecycleError, NotFound, Unavailable
from pulsar_lifecycle.metastore import load_state, walk
from pulsar_lifecycle.model import Topic, encode_name
from pulsar_lifecycle.ports import BrokerAdmin, Clock, MetadataStore, Node, Unread
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.control import BrokenPendingUnload, PendingUnload
from pulsar_lifecycle.throttle import RateBudget
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.unload_budget import UnloadBudget
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.topic_load import READS_NO_ACKS

_LOG = logging.getLogger(__name__)

TRIES = 3
"""How often one unload is tried in a run."""

MAX_FAILURES = 3
"""Topics in a row, of one tenant or tenants, whose unload failed, after which the others are left to the next run,
written or pending: a broker that is down fails them all."""

WATCHED_FOR = 2
"""Statistics intervals after which no broker may list a topic that was written as unloaded."""
HANGS_FOR = 15
"""Statistics intervals in which a broker that hangs, and whose session ended, may come back with what it had."""

_USED_UP = "this run's budget of unloads is used up (trimming.max_unloads)"


class UnloadAttempt(Enum):
    """What came of unloading a topic before it is written, where it did not fail."""

    NOT_NEEDED = auto()
    """Nothing speaks against unloading it after the write."""
    UNLOADED = auto()
    """No broker has it by now."""


class UnloadAfter(Enum):
    """What a topic is unloaded for, which says what a failure means to the rest of the run."""

    WRITE = auto()
    """This run wrote it: what keeps one from being unloaded, a lack of rights too, stops further writes."""
    LOAD = auto()
    """This run had it loaded, and wrote nothing: a refusal is that topic's alone, a server that fails is not."""
    OTHERS = auto()
    """It was pending before, or is nobody's write: it says nothing of what this run does."""


class Unloads:
    """A run's budget of unloads: ``per_second``, and ``limit`` in all; and whether they work at all.

    Threads may share one.
    """

    def __init__(self, per_second: float, limit: int, clock: Clock) -> None:
        self._per_second = per_second
        self._rate = RateBudget(per_second, clock)
        self._clock = clock
        self._budget = UnloadBudget(limit)
        self._stopping: list[str] = []
        """How unloads failed that end the run: of topics that it wrote, or of servers that do not do it."""
        self._refused: dict[str, list[str]] = {}
        """By tenant: how brokers refused to unload what this run had them load, since one worked."""
        self._failures: dict[str, list[str]] = {}
        """By tenant: how pending unloads failed, from before or since this run."""
        self._down: set[str] = set()
        """Tenants of which one failed, and not for a reason of its own or of its tenant."""
        self._works: set[str] = set()
        """Tenants of which one worked, and none of what this run wrote failed since."""
        self._tried: dict[str, list[str]] = {}
        """By tenant: why topics could not be unloaded before a write. An unload that works empties it."""
        self._unloaded: set[Topic] = set()

    def share(self, shares: int) -> Unloads:
        """One of so many shares of the rate; the budget is the same.

        It judges by itself whether unloads work, from what pending ones, and those of other topics, came to so far.
        """
        found = Unloads(self._per_second / shares, 0, self._clock)
        found._budget = self._budget
        found._failures = {tenant: list(failures) for tenant, failures in self._failures.items()}
        found._down, found._works = set(self._down), set(self._works)
        return found

    def keep(self, topic: Topic, unloads: int) -> bool:
        """Whether so many are left, which are kept for a topic until it takes them or :meth:`give_back`."""
        return self._budget.keep(topic, unloads)

    def give_back(self, topic: Topic) -> None:
        """What is kept for a topic, and was not taken, is left for others."""
        self._budget.give_back(topic)

    def lacks(self, unloads: int = 1, topic: Topic | None = None) -> Why | None:
        """Why the run may do nothing that needs so many unloads, of ``topic``; None if it may.

        Once ``MAX_FAILURES`` of what this run wrote failed, or one for lack of permission, it writes nothing more. Of
        what it had brokers load, only those count that a server failed at.
        """
        if not self._budget.has(unloads, topic):
            return Why(Code.NOT_UNLOADED, "this run may unload no more (trimming.max_unloads)")
        if len(self._stopping) >= MAX_FAILURES:
            return Why(Code.NOT_UNLOADED, f"unloads fail: {self._stopping[-1]}")
        return None

    def doubt(self, topic: Topic) -> Why | None:
        """Why a topic that is not loaded should stay so: ``MAX_FAILURES`` pending unloads of its tenant fail.

        Or they are :attr:`down`. None if nothing speaks against it.
        """
        tenant = topic.namespace.tenant
        failures = self._failures.get(tenant, [])
        if tenant not in self._works and len(failures) >= MAX_FAILURES:
            fail = f"pending unloads of tenant {tenant} fail (`pulsar-lifecycle status`): {failures[0]}"
            return Why(Code.NOT_UNLOADED, fail)
        if self.down:
            first = next(failed[0] for name, failed in self._failures.items() if name in self._down)
            return Why(Code.NOT_UNLOADED, f"pending unloads fail (`pulsar-lifecycle status`): {first}")
        return None

    def refused(self, topic: Topic) -> Why | None:
        """Why a topic should not be loaded: brokers refused to unload ``MAX_FAILURES`` of its tenant in a row."""
        said = self._refused.get(topic.namespace.tenant, [])
        if len(said) < MAX_FAILURES:
            return None
        return Why(Code.NOT_UNLOADED, f"brokers refuse to unload topics of its tenant: {said[0]}")

    def try_before(self, store: MetadataStore, admin: BrokerAdmin, topic: Topic) -> UnloadAttempt | Why:
        """Unload a loaded topic before it is written, if an unload of this run, or a pending one, has failed.

        Of whatever tenant, while nothing of this one has worked. Otherwise ``NOT_NEEDED``. Once it is ``UNLOADED``,
        look at the topic anew. After ``MAX_FAILURES`` of a tenant failed in a row, or one for lack of permission, no
        more are tried. Nothing is pending after this.
        """
        if not self.tries_before(topic):
            return UnloadAttempt.NOT_NEEDED
        tenant = topic.namespace.tenant
        failures = self._tried.setdefault(tenant, [])
        if len(failures) >= MAX_FAILURES:
            return Why(Code.NOT_UNLOADED, f"topics of its tenant cannot be unloaded: {failures[0]}")
        if unread := self.wait_for_acks(store, admin, topic):
            return Why(Code.NOT_UNLOADED, unread)
        if not self.take(topic):
            return Why(Code.NOT_UNLOADED, _USED_UP)
        failure = self._tries(admin, topic, lambda: False)
        if failure and not isinstance(failure, NotFound | BundleShared):  # which say nothing of any other topic
            failures += _weighed(failure)
        return Why(Code.NOT_UNLOADED, f"it cannot be unloaded: {failure}") if failure else UnloadAttempt.UNLOADED

    def tries_before(self, topic: Topic) -> bool:
        """Whether a loaded topic is to be unloaded before it is written, by what is known of unloads so far."""
        sure = not self._failures or (topic.namespace.tenant in self._works and not self._stopping)
        return not sure and topic not in self._unloaded

    def has_unloaded(self, topic: Topic) -> bool:
        """Whether this run has unloaded a topic."""
        return topic in self._unloaded

    @property
    def down(self) -> bool:
        """Whether unloads of ``MAX_FAILURES`` tenants failed in this run, and none worked: brokers are at fault."""
        return not self._works and len(self._down) >= MAX_FAILURES

    def wait(self) -> None:
        """Wait until the next unload may follow at once."""
        self._rate.take(0)

    def unload(
        self,
        store: MetadataStore,
        admin: BrokerAdmin,
        topic: Topic,
        gone: Callable[[], bool] = lambda: False,
        after: UnloadAfter = UnloadAfter.WRITE,
    ) -> Why | None:
        """Unload a topic, a few times if need be; returns why it failed, None when it is done.

        Repeating it is harmless, so an unknown outcome is simply tried again. A 404 proves nothing: ``gone`` is asked
        then whether no broker has the topic. What failed before stops no pending unload, the budget does.
        What was pending before may be of a tenant whose topics we may not touch. Nor is it done while its broker reads
        for the topic (:func:`unread_acks`), which is waited for a moment.
        """
        if unread := self.wait_for_acks(store, admin, topic):
            return Why(Code.NOT_UNLOADED, unread)
        if not self.take(topic):
            return Why(Code.NOT_UNLOADED, _USED_UP)
        failure = self._tries(admin, topic, gone)
        if failure is None:
            return None
        if isinstance(failure, BundleShared) and after is not UnloadAfter.WRITE:  # nobody was asked
            return Why(Code.NOT_UNLOADED, str(failure))
        self._failures.setdefault(topic.namespace.tenant, []).extend(_weighed(failure))
        if not isinstance(failure, AccessDenied | NotFound):
            self._down.add(topic.namespace.tenant)
        if after is UnloadAfter.WRITE:
            self._stopping += _weighed(failure)
            self._works.discard(topic.namespace.tenant)
        elif after is UnloadAfter.LOAD and isinstance(failure, Unavailable):
            self._stopping.append(str(failure))
        elif after is UnloadAfter.LOAD:
            self._refused.setdefault(topic.namespace.tenant, []).append(str(failure))
        return Why(Code.NOT_UNLOADED, str(failure))

    def take(self, topic: Topic) -> bool:
        """Whether there is one left for a topic, which is taken."""
        return self._budget.take(topic)

    def wait_for_acks(self, store: MetadataStore, admin: BrokerAdmin, topic: Topic) -> str | None:
        """:func:`unread_acks`, once a moment has passed in which its broker may have read them."""
        for _ in range(TRIES - 1):
            if unread_acks(store, admin, topic) is None:
                return None
            self._clock.sleep(1.0)
        return unread_acks(store, admin, topic)

    def _tries(self, admin: BrokerAdmin, topic: Topic, gone: Callable[[], bool]) -> LifecycleError | None:
        error: LifecycleError | None = None
        for tried in range(TRIES):
            self._rate.take(1)
            try:
                admin.unload(topic)
            except NotFound as failure:
                return None if gone() else failure
            except (AccessDenied, BundleShared) as failure:
                return failure
            except LifecycleError as failure:
                error = failure
                if tried + 1 < TRIES:
                    self._clock.sleep(2.0**tried)
            else:
                self._unloaded.add(topic)
                self._works.add(topic.namespace.tenant)
                self._tried.pop(topic.namespace.tenant, None)
                self._refused.pop(topic.namespace.tenant, None)
                return None
        return error


def _weighed(failure: LifecycleError) -> list[str]:
    """A failed unload; one that is denied counts for as many as end the trying."""
    return [str(failure)] * (MAX_FAILURES if isinstance(failure, AccessDenied) else 1)


@dataclass(frozen=True, slots=True)
class RunGuard:
    """What lets a run act: the lease's fencing z-node, and its unloads."""

    guard: tuple[str, int]
    unloads: Unloads

    def check(self, store: MetadataStore) -> None:
        """Raise Paused or LeaseLost."""
        control.check_may_go_on(store, self.guard)


def finish_unloads(
    store: MetadataStore, admin: BrokerAdmin, clock: Clock, guard: RunGuard, *, wait: bool
) -> dict[str, str]:
    """Unload every loaded topic with a pending unload, and every other one that some broker lists after all.

    What was loaded, and no broker has any more, is done: an unload would have one load it. It stays pending for as long
    as a broker that hangs may come back with it.
    A topic that was written as unloaded is looked at now and, with ``wait``, once more two statistics intervals after
    its last write, whose ever that was: a broker that hung may load it, and list it, long after it was told to. Else
    that is left to the next run, and so is always one whose broker still reads for it (:func:`unread_acks`).
    Returns what could not be done, and why; it stays pending. By topic, or by z-node where its name says no topic. What
    cannot be read is logged, too, and hinders no other.
    Raises Paused, LeaseLost, AccessDenied if nothing can be listed.
    """
    guard.check(store)
    still_pending: dict[str, str] = {}
    watched: list[PendingUnload] = []
    failed: Counter[str] = Counter()
    found = list(control.pending_for(store, guard.guard))
    loaded = [one for one in found if isinstance(one, PendingUnload) and one.loaded]
    unlisted = _unlisted(store, admin, clock, loaded)
    control.finish_many_unloads(store, [one for one, left in unlisted.items() if left <= 0], guard.guard)
    for one, left in unlisted.items():
        if left > 0:
            why = f"no broker lists it; one that hangs may have it for {left // 1000} s yet"
            _stays(still_pending, one, why)
    found = [one for one in found if one not in unlisted]
    first = clock.now_ms() % max(1, len(found))  # in another order each time: the first ones may fail always
    for pending in found[first:] + found[:first]:
        if isinstance(pending, BrokenPendingUnload):
            _LOG.warning("pending unload: %s", pending.why)
            still_pending[str(pending.topic or pending.path)] = pending.why.text
        elif pending.loaded:
            _unload(store, admin, clock, guard, pending, still_pending, failed)
        else:
            watched.append(pending)
    for last in (False, True) if wait else (True,):
        if not watched:
            break
        try:
            brokers = load_state.fetch_brokers(store, admin)
        except LifecycleError as error:
            return still_pending | {str(pending.topic): f"the brokers did not answer: {error}" for pending in watched}
        for pending in [pending for pending in watched if str(pending.topic) in brokers.loaded]:
            watched.remove(pending)
            _unload(store, admin, clock, guard, pending, still_pending, failed)
        nodes = zip(watched, _topic_nodes(store, watched), strict=True)
        left = {one: _watch_left(one, node, brokers.stats_interval, clock.now_ms()) for one, node in nodes}
        control.finish_many_unloads(store, [pending for pending in watched if left[pending] <= 0], guard.guard)
        watched = [pending for pending in watched if left[pending] > 0]
        if watched and not last:
            clock.sleep(max(left.values()) / 1000)
            guard.check(store)
    return still_pending


def _unload(
    store: MetadataStore,
    admin: BrokerAdmin,
    clock: Clock,
    guard: RunGuard,
    pending: PendingUnload,
    still_pending: dict[str, str],
    failed: Counter[str],
) -> None:
    """Finish one; ``failed`` counts by tenant, and a tenant whose topics fail keeps no other one from its turn."""
    tenant = pending.topic.namespace.tenant
    if failed[tenant] >= MAX_FAILURES or guard.unloads.down:
        still_pending[str(pending.topic)] = "not tried after others failed"
    elif unread := unread_acks(store, admin, pending.topic):
        _stays(still_pending, pending, unread)
    elif others := others_loaded(admin, pending.topic):
        _stays(still_pending, pending, others.text)
    elif failure := guard.unloads.unload(
        store, admin, pending.topic, partial(is_gone, store, admin, clock, pending), UnloadAfter.OTHERS
    ):
        failed[tenant] += 1
        _stays(still_pending, pending, failure.text)
    else:
        control.finish_unload(store, pending)


def _stays(still_pending: dict[str, str], pending: PendingUnload, why: str) -> None:
    _LOG.warning("pending unload of %s: %s", pending.topic, why)
    still_pending[str(pending.topic)] = why


def unread_acks(store: MetadataStore, admin: BrokerAdmin, topic: Topic) -> str | None:
    """Why a topic that was loaded lately is not to be unloaded yet; None if it may be.

    At each load its broker reads the logs of what subscriptions acknowledged in transactions. An unload amid that may
    leave the thread that reads waiting for good, and no topic whose logs it is to read can be used until the broker is
    restarted (``MLPendingAckStore.PendingAckReplay``, Pulsar 4.0.7).
    """
    try:
        logged = logs_of_acks(store, topic)
    except LifecycleError as error:
        return f"whether its broker still reads what was acknowledged in transactions is not known: {error}"
    for name in logged:
        what = f"what subscription {name} acknowledged in transactions"
        try:
            state = admin.pending_acks(topic, name)
        except NotFound:
            return f"no broker has it, to have read {what}; if that lasts, have a client use it"
        except LifecycleError as error:
            return f"its broker does not say whether it has read {what}: {error}"
        if state not in READS_NO_ACKS:
            return f"its broker has not read all of {what} ({state}); if that lasts, restart the broker"
    return None


def logs_of_acks(store: MetadataStore, topic: Topic) -> list[str]:
    """The subscriptions of a topic that have logs of what they acknowledged in transactions."""
    names = [encode_name(name) for name in snapshot.cursor_names(store, topic)]
    return sorted(snapshot.with_pending_acks(store, topic, names))


def is_gone(store: MetadataStore, admin: BrokerAdmin, clock: Clock, pending: PendingUnload) -> bool:
    """Whether no broker has a topic: its z-node is gone, or all brokers list it no more. What is not known is no."""
    return bool(_unlisted(store, admin, clock, [pending]))


def _unlisted(
    store: MetadataStore, admin: BrokerAdmin, clock: Clock, pending: Sequence[PendingUnload]
) -> dict[PendingUnload, int]:
    """Those that :func:`is_gone`, and for how long (ms) a broker that hangs may have one yet."""
    found: dict[PendingUnload, int] = {}
    with contextlib.suppress(LifecycleError):
        there = _topic_nodes(store, pending)
        found |= {one: 0 for one, node in zip(pending, there, strict=True) if node is None}
        if rest := [one for one, node in zip(pending, there, strict=True) if node is not None]:
            brokers = load_state.fetch_brokers(store, admin)
            for one, node in zip(rest, _topic_nodes(store, rest), strict=True):
                if str(one.topic) not in brokers.loaded:
                    left = _watch_left(one, node, brokers.stats_interval, clock.now_ms())
                    if left <= 0:
                        found[one] = left + (HANGS_FOR - WATCHED_FOR) * brokers.stats_interval
    return found


def _topic_nodes(store: MetadataStore, pending: Sequence[PendingUnload]) -> list[Node | Unread | None]:
    store.sync("/")
    return store.read([f"{walk.MANAGED_LEDGERS_ROOT}/{one.topic.managed_ledger}" for one in pending])


def _watch_left(pending: PendingUnload, node: Node | Unread | None, stats_interval: int, now: int) -> int:
    """How long (ms) a topic, whose z-node is ``node``, must be watched yet: a load writes that.

    Another machine's clock, which dated it, may be ahead.
    """
    written = node.stat.mtime if isinstance(node, Node) else 0
    return min(max(pending.since, written), now) + WATCHED_FOR * stats_interval - now
