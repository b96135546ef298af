"""Which bundle a topic is in, which others are in it, and what brokers read beside a topic that they load.

Belongs here: the boundaries of bundles, names of system topics, names of ownership locks. Not here: who owns a bundle
(``topics/bundle_owner.py``). Upstream: ``NamespaceEphemeralData``, ``LocalPolicies``, ``SystemTopicNames`` (4.0.7).
"""

from __future__ import annotations

import bisect
import json
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import islice

from pulsar_lifecycle.formats.topic_policies import CHANGE_EVENTS
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, PENDING_ACKS, Topic
from pulsar_lifecycle.ports import MetadataStore, Node, Unread

BROKERS_ROOT = "/loadbalance/brokers"
"""One ephemeral child per broker that lives, named by its id (LoadManager.LOADBALANCE_BROKERS_ROOT)."""

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


def lockless(configurations: Mapping[str, Mapping[str, str]]) -> set[str]:
    """Those of some brokers that keep no locks of their bundles, by what they are configured with."""
    kind = ".ExtensibleLoadManagerImpl"
    return {name for name, said in configurations.items() if said.get("loadManagerClassName", "").endswith(kind)}


def covers(name: str, topic: Topic) -> bool:
    """Whether a bundle of this name, ``0xLLLLLLLL_0xHHHHHHHH``, has a topic of its namespace."""
    hashed = zlib.crc32(str(topic).encode())
    try:
        low, high = (int(end, 16) for end in name.split("_"))
    except ValueError:
        return False
    return low <= hashed < high or hashed == high == _LAST


@dataclass(frozen=True, slots=True)
class LoadedAlong:
    """A topic, or what is said of those that cannot be listed, that is loaded with one that brokers ``read``."""

    read: Topic
    other: Topic | str

    @property
    def text(self) -> str:
        """The same as a clause."""
        return f"its broker reads {self.read}, whose bundle nobody owns, and which has {self.other}, too"


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


def other_of_bundle(store: MetadataStore, topic: Topic, asked: Topic) -> Topic | str | None:
    """A topic besides ``asked`` that a broker would load with it; what stands for one where they cannot be listed."""
    below = f"{topic.namespace}/{topic.domain}"
    listing = store.children([f"{MANAGED_LEDGERS_ROOT}/{below}"])[0]
    if listing is None:
        return None
    if isinstance(listing, Unread) or not listing.is_whole:
        return f"topics that cannot be listed ({below})"
    for first in range(0, len(listing.names), AT_ONCE):
        some = [Topic.from_managed_ledger(f"{below}/{name}") for name in listing.names[first : first + AT_ONCE]]
        theirs = [one for one in some if one not in (topic, asked) and not _loaded_anyhow(one)]
        bundle = bundles(store, [topic, *theirs])
        if found := next((one for one in theirs if bundle[one] == bundle[topic]), None):
            return found
    return None


def _loaded_anyhow(topic: Topic) -> bool:
    """Whether it is no reason to leave its bundle alone: brokers load it whenever they need it, or not at all."""
    local = topic.partitioned_parent.local
    return local in BY_THEMSELVES or local.endswith(NOT_WITH_BUNDLES[0]) or local.startswith(NOT_WITH_BUNDLES[1:])


def bundles(store: MetadataStore, topics: Collection[Topic]) -> dict[Topic, str]:
    """The bundle of each topic, below its namespace's name; that alone where the boundaries cannot be read."""
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
        bounds = boundaries[str(topic.namespace)]
        place = min(bisect.bisect_right(bounds, zlib.crc32(str(topic).encode())), len(bounds) - 1)
        ends = f"0x{bounds[place - 1]:08x}_0x{bounds[place]:08x}" if place > 0 else ""
        found[topic] = f"{topic.namespace}/{ends}" if ends else str(topic.namespace)
    return found
