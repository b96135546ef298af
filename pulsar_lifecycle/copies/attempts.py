"""Our own open offload attempts: a z-node of ours per ledger, from before its first byte is uploaded to its commit.

Belongs here: making, listing and ending them. Not here: what an attempt does (``tiered/commit.py``). While it is there
its UUID counts as referenced: nobody else knows it. It is never written into the topic's own metadata before it is
complete: a broker that offloads a ledger itself deletes the objects of an incomplete UUID that it finds there, at some
later moment, and so perhaps after our commit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from uuid import UUID

from pydantic import TypeAdapter

from pulsar_lifecycle.errors import AccessDenied, Conflict, CorruptFormat, NotFound, OutcomeUnknown
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import MetadataStore, Node, Unread
from pulsar_lifecycle.runs.control import ROOT
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.gaps import Gap, GapCode

ATTEMPTS = f"{ROOT}/offload-attempts"


def path_of(ledger_id: int) -> str:
    """The z-node of a ledger's open attempt."""
    return f"{ATTEMPTS}/{ledger_id}"


@dataclass(frozen=True, slots=True)
class Attempt:
    """An offload of one ledger that was begun and not ended. ``since`` ms, ``block_size`` bytes.

    ``metadata`` are the driver's properties for the topic's metadata: ``bucket``, ``region``, ``serviceEndpoint``,
    ``managedLedgerOffloadDriver``. Once ``aborting`` its objects may be removed at any moment: it is never finished.
    """

    ledger_id: int
    topic: str
    uuid: UUID
    driver: str
    metadata: tuple[tuple[str, str], ...]
    block_size: int
    run_id: str
    since: int
    aborting: bool = False

    @property
    def path(self) -> str:
        """Its z-node."""
        return path_of(self.ledger_id)

    @property
    def bucket(self) -> str:
        """The bucket that its objects are in."""
        return dict(self.metadata)["bucket"]


@dataclass(frozen=True, slots=True)
class BrokenAttempt:
    """A z-node below ``ATTEMPTS`` that cannot be read or is none of ours."""

    path: str
    why: Why


def begin(store: MetadataStore, attempt: Attempt) -> None:
    """Returns only when the z-node is known to be there. Raises Conflict if the ledger has another open attempt."""
    data = _encoded(attempt)
    for _ in range(3):
        try:
            store.create(attempt.path, data, parents=True)
            return
        except Conflict:
            node = store.read([attempt.path])[0]
            if isinstance(node, Node) and node.data == data:
                return  # an earlier try did it
            raise Conflict(f"{attempt.path}: the ledger has another open offload attempt") from None
        except OutcomeUnknown:
            continue
    raise OutcomeUnknown(f"{attempt.path}: whether it was written is not known")


def touch(store: MetadataStore, attempt: Attempt) -> int:
    """Write an open attempt as it is once more; returns the metadata store's time (ms). Raises Conflict if it ended."""
    for _ in range(3):
        node = store.read([attempt.path])[0]
        if not isinstance(node, Node) or node.data != _encoded(attempt):
            raise Conflict(f"{attempt.path}: the offload attempt {attempt.uuid} is not open any more")
        with contextlib.suppress(NotFound, Conflict, OutcomeUnknown):
            return store.write(attempt.path, node.data, node.stat.version).mtime
    raise OutcomeUnknown(f"{attempt.path}: whether it is open is not known")


def abort(store: MetadataStore, attempt: Attempt) -> Attempt:
    """Let no run finish an open attempt from here on. Raises Conflict if it ended."""
    aborting = replace(attempt, aborting=True)
    for _ in range(3):
        node = store.read([attempt.path])[0]
        if isinstance(node, Node) and node.data == _encoded(aborting):
            return aborting
        if not isinstance(node, Node) or node.data != _encoded(attempt):
            raise Conflict(f"{attempt.path}: the offload attempt {attempt.uuid} is not open any more")
        with contextlib.suppress(NotFound, Conflict, OutcomeUnknown):
            store.write(attempt.path, _encoded(aborting), node.stat.version)
            return aborting
    raise OutcomeUnknown(f"{attempt.path}: whether it is open is not known")


def end(store: MetadataStore, attempt: Attempt) -> None:
    """Nothing is to be done for it any more; harmless when it is ended already, or another has taken its place."""
    node = store.read([attempt.path])[0]
    if isinstance(node, Node) and node.data == _encoded(attempt):
        with contextlib.suppress(NotFound, Conflict, OutcomeUnknown):  # one left behind is ended once more
            store.delete(attempt.path, node.stat.version)


def open_attempts(store: MetadataStore) -> list[Attempt | BrokenAttempt]:
    """Every open attempt, by ledger id. Raises AccessDenied if they cannot be listed."""
    store.sync(ROOT)
    listing = store.children([ATTEMPTS])[0]
    if listing is None:
        return []
    if isinstance(listing, Unread):
        raise AccessDenied(f"{ATTEMPTS}: {listing.reason}")
    paths = [f"{ATTEMPTS}/{name}" for name in listing.names]
    found = [_decoded(path, node) for path, node in zip(paths, store.read(paths), strict=True) if node is not None]
    return sorted(found, key=lambda one: (one.ledger_id if isinstance(one, Attempt) else -1, one.path))


def of_ledgers(store: MetadataStore, ledger_ids: Iterable[int]) -> dict[int, Attempt | BrokenAttempt]:
    """Our open attempts on these ledgers, by ledger id."""
    paths = {ledger_id: path_of(ledger_id) for ledger_id in ledger_ids}
    nodes = zip(paths.items(), store.read(list(paths.values())), strict=True)
    return {ledger_id: _decoded(path, node) for (ledger_id, path), node in nodes if node is not None}


def whole(found: Sequence[Attempt | BrokenAttempt]) -> list[Attempt]:
    """Those that can be read."""
    return [one for one in found if isinstance(one, Attempt)]


def unread(found: Sequence[Attempt | BrokenAttempt]) -> list[Gap]:
    """The gaps of those that cannot be read: which objects an open attempt of ours needs is not known then."""
    broken = [one for one in found if isinstance(one, BrokenAttempt)]
    return [Gap(GapCode.ATTEMPT_UNREAD, one.path, f"{one.path}: {one.why}") for one in broken]


_JSON = TypeAdapter(Attempt)


def _encoded(attempt: Attempt) -> bytes:
    return _JSON.dump_json(attempt, exclude_defaults=True)


def _decoded(path: str, node: Node | Unread) -> Attempt | BrokenAttempt:
    if isinstance(node, Unread):
        return BrokenAttempt(path, Why(Code.UNREAD, f"cannot be read: {node.reason}"))
    try:
        attempt = _JSON.validate_json(node.data, strict=True)
        Topic.parse(attempt.topic)
        if attempt.path == path and attempt.bucket and _encoded(attempt) == node.data:
            return attempt
    except (ValueError, KeyError, CorruptFormat):
        pass
    text = "an open offload attempt as JSON was expected; look at it, then delete the z-node"
    return BrokenAttempt(path, Why(Code.NOT_AS_WRITTEN, text))
