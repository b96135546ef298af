"""The whole pipeline beside brokers that do by themselves what production's do: two of them, under writes.

They delete inactive topics, split and unload bundles, shed load, expire, trim and compact while we scan, plan, apply
and delete. What leaks goes, what expired goes, and every message of a live topic stays.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pulsar
import pytest

from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.trimming.retention_run import apply_retention
from pulsar_lifecycle.values.outcomes import Outcome
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import plant, topics, znodes
from tests.integration.lifecycle.retention import close_earlier, keep_inactive_topics, retention, unloaded
from tests.integration.pipeline import (
    Pipeline,
    existing,
    new_namespace,
    settings_file,
    wait_listed,
    wait_until_unloaded_counts,
)

pytestmark = pytest.mark.integration

CONTENTS = topics.payloads(120)


class Writer:
    """Writes to one topic after the other until told to stop; ``written`` is what brokers acknowledged, by topic."""

    def __init__(self, client: pulsar.Client, names: list[str]) -> None:
        self.written: dict[str, list[bytes]] = {name: [] for name in names}
        self._producers = {name: client.create_producer(name, send_timeout_millis=120_000) for name in names}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._write)

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._stop.set()
            self._thread.join()

    def _write(self) -> None:
        while not self._stop.is_set():
            for name, producer in self._producers.items():
                payload = f"{name} {len(self.written[name])}".encode()
                producer.send(payload)
                self.written[name].append(payload)
            time.sleep(0.05)


def read_all(client: pulsar.Client, topic: str) -> list[bytes]:
    """Each payload once: a client sends again what an unload left unacknowledged."""
    with closing(client.create_reader(topic, pulsar.MessageId.earliest)) as reader:
        found: list[bytes] = []
        while reader.has_message_available():
            found.append(reader.read_next(60_000).data())
        return list(dict.fromkeys(found))


def bundles(admin: Admin, namespace: str) -> int:
    return int(admin.call("GET", f"/v2/namespaces/{namespace}/bundles")["numBundles"])


def test_brokers_that_delete_split_shed_and_trim_by_themselves_lose_nothing_to_us(
    production: Cluster, tmp_path: Path
) -> None:
    namespace, idle = new_namespace(production, "busy"), new_namespace(production, "idle")
    live = [f"persistent://{namespace}/live-{number}" for number in range(12)]
    inactive = [f"persistent://{idle}/inactive-{number}" for number in range(3)]
    # no bundle of theirs is split: a broker may list for good what goes, or is unloaded, amid that
    gone = [f"persistent://{new_namespace(production, 'gone')}/gone" for _ in range(2)]
    ages = [new_namespace(production, "ages") for _ in range(3)]
    expired = [f"persistent://{one}/expired" for one in ages]
    pipeline = Pipeline(
        settings_file(production, tmp_path, {"deletion": {"twoPhaseDeletionReconsumeLaterInSeconds": 1}})
    )
    with pulsar_client(production.service_url) as client, Admin(production.admin_url) as admin:
        for one in (namespace, *ages):
            retention(admin, one, 60)
            keep_inactive_topics(admin, one)  # a broker that loads an expired topic may delete it
        admin.call("DELETE", f"/v2/namespaces/{idle}/retention")  # brokers retain a topic that they delete otherwise
        for name in (*live, *expired):
            client.subscribe(name, "holds", initial_position=pulsar.InitialPosition.Earliest).close()
        before = bundles(admin, namespace)
        writer = Writer(client, live)
        with writer.writing():
            for name in inactive:
                topics.publish(client, name, CONTENTS)
            for name in expired:
                topics.publish(client, name, CONTENTS)
            for name in expired:
                admin.topic("DELETE", name, "/subscription/holds?force=true")
            for name in expired:  # one that is not listed yet would pass for unloaded
                wait_listed(production, name)
            wait_for("the expired topics to be unloaded", lambda: unloaded(production, admin, expired))
            close_earlier(production, expired)
            old = all_but_the_last(production, expired)
            since = time.time()
            leaked = {entry.ledger_id for name in gone for entry in plant.orphan_data(production, name)}
            wait_for("a broker to split a bundle", lambda: bundles(admin, namespace) > before)
            wait_for("brokers to delete inactive topics", lambda: not admin.call("GET", f"/v2/persistent/{idle}"))
            wait_until_unloaded_counts(since)

            planned = pipeline.confirmed_plan()
            assert leaked <= planned.ids
            pipeline.apply(pipeline.order(planned))
            removed = set[int]()
            for number in range(20):  # a broker that takes a bundle loads its topics, and trims them itself
                scan = pipeline.scan()
                replaced = all_but_the_last(production, expired)
                plan, rows = make_retention_plan(pipeline.where, scan)
                going = set(rows.column("ledger_id").to_pylist())
                order = Order(plan.plan_id, plan.digest)
                found = apply_retention(pipeline.where, f"retention-{number}", order, dry_run=False)
                now = {one.ledger_id for one in found if one.outcome == Outcome.REMOVED}
                assert now <= going & replaced, (now - going, now - replaced)
                removed |= now
                if not old & all_but_the_last(production, expired):
                    break
                time.sleep(2)
            assert not old & all_but_the_last(production, expired), found
            assert removed
            # a busy broker lists topics for long after it has deleted them
            runs = pipeline.delete_until(lambda: not existing(production, leaked | removed), 600)
            assert not existing(production, leaked | removed), (leaked, removed, runs[-1])
        assert {name: read_all(client, name) for name in live} == writer.written
        deleted = {row["ledger_id"] for row in pipeline.journal() if row["outcome"] == "deleted"}
        assert deleted <= planned.ids | removed
        assert not {entry for name in live for entry in ledgers_of(admin, name)} & deleted


def all_but_the_last(sandbox: Cluster, names: list[str]) -> set[int]:
    """Ledgers that topics list: a broker that is asked for them loads the topic."""
    with sandbox.metadata() as zk:
        return {ledger for name in names for ledger in znodes.listed_ledgers(zk, name)[:-1]}


def ledgers_of(admin: Admin, topic: str) -> list[int]:
    return [one["ledgerId"] for one in admin.topic("GET", topic, "/internalStats")["ledgers"]]
