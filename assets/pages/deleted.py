"""What was deleted in namespaces, as their pages in ``deletions_by_namespace`` show it.

Source of truth: the journal. Not here: the runs that delete (``assets/deletion.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import dagster as dg
import pyarrow as pa

from assets.names import key
from pulsar_lifecycle.journal.queries import deleted_by_topic
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalReader

BY_NAMESPACE = "deletions_by_namespace"
COUNTED, ALL_RUNS = "deleted by", "all runs"
"""Which runs the figures of a page are of."""


def by_namespace(topics: pa.Table, wanted: set[str] | None) -> dict[str, dict[str, Any]]:
    """Metadata of each namespace's page, from what ``deleted_by_topic`` finds; ``wanted``: None for all in it."""
    found: dict[str, list[int]] = {name: [0, 0] for name in sorted(wanted or ())}
    for row in topics.to_pylist():
        namespace = str(Topic.parse(row["topic"]).namespace)
        if wanted is None or namespace in wanted:
            entry = found.setdefault(namespace, [0, 0])
            entry[0] += row["ledgers"]
            entry[1] += row["bytes"]
    return {name: {"dagster/row_count": count, "deleted bytes": size} for name, (count, size) in found.items()}


def deleted_by_run(journal: JournalReader, cluster: str, run_id: str) -> Mapping[str, dg.AssetMaterialization]:
    """An event for each namespace where a run deleted something, and only for those: what this run did there."""
    found = by_namespace(deleted_by_topic(journal, cluster, run_id), None)
    of_one = {COUNTED: dg.MetadataValue.dagster_run(run_id)}
    return {
        name: dg.AssetMaterialization(key(cluster, BY_NAMESPACE), partition=name, metadata=metadata | of_one)
        for name, metadata in found.items()
    }
