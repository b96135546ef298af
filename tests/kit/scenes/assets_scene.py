"""The code location's assets over a cluster of fakes: scans, what follows them by itself, what Dagster says of both.

What takes Spark, buckets or bookies has a stand-in of its keys, dependencies and conditions that makes bare events.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import dagster as dg
import pytest
from dagster._core.definitions.data_version import CachingStaleStatusResolver, StaleStatus
from dagster._core.loader import LoadingContextForTest

from assets.names import EPOCH, FINDINGS, METASTORE, READER, key
from assets.pages import versions
from orchestration.definitions import build_defs
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.values.outcomes import Outcome
from resources.lifecycle import LifecycleResource
from tests.kit.builders import DELETED_ROW
from tests.kit.scenes.retention_scene import RetentionScene

SCANNED = (*METASTORE, "ledger_references", *FINDINGS, "scan_coverage")
NIGHTLY = (
    "object_inventory",
    "orphan_objects",
    "delayed_index_buckets",
    "delayed_index_findings",
    "delayed_messages_due",
    "delayed_index_plan",
)
"""What schedules make once a night, of the newest scan."""
CLUSTER = "test"
STANDS_IN = frozenset({"offload_candidates", "offload_plan", "bookie_disk", "collection_plan", *NIGHTLY})
"""What has a stand-in, besides the findings."""


def observed(instance: dg.DagsterInstance, name: str) -> list[dict[str, Any]]:
    """What an asset was last observed with, the newest first."""
    records = instance.fetch_observations(key(CLUSTER, name), limit=10).records
    return [
        {label: value.value for label, value in record.asset_observation.metadata.items()}
        for record in records
        if record.asset_observation
    ]


class AssetsScene:
    """Everything of cluster ``test``, and an instance of Dagster's."""

    def __init__(self, scene: RetentionScene, instance: dg.DagsterInstance, patch: pytest.MonkeyPatch) -> None:
        self.scene, self.instance = scene, instance
        quiet: Any = SimpleNamespace()
        where = Cluster(scene.settings, connect=scene.cluster.connect, given=scene.cluster.given, session=quiet)
        for name in ("cluster", "without_spark"):
            patch.setattr(LifecycleResource, name, lambda self: where)
        resources = {"lifecycle": LifecycleResource()}
        built = build_defs(str(scene.file), resources)
        assets: list[Any] = [_over_fakes(one) for one in built.assets or ()]
        self.defs = dg.Definitions(assets=assets, resources=resources)
        self.graph = self.defs.resolve_asset_graph()
        sensors: Any = {sensor.name: sensor for sensor in built.sensors or ()}
        self.target: dg.AssetSelection = sensors["after_scan"].asset_selection
        self._cursor: Any = None
        self.tick()  # the sensor was on before there was anything

    def run(self, *names: str, tags: dict[str, str] | None = None) -> None:
        """Materialize these, in one run."""
        done = self.defs.resolve_implicit_global_asset_job_def().execute_in_process(
            instance=self.instance, asset_selection=[key(CLUSTER, name) for name in names], tags=tags
        )
        assert done.success

    def scan(self, *more: str) -> None:
        """Half an hour later."""
        self.scene.servers.wait(0.5)
        self.run(*SCANNED, *more)

    def tick(self) -> list[str]:
        """What sensor ``after_scan`` launches, as one run; it has ended."""
        found = dg.evaluate_automation_conditions(self.defs, self.instance, self.target, cursor=self._cursor)
        self._cursor = found.cursor
        names = sorted(k.path[-1] for k in self.graph.materializable_asset_keys if found.get_num_requested(k))
        if names:
            self.run(*names, tags={READER: CLUSTER})
        return names

    def followed(self) -> list[str]:
        """All that sensor ``after_scan`` makes until it has nothing to do."""
        every: list[str] = []
        while made := self.tick():
            every += made
        return every

    def said(self, ledger: int, outcome: Outcome) -> None:
        """A row of the journal, half an hour after the last scan."""
        self.scene.servers.wait(0.5)
        row = replace(DELETED_ROW, cluster=CLUSTER, ledger_id=ledger, outcome=outcome, at=self.scene.now)
        self.scene.servers.journal.record([row])

    def goes(self, ledger: int, outcome: Outcome | None) -> None:
        """A ledger goes, and the journal says so, or what is given, or nothing."""
        if outcome:
            self.said(ledger, outcome)
        self.scene.servers.remove(self.scene.servers.path(ledger))

    def unsynced(self) -> set[str]:
        """What was made once, and Dagster calls unsynced."""
        resolver = CachingStaleStatusResolver(self.instance, self.graph, LoadingContextForTest(self.instance))
        made = [k for k in self.graph.materializable_asset_keys if self.instance.get_latest_materialization_event(k)]
        return {one.path[-1] for one in made if resolver.get_status(one) is not StaleStatus.FRESH}


def _over_fakes(asset: Any) -> Any:
    """The asset itself, or what stands in for it."""
    names = {one.path[-1] for one in asset.keys} if isinstance(asset, dg.AssetsDefinition) else set[str]()
    if names == set(FINDINGS):
        return _findings(asset)
    return _standing_in(asset) if names & STANDS_IN else asset


def _standing_in(asset: dg.AssetsDefinition) -> dg.AssetsDefinition:
    @dg.multi_asset(name="_".join(sorted(one.path[-1] for one in asset.keys)), specs=[*asset.specs])
    def made() -> Iterable[dg.MaterializeResult]:
        for spec in asset.specs:
            planned = spec.key.path[-1].endswith("_plan")
            yield dg.MaterializeResult(spec.key, data_version=dg.DataVersion("digest") if planned else None)

    return made


def _findings(asset: dg.AssetsDefinition) -> dg.AssetsDefinition:
    @dg.multi_asset(name="findings", specs=[*asset.specs])
    def judged(context: dg.AssetExecutionContext, lifecycle: LifecycleResource) -> Iterator[Any]:
        where = lifecycle.cluster()
        epoch_id, _ = where.lake.open_epoch(context.run.run_id)
        judged_scan.judge(where, epoch_id)
        ids = [
            i
            for b in where.lake.batches(where.parts(epoch_id, "findings"), ["ledger_id", "finding"])
            for i in b.to_pylist()
        ]
        orphans = sorted(row["ledger_id"] for row in ids if row["finding"] == "orphan")
        for one in sorted(asset.keys):
            version = versions.of_orphans(context.instance, where, one, epoch_id, orphans)
            yield dg.MaterializeResult(one, metadata={EPOCH: epoch_id}, data_version=version)

    return judged
