"""A metadata store that was restored from a backup: no scan is covered, nothing is applied, deleted or trimmed."""

from __future__ import annotations

import pytest

from pulsar_lifecycle.errors import RefusedBy
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.scan import history_check
from pulsar_lifecycle.values.codes import Why, why_refused
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.refusals import RefusalCode
from pulsar_lifecycle.values.store_history import WHAT_TO_DO
from tests.kit.simulated.cluster import SimulatedCluster, data_tags
from tests.kit.simulated.pipeline import Scan, plan, scan, two_scans

TOPIC = Topic.parse("persistent://acme/orders/x")


@pytest.fixture
def cluster() -> SimulatedCluster:
    cluster = SimulatedCluster()
    cluster.topic(TOPIC, [issue(cluster)])
    issue(cluster)
    return cluster


def issue(cluster: SimulatedCluster) -> int:
    """A ledger whose id came from BookKeeper's own counter, as every id does."""
    cluster.put("/ledgers/idgen/ID-x", b"")
    cluster.remove("/ledgers/idgen/ID-x")
    return cluster.ledger(data_tags(TOPIC))


def refused(cluster: SimulatedCluster, *scans: Epoch) -> Why | None:
    """Why apply, deletion run, trimming and undo are refused before they begin; None if they are not."""
    store = cluster.open_store(read_only=True)
    try:
        history_check.check_history(store, scans, cluster_fingerprint(store, "/ledgers"), "/ledgers")
    except RefusedBy as refusal:
        return why_refused(refusal)
    return None


def went_back(cluster: SimulatedCluster, *scans: Epoch) -> bool:
    """Whether they are refused as the store is no later state of what the scans saw."""
    found = refused(cluster, *scans)
    return found is not None and found.code is RefusalCode.STORE_WENT_BACK


def actionable(cluster: SimulatedCluster, now: Scan, before: Scan) -> bool:
    return plan(cluster, now, before).summary.actionable


def test_a_store_that_goes_on_is_fine(cluster: SimulatedCluster) -> None:
    now, before = two_scans(cluster)
    issue(cluster)
    assert refused(cluster, now.epoch) is None
    assert refused(cluster) is None
    assert actionable(cluster, now, before)


@pytest.mark.parametrize("elected", [False, True])
def test_a_restored_store_is_report_only_and_every_effect_is_refused(cluster: SimulatedCluster, elected: bool) -> None:
    """Whether the zxid went back, or a new leader made it larger than ever and only the ids issued tell."""
    backup, zxid = cluster.zookeeper.backup(), cluster.zookeeper.zxid
    issue(cluster)
    now, before = two_scans(cluster)
    assert actionable(cluster, now, before)
    cluster.zookeeper.restore(backup, zxid + (1 << 32 if elected else 0))
    why = refused(cluster, now.epoch)
    assert why
    assert why.code is RefusalCode.STORE_WENT_BACK
    counters = history_check.read_counters(cluster.open_store(), now.epoch.fingerprint, "/ledgers")
    assert (counters.zxid > now.epoch.zxid) is elected
    assert WHAT_TO_DO in why.text
    cluster.wait(1)
    later = scan(cluster, previous=[before, now])
    assert later.epoch.gaps == (later.epoch.broken,)
    assert not actionable(cluster, later, before)
    assert refused(cluster, later.epoch) == Why(RefusalCode.STORE_WENT_BACK, str(later.epoch.broken))


def test_it_stays_refused_when_the_store_has_caught_up(cluster: SimulatedCluster) -> None:
    backup, zxid = cluster.zookeeper.backup(), cluster.zookeeper.zxid
    issue(cluster)
    now, before = two_scans(cluster)
    cluster.zookeeper.restore(backup, zxid)
    cluster.wait(1)
    back = scan(cluster, previous=[before, now])
    for _ in range(20):
        issue(cluster)
    assert refused(cluster, now.epoch) is None  # by the counters alone nothing is wrong any more
    assert went_back(cluster, back.epoch)
    cluster.wait(1)
    caught_up = scan(cluster, previous=[before, now, back])
    assert caught_up.epoch.gaps == (back.epoch.broken,)


def test_once_accepted_two_new_scans_begin_afresh(cluster: SimulatedCluster) -> None:
    """Accepting sets the earlier scans aside: none of them is compared with, none confirms."""
    backup, zxid = cluster.zookeeper.backup(), cluster.zookeeper.zxid
    issue(cluster)
    two_scans(cluster)
    cluster.zookeeper.restore(backup, zxid)
    now, before = two_scans(cluster)
    assert actionable(cluster, now, before)
    assert refused(cluster, now.epoch) is None


def test_our_lease_tells_where_no_id_was_issued_since_the_backup(cluster: SimulatedCluster) -> None:
    cluster.put("/pulsar-lifecycle/lease", b"{}")
    backup, zxid = cluster.zookeeper.backup(), cluster.zookeeper.zxid
    cluster.put("/pulsar-lifecycle/lease", b"a run")
    now, _ = two_scans(cluster)
    cluster.zookeeper.restore(backup, zxid + (1 << 32))
    assert went_back(cluster, now.epoch)


def test_a_backup_from_before_our_first_run_is_told_though_more_ids_were_issued_since(
    cluster: SimulatedCluster,
) -> None:
    backup, zxid = cluster.zookeeper.backup(), cluster.zookeeper.zxid
    cluster.put("/pulsar-lifecycle/lease", b"a run")
    now, _ = two_scans(cluster)
    cluster.zookeeper.restore(backup, zxid + (1 << 32))
    for _ in range(20):
        issue(cluster)
    assert went_back(cluster, now.epoch)
    cluster.put("/pulsar-lifecycle/lease", b"a run")
    assert went_back(cluster, now.epoch)


@pytest.mark.parametrize("days", [-30, 30])
def test_a_scan_is_compared_with_whatever_its_clock_said(cluster: SimulatedCluster, days: int) -> None:
    before = scan(cluster)
    backup, zxid = cluster.zookeeper.backup(), cluster.zookeeper.zxid
    issue(cluster)
    cluster.wait(24 * days)
    dated = scan(cluster)
    cluster.wait(-24 * days)
    cluster.zookeeper.restore(backup, zxid)
    assert refused(cluster, before.epoch) is None
    assert went_back(cluster, before.epoch, dated.epoch)


def test_another_store_is_refused(cluster: SimulatedCluster) -> None:
    now, _ = two_scans(cluster)
    other = SimulatedCluster()
    other.wait(1)
    other.put("/ledgers/INSTANCEID", b"another")
    for _ in range(20):
        issue(other)  # its counters alone make it a later state
    assert other.zookeeper.zxid > now.epoch.zxid
    assert went_back(other, now.epoch)
