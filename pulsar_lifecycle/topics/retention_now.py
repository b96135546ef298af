"""The retention in force at this moment: what brokers, namespaces and topics say, read without loading a topic.

Not here: the rule (``topics/retention_policy.py``), which ledgers it frees (``lifecycle/retention.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError
from pulsar_lifecycle.metastore.namespaces import RESTORE, policy_documents
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.topics.policies import (
    POLICY_SWITCHES,
    InForce,
    Layers,
    common_configuration,
    kept_elsewhere,
    owners_keep,
    topics_have_policies,
)
from pulsar_lifecycle.topics.retention_policy import (
    BROKER_NAMES,
    REPLICATION_NAMES,
    RetentionPolicy,
    policies_in_force,
)
from pulsar_lifecycle.topics.system_topics.change_events import read_namespaces


@dataclass(frozen=True, slots=True)
class RetentionNow:
    """Retention by namespace and topic, None where it is unknown; ``problems``: in what the brokers differ.

    ``undecodable``: why nothing is known of some namespaces.
    """

    policies: InForce[RetentionPolicy | None]
    problems: tuple[str, ...] = ()
    owners_keep: frozenset[str] = frozenset()
    """Topics, or partitioned ones, whose own policy keeps them while they are inactive."""
    undecodable: tuple[str, ...] = ()


def retention_now(cluster: Cluster, namespaces: Collection[str]) -> RetentionNow:
    """The retention in force in those of ``namespaces`` that exist. Raises what the cluster's servers raise."""
    layers, differing = policies_now(cluster, namespaces)
    undecodable = tuple(layers.undecodable.values())
    return RetentionNow(policies_in_force(layers), differing, owners_keep(layers), undecodable)


def undecodable_policies(cluster: Cluster) -> tuple[str, ...]:
    """Why policies of some namespaces are not known, or that this is not known."""
    try:
        with cluster.ports(read_only=True) as ports:
            found = policy_documents(ports.configuration).undecodable
    except LifecycleError as error:
        return (str(error),)
    return tuple(_undecodable(name, error) for name, error in found.items())


def _undecodable(namespace: str, error: CorruptFormat) -> str:
    return f"{error}: nothing in namespace {namespace} goes by retention, TTL or inactivity. {RESTORE}"


def policies_now(
    cluster: Cluster,
    namespaces: Collection[str],
    more: Collection[str] = (),
    answered: Mapping[str, Mapping[str, str]] | None = None,
) -> tuple[Layers, tuple[str, ...]]:
    """What brokers, those of ``namespaces`` that exist and their topics say; and in what the brokers differ.

    Of a namespace whose policies cannot be decoded nothing is known; the others are as without it.

    Of the brokers' configuration what retention needs, and names in which a word of ``more`` stands. ``answered``: by
    broker id, the configuration of those that count; without it all are asked, and one that does not answer raises.
    Raises what the cluster's servers raise.
    """
    with cluster.ports(read_only=True) as ports:
        configurations = ports.admin.configurations() if answered is None else answered
        found = policy_documents(ports.configuration)
    said, differing = common_configuration(configurations, (*BROKER_NAMES, *REPLICATION_NAMES, *POLICY_SWITCHES, *more))
    agreed = {name: value for name, value in said.items() if all(c.get(name) == value for c in configurations.values())}
    undecodable = {n: _undecodable(n, error) for n, error in found.undecodable.items() if n in namespaces}
    known = {name: found.known[name] for name in namespaces if name in found.known}
    layers = Layers(agreed, known, undecodable=undecodable)
    layers = replace(layers, topics=read_namespaces(cluster, layers.namespaces, agreed))
    return layers, (*differing, *_elsewhere(agreed))


def _elsewhere(brokers: Mapping[str, str]) -> tuple[str, ...]:
    unknown = kept_elsewhere(brokers) if topics_have_policies(brokers) else None
    return (str(unknown),) if unknown else ()
