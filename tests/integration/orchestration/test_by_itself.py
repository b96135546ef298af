"""It runs by itself: a deployment with daemon and webserver, told what to do by its settings file and by GraphQL alone.

Nothing here calls the product but through the webserver and the command line. The daemon is killed on the way. At the
end, once scans have stopped, the plan's page is red. Then brokers are rolled back, and namespaces far apart backfilled.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.settings import CONFIG_VARIABLE
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import BUCKET, Cluster
from sandbox.planting import plant, topics, znodes
from tests.integration import pipeline as driving
from tests.integration.delayed_index.delayed import BROKERS, keys_of, planted
from tests.integration.orchestration import browser
from tests.integration.orchestration.deployment import ENDED, Deployment
from tests.integration.pipeline import existing, listed, new_namespace, wait_unlisted
from tests.integration.tiered.offloads import contexts, s3_client, with_bucket

pytestmark = [pytest.mark.integration, pytest.mark.timeout(3600)]

CLUSTER = "sandbox"
FRESH_FOR = 120
"""Seconds after which a plan's health is bad: long enough to see it good on a busy machine."""
KINDS = ("orphans", "retention", "offload", "delayed_index")
AFTER_SCAN = ("expired_ledgers", "offload_candidates", "storage_report", "delayed_index_buckets", "open_ledgers")
NOTHING = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}


@dataclass(frozen=True)
class Scene:
    """What was planted: the ledgers that must go or move by themselves."""

    config: Path
    leaked: set[int]
    archive: str
    expired: str
    delayed: str
    beside: str
    """As ``expired``, in a namespace that does not go by itself."""
    far: Mapping[str, int]
    """Neighbouring namespaces in their order, of which none goes by itself: what leaked in each. Topic ``t`` of every
    second one is as ``expired``, of the others as ``archive``."""
    profile: Path
    """The browser's folder."""

    def said(self, *command: str) -> Any:
        """What a command answers with ``--json``."""
        words = [str(Path(sys.executable).with_name("pulsar-lifecycle")), *command, "--json"]
        done = subprocess.run(
            words, env={CONFIG_VARIABLE: str(self.config), "PATH": ""}, capture_output=True, check=False
        )
        assert done.returncode == 0, done.stderr.decode()
        return json.loads(done.stdout)


def settings(sandbox: Cluster, folder: Path, own: dict[str, str]) -> Path:
    """``own``: kind -> the one namespace in which it goes by itself. Scans each minute, sensors look every ten seconds.

    Executors are not the point here: one task at a time has one Python worker start for each run.
    """
    kinds: dict[str, Any] = {
        kind: {"mode": "apply", "max_share": 1.0, "namespaces": [namespace]} for kind, namespace in own.items()
    }
    more: dict[str, dict[str, Any]] = {
        **with_bucket(sandbox, namespaces=[own["offload"]]),
        "automation": {
            **kinds,
            "bookkeeper_copies": kinds["offload"],
            "look_every": "10s",
            "schedules": {"scan": "* * * * *"},
        },
        "spark": {"master": "local[1]", "scan_partitions": 1},
        "catalog": {"scan_fresh_for": f"{FRESH_FOR}s"},
        "delayed_index": {"namespaces": [own["delayed_index"]], "brokers": BROKERS},
    }
    return driving.settings_file(sandbox, folder, more)


def scene_of(sandbox: Cluster, own: dict[str, str], config: Path) -> Scene:
    """Produced, leaked, expired, delayed, and unloaded."""
    leaking = f"persistent://{own['orphans']}/leaked"
    archive, expired, late = (f"persistent://{own[kind]}/t" for kind in ("offload", "retention", "delayed_index"))
    other = new_namespace(sandbox, "itself-beside")
    beside = f"persistent://{other}/t"
    leaked = {one.ledger_id for one in plant.orphan_data(sandbox, leaking)}
    far = {name: plant.young(sandbox, f"persistent://{name}/leaked")[0].ledger_id for name in far_apart(sandbox)}
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        planted(sandbox, client, late)
        full = [archive, expired, beside, *(f"persistent://{name}/t" for name in far)]
        for topic in full:
            topics.publish(client, topic, topics.payloads(130))
        for topic in (*full, late):
            admin.unload(topic)
        admin.call("PUT", f"/v2/namespaces/{own['offload']}/offloadThreshold", 0)
        for namespace in (own["retention"], other, *list(far)[::2]):
            admin.call("POST", f"/v2/namespaces/{namespace}/retention", NOTHING)
    with sandbox.metadata() as zk:
        zk.delete(znodes.ledger_znode(int(sorted(keys_of(sandbox, late).items())[1][1])))
    wait_unlisted(sandbox, [*full, leaking, late, *(f"persistent://{name}/leaked" for name in far)])
    return Scene(config, leaked, archive, expired, late, beside, far, config.with_name("chromium"))


def far_apart(sandbox: Cluster) -> list[str]:
    """Four namespaces that follow one another in the list of partitions."""
    return [new_namespace(sandbox, f"itself-far-{number}") for number in range(4)]


@pytest.fixture(scope="module")
def deployed(sandbox: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Deployment, Scene]]:
    """All that goes by itself is on, and has nothing to do without scans; then the scene is set."""
    driving.drain(sandbox)
    own = {kind: new_namespace(sandbox, f"itself-{kind.replace('_', '-')}") for kind in KINDS}
    config = settings(sandbox, tmp_path_factory.mktemp("itself"), own)
    deployment = Deployment(tmp_path_factory.mktemp("dagster"), {CLUSTER: config})
    try:
        deployment.begin()
        deployment.start()
        deployment.switch_on(CLUSTER, sensors=["after_scan", "automation"])
        yield deployment, scene_of(sandbox, own, config)
    finally:
        deployment.stop()


def test_what_the_settings_allow_is_done_by_itself_though_the_daemon_dies(
    sandbox: Cluster, deployed: tuple[Deployment, Scene]
) -> None:
    deployment, scene = deployed
    until = deployment.until
    *expired, last = listed(sandbox, scene.expired)
    sealed, broken = listed(sandbox, scene.archive)[:-1], keys_of(sandbox, scene.delayed)

    deployment.switch_on(CLUSTER, schedules=["hourly_scan"])
    until("what follows a scan", lambda: deployment.runs("__ASSET_JOB"))
    deployment.switch_off(CLUSTER, "after_scan")  # once is enough
    until("two scans", lambda: len(deployment.runs("scan")) >= 2)  # the second confirms what the first called orphan
    # while scans go on, no plan is too old before somebody looks
    until("a green plan", lambda: deployment.freshness(CLUSTER, "deletion_plan") == "HEALTHY")
    if browser.CHROMIUM:
        until("a browser to show that", lambda: _health(deployment, scene) == "Passing")
    deployment.switch_off(CLUSTER, "hourly_scan")
    until("them to end", lambda: len(_whole(deployment)) >= 2)
    until("a green scan", lambda: deployment.checks(CLUSTER, "ledger_references") == {"coverage": "SUCCEEDED"})
    until("a run that applies a plan", lambda: deployment.runs(lifecycle__automation="retention"))
    deployment.kill_daemon()
    deployment.start_daemon()

    until("intents of the leaks", lambda: deployment.runs("apply_plan", lifecycle__automation="orphans"))
    until("what expired to leave its topic", lambda: listed(sandbox, scene.expired) == [last])
    until("a repair", lambda: keys_of(sandbox, scene.delayed) != broken)
    until("the archive to be offloaded", lambda: _offloaded(sandbox, scene.archive) == sealed)
    until("the leaks to go", lambda: not existing(sandbox, scene.leaked))
    until("what expired to go", lambda: not existing(sandbox, expired))
    assert len(listed(sandbox, scene.beside)) == 3

    until("the run's page", lambda: deployment.pages(CLUSTER, "ledger_deletions"))
    _lineage(scene, deployment)
    until("a red plan", lambda: deployment.freshness(CLUSTER, "deletion_plan") == "DEGRADED")
    if browser.CHROMIUM:
        until("a browser to show that", lambda: _health(deployment, scene) == "Failed")


@pytest.mark.skipif(not browser.CHROMIUM, reason=browser.NONE)
def test_a_browser_shows_where_a_plan_comes_from(deployed: tuple[Deployment, Scene]) -> None:
    deployment, scene = deployed
    page = f"{deployment.url}/assets/{CLUSTER}/deletion_plan?view=lineage&lineageScope=upstream&lineageDepth=4"
    shown = deployment.until("its lineage", lambda: browser.words(page, scene.profile))
    from_the_cluster = {
        "zookeeper",
        "bookkeeper",
        "brokers",
        "bookkeeper_ledgers",
        "managed_ledgers",
        "managed_cursors",
    }
    assert {*from_the_cluster, "schemas", "topics", "ledger_references", "orphan_ledgers"} <= set(shown)


def test_copies_in_bookkeeper_go_by_themselves_once_a_scan_has_seen_what_was_offloaded(
    sandbox: Cluster, deployed: tuple[Deployment, Scene]
) -> None:
    deployment, scene = deployed
    offloaded = _offloaded(sandbox, scene.archive)
    assert offloaded
    deployment.switch_on(CLUSTER, schedules=["hourly_scan"], sensors=["after_scan", "automation"])
    launched = deployment.until(
        "a run that deletes copies", lambda: deployment.runs(lifecycle__automation="bookkeeper_copies")
    )
    deployment.switch_off(CLUSTER, "hourly_scan", "after_scan")
    assert deployment.ended(launched[-1]["runId"]) == "SUCCESS"
    deployment.until("the copies to go", lambda: not existing(sandbox, offloaded))
    found = contexts(sandbox, scene.archive)
    assert all(found[ledger].complete and found[ledger].bookkeeper_deleted for ledger in offloaded)
    assert existing(sandbox, set(found) - set(offloaded)) == set(found) - set(offloaded)
    with s3_client(sandbox) as s3:
        for ledger in offloaded:
            s3.head_object(Bucket=BUCKET, Key=f"{found[ledger].uuid}-ledger-{ledger}")


def test_nothing_is_unsynced_once_a_cycle_is_over(deployed: tuple[Deployment, Scene]) -> None:
    deployment, _ = deployed
    deployment.switch_off(CLUSTER, "hourly_scan", "after_scan", "automation")
    deployment.until("runs to end", lambda: all(run["status"] in ENDED for run in deployment.runs()))
    assert deployment.ended(deployment.launch(CLUSTER, "scan")) == "SUCCESS"
    deployment.switch_on(CLUSTER, sensors=["after_scan"])
    newest = {page["lifecycle/epoch"] for page in deployment.pages(CLUSTER, "scan_coverage")[:1]}

    def of_the_scan(asset: str) -> bool:
        return newest == {page["lifecycle/epoch"] for page in deployment.pages(CLUSTER, asset)[:1]}

    deployment.until("what follows it", lambda: all(map(of_the_scan, AFTER_SCAN)))
    deployment.until("nothing to be unsynced", lambda: not deployment.unsynced())
    deployment.switch_off(CLUSTER, "after_scan")


def test_after_a_rollback_namespaces_far_apart_are_one_backfill_with_one_plan(
    sandbox: Cluster, deployed: tuple[Deployment, Scene]
) -> None:
    deployment, scene = deployed
    deployment.switch_off(CLUSTER, "hourly_scan", "after_scan", "automation")
    deployment.until("runs to end", lambda: all(run["status"] in ENDED for run in deployment.runs()))
    chosen, others = list(scene.far)[::2], list(scene.far)[1::2]
    leaked = rolled_back(sandbox, deployment, scene, in_flight=chosen[0])
    before = {name: listed(sandbox, f"persistent://{name}/t") for name in scene.far}

    def launched(asset: str, namespaces: list[str]) -> str:
        return deployment.backfill(CLUSTER, asset, namespaces, dry_run=False)

    def check(asset: str, namespaces: list[str], backfill: str) -> None:
        ended, runs = deployment.backfilled(backfill)
        pages = [page for page in deployment.pages(CLUSTER, asset) if page["run"] in runs]
        assert (ended, len(runs)) == ("COMPLETED_SUCCESS", len(namespaces))
        assert sorted(page["partition"] for page in pages) == namespaces
        assert len({page["plan id"] for page in pages}) == 1
        assert len({page["run"] for page in pages}) == 1

    offload = launched("offloaded_ledgers", others)  # has a lease of its own; Dagster looks at backfills twice a minute
    for asset in ("namespace_reconciliation", "namespace_retention"):
        check(asset, chosen, launched(asset, chosen))
    check("offloaded_ledgers", others, offload)

    sent = [row["ledger_id"] for row in scene.said("journal", "--outcome", "sent") if row["ledger_id"] in leaked]
    assert sorted(sent) == sorted(ledger for ledger, name in leaked.items() if name in chosen)
    for name, ledgers in before.items():
        topic = f"persistent://{name}/t"
        assert listed(sandbox, topic) == (ledgers[-1:] if name in chosen else ledgers)
        assert _offloaded(sandbox, topic) == ([] if name in chosen else ledgers[:-1])

    gone = {*sent, *(ledger for name in chosen for ledger in before[name][:-1])}
    deployment.switch_on(CLUSTER, sensors=["automation"])  # works the queue off
    deployment.until("what was sent to go", lambda: not existing(sandbox, gone))
    deployment.switch_off(CLUSTER, "automation")
    kept = {*leaked, *(ledger for ledgers in before.values() for ledger in ledgers)} - gone
    assert existing(sandbox, kept) == kept


def rolled_back(sandbox: Cluster, deployment: Deployment, scene: Scene, in_flight: str) -> dict[int, str]:
    """For a while deletion is off, and brokers begin anew and leak in each namespace; then scans, with it on again.

    The intent of what leaked earlier ``in_flight`` was sent before. Returns all that leaked: ledger -> namespace.
    """

    def ended(job: str, config: dict[str, Any] | None = None) -> str:
        return deployment.ended(deployment.launch(CLUSTER, job, config))

    assert ended("scan") == "SUCCESS"
    plan = deployment.pages(CLUSTER, "deletion_plan")[0]
    order = {"plan_id": plan["plan id"], "digest": plan["digest"]}
    assert ended("apply_plan", {"ops": {"send_intents": {"config": order | {"namespaces": [in_flight]}}}}) == "SUCCESS"
    as_it_was = scene.config.read_text()
    off = "\n[deletion]\ntopicTwoPhaseDeletionEnabled = false\n"
    scene.config.write_text(as_it_was.replace("\n[deletion]\n", off))
    deployment.switch_on(CLUSTER, sensors=["automation"])  # deletes nothing, though intents wait
    sandbox.restart("broker-1")
    again = {name: plant.young(sandbox, f"persistent://{name}/leaked")[0].ledger_id for name in scene.far}
    assert ended("delete_pending") == "FAILURE"  # after its scan
    deployment.switch_off(CLUSTER, "automation")
    assert existing(sandbox, scene.far.values()) == set(scene.far.values())
    scene.config.write_text(as_it_was)
    assert ended("scan") == "SUCCESS"
    return {ledger: name for those in (scene.far, again) for name, ledger in those.items()}


def _health(deployment: Deployment, scene: Scene) -> str:
    """What the page of the deletion plan says of its freshness, to whoever looks at it; empty if not yet told."""
    shown = browser.words(f"{deployment.url}/assets/{CLUSTER}/deletion_plan?view=overview", scene.profile)
    return dict(pairwise(shown)).get("Freshness policy", "")


def _whole(deployment: Deployment) -> list[dict[str, Any]]:
    return [run for run in deployment.runs("scan") if run["status"] == "SUCCESS"]


def _offloaded(sandbox: Cluster, topic: str) -> list[int]:
    return sorted(ledger for ledger, context in contexts(sandbox, topic).items() if context and context.complete)


def _lineage(scene: Scene, deployed: Deployment) -> None:
    """From a ledger to its run, from the run to its plan and scan, from the plan's page to the run."""
    (row,) = [row for row in scene.said("journal", "--ledger", str(min(scene.leaked))) if row["outcome"] == "deleted"]
    (run,) = [run for run in deployed.runs("delete_pending") if run["runId"] == row["run_id"]]
    deployed.ended(run["runId"])
    (run,) = [run for run in deployed.runs("delete_pending") if run["runId"] == row["run_id"]]
    tags = {tag["key"]: tag["value"] for tag in run["tags"]}
    assert tags["lifecycle/cluster"] == CLUSTER
    plan_id, epoch = row["plan_id"], tags["lifecycle/epoch"]
    assert plan_id in {page["plan id"] for page in deployed.pages(CLUSTER, "deletion_plan")}
    tried = deployed.runs("apply_plan", lifecycle__plan=plan_id)  # one that was refused the lease is launched again
    applied = {run["runId"] for run in tried if run["status"] == "SUCCESS"}
    assert applied, tried
    assert applied <= {page["run"] for page in deployed.observed(CLUSTER, "ledger_deletion_topic")}
    assert applied <= {page["run"] for page in deployed.observed(CLUSTER, "deletion_plan")}
    assert epoch in {page["lifecycle/epoch"] for page in deployed.pages(CLUSTER, "ledger_references")}
    assert row["run_id"] in {page["run"] for page in deployed.pages(CLUSTER, "ledger_deletions")}
    for asset in ("trimmed_ledgers", "offloaded_ledgers", "delayed_index_buckets", "journal", "archive"):
        deployed.until(f"an event of {asset}", lambda asset=asset: deployed.observed(CLUSTER, asset))
