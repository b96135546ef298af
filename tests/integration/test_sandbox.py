"""The sandbox itself: its servers can be killed one by one, its seed leaks what it says and nothing else."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError
from kazoo.client import KazooClient

from pulsar_lifecycle._pb import pulsar_mldata_pb2 as ml
from pulsar_lifecycle._pb import pulsar_schema_pb2 as sc
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.settings import load_settings
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import MARKER, Cluster
from sandbox.planting import plant, topics, znodes
from sandbox.planting.plant import Planted
from sandbox.planting.seed import Live, Seeded, live_file, planted_file, read_seeded, seed
from sandbox.planting.verify import read_back
from sandbox.servers.toolchain import SandboxError

pytestmark = pytest.mark.integration

NAMESPACE = "sandboxed/alone"


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A sandbox of our own: its servers are killed and its content is counted."""
    cluster = Cluster(tmp_path_factory.mktemp("own") / "sandbox")
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop(purge=True)


@pytest.fixture(scope="module")
def before_seed(own: Cluster) -> set[int]:
    """Unreferenced ledgers from before: a broker that is killed may leave some."""
    own.start()
    listed, referred = scan(own)
    return listed - referred


@pytest.fixture(scope="module")
def seeded(own: Cluster, before_seed: set[int]) -> Seeded:
    return seed(own)


def pids(cluster: Cluster) -> dict[str, int | None]:
    return {row["name"]: row["pid"] for row in cluster.status()}


def processes_of(cluster: Cluster) -> list[str]:
    answer = subprocess.run(["ps", "-ww", "-eo", "args"], capture_output=True, text=True, check=True)
    return [line for line in answer.stdout.splitlines() if f"{cluster.data}/conf" in line]


# ------------------------------------------------------------------------------------------------------------ servers


def test_the_settings_file_is_valid_and_names_the_cluster(own: Cluster) -> None:
    settings = load_settings(own.config)
    assert settings.pulsar.admin_url == own.admin_url
    assert settings.zookeeper.hosts == own.zookeeper
    assert settings.bookkeeper.shared_with == ()
    assert own.state.gc_wait < settings.bookkeeper.gc_wait < own.state.gc_wait + 60  # an undo waits so long


def test_the_cluster_carries_the_marker(own: Cluster) -> None:
    with own.metadata() as zk:
        data: bytes = zk.get(MARKER)[0]  # type: ignore[index]
    assert json.loads(data) == {"cluster": "sandbox"}


def test_a_second_start_changes_nothing(own: Cluster) -> None:
    before = pids(own)
    assert own.start() == []
    assert pids(own) == before


@pytest.mark.parametrize("name", ["zookeeper", "bookie-1", "broker-1", "s3proxy"])
def test_a_killed_server_comes_back_alone_with_its_ports_and_data(own: Cluster, name: str) -> None:
    topic = f"persistent://public/default/before-{name}"
    contents = topics.payloads(60)
    with pulsar_client(own.service_url) as client:
        topics.publish(client, topic, contents)
    before, ports = pids(own), own.state.servers[name].ports
    own.kill(name)
    assert name not in own.running()
    assert own.start() == [name]
    after = pids(own)
    assert own.state.servers[name].ports == ports
    assert {other: pid for other, pid in after.items() if other != name} == {
        other: pid for other, pid in before.items() if other != name
    }
    assert read_back(own, [Live(topic, len(contents), topics.digest(contents))]) == []


def test_a_killed_broker_comes_back_while_its_session_is_open(own: Cluster) -> None:
    """One that finds its address registered by another session, and not just as it would, refuses to start."""
    broker = own.state.servers["broker-1"]
    with own.metadata() as client:
        path = f"/loadbalance/brokers/127.0.0.1:{broker.ports['http']}"
        registered, _ = client.get(path)
        own.kill(broker.name)
        client.delete(path)
        client.create(path, registered + b" ", ephemeral=True)
        assert own.start() == [broker.name]


@pytest.mark.skipif(not Path("/proc/net/tcp").exists(), reason="reads Linux's socket tables")
def test_nothing_listens_beyond_the_loopback_address(own: Cluster) -> None:
    inodes = {inode for pid in pids(own).values() for inode in sockets_of(pid)}
    tables = [Path(f"/proc/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    listening = [
        row.split() for table in tables for row in table if row.split()[3] == "0A" and row.split()[9] in inodes
    ]
    loopback = {"0100007F", "0000000000000000FFFF00000100007F"}
    assert len(listening) == 6  # ZooKeeper, S3, and two ports each of the bookie and the broker
    assert {row[1].partition(":")[0] for row in listening} <= loopback


def sockets_of(pid: int | None) -> set[str]:
    """The inodes of a process's sockets; what it closes meanwhile is none."""
    found: set[str] = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(descriptor.readlink()).removeprefix("socket:[").removesuffix("]"))
    return found


def test_the_s3_server_takes_its_credentials_and_no_others(own: Cluster) -> None:
    recorded = own.state.as_json()["s3"]
    keys = json.loads(Path(recorded["credentials_file"]).read_text())

    def client(secret: str) -> object:
        return boto3.client(
            "s3",
            endpoint_url=recorded["endpoint"],
            aws_access_key_id=keys["access_key"],
            aws_secret_access_key=secret,
            region_name="us-east-1",
            config=Config(s3={"addressing_style": "path"}),
        )

    right, wrong = client(keys["secret_key"]), client("guessed")
    right.create_bucket(Bucket="sandbox-test")  # type: ignore[attr-defined]
    right.put_object(Bucket="sandbox-test", Key="object", Body=b"content")  # type: ignore[attr-defined]
    body = right.get_object(Bucket="sandbox-test", Key="object")["Body"]  # type: ignore[attr-defined]
    assert body.read() == b"content"
    with pytest.raises(ClientError, match=r"SignatureDoesNotMatch|Forbidden|403"):
        wrong.get_object(Bucket="sandbox-test", Key="object")  # type: ignore[attr-defined]


def test_a_folder_of_something_else_is_neither_used_nor_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    cluster = Cluster(tmp_path)
    with pytest.raises(SandboxError, match="holds something else"):
        cluster.start()
    assert cluster.stop(purge=True) == []
    assert (tmp_path / "thesis.txt").exists()


def test_a_start_that_fails_leaves_nothing_running(own: Cluster) -> None:
    own.stop()
    assert processes_of(own) == []
    with socket.socket() as squatter:
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        squatter.bind(("127.0.0.1", own.state.servers["bookie-1"].ports["main"]))
        squatter.listen()
        with pytest.raises(SandboxError, match=r"port .* of bookie-1 is in use by another process"):
            own.start()
    assert processes_of(own) == []


def test_two_starts_at_once_start_each_server_once(own: Cluster) -> None:
    own.stop()
    command = [sys.executable, "-m", "sandbox.cli", "start", "--data", str(own.data)]
    starts = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    said = [start.communicate()[0] for start in starts]
    assert [start.returncode for start in starts] == [0, 0]
    assert sum("already running" in text for text in said) == 1
    assert len(processes_of(own)) == len(own.running()) == 4


# --------------------------------------------------------------------------------------------------------------- seed


def test_the_seed_leaks_exactly_what_it_wrote_down(own: Cluster, before_seed: set[int], seeded: Seeded) -> None:
    planted = {entry.ledger_id: entry.verdict for entry in seeded.planted}
    leaked = {ledger for ledger, verdict in planted.items() if verdict not in ("dangling", "offload-leftover")}
    listed, referred = scan_once_settled(own, before_seed | leaked)
    assert listed - referred - before_seed == leaked
    assert referred - listed == {ledger for ledger, verdict in planted.items() if verdict == "dangling"}
    assert {entry.kind for entry in seeded.planted} == {
        *("data", "data-of-live-topic", "cursor", "schema", "compacted", "bucket"),
        *("offload-leftover", "dangling", "foreign", "open", "empty", "young"),
    }


def test_every_live_topic_reads_back_twice(own: Cluster, seeded: Seeded) -> None:
    assert read_back(own, seeded.live) == []
    assert read_back(own, seeded.live) == []


def test_what_was_seeded_is_written_down(own: Cluster, seeded: Seeded) -> None:
    assert read_seeded(own) is not None
    assert json.loads(planted_file(own).read_text())["planted"]
    assert {topic["topic"] for topic in json.loads(live_file(own).read_text())["topics"]} == {
        topic.topic for topic in seeded.live
    }


def test_a_second_seed_only_renews_the_young_ledger(own: Cluster, seeded: Seeded) -> None:
    before = scan(own)[0]
    again = seed(own)

    def old(entries: list[Planted]) -> list[Planted]:
        return [entry for entry in entries if entry.kind != "young"]

    assert old(again.planted) == old(seeded.planted)
    assert again.live == seeded.live
    young = {entry.ledger_id for entry in again.planted if entry.kind == "young"}
    assert scan(own)[0] - before == young
    assert len(young) == 1


def test_a_lost_message_is_noticed(own: Cluster) -> None:
    with Admin(own.admin_url) as admin:
        admin.create_namespace(NAMESPACE)
    topic = f"persistent://{NAMESPACE}/loses-a-ledger"
    _, left = plant.orphan_data_of_live_topic(own, topic)
    whole = Live(topic, len(left), topics.digest(left))
    assert read_back(own, [whole]) == []
    assert "80 messages, 81 were written" in read_back(own, [replace(whole, messages=81)])[0]
    assert "not the ones" in read_back(own, [replace(whole, sha256=topics.digest(left[::-1]))])[0]


@pytest.mark.parametrize(
    ("kind", "leak"),
    [
        ("data", plant.orphan_data),
        ("cursor", plant.orphan_cursor),
        ("schema", plant.orphan_schema),
        ("compacted", plant.orphan_compacted),
        ("bucket", plant.orphan_bucket),
        ("neighbour", lambda cluster, topic: plant.neighbour(cluster, topic, "/neighbour")),
    ],
)
def test_a_kind_planted_alone_is_all_that_becomes_unreferenced(
    own: Cluster, kind: str, leak: Callable[[Cluster, str], list[Planted]]
) -> None:
    with Admin(own.admin_url) as admin:
        admin.create_namespace(NAMESPACE)
    listed, referred = scan(own)
    before = listed - referred
    planted = leak(own, f"persistent://{NAMESPACE}/alone-{kind}")
    leaked = {entry.ledger_id for entry in planted}
    listed, referred = scan_once_settled(own, before | leaked)
    assert listed - referred - before == leaked
    assert kind in {entry.kind for entry in planted}


def test_a_grown_cluster_is_purged_whole(own: Cluster) -> None:
    """The last test of the file: nothing of our own sandbox is left."""
    own.start()
    assert own.start(bookies=2, brokers=2) == ["bookie-2", "broker-2"]
    assert len(processes_of(own)) == 6
    own.stop(purge=True)
    assert processes_of(own) == []
    assert not own.data.exists()
    with pytest.raises(SandboxError, match="start one with"):
        own.status()


def scan_once_settled(cluster: Cluster, unreferenced: set[int]) -> tuple[set[int], set[int]]:
    """:func:`scan`, once all else that nothing refers to is gone: brokers delete a closed cursor's ledger by and by."""
    with suppress(SandboxError):
        wait_for("brokers to delete what they gave up", lambda: not set.difference(*scan(cluster)) - unreferenced, 30)
    return scan(cluster)


def scan(cluster: Cluster) -> tuple[set[int], set[int]]:
    """Ids in BookKeeper, and ids that anything refers to: simple, slow, and without a line of the product."""
    listed: set[int] = set()
    referred: set[int] = set()
    with cluster.metadata() as zk, Admin(cluster.admin_url) as admin:
        for path, _ in walk(zk, "/ledgers", 3):
            top, middle, last = path.split("/")[2:]
            if top.isdigit():
                listed.add(int(top + middle + last[1:]))
        for _, data in walk(zk, "/managed-ledgers", 4):
            referred |= {entry.ledgerId for entry in ml.ManagedLedgerInfo.FromString(data).ledgerInfo}
        for path, data in walk(zk, "/managed-ledgers", 5):
            cursor = ml.ManagedCursorInfo.FromString(data)
            referred |= {cursor.cursorsLedgerId, *znodes.bucket_ledgers(cursor)}
            name, _, subscription = path.removeprefix("/managed-ledgers/").rpartition("/")
            if subscription == "__compaction":  # the pointer is in the broker's memory and the cursor's ledger
                stats = admin.topic("GET", str(Topic.from_managed_ledger(name)), "/internalStats")
                referred.add(stats["compactedLedger"]["ledgerId"])
        for _, data in walk(zk, "/schemas", 3):
            locator = sc.SchemaLocator.FromString(data)
            referred |= {entry.position.ledgerId for entry in (locator.info, *locator.index)}
    return listed, referred - {-1}


def walk(zk: KazooClient, path: str, depth: int) -> Iterator[tuple[str, bytes]]:
    """The z-nodes exactly ``depth`` levels below ``path``."""
    if depth == 0:
        data: bytes = zk.get(path)[0]  # type: ignore[index]
        yield path, data
        return
    for child in zk.get_children(path):
        yield from walk(zk, f"{path}/{child}", depth - 1)
