"""Names and ids as jobs' configurations hold them: read before anything is asked of a cluster.

Belongs here: what is wrong with a name as such, as UsageError. Not here: whether there is such a thing.
"""

from collections.abc import Iterable

from pulsar_lifecycle.errors import CorruptFormat, UsageError
from pulsar_lifecycle.formats.ledger_path import MAX_LEDGER_ID
from pulsar_lifecycle.model import Namespace, Topic


def topic_of(field: str, name: str) -> Topic:
    """A topic by its full name. Raises UsageError naming the configuration's field."""
    try:
        return Topic.parse(name)
    except CorruptFormat as error:
        raise UsageError(f"{field}: {error}") from error


def namespace_of(field: str, name: str) -> Namespace:
    """``tenant/namespace``. Raises UsageError naming the configuration's field."""
    try:
        return Namespace.parse(name)
    except CorruptFormat as error:
        raise UsageError(f"{field}: {error}") from error


def ledgers_of(field: str, ids: Iterable[int]) -> frozenset[int]:
    """Ledger ids. Raises UsageError naming the configuration's field and the first that is none."""
    found = list(ids)
    if wrong := [i for i in found if not 0 <= i <= MAX_LEDGER_ID]:
        raise UsageError(f"{field}: {wrong[0]} is no ledger id, those are 0 .. 2**63-1")
    return frozenset(found)
