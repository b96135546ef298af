"""The buckets' inventory on a real cluster: exactly what is leaked and ours goes, everything else stays."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID, uuid4

import dagster as dg
import pytest

from assets.buckets import CHECK
from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.copies.object_pairs import ObjectKind
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext
from pulsar_lifecycle.formats.offload_object import data_key, index_key
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.runs.caps import Lowered, Order
from pulsar_lifecycle.tiered.buckets.bucket_runs import TABLE, rows_to_sweep, sweep, take_inventory
from pulsar_lifecycle.values.refusals import RefusalCode
from sandbox.cluster import BUCKET, Cluster
from sandbox.planting import znodes
from sandbox.servers.state import CLUSTER
from tests.integration import pipeline as driving
from tests.integration.jobs import Jobs
from tests.integration.pipeline import NO_CAPS, Pipeline, new_namespace
from tests.integration.tiered import offloads
from tests.kit.refused import refused_by

pytestmark = pytest.mark.integration

DAYS_2 = 2 * 86_400


class NamespaceLocation:
    """A namespace, and what is put into the bucket for its topics."""

    def __init__(self, sandbox: Cluster, s3: Any) -> None:
        self.sandbox, self.s3 = sandbox, s3
        self.namespace = new_namespace(sandbox, "objects")
        self.topic = Topic.parse(f"persistent://{self.namespace}/a b+é")
        self.keys: list[str] = []

    def ledger(self) -> int:
        with self.sandbox.metadata() as zk:
            tags = znodes.managed_ledger_tags(str(self.topic))
            return znodes.new_ledger(zk, znodes.ledger_metadata(self.sandbox.bookies, tags))

    def copy(
        self, *, data: bool = True, index: bool = True, cluster: str = CLUSTER, old: bool = True
    ) -> tuple[int, UUID]:
        """The objects of an attempt on a ledger, two days old."""
        ledger_id, uuid = self.ledger(), uuid4()
        says = {"ManagedLedgerName": self.topic.managed_ledger, "PulsarClusterName": cluster}
        for wanted, key, size in ((data, data_key(uuid, ledger_id), 2000), (index, index_key(uuid, ledger_id), 100)):
            if wanted:
                self.put(key, b"x" * size, says, old=old)
        return ledger_id, uuid

    def put(self, key: str, body: bytes, says: dict[str, str] | None = None, *, old: bool = True) -> None:
        self.s3.put_object(Bucket=BUCKET, Key=key, Body=body, Metadata=says or {})
        self.keys.append(key)
        if old:
            then = time.time() - DAYS_2
            os.utime(offloads.object_file(self.sandbox, key), (then, then))

    def upload(self, ledger_id: int, uuid: UUID) -> str:
        key = data_key(uuid, ledger_id)
        return self.s3.create_multipart_upload(Bucket=BUCKET, Key=key)["UploadId"]

    def list(self, *ledgers: tuple[tuple[int, UUID], bool]) -> None:
        """The topic's z-node, as an unloaded topic has it: (ledger, attempt) and whether it is complete."""
        infos = tuple(
            LedgerInfo(i, 10, 1000, 1, OffloadContext(uuid, complete, False, 1, "aws-s3", {"bucket": BUCKET}))
            for (i, uuid), complete in ledgers
        )
        with self.sandbox.metadata() as zk:
            data = managed_ledger.encode(ManagedLedgerInfo((*infos, LedgerInfo(self.ledger(), None, None, None, None))))
            zk.create(znodes.topic_znode(str(self.topic)), data, makepath=True)

    def clean(self) -> None:
        with self.sandbox.metadata() as zk:
            if zk.exists(znodes.topic_znode(str(self.topic))):
                zk.delete(znodes.topic_znode(str(self.topic)), recursive=True)
        for key in self.keys:
            self.s3.delete_object(Bucket=BUCKET, Key=key)
        for found in self.s3.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []):
            self.s3.abort_multipart_upload(Bucket=BUCKET, Key=found["Key"], UploadId=found["UploadId"])


def forget_leftovers(sandbox: Cluster, s3: Any) -> None:
    """Delete what other modules left in the bucket and no topic names: five minutes later it counts as leaked."""
    named: set[str] = set()
    with sandbox.metadata() as zk:
        for tenant in zk.get_children("/managed-ledgers"):
            for namespace in zk.get_children(f"/managed-ledgers/{tenant}"):
                base = f"/managed-ledgers/{tenant}/{namespace}/persistent"
                for name in zk.get_children(base) if zk.exists(base) else []:
                    infos = managed_ledger.decode(zk.get(f"{base}/{name}")[0]).ledgers  # type: ignore[arg-type]
                    named |= {str(info.offload.uuid) for info in infos if info.offload}
    for key in [key for key in offloads.all_keys(s3) if key[:36] not in named]:
        s3.delete_object(Bucket=BUCKET, Key=key)


@pytest.fixture
def location(sandbox: Cluster, s3: Any) -> Iterator[NamespaceLocation]:
    forget_leftovers(sandbox, s3)
    made = NamespaceLocation(sandbox, s3)
    yield made
    made.clean()


def prepared(pipeline: Pipeline, location: NamespaceLocation, ledger_id: int, uuid: UUID) -> None:
    """What an offload run wrote two days ago, before it began to upload."""
    row = JournalRow(
        run_id="offload",
        cluster="sandbox",
        plan_id="",
        ledger_id=ledger_id,
        component="Managed-Ledger",
        topic=str(location.topic),
        action="offload",
        phase="offload",
        outcome="prepared",
        reason="",
        bytes=0,
        checksum="",
        detail=json.dumps({"uuid": str(uuid)}),
        at=int((time.time() - DAYS_2) * 1000),
    )
    FileJournal(pipeline.lake).record([row])


def inventory(pipeline: Pipeline) -> dict[tuple[str, str], dict[str, Any]]:
    """The newest scan's objects by key and upload."""
    epoch_id, _ = pipeline.where.lake.open_epoch("")
    rows = pipeline.where.lake.read_epoch_table(epoch_id, TABLE).to_pylist()
    return {(row["key"], row["upload_id"]): row for row in rows}


def test_exactly_what_is_leaked_and_ours_goes(
    location: NamespaceLocation, pipelines: Callable[..., Pipeline], sandbox: Cluster, s3: Any
) -> None:
    pipeline = pipelines(offloads.with_bucket(sandbox))
    began = time.time()
    live, under_way, lost = location.copy(), location.copy(), location.copy(data=False, index=False)
    leaked, lone_index, lone_data = location.copy(), location.copy(data=False), location.copy(index=False)
    foreign, young, ours = location.copy(cluster="another"), location.copy(old=False), location.copy()
    location.list((live, True), (under_way, False), (lost, True))
    strange = ("README.txt", str(uuid4()), f"{uuid4()}-index", "0", "é/x")
    for key in strange:
        location.put(key, b"x")
    metadata = (("bucket", BUCKET), ("managedLedgerOffloadDriver", "AWS_S3"), ("region", ""), ("serviceEndpoint", ""))
    attempt = Attempt(ours[0], str(location.topic), ours[1], "aws-s3", metadata, 5 << 20, "offload", int(began * 1000))
    left_behind, somebodys = (location.ledger(), uuid4()), (location.ledger(), uuid4())
    for one in (ours, left_behind):
        prepared(pipeline, location, *one)
    uploads = {
        name: location.upload(*one) for name, one in (("open", ours), ("left", left_behind), ("else", somebodys))
    }
    driving.wait_until_unloaded_counts(time.time())
    with KazooStore(pipeline.where.settings.zookeeper) as store:
        attempts.begin(store, attempt)
        try:
            pipeline.scan()
            summary, rows = take_inventory(pipeline.where, pipeline.scan())
        except BaseException:
            attempts.end(store, attempt)
            raise
    assert summary.actionable, summary.gaps
    found = inventory(pipeline)
    kinds = {
        name: (row["kind"], row["action"])
        for name, (ledger_id, uuid) in {
            "live": live,
            "under way": under_way,
            "lost": lost,
            "leaked": leaked,
            "lone index": lone_index,
            "lone data": lone_data,
            "foreign": foreign,
            "young": young,
            "ours": ours,
        }.items()
        for row in [found[data_key(uuid, ledger_id), ""]]
    }
    assert kinds == {
        "live": (ObjectKind.COMPLETE, ""),
        "under way": (ObjectKind.IN_FLIGHT, ""),
        "lost": (ObjectKind.BROKEN, ""),
        "leaked": (ObjectKind.ORPHAN_PAIR, "delete"),
        "lone index": (ObjectKind.LONE_INDEX, "delete"),
        "lone data": (ObjectKind.LONE_DATA, "delete"),
        "foreign": (ObjectKind.ORPHAN_PAIR, ""),
        "young": (ObjectKind.NEW, ""),
        "ours": (ObjectKind.IN_FLIGHT, ""),
    }
    assert {found[key, ""]["kind"] for key in strange} == {ObjectKind.UNKNOWN}
    said = {
        name: (
            found[data_key(one[1], one[0]), uploads[name]]["kind"],
            found[data_key(one[1], one[0]), uploads[name]]["action"],
        )
        for name, one in (("open", ours), ("left", left_behind), ("else", somebodys))
    }
    assert said == {
        "open": (ObjectKind.IN_FLIGHT, ""),
        "left": (ObjectKind.DANGLING_UPLOAD, "abort"),
        "else": (ObjectKind.DANGLING_UPLOAD, ""),
    }
    going = {leaked[0], lone_index[0], lone_data[0], left_behind[0]}
    mine = {row["ledger_id"] for row in rows.to_pylist() if row["topic"] == str(location.topic)}
    assert mine == going
    order = Order(summary.plan_id, summary.digest, NO_CAPS)
    before = {one["Key"] for one in s3.list_objects_v2(Bucket=BUCKET)["Contents"]}
    with refused_by(RefusalCode.MAX_SHARE):
        rows_to_sweep(pipeline.where, replace(order, caps=Lowered(max_share=0.0001)))
    assert rows_to_sweep(pipeline.where, order).num_rows == rows.num_rows
    assert journal_rows(FileJournal(pipeline.lake), plan_id=summary.plan_id).num_rows == 0
    done = sweep(pipeline.where, "sweep", order, lambda _: None)
    assert (done.applied.sent, done.applied.failed) == (rows.num_rows - 1, 0)
    assert [(one.upload_id, one.outcome) for one in done.dropped] == [(uploads["left"], "aborted")]
    again = sweep(pipeline.where, "again", order, lambda _: None)
    assert (again.applied.sent, again.applied.already) == (0, rows.num_rows - 1)
    assert [one.outcome for one in again.dropped] == ["kept"]
    pipeline.scan_and_delete()
    assert driving.emptied(sandbox)
    with KazooStore(pipeline.where.settings.zookeeper) as store:
        attempts.end(store, attempt)
    gone = {data_key(leaked[1], leaked[0]), index_key(leaked[1], leaked[0]), index_key(lone_index[1], lone_index[0])}
    gone |= {data_key(lone_data[1], lone_data[0])}
    assert before - {one["Key"] for one in s3.list_objects_v2(Bucket=BUCKET)["Contents"]} == gone
    left = {one["UploadId"] for one in s3.list_multipart_uploads(Bucket=BUCKET)["Uploads"]}
    assert {uploads["open"], uploads["else"]} <= left
    assert uploads["left"] not in left


def test_an_operator_reads_the_inventory_is_alarmed_and_sweeps_what_the_page_says(
    location: NamespaceLocation, pipelines: Callable[..., Pipeline], sandbox: Cluster
) -> None:
    pipeline = pipelines({**offloads.with_bucket(sandbox), "apply": {"max_share": 1.0}})
    live, lost, leaked, half = location.copy(), location.copy(index=False), location.copy(), location.copy(data=False)
    location.list((live, True), (lost, True))
    location.put("README.txt", b"x" * 7)
    driving.wait_until_unloaded_counts(time.time())
    with dg.DagsterInstance.ephemeral() as instance:
        jobs = Jobs(pipeline, instance)
        jobs.run("scan")
        jobs.run("scan")
        looked = jobs.run("inventory_objects")
        check = next(one for one in looked.get_asset_check_evaluations() if one.check_name == CHECK)
        assert (check.passed, check.severity) == (False, dg.AssetCheckSeverity.ERROR)
        assert check.metadata["not whole"].value == 1
        page = jobs.page("object_inventory")
        assert f"| {BUCKET} | broken | 1 | 1 | 2.0 KiB |" in page["by bucket"]
        assert f"| {BUCKET} | unknown | 1 | 1 | 7 B |" in page["by bucket"]
        assert "its index object is missing" in page["why kept"]
        plan = jobs.page("orphan_objects")
        assert (plan["dagster/row_count"], plan["copies to delete"], plan["bytes"]) == (2, 2, 2200)
        assert f"| {BUCKET} | orphan_pair | 1 | 2 | 2.1 KiB |" in plan["what goes"]
        (said,) = re.findall(r"```json\n(.*?)```", plan["how to apply"], re.DOTALL)
        config = json.loads(said)
        jobs.run("sweep_objects", config)
        assert driving.waiting(sandbox) == 0
        config["ops"]["sweep"]["config"]["dry_run"] = False
        jobs.run("sweep_objects", config)
        assert driving.waiting(sandbox) == 2
        jobs.run("delete_pending")
    assert driving.emptied(sandbox)
    gone = {row["ledger_id"] for row in pipeline.journal() if row["outcome"] == "deleted"}
    assert gone == {leaked[0], half[0]}
