"""Which broker owns a topic's bundle, found without asking any broker for it: asking would give it an owner.

Belongs here: the ownership locks of bundles, and what follows from the topics that brokers list. Not here: who has a
topic loaded (``metastore/load_state.py``). Upstream: ``NamespaceEphemeralData``, ``OwnershipCache`` (4.0.7). The
extensible load manager keeps no locks in the metadata store: there a bundle's owner is known only by the topics that it
lists.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from urllib.parse import urlsplit

from pulsar_lifecycle.bundles.placing import LOCKS_ROOT, bundles, covers
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import MetadataStore, Node, Unread


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
