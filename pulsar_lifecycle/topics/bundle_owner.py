"""Which broker owns a topic's bundle, found without asking any broker for it: asking would give it an owner.

Belongs here: the ownership locks of bundles, and what follows from the topics that brokers list. Not here: who has a
topic loaded (``metastore/load_state.py``). Upstream: ``NamespaceEphemeralData``, ``OwnershipCache`` (4.0.7). The
extensible load manager keeps no locks in the metadata store: there a bundle's owner is known only by the topics that it
lists.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from urllib.parse import urlsplit

from pulsar_lifecycle.bundles.placing import (
    BY_THEMSELVES,
    LOCKS_ROOT,
    LoadedAlong,
    bundles,
    covers,
    names_beside,
    others_of_bundle,
    topics_named,
    unlisted,
)
from pulsar_lifecycle.formats.topic_policies import CHANGE_EVENTS
from pulsar_lifecycle.metastore.load_state import Brokers, fetch_brokers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import BrokerAdmin, MetadataStore, Node, Unread


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


def owned_since(store: MetadataStore, topic: Topic) -> int | None:
    """When (ms) the owner of a topic's bundle took it; None where no lock says so."""
    node = _lock(store, topic)
    return node.stat.ctime if node else None


def _lock(store: MetadataStore, topic: Topic) -> Node | None:
    root = f"{LOCKS_ROOT}/{topic.namespace}"
    listing = store.children([root])[0]
    if listing is None or isinstance(listing, Unread):
        return None
    found = next((name for name in listing.names if covers(name, topic)), "")
    node = store.read([f"{root}/{found}"])[0] if found else None
    return node if isinstance(node, Node) else None


def _locked(store: MetadataStore, topic: Topic) -> str:
    node = _lock(store, topic)
    try:
        document = json.loads(node.data) if node else {}
        return urlsplit(document.get("httpUrl") or document.get("httpUrlTls") or "").netloc
    except (ValueError, AttributeError, TypeError):
        return ""


def would_be_loaded(
    store: MetadataStore, brokers: Brokers, owners: Owners, topic: Topic, going: Collection[Topic]
) -> str | None:
    """What a broker that loads a topic would load besides, that is not ``going`` as well; None for nothing.

    Who takes a bundle without an owner loads all its topics. A broker that loads a topic reads :data:`BY_THEMSELVES` of
    its namespace, too, whose bundles somebody takes then.
    """
    if not owners.of(store, brokers, topic) and (other := next(others_of_bundle(store, topic, going), None)):
        return f"nobody owns its bundle, which has {other}, too"
    along = _read_along(topic, names_beside(store, topic))
    first = next(_loaded_along(store, brokers, owners, along, going), None)
    return first.text if first else None


def loaded_by_request(store: MetadataStore, brokers: Brokers, topic: Topic) -> Iterator[LoadedAlong]:
    """As :func:`would_be_loaded`, of a topic that a broker loads for a request to its admin API, such as its unload.

    Who takes its bundle for that loads nothing else of it (``LookupOptions.loadTopicsInBundle``), but does of the
    others.
    """
    names = names_beside(store, topic)
    if names is None:
        yield LoadedAlong(topic, unlisted(topic))
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
            yield from (LoadedAlong(one, other) for other in others_of_bundle(store, one, going))


def unowned_along(store: MetadataStore, brokers: Brokers, topic: Topic) -> dict[Topic, Topic | str | None]:
    """What a broker reads as it loads a topic, and whose bundles nobody owns; and what else is in the bundle of each.

    Policies come first: it reads these for the others, too. Of their partitions one that shares its bundle does.
    """
    owners, along = Owners(), _read_along(topic, names_beside(store, topic))
    beside = {
        one: next(others_of_bundle(store, one, (topic,)), None) for one in along if not owners.of(store, brokers, one)
    }
    order = sorted(beside, key=lambda one: (one.partitioned_parent.local != CHANGE_EVENTS, beside[one] is None))
    return {one: beside[one] for one in order}


def _read_along(topic: Topic, names: Collection[str] | None) -> list[Topic]:
    """Those topics of a namespace, by its z-nodes' ``names``, that a broker reads as it loads one of it."""
    some = [name for name in names or () if name.startswith(BY_THEMSELVES)]  # of many thousand, these alone are decoded
    return [one for one in topics_named(topic, some) if one.partitioned_parent.local in BY_THEMSELVES]
