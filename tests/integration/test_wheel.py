"""The built wheel in an empty environment: it has everything that running from the source tree has.

The environment is made by pip from the wheel alone, with the versions of requirements.lock. Not here: what the jobs do.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from sandbox.cluster import Cluster
from tests.integration import pipeline

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
PIP = ("-m", "pip", "--quiet", "--disable-pip-version-check")


def run(folder: Path, *command: str | Path, **variables: str) -> str:
    """The command's output; it runs in ``folder`` and sees nothing of the source tree."""
    known = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "DAGSTER", "VIRTUAL"))}
    done = subprocess.run(
        list(map(str, command)), cwd=folder, env=known | variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"{command}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the commands of an environment that has only the wheel and what it needs."""
    folder = tmp_path_factory.mktemp("wheel")
    run(folder, sys.executable, *PIP, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    (wheel,) = folder.glob("*.whl")
    locked = (ROOT / "requirements.lock").read_text()
    pins = re.findall(
        r"^([A-Za-z0-9._-]+)(?:\[.*?\])?(==\S+)", locked, flags=re.MULTILINE
    )  # a constraint has no extras
    (folder / "constraints.txt").write_text("\n".join(map("".join, pins)) + "\n")
    venv.create(folder / "environment", with_pip=True)
    commands = folder / "environment/bin"
    run(folder, commands / "python", *PIP, "install", "--no-compile", "--constraint", "constraints.txt", wheel)
    return commands


def test_an_installed_wheel_scans(installed: Path, sandbox: Cluster, tmp_path: Path) -> None:
    settings = pipeline.settings_file(sandbox, tmp_path, {})
    home = tmp_path / "dagster"
    home.mkdir()
    found = {"PULSAR_LIFECYCLE_CONFIG": str(settings), "DAGSTER_HOME": str(home)}
    defs = ("-m", "orchestration.definitions", "-a", "defs")
    run(tmp_path, installed / "dagster", "definitions", "validate", "-m", "orchestration.definitions", **found)
    assert "explain" in run(tmp_path, installed / "pulsar-lifecycle", "--help")
    run(tmp_path, installed / "dagster", "job", "execute", *defs, "-j", "scan", **found)
    status = json.loads(run(tmp_path, installed / "pulsar-lifecycle", "status", "--json", **found))
    assert status["cluster"] == "sandbox"
    plans = json.loads(run(tmp_path, installed / "pulsar-lifecycle", "plans", "--json", **found))
    assert [plan["cluster"] for plan in plans] == ["sandbox"]
