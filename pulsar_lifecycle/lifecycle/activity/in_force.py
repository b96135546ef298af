"""What policies and brokers say now of what a report of inactive topics goes by.

Belongs here: reading it, and saying what is not known. Not here: what is inactive by it (``inactive_rules.py``).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.lifecycle.load.monitors import BROKER_NAMES, monitors_in_force
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.topics.load_losses import REPLICATOR, Replication
from pulsar_lifecycle.topics.policies import InForce, owners_keep
from pulsar_lifecycle.topics.retention_now import policies_now
from pulsar_lifecycle.topics.retention_policy import RetentionPolicy, policies_in_force
from pulsar_lifecycle.topics.system_topics.function_subscriptions import function_subscriptions


@dataclass(frozen=True, slots=True)
class InForceNow:
    """What policies and brokers say. ``replicated``: 1 for topics that are to be sent elsewhere, else 0.

    ``system_cursors``: what brokers call cursors of their own; ``replicator``: how replicators' begin;
    ``functions``: by which names functions subscribe. None: not known.
    ``owners_keep``: topics whose own policy says that they are not deleted while they are inactive. ``undecodable``:
    why nothing is known of some namespaces.
    """

    retention: InForce[RetentionPolicy | None]
    replicated: InForce[int | None]
    system_cursors: frozenset[str] | None
    replicator: str
    owners_keep: frozenset[str] = frozenset()
    undecodable: tuple[str, ...] = ()
    functions: frozenset[str] | None = frozenset()


def in_force_now(cluster: Cluster, namespaces: set[str]) -> tuple[InForceNow, tuple[str, ...]]:
    """What is in force, and why some of it is not known."""
    nothing = InForceNow(InForce({}), InForce({}), None, REPLICATOR)
    try:
        layers, differing = policies_now(cluster, namespaces, BROKER_NAMES)
    except LifecycleError as error:
        return nothing, (str(error),)
    if differing:
        return nothing, differing
    monitors = monitors_in_force(layers)
    replicated, keep = _sent(monitors.at_load.replication), owners_keep(layers)
    undecodable = tuple(layers.undecodable.values())
    said = function_subscriptions(cluster)
    functions, unknown = (None, (said.unknown,)) if said.unknown else (said.names, ())
    found = InForceNow(
        policies_in_force(layers), replicated, monitors.system_cursors, REPLICATOR, keep, undecodable, functions
    )
    if monitors.replicator is None:
        return replace(found, system_cursors=None), ("the brokers do not say their replicatorPrefix", *unknown)
    return replace(found, replicator=monitors.replicator), unknown


def _sent(replication: InForce[Replication | None]) -> InForce[int | None]:
    """Whether topics are to be sent to other clusters."""

    def number(one: Replication | None) -> int | None:
        return None if one is None else int(bool(one.elsewhere))

    layers = (replication.by_namespace, replication.by_topic)
    return InForce(*({name: number(one) for name, one in said.items()} for said in layers))
