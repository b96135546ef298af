"""Two clusters in one deployment, each a component with its own settings file: jobs of one leave the other alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import dagster as dg
import pytest

from orchestration.component import PulsarCluster
from pulsar_lifecycle.deletion.planning.confirmed_orphans import run_config
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.journal.queries import journal_rows
from sandbox.cluster import Cluster
from sandbox.planting import plant
from tests.integration.pipeline import Pipeline, existing, new_namespace, settings_file, wait_unlisted

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A second cluster, whose ledgers have the ids of the first one's."""
    cluster = Cluster(tmp_path_factory.mktemp("other") / "sandbox")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop(purge=True)


class Operated:
    """A cluster as the deployment has it: its component's jobs, its lake, and what was leaked in it."""

    def __init__(self, name: str, cluster: Cluster, folder: Path, instance: dg.DagsterInstance) -> None:
        file = settings_file(cluster, folder / name, cluster=name)
        context: Any = None  # the component reads nothing of it
        self.defs = PulsarCluster(config_file=str(file)).build_defs(context)
        self.cluster, self.instance, self.pipeline = cluster, instance, Pipeline(file)
        self.namespace = new_namespace(cluster, name)
        leaked = f"persistent://{self.namespace}/leaked"
        self.leaked = {one.ledger_id for one in plant.orphan_data(cluster, leaked)}
        wait_unlisted(cluster, [leaked])

    def run(self, job: str, config: dict[str, Any] | None = None) -> dg.ExecuteInProcessResult:
        quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
        return self.defs.resolve_job_def(job).execute_in_process(
            run_config={**quiet, **(config or {})}, instance=self.instance, raise_on_error=False
        )

    def applying(self) -> dict[str, Any]:
        """The newest plan's run configuration: what leaked here, without the queue."""
        ((op, said),) = run_config(self.pipeline.where.lake.plans()[-1])["ops"].items()
        return {"ops": {op: {"config": said["config"] | {"direct": True, "namespaces": [self.namespace]}}}}

    @property
    def journalled(self) -> int:
        return journal_rows(FileJournal(self.pipeline.lake), outcome="deleted").num_rows

    def ours(self) -> set[str]:
        """What we have in its ZooKeeper."""
        with self.cluster.metadata() as zk:
            return set(zk.get_children("/pulsar-lifecycle") or ())


def test_jobs_of_one_cluster_leave_the_other_as_it_is(
    sandbox: Cluster, other: Cluster, spark: None, tmp_path: Path
) -> None:
    with dg.DagsterInstance.ephemeral() as instance:
        east, west = Operated("east", sandbox, tmp_path, instance), Operated("west", other, tmp_path, instance)
        for one in (east, east, west):
            assert one.run("scan").success
        order, before = east.applying(), west.ours()
        assert east.run("scan").success  # without the queue, a plan needs a scan after it
        assert not east.run("apply_plan", west.applying()).success
        assert existing(sandbox, east.leaked) == east.leaked
        assert existing(other, west.leaked) == west.leaked

        assert east.run("apply_plan", order).success
        assert not existing(sandbox, east.leaked)
        assert east.journalled == len(east.leaked)
        assert existing(other, west.leaked) == west.leaked
        assert west.journalled == 0
        assert west.ours() == before
        for name in ("east", "west"):
            assert instance.get_latest_materialization_event(dg.AssetKey([name, "deletion_plan"])) is not None
        assert not instance.fetch_observations(dg.AssetKey(["west", "journal"]), limit=1).records
