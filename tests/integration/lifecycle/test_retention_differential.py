"""Our retention rule beside a real broker: hundreds of random topics, judged unloaded, then loaded and trimmed by it.

Its two brokers are killed before anything is judged. So no topic is loaded, and some are as a dead broker leaves them:
the last ledger open, positions only in cursor ledgers. Closing times and sizes are rewritten then, in the topics'
z-nodes: nobody waits for hours or writes gigabytes. What brokers expire by a TTL the rule of loads says, which comes
last.

The brokers do by themselves what production's do, and after their death trim every few seconds. Their namespaces keep
inactive topics, and have as many bundles as brokers split one into at most.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pulsar
import pyarrow as pa
import pytest

from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.io.bookkeeper.reader import BookieReader
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.lifecycle.load.one_topic import load_row
from pulsar_lifecycle.lifecycle.retention import judge
from pulsar_lifecycle.lifecycle.retention_inputs import persisted_positions, retention_topics
from pulsar_lifecycle.lifecycle.verdicts import GOING, RetentionVerdict
from pulsar_lifecycle.metastore.bookkeeper_ledgers import ledger_units, read_ledgers
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.metastore.namespaces import namespace_policies
from pulsar_lifecycle.metastore.topics import read_cursors, read_managed_ledgers, topic_units
from pulsar_lifecycle.model import Namespace, Topic
from pulsar_lifecycle.runs import cluster as runs_cluster
from pulsar_lifecycle.settings import PulsarSettings, load_settings
from pulsar_lifecycle.topics.policies import Layers
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.topics.retention_policy import policies_in_force
from pulsar_lifecycle.topics.snapshot import ShadowSources
from pulsar_lifecycle.topics.system_topics.change_events import read_namespace
from pulsar_lifecycle.topics.system_topics.system_topic import LedgerSource
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.findings import Context
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics, znodes
from sandbox.servers.toolchain import SandboxError
from tests.integration.lifecycle.retention import keep_inactive_topics
from tests.integration.pipeline import settings_file
from tests.integration.tiered.broker_offloads import begin_offload, offload_status

pytestmark = pytest.mark.integration

BROKER = {
    "managedLedgerMaxEntriesPerLedger": "4",
    "defaultRetentionTimeInMinutes": "90",
    "defaultRetentionSizeInMB": "3",
}
SELDOM = {"retentionCheckIntervalInSeconds": "36000"}
"""Until they are killed: else what a topic's own policy does not retain goes before anything is judged."""
LOOKS = 11.0
"""Seconds in which they look twice for what to trim."""
BUNDLES = 128
NAMESPACES = {
    "time": {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1},
    "size": {"retentionTimeInMinutes": -1, "retentionSizeInMB": 2},
    "both": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 2},
    "nothing": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
    "forever": {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1},
    "no-time": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 2},
    "no-size": {"retentionTimeInMinutes": 60, "retentionSizeInMB": 0},
    "partial": {"retentionSizeInMB": 2},
    "broker": None,
    "ttl": {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
}
"""Their policies as their z-nodes say them; the admin API refuses some."""
TTL = {"message_ttl_in_seconds": 1}
"""Of the namespace ``ttl``; all messages are older. Brokers look for these within a minute. The rule of retention moves
no cursor, that of loads does."""
LIMITS = [(-1, -1), (0, 0), (60, -1), (120, -1), (-1, 1), (-1, 3), (60, 1), (120, 3)]
"""Minutes and MiB of topics' own policies."""
EACH = 36
"""Topics of a namespace."""
MINUTE, MB = 60_000, 1 << 20
AGES = [n for n in range(5, 200, 5) if n not in (60, 90, 120)]
"""Minutes since ledgers were closed; none so near to a retention time that the test's own time matters."""
FOUND = {
    *(RetentionVerdict.EXPIRED_BY_TIME, RetentionVerdict.EXPIRED_BY_SIZE, RetentionVerdict.NO_RETENTION),
    *(RetentionVerdict.LAST_LEDGER, RetentionVerdict.CURSOR, RetentionVerdict.NOT_PREFIX, Protection.TERMINATED),
    *(RetentionVerdict.WITHIN_TIME, RetentionVerdict.WITHIN_SIZE, RetentionVerdict.FOREVER),
}
AT_ONCE, SEED = 6, 4007


class End(StrEnum):
    """How a topic is found."""

    KILLED = "killed"
    """As its broker's death left it: the last ledger is open."""
    UNLOADED = "unloaded"
    RELOADED = "reloaded"
    """Loaded and unloaded once more: its last ledger has no entries."""
    TERMINATED = "terminated"


class NamespaceLocation(StrEnum):
    """Where a subscription stands."""

    START = "start"
    ANYWHERE = "anywhere"
    LEDGER_END = "ledger_end"
    END = "end"
    HOLE = "hole"
    """All but the first message is acknowledged."""


class Scope(StrEnum):
    """Which policies a topic has of its own."""

    LOCAL = "local"
    GLOBAL = "global"
    BOTH = "both"
    """The global one retains everything, and does not count."""
    DELETED = "deleted"


@dataclass
class Made:
    """A topic: its messages, before which of them it is unloaded, and where its subscriptions stand."""

    name: str
    messages: int
    unloads: list[int]
    places: list[NamespaceLocation]
    end: End
    offload: bool
    policy: tuple[Scope, int, int] | None
    written: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """Ledger and entry of each message."""

    @property
    def parent(self) -> str:
        return str(Topic.parse(self.name).partitioned_parent)


def drawn(rng: random.Random) -> list[Made]:
    ends = [End.KILLED, End.UNLOADED, End.UNLOADED, End.RELOADED]
    places = [
        NamespaceLocation.START,
        NamespaceLocation.ANYWHERE,
        NamespaceLocation.LEDGER_END,
        NamespaceLocation.LEDGER_END,
        NamespaceLocation.END,
        NamespaceLocation.END,
        NamespaceLocation.HOLE,
    ]
    made: list[Made] = []
    for namespace in NAMESPACES:
        for number in range(EACH):
            messages = rng.choice([0, 1, 3, 4, 5, 8, 9, 12, 13, 17])
            own = (rng.choice(list(Scope)), *rng.choice(LIMITS))
            made.append(
                Made(
                    f"persistent://retention/{namespace}/t{number}" + ("" if number % 12 else "-partition-1"),
                    messages,
                    [n for n in range(1, messages) if rng.random() < 0.12],
                    rng.choices(places, k=rng.choice([0, 0, 1, 1, 1, 2, 3])),
                    End.TERMINATED if number == 7 else rng.choice(ends),
                    offload=messages > 5 and rng.random() < 0.12,
                    policy=own if rng.random() < 0.3 else None,
                )
            )
    return made


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    found = Cluster(tmp_path_factory.mktemp("retention") / "sandbox")
    try:
        found.start(brokers=2, offloader=True, production=True, broker_settings={**BROKER, **SELDOM})
        yield found
    finally:
        found.stop(purge=True)


def in_parallel(act: Callable[[Made], object], made: Sequence[Made]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(act, made):
            pass


def fill(cluster: Cluster, rng: random.Random, made: Sequence[Made]) -> None:
    """Messages in small ledgers, and subscriptions here and there."""
    choices = {one.name: random.Random(rng.random()) for one in made}
    with Admin(cluster.admin_url) as admin, pulsar_client(cluster.service_url) as client:
        for namespace in NAMESPACES:
            admin.create_namespace(f"retention/{namespace}", BUNDLES)
            keep_inactive_topics(admin, f"retention/{namespace}")
        for one in made:
            if one.parent != one.name:
                admin.topic("PUT", one.parent, "/partitions", 2)

        def act(one: Made) -> None:
            if not one.messages:
                client.create_producer(one.name).close()
                return
            ledgers: list[int] = []
            for begin, end in pairwise([0, *one.unloads, one.messages]):
                if begin:
                    admin.unload(one.name)
                ledgers += topics.publish(client, one.name, topics.payloads(end - begin))
            one.written = [(ledger, ledgers[:n].count(ledger)) for n, ledger in enumerate(ledgers)]
            for number, place in enumerate(one.places):
                subscribe(client, one, f"sub-{number}", place, choices[one.name])

        in_parallel(act, made)


def subscribe(client: pulsar.Client, one: Made, name: str, place: NamespaceLocation, rng: random.Random) -> None:
    kind = pulsar.ConsumerType.Shared if place is NamespaceLocation.HOLE else pulsar.ConsumerType.Exclusive
    consumer = client.subscribe(one.name, name, kind, initial_position=pulsar.InitialPosition.Earliest)
    targets = {
        NamespaceLocation.START: [],
        NamespaceLocation.ANYWHERE: one.written,
        NamespaceLocation.LEDGER_END: [at for at, after in pairwise(one.written) if at[0] != after[0]],
        NamespaceLocation.END: one.written[-1:],
        NamespaceLocation.HOLE: one.written[1:],
    }[place]
    if place is NamespaceLocation.HOLE:
        for at in targets:
            consumer.acknowledge(pulsar.MessageId(-1, *at, -1))
    elif targets:
        consumer.acknowledge_cumulative(pulsar.MessageId(-1, *rng.choice(targets), -1))
    consumer.close()


def set_policies(cluster: Cluster, made: Sequence[Made]) -> None:
    with Admin(cluster.admin_url) as admin:
        for one in made:
            if one.policy is None:
                continue
            scope, minutes, mb = one.policy
            if scope is not Scope.GLOBAL:
                admin.topic("POST", one.parent, "/retention", retention(minutes, mb))
            if scope in (Scope.GLOBAL, Scope.BOTH):
                shared = retention(-1, -1) if scope is Scope.BOTH else retention(minutes, mb)
                admin.topic("POST", one.parent, "/retention?isGlobal=true", shared)
            if scope is Scope.DELETED:
                admin.topic("DELETE", one.parent, "/retention")


def retention(minutes: int, mb: int) -> dict[str, int]:
    return {"retentionTimeInMinutes": minutes, "retentionSizeInMB": mb}


def finish(cluster: Cluster, made: Sequence[Made]) -> None:
    """Offload some, leave each as it is to be found, then kill the brokers."""
    offloaded = [one for one in made if one.offload]
    for one in offloaded:
        begin_offload(cluster, one.name, one.written[-1][0])
    for one in offloaded:
        wait_for(f"the offload of {one.name}", lambda one=one: offload_status(cluster, one.name) != "RUNNING")
    with Admin(cluster.admin_url) as admin:

        def act(one: Made) -> None:
            if one.end is End.TERMINATED:
                admin.topic("POST", one.name, "/terminate")
            if one.end is not End.KILLED:
                admin.unload(one.name)
            if one.end is End.RELOADED:
                admin.topic("GET", one.name, "/internalStats")
                admin.unload(one.name)

        in_parallel(act, made)
    time.sleep(3)  # positions of the others are written
    for broker in cluster.state.of_kind("broker"):
        cluster.kill(broker.name)


def rewrite(cluster: Cluster, rng: random.Random, made: Sequence[Made]) -> None:
    """Give all but the last ledgers a random age and size, and each namespace its policy."""
    now = int(time.time() * 1000)
    with cluster.metadata() as zk:
        for one in made:
            path = znodes.topic_znode(one.name)
            data, stat = zk.get(path)
            info = managed_ledger.decode(data)
            ages = [rng.choice(AGES) for _ in info.ledgers]
            if rng.random() < 0.7:
                ages.sort(reverse=True)
            changed = [
                replace(item, timestamp=now - age * MINUTE, size=rng.randrange(1, 6) * MB // 2)
                for item, age in zip(info.ledgers[:-1], ages, strict=False)
            ]
            rewritten = managed_ledger.encode(replace(info, ledgers=(*changed, *info.ledgers[-1:])))
            zk.set(path, rewritten, version=stat.version)
        for namespace, policy in NAMESPACES.items():
            path = znodes.namespace_znode(f"persistent://retention/{namespace}/any")
            document = json.loads(zk.get(path)[0])
            zk.set(
                path,
                json.dumps({**document, "retention_policies": policy, **(TTL if namespace == "ttl" else {})}).encode(),
            )


def judged(
    cluster: Cluster, tmp_path: Path, broker: Mapping[str, str], expiring: Sequence[Made]
) -> tuple[list[dict[str, Any]], dict[str, Mapping[str, Any] | None]]:
    """Our verdicts, and what the rule of loads says of some; by what the product itself reads, as no broker runs."""
    settings = load_settings(str(settings_file(cluster, tmp_path, {"load": {"namespaces": ["retention/ttl"]}})))
    where = runs_cluster.Cluster(settings, Connections)
    context = Context(now=0, grace=0, namespaces=frozenset(f"retention/{name}" for name in NAMESPACES))
    with KazooStore(settings.zookeeper, read_only=True) as store, BookieReader(store, settings.bookkeeper) as reader:
        units = topic_units(store, lambda namespace: namespace.startswith("retention/"))
        listed = pa.Table.from_batches(read_managed_ledgers(store, units), tables.MANAGED_LEDGERS)
        cursors = pa.Table.from_batches(read_cursors(store, units), tables.MANAGED_CURSORS)
        ledgers = pa.Table.from_batches(read_ledgers(store, ledger_units(store)), tables.BOOKKEEPER_LEDGERS)
        documents = {n: d for n, d in namespace_policies(store).items() if n.startswith("retention/")}
        own = {n: read_namespace(LedgerSource(store, reader, lambda: None), Namespace.parse(n)) for n in documents}
        assert np.sum(np.asarray(cursors.column("cursors_ledger_id")) >= 0) >= 20
        positions = persisted_positions(store, reader, cursors, settings.bookkeeper.ledgers_root)
        layers, nobody = Layers(broker, documents, own), Brokers({}, 0)
        rest = layers, context, nobody, ShadowSources(), int(time.time() * 1000)
        loads = {one.name: load_row(store, reader, where, Topic.parse(one.name), *rest) for one in expiring}
    assert {name: one.unknown for name, one in own.items()} == dict.fromkeys(own)
    inputs = retention_topics(listed, positions, ledgers, policies_in_force(layers), context)
    return judge(inputs, int(time.time() * 1000)).to_pylist(), loads


def expire(cluster: Cluster, made: Mapping[str, Made], takes: Callable[[str], bool]) -> None:
    """Have the broker expire all messages of these topics, which it has loaded, and trim them until it ``takes`` all.

    A trim that meets another one of the broker's own may be forgotten.
    """
    asked = PulsarSettings(admin_url=cluster.admin_url, service_url=cluster.service_url)
    with closing(HttpBrokerAdmin(asked)) as brokers, Admin(cluster.admin_url) as admin:

        def expired(one: Made) -> bool:
            found = admin.topic("GET", one.name, "/stats?getPreciseBacklog=true")["subscriptions"]
            return not any(said["msgBacklog"] for said in found.values())

        def trimmed(one: Made) -> bool:
            brokers.trim(Topic.parse(one.name))
            return takes(one.name)

        def act(one: Made) -> None:
            for number in range(len(one.places) if one.messages else 0):
                brokers.expire_messages(Topic.parse(one.name), f"sub-{number}", 1)
            wait_for(f"the messages of {one.name} to expire", lambda: expired(one))
            with suppress(SandboxError):
                wait_for(f"{one.name} to be trimmed", lambda: trimmed(one), 20)

        in_parallel(act, list(made.values()))


def infos(cluster: Cluster, made: Sequence[Made]) -> dict[str, ManagedLedgerInfo]:
    with cluster.metadata() as zk:
        return {one.name: managed_ledger.decode(zk.get(znodes.topic_znode(one.name))[0]) for one in made}


def ids(info: ManagedLedgerInfo) -> list[int]:
    return sorted(item.ledger_id for item in info.ledgers)


def compare_loads(
    cluster: Cluster,
    made: Mapping[str, Made],
    verdicts: Mapping[str, Sequence[Mapping[str, Any]]],
    loads: Mapping[str, Mapping[str, Any] | None],
) -> None:
    """A load takes what its rule says; of a last ledger that nobody closed it says that it may go: all has expired."""
    known = {name: [row["ledger_id"] for row in verdicts[name]] for name in made}
    by_retention = {name: [row["ledger_id"] for row in verdicts[name] if row["goes_when_loaded"]] for name in made}
    goes, may_go = (
        {name: row[key] if (row := loads[name]) else by_retention[name] for name in made}
        for key in ("trims", "may_trim")
    )

    def lost(name: str) -> list[int]:
        (now,) = infos(cluster, [made[name]]).values()
        return sorted(set(known[name]).difference(ids(now)))

    expire(cluster, made, lambda name: lost(name) == may_go[name])
    assert {name: (made[name], lost(name)) for name in made} == {name: (made[name], may_go[name]) for name in made}
    open_ = {name for name in made if goes[name] != may_go[name]}
    assert {made[name].end for name in open_} == {End.KILLED}
    assert {name: may_go[name] for name in open_} == {name: [*goes[name], known[name][-1]] for name in open_}
    assert sum(len(goes[name]) > len(by_retention[name]) for name in made) >= 3


def test_what_we_plan_is_what_a_broker_trims(cluster: Cluster, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    made = drawn(rng)
    fill(cluster, rng, made)
    set_policies(cluster, made)
    asked = PulsarSettings(admin_url=cluster.admin_url, service_url=cluster.service_url)
    with closing(HttpBrokerAdmin(asked)) as brokers:
        configuration, _ = brokers.configurations().values()
    finish(cluster, made)
    rewrite(cluster, rng, made)
    before = infos(cluster, made)
    verdicts: dict[str, list[dict[str, Any]]] = {one.name: [] for one in made}
    expiring = [one for one in made if one.name.startswith("persistent://retention/ttl/")]
    found, loads = judged(cluster, tmp_path, configuration, expiring)
    for row in found:
        verdicts.setdefault(str(Topic.from_managed_ledger(row["managed_ledger"])), []).append(row)
    for broker in cluster.state.of_kind("broker"):
        cluster.restart(broker.name, BROKER)
    with Admin(cluster.admin_url) as admin:
        in_parallel(lambda one: admin.topic("POST", one.name, "/trim"), made)
    time.sleep(LOOKS)
    after = infos(cluster, made)
    compare_loads(cluster, {one.name: one for one in expiring if one.end is not End.TERMINATED}, verdicts, loads)

    trimmed = offloaded = 0
    for one in made:
        ours, listed = verdicts[one.name], ids(before[one.name])
        lost = set(listed).difference(ids(after[one.name]))
        assert [row["ledger_id"] for row in ours] == listed
        if one.end is End.TERMINATED:
            assert {row["verdict"] for row in ours} == {Protection.TERMINATED}
            continue
        if ours[-1]["size"] is None:  # open: nothing is said of it
            assert one.end is End.KILLED
            lost.discard(listed[-1])
        predicted = [row["ledger_id"] for row in ours if row["goes_when_loaded"]]
        planned = [row["ledger_id"] for row in ours if row["verdict"] in GOING]
        if one in expiring:  # some of it may have expired by now: `compare_loads` has it
            continue
        assert (one, ours, predicted) == (one, ours, sorted(lost))
        assert (one, ours, planned) == (one, ours, sorted(lost - {listed[-1]}))
        trimmed += len(lost)
        offloaded += sum(item.ledger_id in lost for item in before[one.name].ledgers if item.offload)
    assert len(made) >= 300
    assert trimmed >= 200
    assert offloaded >= 5
    codes = {row["verdict"] for one in made for row in verdicts[one.name]}
    assert codes == FOUND
