"""A topic's z-node written by compare-and-set, with the unload that this asks for: one step that survives a crash.

Belongs here: noting the unload before the write, what an unknown outcome leaves, finishing. Not here: what is written,
and why it may be (``trimming/trim.py``). A broker that has the topic is fenced by its next
metadata write, unless the topic is unloaded at once; a topic that was written as unloaded is looked at again by whoever
does the pending unloads (``unloads.py``).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from functools import partial

from pulsar_lifecycle.bundles.guard import others_loaded
from pulsar_lifecycle.errors import (
    ConfigError,
    Conflict,
    LeaseLost,
    LifecycleError,
    NotFound,
    OutcomeUnknown,
    Overloaded,
    Paused,
    RefusedBy,
    Unavailable,
)
from pulsar_lifecycle.formats import ledger_path, managed_ledger
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.metastore import load_state
from pulsar_lifecycle.metastore.list_writes import ListWrite
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Namespace, Topic
from pulsar_lifecycle.ports import MetadataStore, Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.control import PendingUnload
from pulsar_lifecycle.topics import protection, snapshot
from pulsar_lifecycle.topics.load_losses import LoadLosses
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.snapshot import Shadows
from pulsar_lifecycle.topics.unloads import RunGuard, UnloadAttempt, is_gone, logs_of_acks, unread_acks
from pulsar_lifecycle.values import findings, owner_names
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.topic_load import LoadState

STOPPING = (Paused, LeaseLost, Overloaded)
"""Errors that end a run, whatever topic it is at."""

SHADOWS_SEEN_FOR = 60_000
"""How long (ms) a look at all shadow topics serves what by itself deletes no data."""


def _unknown(namespace: Namespace) -> LoadLosses:
    return LoadLosses()


@dataclass(frozen=True, slots=True)
class TopicRun:
    """What a run that writes topics' z-nodes knows.

    ``now`` and ``brokers`` as in ``decision.Run``. ``loaded_topics`` is the policy's word on writing the z-nodes of
    loaded topics: of all, of none, or of those of these tenants, namespaces and topics. ``context`` is of the newest
    scan; ``shadows`` adds what became the source of a shadow topic since.
    """

    run_id: str
    cluster: str
    ledgers_root: str
    now: int
    brokers: Brokers
    context: findings.Context
    deliver_after_ms: int
    loaded_topics: bool | frozenset[str]
    shadows: Shadows
    plan_id: str = ""
    """The plan that it applies, if it does."""
    holds_now: Callable[[], frozenset[str]] = frozenset
    """What is on legal hold whenever it is asked, beside what ``context`` has. Raises ConfigError if nobody knows."""
    losses: Callable[[Namespace], LoadLosses] = _unknown
    """What topics of a namespace lose by a load."""

    def writes_loaded(self, topic: Topic) -> bool:
        """Whether the policy lets this topic's z-node be written while a broker has it."""
        return writes_loaded(self.loaded_topics, topic)

    def lost_at_load(self, topic: Topic, cursors: Collection[str]) -> Why | None:
        """What a topic with cursors of these names (``model.cursor_name``) loses once a broker loads it; None: nothing.

        What asks a broker for anything of a topic that none has, an unload too, has one load it.
        """
        loss = self.losses(topic.namespace).of(topic, cursors)
        return loss.why if loss else None

    def topic_rule(self, topic: Topic, shadow_source: str, max_age: int = 0) -> Why | None:
        """``protection.topic_rule`` by the holds of now; sources of shadow topics are at most ``max_age`` ms old."""
        seen = self.shadows.sources(max_age)
        try:
            holds = self.context.holds | self.holds_now()
        except ConfigError as error:
            first, *_ = str(error).splitlines()
            return Why(Protection.LEGAL_HOLD, f"what is on legal hold by now is not known: {first}")
        context = replace(self.context, shadow_sources=self.context.shadow_sources | seen.names, holds=holds)
        return protection.topic_rule(topic, shadow_source or seen.of_partition(topic), context)


def writes_loaded(loaded_topics: bool | Collection[str], topic: Topic) -> bool:
    """Whether a policy on loaded topics, as of :class:`TopicRun`, names this one."""
    if isinstance(loaded_topics, bool):
        return loaded_topics
    return not set(loaded_topics).isdisjoint(owner_names.holders(str(topic.namespace), str(topic)))


class TopicWrite:
    """Writes of one topic's z-node by one run; at most one of them may have reached it when it is finished."""

    def __init__(self, ports: Ports, guard: RunGuard, topic: Topic) -> None:
        self._store, self._admin, self._clock = ports.store, ports.admin, ports.clock
        self._guard, self._topic = guard, topic
        self._pending: PendingUnload | None = None
        self._newly_noted = False
        self._written = False
        self._unknown: int | None = None
        """Version of the z-node that a write of ours was based on whose outcome is not known yet."""
        self.list_write: ListWrite | None = None
        """The write that was made, if its answer came."""

    @property
    def unknown(self) -> bool:
        """Whether a write of ours may have reached the z-node, and nobody has looked since."""
        return self._unknown is not None

    def seen(self, version: int) -> None:
        """The z-node was read and has this version: that tells what became of a write whose outcome was not known."""
        if self._unknown is not None:
            self._written = self._written or version != self._unknown
            self._unknown = None

    def note_unload(self, loaded: bool) -> None:
        """Note the unload that the coming write asks for: at once of a ``loaded`` topic, else if some broker has it.

        Anew for each try: whoever took our lease over may have finished it meanwhile.
        """
        pending = PendingUnload(self._topic, loaded, self._clock.now_ms(), self._guard.guard[0])
        self._newly_noted = control.note_unload(self._store, pending) or self._newly_noted
        self._pending = pending

    def write(self, node: Node, data: bytes, checked: str) -> bool:
        """Compare-and-set ``node`` while its :func:`checked_path` is ``checked`` it; :meth:`note_unload` comes before.

        False: what is there now decides, read it again.
        """
        try:
            stat = self._store.write(node.path, data, node.stat.version, [(checked, -1)] if checked else ())
        except OutcomeUnknown:
            self._unknown = node.stat.version
            return False
        except (Conflict, NotFound):
            return False
        self._written = True
        read, written = node.stat, stat
        self.list_write = ListWrite(read.czxid, read.mzxid, written.mzxid, written.version, written.mtime)
        return True

    def finish_after(self, error: LifecycleError) -> None:
        """As :meth:`finish`, after an error. A definite answer leaves no doubt of what was written."""
        self.finish(sure=not isinstance(error, (Unavailable, *STOPPING)) and not self.unknown)

    def finish(self, *, sure: bool) -> Why | None:
        """The unload that our write asks for; returns why it failed. What is not done here stays pending.

        If the run is not ``sure`` of what it wrote, a loaded topic is unloaded all the same; its unload stays pending.
        """
        pending = self._pending
        if pending is None:
            return None
        if not self._written and self._unknown is None:
            return self._forget(pending) if sure and self._newly_noted else None
        if not pending.loaded:
            return None  # at its end the run looks whether some broker loaded it meanwhile
        if self._newly_noted and self._is_nowhere(pending.topic):
            with contextlib.suppress(LifecycleError):  # as it is noted now, a later run finds it in time
                control.note_unload(self._store, replace(pending, loaded=False))
            return None
        gone = partial(is_gone, self._store, self._admin, self._clock, pending)
        failure = self._guard.unloads.unload(self._store, self._admin, pending.topic, gone)
        if sure and not failure:
            return self._forget(pending)
        if failure:
            with contextlib.suppress(LifecycleError):  # it is there, unless a run of another lease has finished it
                control.note_unload(self._store, pending)
        return failure

    def _is_nowhere(self, topic: Topic) -> bool:
        """Whether this run unloaded a topic, and no broker has had it since to read its acknowledgements' logs.

        An unload would have one load it, and read them.
        """
        if not self._guard.unloads.has_unloaded(topic):
            return False
        try:
            for name in logs_of_acks(self._store, topic):
                self._admin.pending_acks(topic, name)
        except LifecycleError as error:
            return isinstance(error, NotFound)
        return False

    def _forget(self, pending: PendingUnload) -> Why | None:
        try:
            control.finish_unload(self._store, pending)
        except LifecycleError as error:
            return Why(Code.SERVER_FAILED, f"the note of that could not be removed: {error}")
        self._pending = None
        return None


def checked_path(store: MetadataStore, root: str, topic: Topic, node: Node, info: ManagedLedgerInfo) -> str:
    """The z-node of a ledger that goes when the topic is deleted; a write of the topic demands that it is still there.

    A topic that was deleted and created again meanwhile may have come to the same version, but its deletion took this
    ledger with it. It is the last of those that BookKeeper has and that the topic, read as ``node``, does not list as
    deleted there: a broker leaves those behind. Raises Refused where there is none, or another topic of the name by
    now.
    """
    ids = sorted((i.ledger_id for i in info.ledgers if not (i.offload and i.offload.bookkeeper_deleted)), reverse=True)
    paths = [ledger_path.ledger_path(one, root) for one in ids]
    for some in (paths[:1], paths[1:]):
        *found, now = store.read([*some, node.path])  # the topic last: it was there when its ledgers were read
        if not isinstance(now, Node) or now.stat.czxid != node.stat.czxid:
            raise RefusedBy(Code.CHANGED_MEANWHILE, f"{topic} was deleted while it was looked at; run again")
        for path, ledger in zip(some, found, strict=True):
            if ledger is not None:
                return path
    raise RefusedBy(
        Code.LEDGERS_MISSING,
        f"{topic}: BookKeeper has none of the ledgers that it lists as there, so nothing tells it from a topic of the "
        "same name that is created meanwhile; produce to it once: its broker then adds a ledger",
    )


def why_loaded(
    store: MetadataStore, root: str, brokers: Brokers, now: int, topic: Topic, node: Node, info: ManagedLedgerInfo
) -> Why | None:
    """Why a topic counts as loaded; None if it is unloaded. ``now`` (ms) is from before ``brokers`` were asked."""
    last = max((item.ledger_id for item in info.ledgers), default=None)
    state = load_state.ledger_states(store, [last], root)[0]
    load = load_state.load_state(info, node.stat.mtime, state, brokers.loaded.get(str(topic)), brokers, now)
    return Why(load.reason, load.text) if load.state is LoadState.LOADED else None


def left_loaded(
    run: TopicRun,
    ports: Ports,
    topic: Topic,
    loaded: Why,
    policy: str,
    *,
    guard: RunGuard | None = None,
    dry_run: bool = False,
) -> Why | None:
    """Why a topic that counts as ``loaded`` is not written: ``policy`` does not name it, or its unload loses data.

    Or it is not to be unloaded yet (:func:`~pulsar_lifecycle.topics.unloads.unread_acks`); or the run whose ``guard``
    this is, and that is to unload it next, may unload no more.
    An unload has a broker load it first where none has it, and its clients have one load it again. ``dry_run``, and
    what is raised: as :func:`lost_by_load`.
    """
    if not run.writes_loaded(topic):
        return Why(Code.TOPIC_LOADED, f"its topic counts as loaded ({loaded}), and {policy} does not name it")
    if guard and (lack := _lacks_unload(guard, topic)):
        return lack
    if unread := unread_acks(ports.store, ports.admin, topic):
        return Why(Code.NOT_UNLOADED, f"its topic counts as loaded ({loaded}), and {unread}")
    return lost_by_load(run, ports, topic, dry_run=dry_run)


def lost_by_load(run: TopicRun, ports: Ports, topic: Topic, *, dry_run: bool = False) -> Why | None:
    """What keeps a topic from a load by our request, as it is now: as :meth:`TopicRun.lost_at_load`, and two more.

    A cursor whose ledger was never closed, and whose bookies are away, a broker puts back to where its z-node says, for
    good (``ManagedCursorImpl.recoverFromLedger``). And nothing else of its namespace is to be loaded with it: unless it
    is a ``dry_run``, brokers are asked to take the bundles that one would take for it. Raises Paused, LeaseLost,
    Overloaded.
    """
    if loss := _lost_alone(run, ports, topic):
        return loss
    return None if dry_run else others_loaded(ports.admin, topic)


def _lost_alone(run: TopicRun, ports: Ports, topic: Topic) -> Why | None:
    path = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}"
    try:
        names = snapshot.cursor_names(ports.store, topic)
        if loss := run.lost_at_load(topic, names):
            return loss
        if names:
            snapshot.positions(ports, run.ledgers_root, path, snapshot.cursors(ports.store, path))
    except RefusedBy as error:
        text = f"a broker that loads its topic may put a subscription back, see whether all bookies answer: {error}"
        return Why(error.code, text)
    return None


def unload_first(ports: Ports, guard: RunGuard, topic: Topic, *, anyway: bool = False) -> UnloadAttempt | Why:
    """Unload a loaded topic before it is written, if that is needed; why it must not be written, if that failed.

    Once it is ``UNLOADED``, look at it anew. ``anyway``: not writing it would be worse than a pending unload that
    fails.
    """
    if lack := _lacks_unload(guard, topic):
        return lack
    tried = UnloadAttempt.NOT_NEEDED if anyway else guard.unloads.try_before(ports.store, ports.admin, topic)
    return tried.put(f"its topic is loaded, and {tried}") if isinstance(tried, Why) else tried


def _lacks_unload(guard: RunGuard, topic: Topic) -> Why | None:
    lack = guard.unloads.lacks(topic=topic)
    return Why(Code.NOT_UNLOADED, f"its topic is loaded, and {lack}") if lack else None


TRIES = 5
"""How often a topic whose z-node keeps changing is looked at from the start."""


@dataclass(frozen=True, slots=True)
class EditOutcome:
    """What becomes of one ledger of the topic by an edit, why, and whether its metadata ``changes``."""

    outcome: Outcome
    why: Why
    changes: bool = False

    @property
    def reason(self) -> str:
        """Why, as a sentence."""
        return self.why.text


Change = Callable[[Node, ManagedLedgerInfo], tuple[ManagedLedgerInfo, dict[int, EditOutcome]]]
"""What a topic's metadata should be, from what it is now, and what that means for each ledger.

It is called anew for every try, so it must see an earlier write of its own as done. An unchanged info writes nothing.
"""


def edit_topic(
    run: TopicRun, ports: Ports, guard: RunGuard, topic: Topic, change: Change, policy: str
) -> dict[int, EditOutcome]:
    """Bring a topic's metadata to what ``change`` makes of it, by one compare-and-set with the unload it asks for.

    ``policy`` names the setting that lets loaded topics be written; empty: this one is in any case. Where it does not,
    ledgers that would change are ``left-to-broker``. Raises Paused, LeaseLost, Refused where the topic cannot be read,
    and what the stores raise; a loaded topic that may have been written is then unloaded all the same.
    """
    write = TopicWrite(ports, guard, topic)
    try:
        said = _edit(run, ports, guard, topic, change, policy, write)
    except LifecycleError as error:
        write.finish_after(error)
        raise
    still_pending = write.finish(sure=True)
    suffix = f"; an unload of its topic is pending: {still_pending}" if still_pending else ""
    return {i: replace(one, why=one.why.put(one.reason + suffix)) for i, one in said.items()}


def _edit(
    run: TopicRun, ports: Ports, guard: RunGuard, topic: Topic, change: Change, policy: str, write: TopicWrite
) -> dict[int, EditOutcome]:
    for _ in range(TRIES):
        guard.check(ports.store)
        ports.store.sync("/")
        node, info = snapshot.topic_node(ports.store, topic)
        write.seen(node.stat.version)
        wanted, said = change(node, info)
        if wanted == info:
            return said
        loaded = why_loaded(ports.store, run.ledgers_root, run.brokers, run.now, topic, node, info)
        stays = left_loaded(run, ports, topic, loaded, policy, guard=guard) if loaded and policy else None
        if loaded and not stays:
            tried = unload_first(ports, guard, topic, anyway=not policy)
            if tried is UnloadAttempt.UNLOADED:
                continue
            if isinstance(tried, Why):
                stays = tried
        if stays:
            return {i: EditOutcome(Outcome.LEFT_TO_BROKER, stays) if one.changes else one for i, one in said.items()}
        checked = checked_path(ports.store, run.ledgers_root, topic, node, info)
        if loaded:
            guard.unloads.wait()
        guard.check(ports.store)
        write.note_unload(bool(loaded))
        if write.write(node, managed_ledger.encode(wanted), checked):
            return said
    raise RefusedBy(
        Code.CHANGED_MEANWHILE, f"{topic}: its z-node changed {TRIES} times while it was looked at; run again"
    )
