"""What could not be read whole makes every plan report-only and says what was missing; a lost connection does not."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from uuid import uuid4

import httpx
import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_acl, make_digest_acl

from pulsar_lifecycle._pb import pulsar_schema_pb2
from pulsar_lifecycle.errors import ConfigError
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_metadata import DigestType
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.scan.epochs import _other_roots
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.gaps import GapCode
from pulsar_lifecycle.values.refusals import RefusalCode
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import plant, topics, znodes
from tests.integration.deletion import forgery
from tests.integration.pipeline import (
    Pipeline,
    emptied,
    existing,
    new_namespace,
    send,
    wait_listed,
)
from tests.kit.fakes.cutting_proxy import CuttingProxy
from tests.kit.refused import refused_by

pytestmark = pytest.mark.integration

MULTI_READ = 22


def assert_report_only(pipeline: Pipeline, epoch: Epoch, code: GapCode, *named: str) -> None:
    """There is a gap that names this, the plan has it, and neither it nor the queue gets anywhere."""
    gap = [gap for gap in epoch.gaps if gap.code is code and all(one in gap.text for one in named)]
    assert gap, f"no gap {code} names {named}; there are {epoch.gaps}"
    planned = pipeline.plan(epoch)
    assert not planned.summary.actionable
    assert set(gap) <= set(planned.summary.gaps)
    with refused_by(RefusalCode.REPORT_ONLY):
        pipeline.apply(pipeline.order(planned))
    with refused_by(RefusalCode.SCAN_NOT_COVERED):
        pipeline.delete_pending()


@contextmanager
def admin_api(sandbox: Cluster, answer: Callable[[str], int | None]) -> Iterator[str]:
    """The real admin API, but for paths to which ``answer`` gives a status; 0 stands for no answer at all."""
    ended = threading.Event()
    http = httpx.Client(base_url=sandbox.admin_url, timeout=60)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = answer(self.path)
            content = self.rfile.read(int(self.headers.get("content-length", 0)))
            if status == 0:
                ended.wait(60)
                return
            if status is None:
                sent = {"Content-Type": "application/json"} if content else {}
                real = http.request(self.command, self.path, content=content, headers=sent)
                status, body, kind = real.status_code, real.content, real.headers.get("content-type", "")
            else:
                body, kind = b'{"reason": "the test says no"}', "application/json"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_PUT = do_POST = do_DELETE = do_GET  # noqa: N815 - the names that http.server asks for

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing: the server writes to stderr otherwise."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        ended.set()
        server.shutdown()
        thread.join()
        server.server_close()
        http.close()


@pytest.mark.parametrize(
    ("status", "code", "word"),
    [
        (403, GapCode.BROKERS_DENIED, "403"),
        (500, GapCode.BROKERS_UNANSWERED, "500"),
        (0, GapCode.BROKERS_UNANSWERED, "Timeout"),
    ],
)
def test_brokers_that_do_not_answer(
    sandbox: Cluster, pipelines: Callable[..., Pipeline], status: int, code: GapCode, word: str
) -> None:
    with admin_api(sandbox, lambda _: status) as url:
        pipeline = pipelines({"pulsar": {"admin_url": url, "request_timeout": "1s"}})
        assert_report_only(pipeline, pipeline.scan(), code, word)


def test_a_broker_that_says_of_no_topic_what_it_holds_in_memory(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    topic = f"persistent://{new_namespace(sandbox, 'unanswered')}/compacted"
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        topics.publish(client, topic, topics.payloads(10), keys=["key"] * 10)
        admin.compact(topic)
    wait_listed(sandbox, topic)
    with admin_api(sandbox, lambda path: 500 if path.endswith("/internalStats") else None) as url:
        pipeline = pipelines({"pulsar": {"admin_url": url}})
        assert_report_only(pipeline, pipeline.scan(), GapCode.REFERENCE_UNREAD, topic)


def test_a_broker_that_does_not_say_of_one_topic_what_it_holds_in_memory(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "mute")
    mute, other = f"persistent://{namespace}/mute-partition-0", f"persistent://{namespace}/other"
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        admin.topic("PUT", f"persistent://{namespace}/mute", "/partitions", 1)
        for topic in (mute, other):
            topics.publish(client, topic, topics.payloads(10), keys=["key"] * 10)
        admin.compact(mute)
    wait_listed(sandbox, mute)
    wait_listed(sandbox, other)
    theirs = [plant.young(sandbox, name)[0].ledger_id for name in (mute, f"persistent://{namespace}/mute-partition-7")]
    leaked = plant.young(sandbox, other)[0].ledger_id
    path = f"/admin/v2/persistent/{namespace}/mute-partition-0/internalStats"
    with admin_api(sandbox, lambda asked: 500 if asked == path else None) as url:
        pipeline = pipelines({"pulsar": {"admin_url": url}})
        send(sandbox, forgery.forged(sandbox, theirs))
        planned = pipeline.confirmed_plan()
        assert planned.summary.actionable, planned.summary.gaps
        assert leaked in planned.ids
        assert not set(theirs) & planned.ids
        rows = pipeline.where.lake.read_epoch_table(planned.summary.epoch_id, "findings").to_pylist()
        (found,) = [row for row in rows if row["finding"] == Finding.UNANSWERED]
        assert (found["topic"], found["path"]) == (mute, znodes.topic_znode(mute))
        assert "the test says no" in found["reason"]
        pipeline.delete_pending()
    assert existing(sandbox, theirs) == set(theirs)
    assert {row["outcome"] for ledger in theirs for row in pipeline.journal(ledger)} == {"kept"}
    assert emptied(sandbox)


def test_a_topic_that_its_broker_has_and_says_nothing_of(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> None:
    """By a schema locator that it cannot decode (once it is acknowledged), or a namespace that is half deleted."""
    broken, half, beside = (new_namespace(sandbox, name) for name in ("locator", "half", "beside"))
    mute, other = {f"persistent://{name}/mute" for name in (broken, half)}, f"persistent://{beside}/other"
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        admin.post_schema(f"persistent://{broken}/mute", 1)
        for name in (*mute, other):
            topics.publish(client, name, topics.payloads(10), keys=["key"] * 10)
            admin.compact(name)
    for name in (*mute, other):
        wait_listed(sandbox, name)
    locator, policies = znodes.schema_znode(f"persistent://{broken}/mute"), f"/admin/policies/{half}"
    kept = {plant.young(sandbox, name)[0].ledger_id for name in mute}
    leaked = plant.young(sandbox, other)[0].ledger_id
    pipeline = pipelines({"orphans": {"acknowledged_znodes": [{"path": locator, "by": "it", "why": "looked at it"}]}})
    with sandbox.metadata() as zk:
        before = {path: zk.get(path)[0] for path in (locator, policies)}
        zk.set(locator, b"\xff\xff\xff")
        zk.set(policies, json.dumps({**json.loads(before[policies]), "deleted": True}).encode())
        try:
            said = {n: _eventually_fails(sandbox, n) for n in mute}
            assert said == {f"persistent://{broken}/mute": 500, f"persistent://{half}/mute": 404}
            with Connections(pipeline.where.settings) as ports:
                (broker,) = ports.admin.brokers()
                names = (f"persistent://{broken}/mute", other)
                assert [ports.admin.fails_at(broker, Topic.parse(name)) for name in names] == [True, False]
            planned = pipeline.confirmed_plan()
        finally:
            for path, data in before.items():
                zk.set(path, data)
    assert planned.summary.actionable, planned.summary.gaps
    assert leaked in planned.ids
    assert not kept & planned.ids
    rows = pipeline.where.lake.read_epoch_table(planned.summary.epoch_id, "findings").to_pylist()
    unanswered = {row["topic"] for row in rows if row["finding"] == Finding.UNANSWERED}
    assert mute <= unanswered
    assert {str(Topic.parse(name).namespace) for name in unanswered} == {broken, half}


def _eventually_fails(sandbox: Cluster, topic: str) -> int:
    """The status by which its broker says nothing of a topic; brokers watch ZooKeeper, so soon after its change."""
    path = f"/admin/v2/{topic.replace('://', '/')}/internalStats"

    def status() -> int:
        answer = httpx.get(f"{sandbox.admin_url}{path}")
        return answer.status_code if answer.is_error else 0

    return wait_for(f"an error of {path}", status)


def test_what_zookeeper_does_not_show(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> None:
    hidden, namespace, damaged = (new_namespace(sandbox, name) for name in ("hidden", "closed", "damaged"))
    names = [f"persistent://{ns}/{name}" for ns in (hidden, namespace, damaged) for name in ("topic", "leaked")]
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        for topic in names[::2]:
            topics.publish(client, topic, topics.payloads(5))
            admin.unload(topic)
    leaked = {topic: plant.young(sandbox, topic)[0].ledger_id for topic in names[1::2]}
    one, whole = znodes.topic_znode(names[0]), f"/managed-ledgers/{namespace}/persistent"
    undecodable = f"{znodes.topic_znode(names[4])}/nonsense"
    pipeline = pipelines()
    with sandbox.metadata() as zk:
        zk.create(undecodable, b"\xff\xff\xff")
        zk.add_auth("digest", "other:secret")
        for path in (one, whole):
            zk.set_acls(path, [make_digest_acl("other", "secret", all=True)])
        try:
            epoch = pipeline.scan()
            for path in (one, whole):
                assert_report_only(pipeline, epoch, GapCode.ZNODE_UNREAD, path)
            assert_report_only(pipeline, epoch, GapCode.ZNODE_UNDECODABLE, undecodable)
        finally:
            for path in (one, whole):
                zk.set_acls(path, OPEN_ACL_UNSAFE)
        try:
            _acknowledged(sandbox, pipelines, undecodable, leaked[f"persistent://{damaged}/leaked"])
        finally:
            zk.delete(undecodable)


def _acknowledged(sandbox: Cluster, pipelines: Callable[..., Pipeline], undecodable: str, neighbour: int) -> None:
    """An operator who has looked at an undecodable z-node unblocks the plan; the z-node's namespace is kept."""
    pipeline = pipelines(
        {"orphans": {"acknowledged_znodes": [{"path": undecodable, "by": "it", "why": "looked at it"}]}}
    )
    send(sandbox, forgery.forged(sandbox, [neighbour]))
    planned = pipeline.confirmed_plan()
    assert planned.summary.actionable, planned.summary.gaps
    assert neighbour not in planned.ids
    pipeline.delete_pending()
    assert existing(sandbox, [neighbour])
    assert [row["outcome"] for row in pipeline.journal(neighbour)] == ["kept"]
    assert emptied(sandbox)


@contextmanager
def damaged(sandbox: Cluster, ledger: int) -> Iterator[None]:
    """Every bookie answers for the ledger's entries, and no digest agrees."""
    path = znodes.ledger_znode(ledger)
    with sandbox.metadata() as zk:
        data, _ = zk.get(path)
        metadata = ledger_metadata.decode(data)
        assert metadata.digest_type is DigestType.CRC32C
        zk.set(path, ledger_metadata.encode(replace(metadata, digest_type=DigestType.CRC32, origin=b"")))
        try:
            yield
        finally:
            zk.set(path, data)


def test_damaged_entries_keep_their_owners_and_hinder_nobody_else(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    """What only the damaged schema entry names is live; the topic of the damaged compaction cursor is loaded."""
    namespace = new_namespace(sandbox, "damage")
    schema, compacted, other = (f"persistent://{namespace}/{name}" for name in ("schema", "compacted", "other"))
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin, sandbox.metadata() as zk:
        for version in (1, 2):
            admin.post_schema(schema, version)
        hidden, newest = admin.schema_ledgers(schema)
        topics.publish(client, compacted, topics.payloads(10), keys=["key"] * 10)
        admin.compact(compacted)
        cursor = znodes.read_cursor(zk, compacted, "__compaction").cursorsLedgerId
        data, stat = zk.get(znodes.schema_znode(schema))
        locator = pulsar_schema_pb2.SchemaLocator.FromString(data)
        left = [entry for entry in locator.index if entry.position.ledgerId == newest]
        del locator.index[:]
        locator.index.extend(left)
        zk.set(znodes.schema_znode(schema), locator.SerializeToString(), stat.version)
    wait_listed(sandbox, compacted)
    theirs = [plant.young(sandbox, name)[0].ledger_id for name in (schema, f"{schema}-partition-3", compacted)]
    leaked = plant.young(sandbox, other)[0].ledger_id
    pipeline = pipelines()
    with damaged(sandbox, newest), damaged(sandbox, cursor):
        send(sandbox, forgery.forged(sandbox, [hidden, *theirs]))
        planned = pipeline.confirmed_plan()
        assert planned.summary.actionable, planned.summary.gaps
        assert leaked in planned.ids
        assert not {hidden, *theirs} & planned.ids
        rows = pipeline.where.lake.read_epoch_table(planned.summary.epoch_id, "findings").to_pylist()
        found = {row["path"]: row["ledger_id"] for row in rows if row["finding"] == Finding.DAMAGED}
        cursor_path = znodes.cursor_znode(compacted, "__compaction")
        assert found == {znodes.schema_znode(schema): newest, cursor_path: cursor}
        pipeline.delete_pending()
    assert existing(sandbox, [hidden, *theirs]) == {hidden, *theirs}
    assert {row["outcome"] for ledger in (hidden, *theirs) for row in pipeline.journal(ledger)} == {"kept"}
    assert emptied(sandbox)


def test_topics_that_vanish_while_their_ledgers_stay(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> None:
    namespace = new_namespace(sandbox, "vanish")
    deleted, removed = (f"persistent://{namespace}/{name}" for name in ("deleted", "removed"))
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin, sandbox.metadata() as zk:
        ledgers = {topic: set(topics.publish(client, topic, topics.payloads(120))) for topic in (deleted, removed)}
        admin.unload(removed)
        first = pipelines()
        listed = sum(row["ledgers"] or 0 for row in _topics(first, first.scan()))
        least = min(map(len, ledgers.values()))
        small = {"orphans": {"max_shrinkage": least / 2 / listed}}  # as if the cluster had little else
        admin.topic("DELETE", deleted, "?force=true")
        assert not existing(sandbox, ledgers[deleted])
        strict = pipelines(small, lake=first.lake)
        epoch = strict.scan()
        assert epoch.covered, epoch.gaps
        zk.delete(znodes.topic_znode(removed), recursive=True)
    epoch = strict.scan()
    assert [(gap.code, gap.where) for gap in epoch.gaps] == [(GapCode.LOST_REFERENCES, "managed_ledgers")]
    assert_report_only(strict, epoch, GapCode.LOST_REFERENCES, znodes.topic_znode(removed), "orphans.max_shrinkage")
    assert {strict.findings(epoch)[ledger]["finding"] for ledger in ledgers[removed]} == {Finding.ORPHAN}
    raised = {"max_shrinkage": 1, "max_shrinkage_raised": {"by": "it", "why": "looked at it"}, "max_lost_ledgers": 1}
    bound = pipelines({"orphans": raised}, lake=first.lake).scan()
    assert "orphans.max_lost_ledgers" in "".join(g.text for g in bound.gaps if g.code is GapCode.LOST_REFERENCES)


def _topics(pipeline: Pipeline, epoch: Epoch) -> list[dict[str, Any]]:
    return pipeline.where.lake.read_epoch_table(epoch.epoch_id, "topics").to_pylist()


def test_sharing_that_nobody_spoke_about(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> None:
    young = plant.young(sandbox, f"persistent://{new_namespace(sandbox, 'shared')}/leaked")[0].ledger_id
    pipeline = pipelines({"bookkeeper": {"shared_with": None}, "orphans": {"grace_period": "1h"}})
    epoch = pipeline.scan()
    assert_report_only(pipeline, epoch, GapCode.SHARING_UNDECLARED)
    assert pipeline.findings(epoch)[young]["finding"] == Finding.TOO_YOUNG


@contextmanager
def second_cluster(sandbox: Cluster) -> Iterator[tuple[str, str, set[int]]]:
    """A cluster on the same ZooKeeper and BookKeeper: (its chroot, a leak of ours, its ledgers).

    Its chroot is of two levels, and both clusters have the namespace.
    """
    root, namespace = f"/clusters-{uuid4().hex[:6]}/two", new_namespace(sandbox, "twice")
    with sandbox.metadata() as zk:
        for path in ("/managed-ledgers", "/schemas", "/admin/policies"):
            zk.create(f"{root}{path}", makepath=True)
    theirs = plant.neighbour(sandbox, f"persistent://{namespace}/theirs", root)
    leaked = plant.young(sandbox, f"persistent://{namespace}/leaked")[0].ledger_id
    try:
        yield root, leaked, {one.ledger_id for one in theirs}
    finally:
        with sandbox.metadata() as zk:
            zk.delete(root.rpartition("/")[0], recursive=True)


def test_a_second_cluster_on_the_same_zookeeper(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> None:
    with second_cluster(sandbox) as (root, leaked, theirs):
        unaware = pipelines()
        epoch = unaware.scan()
        assert [(gap.code, gap.where) for gap in epoch.gaps] == [(GapCode.OTHER_ROOT, root)]
        assert {unaware.findings(epoch)[ledger]["finding"] for ledger in theirs} == {Finding.ORPHAN}
        assert_report_only(unaware, epoch, GapCode.OTHER_ROOT, "bookkeeper.shared_with", f"{root}/managed-ledgers")
        declared = pipelines({"bookkeeper": {"shared_with": [{"name": "two", "hosts": f"{sandbox.zookeeper}{root}"}]}})
        epoch = declared.scan()
        assert epoch.covered, epoch.gaps
        assert not theirs & declared.findings(epoch).keys()
        inside = pipelines({"zookeeper": {"hosts": f"{sandbox.zookeeper}{root}"}})
        gaps, _ = _other_roots(inside.where, [], 0)
        assert [gap.where for gap in gaps] == ["/"]
        told = pipelines({"bookkeeper": {"not_sharing": [{"path": root, "by": "it", "why": "has its own bookies"}]}})
        epoch = told.scan()
        assert epoch.covered, epoch.gaps
        assert told.findings(epoch)[leaked]["finding"] == Finding.ORPHAN


def test_a_zookeeper_whose_top_may_not_be_listed(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> None:
    pipeline = pipelines()
    with sandbox.metadata() as zk:
        before, _ = zk.get_acls("/")
        zk.set_acls("/", [make_acl("world", "anyone", create=True, delete=True, write=True, admin=True)])
        try:
            epoch = pipeline.scan()
            told = pipelines({"bookkeeper": {"not_sharing": [{"path": "/", "by": "it", "why": "looked at it"}]}}).scan()
        finally:
            zk.set_acls("/", before)
    assert [(gap.code, gap.where) for gap in epoch.gaps] == [(GapCode.OTHER_ROOT_UNLISTED, "/")]
    assert_report_only(pipeline, epoch, GapCode.OTHER_ROOT_UNLISTED, "bookkeeper.not_sharing")
    assert told.covered, told.gaps


def test_a_declared_cluster_that_is_not_there_ends_the_scan(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    root = {"name": "absent", "hosts": f"{sandbox.zookeeper}/absent"}
    pipeline = pipelines({"bookkeeper": {"shared_with": [root]}})
    with pytest.raises(ConfigError, match=r"shared_with\.absent\.hosts: the chroot /absent does not exist"):
        pipeline.scan()
    assert pipeline.where.lake.epochs() == []


def test_lost_zookeeper_connections_are_made_up_for(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> None:
    leaked = plant.young(sandbox, f"persistent://{new_namespace(sandbox, 'cut')}/leaked")[0].ledger_id
    ended = threading.Event()
    with CuttingProxy(sandbox.zookeeper) as proxy:

        def cut() -> None:
            while not ended.is_set():
                seen = proxy.cuts
                proxy.cut_next(MULTI_READ, answered=bool(seen % 2))
                while proxy.cuts == seen and not ended.is_set():
                    time.sleep(0.02)
                ended.wait(0.5)

        cutting = threading.Thread(target=cut)
        cutting.start()
        pipeline = pipelines({"zookeeper": {"hosts": f"127.0.0.1:{proxy.port}"}})
        try:
            epoch = pipeline.scan()
        finally:
            ended.set()
            cutting.join()
    assert proxy.cuts > 1
    assert epoch.covered, epoch.gaps
    assert pipeline.findings(epoch)[leaked]["finding"] == Finding.ORPHAN
