"""Which broker owns a topic's bundle, found without asking any broker for it: asking would give it an owner.

Belongs here: the ownership locks of bundles, and what follows from the topics that brokers list. Not here: who has a
topic loaded (``metastore/load_state.py``). Upstream: ``NamespaceEphemeralData``, ``OwnershipCache`` (4.0.7). The
extensible load manager keeps no locks in the metadata store: there a bundle's owner is known only by the topics that it
lists.
"""

from __future__ import annotations

import bisect
import json
import zlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from urllib.parse import urlsplit

from pulsar_lifecycle.formats.topic_policies import CHANGE_EVENTS
from pulsar_lifecycle.metastore.load_state import Brokers, fetch_brokers
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Topic
from pulsar_lifecycle.ports import BrokerAdmin, MetadataStore, Node, Unread
from pulsar_lifecycle.topics.protection import PENDING_ACKS

LOCKS_ROOT = "/namespace"
"""One ephemeral child per bundle that has an owner, below its namespace: ``0xLLLLLLLL_0xHHHHHHHH``, high excluded."""

BUNDLES_ROOT = "/admin/local-policies"
"""Bundle boundaries by namespace (LocalPolicies); a topic's hash is the CRC-32 of its full name."""

AT_ONCE = 1_000
"""Topics of a namespace that are looked at together: most often the first that is asked for is among them."""

_LAST = 0xFFFFFFFF
"""The upper end of a namespace's last bundle, which is included."""


TRANSACTION_BUFFERS = (
    "__transaction_buffer_snapshot",
    "__transaction_buffer_snapshot_segments",
    "__transaction_buffer_snapshot_indexes",
)
"""System topics of which a namespace has one at least once transactions were used in it; the last two instead of the
first with ``transactionBufferSegmentedSnapshotEnabled`` (SystemTopicNames)."""
BY_THEMSELVES = (CHANGE_EVENTS, *TRANSACTION_BUFFERS)
"""Local names of system topics that brokers read, each in its namespace, for topics that they load. Brokers' monitors
leave them alone (``SystemTopic``)."""
NOT_WITH_BUNDLES = (PENDING_ACKS, "__transaction_log_", "transaction_coordinator_assign")
"""How the names of topics end, or begin, that no broker loads as it takes their bundle
(``PulsarService.loadNamespaceTopics``)."""


class Owners:
    """The brokers that own bundles, as the locks are now and the brokers answered; each bundle is looked up once.

    ``lockless``: brokers that keep no locks. What others list without having a lock they have just lost. None where
    nobody asked: what any broker lists counts then.
    """

    def __init__(self, lockless: Collection[str] | None = None) -> None:
        self._lockless = lockless
        self._names: dict[str, list[str]] | None = None
        self._brokers: dict[str, dict[str, str]] = {}
        """Namespace -> bundle -> the broker that lists a topic of it."""

    def of(self, store: MetadataStore, brokers: Brokers, topic: Topic) -> str:
        """The broker (``host:webport``) that owns a topic's bundle; empty where none does, or that is not known."""
        if owner := _locked(store, topic):
            return owner
        listing = brokers.loaded.get(str(topic)) or self._listing(store, brokers, topic)
        return listing if self._lockless is None or listing in self._lockless else ""

    def _listing(self, store: MetadataStore, brokers: Brokers, topic: Topic) -> str:
        """The broker that lists another topic of the same bundle."""
        if self._names is None:
            self._names = {}
            for name in brokers.loaded:
                self._names.setdefault(name.rpartition("/")[0], []).append(name)
        inside = str(topic).rpartition("/")[0]
        if inside not in self._brokers:
            listed = [Topic.parse(name) for name in self._names.get(inside, ())]
            self._brokers[inside] = {bundle: brokers.loaded[str(one)] for one, bundle in bundles(store, listed).items()}
        known = self._brokers[inside]
        return known.get(bundles(store, [topic])[topic], "") if known else ""


def lockless(configurations: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Those of some brokers that keep no locks of their bundles, by what they are configured with."""
    kind = ".ExtensibleLoadManagerImpl"
    return {name for name, said in configurations.items() if said.get("loadManagerClassName", "").endswith(kind)}


def owned_since(store: MetadataStore, topic: Topic) -> int | None:
    """When (ms) the owner of a topic's bundle took it; None where no lock says so."""
    node = _lock(store, topic)
    return node.stat.ctime if node else None


def _lock(store: MetadataStore, topic: Topic) -> Node | None:
    root = f"{LOCKS_ROOT}/{topic.namespace}"
    listing = store.children([root])[0]
    if listing is None or isinstance(listing, Unread):
        return None
    hashed = zlib.crc32(str(topic).encode())
    found = next((name for name in listing.names if _covers(name, hashed)), "")
    node = store.read([f"{root}/{found}"])[0] if found else None
    return node if isinstance(node, Node) else None


def _locked(store: MetadataStore, topic: Topic) -> str:
    node = _lock(store, topic)
    try:
        document = json.loads(node.data) if node else {}
        return urlsplit(document.get("httpUrl") or document.get("httpUrlTls") or "").netloc
    except (ValueError, AttributeError, TypeError):
        return ""


def _covers(name: str, hashed: int) -> bool:
    try:
        low, high = (int(end, 16) for end in name.split("_"))
    except ValueError:
        return False
    return low <= hashed < high or hashed == high == _LAST


def would_be_loaded(
    store: MetadataStore, brokers: Brokers, owners: Owners, topic: Topic, going: Collection[Topic]
) -> str | None:
    """What a broker that loads a topic would load besides, that is not ``going`` as well; None for nothing.

    Who takes a bundle without an owner loads all its topics. A broker that loads a topic reads :data:`BY_THEMSELVES` of
    its namespace, too, whose bundles somebody takes then.
    """
    if not owners.of(store, brokers, topic) and (other := next(_others(store, topic, going), None)):
        return f"nobody owns its bundle, which has {other}, too"
    along = _read_along(topic, _names(store, topic))
    first = next(_loaded_along(store, brokers, owners, along, going), None)
    return first.text if first else None


@dataclass(frozen=True, slots=True)
class LoadedAlong:
    """A topic, or what is said of those that cannot be listed, that is loaded with one that brokers ``read``."""

    read: Topic
    other: Topic | str

    @property
    def text(self) -> str:
        """The same as a clause."""
        return f"its broker reads {self.read}, whose bundle nobody owns, and which has {self.other}, too"


def loaded_by_request(store: MetadataStore, brokers: Brokers, topic: Topic) -> Iterator[LoadedAlong]:
    """As :func:`would_be_loaded`, of a topic that a broker loads for a request to its admin API, such as its unload.

    Who takes its bundle for that loads nothing else of it (``LookupOptions.loadTopicsInBundle``), but does of the
    others.
    """
    names = _names(store, topic)
    if names is None:
        yield LoadedAlong(topic, _unlisted(topic))
    along = _read_along(topic, names)
    place = bundles(store, [topic, *along])
    others = [one for one in along if place[one] != place[topic] or place[one] == str(one.namespace)]
    yield from _loaded_along(store, brokers, Owners(), others, ())


def loaded_by_unload(store: MetadataStore, admin: BrokerAdmin, topic: Topic) -> LoadedAlong | None:
    """What a broker loads besides a topic that it is asked to unload, and that none lists; None for nothing.

    Brokers are asked only where locks do not tell that it is nothing. Raises what store and brokers raise.
    """
    if next(loaded_by_request(store, Brokers({}, 0), topic), None):
        brokers = fetch_brokers(store, admin)
        if str(topic) not in brokers.loaded:
            return next(loaded_by_request(store, brokers, topic), None)
    return None


def _loaded_along(
    store: MetadataStore, brokers: Brokers, owners: Owners, along: Collection[Topic], going: Collection[Topic]
) -> Iterator[LoadedAlong]:
    """What is loaded that is not ``going``, as a broker reads ``along`` of a namespace for a topic of it."""
    for one in along:
        if not owners.of(store, brokers, one):
            yield from (LoadedAlong(one, other) for other in _others(store, one, going))


def unowned_along(store: MetadataStore, brokers: Brokers, topic: Topic) -> dict[Topic, Topic | str | None]:
    """What a broker reads as it loads a topic, and whose bundles nobody owns; and what else is in the bundle of each.

    Policies come first: it reads these for the others, too. Of their partitions one that shares its bundle does.
    """
    owners, along = Owners(), _read_along(topic, _names(store, topic))
    beside = {one: next(_others(store, one, (topic,)), None) for one in along if not owners.of(store, brokers, one)}
    order = sorted(beside, key=lambda one: (one.partitioned_parent.local != CHANGE_EVENTS, beside[one] is None))
    return {one: beside[one] for one in order}


def read_at_once(store: MetadataStore, unowned: Mapping[Topic, Topic | str | None]) -> LoadedAlong | None:
    """What would be loaded, whichever of the policies' partitions among ``unowned`` is asked for first.

    Who takes the first bundle of a namespace reads all these partitions, as a client
    (``SystemTopicBasedTopicPoliciesService.addOwnedNamespaceBundleAsync``): only one bundle of theirs is taken alone.
    """
    parts = {one: other for one, other in unowned.items() if one.partitioned_parent.local == CHANGE_EVENTS}
    place = bundles(store, parts)
    shared: dict[Topic | str, LoadedAlong] = {}
    for one, other in parts.items():
        if other:
            known = place[one] != str(one.namespace)
            shared.setdefault(place[one] if known else one, LoadedAlong(one, other))
    return next(islice(shared.values(), 1, None), None)


def _read_along(topic: Topic, names: Collection[str] | None) -> list[Topic]:
    """Those topics of a namespace, by its z-nodes' ``names``, that a broker reads as it loads one of it."""
    some = [name for name in names or () if name.startswith(BY_THEMSELVES)]  # of many thousand, these alone are decoded
    return [one for one in _topics(topic, some) if one.partitioned_parent.local in BY_THEMSELVES]


def _names(store: MetadataStore, topic: Topic) -> Sequence[str] | None:
    """The z-nodes' names of the topics of its namespace and domain; None where they cannot be listed."""
    listing = store.children([f"{MANAGED_LEDGERS_ROOT}/{topic.namespace}/{topic.domain}"])[0]
    if listing is None or isinstance(listing, Unread) or not listing.is_whole:
        return None
    return listing.names


def _topics(topic: Topic, names: Iterable[str]) -> list[Topic]:
    return [Topic.from_managed_ledger(f"{topic.namespace}/{topic.domain}/{name}") for name in names]


def _others(store: MetadataStore, topic: Topic, going: Collection[Topic]) -> Iterator[Topic | str]:
    """Topics that a broker would load with it, and that are not going; something where they cannot be listed."""
    names = _names(store, topic)
    if names is None:
        yield _unlisted(topic)
        return
    for first in range(0, len(names), AT_ONCE):
        some = _topics(topic, names[first : first + AT_ONCE])
        theirs = [one for one in some if one not in going and one != topic and not _loaded_anyhow(one)]
        bundle = bundles(store, [topic, *theirs])
        yield from (one for one in theirs if bundle[one] == bundle[topic])


def _unlisted(topic: Topic) -> str:
    return f"topics that cannot be listed ({topic.namespace}/{topic.domain})"


def _loaded_anyhow(topic: Topic) -> bool:
    """Whether it is no reason to leave its bundle alone: brokers load it whenever they need it, or not at all."""
    local = topic.partitioned_parent.local
    return local in BY_THEMSELVES or local.endswith(NOT_WITH_BUNDLES[0]) or local.startswith(NOT_WITH_BUNDLES[1:])


def bundles(store: MetadataStore, topics: Collection[Topic]) -> dict[Topic, str]:
    """The bundle of each topic by its namespace's boundaries; the namespace itself where they cannot be read."""
    namespaces = list(dict.fromkeys(str(topic.namespace) for topic in topics))
    boundaries: dict[str, list[int]] = {}
    for namespace, node in zip(namespaces, store.read([f"{BUNDLES_ROOT}/{n}" for n in namespaces]), strict=True):
        try:
            document = json.loads(node.data) if isinstance(node, Node) else {}
            boundaries[namespace] = [int(bound, 16) for bound in document["bundles"]["boundaries"]]
        except (ValueError, KeyError, TypeError):
            boundaries[namespace] = []
    found: dict[Topic, str] = {}
    for topic in topics:
        place = bisect.bisect_right(boundaries[str(topic.namespace)], zlib.crc32(str(topic).encode()))
        found[topic] = f"{topic.namespace}/{place}" if place else str(topic.namespace)
    return found
