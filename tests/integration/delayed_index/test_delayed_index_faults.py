"""Repairs of delayed indexes that are killed at each of their steps, and that race with brokers that load the topic."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from pulsar_lifecycle.delayed_index.repair.edit import Edit, Edited, write_keys
from pulsar_lifecycle.delayed_index.repair.repair_planning import make_repair_plan
from pulsar_lifecycle.delayed_index.repair.repair_run import repair
from pulsar_lifecycle.delayed_index.stored.index_codes import IndexFinding
from pulsar_lifecycle.errors import LifecycleError, Refused
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.values.outcomes import Outcome
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting import znodes
from tests.integration.contracts.zk_nodes import settings
from tests.integration.delayed_index.delayed import BROKERS, checked, forged, keys_of, planted, set_key, unloaded
from tests.integration.killed_run import Step, strike
from tests.integration.pipeline import Pipeline, new_namespace
from tests.kit.fakes.cutting_proxy import CuttingProxy

pytestmark = pytest.mark.integration

LEDGER, CURSOR = "BookieMetadataFormatVersion", "/managed-ledgers/"
STEPS = (
    Step("writer", "reserve", True),
    Step("store", "create", True, LEDGER),
    Step("store", "write", False, LEDGER),
    Step("store", "write", True, LEDGER),
    Step("store", "write", False, CURSOR),
    Step("store", "write", True, CURSOR),
)
"""In their order: a ledger's id, its z-node, its close, then the cursor; all but after the last one nothing changed."""
ROUNDS = 12
MULTI = 14
"""The code of a transaction, in the protocol of ZooKeeper."""


def test_a_repair_that_is_killed_anywhere_leaves_the_old_buckets_or_the_new_ones(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "killed")
    topic = f"persistent://{namespace}/t"
    pipeline = pipelines(
        {"delayed_index": {"namespaces": [namespace], "brokers": BROKERS}, "zookeeper": {"session_timeout": "6s"}}
    )
    with pulsar_client(sandbox.service_url) as client:
        planted(sandbox, client, topic)
    unloaded(sandbox, [topic])
    key, value = sorted(keys_of(sandbox, topic).items())[0]
    set_key(sandbox, topic, key, forged(sandbox, topic, key, int(value)))
    broken = keys_of(sandbox, topic)
    epoch, found = checked(pipeline, namespace)
    assert found[topic][IndexFinding.LOST] == 1
    summary, _ = make_repair_plan(pipeline.where, epoch)
    arguments = {"plan_id": summary.plan_id, "digest": summary.digest}

    for number, step in enumerate(STEPS):
        strike(pipeline.file, "repair", {"run_id": f"killed-{number}", **arguments}, step).struck()
        assert (keys_of(sandbox, topic) == broken) == (number < len(STEPS) - 1), step

    _, found = checked(pipeline, namespace)
    assert found[topic] == {
        IndexFinding.LEDGER_WITHOUT_KEY: 4
    }  # the old ones: later runs settled what killed ones left


def test_of_two_repairs_at_once_one_is_refused_or_finds_it_done(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "twice")
    topic = f"persistent://{namespace}/t"
    pipeline = pipelines({"delayed_index": {"namespaces": [namespace], "brokers": BROKERS}})
    with pulsar_client(sandbox.service_url) as client:
        planted(sandbox, client, topic)
    unloaded(sandbox, [topic])
    key, value = sorted(keys_of(sandbox, topic).items())[0]
    set_key(sandbox, topic, key, forged(sandbox, topic, key, int(value)))
    summary, _ = make_repair_plan(pipeline.where, checked(pipeline, namespace)[0])
    order, together = Order(summary.plan_id, summary.digest), threading.Barrier(2)

    def one(run_id: str) -> list[Outcome] | LifecycleError:
        together.wait()
        try:
            return [done.outcome for done in repair(pipeline.where, run_id, order, dry_run=False)]
        except LifecycleError as refused:
            return refused

    with ThreadPoolExecutor(2) as pool:
        said = list(pool.map(one, ("one", "other")))
    assert said.count([Outcome.DONE]) == 1, said
    assert all(isinstance(one, Refused) or one in ([Outcome.DONE], [Outcome.LEFT]) for one in said), said
    assert not checked(pipeline, namespace)[1][topic].keys() - {IndexFinding.LEDGER_WITHOUT_KEY}


def test_a_broker_that_loads_the_topic_meanwhile_has_the_buckets_that_the_cursor_names(sandbox: Cluster) -> None:
    topic = f"persistent://{new_namespace(sandbox, 'race')}/t"
    with pulsar_client(sandbox.service_url) as client:
        planted(sandbox, client, topic)
    outcomes: Counter[Edited] = Counter()
    chance = random.Random(5)
    whole = keys_of(sandbox, topic)
    fewer = dict(sorted(whole.items())[1:])
    path, cursor = znodes.topic_znode(topic), znodes.cursor_znode(topic, "s")
    with (
        KazooStore(settings(sandbox.zookeeper)) as store,
        Admin(sandbox.admin_url) as loader,
    ):
        store.create("/race-lease", b"")
        for number in range(ROUNDS):
            before, after = (whole, fewer) if keys_of(sandbox, topic) == whole else (fewer, whole)
            node, named = store.read([path, cursor])
            loader.unload(topic)
            assert isinstance(node, Node)
            assert isinstance(named, Node)
            loading = threading.Thread(target=loader.topic, args=("GET", topic, "/stats"))
            loading.start()
            time.sleep(0 if number == 0 else chance.uniform(0, 0.15))
            edited = write_keys(store, Edit(cursor, named.stat.czxid, before, after), node, [("/race-lease", 0)])
            loading.join()
            outcomes[edited] += 1
            # The broker writes all properties that it has in memory, and fails if it read another version.
            loader.topic("PUT", topic, "/subscription/s/properties", {"round": str(number)})
            assert keys_of(sandbox, topic) == (after if edited is Edited.DONE else before), edited
        store.delete("/race-lease", 0)
        print(outcomes)
    assert outcomes.keys() <= {Edited.DONE, Edited.RACED}


def test_a_write_whose_answer_is_lost_was_made_or_is_made_again(sandbox: Cluster) -> None:
    topic = f"persistent://{new_namespace(sandbox, 'answer')}/t"
    with pulsar_client(sandbox.service_url) as client:
        planted(sandbox, client, topic)
    with Admin(sandbox.admin_url) as admin:
        admin.unload(topic)
    whole = keys_of(sandbox, topic)
    fewer = dict(sorted(whole.items())[1:])
    path, cursor = znodes.topic_znode(topic), znodes.cursor_znode(topic, "s")
    with CuttingProxy(sandbox.zookeeper) as proxy, KazooStore(settings(f"127.0.0.1:{proxy.port}")) as store:
        for answered, said, left in ((False, Edited.RACED, whole), (True, Edited.DONE, fewer)):
            node, named = store.read([path, cursor])
            assert isinstance(node, Node)
            assert isinstance(named, Node)
            proxy.cut_next(MULTI, answered=answered)
            edit = Edit(cursor, named.stat.czxid, whole, fewer)
            assert (write_keys(store, edit, node, []), proxy.cuts) == (said, 1 + answered)
            assert keys_of(sandbox, topic) == left
