"""What tests of the command line begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.settings import load_settings
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from tests.kit.scenes.stored_plan import store_plan
from tests.kit.settings import write_settings


@pytest.fixture
def settings_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster that nothing answers for, with a lake."""
    return write_settings(tmp_path, monkeypatch, more='zookeeper.session_timeout = "1s"\napply.max_share = 0.5\n')


@pytest.fixture
def plan(settings_file: Path) -> PlanSummary:
    """A stored plan of one ledger out of ten, just made."""
    return store_plan(FileLake(load_settings(settings_file).lake.path))
