"""A bookie's disk on real servers: what was deleted and not freed is named, and freed by a collection.

Two brokers do meanwhile by themselves what production's do.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
import pytest

from pulsar_lifecycle.io.bookkeeper.bookie_admin import HttpBookieAdmin
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.lifecycle.bookies.bookie_disk import BookieDisk, DiskVerdict
from pulsar_lifecycle.lifecycle.bookies.collection import CollectionChoice, remedies
from pulsar_lifecycle.lifecycle.bookies.collection_planning import make_collection_plan
from pulsar_lifecycle.lifecycle.bookies.collection_run import collect_bookies, plan_now
from pulsar_lifecycle.lifecycle.bookies.disk_run import build_bookie_disk
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.settings import BookieAdminSettings, ZooKeeperSettings
from pulsar_lifecycle.values.outcomes import Action, Outcome
from pulsar_lifecycle.values.refusals import RefusalCode
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from tests.integration.pipeline import Pipeline, settings_file
from tests.kit.refused import refused_by

pytestmark = pytest.mark.integration

MB = 1 << 20
LOG = 64 * MB
"""The sandbox's ``logSizeLimit``."""


def fill(client: pulsar.Client, topic: str, size: int) -> None:
    """Write so many bytes that cannot be compressed."""
    with closing(client.create_producer(topic, batching_enabled=False)) as producer:
        payload = os.urandom(MB)
        for _ in range(size // MB):
            producer.send(payload)


def test_what_was_deleted_and_not_freed_is_named_until_the_bookie_has_collected(
    seldom: Cluster, spark: None, tmp_path: Path
) -> None:
    settings = {"collection": {"min_bytes": LOG, "max_add_latency": "60s"}}
    pipeline = Pipeline(settings_file(seldom, tmp_path, settings))
    kept, dropped = (f"persistent://public/default/disk-{name}-{uuid4().hex[:8]}" for name in ("kept", "dropped"))

    def disk() -> BookieDisk:
        (found,) = build_bookie_disk(pipeline.where, pipeline.scan().epoch_id)[0]
        return found

    with (
        closing(KazooStore(ZooKeeperSettings(hosts=seldom.zookeeper), read_only=True)) as store,
        closing(HttpBookieAdmin(store, "/ledgers", BookieAdminSettings())) as bookies,
        Admin(seldom.admin_url) as admin,
        pulsar_client(seldom.service_url) as client,
    ):
        (bookie,) = bookies.bookies()

        def collected(major: bool = True) -> Any:
            """The bookie's directory once a collection that began now has ended."""
            before = bookies.status(bookie).compactions[0]
            bookies.collect(bookie, major=major)
            wait_for(
                "the bookie to collect",
                lambda: (
                    bookies.status(bookie).compactions[0].majors > before.majors
                    and not bookies.status(bookie).compactions[0].running
                ),
            )
            (directory,) = bookies.status(bookie).directories or ()
            return directory

        for topic in (kept, dropped):
            client.subscribe(topic, "holds").close()  # else brokers trim what nobody needs
        fill(client, kept, LOG // 2)
        fill(client, dropped, 3 * LOG)
        for topic in (kept, dropped):
            admin.unload(topic)
        held = collected().live_bytes
        assert held > 2 * LOG
        before = disk()
        assert before.verdict in (DiskVerdict.NOTHING_TO_FREE, DiskVerdict.WAITS_FOR_GC), before
        assert before.live_bytes == held
        assert before.bytes_to_collect == 0
        assert before.placed.bytes > 3.5 * LOG

        admin.topic("DELETE", dropped, "?force=true")
        after = disk()
        assert after.verdict == DiskVerdict.WAITS_FOR_GC, after
        assert after.bytes_to_collect is not None
        assert after.bytes_to_collect > LOG
        assert before.placed.bytes - after.placed.bytes > 3 * LOG

        (planned,) = plan_now(pipeline.where)[0]
        assert (planned.choice, planned.rack) == (CollectionChoice.COLLECT, "/default-rack")
        assert not bookies.status(bookie).collecting
        with seldom.metadata() as zk:
            zk.create(control.holder_of(control.LEASE), b"a run", ephemeral=True, makepath=True)
            with refused_by(RefusalCode.LEASE_HELD):
                collect_bookies(pipeline.where, "run", print)
        wait_for("the lease", lambda: not control.is_held(store, control.LEASE))
        epoch = pipeline.scan()
        plan, _ = make_collection_plan(pipeline.where, epoch, build_bookie_disk(pipeline.where, epoch.epoch_id)[0])
        order = Order(plan.plan_id, plan.digest)
        _, (done,) = collect_bookies(pipeline.where, "run", print, order=order)
        assert done.outcome is Outcome.COLLECTED, done
        rows = sorted(pipeline.where.journal_reader.find().to_pylist(), key=lambda row: row["at"])
        told = [row for row in rows if row["action"] == Action.COLLECT_BOOKIE]
        assert told[-1]["outcome"] == done.outcome.value
        assert {row["plan_id"] for row in told} == {plan.plan_id}
        after = bookies.status(bookie)
        assert not after.collecting
        assert sum(one.live_bytes for one in after.directories or ()) < held - 2 * LOG, after
        freed = disk()
        # a cursor's ledger may have been replaced since
        assert freed.verdict in (DiskVerdict.NOTHING_TO_FREE, DiskVerdict.WAITS_FOR_GC), freed
        assert (freed.bytes_to_collect or 0) < MB
        assert (freed.log_bytes or 0) < (before.log_bytes or 0)


def test_a_bookie_whose_disk_counts_as_full_frees_it_as_told_and_takes_entries_again(
    seldom: Cluster, spark: None, tmp_path: Path
) -> None:
    """What is told: to collect, with no other setting, as it does though it is read-only and compacts no more itself.

    Its disk has room, and counts as full by its settings.
    """
    pipeline = Pipeline(settings_file(seldom, tmp_path, {"collection": {"min_bytes": LOG, "max_add_latency": "60s"}}))
    kept, dropped = (f"persistent://public/default/full-{name}-{uuid4().hex[:8]}" for name in ("kept", "dropped"))

    def disk() -> BookieDisk:
        (found,) = build_bookie_disk(pipeline.where, epoch.epoch_id)[0]
        return found

    def in_logs() -> int:
        folder = seldom.data / "bookie-1" / "ledgers" / "current"
        return sum(file.stat().st_size for file in folder.glob("*.log"))

    with Admin(seldom.admin_url) as admin, pulsar_client(seldom.service_url) as client:
        for topic in (kept, dropped):
            client.subscribe(topic, "holds").close()
        for _ in range(12):  # each log has a third that stays
            fill(client, kept, LOG // 12)
            fill(client, dropped, 2 * LOG // 12)
        for topic in (kept, dropped):
            admin.unload(topic)
        epoch = pipeline.scan()
        admin.topic("DELETE", dropped, "?force=true")
        names = ("diskUsageLwmThreshold", "diskUsageWarnThreshold", "diskUsageThreshold")
        seldom.restart("bookie-1", dict(zip(names, ("0.01", "0.02", "0.03"), strict=True)))
        wait_for("the bookie to be read-only", lambda: disk().verdict is DiskVerdict.READ_ONLY)
        wait_for("what to do", lambda: any("collect, without any other setting" in text for text in remedies(disk())))
        with pipeline.where.ports(read_only=True) as ports:
            (bookie,) = ports.bookies.bookies()
            assert ports.bookies.bookies() == {bookie: True}
            wait_for("its compactions to rest", lambda: ports.bookies.status(bookie).minor_suspended)
        before = in_logs()
        _, (done,) = collect_bookies(pipeline.where, "run", print)
        assert done.outcome is Outcome.COLLECTED, done
        assert before - in_logs() > LOG
        assert disk().verdict is DiskVerdict.READ_ONLY  # by its settings, still
        seldom.restart("bookie-1", {})
        wait_for("the bookie to take entries", lambda: disk().verdict is not DiskVerdict.READ_ONLY)
        assert disk().verdict is DiskVerdict.NOT_COLLECTED  # since its start
        assert not remedies(disk())
        fill(client, kept, MB)
        with closing(client.subscribe(kept, "holds")) as consumer:
            for _ in range(12 * (LOG // 12 // MB) + 1):
                consumer.receive(60_000)
