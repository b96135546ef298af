"""A lake in files, and whichever lake does what the port says: in files or in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.ports import Lake
from tests.kit.fakes.lake import FakeLake


@pytest.fixture
def files(tmp_path: Path) -> FileLake:
    return FileLake(str(tmp_path / "lake"))


@pytest.fixture(params=["files", "fake"])
def lake(request: pytest.FixtureRequest) -> Lake:
    """What both adapters of the port must do."""
    return request.getfixturevalue("files") if request.param == "files" else FakeLake()
