"""Our own z-nodes below ``/pulsar-lifecycle``: pause, the runs' leases, pending unloads, the sandbox marker.

Belongs here: who may act now, and what a run must finish that was interrupted. A lease is a persistent z-node whose
version is the fencing token (every deletion transaction checks it) and an ephemeral child that shows its holder to be
alive. A holder that lost its session keeps a token that stops working as soon as another run takes over.
"""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from pulsar_lifecycle.errors import (
    AccessDenied,
    Conflict,
    CorruptFormat,
    LeaseLost,
    NotFound,
    OutcomeUnknown,
    Paused,
    RefusedBy,
    Unavailable,
)
from pulsar_lifecycle.model import Topic, decode_name, encode_name
from pulsar_lifecycle.ports import Clock, Deletion, MetadataStore, Node, Unread
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.refusals import RefusalCode

_LOG = logging.getLogger(__name__)

ROOT = "/pulsar-lifecycle"
PAUSE = f"{ROOT}/pause"
LEASE = f"{ROOT}/lease"
"""Of whoever deletes or takes ledgers off topics' lists."""
OFFLOAD_LEASE = f"{ROOT}/offload-lease"
"""Of whoever offloads: it takes hours, and hinders no deletion."""
COLLECTION_LEASE = f"{ROOT}/collection-lease"
"""Of whoever makes bookies collect."""
PENDING_UNLOADS = {LEASE: f"{ROOT}/pending-unloads", OFFLOAD_LEASE: f"{ROOT}/offload-pending-unloads"}
"""By lease: one child per topic whose z-node a run wrote, or was about to write, and which must be unloaded.

Each lease has its own, as runs of both may be at one topic: neither may take the other's for finished.
"""
SANDBOX = f"{ROOT}/sandbox"
"""Only the sandbox writes it; it alone allows grace periods below their floors."""


def is_sandbox(store: MetadataStore) -> bool:
    """Whether this cluster carries the sandbox's marker."""
    return isinstance(store.read([SANDBOX])[0], Node)


def check_not_paused(store: MetadataStore) -> None:
    """Raise Paused if the pause z-node exists or cannot be read."""
    _refuse_pause(store.read([PAUSE])[0])


def _refuse_pause(node: Node | Unread | None) -> None:
    if node is not None:
        raise Paused(f"paused: {PAUSE} exists; `pulsar-lifecycle resume` removes it")


def pause(store: MetadataStore, reason: str) -> None:
    """Stop every effect within one batch; harmless when already paused."""
    try:
        store.create(PAUSE, reason.encode(), parents=True)
    except Conflict:
        return


def resume(store: MetadataStore) -> None:
    """Let effects go on; harmless when not paused."""
    try:
        store.delete(PAUSE, -1)
    except NotFound:
        return


@dataclass(frozen=True, slots=True)
class Lease:
    """A lease that was taken: ``guard`` is what every deletion transaction checks.

    ``taken_at`` is the metadata store's own time (ms), the clock that dates every z-node.
    """

    path: str
    holder: str
    version: int
    taken_at: int

    @property
    def guard(self) -> tuple[str, int]:
        """(path, version) of the fencing z-node."""
        return self.path, self.version


def holder_of(lease: str) -> str:
    """The ephemeral z-node that shows a lease's holder to be alive."""
    return f"{lease}/holder"


def is_held(store: MetadataStore, lease: str) -> bool:
    """Whether a run of this lease may be at work: some session holds it, or that cannot be read."""
    node = store.read([holder_of(lease)])[0]
    return isinstance(node, Unread) or (node is not None and node.stat.ephemeral_owner != 0)


def take_lease(store: MetadataStore, holder: str, clock: Clock, wait: float, path: str = LEASE) -> Lease:
    """Become the one run that acts, waiting up to ``wait`` seconds for a dead holder's session to end.

    ``store`` keeps the lease alive: keep its session open for as long as the work lasts. Raises Refused naming the
    holder that has it; at once if that is no session's, as it never ends.
    """
    alive = holder_of(path)
    if store.read([path])[0] is None:
        with contextlib.suppress(Conflict):
            store.create(path, b"{}", parents=True)
    deadline = clock.now_ms() + int(wait * 1000)
    while True:
        try:
            store.create(alive, holder.encode(), ephemeral=True)
            break
        except Conflict:
            other = store.read([alive])[0]
            if isinstance(other, Node) and not other.stat.ephemeral_owner:
                raise RefusedBy(
                    RefusalCode.LEASE_HELD,
                    f"no session holds {alive} (it says {other.data.decode(errors='replace')!r}), so it does not go by "
                    "itself: look that no run is at work, then delete it by hand",
                ) from None
            if clock.now_ms() >= deadline and other is not None:
                who = other.data.decode(errors="replace") if isinstance(other, Node) else f"who ({other.reason})"
                raise RefusedBy(
                    RefusalCode.LEASE_HELD, f"another run is at it: {who} holds {alive}; wait until it ends"
                ) from None
            clock.sleep(1.0)
    node = store.read([path])[0]
    if not isinstance(node, Node):
        raise RefusedBy(RefusalCode.LEASE_HELD, f"{path} cannot be read")
    document = json.dumps({"holder": holder, "since": clock.now_ms()}).encode()
    stat = store.write(path, document, node.stat.version)
    return Lease(path, holder, stat.version, stat.mtime)


def release_lease(store: MetadataStore, lease: Lease) -> None:
    """Give the lease back; harmless when the session that held it is gone and another run has it.

    The fencing z-node is written once more, so that a worker this run left behind deletes nothing from here on. Where
    the store does not answer, the session's end gives the lease back, and whoever takes it next writes that z-node.
    """
    try:
        with contextlib.suppress(Conflict, NotFound, LeaseLost):
            store.write(lease.path, b"{}", lease.version)
        node = store.read([holder_of(lease.path)])[0]
        if isinstance(node, Node) and node.data == lease.holder.encode():
            with contextlib.suppress(NotFound, LeaseLost):
                store.delete(holder_of(lease.path), node.stat.version)
    except Unavailable as error:
        _LOG.warning("%s goes with its session, as it could not be given back: %s", lease.path, error)


def check_lease(store: MetadataStore, guard: tuple[str, int]) -> None:
    """Raise LeaseLost unless the fencing z-node still has the version it was given to us with."""
    _refuse_lost_lease(store.read([guard[0]])[0], guard)


def _refuse_lost_lease(node: Node | Unread | None, guard: tuple[str, int]) -> None:
    if not isinstance(node, Node) or node.stat.version != guard[1]:
        raise LeaseLost(f"{guard[0]} no longer has version {guard[1]}: the lease is another's")


def check_may_go_on(store: MetadataStore, guard: tuple[str, int]) -> None:
    """Raise Paused or LeaseLost: :func:`check_not_paused` and :func:`check_lease` by one request."""
    pause, lease = store.read([PAUSE, guard[0]])
    _refuse_pause(pause)
    _refuse_lost_lease(lease, guard)


@dataclass(frozen=True, slots=True)
class PendingUnload:
    """An unload that a topic needs: at once if it was ``loaded``, else only if a broker lists it after all.

    ``since`` is when (ms) its z-node was about to be written, by a run of ``lease``. ``version`` and ``czxid`` are
    those of the z-node that was read; -1: whatever it has.
    """

    topic: Topic
    loaded: bool
    since: int
    lease: str
    version: int = field(default=-1, compare=False)
    czxid: int = field(default=-1, compare=False)

    @property
    def path(self) -> str:
        """Its z-node."""
        return _pending_path(self.topic, self.lease)


def _pending_path(topic: Topic, lease: str) -> str:
    return f"{PENDING_UNLOADS[lease]}/{encode_name(topic.managed_ledger)}"


def note_unload(store: MetadataStore, pending: PendingUnload) -> bool:
    """Make sure that whoever comes next knows of it; whether its lease had none pending before, as far as known.

    Returns only when the z-node is known to be there.
    """
    data = json.dumps({"loaded": pending.loaded, "since": pending.since}).encode()
    for _ in range(3):
        try:
            store.create(pending.path, data, parents=True)
            return True
        except Conflict:
            store.write(pending.path, data, -1)
            return False
        except OutcomeUnknown:
            continue
    raise OutcomeUnknown(f"{pending.path}: whether it was written is not known")


@dataclass(frozen=True, slots=True)
class BrokenPendingUnload:
    """A z-node of ``PENDING_UNLOADS`` that cannot be read or is none of ours; ``topic`` if its name still says it."""

    path: str
    topic: Topic | None
    why: Why


def has_pending_unload(store: MetadataStore, topic: Topic) -> bool:
    """Whether an unload of this topic is pending, under any lease, or that cannot be read."""
    return any(node is not None for node in store.read([_pending_path(topic, lease) for lease in PENDING_UNLOADS]))


def pending_unloads(store: MetadataStore) -> list[PendingUnload | BrokenPendingUnload]:
    """Every pending unload, by path. Raises AccessDenied if they cannot be listed."""
    found: list[PendingUnload | BrokenPendingUnload] = []
    for (lease, root), listing in zip(
        PENDING_UNLOADS.items(), store.children(list(PENDING_UNLOADS.values())), strict=True
    ):
        if isinstance(listing, Unread):
            raise AccessDenied(f"{root}: {listing.reason}")
        paths = [f"{root}/{name}" for name in listing.names] if listing else []
        nodes = zip(paths, store.read(paths), strict=True)
        found += [_pending(path, lease, node) for path, node in nodes if node is not None]
    return sorted(found, key=lambda pending: pending.path)


def pending_for(store: MetadataStore, guard: tuple[str, int]) -> list[PendingUnload | BrokenPendingUnload]:
    """Those that a run with this lease may finish.

    Not those of another lease while somebody holds it, who may not have written yet. What such a one leaves from now on
    has another version.
    """
    found = pending_unloads(store)  # before the holders are read: one that begins after that notes another version
    busy = {lease for lease in PENDING_UNLOADS if lease != guard[0] and is_held(store, lease)}
    return [one for one in found if isinstance(one, BrokenPendingUnload) or one.lease not in busy]


def _pending(path: str, lease: str, node: Node | Unread) -> PendingUnload | BrokenPendingUnload:
    repair = f"look whether the topic needs an unload, then delete {path}"
    topic: Topic | None = None
    try:
        topic = Topic.from_managed_ledger(decode_name(path.rpartition("/")[2]))
        if isinstance(node, Unread):
            return BrokenPendingUnload(path, topic, Why(Code.UNREAD, f"{path} cannot be read: {node.reason}"))
        document = json.loads(node.data)
        loaded, since = bool(document["loaded"]), int(document["since"])
        return PendingUnload(topic, loaded, since, lease, node.stat.version, node.stat.czxid)
    except (CorruptFormat, ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        why = "its name is no topic's" if topic is None else "it is not a pending unload as JSON"
        text = f"{path}: {why} ({type(error).__name__}: {error}); {repair}"
        return BrokenPendingUnload(path, topic, Why(Code.NOT_AS_WRITTEN, text))


def finish_unload(store: MetadataStore, pending: PendingUnload) -> None:
    """This is pending no more; harmless when it is finished already, or noted anew since it was read."""
    if pending.czxid != -1:  # one that was finished and noted anew has the first version again
        node = store.read([pending.path])[0]
        if not isinstance(node, Node) or node.stat.czxid != pending.czxid:
            return
    # One left behind is made once more, which does no harm.
    with contextlib.suppress(NotFound, Conflict, OutcomeUnknown):
        store.delete(pending.path, pending.version)


def finish_many_unloads(store: MetadataStore, pending: Sequence[PendingUnload], guard: tuple[str, int]) -> None:
    """As :func:`finish_unload`, of many that were read, by a run of the lease ``guard``. Raises LeaseLost, too."""
    nodes = store.read([one.path for one in pending])
    deletions = [
        Deletion(one.path, one.version)
        for one, node in zip(pending, nodes, strict=True)
        if isinstance(node, Node) and node.stat.czxid == one.czxid
    ]
    with contextlib.suppress(OutcomeUnknown):
        store.delete_many(deletions, guard)


@contextmanager
def held_lease(settings: Settings, store: MetadataStore, clock: Clock, what: str, path: str = LEASE) -> Iterator[Lease]:
    """The lease, for as long as ``what`` (the kind of a run, and its id) lasts. Raises Refused when another has it."""
    holder, wait = f"{settings.cluster} {what}", settings.zookeeper.session_timeout + 5
    lease = take_lease(store, holder, clock, wait, path)
    try:
        yield lease
    finally:
        release_lease(store, lease)
