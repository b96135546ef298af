"""Several clusters in one deployment: a component for each, and Spark as a resource that may be another one."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster_pyspark import LazyPySparkResource

from orchestration.definitions import build_defs
from pulsar_lifecycle.settings import CONFIG_VARIABLE
from resources.lifecycle import LifecycleOnSpark
from tests.kit.settings import SETTINGS

ROOT = Path(__file__).parents[2]


def settings(folder: Path, cluster: str) -> Path:
    file = folder / f"{cluster}.toml"
    file.write_text(SETTINGS.format(cluster=cluster, lake=folder / "lake"))
    return file


def test_the_workspace_of_components_has_a_code_location_for_each_cluster(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != CONFIG_VARIABLE}
    environment |= {f"PULSAR_LIFECYCLE_{name.upper()}": str(settings(tmp_path, name)) for name in ("east", "west")}
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "clusters/workspace.yaml"],
        cwd=ROOT,
        env={**environment, "DAGSTER_HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(
        f"Validation successful for code location {name}" in done.stdout + done.stderr for name in ("east", "west")
    )


def test_spark_is_a_resource_that_may_be_another_one(tmp_path: Path) -> None:
    file = str(settings(tmp_path, "east"))
    resources = build_defs(file).resources or {}
    assert resources["pyspark"].spark_config["spark.master"] == "local[*]"
    other = LazyPySparkResource(spark_config={"spark.master": "local[1]"})
    found: Any = build_defs(file, {"pyspark": other}).resources
    assert found["pyspark"] is other

    seen: list[dict[str, Any]] = []

    @dg.op
    def looks(lifecycle: LifecycleOnSpark):
        seen.append(lifecycle.spark_resource({}).spark_config)

    @dg.job
    def looking() -> None:
        looks()

    with dg.DagsterInstance.ephemeral() as instance:
        assert looking.execute_in_process(resources=dict(found), instance=instance).success
    assert seen == [{"spark.master": "local[1]"}]


@pytest.mark.parametrize("name", ["pyspark", "lifecycle"])
def test_without_settings_the_resources_are_there(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)
    assert name in (build_defs().resources or {})
