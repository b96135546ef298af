"""Asset keys of one cluster: every key starts with the cluster's name, since keys are instance-wide in Dagster."""

from __future__ import annotations

from collections.abc import Iterable

import dagster as dg

from pulsar_lifecycle.metastore.reading import TABLES

METASTORE = tuple(TABLES)
FINDINGS = ("orphan_ledgers", "offload_leftovers", "dangling_references", "unjudged_ledgers")
EPOCH = "lifecycle/epoch"
"""Metadata key under which every asset of a scan says which one; tag of its run, and of runs that applied its plans."""
PLAN = "lifecycle/plan"
"""Tag of the runs that applied a plan, or approved it; of the first one, where a run worked off messages of several."""
APPLIED_PLAN = "lifecycle.plan/"
"""Beginning of a tag whose end is a plan's id: a run has one for each plan that it applied, the first, too."""
APPLIED = "applied"
"""Value of such a tag; any other says that the run did not apply the plan."""
CLUSTER = "lifecycle/cluster"
"""Tag of every run with effects, or that approves them: one Dagster may have a code location for each cluster."""
TOLD = "lifecycle/told"
"""Tag of a run that ended badly and whose effects are on the pages: its id, as a run that executes it again has it."""
NOTHING_DONE = "lifecycle/nothing-done"
"""Tag of a run that was launched by itself and ended well without having begun: its id, as ``TOLD``."""
READER = "lifecycle/reads"
"""Tag of runs that were started by themselves and change nothing: which cluster."""


def key(cluster: str, name: str) -> dg.AssetKey:
    """Key of one asset of one cluster."""
    return dg.AssetKey([cluster, name])


def pool(cluster: str, name: str) -> str:
    """The pool in which runs of one cluster wait for each other: what reads ZooKeeper, deletes, offloads."""
    return f"{name}_{cluster}"


def namespace_partitions(cluster: str) -> dg.DynamicPartitionsDefinition:
    """The cluster's namespaces, for what is rolled back and shown per namespace."""
    return dg.DynamicPartitionsDefinition(name=f"namespaces_{cluster}")


def register_namespaces(instance: dg.DagsterInstance, cluster: str, names: Iterable[str]) -> None:
    """Make namespaces choosable for a backfill. A scan registers those that have topics; others may have none left."""
    partitions = namespace_partitions(cluster)
    assert partitions.name is not None
    if new := sorted(set(names) - set(instance.get_dynamic_partitions(partitions.name))):
        instance.add_dynamic_partitions(partitions.name, new)
