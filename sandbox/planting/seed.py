"""A realistic cluster: live topics of every kind, and beside them every kind of leak, planted once.

Belongs here: which topics and leaks a seeded sandbox has. ``planted.json`` and ``live.json`` in the data folder say
what was made; the demo and the tests read them, the product never does. Not here: how one kind is planted
(:mod:`sandbox.planting.plant`), how topics are read back (:mod:`sandbox.planting.verify`).
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pulsar
from kazoo.exceptions import NoNodeError
from pulsar.schema import Integer, JsonSchema, Record, String

from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting import plant, topics, znodes
from sandbox.planting.plant import Planted
from sandbox.servers.toolchain import Progress, SandboxError, find_tools

NAMESPACES = ("shop/orders", "shop/carts", "iot/devices", "iot/archive", "bank/ledger")
LEAKS = "shop/orders"
"""The namespace of the leaks' topics: one that lives on, so that a missing topic is gone and not foreign."""
_YOUNG_TOPIC = f"persistent://{LEAKS}/leaked-young"


@dataclass
class Live:
    """What one live topic holds, oldest first. ``due`` in ms: when the messages of the subscription are delivered."""

    topic: str
    messages: int
    sha256: str
    schemas: int = 0
    compacted: dict[str, str] | None = None
    """Key -> digest of its last payload, for a compacted topic."""
    delayed: dict[str, list[int]] = field(default_factory=dict)
    """Subscription -> delivery times in ms of the messages it has still to receive."""


@dataclass
class Seeded:
    """What a seeded sandbox was given."""

    planted: list[Planted]
    live: list[Live]


def planted_file(cluster: Cluster) -> Path:
    """Where it is written which ledgers were planted."""
    return cluster.data / "planted.json"


def live_file(cluster: Cluster) -> Path:
    """Where it is written what the live topics hold."""
    return cluster.data / "live.json"


def read_seeded(cluster: Cluster) -> Seeded | None:
    """What an earlier :func:`seed` wrote down; None if this sandbox was not seeded."""
    try:
        planted = json.loads(planted_file(cluster).read_text())["planted"]
        live = json.loads(live_file(cluster).read_text())["topics"]
    except FileNotFoundError:
        return None
    return Seeded([Planted(**entry) for entry in planted], [Live(**entry) for entry in live])


def seed(cluster: Cluster, progress: Progress = print) -> Seeded:
    """Seed a sandbox once; a second call only makes the "too young" ledger young again.

    Raises SandboxError when an earlier call was interrupted: leaks are not found again once they are made.
    """
    seeded = read_seeded(cluster)
    if seeded is not None:
        return _rejuvenate(cluster, seeded)
    with Admin(cluster.admin_url) as admin, pulsar_client(cluster.service_url) as client:
        if "shop" in admin.call("GET", "/v2/tenants"):
            raise SandboxError(
                "an earlier seed was interrupted: `pulsar-lifecycle sandbox stop --purge`, then start anew"
            )
        progress("seeding live topics")
        live = _live_topics(cluster, admin, client, progress)
    progress("planting leaks")
    planted: list[Planted] = []
    for name, leak in _leaks(cluster).items():
        planted += leak(f"persistent://{LEAKS}/leaked-{name}")
    left, contents = plant.orphan_data_of_live_topic(cluster, f"persistent://{LEAKS}/half-listed")
    live.append(_holding(f"persistent://{LEAKS}/half-listed", contents))
    planted += left
    planted += plant.young(cluster, _YOUNG_TOPIC)  # last, so that it is as young as can be
    seeded = Seeded(planted, live)
    _write(live_file(cluster), {"topics": [asdict(topic) for topic in live]})
    _write(planted_file(cluster), {"planted": [asdict(entry) for entry in planted]})
    return seeded


def _leaks(cluster: Cluster) -> dict[str, Callable[[str], list[Planted]]]:
    return {
        "data": lambda topic: plant.orphan_data(cluster, topic),
        "cursor": lambda topic: plant.orphan_cursor(cluster, topic),
        "schema": lambda topic: plant.orphan_schema(cluster, topic),
        "compacted": lambda topic: plant.orphan_compacted(cluster, topic),
        "bucket": lambda topic: plant.orphan_bucket(cluster, topic),
        "offloaded": lambda topic: plant.offload_leftover(cluster, topic),
        "dangling": lambda topic: plant.dangling(cluster, topic),
        "foreign": lambda _: plant.foreign(cluster),
        "open": lambda topic: plant.open_ledger(cluster, topic),
        "empty": lambda _: plant.empty(cluster),
    }


def _rejuvenate(cluster: Cluster, seeded: Seeded) -> Seeded:
    """Replace the young ledger: by now it may be old enough to be an orphan that nobody planted as one."""
    old = [entry for entry in seeded.planted if entry.kind == "young"]
    with cluster.metadata() as zk:
        for entry in old:
            try:
                zk.delete(znodes.ledger_znode(entry.ledger_id))
            except NoNodeError:
                continue
    kept = [entry for entry in seeded.planted if entry not in old]
    renewed = Seeded([*kept, *plant.young(cluster, _YOUNG_TOPIC)], seeded.live)
    _write(planted_file(cluster), {"planted": [asdict(entry) for entry in renewed.planted]})
    return renewed


# ------------------------------------------------------------------------------------------------------ live topics


def _live_topics(cluster: Cluster, admin: Admin, client: pulsar.Client, progress: Progress) -> list[Live]:
    for namespace in NAMESPACES:
        admin.create_namespace(namespace)
    admin.call("POST", "/v2/namespaces/bank/ledger/deduplication", True)
    live = [
        *_partitioned(cluster, admin, client, "persistent://shop/orders/placed"),
        _compacted(admin, client, "persistent://shop/carts/state"),
        _with_schemas(client, "persistent://iot/devices/readings"),
        _delayed(cluster, client, "persistent://iot/devices/alarms"),
        *_shadowed(admin, client, "persistent://bank/ledger/entries", "persistent://bank/ledger/entries-shadow"),
        *transactional(
            cluster, client, progress, "persistent://bank/ledger/incoming", "persistent://bank/ledger/booked"
        ),
        *(_small(client, f"persistent://iot/devices/sensor-{number}") for number in range(20)),
    ]
    names = ("2024", "2025", "no one reads me", "50% *off*~+ü")
    archive = [_cold(cluster, admin, client, f"persistent://iot/archive/{name}") for name in names]
    admin.topic("PUT", "persistent://shop/orders/planned", "/partitions", 2)  # never loaded: z-nodes of 0 bytes
    return live + archive


def _partitioned(cluster: Cluster, admin: Admin, client: pulsar.Client, topic: str) -> list[Live]:
    """Three partitions, three subscriptions each: one with holes, one that is done, one that nobody ever read."""
    admin.topic("PUT", topic, "/partitions", 3)
    admin.topic("POST", topic, "/messageTTL?messageTTL=86400")  # a topic policy: an event in __change_events
    found: list[Live] = []
    for number in range(3):
        partition = f"{topic}-partition-{number}"
        contents = topics.payloads(120, f"order {number}")
        admin.topic("PUT", partition, "/subscription/audit", "earliest")
        topics.acknowledge_with_holes(cluster, client, partition, "billing", contents)
        admin.topic("PUT", partition, "/subscription/idle", "earliest")
        admin.topic("POST", partition, "/subscription/audit/skip_all")
        found.append(_holding(partition, contents))
    return found


def _compacted(admin: Admin, client: pulsar.Client, topic: str) -> Live:
    """A topic of 130 updates to ten keys, compacted and kept loaded: its pointer is in the cursor ledger only."""
    contents = topics.payloads(130, "cart")
    keys = [f"cart-{number % 10}" for number in range(len(contents))]
    topics.publish(client, topic, contents, keys=keys)
    admin.compact(topic)
    holding = _holding(topic, contents)
    holding.compacted = {key: topics.digest([payload]) for key, payload in zip(keys, contents, strict=True)}
    return holding


def _with_schemas(client: pulsar.Client, topic: str) -> Live:
    """Three versions of a JSON schema and messages of each."""
    contents: list[bytes] = []
    values = {"device": "device-1", "celsius": 21, "note": "calibrated"}
    for version in (1, 2, 3):
        known = dict(list(values.items())[:version])
        fields = {"device": String(), "celsius": _optional(Integer), "note": _optional(String)}
        record: Any = type(Record)
        reading = record("Reading", (Record,), {name: fields[name] for name in known})
        readings = [reading(**known) for _ in range(40)]
        topics.publish(client, topic, readings, schema=JsonSchema(reading))
        contents += [JsonSchema(reading).encode(each) for each in readings]
    holding = _holding(topic, contents)
    holding.schemas = 3
    return holding


def _optional(kind: type[Any]) -> Any:
    return kind(default=None, required_default=True)


def _delayed(cluster: Cluster, client: pulsar.Client, topic: str) -> Live:
    """Ten messages due in 20 seconds and 160 due in an hour and more, in three sealed buckets."""
    now = int(time.time() * 1000)
    due = [now + 20_000 + number for number in range(10)]
    due += [now + plant.HOUR_MS + number * 1_000 for number in range(160)]
    contents = topics.payloads(len(due), "alarm")
    topics.delayed_backlog(cluster, client, topic, "on-call", contents, due)
    holding = _holding(topic, contents)
    holding.delayed = {"on-call": due}
    return holding


def _shadowed(admin: Admin, client: pulsar.Client, source: str, shadow: str) -> list[Live]:
    """A topic of two full ledgers and its shadow, whose own z-node lists the same ledgers.

    A shadow shows what its source had in closed ledgers, so the last ledger must be full.
    """
    contents = topics.payloads(100, "entry")
    topics.publish(client, source, contents)
    admin.topic("PUT", shadow, "", {"PULSAR.SHADOW_SOURCE": source})
    admin.topic("PUT", source, "/shadowTopics", [shadow])
    return [_holding(source, contents), _holding(shadow, contents)]


def transactional(
    cluster: Cluster, client: pulsar.Client, progress: Progress, source: str, destination: str
) -> list[Live]:
    """Messages moved in transactions, some aborted: transaction log, pending acknowledgements, snapshots."""
    contents = topics.payloads(30, "transfer")
    topics.publish(client, source, contents)
    tools = find_tools(progress)
    modules = subprocess.run([tools.java, "--list-modules"], capture_output=True, text=True, check=True).stdout
    if "jdk.compiler" not in modules:
        progress("no transactions: they need a JDK, and this java is a JRE")
        return [_holding(source, contents)]
    program = Path(__file__).parent / "Transactions.java"
    command = [tools.java, "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", tools.pulsar]
    arguments = [str(program), cluster.service_url, source, "mover", destination, "9"]
    done = subprocess.run([*command, *arguments], capture_output=True, check=False)
    if done.returncode:
        raise SandboxError(f"the transactions failed: {done.stderr.decode(errors='replace').strip()[-300:]}")
    mark = b"committed: "
    committed = [line.removeprefix(mark) for line in done.stdout.splitlines() if line.startswith(mark)]
    return [_holding(source, contents), _holding(destination, committed)]


def _small(client: pulsar.Client, topic: str) -> Live:
    contents = topics.payloads(5)
    topics.publish(client, topic, contents)
    return _holding(topic, contents)


def _cold(cluster: Cluster, admin: Admin, client: pulsar.Client, topic: str) -> Live:
    """Three ledgers and a cursor with a ledger of its own, unloaded and left alone."""
    contents = topics.payloads(130, "cold")
    topics.acknowledge_with_holes(cluster, client, topic, "former reader", contents)
    admin.unload(topic)
    return _holding(topic, contents)


def _holding(topic: str, contents: list[bytes]) -> Live:
    return Live(topic, len(contents), topics.digest(contents))


def _write(path: Path, document: dict[str, Any]) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(document, indent=2) + "\n")
    temporary.replace(path)
