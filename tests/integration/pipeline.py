"""The whole pipeline as the tests drive it: one settings file and one lake per instance, library calls.

Belongs here: the steps of a run in the order the jobs take them, and looking at what came out. Not here: planting
(``sandbox.planting.plant``) and asserting.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import pulsar
from kazoo.client import KazooClient

from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.deletion.workers import OutcomeCount
from pulsar_lifecycle.deletion_queue.missing_topics import Subscribed
from pulsar_lifecycle.deletion_queue.queue_topics import (
    DELETION_TOPIC,
    DLQ_TOPIC,
    RETRY_TOPIC,
    SUBSCRIPTION,
    Subscriptions,
    stored_subscriptions,
    topics_of,
)
from pulsar_lifecycle.errors import RefusedBy
from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo
from pulsar_lifecycle.io.connect import metadata_store
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin
from pulsar_lifecycle.io.pulsar.queue import PulsarDeletionQueue
from pulsar_lifecycle.journal.archive import archived_nodes
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.runs.apply import Applied
from pulsar_lifecycle.runs.caps import AS_SET, Lowered, Order
from pulsar_lifecycle.runs.cluster import Cluster as Where
from pulsar_lifecycle.settings import PulsarSettings, ZooKeeperSettings, load_settings
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from pulsar_lifecycle.values.refusals import RefusalCode
from resources.lifecycle import LifecycleResource
from sandbox.clients import Admin, wait_for
from sandbox.cluster import BUCKET, Cluster
from sandbox.planting import znodes
from sandbox.servers import archives
from sandbox.servers.toolchain import SandboxError, java
from tests.kit.local_cluster import local_cluster

NO_CAPS = AS_SET
"""What a launch asks for; the settings file has caps that a small cluster is below."""
STATS_INTERVAL = 1.0
"""Seconds; the sandbox brokers' ``statsUpdateFrequencyInSecs``."""
PATIENT = {"idle_timeout": "10s"}
"""Settings of ``deletion`` where one run must take every message, however slowly they come on a busy machine."""
SPARK = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.defaultJavaOptions": archives.driver_options(java()),
    "spark.executor.defaultJavaOptions": archives.SHORT_LIVED,
}


def settings_file(
    sandbox: Cluster,
    folder: Path,
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    cluster: str = "sandbox",
) -> Path:
    """A settings file for the sandbox with a lake below ``folder``; ``overrides`` is section -> key -> value.

    ``cluster``: what the sandbox is called.
    """
    document: dict[str, dict[str, Any]] = {
        "zookeeper": {"hosts": sandbox.zookeeper, "slow_above": "2s", "stop_above": "20s"},  # a test machine is busy
        "pulsar": {"admin_url": sandbox.admin_url, "service_url": sandbox.service_url},
        "bookkeeper": {"shared_with": [], "flush_interval": "10s"},  # as in bookie.conf
        "lake": {"path": str(folder / "lake")},
        "spark": {"master": "local[2]", "scan_partitions": 2, "conf": SPARK},
        "orphans": {"grace_period": 0, "confirm_after": "0s"},
        "apply": {"max_share": 1.0},  # a share of a small cluster says nothing
        "deletion": {"deliver_after": 0, "idle_timeout": "3s", "waiting_delay": "1s"},
    }
    for section, values in (overrides or {}).items():
        document.setdefault(section, {}).update(values)
    lines = [f'cluster = "{cluster}"']
    for section, values in document.items():
        lines += [
            "",
            f"[{section}]",
            *(f"{key} = {_toml(value)}" for key, value in values.items() if value is not None),
        ]
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / "lifecycle.toml"
    target.write_text("\n".join(lines) + "\n")
    return target


def object_store(sandbox: Cluster) -> dict[str, Any]:
    """The sandbox's bucket, as a section of settings."""
    return {
        "endpoint": sandbox.state.as_json()["s3"]["endpoint"],
        "access_key": {"file": str(sandbox.data / "s3-access-key")},
        "secret_key": {"file": str(sandbox.data / "s3-secret-key")},
        "buckets": [BUCKET],
        "addressing": "path",
        "exclusive": True,
    }


def _toml(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml, value)) + "]"
    return json.dumps(value)  # a JSON scalar is a TOML one, too


@dataclass(frozen=True)
class Planned:
    """A stored plan as the tests look at it."""

    summary: PlanSummary
    rows: list[dict[str, Any]]

    @property
    def ids(self) -> set[int]:
        return {row["ledger_id"] for row in self.rows}


class Pipeline:
    """One operator with a settings file and a lake of his own. His runs work in this process, or ``on_spark``."""

    def __init__(self, file: Path, *, on_spark: bool = False) -> None:
        self.file = file
        self._on_spark = on_spark

    @property
    def where(self) -> Where:
        return self.spark_cluster if self._on_spark else local_cluster(str(self.file))

    @property
    def spark_cluster(self) -> Where:
        """Starts Spark; whoever asks for it needs the fixture ``spark``."""
        return LifecycleResource(config_file=str(self.file)).cluster()

    @property
    def lake(self) -> str:
        return load_settings(str(self.file)).lake.path

    # ------------------------------------------------------------------------------------------------------- the steps

    def scan(self) -> Epoch:
        """One epoch, from listing BookKeeper to findings."""
        return judged_scan.scan(self.where, uuid4().hex)

    def plan(self, epoch: Epoch) -> Planned:
        summary, rows = deletion_run.make_plan(self.where, epoch)
        return Planned(summary, rows.to_pylist())

    def confirmed_plan(self) -> Planned:
        """Two scans and a plan."""
        self.scan()
        return self.plan(self.scan())

    def order(self, planned: Planned, caps: Lowered = NO_CAPS, limit: int = 0) -> Order:
        return Order(planned.summary.plan_id, planned.summary.digest, caps, limit)

    def apply(self, order: Order, run_id: str = "apply") -> Applied:
        return deletion_run.apply_plan(self.where, run_id, order, lambda _: None)

    def delete_pending(self, run_id: str = "") -> list[OutcomeCount]:
        """Work the queue off with the newest scan as it is; each run has an id of its own, as Dagster's have."""
        return deletion_run.delete_pending(self.where, run_id or f"delete-{uuid4().hex[:8]}")

    def scan_and_delete(self, run_id: str = "") -> list[OutcomeCount]:
        """What job ``delete_pending`` does: a scan younger than every intent, then the queue."""
        self.scan()
        return self.delete_pending(run_id)

    def delete_until(self, done: Callable[[], bool], seconds: float = 300) -> list[list[OutcomeCount]]:
        """:meth:`scan_and_delete`, at least once, until ``done`` or that much time is up: what each run found.

        One run need not do: what a broker may be loading is retried, and waits for a later scan. So does everything
        after a scan that is not covered, as one is amid the registration of a broker that comes back.
        """
        end = time.monotonic() + seconds
        found: list[list[OutcomeCount]] = []
        while True:
            try:
                found.append(self.scan_and_delete())
            except RefusedBy as refused:
                if refused.code != RefusalCode.SCAN_NOT_COVERED or time.monotonic() > end:
                    raise
            if done() or time.monotonic() > end:
                return found
            time.sleep(2)

    # ----------------------------------------------------------------------------------------------------- the outcome

    def findings(self, epoch: Epoch) -> dict[int, dict[str, Any]]:
        rows = self.where.lake.read_epoch_table(epoch.epoch_id, "findings").to_pylist()
        return {row["ledger_id"]: row for row in rows}

    def journal(self, ledger_id: int | None = None) -> list[dict[str, Any]]:
        """Rows of the deletion phase, oldest first."""
        rows = journal_rows(FileJournal(self.lake), ledger_id=ledger_id).to_pylist()
        return [row for row in rows if row["phase"] == "delete"]

    def archived(self, ledger_id: int) -> list[dict[str, Any]]:
        return archived_nodes(FileJournal(self.lake), ledger_id=ledger_id).to_pylist()


# ----------------------------------------------------------------------------------------------------------- the queue


@contextmanager
def deletion_queue(sandbox: Cluster) -> Iterator[PulsarDeletionQueue]:
    settings = PulsarSettings(admin_url=sandbox.admin_url, service_url=sandbox.service_url)
    with (
        closing(HttpBrokerAdmin(settings)) as admin,
        subscriptions_of(sandbox) as look,
        closing(PulsarDeletionQueue(settings, admin, Subscribed(admin, 4, look))) as queue,
    ):
        yield queue


@contextmanager
def subscriptions_of(sandbox: Cluster) -> Iterator[Callable[[], Subscriptions]]:
    """Who has the queue's subscription, by the z-nodes."""
    with closing(metadata_store(ZooKeeperSettings(hosts=sandbox.zookeeper))) as store:
        yield lambda: stored_subscriptions(store, store)


def send(sandbox: Cluster, infos: Sequence[PendingDeleteLedgerInfo]) -> None:
    """Send messages that no plan asked for."""
    with deletion_queue(sandbox) as queue:
        errors = [sent.error for sent in queue.send(infos, 0) if sent.error is not None]
    assert not errors


def waiting(sandbox: Cluster) -> int:
    """Messages that nobody has acknowledged."""
    with deletion_queue(sandbox) as queue:
        return queue.backlog()


def emptied(sandbox: Cluster) -> bool:
    """Whether all messages are acknowledged; the last acknowledgements arrive a moment after a run's end."""
    with deletion_queue(sandbox) as queue:
        with suppress(SandboxError):
            wait_for("the acknowledgements to arrive", lambda: queue.backlog() == 0, 30)
        return queue.backlog() == 0


def drain(sandbox: Cluster) -> None:
    """Skip whatever other tests left in the deletion queue, delayed retries and dead letters included."""
    with deletion_queue(sandbox) as queue:
        queue.ensure()
    with closing(HttpBrokerAdmin(PulsarSettings(admin_url=sandbox.admin_url, service_url=sandbox.service_url))) as http:
        parts = [part for topic in (DELETION_TOPIC, RETRY_TOPIC, DLQ_TOPIC) for part in topics_of(http, topic)]
    with Admin(sandbox.admin_url) as admin:
        for part in parts:
            admin.topic("POST", str(part), f"/subscription/{SUBSCRIPTION}/skip_all")


# ----------------------------------------------------------------------------------------------------- the cluster


def new_namespace(sandbox: Cluster, name: str, bundles: int = 0) -> str:
    """A namespace that no other test has: ``it/NAME-xxxxxx``; ``bundles``: as brokers are configured if 0."""
    namespace = f"it/{name}-{uuid4().hex[:6]}"
    with Admin(sandbox.admin_url) as admin:
        admin.create_namespace(namespace, bundles)
    return namespace


def existing(sandbox: Cluster, ids: Iterable[int]) -> set[int]:
    """Those ledgers that have a z-node."""
    with sandbox.metadata() as zk:
        return {ledger for ledger in ids if zk.exists(znodes.ledger_znode(ledger))}


def listed(sandbox: Cluster, topic: str) -> list[int]:
    """The ledgers on the topic's list, oldest first."""
    with sandbox.metadata() as zk:
        return sorted(znodes.listed_ledgers(zk, topic))


def read_all(client: pulsar.Client, topic: str, count: int) -> list[bytes]:
    """What a reader gets of a topic, which has so many messages and no more."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = [reader.read_next(60_000).data() for _ in range(count)]
    assert not reader.has_message_available()
    reader.close()
    return found


def wait_until_unloaded_counts(since: float) -> None:
    """Until a topic that was left alone since ``since`` (``time.time()``) can count as unloaded."""
    time.sleep(max(0.0, since + 3 * STATS_INTERVAL + 1 - time.time()))


def wait_listed(sandbox: Cluster, topic: str) -> None:
    """Until a broker lists a topic that is loaded."""
    with _admin(sandbox) as admin:
        wait_for(f"a broker to list {topic}", lambda: topic in admin.loaded_topics())


def wait_unlisted(sandbox: Cluster, topics: Iterable[str]) -> None:
    """Until no broker lists any of the topics."""
    gone = set(topics)
    with _admin(sandbox) as admin:
        wait_for("the brokers to forget the topics", lambda: not gone & set(admin.loaded_topics()))


@contextmanager
def _admin(sandbox: Cluster) -> Iterator[HttpBrokerAdmin]:
    with closing(
        HttpBrokerAdmin(PulsarSettings(admin_url=sandbox.admin_url, service_url=sandbox.service_url))
    ) as admin:
        yield admin


def at_rest(zk: KazooClient, roots: Sequence[str]) -> dict[str, tuple[int, int]]:
    """:func:`transactions` of an idle cluster, once the brokers have written what they had to."""
    seen = [transactions(zk, roots)]

    def still() -> bool:
        time.sleep(1)  # as often as brokers write cursors
        seen.append(transactions(zk, roots))
        return len(seen) > 3 and all(one == seen[-1] for one in seen[-4:])

    wait_for("the brokers to rest", still)
    return seen[-1]


def transactions(zk: KazooClient, roots: Iterable[str]) -> dict[str, tuple[int, int]]:
    """(mzxid, pzxid) of every z-node below ``roots``."""
    found: dict[str, tuple[int, int]] = {}
    todo = list(roots)
    while todo:
        path = todo.pop()
        stat = zk.exists(path)
        if stat is not None:
            found[path] = (stat.mzxid, stat.pzxid)
            todo += [f"{path}/{name}" for name in zk.get_children(path)]
    return found
