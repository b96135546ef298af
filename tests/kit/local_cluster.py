"""Where a run works in a test: its tasks are threads of this process, or what the test gives.

Not here: Spark. ``resources.LifecycleResource`` makes a cluster whose tasks are its.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pulsar_lifecycle.io.lake.artefacts import Lake
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import LocalTasks, Tasks
from pulsar_lifecycle.settings import load_settings

AT_ONCE = 2
"""Tasks of a run that work at a time: two consumers of the queue, two uploads."""


@dataclass(frozen=True)
class ClusterWithTasks(Cluster):
    """``runs.cluster.Cluster`` with tasks that were given to it."""

    given: Tasks = field(default_factory=LocalTasks)

    @property
    def tasks(self) -> Tasks:
        return self.given


def local_cluster(file: str, tasks: Tasks | None = None) -> Cluster:
    """The cluster of a settings file, without Spark."""
    settings, no_spark = load_settings(file), _no_spark()
    return ClusterWithTasks(no_spark, settings, file, Lake(settings.lake.path), given=tasks or LocalTasks(AT_ONCE))


def _no_spark() -> Any:
    return None
