"""Another cluster next to ours: what was found on our ZooKeeper, and which of it makes plans report-only.

Belongs here: values and the rule. Not here: looking (``scan/other_roots.py``). A second Pulsar cluster that keeps its
ledgers in our BookKeeper has ledgers that only its own metadata names, and their tags carry no cluster name: unless it
is read, every one of them in a namespace that we have, too, looks like an orphan.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from pulsar_lifecycle.values.gaps import Gap, GapCode

Birth = tuple[int, int]
"""(czxid, ctime) of a ``/managed-ledgers``: it tells one cluster's metadata from every other's."""


@dataclass(frozen=True, slots=True)
class OtherRoot:
    """A root that is not ours: the z-nodes that give it away, and which of our bookies it has cookies of.

    ``born`` is None where its ``managed-ledgers`` is missing or cannot be read.
    """

    path: str
    signs: tuple[str, ...]
    born: Birth | None = None
    our_bookies: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Bookies:
    """Bookies with a cookie below our ledgers root, its INSTANCEID (empty: none), and the one that each cookie says."""

    names: frozenset[str] = frozenset()
    instance: str = ""
    said: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What stands on our ZooKeeper beside us; ``unlisted``: (z-node, why it could not be listed)."""

    roots: tuple[OtherRoot, ...] = ()
    unlisted: tuple[tuple[str, str], ...] = ()
    bookies: Bookies = Bookies()


def undeclared(
    found: Neighbours, births: Collection[Birth], chroots: Collection[str], not_sharing: Collection[str]
) -> list[Gap]:
    """The gaps of roots that nobody spoke of.

    ``births`` and ``chroots`` are of the roots that are read: ours, and those of ``bookkeeper.shared_with``. A chroot
    alone counts only for a root without topics. ``not_sharing`` is ``bookkeeper.not_sharing``.
    """
    gaps: list[Gap] = []
    for root in found.roots:
        known = root.born in births if root.born else root.path in chroots
        if not known and root.path not in not_sharing:
            bookies = f"; it has cookies of our bookies {', '.join(root.our_bookies)}" if root.our_bookies else ""
            gaps.append(
                Gap(
                    GapCode.OTHER_ROOT,
                    root.path,
                    f"another cluster's metadata is at {root.path} of our ZooKeeper "
                    f"({', '.join(root.signs) or 'no topics'}{bookies}): if its ledgers are in this BookKeeper, "
                    "declare it in bookkeeper.shared_with; if it has a BookKeeper of its own, put "
                    f'path = "{root.path}" into bookkeeper.not_sharing',
                )
            )
    for path, reason in found.unlisted:
        if path not in not_sharing:  # where we may not look, there may be one
            gaps.append(
                Gap(
                    GapCode.OTHER_ROOT_UNLISTED,
                    path,
                    f"whether another cluster's metadata is below {path} of our ZooKeeper is not known ({reason}): let "
                    f'our credentials list it, or, once you looked, put path = "{path}" into bookkeeper.not_sharing',
                )
            )
    return gaps + _other_bookies(found.bookies)


def _other_bookies(bookies: Bookies) -> list[Gap]:
    instances = {instance for instance in (bookies.instance, *bookies.said.values()) if instance}
    if len(instances) < 2:
        return []
    strange = sorted(name for name, said in bookies.said.items() if said != bookies.instance)
    return [
        Gap(
            GapCode.OTHER_BOOKIES,
            ", ".join(strange),
            f"bookies {', '.join(strange)} are registered below our ledgers root with another instance id than "
            f"{bookies.instance or 'the others'}: two BookKeepers share it, or it was formatted anew",
        )
    ]
