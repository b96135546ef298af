"""It runs by itself: a deployment with daemon and webserver, told what to do by its settings file and by GraphQL alone.

Nothing here calls the product but through the webserver and the command line. The schedule scans each minute, and
sensors look every five seconds, as the settings file says.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pulsar
import pytest

from pulsar_lifecycle.settings import CONFIG_VARIABLE
from sandbox import plant, topics, znodes
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from tests.integration import pipeline as driving
from tests.integration.delayed_index.delayed import BROKERS, keys_of, planted
from tests.integration.orchestration.deployment import Deployment, until
from tests.integration.pipeline import existing, new_namespace, wait_unlisted, wait_until_unloaded_counts
from tests.integration.tiered.offloads import contexts, with_bucket

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]

CLUSTER = "sandbox"
FRESH_FOR = 150
"""Seconds after which a plan's health is bad."""


@dataclass(frozen=True)
class Scene:
    """What was planted: by name of a topic, the ledgers that must go or move by themselves, and the others."""

    config: Path
    leaked: set[int]
    archive: str
    expired: str
    delayed: str
    far: list[str]
    """Three namespaces that are no neighbours, for backfills: a leak and a topic ``kept`` in each."""
    far_leaks: set[int]
    past: list[str]
    """Three namespaces that are no neighbours, past their retention: a topic ``t`` in each."""

    def said(self, *command: str) -> Any:
        """What a command answers with ``--json``."""
        words = [str(Path(sys.executable).with_name("pulsar-lifecycle")), *command, "--json"]
        done = subprocess.run(
            words, env={CONFIG_VARIABLE: str(self.config), "PATH": ""}, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)


def spread(sandbox: Cluster, client: pulsar.Client, name: str) -> list[str]:
    """Three new namespaces with others between them, which have a topic each."""
    several = [new_namespace(sandbox, f"{name}-{letter}") for letter in "abcde"]
    for between in several[1::2]:
        topics.publish(client, f"persistent://{between}/other", topics.payloads(1))
    return several[::2]


def listed(sandbox: Cluster, topic: str) -> list[int]:
    with sandbox.metadata() as zk:
        return sorted(znodes.listed_ledgers(zk, topic))


def settings(sandbox: Cluster, folder: Path, by_itself: dict[str, str]) -> Path:
    """``by_itself``: kind -> the one namespace in which it goes by itself."""
    kinds: dict[str, Any] = {
        kind: {"mode": "apply", "max_share": 1.0, "namespaces": [namespace]} for kind, namespace in by_itself.items()
    }
    more: dict[str, dict[str, Any]] = {
        **with_bucket(sandbox, namespaces=[by_itself["offload"]]),
        "automation": {**kinds, "bookkeeper_copies": "off", "look_every": "5s", "schedules": {"scan": "* * * * *"}},
        "catalog": {"scan_fresh_for": f"{FRESH_FOR}s"},
        "delayed_index": {"namespaces": [by_itself["delayed_index"]], "brokers": BROKERS},
    }
    return driving.settings_file(sandbox, folder, more)


@pytest.fixture(scope="module")
def scene(sandbox: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Produced, leaked, expired, delayed, and unloaded."""
    driving.drain(sandbox)
    kinds = ("orphans", "retention", "offload", "delayed_index")
    own = {kind: new_namespace(sandbox, f"itself-{kind.replace('_', '-')}") for kind in kinds}
    with pulsar_client(sandbox.service_url) as client:
        far, past = spread(sandbox, client, "far"), spread(sandbox, client, "past")
    leaking = [f"persistent://{namespace}/leaked" for namespace in (own["orphans"], *far)]
    leaks = {topic: {one.ledger_id for one in plant.orphan_data(sandbox, topic)} for topic in leaking}
    archive, expired, late = (
        f"persistent://{own[kind]}/{name}"
        for kind, name in (("offload", "archive"), ("retention", "expired"), ("delayed_index", "late"))
    )
    full = [
        archive,
        expired,
        *(f"persistent://{name}/kept" for name in far),
        *(f"persistent://{name}/t" for name in past),
    ]
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        planted(sandbox, client, late, 3600)
        for topic in full:
            topics.publish(client, topic, topics.payloads(130))
        for topic in (*full, late):
            admin.unload(topic)
        admin.call("PUT", f"/v2/namespaces/{own['offload']}/offloadThreshold", 0)
        for namespace in (own["retention"], *past):
            nothing = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
            admin.call("POST", f"/v2/namespaces/{namespace}/retention", nothing)
    with sandbox.metadata() as zk:
        zk.delete(znodes.ledger_znode(int(sorted(keys_of(sandbox, late).items())[1][1])))
    since = time.time()
    wait_unlisted(sandbox, [*full, *leaking, late])
    wait_until_unloaded_counts(since)
    config = settings(sandbox, tmp_path_factory.mktemp("itself"), own)
    far_leaks = {ledger for topic in leaking[1:] for ledger in leaks[topic]}
    return Scene(config, leaks[leaking[0]], archive, expired, late, far, far_leaks, past)


@pytest.fixture(scope="module")
def deployed(scene: Scene, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """All of it runs; an operator has scanned once, and the schedule since."""
    deployment = Deployment(tmp_path_factory.mktemp("dagster"), {CLUSTER: scene.config})
    try:
        deployment.start()
        assert deployment.ended(deployment.launch(CLUSTER, "scan")) == "SUCCESS"
        deployment.switch_on(CLUSTER, schedules=["hourly_scan"], sensors=["after_scan"])
        until("a plan", lambda: _confirmed(deployment))
        deployment.switch_off(CLUSTER, "hourly_scan")
        yield deployment
    finally:
        deployment.stop()


def _confirmed(deployment: Deployment) -> bool:
    return any(page["actionable"] and page["dagster/row_count"] for page in deployment.pages(CLUSTER, "deletion_plan"))


def test_what_the_settings_allow_is_done_by_itself_though_the_daemon_dies(
    sandbox: Cluster, scene: Scene, deployed: Deployment
) -> None:
    until("a green plan", lambda: deployed.freshness(CLUSTER, "deletion_plan") == "HEALTHY")
    covered = {"coverage": "SUCCEEDED"}
    until("a scan that is over", lambda: deployed.checks(CLUSTER, "ledger_references") == covered)
    last, broken, sealed = (
        listed(sandbox, scene.expired)[-1],
        keys_of(sandbox, scene.delayed),
        listed(sandbox, scene.archive)[:-1],
    )
    expired = listed(sandbox, scene.expired)[:-1]
    deployed.switch_on(CLUSTER, sensors=["automation", "deletion_queue", "deletion_retry"])
    until("a plan to be applied", lambda: deployed.runs("apply_plan", lifecycle__cluster=CLUSTER))
    deployed.kill_daemon()
    deployed.start_daemon()

    until("the leaks to go", lambda: not existing(sandbox, scene.leaked))
    until("a repair", lambda: keys_of(sandbox, scene.delayed) != broken)
    until("what expired to leave its topic", lambda: listed(sandbox, scene.expired) == [last])
    until("what expired to go", lambda: not existing(sandbox, expired))
    until("the archive to be offloaded", lambda: _offloaded(sandbox, scene.archive) == sealed)
    assert existing(sandbox, scene.far_leaks) == scene.far_leaks
    assert all(len(listed(sandbox, f"persistent://{name}/t")) == 3 for name in scene.past)

    _lineage(scene, deployed)
    until("a red plan", lambda: deployed.freshness(CLUSTER, "deletion_plan") == "DEGRADED")


def _offloaded(sandbox: Cluster, topic: str) -> list[int]:
    return sorted(ledger for ledger, context in contexts(sandbox, topic).items() if context and context.complete)


def _lineage(scene: Scene, deployed: Deployment) -> None:
    """From a ledger to its run, from the run to its plan and scan, from the plan's page to the run."""
    (row,) = [row for row in scene.said("journal", "--ledger", str(min(scene.leaked))) if row["outcome"] == "deleted"]
    (run,) = [run for run in deployed.runs("delete_pending") if run["runId"] == row["run_id"]]
    tags = {tag["key"]: tag["value"] for tag in run["tags"]}
    assert tags["lifecycle/cluster"] == CLUSTER
    plan_id, epoch = tags["lifecycle/plan"], tags["lifecycle/epoch"]
    assert plan_id in {page["plan id"] for page in deployed.pages(CLUSTER, "deletion_plan")}
    applied = {run["runId"] for run in deployed.runs("apply_plan", lifecycle__plan=plan_id)}
    assert applied
    assert applied <= {page["run"] for page in deployed.observed(CLUSTER, "ledger_deletion_topic")}
    assert applied <= {page["run"] for page in deployed.observed(CLUSTER, "deletion_plan")}
    assert epoch in {page["lifecycle/epoch"] for page in deployed.pages(CLUSTER, "ledger_references")}
    assert row["run_id"] in {page["run"] for page in deployed.pages(CLUSTER, "ledger_deletions")}
    for asset in ("trimmed_ledgers", "offloaded_ledgers", "journal", "archive"):
        assert deployed.observed(CLUSTER, asset), asset


def test_a_backfill_of_namespaces_far_apart_is_one_plan_and_one_set_of_effects(
    sandbox: Cluster, scene: Scene, deployed: Deployment
) -> None:
    deployed.switch_off(CLUSTER, "automation", "deletion_queue", "deletion_retry", "after_scan")
    until("what goes by itself to rest", lambda: not deployed.active())  # a scan under way would be refused
    named = deployed.partitions(CLUSTER, "namespace_retention")
    for names in (scene.far, scene.past):
        assert all(named.index(two) - named.index(one) > 1 for one, two in pairwise(sorted(names, key=named.index)))
    for asset, chosen in (
        ("namespace_reconciliation", scene.far),
        ("offloaded_ledgers", scene.far),
        ("namespace_retention", scene.past),
    ):
        config = {"ops": {f"{CLUSTER}__{asset}": {"config": {"dry_run": False}}}}
        backfill = deployed.backfill([CLUSTER, asset], chosen, config)
        until("the backfill", lambda backfill=backfill: deployed.backfilled(backfill))
        runs = deployed.runs(dagster__backfill=backfill)
        assert {run["status"] for run in runs} == {"SUCCESS"}
        assert len(runs) > 1  # one for each range of neighbours
        pages = [page for page in deployed.pages(CLUSTER, asset, partitions=chosen) if "plan id" in page]
        assert {page["partition"] for page in pages} == set(chosen), asset
        assert len({page["plan id"] for page in pages}) == 1, asset
        assert len({page["run"] for page in pages}) == 1, asset

    assert all(
        _offloaded(sandbox, topic) == listed(sandbox, topic)[:-1]
        for topic in (f"persistent://{name}/kept" for name in scene.far)
    )
    assert all(len(listed(sandbox, f"persistent://{name}/t")) == 1 for name in scene.past)
    (plan,) = {page["plan id"] for page in deployed.pages(CLUSTER, "namespace_reconciliation", partitions=scene.far)}
    sent = [row["ledger_id"] for row in scene.said("journal", "--plan", plan) if row["outcome"] == "sent"]
    assert sorted(sent) == sorted(scene.far_leaks)
