"""Delete records on real servers: true low watermarks, a stopped broker, kills, live clients, moved subscriptions."""

from __future__ import annotations

import shutil
import signal
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pulsar
import pyarrow.compute as pc
import pytest

from pulsar_lifecycle.delete_records.apply_run import Patience
from pulsar_lifecycle.delete_records.request import END, PLAIN, DeleteRecordsResult, Offset, Options, Presence
from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, topics_of
from pulsar_lifecycle.errors import LifecycleError, RefusedBy
from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin
from pulsar_lifecycle.model import MessagePosition, Topic
from pulsar_lifecycle.settings import PulsarSettings
from pulsar_lifecycle.values.outcomes import Outcome, Phase
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from pulsar_lifecycle.values.refusals import RefusalCode
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics, znodes
from tests.integration.delete_records.record_requests import (
    COLLECTED,
    CONTENTS,
    MORE,
    QUICK,
    SETTINGS,
    Records,
    left,
    position,
    publish,
    read_all,
    told,
    watermark,
)
from tests.integration.killed_run import Step, strike
from tests.integration.pipeline import (
    Pipeline,
    drain,
    existing,
    new_namespace,
    settings_file,
    wait_listed,
    wait_unlisted,
    wait_until_unloaded_counts,
)
from tests.integration.tiered.offloads import keys, offload, planned, s3_client, with_bucket

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def brokers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two bookies, which collect when told to; two brokers, each of which owns half of the deletion topic."""
    cluster = Cluster(tmp_path_factory.mktemp("records") / "sandbox")
    try:
        cluster.start(bookies=2, brokers=2, gc_wait=3600)
        drain(cluster)
        with Admin(cluster.admin_url) as admin:
            _share_out(cluster, admin, "pulsar/system")
        yield cluster
    finally:
        cluster.stop(purge=True)


def _share_out(cluster: Cluster, admin: Admin, namespace: str) -> None:
    """Give the second broker the bundles of every other partition of the deletion topic, the first one all others."""
    first, second = _ids(cluster)
    bounds = admin.call("GET", f"/v2/namespaces/{namespace}/bundles")["boundaries"]
    settings = PulsarSettings(admin_url=cluster.admin_url, service_url=cluster.service_url)
    with closing(HttpBrokerAdmin(settings)) as http:
        parts = topics_of(http, DELETION_TOPIC)
        places = [zlib.crc32(str(part).encode()) for part in parts[::2]]
        events = f"persistent://{namespace}/__change_events"  # a broker reads it before it serves any topic there
        alone = [Topic.parse(events), Topic.parse(f"{events}-partition-0")]

        def given() -> bool:
            for low, high in pairwise(bounds):
                owner = second if any(int(low, 16) <= place < int(high, 16) for place in places) else first
                path = f"/v2/namespaces/{namespace}/{low}_{high}/unload?destinationBroker={owner}"
                admin.call("PUT", path, accept=(404, 409, 412))
            owners = [http.owner(part) for part in parts]
            return owners == [second, first, second, first] and {http.owner(one) for one in alone} == {first}

        wait_for("each broker to own half of the deletion topic", given)


@pytest.fixture
def records(brokers: Cluster, tmp_path: Path) -> Records:
    pipeline = Pipeline(settings_file(brokers, tmp_path, {**SETTINGS, **QUICK}))
    return Records(brokers, pipeline)


def partitioned(sandbox: Cluster) -> list[str]:
    """Two partitions of the first broker and one of the second."""
    name = f"persistent://{new_namespace(sandbox, 'records')}/parted"
    with closing(
        HttpBrokerAdmin(PulsarSettings(admin_url=sandbox.admin_url, service_url=sandbox.service_url))
    ) as admin:
        first, second = _ids(sandbox)
        admin.create_partitioned_topic(Topic.parse(name), 16)
        by_owner: dict[str, list[str]] = {first: [], second: []}
        for number in range(16):
            part = f"{name}-partition-{number}"
            by_owner[admin.owner(Topic.parse(part))].append(part)
    assert len(by_owner[first]) >= 2, by_owner
    assert by_owner[second], by_owner
    return [*by_owner[first][:2], by_owner[second][0]]


def _ids(sandbox: Cluster) -> tuple[str, str]:
    with closing(
        HttpBrokerAdmin(PulsarSettings(admin_url=sandbox.admin_url, service_url=sandbox.service_url))
    ) as admin:
        ids = admin.brokers()
    port = sandbox.admin_url.rpartition(":")[2]
    first = next(one for one in ids if one.endswith(f":{port}"))
    return first, next(one for one in ids if one != first)


def test_a_stopped_broker_times_out_its_own_partitions_and_a_rerun_completes(brokers: Cluster, tmp_path: Path) -> None:
    """It is the first that the admin URL names, too."""
    sandbox, (first_id, second_id) = brokers, _ids(brokers)
    pulsar = {**SETTINGS["pulsar"], "admin_url": f"http://{second_id},{first_id}"}
    records = Records(sandbox, Pipeline(settings_file(sandbox, tmp_path, {**SETTINGS, "pulsar": pulsar})))
    parts = partitioned(sandbox)
    ledgers = {part: publish(sandbox, part) for part in parts}
    for part in parts:
        wait_listed(sandbox, part)
    records.pipeline.scan()
    marks = {part: position(ledgers[part], 1, 20) for part in parts}
    rows = records.plan(marks)
    assert {row["error"] for row in rows.values()} == {None}, rows
    sandbox.kill("broker-2", signal.SIGSTOP)
    try:
        first = records.apply()
    finally:
        sandbox.kill("broker-2", signal.SIGCONT)
    assert {one.error for one in first.values()} == {RecordsError.TIMEOUT}, told(first)
    assert first[parts[2]].code == RecordsError.TIMEOUT, told(first)
    answers = [None, None, RecordsError.TIMEOUT]
    second = records.delete_until(lambda results: [results[part].error for part in parts] == answers)
    assert [second[part].error for part in parts] == answers, told(first) + told(second)
    assert [second[part].low_watermark for part in parts] == [marks[parts[0]], marks[parts[1]], -1]
    assert len(set(ledgers[parts[2]]) & existing(sandbox, set(ledgers[parts[2]]))) == 3

    records.apply()
    done = records.answered()
    assert done == {part: DeleteRecordsResult(marks[part]) for part in parts}
    for part in parts:
        assert read_all(sandbox, part) == left(ledgers[part], marks[part])
        assert watermark(sandbox, part) == str(marks[part])
        assert not existing(sandbox, {i for i in ledgers[part] if i < marks[part].ledger_id})


def test_the_end_of_an_unloaded_topic_goes_whole_and_every_bookie_says_so(records: Records) -> None:
    sandbox = records.sandbox
    topic = f"persistent://{new_namespace(sandbox, 'end')}/a+b c~é"
    ledgers = publish(sandbox, topic)
    with Admin(sandbox.admin_url) as admin:
        admin.unload(topic)
    since = time.time()
    wait_unlisted(sandbox, [topic])
    wait_until_unloaded_counts(since)
    records.pipeline.scan()
    row = records.plan({topic: END}, Options(exact=True))[topic]
    assert (row["error"], row["rolls"], set(row["ledgers"])) == (None, True, set(ledgers)), row
    records.apply()
    end = MessagePosition(ledgers[-1], ledgers.count(ledgers[-1]))
    assert records.answered() == {topic: DeleteRecordsResult(end)}
    waits = records.apply(Patience(bookies=True), dry_run=True)[topic]
    assert (waits.error, waits.code) == (RecordsError.TIMEOUT, Presence.ON_BOOKIE), waits
    done = records.apply(COLLECTED)
    assert done == {topic: DeleteRecordsResult(end)}, told(done)
    assert records.apply(Patience(bookies=True), dry_run=True) == done
    assert not existing(sandbox, ledgers)
    assert read_all(sandbox, topic) == []
    more = publish(sandbox, topic)
    assert read_all(sandbox, topic) == CONTENTS
    shutil.rmtree(records.pipeline.lake)
    sandbox.restart("broker-1")
    assert read_all(sandbox, topic) == CONTENTS
    assert watermark(sandbox, topic) == str(end)
    assert existing(sandbox, more) == set(more)


def test_producers_and_consumers_lose_nothing_above_the_low_watermark(records: Records) -> None:
    sandbox = records.sandbox
    topic = f"persistent://{new_namespace(sandbox, 'live')}/busy"
    sent: list[bytes] = []
    received: list[bytes] = []
    stop = threading.Event()
    with pulsar_client(sandbox.service_url) as client:
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        ledgers = topics.publish(client, topic, CONTENTS)
        producer = client.create_producer(topic, send_timeout_millis=120_000, batching_enabled=False)

        def produce() -> None:
            while not stop.is_set():
                payload = f"live {len(sent)}".encode()
                producer.send(payload)
                sent.append(payload)
                time.sleep(0.02)

        def consume() -> None:
            end = time.monotonic() + 900  # the test says what is missing
            while (threads[0].is_alive() or not set(received) >= {*CONTENTS, *sent}) and time.monotonic() < end:
                with suppress(pulsar.Timeout):
                    message = consumer.receive(1_000)
                    received.append(message.data())
                    consumer.acknowledge(message)

        threads = [threading.Thread(target=one) for one in (produce, consume)]
        for thread in threads:
            thread.start()
        try:
            wait_listed(sandbox, topic)
            records.pipeline.scan()
            mark = position(ledgers, 2, 0)
            wait_for("the cursor to pass", lambda: records.plan({topic: mark})[topic]["error"] is None)
            records.apply()
            results = records.answered()
        finally:
            stop.set()
            for thread in threads:
                thread.join(120)
    assert results == {topic: DeleteRecordsResult(mark)}
    assert sorted({*CONTENTS, *sent} - set(received)) == []
    assert set(received) == {*CONTENTS, *sent}
    assert list(dict.fromkeys(read_all(sandbox, topic))) == [*left(ledgers, mark), *sent]


def test_a_subscription_below_is_named_and_moved_where_that_is_asked_for(records: Records) -> None:
    sandbox = records.sandbox
    topic = f"persistent://{new_namespace(sandbox, 'cursor')}/t"
    shared = {"consumer_type": pulsar.ConsumerType.Shared, "initial_position": pulsar.InitialPosition.Earliest}
    with pulsar_client(sandbox.service_url) as client:
        consumer = client.subscribe(topic, "s/é", **shared)
        ledgers = topics.publish(client, topic, CONTENTS)
        received = [consumer.receive(60_000) for _ in CONTENTS]
        beyond = CONTENTS[110:113]  # acknowledged one by one, beyond the position
        for message in received:
            if message.data() in beyond:
                consumer.acknowledge(message)
        consumer.close()
    wait_listed(sandbox, topic)
    records.pipeline.scan()
    mark = position(ledgers, 2, 5)
    row = records.plan({topic: mark})[topic]
    assert row["error"] == RecordsError.CURSOR_BELOW
    assert "s/é at" in row["reason"]
    assert "105 entries" in row["reason"]
    row = records.plan({topic: mark}, Options(move_cursors=True))[topic]
    assert (row["error"], len(row["moved_cursors"])) == (None, 1), row
    records.apply()
    assert records.answered() == {topic: DeleteRecordsResult(mark)}
    with pulsar_client(sandbox.service_url) as client:
        consumer = client.subscribe(topic, "s/é", **shared)
        left_to_it = [one for one in CONTENTS[105:] if one not in beyond]
        assert sorted(consumer.receive(60_000).data() for _ in left_to_it) == sorted(left_to_it)
        with pytest.raises(pulsar.Timeout):
            consumer.receive(3_000)


STEPS = [
    Step("queue", "send", after=True),
    Step("journal", "record", after=False, about="marked"),
    Step("store", "write", after=False, about="/managed-ledgers/it/"),
    Step("store", "write", after=True, about="/managed-ledgers/it/"),
    Step("admin", "unload", after=True),
]


@pytest.mark.parametrize("step", STEPS, ids=lambda step: step.name)
def test_a_run_that_is_killed_is_finished_by_the_next_one(records: Records, step: Step) -> None:
    sandbox = records.sandbox
    topic = f"persistent://{new_namespace(sandbox, 'killed')}/t"
    ledgers = publish(sandbox, topic)
    wait_listed(sandbox, topic)
    mark = position(ledgers, 1, 3)
    killed(records, step, topic, mark)
    records.apply()
    assert records.answered() == {topic: DeleteRecordsResult(mark)}
    assert read_all(sandbox, topic) == [*left(ledgers, mark), *MORE]


def killed(records: Records, step: Step, topic: str, offset: Offset, options: Options = PLAIN) -> dict[str, Any]:
    """Plan, and a run that is killed at a step; then the topic gets :data:`MORE`. The plan's row."""
    records.pipeline.scan()
    row = records.plan({topic: offset}, options)[topic]
    assert row["error"] is None, row
    arguments = {"plan_id": records.summary.plan_id, "digest": records.summary.digest, "run_id": "killed"}
    strike(records.pipeline.file, "records", arguments, step).struck()
    publish(records.sandbox, topic, MORE)
    wait_for("the dead run's lease to end", lambda: _lease_is_free(records.sandbox), 120)
    return row


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_that_is_killed_as_it_moves_a_cursor_is_finished_by_the_next_one(records: Records, after: bool) -> None:
    sandbox = records.sandbox
    topic = f"persistent://{new_namespace(sandbox, 'killed')}/t"
    with pulsar_client(sandbox.service_url) as client:
        consumer = client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest)
        ledgers = topics.publish(client, topic, CONTENTS)
        consumer.close()
    wait_listed(sandbox, topic)
    mark = position(ledgers, 1, 3)
    row = killed(records, Step("admin", "move_cursor", after, "killed-"), topic, mark, Options(move_cursors=True))
    (moved,) = row["moved_cursors"]
    found = records.pipeline.where.journal_reader.find(pc.field("phase") == Phase.MOVE_CURSOR, ["outcome", "detail"])
    (begun,) = found.to_pylist()
    assert begun["outcome"] == Outcome.BEGUN
    assert moved["position"] in begun["detail"]  # who died had said where it stood
    records.apply()
    assert records.answered() == {topic: DeleteRecordsResult(mark)}
    assert read_all(sandbox, topic) == [*left(ledgers, mark), *MORE]
    unread = [*CONTENTS[ledgers.index(mark.ledger_id) + mark.entry_id :], *MORE]
    with pulsar_client(sandbox.service_url) as client:
        consumer = client.subscribe(topic, "s")
        assert [consumer.receive(60_000).data() for _ in unread] == unread


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("method", ["unload", "subscriptions"])
def test_a_run_that_is_killed_as_it_rolls_the_end_is_finished_by_the_next_one(
    records: Records, method: str, after: bool
) -> None:
    """The unload closes the ledger, and the load that ``subscriptions`` is begins another."""
    sandbox = records.sandbox
    topic = f"persistent://{new_namespace(sandbox, 'killed')}/t"
    ledgers = publish(sandbox, topic)
    wait_listed(sandbox, topic)
    row = killed(records, Step("admin", method, after, "killed-"), topic, END)
    end = MessagePosition(ledgers[-1], ledgers.count(ledgers[-1]))
    assert row["rolls"]
    records.apply()
    assert records.answered() == {topic: DeleteRecordsResult(end)}
    assert (rest := read_all(sandbox, topic))[-len(MORE) :] == MORE
    assert CONTENTS[0] not in rest


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_run_that_is_killed_as_a_broker_raises_the_low_watermark_is_finished_by_the_next_one(
    records: Records, after: bool
) -> None:
    sandbox = records.sandbox
    topic = f"persistent://{new_namespace(sandbox, 'killed')}/t"
    ledgers = publish(sandbox, topic)
    wait_listed(sandbox, topic)
    mark = position(ledgers, 0, 4)
    killed(records, Step("admin", "set_properties", after, str(mark)), topic, mark)
    assert records.apply() == {topic: DeleteRecordsResult(mark)}
    assert watermark(sandbox, topic) == str(mark)
    assert read_all(sandbox, topic) == [*CONTENTS, *MORE]


def _lease_is_free(sandbox: Cluster) -> bool:
    with sandbox.metadata() as zk:
        return zk.exists("/pulsar-lifecycle/lease/holder") is None


def test_of_two_runs_at_once_one_is_refused_or_both_agree(records: Records) -> None:
    sandbox = records.sandbox
    topic = f"persistent://{new_namespace(sandbox, 'twice')}/t"
    ledgers = publish(sandbox, topic)
    wait_listed(sandbox, topic)
    records.pipeline.scan()
    mark = position(ledgers, 1, 0)
    records.plan({topic: mark})
    ended: list[Any] = []

    def run() -> None:
        try:
            ended.append(records.apply())
        except LifecycleError as error:
            ended.append(error)

    threads = [threading.Thread(target=run) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert len(ended) == 2
    refused = [one.code if isinstance(one, RefusedBy) else one for one in ended if not isinstance(one, dict)]
    assert set(refused) <= {RefusalCode.LEASE_HELD}, ended
    assert records.answered() == {topic: DeleteRecordsResult(mark)}
    with sandbox.metadata() as zk:
        assert min(znodes.listed_ledgers(zk, topic)) == mark.ledger_id


def test_an_offloaded_prefix_goes_from_the_bucket_and_from_bookkeeper(brokers: Cluster, tmp_path: Path) -> None:
    namespace = new_namespace(brokers, "tiered")
    topic = f"persistent://{namespace}/a b+é"
    ledgers = publish(brokers, topic)
    pipeline = Pipeline(
        settings_file(brokers, tmp_path, {**SETTINGS, **with_bucket(brokers, bookkeeper_copies="brokers")})
    )
    records = Records(brokers, pipeline)
    _unload(brokers, topic)
    plan, _ = planned(pipeline, namespace)
    first, second, last = dict.fromkeys(ledgers)
    assert {ledger: one.outcome for ledger, one in offload(pipeline, plan).items()} == dict.fromkeys(
        (first, second), Outcome.OFFLOADED
    )
    _unload(brokers, topic)
    pipeline.scan()
    mark = MessagePosition(second, 20)
    row = records.plan({topic: mark})[topic]
    assert (row["error"], row["ledgers"]) == (None, [first]), row
    assert [one["ledger_id"] for one in row["copies"]] == [first, second]
    with s3_client(brokers) as bucket:
        assert [len(keys(bucket, ledger)) for ledger in (first, second)] == [2, 2]
        refused = records.apply()[topic]
        assert refused.error == RecordsError.TIMEOUT
        assert len(keys(bucket, first)) == 2
        done = records.apply(COLLECTED)
        assert done == {topic: DeleteRecordsResult(mark)}, told(done)
        assert [len(keys(bucket, ledger)) for ledger in (first, second)] == [0, 2]
    assert existing(brokers, (first, second, last)) == {second, last}
    # the end takes the other copy, too
    pipeline.scan()
    row = records.plan({topic: END})[topic]
    assert (row["error"], row["ledgers"]) == (None, [second, last]), row
    end = MessagePosition.parse(row["low_watermark"])
    assert end >= MessagePosition(last, ledgers.count(last))
    records.apply()
    assert records.answered() == {topic: DeleteRecordsResult(end)}
    with s3_client(brokers) as bucket:
        assert keys(bucket, second) == []
    assert read_all(brokers, topic) == []


def _unload(sandbox: Cluster, topic: str) -> None:
    with Admin(sandbox.admin_url) as admin:
        admin.unload(topic)
    since = time.time()
    wait_unlisted(sandbox, [topic])
    wait_until_unloaded_counts(since)
