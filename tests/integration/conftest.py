"""One sandbox and one Spark session for the whole test session.

The sandbox is unseeded, in a folder of its own, ended afterwards. ``PULSAR_LIFECYCLE_TEST_SANDBOX`` names the data
folder of a sandbox to use instead; it is left running. A test that kills servers or needs a cluster with exactly known
content starts one of its own. Spark allows one session per process, whose master is that of the first settings it was
started with: all pipelines of :mod:`tests.integration.pipeline` name the same.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from sandbox.cluster import Cluster
from tests.integration import pipeline as driving
from tests.integration.pipeline import Pipeline

LONG = (
    *("test_kills", "test_offload_kills", "test_offload_faults", "test_pipeline_coverage", "test_offload_run"),
    *("test_broker_offloader_schedules", "test_rollback", "test_trimming", "test_bookkeeper_entries", "test_pipeline"),
    *("test_sandbox", "test_undo", "test_waiting", "test_wheel", "test_object_sweep", "test_delayed_snapshots"),
    *("test_topic_policies", "test_retry_topics", "test_queue_contract", "test_objects_faults"),
)
"""Modules that take minutes, the longest first: begun last, one would run alone at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Parallel workers take modules in this order."""
    order = {name: place for place, name in enumerate(LONG)}
    items.sort(key=lambda item: order.get(item.path.stem, len(LONG)))


@pytest.fixture(scope="session")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    reused = os.environ.get("PULSAR_LIFECYCLE_TEST_SANDBOX")
    cluster = Cluster(Path(reused) if reused else tmp_path_factory.mktemp("cluster") / "sandbox")
    try:
        cluster.start()
        yield cluster
    finally:
        if not reused:
            cluster.stop(purge=True)


@pytest.fixture(scope="session")
def offloading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A sandbox of its own whose brokers have an offloader."""
    reused = os.environ.get("PULSAR_LIFECYCLE_TEST_SANDBOX")
    folder = Path(f"{reused}-offloader") if reused else tmp_path_factory.mktemp("offloading") / "sandbox"
    cluster = Cluster(folder)
    try:
        cluster.start(offloader=True)
        yield cluster
    finally:
        if not reused:
            cluster.stop(purge=True)


@pytest.fixture(scope="session")
def spark() -> Iterator[None]:
    """Whoever uses a pipeline needs it: its executors run this Python, and its JVM ends with the tests."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    yield
    session = SparkSession.getActiveSession()
    if session is not None:
        session.stop()


@pytest.fixture(scope="module")
def pipelines(sandbox: Cluster, spark: None, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pipeline]:
    """Makes pipelines, each with a lake of its own; the deletion queue is empty when a module begins."""
    driving.drain(sandbox)

    def make(overrides: dict[str, dict[str, Any]] | None = None, lake: str = "") -> Pipeline:
        folder = tmp_path_factory.mktemp("pipeline")
        made = {section: dict(values) for section, values in (overrides or {}).items()}
        if lake:
            made.setdefault("lake", {})["path"] = lake
        return Pipeline(driving.settings_file(sandbox, folder, made))

    return make
