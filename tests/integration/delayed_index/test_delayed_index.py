"""Delayed indexes on a real cluster: broken by hand, found, repaired, and then recovered by a real broker."""

from __future__ import annotations

from collections.abc import Callable

import pulsar
import pytest

from pulsar_lifecycle.delayed_index.repair.repair_planning import make_repair_plan
from pulsar_lifecycle.delayed_index.repair.repair_run import repair, undo_repair
from pulsar_lifecycle.delayed_index.stored.index_codes import IndexFinding
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from sandbox.clients import Admin, pulsar_client
from sandbox.cluster import Cluster
from sandbox.planting import znodes
from tests.integration.delayed_index.delayed import (
    BROKERS,
    FALLBACK,
    applied,
    assert_each_comes_once,
    broker_log,
    checked,
    forged,
    keys_of,
    planted,
    set_key,
    unloaded,
)
from tests.integration.pipeline import Pipeline, new_namespace, wait_listed

pytestmark = pytest.mark.integration


def test_broken_indexes_are_found_and_repaired_and_a_broker_recovers_them(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "index")
    names = {name: f"persistent://{namespace}/{name}" for name in ("whole", "gone", "lost", "undone", "live")}
    pipeline = pipelines({"delayed_index": {"namespaces": [namespace], "brokers": BROKERS}})
    with pulsar_client(sandbox.service_url) as client:
        backlogs = {name: planted(sandbox, client, topic) for name, topic in names.items()}
        unloaded(sandbox, [topic for name, topic in names.items() if name != "live"])
        fallbacks = broker_log(sandbox).count(FALLBACK)

        before = {name: keys_of(sandbox, topic) for name, topic in names.items()}
        assert all(len(keys) == 3 for keys in before.values())
        key, value = sorted(before["gone"].items())[1]
        with sandbox.metadata() as zk:
            zk.delete(znodes.ledger_znode(int(value)))
        for name in ("lost", "undone", "live"):
            key, value = sorted(before[name].items())[0]
            if name != "live":
                set_key(sandbox, names[name], key, forged(sandbox, names[name], key, int(value)))
        broken = {name: keys_of(sandbox, topic) for name, topic in names.items()}

        epoch, found = checked(pipeline, namespace)
        assert names["whole"] not in found
        assert names["live"] not in found
        assert set(found[names["gone"]]) == {
            IndexFinding.KEY_WITHOUT_LEDGER,
            IndexFinding.RECOVERY_FALLBACK,
            IndexFinding.NOT_INDEXED,
        }
        for name in ("lost", "undone"):
            assert found[names[name]][IndexFinding.LOST] == 1
            assert IndexFinding.BITMAP_UNLIKE_SEGMENTS in found[names[name]]
            assert IndexFinding.LEDGER_WITHOUT_KEY in found[names[name]]  # the snapshot that the forged one replaced

        _, planned = applied(pipeline, epoch, dry_run=True)
        assert {topic: (one.level, one.outcome) for topic, one in planned.items()} == {
            names["gone"]: ("drop", Outcome.GOES),
            names["lost"]: ("rebuild", Outcome.GOES),
            names["undone"]: ("rebuild", Outcome.GOES),
        }
        assert {name: keys_of(sandbox, topic) for name, topic in names.items()} == broken

        order, done = applied(pipeline, epoch)
        assert {one.outcome for one in done.values()} == {Outcome.DONE}, done
        for name in ("gone", "lost", "undone"):
            assert keys_of(sandbox, names[name]) == done[names[name]].after != broken[name]
        again = {one.topic: one.outcome for one in repair(pipeline.where, "again", order, dry_run=False)}
        assert set(again.values()) == {Outcome.LEFT}  # none has the buckets of the plan by now

        back = {one.topic: one for one in undo_repair(pipeline.where, "undo", order.plan_id, dry_run=False)}
        assert keys_of(sandbox, names["undone"]) == broken["undone"]
        assert back[names["undone"]].outcome is Outcome.DONE
        _, done = applied(pipeline, checked(pipeline, namespace)[0])
        assert done[names["lost"]].outcome is Outcome.DONE
        _, found = checked(pipeline, namespace)
        left = {IndexFinding.LEDGER_WITHOUT_KEY, IndexFinding.NOT_INDEXED, IndexFinding.KEY_WITHOUT_LEDGER}
        for topic in (names["lost"], names["undone"]):
            assert set(found.get(topic, ())) <= left, found

        for name in ("lost", "whole"):
            assert_each_comes_once(sandbox, client, backlogs[name])
        assert broker_log(sandbox).count(FALLBACK) == fallbacks


def test_a_topic_that_is_loaded_meanwhile_is_left_alone_or_unloaded_by_order(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "loaded")
    topic = f"persistent://{namespace}/t"
    chosen = {"namespaces": [namespace], "brokers": BROKERS}
    pipeline = pipelines({"delayed_index": chosen})
    with pulsar_client(sandbox.service_url) as client:
        backlog = planted(sandbox, client, topic)
        unloaded(sandbox, [topic])
        key, value = sorted(keys_of(sandbox, topic).items())[0]
        set_key(sandbox, topic, key, forged(sandbox, topic, key, int(value)))
        broken = keys_of(sandbox, topic)
        epoch, _ = checked(pipeline, namespace)
        summary, _ = make_repair_plan(pipeline.where, epoch)
        order = Order(summary.plan_id, summary.digest)
        consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
        wait_listed(sandbox, topic)

        (left,) = repair(pipeline.where, "left", order, dry_run=False)
        assert (left.outcome, left.why.code) == (Outcome.LEFT, Code.TOPIC_LOADED)
        assert keys_of(sandbox, topic) == broken

        ordered = pipelines({"delayed_index": {**chosen, "loaded_topics": [topic]}}, lake=pipeline.lake)
        consumer.close()
        with Admin(sandbox.admin_url) as admin:
            admin.unload(topic)  # it counts as loaded, and to unload it once more its broker loads it first
        (done,) = repair(ordered.where, "ordered", order, dry_run=False)
        assert done.outcome is Outcome.DONE, done
        assert keys_of(sandbox, topic) == done.after

        assert_each_comes_once(sandbox, client, backlog)
