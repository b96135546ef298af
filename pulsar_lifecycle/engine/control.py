"""Our own z-nodes below ``/pulsar-lifecycle``: pause, the controllers' lease, the sandbox marker.

Belongs here: who may act now. The lease is a persistent z-node whose version is the fencing token (every deletion
transaction checks it) and an ephemeral child that shows its holder to be alive. A holder that lost its session keeps a
token that stops working as soon as another controller takes over.
"""

from __future__ import annotations

import contextlib
import json
from dataclasses import dataclass

from pulsar_lifecycle.errors import Conflict, LeaseLost, NotFound, Paused, Refused
from pulsar_lifecycle.ports import Clock, MetadataStore, Node

ROOT = "/pulsar-lifecycle"
PAUSE = f"{ROOT}/pause"
LEASE = f"{ROOT}/lease"
HOLDER = f"{LEASE}/holder"
SANDBOX = f"{ROOT}/sandbox"
"""Only the sandbox writes it; it alone allows grace periods below their floors."""


def is_sandbox(store: MetadataStore) -> bool:
    """Whether this cluster carries the sandbox's marker."""
    return isinstance(store.read([SANDBOX])[0], Node)


def check_not_paused(store: MetadataStore) -> None:
    """Raise Paused if the pause z-node exists or cannot be read."""
    node = store.read([PAUSE])[0]
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

    holder: str
    version: int
    taken_at: int

    @property
    def guard(self) -> tuple[str, int]:
        """(path, version) of the fencing z-node."""
        return LEASE, self.version


def take_lease(store: MetadataStore, holder: str, clock: Clock, wait: float) -> Lease:
    """Become the one controller that acts, waiting up to ``wait`` seconds for a dead holder's session to end.

    ``store`` keeps the lease alive: keep its session open for as long as the work lasts. Raises Refused naming the
    holder that has it.
    """
    if store.read([LEASE])[0] is None:
        with contextlib.suppress(Conflict):
            store.create(LEASE, b"{}", parents=True)
    deadline = clock.now_ms() + int(wait * 1000)
    while True:
        try:
            store.create(HOLDER, holder.encode(), ephemeral=True)
            break
        except Conflict:
            other = store.read([HOLDER])[0]
            if clock.now_ms() >= deadline and isinstance(other, Node):
                raise Refused(
                    f"another run is deleting: {other.data.decode(errors='replace')} holds {HOLDER}; wait until it ends"
                ) from None
            clock.sleep(1.0)
    node = store.read([LEASE])[0]
    if not isinstance(node, Node):
        raise Refused(f"{LEASE} cannot be read")
    document = json.dumps({"holder": holder, "since": clock.now_ms()}).encode()
    stat = store.write(LEASE, document, node.stat.version)
    return Lease(holder, stat.version, stat.mtime)


def release_lease(store: MetadataStore, lease: Lease) -> None:
    """Give the lease back; harmless when the session that held it is gone and another controller has it.

    The fencing z-node is written once more, so that a worker this run left behind deletes nothing from here on.
    """
    with contextlib.suppress(Conflict, NotFound, LeaseLost):
        store.write(LEASE, b"{}", lease.version)
    node = store.read([HOLDER])[0]
    if isinstance(node, Node) and node.data == lease.holder.encode():
        with contextlib.suppress(NotFound, LeaseLost):
            store.delete(HOLDER, node.stat.version)
