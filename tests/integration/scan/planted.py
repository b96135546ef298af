"""A cluster with everything that refers to a ledger, and every kind of leak: what the story of the pipeline is about.

Each kind has topics of its own, so that nothing else protects or endangers its ledgers.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from uuid import uuid4

from pulsar_lifecycle._pb import pulsar_schema_pb2
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting import plant, topics, znodes
from sandbox.planting.plant import Planted
from sandbox.planting.seed import Live
from tests.integration.pipeline import (
    new_namespace,
)


@dataclass
class World:
    """What was planted: ledgers by kind, and what the live topics hold."""

    namespace: str
    held: str
    kept: dict[str, set[int]] = field(default_factory=dict)
    orphans: dict[str, set[int]] = field(default_factory=dict)
    direct: set[int] = field(default_factory=set)
    live: list[Live] = field(default_factory=list)
    resting: list[str] = field(default_factory=list)
    """Unloaded topics whose load state decides about their ledgers."""

    @property
    def kept_ids(self) -> set[int]:
        return set().union(*self.kept.values())

    @property
    def orphan_ids(self) -> set[int]:
        return set().union(*self.orphans.values())


# -------------------------------------------------------------------------------------------------------- references


def _live_topics(sandbox: Cluster, world: World) -> None:
    """R1, R2, R3, R4, R5: topics of which nothing was taken away, one kind of reference each."""
    ns = f"persistent://{world.namespace}"
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin, sandbox.metadata() as zk:
        for state in ("loaded", "unloaded"):
            contents = topics.payloads(120)

            def live(kind: str, contents: list[bytes] = contents, state: str = state) -> Live:
                name = f"{ns}/{kind}-{state}"
                world.live.append(Live(name, len(contents), topics.digest(contents)))
                return world.live[-1]

            data = live("data").topic
            world.kept[f"R1 {state}"] = set(topics.publish(client, data, contents))

            cursor = live("cursor").topic
            topics.acknowledge_with_holes(sandbox, client, cursor, "reader+ü", contents)

            compacted = live("compacted")
            keys = [f"key-{number % 7}" for number in range(len(contents))]
            topics.publish(client, compacted.topic, contents, keys=keys)
            world.kept[f"R3 {state}"] = {admin.compact(compacted.topic)}
            compacted.compacted = {k: topics.digest([p]) for k, p in zip(keys, contents, strict=True)}

            delayed = live("delayed")
            due = [int(time.time() * 1000) + plant.HOUR_MS + number for number in range(len(contents))]
            buckets = topics.delayed_backlog(sandbox, client, delayed.topic, "later", contents, due)
            world.kept[f"R4 {state}"] = set(buckets)
            delayed.delayed = {"later": due}

            schema = live("schema")
            for version in (1, 2):
                admin.post_schema(schema.topic, version)
            topics.publish(client, schema.topic, contents)
            schema.schemas = 2
            world.kept[f"R5 {state}"] = set(admin.schema_ledgers(schema.topic))

            if state == "unloaded":
                for topic in (data, cursor, compacted.topic, delayed.topic, schema.topic):
                    admin.unload(topic)
            found = znodes.read_cursor(zk, cursor, "reader+ü").cursorsLedgerId
            world.kept[f"R2 {state}"] = {found} if found >= 0 else set()


def _schema_behind_entry(sandbox: Cluster, world: World) -> None:
    """R5: the older versions of a schema, which only the index inside the newest entry names."""
    topic = f"persistent://{world.namespace}/schema-indexed"
    with Admin(sandbox.admin_url) as admin, sandbox.metadata() as zk:
        for version in (1, 2, 3):
            admin.post_schema(topic, version)
        everything = set(admin.schema_ledgers(topic))
        data, stat = zk.get(znodes.schema_znode(topic))
        locator = pulsar_schema_pb2.SchemaLocator.FromString(data)
        newest = locator.info.position.ledgerId
        left = [entry for entry in locator.index if entry.position.ledgerId == newest]
        del locator.index[:]
        locator.index.extend(left)
        zk.set(znodes.schema_znode(topic), locator.SerializeToString(), stat.version)
    assert len(everything) == 3
    world.kept["R5 only in an entry"] = everything - {newest}


def _shadow(sandbox: Cluster, world: World) -> None:
    """R8: a source is gone, its ledgers are listed by its shadow alone; their tags name the source."""
    source, shadow = (f"persistent://{world.namespace}/{name}" for name in ("source", "shadow"))
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin, sandbox.metadata() as zk:
        topics.publish(client, source, topics.payloads(100))
        admin.topic("PUT", shadow, "", {"PULSAR.SHADOW_SOURCE": source})
        admin.topic("PUT", source, "/shadowTopics", [shadow])
        reader = client.create_reader(shadow, topics.pulsar.MessageId.earliest)
        for _ in range(100):
            reader.read_next(60_000)
        reader.close()
        admin.unload(source)
        admin.unload(shadow)
        shared = set(znodes.listed_ledgers(zk, shadow)) & set(znodes.listed_ledgers(zk, source))
        zk.delete(znodes.topic_znode(source), recursive=True)
    assert shared, "the shadow lists none of its source's ledgers"
    world.kept["R8 listed by a shadow"] = shared


def _shadow_source(sandbox: Cluster, world: World) -> None:
    """R8: an orphan of a topic that some shadow names as its source, though neither lists it."""
    topic = f"persistent://{world.namespace}/source-of-leak"
    planted, contents = plant.orphan_data_of_live_topic(sandbox, topic)
    world.live.append(Live(topic, len(contents), topics.digest(contents)))
    shadow = f"{topic}-shadow"
    with Admin(sandbox.admin_url) as admin:
        admin.topic("PUT", shadow, "", {"PULSAR.SHADOW_SOURCE": topic})
    world.kept["R8 source of a shadow"] = ids_of(planted)


def _foreigners(sandbox: Cluster, world: World, neighbour_root: str) -> None:
    """R11: ledgers of another cluster, declared and not declared; and what no Pulsar wrote."""
    shared = new_namespace(sandbox, "shared")
    declared = plant.neighbour(sandbox, f"persistent://{shared}/theirs", neighbour_root)
    world.kept["R11 of a declared cluster"] = ids_of(declared)
    world.kept["R11 of a namespace two clusters have"] = ids_of(plant.young(sandbox, f"persistent://{shared}/whose"))
    elsewhere = f"persistent://elsewhere/orders-{uuid4().hex[:6]}/placed"
    world.kept["R11 of an undeclared cluster"] = ids_of(plant.young(sandbox, elsewhere))
    world.kept["R16 untagged"] = ids_of(plant.foreign(sandbox))


def _states(sandbox: Cluster, world: World) -> None:
    """Ledgers that nothing refers to, and that one rule of its own keeps."""
    ns = f"persistent://{world.namespace}"
    world.kept["R13 open"] = ids_of(plant.open_ledger(sandbox, f"{ns}/open"))
    world.kept["beside an open one"] = ids_of(plant.young(sandbox, f"{ns}/open"))
    world.kept["empty z-node"] = ids_of(plant.empty(sandbox))
    world.kept["legal hold"] = ids_of(plant.young(sandbox, f"{world.held}/evidence"))
    world.kept["system topic"] = ids_of(plant.young(sandbox, f"{ns}/__change_events"))
    world.kept["transaction"] = ids_of(plant.young(sandbox, f"{ns}/x-y__transaction_pending_ack"))
    world.kept["own queue"] = ids_of(plant.young(sandbox, "persistent://pulsar/system/__ledger_deletion-partition-0"))
    tags = znodes.managed_ledger_tags(f"{ns}/future")
    with sandbox.metadata() as zk:
        for kind, data in {
            "undecodable": b"BookieMetadataFormatVersion\t3\nnonsense",
            "unknown component": znodes.ledger_metadata(sandbox.bookies, {**tags, "component": "time-machine"}),
            "no owner": znodes.ledger_metadata(sandbox.bookies, {"application": "pulsar", "component": "schema"}),
            "another application": znodes.ledger_metadata(sandbox.bookies, {**tags, "application": "bookshop"}),
        }.items():
            world.kept[kind] = {znodes.new_ledger(zk, data)}


def _damaged_topics(sandbox: Cluster, world: World) -> None:
    ns = f"persistent://{world.namespace}"
    world.kept["offload leftover"] = ids_of(plant.offload_leftover(sandbox, f"{ns}/offloaded"))
    dangling = plant.dangling(sandbox, f"{ns}/dangling")
    with sandbox.metadata() as zk:
        listed = set(znodes.listed_ledgers(zk, f"{ns}/dangling"))
    world.kept["beside a dangling one"] = listed - ids_of(dangling)
    world.kept["dangling"] = ids_of(dangling)


# ----------------------------------------------------------------------------------------------------------- orphans


def _orphan(sandbox: Cluster, world: World, kind: str) -> None:
    topic = f"persistent://{world.namespace}/leaked ~{kind}"
    planted: list[Planted] = {
        "data": plant.orphan_data,
        "cursor": plant.orphan_cursor,
        "schema": plant.orphan_schema,
        "compacted": plant.orphan_compacted,
        "bucket": plant.orphan_bucket,
    }[kind](sandbox, topic)
    world.orphans[kind] = ids_of(planted)
    if kind in ("compacted", "bucket"):
        world.resting.append(topic)
    count = {"cursor": 60, "compacted": 60, "bucket": 120}.get(kind)
    if count:
        world.live.append(Live(topic, count, topics.digest(topics.payloads(count))))


def _half_listed(sandbox: Cluster, world: World) -> None:
    topic = f"persistent://{world.namespace}/half-listed"
    planted, contents = plant.orphan_data_of_live_topic(sandbox, topic)
    world.live.append(Live(topic, len(contents), topics.digest(contents)))
    world.orphans["half-listed"] = ids_of(planted)


def ids_of(planted: list[Planted]) -> set[int]:
    return {entry.ledger_id for entry in planted}


def plant_world(sandbox: Cluster, neighbour_root: str) -> World:
    world = World(new_namespace(sandbox, "story"), f"persistent://{new_namespace(sandbox, 'held')}")
    direct = plant.young(sandbox, f"persistent://{world.namespace}/direct")  # first: the lowest ids
    direct += plant.orphan_data(sandbox, f"persistent://{world.namespace}/direct-data")
    world.direct = ids_of(direct)
    work: list[Callable[[], None]] = [
        *(lambda kind=kind: _orphan(sandbox, world, kind) for kind in ("compacted", "bucket")),
        lambda: _live_topics(sandbox, world),
        *(lambda kind=kind: _orphan(sandbox, world, kind) for kind in ("data", "cursor", "schema")),
        lambda: _half_listed(sandbox, world),
        lambda: _schema_behind_entry(sandbox, world),
        lambda: _shadow(sandbox, world),
        lambda: _shadow_source(sandbox, world),
        lambda: _foreigners(sandbox, world, neighbour_root),
        lambda: _states(sandbox, world),
        lambda: _damaged_topics(sandbox, world),
    ]
    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(step) for step in work]:
            done.result()
    return world
