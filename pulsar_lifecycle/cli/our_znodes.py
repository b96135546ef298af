"""What our own z-nodes say, as ``status`` and ``queue status`` show it: in words, and as a JSON document.

Belongs here: laying out. Not here: the z-nodes (``runs/control.py``, ``copies/attempts.py``,
``copies/unread_locations.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pulsar_lifecycle.cli import show

if TYPE_CHECKING:
    from pulsar_lifecycle.copies.unread_locations import BrokenLocation, HeldLocation
    from pulsar_lifecycle.ports import MetadataStore
    from pulsar_lifecycle.runs.control import BrokenPendingUnload, PendingUnload
    from pulsar_lifecycle.settings import Settings
    from pulsar_lifecycle.values.codes import Why
    from pulsar_lifecycle.values.epoch import Epoch


@dataclass(frozen=True)
class Note:
    """Text of a z-node, and when (ms) it was made; of one that cannot be read why, and None."""

    text: str
    since: int | None

    def __str__(self) -> str:
        """Since when it is there, and its text."""
        if self.since is None:
            return f"(unreadable: {self.text})"
        told = f": {self.text}" if self.text else ""
        return f"since {show.moment(self.since)} ({show.ago(self.since)}){told}"


def note(store: MetadataStore, path: str) -> Note | None:
    """What one z-node says; one that cannot be read counts as there."""
    from pulsar_lifecycle.ports import Node, Unread

    node = store.read([path])[0]
    if isinstance(node, Unread):
        return Note(f"{path}: {node.reason}", None)
    if isinstance(node, Node):
        return Note(node.data.decode(errors="replace"), node.stat.ctime)
    return None


@dataclass(frozen=True)
class OpenAttempts:
    """How many of our offload attempts are open, and what cannot be read of them."""

    open: int
    broken: tuple[str, ...]


def open_attempts(store: MetadataStore) -> OpenAttempts:
    """The open attempts of a cluster."""
    from pulsar_lifecycle.copies.attempts import Attempt, BrokenAttempt
    from pulsar_lifecycle.copies.attempts import open_attempts as found_in
    from pulsar_lifecycle.errors import LifecycleError

    try:
        found = found_in(store)
    except LifecycleError as error:
        return OpenAttempts(0, (str(error),))
    broken = tuple(f"{one.path}: {one.why}" for one in found if isinstance(one, BrokenAttempt))
    return OpenAttempts(sum(isinstance(one, Attempt) for one in found), broken)


@dataclass(frozen=True)
class ShownUnload:
    """A topic that a run wrote and must still unload or watch, or what cannot be read of that.

    ``at_work``: the run that left it may be at it now, and no other makes it.
    """

    pending: PendingUnload | BrokenPendingUnload
    at_work: bool = False

    @property
    def waits(self) -> bool:
        """Whether no run is at it."""
        return not self.at_work

    def to_json(self) -> dict[str, Any]:
        """With an ``error`` what cannot be read."""
        from pulsar_lifecycle.runs.control import BrokenPendingUnload

        one = self.pending
        known: dict[str, Any] = {"path": one.path, "topic": one.topic and str(one.topic)}
        if isinstance(one, BrokenPendingUnload):
            return known | {"error": one.why.text}
        return known | {"loaded": one.loaded, "since": one.since, "lease": one.lease, "at_work": self.at_work}

    def __str__(self) -> str:
        """What is to be done, and who does it."""
        from pulsar_lifecycle.runs.control import BrokenPendingUnload

        one = self.pending
        if isinstance(one, BrokenPendingUnload):
            return f"UNREADABLE: {one.why}"
        what = "must be unloaded" if one.loaded else "must be unloaded if a broker has loaded it meanwhile"
        if self.at_work:
            return f"{one.topic} {what}: its run is at work"
        return (
            f"{one.topic} {what}: the next run that trims, loads, offloads or deletes does it; "
            "where it cannot yet, the run's log says why"
        )


def pending_unloads(store: MetadataStore) -> list[ShownUnload]:
    """The pending unloads of a cluster."""
    from pulsar_lifecycle.errors import LifecycleError
    from pulsar_lifecycle.runs import control
    from pulsar_lifecycle.values.codes import Code, Why

    try:
        found = control.pending_unloads(store)
    except LifecycleError as error:
        return [ShownUnload(control.BrokenPendingUnload(control.ROOT, None, Why(Code.UNREAD, str(error))))]
    held = {lease for lease in control.PENDING_UNLOADS if control.is_held(store, lease)}
    return [ShownUnload(one, isinstance(one, control.PendingUnload) and one.lease in held) for one in found]


@dataclass(frozen=True)
class ShownLocation:
    """A location where a broker could not read an offloaded ledger, and none has since, or what is not readable."""

    held: HeldLocation | BrokenLocation

    def to_json(self) -> dict[str, Any]:
        """With an ``error`` what cannot be read. ``since`` (ms): the newest failed read, by ZooKeeper's clock."""
        from pulsar_lifecycle.copies.unread_locations import NAMES, BrokenLocation

        one = self.held
        if isinstance(one, BrokenLocation):
            return {"path": one.path, "error": one.why.text}
        where = dict(zip(NAMES, one.where, strict=True))
        return {"path": one.path, **where, "run_id": one.run_id, "said": one.said, "since": one.since}

    def __str__(self) -> str:
        """What does not work, and what to do."""
        from pulsar_lifecycle.copies.unread_locations import BrokenLocation

        one, keeps = self.held, "no copy in BookKeeper of what is offloaded there is deleted"
        if isinstance(one, BrokenLocation):
            return f"UNREADABLE: {one.why}: whether brokers can read at its location is not known, and {keeps}"
        driver, bucket, region, endpoint = one.where
        where = f"{driver} bucket {bucket}"
        where += "".join(f", {name} {said}" for name, said in (("region", region), ("endpoint", endpoint)) if said)
        told = Note(" ".join(one.said.split()), one.since)
        return (
            f"{where}: a broker could not read there {told}; {keeps}: mend the brokers, then plan and launch an "
            "offload; if no read there can work any more, revert_offloads (docs/howto/unread-location.md)"
        )


def unread_locations(store: MetadataStore) -> list[ShownLocation]:
    """The held locations of a cluster."""
    from pulsar_lifecycle.copies.unread_locations import UNREAD_LOCATIONS, BrokenLocation, all_held
    from pulsar_lifecycle.errors import LifecycleError
    from pulsar_lifecycle.values.codes import Code, Why

    try:
        found = all_held(store)
    except LifecycleError as error:
        return [ShownLocation(BrokenLocation(UNREAD_LOCATIONS, Why(Code.UNREAD, str(error))))]
    return [
        ShownLocation(
            BrokenLocation(one.path, one.why.put(f"{one.path} {one.why}")) if isinstance(one, BrokenLocation) else one
        )
        for one in found
    ]


def refusals(settings: Settings, store: MetadataStore, scans: Sequence[Epoch]) -> list[Why]:
    """Why every run with effects would refuse before it begins. ``scans``: the finished ones of this cluster."""
    from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
    from pulsar_lifecycle.runs.plan_checks import SWITCHED_OFF
    from pulsar_lifecycle.scan import history_check
    from pulsar_lifecycle.values.codes import Why
    from pulsar_lifecycle.values.refusals import RefusalCode

    root = settings.bookkeeper.ledgers_root
    broken = history_check.broken_since(store, scans, cluster_fingerprint(store, root), root) if scans else None
    found = [] if settings.deletion.topicTwoPhaseDeletionEnabled else [Why(RefusalCode.SWITCHED_OFF, SWITCHED_OFF)]
    return found + ([Why(RefusalCode.STORE_WENT_BACK, broken.text)] if broken else [])


def refusals_document(refused: Sequence[Why]) -> list[dict[str, str]]:
    """Code and text of each refusal."""
    return [{"code": why.code.value, "text": why.text} for why in refused]
