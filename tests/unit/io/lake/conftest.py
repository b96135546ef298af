"""A lake in files, and whichever lake, or journal, does what the port says: in files or in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.ports import Lake
from tests.kit.fakes.journal import FakeJournal
from tests.kit.fakes.lake import FakeLake


@pytest.fixture
def files(tmp_path: Path) -> FileLake:
    return FileLake(str(tmp_path / "lake"))


@pytest.fixture(params=["files", "fake"])
def lake(request: pytest.FixtureRequest) -> Lake:
    """What both adapters of the port must do."""
    return request.getfixturevalue("files") if request.param == "files" else FakeLake()


@pytest.fixture(params=["files", "fake"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> FileJournal | FakeJournal:
    """The same of the journal."""
    return FileJournal(str(tmp_path)) if request.param == "files" else FakeJournal()
