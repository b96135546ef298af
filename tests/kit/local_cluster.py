"""Where a run works in a test: its tasks are threads of this process, or what the test gives.

Not here: Spark. ``resources.LifecycleResource`` makes a cluster whose tasks are its.
"""

from __future__ import annotations

from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import LocalTasks, Tasks
from pulsar_lifecycle.settings import load_settings

AT_ONCE = 2
"""Tasks of a run that work at a time: two consumers of the queue, two uploads."""


def local_cluster(file: str, tasks: Tasks | None = None) -> Cluster:
    """The cluster of a settings file, without Spark."""
    return Cluster(load_settings(file), Connections, file, given=tasks or LocalTasks(AT_ONCE))
