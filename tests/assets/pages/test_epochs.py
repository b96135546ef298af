"""Which scan an asset that is materialized alone may join, and which it must leave alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import dagster as dg
import pytest
from pyroaring import BitMap64

from assets.names import READER
from assets.pages import epochs
from assets.references import references_asset
from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.referenced import Referenced
from pulsar_lifecycle.values.refusals import RefusalCode
from pulsar_lifecycle.values.store_history import StoreCounters
from pulsar_lifecycle.values.tables import FINDINGS
from resources.lifecycle import LifecycleResource
from tests.kit.simulated import pipeline
from tests.kit.simulated.cluster import SimulatedCluster

SERVERS = SimulatedCluster()
HERE = cluster_fingerprint(SERVERS.open_store(), "/ledgers")


@pytest.fixture
def instance() -> Iterator[dg.DagsterInstance]:
    with dg.DagsterInstance.ephemeral() as instance:
        yield instance


@pytest.fixture
def where(tmp_path: Path) -> Any:
    lake: Any = FileLake(str(tmp_path))
    return pipeline.where(SERVERS, None, lake)


def run(instance: dg.DagsterInstance, run_id: str, **tags: str) -> Any:
    return SimpleNamespace(run=SimpleNamespace(run_id=run_id, tags=tags), instance=instance)


def begun(instance: dg.DagsterInstance, lake: FileLake, status: dg.DagsterRunStatus, fingerprint: str = HERE) -> str:
    """A scan that some run of this status began."""
    run_id = str(uuid4())
    instance.add_run(dg.DagsterRun("scan", run_id=run_id, status=status))
    lake.begin_epoch("e1", 5, run_id, StoreCounters(fingerprint, 1))
    return run_id


def finish(lake: FileLake, epoch_id: str = "e1", fingerprint: str = HERE) -> None:
    lake.store_epoch(
        Epoch(epoch_id, "c", fingerprint, 5, 6, (), 1, 1, ()),
        Referenced(BitMap64(), BitMap64()),
        Context(now=5, grace=1, namespaces=frozenset()),
    )


@contextmanager
def refused(code: RefusalCode) -> Iterator[None]:
    with pytest.raises(dg.Failure) as found:
        yield
    assert str(found.value.description).startswith(f"refused ({code.value}): ")


def test_a_run_goes_on_with_its_own_scan_even_once_finished(instance: dg.DagsterInstance, where: Any) -> None:
    """So that a step may be retried."""
    mine = begun(instance, where.lake, dg.DagsterRunStatus.STARTED)
    assert epochs.epoch_to_write(run(instance, mine), where) == ("e1", 5)
    finish(where.lake)
    assert epochs.epoch_to_write(run(instance, mine), where) == ("e1", 5)
    assert epochs.epoch_to_read(run(instance, mine), where) == "e1"


def test_what_failed_may_be_done_again_by_another_run(instance: dg.DagsterInstance, where: Any) -> None:
    begun(instance, where.lake, dg.DagsterRunStatus.FAILURE)
    assert epochs.epoch_to_write(run(instance, "another"), where) == ("e1", 5)
    with refused(RefusalCode.SCAN_UNFINISHED):
        epochs.epoch_to_read(run(instance, "another"), where)


def test_a_scan_under_way_is_its_own_runs(instance: dg.DagsterInstance, where: Any) -> None:
    begun(instance, where.lake, dg.DagsterRunStatus.STARTED)
    with refused(RefusalCode.SCAN_UNFINISHED):
        epochs.epoch_to_write(run(instance, "another"), where)


def test_a_finished_scan_is_only_read(instance: dg.DagsterInstance, where: Any) -> None:
    """Newer tables beside older references would be judged as if they were of one moment."""
    begun(instance, where.lake, dg.DagsterRunStatus.SUCCESS)
    finish(where.lake)
    assert epochs.epoch_to_read(run(instance, "another"), where) == "e1"
    with refused(RefusalCode.SCAN_FINISHED):
        epochs.epoch_to_write(run(instance, "another"), where)


def test_what_follows_a_scan_by_itself_reads_the_newest_finished_one(instance: dg.DagsterInstance, where: Any) -> None:
    """The next scan may have begun before it did."""
    begun(instance, where.lake, dg.DagsterRunStatus.SUCCESS)
    finish(where.lake)
    where.lake.begin_epoch("e2", 9, str(uuid4()), StoreCounters(HERE, 1))
    with refused(RefusalCode.SCAN_UNFINISHED):
        epochs.epoch_to_read(run(instance, "another"), where)
    assert epochs.epoch_to_read(run(instance, "another", **{READER: "c"}), where) == "e1"


def test_what_follows_a_scan_by_itself_reads_the_newest_judged_one(instance: dg.DagsterInstance, where: Any) -> None:
    """The next scan may be closed, and not judged yet: plans of offloads need what is found of it."""
    begun(instance, where.lake, dg.DagsterRunStatus.SUCCESS)
    finish(where.lake)
    where.lake.publish("e1", "findings", [where.lake.write_part("e1", "findings", FINDINGS, [])])
    where.lake.begin_epoch("e2", 9, str(uuid4()), StoreCounters(HERE, 1))
    finish(where.lake, "e2")
    follows = run(instance, "another", **{READER: "c"})
    assert epochs.epoch_to_read(follows, where) == "e1"
    # a scan of a schedule that Dagster repeats has the tag, too, and another run began it
    assert epochs.epoch_to_read(follows, where, judged=False) == "e2"


def test_what_follows_a_scan_by_itself_reads_its_own_clusters(instance: dg.DagsterInstance, where: Any) -> None:
    """Scans of clusters that share a lake follow each other at any time."""
    begun(instance, where.lake, dg.DagsterRunStatus.SUCCESS)
    finish(where.lake)
    where.lake.begin_epoch("e2", 9, str(uuid4()), StoreCounters("elsewhere", 1))
    finish(where.lake, "e2", "elsewhere")
    with refused(RefusalCode.OTHER_CLUSTER):
        epochs.epoch_to_read(run(instance, "another"), where)
    assert epochs.epoch_to_read(run(instance, "another", **{READER: "c"}), where) == "e1"


def test_another_clusters_scan_in_the_same_lake_is_left_alone(instance: dg.DagsterInstance, where: Any) -> None:
    """Its ledgers would be judged against our references."""
    begun(instance, where.lake, dg.DagsterRunStatus.FAILURE, fingerprint="elsewhere")
    with refused(RefusalCode.OTHER_CLUSTER):
        epochs.epoch_to_write(run(instance, "another"), where)
    finish(where.lake)
    with refused(RefusalCode.OTHER_CLUSTER):
        epochs.epoch_to_read(run(instance, "another"), where)


def test_references_of_a_scan_that_lacks_a_table_say_what_to_materialize(
    instance: dg.DagsterInstance, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A person materializes the tables one by one, and references too early."""

    def lacking(*_: object) -> None:
        raise NotFound("epoch e has no table managed_ledgers")

    monkeypatch.setattr("assets.references.epoch_to_write", lambda context, where: ("e", 1))
    monkeypatch.setattr("assets.references.judged_scan.read_references", lacking)
    monkeypatch.setattr("assets.references.reporting", lambda log, stages: nullcontext())
    monkeypatch.setattr("assets.references.of_stages", lambda spark: None)
    monkeypatch.setattr(LifecycleResource, "cluster", lambda self: SimpleNamespace(spark=None))
    resources = {"lifecycle": LifecycleResource()}
    done = dg.materialize([references_asset("test")], instance=instance, resources=resources, raise_on_error=False)
    (event,) = (one for one in done.all_events if one.is_step_failure)
    failure = event.step_failure_data.user_failure_data
    assert failure is not None
    assert (
        failure.description == "epoch e has no table managed_ledgers: materialize that table first, or launch job scan"
    )
