"""What could not be read whole makes every plan report-only and says what was missing; a lost connection does not."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl

from pulsar_lifecycle.errors import ConfigError, Refused
from pulsar_lifecycle.plan.coverage import Epoch
from pulsar_lifecycle.plan.orphans import Finding
from sandbox import plant, topics, znodes
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from tests.fakes.cutting_proxy import CuttingProxy
from tests.integration import forgery
from tests.integration.pipeline import Pipeline, existing, new_namespace, send, wait_listed, waiting

pytestmark = pytest.mark.integration

MULTI_READ = 22


def assert_report_only(pipeline: Pipeline, epoch: Epoch, *words: str) -> None:
    """The gap is named, the plan says so, and neither it nor the queue gets anywhere."""
    gap = [gap for gap in epoch.gaps if all(word in gap for word in words)]
    assert gap, f"no gap says {words}; there are {epoch.gaps}"
    planned = pipeline.plan(epoch)
    assert not planned.summary.actionable
    assert set(gap) <= set(planned.summary.gaps)
    with pytest.raises(Refused, match="report-only"):
        pipeline.apply(pipeline.order(planned))
    with pytest.raises(Refused, match="not covered"):
        pipeline.delete_pending()


@contextmanager
def admin_api(sandbox: Cluster, answer: Callable[[str], int | None]) -> Iterator[str]:
    """The real admin API, but for paths to which ``answer`` gives a status; 0 stands for no answer at all."""
    ended = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = answer(self.path)
            if status == 0:
                ended.wait(60)
                return
            if status is None:
                real = httpx.get(f"{sandbox.admin_url}{self.path}", timeout=60)
                status, body, kind = real.status_code, real.content, real.headers.get("content-type", "")
            else:
                body, kind = b'{"reason": "the test says no"}', "application/json"
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

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


@pytest.mark.parametrize(("status", "word"), [(403, "403"), (500, "500"), (0, "Timeout")])
def test_brokers_that_do_not_answer(
    sandbox: Cluster, pipelines: Callable[..., Pipeline], status: int, word: str
) -> None:
    with admin_api(sandbox, lambda _: status) as url:
        pipeline = pipelines({"pulsar": {"admin_url": url, "request_timeout": "1s"}})
        assert_report_only(pipeline, pipeline.scan(), "broker not heard", word)


def test_a_broker_that_does_not_say_what_it_holds_in_memory(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    topic = f"persistent://{new_namespace(sandbox, 'silent')}/compacted"
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        topics.publish(client, topic, topics.payloads(10), keys=["key"] * 10)
        admin.compact(topic)
    wait_listed(sandbox, topic)
    with admin_api(sandbox, lambda path: 500 if path.endswith("/internalStats") else None) as url:
        pipeline = pipelines({"pulsar": {"admin_url": url}})
        assert_report_only(pipeline, pipeline.scan(), "reference not read", f"broker memory of {topic}")


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
                assert_report_only(pipeline, epoch, "could not read", path, "permission")
            assert_report_only(pipeline, epoch, "cannot decode", undecodable)
        finally:
            for path in (one, whole):
                zk.set_acls(path, OPEN_ACL_UNSAFE)
        try:
            _acknowledged(sandbox, pipelines, undecodable, leaked[f"persistent://{damaged}/leaked"])
        finally:
            zk.delete(undecodable)


def _acknowledged(sandbox: Cluster, pipelines: Callable[..., Pipeline], undecodable: str, neighbour: int) -> None:
    """An operator who has looked at an undecodable z-node unblocks the plan; the z-node's namespace is kept."""
    pipeline = pipelines({"orphans": {"acknowledged_znodes": [undecodable]}})
    send(sandbox, forgery.forged(sandbox, [neighbour]))
    planned = pipeline.confirmed_plan()
    assert planned.summary.actionable, planned.summary.gaps
    assert neighbour not in planned.ids
    pipeline.delete_pending()
    assert existing(sandbox, [neighbour])
    assert [row["outcome"] for row in pipeline.journal(neighbour)] == ["kept"]
    assert waiting(sandbox) == 0


def test_sharing_that_nobody_spoke_about(sandbox: Cluster, pipelines: Callable[..., Pipeline]) -> None:
    young = plant.young(sandbox, f"persistent://{new_namespace(sandbox, 'shared')}/leaked")[0].ledger_id
    pipeline = pipelines({"bookkeeper": {"shared_with": None}, "orphans": {"grace_period": "1h"}})
    epoch = pipeline.scan()
    assert_report_only(pipeline, epoch, "bookkeeper.shared_with is not set")
    assert pipeline.findings(epoch)[young]["finding"] == Finding.TOO_YOUNG


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
