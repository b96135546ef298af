"""Names, ids and caps as jobs' configurations hold them: read before anything is asked of a cluster.

Belongs here: what is wrong with a name as such, as UsageError. Not here: whether there is such a thing.
"""

from collections.abc import Callable, Iterable
from typing import TypeVar

import dagster as dg
from pydantic import Field

from pulsar_lifecycle.errors import CorruptFormat, UsageError
from pulsar_lifecycle.formats.ledger_path import MAX_LEDGER_ID
from pulsar_lifecycle.model import Namespace, Topic
from pulsar_lifecycle.runs.caps import Lowered, Order

Parsed = TypeVar("Parsed")


class CapsConfig(dg.Config):
    """Under which caps a plan is applied: those of the settings, or lower ones; ``namespaces``: what of it."""

    max_ledgers: int | None = None
    max_share: float | None = None
    max_bytes: int | None = None
    max_ledgers_per_topic: int | None = None
    namespaces: list[str] = Field(default=[])

    def order_of(self, plan_id: str, digest: str, limit: int = 0) -> Order:
        """The library's form of it."""
        caps = Lowered(self.max_ledgers, self.max_share, self.max_bytes, self.max_ledgers_per_topic)
        return Order(plan_id, digest, caps, limit, tuple(self.namespaces))


def parsed(field: str, parse: Callable[[str], Parsed], text: str) -> Parsed:
    """What ``parse`` makes of a field's text. Raises UsageError naming the configuration's field."""
    try:
        return parse(text)
    except (CorruptFormat, UsageError) as error:
        raise UsageError(f"{field}: {error}") from error


def topic_of(field: str, name: str) -> Topic:
    """A topic by its full name. Raises UsageError naming the configuration's field."""
    return parsed(field, Topic.parse, name)


def namespace_of(field: str, name: str) -> Namespace:
    """``tenant/namespace``. Raises UsageError naming the configuration's field."""
    return parsed(field, Namespace.parse, name)


def ledgers_of(field: str, ids: Iterable[int]) -> frozenset[int]:
    """Ledger ids. Raises UsageError naming the configuration's field and the first that is none."""
    found = list(ids)
    if wrong := [i for i in found if not 0 <= i <= MAX_LEDGER_ID]:
        raise UsageError(f"{field}: {wrong[0]} is no ledger id, those are 0 .. 2**63-1")
    return frozenset(found)
