"""Plans while one of two real brokers hangs, or answers 403 or 500.

Of a load plan its topics stay as they are, and all others go. By metadata nothing goes: it may have any topic.

The second broker is known by another address of the loopback than it listens at. A relay stands there, which passes
all on, or refuses what comes over HTTP.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.load_run import load_topics
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.trimming.retention_run import apply_retention
from pulsar_lifecycle.values.outcomes import Outcome
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import znodes
from tests.integration.lifecycle.loads import expiry, filled, give, no_retention, notes, pipeline_of, planned
from tests.integration.lifecycle.relay import Relay, relaying
from tests.integration.lifecycle.retention import close_earlier, loaded, retention
from tests.integration.pipeline import listed, new_namespace, wait_unlisted, wait_until_unloaded_counts

pytestmark = pytest.mark.integration

HERE, ELSEWHERE = "127.0.0.1", "127.0.0.2"
NOT_ANSWERING = "broker-2"
TTL = 5
"""Seconds; a broker does not look for what is past it while a topic is filled."""
TOPICS = 2
"""Of each broker, each in a namespace of its own, which is one bundle: a broker needs nothing of the other for them."""


@pytest.fixture(scope="module")
def sandbox(production: Cluster) -> Cluster:
    return production


@pytest.fixture(scope="module")
def relay(sandbox: Cluster) -> Iterator[Relay]:
    """Where the second broker's HTTP port is known to be."""
    main, http = (sandbox.state.servers[NOT_ANSWERING].ports[name] for name in ("main", "http"))
    with relaying((ELSEWHERE, main), (HERE, main)), relaying((ELSEWHERE, http), (HERE, http)) as relay:
        # A broker that hangs keeps its bundles for as long as its session lasts.
        sandbox.restart(NOT_ANSWERING, {"advertisedAddress": ELSEWHERE, "metadataStoreSessionTimeoutMillis": "60000"})
        try:
            yield relay
        finally:
            sandbox.restart(NOT_ANSWERING, {})
            with Admin(sandbox.admin_url) as admin:  # its session may outlast it
                wait_for("one address of it", lambda: _addresses(admin) == {HERE})


def _addresses(admin: Admin) -> set[str]:
    """Of all brokers that are listed."""
    return {name.partition(":")[0] for name in admin.call("GET", "/v2/brokers")}


@contextmanager
def hanging(sandbox: Cluster) -> Iterator[None]:
    sandbox.kill(NOT_ANSWERING, signal.SIGSTOP)
    try:
        yield
    finally:
        sandbox.kill(NOT_ANSWERING, signal.SIGCONT)


@contextmanager
def refusing(relay: Relay, status: int) -> Iterator[None]:
    relay.refusal = status
    try:
        yield
    finally:
        relay.refusal = 0


def topics_of_both(sandbox: Cluster) -> dict[str, dict[str, list[int]]]:
    """Unloaded topics past their TTL, and the ledgers of each, by the broker that owns their bundles."""
    found: dict[str, dict[str, list[int]]] = {}
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        for broker in sorted(admin.call("GET", "/v2/brokers")) * TOPICS:
            namespace = new_namespace(sandbox, "beside", 1)
            no_retention(admin, namespace)
            expiry(admin, namespace, TTL)
            topic = f"persistent://{namespace}/t"
            give(sandbox, admin, namespace, broker)
            found.setdefault(broker, {})[topic] = filled(client, admin, topic)
    return found


def versions(sandbox: Cluster, names: list[str]) -> list[int]:
    """Of the z-nodes of topics; a load writes them."""
    with sandbox.metadata() as zk:
        found = (zk.exists(znodes.topic_znode(name)) for name in names)
        return [stat.version for stat in found if stat is not None]


@pytest.mark.parametrize("status", [None, 403, 500], ids=["hangs", "denies", "fails"])
def test_topics_of_a_broker_that_does_not_answer_stay_and_all_others_go(
    sandbox: Cluster, relay: Relay, spark: None, tmp_path: Path, status: int | None
) -> None:
    by_broker, since = topics_of_both(sandbox), time.time()
    theirs = by_broker.pop(next(name for name in by_broker if name.startswith(ELSEWHERE)))
    (others,) = by_broker.values()
    both = theirs | others
    wait_unlisted(sandbox, both)
    wait_until_unloaded_counts(since + TTL)
    namespaces = [name.partition("://")[2].rpartition("/")[0] for name in both]
    pipeline = pipeline_of(sandbox, tmp_path, namespaces, request_timeout=5.0, at_once=len(both))
    plan, rows = planned(pipeline)
    assert {name for name, row in rows.items() if row["kept"] is None} == set(both)
    order, before = Order(plan.plan_id, plan.digest), versions(sandbox, list(theirs))

    with refusing(relay, status) if status else hanging(sandbox):
        found = {one.topic: one for one in load_topics(pipeline.where, "one-away", order, dry_run=False)}
        assert versions(sandbox, list(theirs)) == before
    assert {name: found[name].outcome for name in others} == dict.fromkeys(others, Outcome.DONE), found
    assert {found[name].why.code for name in theirs} == {LoadKept.BROKER_UNANSWERED}, found
    for name, ids in both.items():
        assert set(ids).isdisjoint(listed(sandbox, name)) == (name in others), name
    wait_unlisted(sandbox, both)
    assert notes(sandbox) == []

    again = {one.topic: one for one in load_topics(pipeline.where, "both", order, dry_run=False)}
    assert {name: again[name].outcome for name in theirs} == dict.fromkeys(theirs, Outcome.DONE), again
    assert {again[name].outcome for name in others} == {Outcome.LEFT}
    assert not any(set(ids) & set(listed(sandbox, name)) for name, ids in both.items())
    wait_unlisted(sandbox, both)
    assert not loaded(sandbox) & set(both)
    assert notes(sandbox) == []


def test_by_metadata_nothing_goes_while_a_broker_does_not_say_what_it_has_loaded(
    sandbox: Cluster, relay: Relay, spark: None, tmp_path: Path
) -> None:
    namespace = new_namespace(sandbox, "silent", 1)
    topic, since = f"persistent://{namespace}/t", time.time()
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        retention(admin, namespace, 60)
        ids = filled(client, admin, topic, subscribed=False)
    close_earlier(sandbox, [topic])
    wait_unlisted(sandbox, [topic])
    wait_until_unloaded_counts(since)
    where = pipeline_of(sandbox, tmp_path, [], request_timeout=3.0).where
    epoch = judged_scan.scan(where, "scan")
    plan, _ = make_retention_plan(where, epoch)
    order, before = Order(plan.plan_id, plan.digest), versions(sandbox, [topic])

    for away in (refusing(relay, 403), refusing(relay, 500), hanging(sandbox)):
        with away:
            with pytest.raises(LifecycleError, match=ELSEWHERE):
                apply_retention(where, "one-away", order, dry_run=False)
            with pytest.raises(LifecycleError, match=ELSEWHERE):
                make_retention_plan(where, epoch)
    assert versions(sandbox, [topic]) == before

    apply_retention(where, "both", order, dry_run=False)
    assert listed(sandbox, topic) == ids[-1:]
