"""The retention in force at this moment: what brokers, namespaces and topics say, read without loading a topic.

Not here: the rule (``topics/retention_policy.py``), which ledgers it frees (``lifecycle/retention.py``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from pulsar_lifecycle.metastore.namespaces import namespace_policies
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.topics.change_events import read_namespaces
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


@dataclass(frozen=True, slots=True)
class RetentionNow:
    """Retention by namespace and topic, None where it is unknown; ``problems``: in what the brokers differ."""

    policies: InForce[RetentionPolicy | None]
    problems: tuple[str, ...] = ()
    owners_keep: frozenset[str] = frozenset()
    """Topics, or partitioned ones, whose own policy keeps them while they are inactive."""


def retention_now(cluster: Cluster, namespaces: Collection[str]) -> RetentionNow:
    """The retention in force in those of ``namespaces`` that exist. Raises what the cluster's servers raise."""
    layers, differing = policies_now(cluster, namespaces)
    return RetentionNow(policies_in_force(layers), differing, owners_keep(layers))


def policies_now(
    cluster: Cluster,
    namespaces: Collection[str],
    more: Collection[str] = (),
    answered: Mapping[str, Mapping[str, str]] | None = None,
) -> tuple[Layers, tuple[str, ...]]:
    """What brokers, those of ``namespaces`` that exist and their topics say; and in what the brokers differ.

    Of the brokers' configuration what retention needs, and names in which a word of ``more`` stands. ``answered``: by
    broker id, the configuration of those that count; without it all are asked, and one that does not answer raises.
    Raises what the cluster's servers raise.
    """
    with cluster.ports(read_only=True) as ports:
        configurations = ports.admin.configurations() if answered is None else answered
        documents = namespace_policies(ports.configuration)
    said, differing = common_configuration(configurations, (*BROKER_NAMES, *REPLICATION_NAMES, *POLICY_SWITCHES, *more))
    agreed = {name: value for name, value in said.items() if all(c.get(name) == value for c in configurations.values())}
    layers = Layers(agreed, {name: documents[name] for name in namespaces if name in documents})
    layers = replace(layers, topics=read_namespaces(cluster, layers.namespaces, agreed))
    return layers, (*differing, *_elsewhere(agreed))


def _elsewhere(brokers: Mapping[str, str]) -> tuple[str, ...]:
    unknown = kept_elsewhere(brokers) if topics_have_policies(brokers) else None
    return (str(unknown),) if unknown else ()
