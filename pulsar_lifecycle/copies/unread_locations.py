"""Locations where a broker could not read an offloaded ledger: z-nodes of ours that a running deletion run sees.

Belongs here: writing, asking and emptying them. Not here: the read (``tiered/read_check.py``), what stands in the
journal (``journal.read_checks.failed_locations``): a deletion run reads that once, when it begins.

A location is held while its z-node has content, or cannot be read. The z-node is emptied and never deleted, so its
version only grows: a read that works empties it only if nothing was written since that read began.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Collection
from dataclasses import dataclass

from pulsar_lifecycle.errors import Conflict, NotFound, OutcomeUnknown, StoreError
from pulsar_lifecycle.ports import MetadataStore, Node, Unread
from pulsar_lifecycle.runs.control import ROOT
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import OffloadLocation

UNREAD_LOCATIONS = f"{ROOT}/unread-locations"

NAMES = ("driver", "bucket", "region", "endpoint")
"""What a z-node calls the parts of its location."""

TRIES = 5
"""Writes of one z-node, where others write it too or connections break."""

MAX_TEXT = 1_000
"""Characters of what was said that a z-node keeps: no answer of a broker may make it too large to be written."""


def path_of(where: OffloadLocation) -> str:
    """The z-node of a location; its content says which one that is."""
    return f"{UNREAD_LOCATIONS}/{hashlib.sha256(json.dumps(where).encode()).hexdigest()}"


@dataclass(frozen=True, slots=True)
class Hold:
    """What :func:`hold` wrote: the ``mzxid`` of that, and what it wrote over (empty: nothing was held)."""

    mzxid: int
    over: bytes


def hold(store: MetadataStore, where: OffloadLocation, run_id: str, error: str) -> Hold:
    """Note that a broker could not read there; returns only when that is known to be written.

    It gets a new version even where it is held already. Raises OutcomeUnknown, and what the store raises.
    """
    path = path_of(where)
    named = dict(zip(NAMES, where, strict=True))
    data = json.dumps({**named, "run": run_id, "said": error[:MAX_TEXT]}).encode()
    over = b""
    for tried in range(TRIES):
        with contextlib.suppress(OutcomeUnknown, Conflict, NotFound):
            found = look(store, where)
            there = found.data if found else b""
            if not tried or there != data:  # else an earlier try of this call has arrived
                over = there
            if found is None:
                return Hold(store.create(path, data, parents=True).mzxid, over)
            return Hold(store.write(path, data, found.stat.version).mzxid, over)
    raise OutcomeUnknown(f"{path}: whether it was written is not known")


def look(store: MetadataStore, where: OffloadLocation) -> Node | None:
    """The z-node of a location as it is now, for :func:`let_go` after a read. Raises StoreError if it is unreadable."""
    store.sync("/")
    found = store.read([path_of(where)])[0]
    if isinstance(found, Unread):
        raise StoreError(f"{found.path}: cannot be read: {found.reason}")
    return found


def let_go(store: MetadataStore, where: OffloadLocation, before: Node | None) -> None:
    """A broker has read there. ``before``: what :func:`look` found before that read began.

    Raises Conflict where a read has failed there since, OutcomeUnknown, and what the store raises.
    """
    if before is None or not before.data:
        if held(store, [where]):
            raise Conflict(f"{path_of(where)}: a broker could not read there since")
        return
    for _ in range(TRIES):
        with contextlib.suppress(OutcomeUnknown):
            try:
                store.write(before.path, b"", before.stat.version)
            except (Conflict, NotFound):  # also where an earlier try has emptied it, unknown to us
                if _holds(store.read([before.path])[0]):
                    raise Conflict(f"{before.path}: a broker could not read there since") from None
            return
    raise OutcomeUnknown(f"{before.path}: whether it was emptied is not known")


def withdraw(store: MetadataStore, where: OffloadLocation, made: Hold) -> None:
    """A failure that :func:`hold` noted says nothing after all; what was noted before or since stands.

    Raises what the store raises: then the location may still be held.
    """
    found = look(store, where)
    if found and found.stat.mzxid == made.mzxid:
        store.write(found.path, made.over, found.stat.version)


def held(store: MetadataStore, locations: Collection[OffloadLocation]) -> set[OffloadLocation]:
    """Those of the locations where a broker could not read, and those of which that cannot be known."""
    some = sorted(locations)
    store.sync("/")
    found = store.read([path_of(where) for where in some])
    return {where for where, node in zip(some, found, strict=True) if _holds(node)}


@dataclass(frozen=True, slots=True)
class HeldLocation:
    """A location that is held: what the run says that could not read there, and when (ms, the store's clock)."""

    path: str
    where: OffloadLocation
    run_id: str
    said: str
    since: int


@dataclass(frozen=True, slots=True)
class BrokenLocation:
    """A z-node below ``UNREAD_LOCATIONS`` that cannot be read or is none of ours; its location counts as held."""

    path: str
    why: Why


def all_held(store: MetadataStore) -> list[HeldLocation | BrokenLocation]:
    """Every location that is held, and every one of which that cannot be known, by path."""
    store.sync("/")
    listing = store.children([UNREAD_LOCATIONS])[0]
    if isinstance(listing, Unread):
        return [BrokenLocation(UNREAD_LOCATIONS, Why(Code.UNREAD, f"cannot be read: {listing.reason}"))]
    paths = sorted(f"{UNREAD_LOCATIONS}/{name}" for name in listing.names) if listing else []
    found = zip(paths, store.read(paths), strict=True)
    return [_held_location(path, node) for path, node in found if node is not None and _holds(node)]


def _held_location(path: str, node: Node | Unread) -> HeldLocation | BrokenLocation:
    if isinstance(node, Unread):
        return BrokenLocation(path, Why(Code.UNREAD, f"cannot be read: {node.reason}"))
    try:
        found = json.loads(node.data)
        driver, bucket, region, endpoint = (str(found[name]) for name in NAMES)
        where = driver, bucket, region, endpoint
        if path != path_of(where):
            return BrokenLocation(path, Why(Code.NOT_AS_WRITTEN, "is of another location than its name says"))
        return HeldLocation(path, where, str(found["run"]), str(found["said"]), node.stat.mtime)
    except (ValueError, KeyError, TypeError, RecursionError):
        return BrokenLocation(path, Why(Code.NOT_AS_WRITTEN, "is not as we write it"))


def _holds(node: Node | Unread | None) -> bool:
    return isinstance(node, Unread) or bool(node and node.data)
