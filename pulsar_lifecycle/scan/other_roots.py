"""Other clusters on the same ZooKeeper: what stands at its top, with our own chroot left out.

Belongs here: looking, at the top and around our own root, two levels deep. Not here: what it means
(``scan/neighbours.py``). A cluster that keeps its metadata on another ZooKeeper cannot be found this way: for it,
``bookkeeper.shared_with`` is all there is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from pulsar_lifecycle.bundles.placing import BROKERS_ROOT
from pulsar_lifecycle.metastore.walk import SCHEMAS_ROOT
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT
from pulsar_lifecycle.ports import Children, MetadataStore, Node, Unread
from pulsar_lifecycle.scan.neighbours import Bookies, Neighbours, OtherRoot

SIGNS = (MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT, BROKERS_ROOT)
"""What only a Pulsar cluster's own metadata has: its topics, its schemas, its brokers."""

COOKIES = "/ledgers/cookies"

_INTERNAL = frozenset(
    {"admin", "counters", "ledgers", "loadbalance", "managed-ledgers", "namespace", "schemas", "zookeeper"}
)
"""Z-nodes of Pulsar, BookKeeper and ZooKeeper themselves: below them is no other cluster's root."""

MOST = 10_000
"""Children of one z-node that are looked at."""


def look_around(top: MetadataStore, chroot: str, ledgers_root: str) -> Neighbours:
    """Every root of a Pulsar cluster but ours near ``/`` and near us, and what could not be listed.

    Looked at are ``/``, every z-node above ``chroot`` and ``chroot`` itself, and of each of them two levels below.
    ``top`` is a session without chroot, ``chroot`` ours (empty for none). Reads a few z-nodes for each child of these.
    """
    ours = _bookies(top, f"{chroot}{ledgers_root}")
    names = chroot.split("/")
    above = ["/".join(names[:n]) for n in range(1, len(names) + 1)]  # "" is /, the last one is our own root
    listed = [one for one in top.children([path or "/" for path in above]) if one is not None]
    own = {chroot, *(f"{chroot}/{name}" for name in _INTERNAL)}
    first = list(dict.fromkeys(_below(listed)))
    below = [one for one in top.children([path for path in first if _may_hold_roots(path)]) if one is not None]
    candidates = [path for path in dict.fromkeys([*above, *first, *_below(below)]) if path not in own]
    unlisted = dict.fromkeys(_unlisted([*listed, *below]))
    return Neighbours(tuple(_roots(top, candidates, ours)), tuple(unlisted), ours)


def _below(listings: Iterable[Children | Unread]) -> list[str]:
    """Paths of the children of what could be listed."""
    return [
        f"{'' if one.path == '/' else one.path}/{name}"
        for one in listings
        if isinstance(one, Children)
        for name in one.names[:MOST]
    ]


def _may_hold_roots(path: str) -> bool:
    return path.rpartition("/")[2] not in _INTERNAL


def _unlisted(listings: Iterable[Children | Unread]) -> list[tuple[str, str]]:
    unlisted: list[tuple[str, str]] = []
    for one in listings:
        if isinstance(one, Unread):
            unlisted.append((one.path, one.reason))
        elif len(one.names) > MOST:
            unlisted.append((one.path, f"it has {len(one.names)} children"))
    return unlisted


def _roots(top: MetadataStore, candidates: Sequence[str], ours: Bookies) -> list[OtherRoot]:
    """Those candidates that have any of :data:`SIGNS`, or a cookie of one of our bookies."""
    paths = [f"{root}{sign}" for root in candidates for sign in SIGNS]
    nodes = iter(top.read(paths))
    cookies = iter(top.children([f"{root}{COOKIES}" for root in candidates]))
    found: list[OtherRoot] = []
    for root in candidates:
        here = {sign: node for sign in SIGNS if (node := next(nodes)) is not None}
        bookies = next(cookies)
        shared = ours.names & set(bookies.names) if isinstance(bookies, Children) else set[str]()
        if here or shared:
            topics = here.get(MANAGED_LEDGERS_ROOT)
            born = (topics.stat.czxid, topics.stat.ctime) if isinstance(topics, Node) else None
            found.append(OtherRoot(root or "/", tuple(f"{root}{sign}" for sign in here), born, tuple(sorted(shared))))
    return found


_INSTANCE = re.compile(rb'instanceId: "([^"]*)"')
"""CookieFormat.instanceId in its text form (org.apache.bookkeeper.bookie.Cookie, 4.17)."""


def _bookies(top: MetadataStore, root: str) -> Bookies:
    """Who is registered below our own ledgers root; what cannot be read has no say here: nothing is deleted by it."""
    listing = top.children([f"{root}/cookies"])[0]
    names = listing.names if isinstance(listing, Children) else ()
    instance, *cookies = top.read([f"{root}/INSTANCEID", *(f"{root}/cookies/{name}" for name in names)])
    known = instance.data.decode("ascii", "backslashreplace").strip() if isinstance(instance, Node) else ""
    said: dict[str, str] = {}
    for name, cookie in zip(names, cookies, strict=True):
        found = _INSTANCE.search(cookie.data) if isinstance(cookie, Node) else None
        if found:
            said[name] = found[1].decode("ascii", "backslashreplace")
    return Bookies(frozenset(names), known, said)
