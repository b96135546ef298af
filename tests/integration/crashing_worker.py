"""A deletion run that is killed by ``SIGKILL`` at a chosen step: ``python -m ... SETTINGS STEP BATCH``.

The worker is the one Spark runs on its executors, in this process, with real servers; only the port that takes the step
is replaced by one that dies there. Steps: ``delete`` (archived, nothing deleted yet), ``journal`` (deleted, nothing
journalled), ``acknowledge`` (journalled, not acknowledged).
"""

from __future__ import annotations

import os
import signal
import sys
from types import SimpleNamespace
from typing import Any, NoReturn

from pulsar_lifecycle.deletion import deletion_run, workers
from pulsar_lifecycle.deletion.decision import Run
from pulsar_lifecycle.deletion.workers import Outcome
from pulsar_lifecycle.io.lake.artefacts import Lake
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.io.pulsar.queue import PulsarDeletionQueue
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.settings import load_settings

PORTS = {
    "delete": (KazooStore, "delete_many"),
    "journal": (FileJournal, "record"),
    "acknowledge": (PulsarDeletionQueue, "acknowledge"),
}


def die(*_: Any, **__: Any) -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("still alive")


def work(_: Any, settings: Any, run: Run) -> list[Outcome]:
    workers._Worker(settings, run, 1, None)(None)
    return []


if __name__ == "__main__":
    path, step, batch = sys.argv[1:]
    settings = load_settings(path)
    settings = settings.model_copy(update={"deletion": settings.deletion.model_copy(update={"batch": int(batch)})})
    port, method = PORTS[step]
    setattr(port, method, die)
    deletion_run.delete_from_queue = work  # type: ignore[assignment]
    spark: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=1))
    deletion_run.delete_pending(Cluster(spark, settings, path, Lake(settings.lake.path)), f"killed at {step}")
