"""The built wheel in an empty environment: it has everything that running from the source tree has.

The environment is made by pip from the wheel alone, with the versions of requirements.lock. What the wheel needs is
linked from ours, and pip, which may fetch nothing, sees that all of it is there. Not here: what the jobs do.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import Distribution, PathDistribution, distribution
from importlib.util import cache_from_source
from pathlib import Path

import pytest
from packaging.requirements import Requirement

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


def link_needed(wheel: Path, into: Path) -> None:
    """Link what the wheel says that it needs, and what that needs, with what is compiled of it."""
    asked = [(PathDistribution(zipfile.Path(wheel, f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/")), {""})]
    needed: dict[tuple[str, frozenset[str]], Distribution] = {}
    for found, extras in asked:
        for one in map(Requirement, found.requires or ()):
            key = one.name, frozenset({"", *one.extras})
            if key not in needed and (not one.marker or any(one.marker.evaluate({"extra": name}) for name in extras)):
                needed[key] = distribution(one.name)
                asked.append((needed[key], set(key[1])))
    for found in needed.values():
        for file in found.files or ():
            source = Path(str(found.locate_file(file)))
            if ".." in file.parts or file.suffix == ".pyc":  # a command would run our Python
                continue
            compiled = Path(cache_from_source(str(source))) if file.suffix == ".py" else source
            for path in {source, compiled}:
                link = into / path.relative_to(str(found.locate_file("")))
                if path.exists() and not link.exists():
                    link.parent.mkdir(parents=True, exist_ok=True)
                    link.symlink_to(path)


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
    commands = folder / "environment/bin"
    venv.create(folder / "environment")
    (packages,) = folder.glob("environment/lib/python*/site-packages")
    link_needed(wheel, packages)
    given = ("--no-index", "--no-compile", "--constraint", "constraints.txt", wheel)
    run(folder, sys.executable, *PIP, "--python", commands / "python", "install", *given)
    return commands


def test_an_installed_wheel_scans(installed: Path, sandbox: Cluster, tmp_path: Path) -> None:
    settings = pipeline.settings_file(sandbox, tmp_path, {})
    home = tmp_path / "dagster"
    home.mkdir()
    found = {"PULSAR_LIFECYCLE_CONFIG": str(settings), "DAGSTER_HOME": str(home)}
    dagster = (installed / "python", "-m", "dagster")
    defs = ("-m", "orchestration.definitions", "-a", "defs")
    run(tmp_path, *dagster, "definitions", "validate", "-m", "orchestration.definitions", **found)
    assert "explain" in run(tmp_path, installed / "pulsar-lifecycle", "--help")
    run(tmp_path, *dagster, "job", "execute", *defs, "-j", "scan", **found)
    status = json.loads(run(tmp_path, installed / "pulsar-lifecycle", "status", "--json", **found))
    assert status["cluster"] == "sandbox"
    plans = json.loads(run(tmp_path, installed / "pulsar-lifecycle", "plans", "--json", **found))
    assert [plan["cluster"] for plan in plans] == ["sandbox"]
