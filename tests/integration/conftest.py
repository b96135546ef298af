"""One sandbox for the whole test session: unseeded, in a folder of its own, ended afterwards.

``PULSAR_LIFECYCLE_TEST_SANDBOX`` names the data folder of a sandbox to use instead; it is left running.
A test that kills servers or needs a cluster with exactly known content starts one of its own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandbox.cluster import Cluster


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
