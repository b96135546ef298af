"""The code location as Dagster sees it: what there is, what rings by itself, and that it loads unconfigured.

``definitions.json`` beside this file is what an operator finds in the UI; after a wanted change,
``python -m tests.orchestration.test_definitions`` writes it anew.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.freshness import TimeWindowFreshnessPolicy

from assets.pages.frame import SCANS, freshness
from orchestration.definitions import UNCONFIGURED, build_defs
from pulsar_lifecycle.errors import ConfigError
from pulsar_lifecycle.settings import CONFIG_VARIABLE, CatalogSettings
from tests.kit.settings import SETTINGS

ROOT = Path(__file__).parents[2]
SNAPSHOT = Path(__file__).with_name("definitions.json")


@pytest.fixture(autouse=True)
def unconfigured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(CONFIG_VARIABLE, raising=False)


def definitions(tmp_path: Path, cluster: str, more: str = "") -> dg.Definitions:
    file = tmp_path / f"{cluster}.toml"
    file.write_text(SETTINGS.format(cluster=cluster, lake=tmp_path / "lake") + more)
    return build_defs(str(file))


def _fresh_for(policy: dg.FreshnessPolicy | None) -> float | None:
    return policy.fail_window.to_timedelta().total_seconds() if policy else None


def described(defs: dg.Definitions) -> dict[str, Any]:
    """Everything of the code location that an operator meets, as plain values."""
    repository = defs.get_repository_def()
    graph = repository.asset_graph
    assets = {
        key.to_user_string(): {
            "group": node.group_name,
            "kinds": sorted(node.kinds),
            "depends on": sorted(parent.to_user_string() for parent in node.parent_keys),
            "checks": sorted(check.name for check in node.check_keys),
            "materializable": node.is_materializable,
            "partitions": node.partitions_def.name if node.partitions_def else None,
            "pools": sorted(node.pools or ()),
            "columns": isinstance(node.metadata.get("dagster/column_schema"), dg.TableSchema)
            and bool(node.code_version),
            "fresh for": _fresh_for(node.freshness_policy),
            "by itself": node.automation_condition.get_label() if node.automation_condition else None,
        }
        for key in graph.get_all_asset_keys()
        for node in [graph.get(key)]
    }
    jobs = {
        job.name: sorted(key.to_user_string() for key in job.asset_layer.executable_asset_keys)
        or sorted(node.name for node in job.nodes)
        for job in repository.get_all_jobs()
        if not job.name.startswith("__")
    }
    schedules = {s.name: [s.job_name, s.cron_schedule, s.default_status.value] for s in repository.schedule_defs}
    sensors = {
        s.name: [
            ", ".join(sorted(t.job_name for t in s.targets)) or None,
            s.minimum_interval_seconds,
            s.default_status.value,
        ]
        for s in repository.sensor_defs
    }
    return {"assets": assets, "jobs": jobs, "schedules": schedules, "sensors": sensors}


def test_the_definitions_are_those_of_the_snapshot() -> None:
    assert described(build_defs()) == json.loads(SNAPSHOT.read_text())


def test_every_asset_says_what_it_is() -> None:
    graph = build_defs().get_repository_def().asset_graph
    assert not [key for key in graph.get_all_asset_keys() if not graph.get(key).description]


def test_every_asset_says_its_columns_version_owners_and_kinds(tmp_path: Path) -> None:
    """What exists without us, group ``cluster``, has no columns and no version of ours."""
    found = definitions(tmp_path, "east", '[catalog]\nowners = ["team:storage"]\n')
    graph = found.get_repository_def().asset_graph
    for key in graph.get_all_asset_keys():
        node = graph.get(key)
        schema = node.metadata.get("dagster/column_schema")
        assert (key, node.owners, bool(node.kinds)) == (key, ["team:storage"], True)
        columns = [bool(column.description) for column in schema.columns] if schema else []
        assert (key, bool(columns), bool(node.code_version)) == (key, *[node.group_name != "cluster"] * 2)
        assert all(columns), key


def test_the_switch_says_in_the_ui_what_stops_runs_that_it_does_not() -> None:
    repository = build_defs().get_repository_def()
    assert "`pulsar-lifecycle pause`" in (repository.get_sensor_def("automation").description or "")


def test_every_job_sensor_and_schedule_ships_with_words_and_stopped() -> None:
    repository = build_defs().get_repository_def()
    assert not [job.name for job in repository.get_all_jobs() if not job.name.startswith("__") and not job.description]
    assert {schedule.default_status for schedule in repository.schedule_defs} == {dg.DefaultScheduleStatus.STOPPED}
    assert {sensor.default_status for sensor in repository.sensor_defs} == {dg.DefaultSensorStatus.STOPPED}


def test_no_job_of_one_op_waits_for_another_run_but_those_of_offloads() -> None:
    """A dry run that died, or a run that waits for others, would hold up an undo; the lease refuses the second run."""
    repository = build_defs().get_repository_def()
    waiting = {job.name for job in repository.get_all_jobs() if any(node.definition.pools for node in job.nodes)}
    assert {"offload", "revert_offloads"} == {
        name for name in waiting if not repository.get_job(name).asset_layer.executable_asset_keys
    }
    graph = repository.asset_graph
    assert not [key for key in graph.get_all_asset_keys() if "namespace_" in key.path[-1] and graph.get(key).pools]


def test_two_clusters_share_no_key_no_partition_set_and_no_pool(tmp_path: Path) -> None:
    def names(cluster: str) -> set[str]:
        defs = definitions(tmp_path, cluster)
        found = described(defs)["assets"]
        partitions = {f"partitions:{asset['partitions']}" for asset in found.values() if asset["partitions"]}
        assert all(name.startswith(f"{cluster}/") for name in found)
        pools = {
            pool
            for job in defs.get_repository_def().get_all_jobs()
            for node in job.nodes
            for pool in node.definition.pools
        }
        assert len(pools) == 3
        return set(found) | partitions | {f"pool:{pool}" for pool in pools}

    assert not names("east") & names("west")


def test_without_settings_it_loads_under_a_name_that_says_so() -> None:
    assert all(name.startswith(f"{UNCONFIGURED}/") for name in described(build_defs())["assets"])


def test_the_settings_say_when_what_rings_by_itself_rings(tmp_path: Path) -> None:
    schedules = 'schedules = { scan = "*/15 * * * *", consumed_records = "*/20 * * * *" }'
    more = f'[automation]\nlook_every = "5s"\n{schedules}\n[catalog]\nscan_fresh_for = "75s"\n'
    found = described(definitions(tmp_path, "east", more))
    assert found["schedules"]["hourly_scan"][1] == "*/15 * * * *"
    assert found["schedules"]["hourly_consumed_records"][1] == "*/20 * * * *"
    assert {name: found["sensors"][name][1] for name in ("automation", "after_scan")} == {
        "automation": 5,
        "after_scan": 5,
    }
    with pytest.raises(ConfigError, match=r"automation\.schedules\.queue"):
        definitions(tmp_path, "west", '[automation.schedules]\nqueue = "61 * * * *"\n')


def test_an_hourly_scan_that_stops_is_red_within_an_hour_of_the_first_one_missing() -> None:
    """Of scans that take 20 minutes; one that takes so much longer than the last is no reason for red."""
    hour, takes = 3_600, 1_200
    for name in SCANS:
        policy = freshness(name, CatalogSettings(), {})
        assert isinstance(policy, TimeWindowFreshnessPolicy)
        assert policy.warn_window
        red, warned = (window.to_timedelta().total_seconds() for window in (policy.fail_window, policy.warn_window))
        assert hour + takes < red <= (hour - takes) + hour
        assert hour < warned < red


def test_plans_that_are_to_go_by_themselves_may_not_be_old(tmp_path: Path) -> None:
    """Others are made when somebody wants them: nothing is wrong while nobody does."""

    def fresh(modes: str) -> set[str]:
        """What is too old a while after a plan is: a nightly plan is not, before the next one is made."""
        found = described(definitions(tmp_path, "east", f"[automation]\n{modes}"))["assets"]
        return {name.partition("/")[2] for name, asset in found.items() if asset["fresh for"] == 86_400 + 5_400}

    assert fresh("") == set()
    retention, offload = {"expired_ledgers", "retention_plan"}, {"offload_candidates", "offload_plan"}
    assert fresh('retention = "apply"\noffload = "approve"\n') == retention | offload
    assert fresh('bookkeeper_copies = "apply"\noffload = "plan"\n') == offload
    assert fresh('bookkeeper_copies = "apply"\noffload = "off"\n') == offload


def test_wrong_settings_name_the_key(tmp_path: Path) -> None:
    file = tmp_path / "lifecycle.toml"
    file.write_text(SETTINGS.format(cluster="east", lake="relative/lake"))
    with pytest.raises(ConfigError, match=r"lake\.path"):
        build_defs(str(file))


def test_dagster_validates_the_code_location_without_settings(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name != CONFIG_VARIABLE}
    done = subprocess.run(
        [sys.executable, "-m", "dagster", "definitions", "validate", "-w", "workspace.yaml"],
        cwd=ROOT,
        env={**environment, "DAGSTER_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


if __name__ == "__main__":
    SNAPSHOT.write_text(json.dumps(described(build_defs()), indent=1, sort_keys=True) + "\n")
