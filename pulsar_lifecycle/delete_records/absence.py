"""Whether ledgers that were deleted are gone everywhere: metadata, every bookie, the bucket.

Belongs here: one look, and looking again until it is so or the time is up. Not here: deleting them. "Gone" is what was
answered: a server that does not answer proves nothing. A bookie that has no entry of a ledger may still have its bytes
in an entry log, where no read finds them, until it compacts that log. A versioned bucket keeps them behind a marker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.delete_records.request import Absence, Presence
from pulsar_lifecycle.errors import CorruptFormat, LifecycleError
from pulsar_lifecycle.formats import bookie_info, ledger_metadata, ledger_path
from pulsar_lifecycle.formats.ledger_metadata import LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.ports import Node, ObjectHead, ObjectStore, Unread
from pulsar_lifecycle.ports.bundle import Ports


@dataclass(frozen=True, slots=True)
class DeletedLedger:
    """A ledger to look for.

    ``metadata`` is its last, from the archive; None where nobody knows it, as of one that brokers deleted: then every
    bookie that the cluster has is asked. So it is where ``others`` than those that the metadata names may have had it.
    ``copies``: its offloaded ones, those of aborted attempts too. ``tagged``: only BookKeeper's tags tell of it. If
    such a one was closed without an entry, as by a broker that unloads its topic, its z-node is no word on data.
    """

    ledger_id: int
    metadata: LedgerMetadata | None
    copies: tuple[Location, ...] = ()
    others: bool = False
    tagged: bool = False


def without_entries(node: Node | Unread | None) -> LedgerMetadata | None:
    """What the z-node of a ledger says that was closed before anything in it was confirmed; None for any other."""
    if not isinstance(node, Node):
        return None
    try:
        metadata = ledger_metadata.decode(node.data)
    except CorruptFormat:
        return None
    return metadata if metadata.state is LedgerState.CLOSED and metadata.last_entry_id < 0 else None


def had_others(version: int, metadata: LedgerMetadata) -> bool:
    """Whether bookies that the metadata of a ledger does not name may have had it, by how often it was written.

    After it was created it is written once for each further segment, and once to close it. A bookie that takes the
    place of another within a segment, as by replication, costs one write more. So does a recovery, though it changes no
    bookie. A z-node that an undo created counts anew, and tells nothing.
    """
    return version > len(metadata.segments)


def look(ports: Ports, root: str, ledgers: Sequence[DeletedLedger], *, bookies: bool) -> list[Absence]:
    """Where the ledgers are now, in order; ``bookies``: also ask every bookie of every segment. In bulk, read-only.

    Raises what the metadata store raises; bookies and buckets that fail are in the result.
    """
    found: dict[int, Absence] = {}
    for places in _places(ports, root, ledgers, bookies):
        for index, absence in places.items():
            known = found.get(index)
            if known is None or _ORDER[absence.presence] < _ORDER[known.presence]:
                found[index] = absence
    return [found.get(i) or Absence(one.ledger_id, Presence.GONE) for i, one in enumerate(ledgers)]


def wait_until_gone(
    ports: Ports,
    root: str,
    ledgers: Sequence[DeletedLedger],
    *,
    bookies: bool,
    deadline_ms: int,
    every_ms: int = 5_000,
    flush_ms: int = 0,
    stop: Callable[[], None] = lambda: None,
) -> list[Absence]:
    """:func:`look` again every ``every_ms`` at what is not gone yet, until all is or the clock reaches ``deadline_ms``.

    The last look is one at all of them: an undo may have brought some back meanwhile. With ``bookies`` it comes
    ``flush_ms`` after all was gone, or at ``deadline_ms``: until it flushes, a bookie that crashes has again what it
    collected. ``stop`` is called before each further look and may raise, to end the waiting.
    """
    flush_ms = flush_ms if bookies and ledgers else 0
    every = range(len(ledgers))
    answers: dict[int, Absence] = {}
    asked: Sequence[int] = every
    flushed = not flush_ms
    while True:
        answers |= zip(asked, look(ports, root, [ledgers[i] for i in asked], bookies=bookies), strict=True)
        pending = [i for i in every if not answers[i].gone]
        left = deadline_ms - ports.clock.now_ms()
        if asked is every and (left <= 0 or (flushed and not pending)):
            return [answers[i] for i in every]
        if left > 0 and (pending or not flushed):
            ports.clock.sleep(min(every_ms if pending else flush_ms, left) / 1000)
        stop()
        flushed = not flush_ms or not pending
        asked = pending if pending and ports.clock.now_ms() < deadline_ms else every


_ORDER = {presence: place for place, presence in enumerate(Presence)}


def _places(ports: Ports, root: str, ledgers: Sequence[DeletedLedger], bookies: bool) -> Iterator[dict[int, Absence]]:
    """What is left, by place, by the ledger's index; nothing of a ledger stands for nothing left there."""
    deleted: dict[int, DeletedLedger] = {}
    in_metadata: dict[int, Absence] = {}
    empty: dict[int, DeletedLedger] = {}
    ports.store.sync("/")
    paths = [ledger_path.ledger_path(one.ledger_id, root) for one in ledgers]
    for index, (one, path, node) in enumerate(zip(ledgers, paths, ports.store.read(paths), strict=True)):
        if one.tagged and isinstance(node, Node) and (metadata := without_entries(node)):
            others = one.others or had_others(node.stat.version, metadata)
            empty[index] = replace(one, metadata=metadata, others=others)
        elif isinstance(node, Node | Unread):
            presence = Presence.Z_NODE if isinstance(node, Node) else Presence.Z_NODE_UNREAD
            in_metadata[index] = Absence(one.ledger_id, presence, (path,))
        else:
            deleted[index] = one
    yield in_metadata
    if bookies:
        yield _on_bookies(ports, root, deleted)
    if bookies and empty:
        yield _unconfirmed(ports, root, empty)
    yield _in_buckets(ports.objects, ledgers)


def _unconfirmed(ports: Ports, root: str, empty: Mapping[int, DeletedLedger]) -> dict[int, Absence]:
    """Of those closed without an entry: a bookie may have one that was never confirmed, and keeps it as they are."""
    found = _on_bookies(ports, root, empty)
    held = {index: one for index, one in found.items() if one.presence is Presence.ON_BOOKIE}
    return found | {index: replace(one, presence=Presence.Z_NODE) for index, one in held.items()}


def _on_bookies(ports: Ports, root: str, ledgers: Mapping[int, DeletedLedger]) -> dict[int, Absence]:
    """Of those that no client writes any more: others may be given entries, and what a bookie says tells nothing."""
    found: dict[int, Absence] = {}
    asked: list[tuple[int, int, LedgerMetadata]] = []
    anywhere = {index for index, one in ledgers.items() if one.metadata is None or one.others}
    any_bookie = _on_any_bookie(ports, root) if anywhere else None
    for index, one in ledgers.items():
        if index in anywhere and any_bookie is None:
            found[index] = Absence(one.ledger_id, Presence.BOOKIES_UNKNOWN)
        for metadata in filter(None, (one.metadata, any_bookie if index in anywhere else None)):
            asked.append((index, one.ledger_id, metadata))
    answers = ports.reader.find_traces([(ledger_id, metadata) for _, ledger_id, metadata in asked])
    for (index, ledger_id, _), traces in zip(asked, answers, strict=True):
        before = found.get(index)
        if traces.holding:
            known = before.where if before and before.presence is Presence.ON_BOOKIE else ()
            where = tuple(dict.fromkeys((*known, *traces.holding)))
            found[index] = Absence(ledger_id, Presence.ON_BOOKIE, where)
        elif traces.unanswered and before is None:
            found[index] = Absence(ledger_id, Presence.BOOKIE_UNANSWERED, tuple(traces.unanswered))
    return found


def _on_any_bookie(ports: Ports, root: str) -> LedgerMetadata | None:
    """Metadata of a ledger that any bookie may have: any with a cookie, and any that runs without one."""
    cookies, *running = ports.store.children([f"{root}/cookies", *bookie_info.folders(root)])
    if cookies is None or isinstance(cookies, Unread) or not cookies.names or not cookies.is_whole:
        return None
    names = {*cookies.names}
    for listing in running:
        if isinstance(listing, Unread) or (listing and not listing.is_whole):
            return None
        names |= {*listing.names} if listing else set[str]()
    bookies = tuple(sorted(names - {bookie_info.READ_ONLY}))
    return LedgerMetadata(LedgerState.CLOSED, len(bookies), len(bookies), len(bookies), (Segment(0, bookies),))


def _in_buckets(objects: ObjectStore | None, ledgers: Sequence[DeletedLedger]) -> dict[int, Absence]:
    by_bucket: dict[str, list[tuple[int, str]]] = {}
    for index, one in enumerate(ledgers):
        for copy in one.copies:
            by_bucket.setdefault(copy.bucket, []).extend((index, key) for key in (copy.data_key, copy.index_key))
    there: dict[int, list[str]] = {}
    unread: dict[int, list[str]] = {}
    for bucket, wanted in by_bucket.items():
        for (index, key), head in zip(wanted, _heads(objects, bucket, [key for _, key in wanted]), strict=True):
            if head is not None:
                (there if isinstance(head, ObjectHead) else unread).setdefault(index, []).append(f"s3://{bucket}/{key}")
    return {
        index: Absence(
            ledgers[index].ledger_id,
            Presence.OBJECT if index in there else Presence.OBJECT_UNREAD,
            tuple(there.get(index) or unread[index]),
        )
        for index in there.keys() | unread.keys()
    }


def _heads(
    objects: ObjectStore | None, bucket: str, keys: Sequence[str]
) -> Sequence[ObjectHead | LifecycleError | None]:
    if objects is None:
        return [LifecycleError("the settings name no object store")] * len(keys)
    try:
        return objects.head_many(bucket, keys)
    except LifecycleError as error:
        return [error] * len(keys)
