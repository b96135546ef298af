"""A load plan on real servers: brokers free what only they can, and nothing of ours stays loaded, kills included.

Its two brokers do by themselves what production's do; the fixture ``lone`` says what not. Topics are filled before the
policies are set by which they expire: a broker that has them meanwhile expires and deletes nothing.
"""

from __future__ import annotations

import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pulsar
import pytest

from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.load_run import load_topics
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from pulsar_lifecycle.metastore.load_state import ledger_states
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.topics.load_losses import LoadLoss
from pulsar_lifecycle.trimming.retention_run import apply_retention
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Action, Outcome
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics
from tests.integration.killed_run import Step, strike
from tests.integration.lifecycle.loads import CONTENTS, expiry, filled, give, no_retention, notes, pipeline_of, planned
from tests.integration.lifecycle.retention import BUNDLES, close_earlier, keep_inactive_topics, loaded, retention
from tests.integration.pipeline import (
    STATS_INTERVAL,
    Pipeline,
    listed,
    new_namespace,
    read_all,
    wait_listed,
    wait_unlisted,
    wait_until_unloaded_counts,
)

pytestmark = pytest.mark.integration

HALFWAY = topics.payloads(120)
"""Three ledgers, of which a subscription has read the first, and some of the second."""
READ = 70
LATER = topics.payloads(10, "later")
MINUTE = 61.0
"""Seconds after which what was closed is older than the shortest retention time but none."""


QUIET = {"retentionCheckIntervalInSeconds": "3600", "loadBalancerSheddingEnabled": "false"}


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster whose brokers may be killed.

    They look once an hour for what to trim: that would often come between a load and its trim, so that the run has
    nothing to ask for where it is to die, or its journal is to say so. And they shed no load: no
    bundle moves amid a run.
    """
    cluster = Cluster(tmp_path_factory.mktemp("lone") / "sandbox")
    try:
        cluster.start(brokers=2, production=True, broker_settings=QUIET)
        yield cluster
    finally:
        cluster.stop(purge=True)


def closed_at(cluster: Cluster, topic: str, ledger: int) -> int:
    """When (ms) a topic's z-node says that a ledger of it was closed."""
    with cluster.metadata() as zk:
        data, _ = zk.get(f"/managed-ledgers/{Topic.parse(topic).managed_ledger}")
    found = {item.ledger_id: item.timestamp for item in managed_ledger.decode(data).ledgers}[ledger]
    assert found is not None
    return found


def beside(namespace: str, other: str) -> str:
    """A topic in the bundle of another one of its namespace; the sandbox's have four bundles of one size."""
    names = (f"persistent://{namespace}/{local}" for local in (other, *(f"open-{n}" for n in range(99))))
    first, *some = ((name, zlib.crc32(name.encode()) >> 30) for name in names)
    return next(name for name, bundle in some if bundle == first[1])


def state(pipeline: Pipeline, ledger: int) -> str | None:
    with pipeline.where.ports(read_only=True) as ports:
        return ledger_states(ports.store, [ledger], "/ledgers")[0]


@dataclass(frozen=True)
class Aged:
    """Topics that no broker has since ``since`` (``time.time()``), and the ledgers of each; ``live`` is loaded.

    The brokers of ``open`` and ``halfway`` died.
    """

    namespaces: Mapping[str, str]
    ids: Mapping[str, list[int]]
    client: pulsar.Client
    live: str
    open: str
    halfway: str
    since: float

    def topic(self, namespace: str, name: str) -> str:
        return f"persistent://{self.namespaces[namespace]}/{name}"


@pytest.fixture(scope="module")
def aged(lone: Cluster) -> Iterator[Aged]:
    """Begun before the kills: the shortest retention time but none is a minute."""
    names = {name: new_namespace(lone, name, BUNDLES) for name in ("aged", "ttl", "unnamed")}
    names |= {name: new_namespace(lone, name) for name in ("killed", "halfway")}
    last, live, held = (f"persistent://{names['aged']}/{name}" for name in ("last", "live", "held"))
    open_, halfway = (beside(names[name], "__transaction_buffer_snapshot") for name in ("killed", "halfway"))
    late, other = f"persistent://{names['ttl']}/late", f"persistent://{names['unnamed']}/other"
    with pulsar_client(lone.service_url) as client, Admin(lone.admin_url) as admin:
        for one in names.values():
            keep_inactive_topics(admin, one)
        client.subscribe(halfway, "s", initial_position=pulsar.InitialPosition.Earliest).close()
        contents = {open_: CONTENTS, halfway: HALFWAY}
        ids = {name: list(dict.fromkeys(topics.publish(client, name, some))) for name, some in contents.items()}
        admin.topic("POST", halfway, f"/subscription/s/skip/{READ}")
        wait_for("what was skipped to be stored", lambda: _stored(admin, halfway))
    for broker in lone.state.of_kind("broker"):
        lone.kill(broker.name)
    lone.start(brokers=2)  # both at once: one alone asks the other, as long as that seems to have its bundles
    with pulsar_client(lone.service_url) as client, Admin(lone.admin_url) as admin:
        for name in (last, held, late, other):
            ids[name] = filled(client, admin, name, read=name in (last, other))
        for name in ("aged", "killed"):
            retention(admin, names[name], 1)
        for name in ("unnamed", "halfway", "ttl"):
            no_retention(admin, names[name])
        expiry(admin, names["ttl"], 5)
        client.subscribe(live, "s", initial_position=pulsar.InitialPosition.Earliest).close()
        topics.publish(client, live, CONTENTS)
        producer = client.create_producer(live)
        since = time.time()
        wait_unlisted(lone, ids)
        wait_listed(lone, live)
        yield Aged(names, ids, client, live, open_, halfway, since)
        producer.close()


def _stored(admin: Admin, topic: str) -> bool:
    """Whether the broker has written down where a subscription stands: first it writes where that stood before."""
    cursor = admin.topic("GET", topic, "/internalStats")["cursors"]["s"]
    return bool(cursor["cursorLedgerLastEntry"] >= 1)


STEPS = [
    Step("store", "create", after=True, about="step-0"),
    Step("admin", "internal_stats", after=True, about="step-1"),
    Step("admin", "expire_messages", after=True, about="step-2"),
    Step("admin", "trim", after=False, about="step-3"),
    Step("admin", "unload", after=True, about="step-4"),
]
"""Where a run dies, each at a topic of its own; every other step over fakes. One broker has them all, so a run takes
them one after the other; each is in a bundle of its own, so none is split."""
UNSUBSCRIBED = 3
"""This topic nobody trims but by order: a broker whose slowest cursor moves into a new ledger trims by itself."""


def test_what_a_killed_run_has_loaded_the_next_one_unloads(
    lone: Cluster, aged: Aged, spark: None, tmp_path: Path
) -> None:
    namespaces = [new_namespace(lone, f"kills-{number}", 1) for number in range(len(STEPS))]
    names = [f"persistent://{namespace}/step-{number}" for number, namespace in enumerate(namespaces)]
    ids: dict[str, list[int]] = {}
    with Admin(lone.admin_url) as admin:
        broker = min(admin.call("GET", "/v2/brokers"))
        for number, (namespace, name) in enumerate(zip(namespaces, names, strict=True)):
            give(lone, admin, namespace, broker)
            keep_inactive_topics(admin, namespace)
            ids[name] = filled(aged.client, admin, name, subscribed=number != UNSUBSCRIBED)
            no_retention(admin, namespace)
            expiry(admin, namespace, 2)  # past it once the last one counts as unloaded
    since = time.time()
    wait_unlisted(lone, names)
    wait_until_unloaded_counts(since)
    pipeline = pipeline_of(lone, tmp_path, namespaces, at_once=1)
    plan, rows = planned(pipeline)
    assert {name for name, row in rows.items() if row["kept"] is None} == set(names)
    arguments = {"plan_id": plan.plan_id, "digest": plan.digest}
    for number, step in enumerate(STEPS):
        (struck,) = strike(pipeline.file, "load", {"run_id": f"killed-{number}", **arguments}, step).struck()
        assert step.about in struck.arguments
        assert notes(lone)
    time.sleep(3 * STATS_INTERVAL + 1)  # until the brokers' lists say who has what
    found = load_topics(pipeline.where, "finish", Order(plan.plan_id, plan.digest), dry_run=False)
    assert not [one for one in found if one.outcome is Outcome.FAILED], found
    wait_unlisted(lone, names)
    assert notes(lone) == []

    wait_until_unloaded_counts(time.time())
    plan, _ = planned(pipeline)
    load_topics(pipeline.where, "last", Order(plan.plan_id, plan.digest), dry_run=False)
    wait_unlisted(lone, names)
    assert notes(lone) == []
    ended = journal_rows(pipeline.where.journal_reader, code=Code.RUN_ENDED).to_pylist()
    assert {row["run_id"] for row in ended if row["topic"] in names} == {f"killed-{n}" for n in range(len(STEPS))}
    left = {name for name in names if not set(ids[name]).isdisjoint(listed(lone, name))}
    assert left <= {names[UNSUBSCRIBED]}  # there a new ledger is the last one by now: the others go by metadata


def test_topics_that_changed_since_the_plan_are_left_alone(lone: Cluster, spark: None, tmp_path: Path) -> None:
    namespace, other = (new_namespace(lone, name, BUNDLES) for name in ("changing", "policy"))
    names = ("still", "written", "moved", "deleted", "recreated", "taken")
    still, written, moved, deleted, recreated, taken = (f"persistent://{namespace}/{name}" for name in names)
    policy = f"persistent://{other}/policy"
    every = (still, written, moved, deleted, recreated, taken, policy)
    with pulsar_client(lone.service_url) as client, Admin(lone.admin_url) as admin:
        for one in (namespace, other):
            keep_inactive_topics(admin, one)
        ids = {name: filled(client, admin, name) for name in every}
        close_earlier(lone, every)
        for one in (namespace, other):
            no_retention(admin, one)
            expiry(admin, one, 3600)
        wait_unlisted(lone, every)
        wait_until_unloaded_counts(time.time())
        pipeline = pipeline_of(lone, tmp_path, [namespace, other])
        plan, rows = planned(pipeline)
        assert {name: (row["needs"], row["kept"]) for name, row in rows.items() if name in every} == dict.fromkeys(
            every, (["past_ttl"], None)
        )

        for one in (namespace, other):  # a broker that loads a topic for the test expires nothing meanwhile
            expiry(admin, one, 36_000)
        topics.publish(client, written, LATER)
        admin.topic("POST", moved, "/subscription/s/skip/10")
        for name in (deleted, recreated):
            admin.topic("DELETE", name, "?force=true")
        topics.publish(client, recreated, LATER)
        for name in (written, moved, recreated):
            admin.unload(name)
        producer = client.create_producer(taken)
        expiry(admin, namespace, 3600)
        wait_unlisted(lone, [written, moved, recreated])
        wait_listed(lone, taken)
        wait_until_unloaded_counts(time.time())
        done = load_topics(pipeline.where, "changed", Order(plan.plan_id, plan.digest), dry_run=False)
        said = {one.topic: (one.outcome, one.why.code) for one in done if one.topic in every}
        assert said.pop(still)[0] is Outcome.DONE, done
        assert said.pop(deleted) == (Outcome.LEFT, Code.TOPIC_GONE), done
        changed = (written, moved, recreated, taken, policy)
        assert said == dict.fromkeys(changed, (Outcome.LEFT, Code.CHANGED_SINCE_PLAN))
        wait_unlisted(lone, set(every) - {taken})
        assert notes(lone) == []
        assert listed(lone, still)[0] == ids[still][1]
        producer.close()
        expiry(admin, namespace, 36_000)
        left = {written: [*CONTENTS, *LATER], moved: CONTENTS, recreated: LATER, policy: CONTENTS}
        for name, contents in left.items():
            assert read_all(client, name, len(contents)) == contents
        by_broker = ids[taken][0] not in listed(lone, taken)  # it was loaded for long enough to expire messages
        expected = CONTENTS[50:] if by_broker else CONTENTS
        assert read_all(client, taken, len(expected)) == expected


def test_brokers_free_what_metadata_cannot_and_all_else_stays(
    lone: Cluster, aged: Aged, spark: None, tmp_path: Path
) -> None:
    last, held, open_, halfway = aged.topic("aged", "last"), aged.topic("aged", "held"), aged.open, aged.halfway
    late, other, ids = aged.topic("ttl", "late"), aged.topic("unnamed", "other"), aged.ids
    time.sleep(max(0.0, aged.since + MINUTE - time.time()))
    pipeline = pipeline_of(lone, tmp_path, [aged.namespaces[name] for name in ("aged", "killed", "halfway", "ttl")])
    where = pipeline.where
    assert state(pipeline, ids[open_][-1]) == LedgerState.OPEN.name
    plan, rows = planned(pipeline)
    needs = {name: (row["needs"], row["kept"]) for name, row in rows.items() if name in {*ids, aged.live}}
    assert needs == {
        last: (["last_ledger_expired"], None),
        open_: (["open_expired"], None),
        halfway: (["before_open"], None),
        late: (["past_ttl"], None),
        other: (["last_ledger_expired"], str(LoadKept.WAY_IS_METADATA)),
    }
    assert plan.actionable
    assert rows[late]["bytes_at_once"] > 0
    assert {rows[name]["second_visit_at"] is not None for name in (last, open_)} == {True}
    order = Order(plan.plan_id, plan.digest)
    dry = load_topics(where, "dry", order, dry_run=True)
    assert {one.topic: one.outcome for one in dry} == dict.fromkeys((last, open_, halfway, late), Outcome.GOES), dry
    assert not loaded(lone) & set(ids)

    done = load_topics(where, "run", order, dry_run=False)
    assert {one.topic: one.outcome for one in done} == dict.fromkeys((last, open_, halfway, late), Outcome.DONE), done
    assert set(ids[late]).isdisjoint(listed(lone, late)), done
    assert listed(lone, last)[0] == ids[last][-1]
    assert ids[open_][-1] in listed(lone, open_)
    assert listed(lone, halfway)[:2] == ids[halfway][1:]
    assert state(pipeline, ids[open_][-1]) == LedgerState.CLOSED.name
    assert (listed(lone, held), listed(lone, other)) == (ids[held], ids[other])
    wait_unlisted(lone, ids)
    assert notes(lone) == []
    journalled = journal_rows(where.journal_reader, run_id="run").to_pylist()
    steps = {
        (row["topic"], row["phase"])
        for row in journalled
        if row["action"] == Action.LOAD_TOPIC and row["outcome"] == Outcome.DONE
    }
    assert {(late, phase) for phase in ("load", "expire", "unload")} <= steps, steps
    assert {(open_, phase) for phase in ("load", "trim", "unload")} <= steps, steps

    second_visits = {one.topic: one.second_visit_at for one in done if one.second_visit_at}
    assert second_visits == {name: closed_at(lone, name, ids[name][-1]) + 60_000 for name in (last, open_)}
    close_earlier(lone, [last, open_])
    wait_until_unloaded_counts(time.time())
    second, _ = make_retention_plan(where, pipeline.scan())
    found = apply_retention(where, "second", Order(second.plan_id, second.digest), dry_run=False)
    gone = {one.ledger_id for one in found if one.outcome is Outcome.REMOVED}
    assert {ids[last][-1], ids[open_][-1]} <= gone
    assert not loaded(lone) & set(ids)
    consumer = aged.client.subscribe(halfway, "s")
    assert [consumer.receive(60_000).data() for _ in HALFWAY[READ:]] == HALFWAY[READ:]
    for name in (aged.live, held):
        reader = aged.client.create_reader(name, pulsar.MessageId.earliest)
        assert [reader.read_next(60_000).data() for _ in CONTENTS] == CONTENTS


def test_no_topic_is_loaded_whose_broker_would_not_know_its_subscriptions(
    lone: Cluster, spark: None, tmp_path: Path
) -> None:
    """With ``lazyCursorRecovery`` one that loads a topic counts no subscription, and deletes it as one without any."""
    namespace = new_namespace(lone, "lazy", BUNDLES)
    subscribed, without = names = [f"persistent://{namespace}/{name}" for name in ("some", "none")]
    for broker in lone.state.of_kind("broker"):
        lone.restart(broker.name, {**QUIET, "lazyCursorRecovery": "true"})
    try:
        with pulsar_client(lone.service_url) as client, Admin(lone.admin_url) as admin:
            keep_inactive_topics(admin, namespace)
            for name in names:
                filled(client, admin, name, subscribed=name != without, read=name != without)
            no_retention(admin, namespace)
            since = time.time()
            wait_unlisted(lone, names)
            wait_until_unloaded_counts(since)
            _, rows = planned(pipeline_of(lone, tmp_path, [namespace]))
            kept = {subscribed: LoadLoss.CURSORS_COME_LATER, without: None}
            assert {name: rows[name]["kept"] for name in names} == kept
    finally:
        for broker in lone.state.of_kind("broker"):
            lone.restart(broker.name, QUIET)
