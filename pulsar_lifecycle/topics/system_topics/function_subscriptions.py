"""By which names functions, sinks and sources subscribe, read out of the function workers' metadata topic.

Belongs here: reading it whole, or saying that nothing is known. Not here: its bytes (``formats/function_metadata.py``),
what is kept by it. A name counts on every topic, as long as it is read here: of a function that has another one since,
or is deleted, too, unless compaction removed it. Those that functions have by default are told without it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats import function_metadata
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import ClusterPorts
from pulsar_lifecycle.run_settings import FUNCTIONS_METADATA
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.topics.system_topics.system_topic import LedgerSource, located, messages_of, parts_of, read_whole
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept

_WAY_OUT = 'If that lasts, set inactivity.functions_metadata = "", and name these in inactivity.kept_subscriptions'
_NO_TOPIC = (
    "which does not exist, so nobody knows by which names functions subscribe. Correct the name, or take it out of the "
    "settings where no functions run"
)


@dataclass(frozen=True, slots=True)
class FunctionSubscriptions:
    """The names; ``unknown``: why nothing is known of them, and what to do about it."""

    names: frozenset[str] = frozenset()
    unknown: str | None = None

    def keep(self, subscriptions: Iterable[str]) -> Why | None:
        """Why a run leaves these subscriptions alone; None if no function is known to subscribe by one of the names."""
        if self.unknown:
            return Why(InactiveKept.FUNCTIONS_UNKNOWN, self.unknown)
        if names := self.names.intersection(subscriptions):
            text = f"a function, sink or source subscribes as {min(names)} by now"
            return Why(InactiveKept.FUNCTION_SUBSCRIPTION, text)
        return None


def function_subscriptions(cluster: Cluster) -> FunctionSubscriptions:
    """What is said now in ``inactivity.functions_metadata``, within the budget for reading entries; never raises."""
    settings = cluster.settings
    name = settings.inactivity.functions_metadata
    if not name:
        return FunctionSubscriptions()
    try:
        with cluster.ports(read_only=True, pace=cluster.entry_pace()) as ports:
            ports.store.sync("/")
            found = _names(ports, Topic.parse(name), settings.bookkeeper.ledgers_root)
    except LifecycleError as error:
        text = f"{name} cannot be read whole, so nobody knows by which names functions subscribe: {error}. {_WAY_OUT}"
        return FunctionSubscriptions(unknown=text)
    if found is None and name != FUNCTIONS_METADATA:
        return FunctionSubscriptions(unknown=f"inactivity.functions_metadata names {name}, {_NO_TOPIC}")
    return FunctionSubscriptions(found or frozenset())


def _names(ports: ClusterPorts, topic: Topic, root: str) -> frozenset[str] | None:
    """None without the topic: workers make it before there is any function."""
    parts = parts_of(ports.store, topic.namespace, topic.local)
    source = LedgerSource(ports.store, ports.reader, lambda: ports.objects_if_set, root)
    found = [read_whole(source, one, _taken) for one in parts]
    there = [names for names in found if names is not None]
    return frozenset[str]().union(*there) if there else None


def _taken(entries: Iterator[tuple[Position, bytes]]) -> set[str]:
    found = set[str]()
    for position, data in entries:
        with located(f"entry {position}"):
            found.update(name for one in messages_of(data)[1] if (name := function_metadata.subscription_of(one)))
    return found
