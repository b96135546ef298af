"""Both phases on a real cluster: topics trimmed unloaded and under load, topics deleted whole, then deletion runs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import dagster as dg
import pulsar
import pytest

from orchestration.definitions import build_defs
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.topics.first_phase import LedgerOutcome
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.trimming.trim_rules import Stays
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics, znodes
from tests.integration.pipeline import (
    Pipeline,
    at_rest,
    existing,
    listed,
    new_namespace,
    read_all,
    transactions,
    wait_listed,
    wait_unlisted,
    wait_until_unloaded_counts,
    waiting,
)

pytestmark = pytest.mark.integration

SETTINGS = {
    "orphans": {"grace_period": "7d"},  # what the first phase marked must not wait for it
    "deletion": {"twoPhaseDeletionReconsumeLaterInSeconds": 1},  # what a broker was just loading comes again soon
}
PATIENCE = 120.0
"""Seconds until a message must come, on a busy machine too."""


def trim(pipeline: Pipeline, topic: str, up_to: int, *, dry_run: bool = False) -> dict[int, LedgerOutcome]:
    order = TrimOrder(Topic.parse(topic), up_to=up_to)
    return by_ledger(trim_run.trim(pipeline.where, "trim", [order], dry_run=dry_run))


def by_ledger(found: list[LedgerOutcome]) -> dict[int, LedgerOutcome]:
    return {one.ledger_id: one for one in found}


def outcomes(found: dict[int, LedgerOutcome]) -> dict[int, str]:
    return {ledger: one.outcome for ledger, one in found.items()}


def left_pending(pipeline: Pipeline) -> list[control.PendingUnload | control.BrokenPendingUnload]:
    with KazooStore(pipeline.where.settings.zookeeper, read_only=True) as store:
        return control.pending_unloads(store)


def deleted(pipeline: Pipeline, ledgers: set[int], final: frozenset[str] = frozenset({"deleted"})) -> None:
    """Scan and delete until all of the ledgers are ``final``."""

    def last() -> set[str]:
        return {pipeline.journal(ledger)[-1]["outcome"] for ledger in ledgers}

    runs = pipeline.delete_until(lambda: not {"retrying", "waiting"} & last())
    assert last() <= final, runs


def trimmed(pipeline: Pipeline, topic: str, ids: list[int]) -> None:
    """Trim the first ledgers of a topic under load, once its cursor is behind them: both, and only both.

    A run leaves them to the next one if the topic's list changes at each of its tries. It says so, and all are there.
    """
    all_go = dict.fromkeys(ids, Outcome.GOES)
    wait_for(f"the cursor to leave {ids}", lambda: outcomes(trim(pipeline, topic, ids[-1], dry_run=True)) == all_go)
    for _ in range(10):
        found = trim(pipeline, topic, ids[-1])
        if outcomes(found) == dict.fromkeys(ids, Outcome.REMOVED):
            return
        assert {one.why.code for one in found.values()} == {Code.CHANGED_MEANWHILE}, found
        assert set(outcomes(found).values()) <= {Outcome.LEFT, Outcome.FAILED}, found
    raise AssertionError(f"the topic's list changed under each of ten runs: {found}")


def backlog(admin: Admin, topic: str, subscription: str) -> int:
    stats = admin.topic("GET", topic, "/stats?getPreciseBacklog=true")
    return int(stats["subscriptions"][subscription]["msgBacklog"])


def test_an_unloaded_topic_is_trimmed_and_read_from_its_first_remaining_message(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    topic = f"persistent://{new_namespace(sandbox, 'trim')}/a+b c~é"
    contents = topics.payloads(230)
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        ledgers = topics.publish(client, topic, contents)
        ids = list(dict.fromkeys(ledgers))
        for message in [consumer.receive(60_000) for _ in range(120)]:
            consumer.acknowledge(message)
        wait_for("the receipts", lambda: backlog(admin, topic, "s") == 110)
        consumer.close()
        admin.unload(topic)
    since = time.time()
    wait_unlisted(sandbox, [topic])
    wait_until_unloaded_counts(since)
    pipeline = pipelines(SETTINGS)
    pipeline.scan()

    with sandbox.metadata() as zk:
        before = at_rest(zk, ["/managed-ledgers/it", "/pulsar-lifecycle"])
        planned = trim(pipeline, topic, ids[3], dry_run=True)
        assert transactions(zk, ["/managed-ledgers/it", "/pulsar-lifecycle"]) == before
    expected = {ids[0]: Outcome.GOES, ids[1]: Outcome.GOES, ids[2]: Outcome.REFUSED, ids[3]: Outcome.REFUSED}
    assert outcomes(planned) == expected, planned
    assert planned[ids[2]].why.code is Stays.CURSOR
    assert f"{ids[2]}:19" in planned[ids[2]].reason
    before_it = waiting(sandbox)

    assert outcomes(trim(pipeline, topic, ids[3])) == {
        i: Outcome.REMOVED if o == Outcome.GOES else o for i, o in expected.items()
    }
    assert listed(sandbox, topic) == ids[2:]
    assert left_pending(pipeline) == []
    assert waiting(sandbox) == before_it + 2
    marked = [
        (r["ledger_id"], r["outcome"]) for r in journal_rows(FileJournal(pipeline.lake), run_id="trim").to_pylist()
    ]
    assert marked == [(i, o) for o in ("sent", "marked", "removed") for i in ids[:2]]

    with pulsar_client(sandbox.service_url) as client:
        left = [payload for payload, ledger in zip(contents, ledgers, strict=True) if ledger not in ids[:2]]
        assert read_all(client, topic, len(left)) == left
        consumer = client.subscribe(topic, "s")
        assert [consumer.receive(60_000).data() for _ in range(110)] == contents[120:]
        consumer.close()
    wait_listed(sandbox, topic)
    deleted(pipeline, set(ids[:2]))
    assert not existing(sandbox, ids[:2])
    assert existing(sandbox, ids[2:]) == set(ids[2:])
    wait_for("the acknowledgements to arrive", lambda: waiting(sandbox) <= before_it)
    with pulsar_client(sandbox.service_url) as client:
        assert read_all(client, topic, len(left)) == left


@dataclass
class Traffic:
    """A producer and a consumer that never stop while the topic is trimmed."""

    service_url: str
    topic: str
    acknowledged: list[int] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    received: list[int] = field(default_factory=list)
    sent: int = 0
    ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Traffic:
        self._threads = [threading.Thread(target=work) for work in (self._consume, self._produce)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        for thread in self._threads:
            thread.join()

    def _produce(self) -> None:
        with pulsar_client(self.service_url) as client:
            producer = client.create_producer(self.topic, batching_enabled=False, send_timeout_millis=120_000)
            while not self.ended.is_set():
                number = self.sent
                self.sent += 1
                producer.send_async(
                    str(number).encode(), lambda result, _, number=number: self._receipt(result, number)
                )
                time.sleep(0.02)  # a ledger a second: a run has five tries between two changes of the topic's list
            producer.flush()

    def _receipt(self, result: pulsar.Result, number: int) -> None:
        if result == pulsar.Result.Ok:
            self.acknowledged.append(number)
        else:
            self.failed.append(str(result))

    def _consume(self) -> None:
        with pulsar_client(self.service_url) as client:
            consumer = client.subscribe(self.topic, "live", initial_position=pulsar.InitialPosition.Earliest)
            answered = time.monotonic()
            while not self.ended.is_set() or set(self.received) < set(range(self.sent)):
                try:
                    message = consumer.receive(500)
                except pulsar.Timeout:  # nothing is on its way, or traffic ended while we waited
                    if time.monotonic() > answered + PATIENCE:
                        return  # the test then misses what did not come
                    continue
                answered = time.monotonic()
                self.received.append(int(message.data()))
                consumer.acknowledge(message)


def test_a_topic_under_load_is_trimmed_and_nobody_loses_a_message(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    topic = f"persistent://{new_namespace(sandbox, 'live')}/loaded"
    pipeline = pipelines({**SETTINGS, "trimming": {"loaded_topics": True}})
    careful = pipelines(SETTINGS)
    gone: set[int] = set()
    with Traffic(sandbox.service_url, topic) as traffic:
        wait_for("ledgers", lambda: len(traffic.received) > 200)
        wait_listed(sandbox, topic)
        for one in (pipeline, careful):
            one.scan()
        ids = listed(sandbox, topic)
        assert outcomes(trim(careful, topic, ids[0])) == {ids[0]: Outcome.LEFT_TO_BROKER}
        for _ in range(5):
            wait_for("ledgers behind the tail", lambda: len(listed(sandbox, topic)) > 3)
            ids = listed(sandbox, topic)
            trimmed(pipeline, topic, ids[:2])
            assert not set(ids[:2]) & set(listed(sandbox, topic))
            gone |= set(ids[:2])
            so_far = traffic.sent
            wait_for("the consumer to go on", lambda so_far=so_far: max(traffic.received) > so_far + 60)
        assert left_pending(pipeline) == []
        with KazooStore(pipeline.where.settings.zookeeper) as store:  # as a run leaves it that was killed
            control.note_unload(store, control.PendingUnload(Topic.parse(topic), True, 0, control.LEASE))
        assert trim_run.delete_topics(pipeline.where, "finish", [], force=False, dry_run=False) == []
        assert left_pending(pipeline) == []
        wait_listed(sandbox, topic)
        deleted(pipeline, gone)
        assert not existing(sandbox, gone)
    assert traffic.failed == []
    assert sorted(traffic.acknowledged) == list(range(traffic.sent))
    assert set(traffic.received) == set(range(traffic.sent))
    still = listed(sandbox, topic)
    assert existing(sandbox, still) == set(still)


def run_delete_topics(pipeline: Pipeline, topic: str, **config: bool) -> dg.ExecuteInProcessResult:
    job = build_defs(str(pipeline.file)).resolve_job_def("delete_topics")
    quiet = {"loggers": {"console": {"config": {"log_level": "CRITICAL"}}}}
    ops = {"ops": {"delete_whole_topics": {"config": {"topics": [topic], **config}}}}
    with dg.DagsterInstance.ephemeral() as instance:
        return job.execute_in_process(run_config={**quiet, **ops}, instance=instance, raise_on_error=False)


def test_a_whole_topic_goes_with_a_message_for_each_ledger(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "whole")
    topic = f"persistent://{namespace}/whole"
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin, sandbox.metadata() as zk:
        topics.acknowledge_with_holes(sandbox, client, topic, "holes", topics.payloads(120))
        topics.publish(client, topic, topics.payloads(60), keys=[f"key-{n % 7}" for n in range(60)])
        compacted = admin.compact(topic)
        cursors = {znodes.read_cursor(zk, topic, name).cursorsLedgerId for name in ("holes", "__compaction")} - {-1}
        ids = {*znodes.listed_ledgers(zk, topic), compacted, *cursors}
        pipeline = pipelines(SETTINGS)
        pipeline.scan()

        before_it = waiting(sandbox)
        assert run_delete_topics(pipeline, topic).success  # a dry run, unless told otherwise
        assert existing(sandbox, ids) == ids
        assert waiting(sandbox) == before_it

        consumer = client.subscribe(topic, "busy")
        assert not run_delete_topics(pipeline, topic, dry_run=False).success
        assert zk.exists(znodes.topic_znode(topic))
        assert waiting(sandbox) >= before_it + len(ids)
        consumer.close()
    rows = journal_rows(FileJournal(pipeline.lake), topic=topic).to_pylist()
    assert {(row["phase"], row["outcome"]) for row in rows} == {
        ("send", "sent"),
        ("mark", "marked"),
        ("mark", "left"),
    }
    assert ids <= {row["ledger_id"] for row in rows}
    pipeline.scan_and_delete()
    assert existing(sandbox, ids) == ids
    assert {row["outcome"] for ledger in ids for row in pipeline.journal(ledger)} <= {"kept", "retrying", "waiting"}

    done = by_ledger(trim_run.delete_topics(pipeline.where, "whole", [Topic.parse(topic)], force=False, dry_run=False))
    assert ids <= set(done)
    assert set(outcomes(done).values()) == {Outcome.REMOVED}
    assert Outcome.FAILED not in outcomes(done).values()
    with sandbox.metadata() as zk:
        assert not zk.exists(znodes.topic_znode(topic))
    wait_unlisted(sandbox, [topic])
    deleted(pipeline, ids, frozenset({"deleted", "gone"}))
    assert not existing(sandbox, ids)


def test_a_topic_that_is_not_there_and_a_held_one_are_refused(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "refused")
    topic = f"persistent://{namespace}/held"
    with pulsar_client(sandbox.service_url) as client:
        ids = sorted(set(topics.publish(client, topic, topics.payloads(60))))
    pipeline = pipelines({"orphans": {"legal_holds": [namespace]}, "trimming": {"loaded_topics": True}})
    pipeline.scan()
    before_it = waiting(sandbox)
    one = trim(pipeline, topic, ids[0])[ids[0]]
    assert (one.outcome, one.why.code) == (Outcome.REFUSED, Protection.LEGAL_HOLD)
    assert outcomes(trim(pipeline, f"persistent://{namespace}/none", ids[0])) == {-1: Outcome.REFUSED}
    held = by_ledger(trim_run.delete_topics(pipeline.where, "d", [Topic.parse(topic)], force=True, dry_run=False))
    assert [(one.outcome, one.why.code) for one in held.values()] == [(Outcome.REFUSED, Protection.LEGAL_HOLD)]
    assert waiting(sandbox) == before_it


def test_the_source_of_a_shadow_topic_made_after_the_scan_is_refused(
    sandbox: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    namespace = new_namespace(sandbox, "shadowed")
    source, shadow = (f"persistent://{namespace}/{name}" for name in ("source", "shadow"))
    contents = topics.payloads(100)
    pipeline = pipelines({**SETTINGS, "trimming": {"loaded_topics": True}})
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        ids = sorted(set(topics.publish(client, source, contents)))
        pipeline.scan()
        admin.topic("PUT", shadow, "", {"PULSAR.SHADOW_SOURCE": source})
        admin.topic("PUT", source, "/shadowTopics", [shadow])
        reader = client.create_reader(shadow, pulsar.MessageId.earliest)
        assert reader.read_next(60_000).data() == contents[0]
        reader.close()
        before_it = waiting(sandbox)
        for dry_run in (True, False):
            done = trim_run.delete_topics(pipeline.where, "s", [Topic.parse(source)], force=True, dry_run=dry_run)
            assert [(one.outcome, one.why.code) for one in done] == [(Outcome.REFUSED, Protection.SHADOW_SOURCE)]
            found = trim(pipeline, source, ids[0], dry_run=dry_run)
            assert (found[ids[0]].outcome, found[ids[0]].why.code) == (Outcome.REFUSED, Protection.SHADOW_SOURCE)
        assert waiting(sandbox) == before_it
        assert existing(sandbox, ids) == set(ids)
        assert read_all(client, source, len(contents)) == contents
