"""Which offloaded ledgers an order means: given by key, those of a topic or a namespace, or all in a bucket.

Belongs here: finding them in bucket and metadata store, and saying which were left out and why. Not here: reading their
entries (``offloaded_ledger``). A bucket tells all but which ledger is whose; no broker is asked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.errors import LifecycleError, NotFound, UsageError
from pulsar_lifecycle.formats import managed_ledger, offload_object
from pulsar_lifecycle.formats.offload_object import ObjectKey, Role
from pulsar_lifecycle.model import Namespace, Topic
from pulsar_lifecycle.ports import MetadataStore, ObjectHead, ObjectStore, ObjectSummary
from pulsar_lifecycle.sources import closed_ledgers


@dataclass(frozen=True, slots=True)
class OffloadedData:
    """A data object that has its index object; ``size`` in bytes, ``owner`` its topic's z-node if known."""

    location: Location
    size: int
    etag: str
    owner: str = ""


@dataclass(frozen=True)
class Offloads:
    """Offloaded ledgers, and by key or ledger why others are not among them."""

    found: tuple[OffloadedData, ...]
    left_out: Mapping[str, str]


def by_key(objects: ObjectStore, bucket: str, text: str) -> Offloads:
    """Keys of data or index objects, with commas between them; raises UsageError for other text, NotFound."""
    parsed: dict[Location, None] = {}
    for key in text.split(","):
        found = offload_object.parse_key(key.strip())
        if found is None:
            raise UsageError(f"expected keys of offloaded ledgers, <uuid>-ledger-<id>, found {key.strip()!r}")
        parsed[Location(bucket, found.uuid, found.ledger_id)] = None
    return Offloads(_headed(objects, list(parsed)), {})


def below(objects: ObjectStore, bucket: str, prefix: str) -> Offloads:
    """Every pair of objects whose keys begin with ``prefix``; other objects are not looked at.

    A data object without its index is what an upload under way, or one that failed, leaves: it is left out. Raises
    NotFound for an index object without its data object.
    """
    data: dict[ObjectKey, ObjectSummary] = {}
    indexed: dict[ObjectKey, None] = {}
    for page in objects.list_objects(bucket, prefix):
        for one in page:
            key = offload_object.parse_key(one.key)
            if key is not None and key.role is Role.DATA:
                data[key] = one
            elif key is not None:
                indexed[ObjectKey(key.uuid, key.ledger_id, Role.DATA)] = None
    found: list[OffloadedData] = []
    for key in indexed:
        if key not in data:
            raise NotFound(f"s3://{bucket}/{key}: there is no such object, though its index is there")
        found.append(OffloadedData(Location(bucket, key.uuid, key.ledger_id), data[key].size, data[key].etag))
    return Offloads(tuple(found), {str(key): "it has no index object" for key in data if key not in indexed})


def of_owner(store: MetadataStore, objects: ObjectStore, owner: Topic | Namespace) -> Offloads:
    """The ledgers whose offload a topic (or its partitions), or a namespace's topics, say is complete.

    In whichever bucket they say. Raises NotFound for an owner that is not there, or an object that is not; Refused for
    a bucket that the settings do not name; CorruptFormat, Unavailable.
    """
    wanted: dict[Location, str] = {}
    left_out: dict[str, str] = {}
    for path, node in closed_ledgers.read_nodes(store, closed_ledgers.paths_of(store, owner)):
        for info in managed_ledger.decode(node.data).ledgers if node else ():
            if info.offload is None or not info.offload.complete:
                continue
            location = Location.of(info)
            if location is None:
                left_out[str(info.ledger_id)] = "its offload names no object of a bucket"
            else:
                wanted[location] = path
    found = _headed(objects, list(wanted))
    return Offloads(tuple(replace(one, owner=wanted[one.location]) for one in found), left_out)


def _headed(objects: ObjectStore, wanted: Sequence[Location]) -> tuple[OffloadedData, ...]:
    found: dict[Location, OffloadedData] = {}
    for bucket in dict.fromkeys(location.bucket for location in wanted):
        here = [location for location in wanted if location.bucket == bucket]
        heads = objects.head_many(bucket, [location.data_key for location in here])
        for location, head in zip(here, heads, strict=True):
            found[location] = _listed(location, head)
    return tuple(found[location] for location in wanted)


def _listed(location: Location, head: ObjectHead | LifecycleError | None) -> OffloadedData:
    if isinstance(head, LifecycleError):
        raise head
    if head is None:
        raise NotFound(f"{location.data_url}: there is no such object")
    return OffloadedData(location, head.size, head.etag)
