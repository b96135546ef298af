"""Policies of single topics on a real cluster: ours are REST's, and reading them loads nothing."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from uuid import uuid4

import pytest

from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.topic_policies import CHANGE_EVENTS
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.model import Namespace, Topic
from pulsar_lifecycle.runs import cluster as runs_cluster
from pulsar_lifecycle.settings import Settings, load_settings
from pulsar_lifecycle.tiered.planning.offload_planning import policies_now
from pulsar_lifecycle.topics.policies import NamespacePolicies
from pulsar_lifecycle.topics.system_topics.change_events import read_namespace
from pulsar_lifecycle.topics.system_topics.system_topic import LedgerSource
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.plans.offload_plan import OffloadCode
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import BUCKET, Cluster
from sandbox.planting import topics
from sandbox.servers.toolchain import SandboxError
from tests.integration.pipeline import new_namespace, settings_file
from tests.integration.tiered.offloads import with_bucket

pytestmark = pytest.mark.integration

OFFLOAD = {
    "managedLedgerOffloadDriver": "aws-s3",
    "managedLedgerOffloadBucket": BUCKET,
    "managedLedgerOffloadThresholdInBytes": 0,
    "managedLedgerOffloadDeletionLagInMillis": -1,
    "managedLedgerOffloadedReadPriority": "BOOKKEEPER_FIRST",
}
ASKED = {"offloadPolicies": "offloadPolicies", "retention": "retentionPolicies", "messageTTL": "messageTTLInSeconds"}
"""REST's name of a policy and TopicPolicies'."""
COMPUTED = {"s3Driver", "gcsDriver", "fileSystemDriver"}
"""What REST's JSON has beside the fields."""


@pytest.fixture
def admin(sandbox: Cluster) -> Iterator[Admin]:
    with Admin(sandbox.admin_url) as opened:
        yield opened


@contextmanager
def ports(settings: Settings) -> Iterator[tuple[KazooStore, BookieReader]]:
    with KazooStore(settings.zookeeper, read_only=True) as store, BookieReader(store, settings.bookkeeper) as reader:
        yield store, reader


def ours(settings: Settings, namespace: str) -> NamespacePolicies:
    with ports(settings) as (store, reader):
        return read_namespace(LedgerSource(store, reader, lambda: None), Namespace.parse(namespace))


def retention(minutes: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": minutes}


def agree(admin: Admin, found: NamespacePolicies, names: list[str]) -> None:
    """Every policy of every topic is what REST says, local and global; a broker reads its own events by and by."""
    assert found.unknown is None
    with suppress(SandboxError):
        wait_for("REST to say what was set last", lambda: not unlike(admin, found, names), 60)
    assert unlike(admin, found, names) == []


def unlike(admin: Admin, found: NamespacePolicies, names: list[str]) -> list[tuple[object, ...]]:
    """Of each policy that REST says otherwise: its topic, its name, what we found, and what REST says."""
    differing: list[tuple[object, ...]] = []
    for name in names:
        own = found.of(Topic.parse(name))
        name = str(Topic.parse(name).partitioned_parent)
        for rest, field in ASKED.items():
            for query, policies in (("", own.local), ("?isGlobal=true", own.everywhere)):
                said = admin.topic("GET", name, f"/{rest}{query}")
                said = {k: v for k, v in said.items() if k not in COMPUTED} if isinstance(said, dict) else said
                here = (policies or {}).get(field)
                here = {k: v for k, v in here.items() if v is not None} if isinstance(here, dict) else here
                if here != said:
                    differing.append((name, rest, query, here, said))
    return differing


def nodes(sandbox: Cluster, namespace: str) -> dict[str, tuple[int, list[int]]]:
    """Every topic's z-node of a namespace: its last transaction, and the ledgers it lists."""
    base = f"/managed-ledgers/{namespace}/persistent"
    found: dict[str, tuple[int, list[int]]] = {}
    with sandbox.metadata() as zk:
        for name in zk.get_children(base):
            data, stat = zk.get(f"{base}/{name}")
            found[name] = stat.mzxid, [info.ledger_id for info in managed_ledger.decode(data).ledgers]
    return found


def resting(sandbox: Cluster, namespace: str) -> dict[str, tuple[int, list[int]]]:
    """:func:`nodes`, once the brokers' own writers and readers let go of what was unloaded under them."""
    seen = [nodes(sandbox, namespace)]

    def still() -> bool:
        time.sleep(1)
        seen.append(nodes(sandbox, namespace))
        return len(seen) > 4 and all(one == seen[-1] for one in seen[-4:])

    wait_for(f"{namespace} to rest", still)
    return seen[-1]


@pytest.mark.parametrize("partitions", [0, 3])
def test_what_rest_set_is_what_we_read(sandbox: Cluster, tmp_path: Path, admin: Admin, partitions: int) -> None:
    settings = load_settings(str(settings_file(sandbox, tmp_path)))
    tenant = new_namespace(sandbox, "policies").partition("/")[0]
    namespace = f"{tenant}/policies-{uuid4().hex[:6]}"
    events = f"persistent://{namespace}/{CHANGE_EVENTS}"
    admin.call("PUT", f"/v2/namespaces/{namespace}", {})
    if partitions:  # before a broker makes it itself
        admin.topic("PUT", events, "/partitions", partitions)
    admin.create_namespace(namespace)
    plain, changed, parted, deleted, cleared, bare = (
        f"persistent://{namespace}/{name}" for name in ("a b+é", "changed", "parted", "deleted", "cleared", "bare")
    )
    for name in (plain, changed, deleted, cleared, bare):
        admin.topic("PUT", name)
    admin.topic("PUT", parted, "/partitions", 2)
    known = [plain, changed, f"{parted}-partition-1", cleared, bare]
    admin.topic("POST", plain, "/offloadPolicies", OFFLOAD)
    admin.topic("POST", plain, "/retention", retention(7))
    admin.topic("POST", plain, "/retention?isGlobal=true", retention(70))
    admin.topic("POST", parted, "/messageTTL?messageTTL=100")
    for minutes in (1, 2, -1):
        admin.topic("POST", changed, "/retention", retention(minutes))
    for name in (deleted, cleared):
        admin.topic("POST", name, "/retention", retention(3))
        admin.topic("POST", name, "/retention?isGlobal=true", retention(30))
    admin.topic("DELETE", cleared, "/retention")
    admin.topic("DELETE", deleted)
    agree(admin, ours(settings, namespace), known)  # the last ledger is open
    parts = [f"{events}-partition-{n}" for n in range(partitions)] or [events]
    for name in parts:  # every key's last event is in the compacted ledger, and some are behind it
        admin.compact(name)
    admin.topic("POST", plain, "/messageTTL?messageTTL=5")
    admin.topic("DELETE", parted, "/messageTTL")
    found = ours(settings, namespace)
    agree(admin, found, known)
    assert found.of(Topic.parse(plain)).first("retentionPolicies") == retention(7)
    assert Topic.parse(deleted) not in found.topics
    sandbox.restart("broker-1")  # all is closed; and the broker replays it itself
    again = ours(settings, namespace)
    assert again == found
    agree(admin, again, known)


def test_planning_and_running_an_offload_loads_no_topic(sandbox: Cluster, tmp_path: Path, admin: Admin) -> None:
    """A broker that has just started, asked by REST, took the bundle of __change_events, and loaded all its topics."""
    settings = load_settings(str(settings_file(sandbox, tmp_path, with_bucket(sandbox))))
    namespace = new_namespace(sandbox, "policies")
    names = [f"persistent://{namespace}/{name}" for name in ("a", "b", "c")]
    with pulsar_client(sandbox.service_url) as client:
        for name in names:
            topics.publish(client, name, topics.payloads(60, name))
    admin.topic("POST", names[0], "/retention", retention(1))
    admin.topic("POST", names[1], "/offloadPolicies", {**OFFLOAD, "s3ManagedLedgerOffloadBucket": "another"})
    sandbox.restart("broker-1")
    before = resting(sandbox, namespace)
    found = policies_now(runs_cluster.Cluster(settings, Connections), names).of_topics
    time.sleep(2)
    assert nodes(sandbox, namespace) == before
    assert {name: one.code for name, one in found.items() if isinstance(one, Why)} == {names[1]: OffloadCode.LEFT_OUT}
    admin.topic("GET", names[0], "/retention")  # what it was asked by, before
    wait_for("REST to load topics", lambda: nodes(sandbox, namespace) != before)
