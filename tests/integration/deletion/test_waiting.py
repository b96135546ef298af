"""Messages that must wait, on brokers that hand out few unacknowledged ones: they hide nothing, and none is lost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from uuid import uuid4

import pulsar
import pytest

from pulsar_lifecycle.deletion.workers import RunEnd
from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, RETRY_TOPIC, SUBSCRIPTION
from pulsar_lifecycle.formats.deletion_message import (
    LedgerComponent,
    LedgerType,
    MessageOffloadContext,
    PendingDeleteLedgerInfo,
)
from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin
from pulsar_lifecycle.io.pulsar.queue import PulsarQueueReader
from pulsar_lifecycle.ports import Received
from pulsar_lifecycle.settings import PulsarSettings
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import BUCKET, Cluster
from sandbox.planting import plant
from tests.integration import pipeline as driving
from tests.integration.killed_run import Step, strike
from tests.integration.pipeline import PATIENT, Pipeline, existing, new_namespace, object_store, waiting

pytestmark = pytest.mark.integration

MANY, FEW = 160, 8
UNACKED = 10
LIMIT = "/v2/namespaces/pulsar/system/maxUnackedMessagesPer"


@pytest.fixture
def narrow(sandbox: Cluster) -> Iterator[Cluster]:
    """The sandbox, whose brokers leave off at a few unacknowledged messages of our topics."""
    driving.drain(sandbox)
    with Admin(sandbox.admin_url) as admin:
        for what in ("Consumer", "Subscription"):
            admin.call("POST", f"{LIMIT}{what}", UNACKED)
        try:
            yield sandbox
        finally:
            for what in ("Consumer", "Subscription"):
                admin.call("DELETE", f"{LIMIT}{what}")
            driving.drain(sandbox)


def offloaded(topic: str, ledger_id: int) -> PendingDeleteLedgerInfo:
    """A message about an offloaded copy that is gone."""
    msb, lsb = (part - (1 << 63) for part in divmod(uuid4().int, 1 << 64))
    context = MessageOffloadContext(msb=msb, lsb=lsb, driver_name="aws-s3", metadata={"bucket": BUCKET})
    return PendingDeleteLedgerInfo(
        topic_name=topic,
        component=LedgerComponent.MANAGED_LEDGER,
        ledger_id=ledger_id,
        ledger_type=LedgerType.OFFLOAD_LEDGER,
        offload_context=context,
    )


def leaked(sandbox: Cluster, topic: str, count: int) -> list[PendingDeleteLedgerInfo]:
    """Messages about orphans, which a run can decide."""
    ids = [plant.young(sandbox, topic)[0].ledger_id for _ in range(count)]
    return [
        PendingDeleteLedgerInfo(topic_name=topic, component=LedgerComponent.MANAGED_LEDGER, ledger_id=i) for i in ids
    ]


def in_retry_topic(sandbox: Cluster) -> list[Received]:
    settings = PulsarSettings(admin_url=sandbox.admin_url, service_url=sandbox.service_url)
    with closing(HttpBrokerAdmin(settings)) as admin, closing(PulsarQueueReader(settings, admin)) as reader:
        parts = reader.partitions(RETRY_TOPIC)
        return [message for part in parts for message in reader.waiting(part, None, 10_000).messages]


def outcomes_of(pipeline: Pipeline, run_id: str) -> dict[int, set[str]]:
    found: dict[int, set[str]] = {}
    for row in pipeline.journal():
        if row["run_id"] == run_id:
            found.setdefault(row["ledger_id"], set()).add(row["outcome"])
    return found


def test_a_flood_that_must_wait_hides_nothing_and_is_settled_once_it_can_be(
    narrow: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    topic, other = (f"persistent://{new_namespace(narrow, name)}/leaked" for name in ("flood", "beside"))
    deletion = {**PATIENT, "waiting_delay": "1s"}
    pipeline = pipelines({"deletion": deletion})
    first = 1 << 40
    flood = [offloaded(topic, first + n) for n in range(MANY)]
    few = leaked(narrow, other, FEW)
    pipeline.scan()
    driving.send(narrow, flood)
    driving.send(narrow, few)
    outcomes = pipeline.scan_and_delete("without")
    assert not existing(narrow, {info.ledger_id for info in few})
    found = {(o.outcome, o.ledgers) for o in outcomes}
    assert found == {("deleted", FEW), ("waiting", MANY)}, outcomes
    wait_for("the acknowledgements to arrive", lambda: waiting(narrow) == MANY)
    copies = in_retry_topic(narrow)
    assert sorted(one.info.ledger_id for one in copies if one.info) == [first + n for n in range(MANY)]
    for one in copies:
        said = one.properties
        assert (said["LIFECYCLE_WAITING_FOR"], said["LIFECYCLE_WAITING_RUN"]) == ("no-object-store", "without")
        assert 0 < int(said["LIFECYCLE_WAITING_SINCE"]) <= one.publish_time
        assert "RECONSUMETIMES" not in said

    again = pipeline.scan_and_delete("still without")
    assert {(o.outcome, o.ledgers) for o in again} == {("waiting", MANY)}, again

    mended = pipelines({"deletion": deletion, "object_store": object_store(narrow)}, lake=pipeline.lake)
    found = mended.scan_and_delete("with")
    assert {(o.outcome, o.ledgers) for o in found} == {("gone", MANY)}, found
    wait_for("the acknowledgements to arrive", lambda: waiting(narrow) == 0)
    last = outcomes_of(pipeline, "with")
    assert {info.ledger_id: {"gone"} for info in flood} == last


def test_a_run_killed_between_copy_and_acknowledgement_loses_nothing(
    narrow: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    topic = f"persistent://{new_namespace(narrow, 'killed')}/leaked"
    session = {"session_timeout": "5s"}  # the next run waits for a killed one's to end
    pipeline = pipelines({"zookeeper": session, "deletion": {"waiting_delay": "1s"}})
    messages = [offloaded(topic, (1 << 41) + n) for n in range(6)]
    pipeline.scan()
    driving.send(narrow, messages)
    pipeline.scan()
    strike(pipeline.file, "delete", {"run_id": "killed"}, Step("queue", "send_back", after=True)).struck()
    copies = Counter(one.info.ledger_id for one in in_retry_topic(narrow) if one.info)
    assert copies
    assert waiting(narrow) == len(messages) + copies.total()  # nothing was acknowledged
    mended = pipelines({"deletion": PATIENT, "object_store": object_store(narrow)}, lake=pipeline.lake)
    wait_for("the killed run's session to end", lambda: _lease_is_free(mended))
    found = mended.scan_and_delete("rerun")
    assert {(o.outcome, o.ledgers) for o in found} == {("gone", len(messages) + copies.total())}, found
    wait_for("the acknowledgements to arrive", lambda: waiting(narrow) == 0)


def _lease_is_free(pipeline: Pipeline) -> bool:
    from pulsar_lifecycle.io.zookeeper.store import KazooStore
    from pulsar_lifecycle.runs.control import LEASE, holder_of

    with KazooStore(pipeline.where.settings.zookeeper, read_only=True) as store:
        return store.read([holder_of(LEASE)]) == [None]


def test_what_another_consumer_holds_fails_the_run_and_is_named(
    narrow: Cluster, pipelines: Callable[..., Pipeline]
) -> None:
    topic = f"persistent://{new_namespace(narrow, 'held')}/leaked"
    pipeline = pipelines({"deletion": PATIENT})
    few = leaked(narrow, topic, 4)
    pipeline.scan()
    driving.send(narrow, few)
    with pulsar_client(narrow.service_url) as client:
        holder = client.subscribe(
            str(DELETION_TOPIC), SUBSCRIPTION, pulsar.ConsumerType.Shared, receiver_queue_size=UNACKED
        )
        held = [holder.receive(60_000) for _ in few]
        outcomes = pipeline.scan_and_delete("hindered")
        (said,) = outcomes
        assert (said.outcome, said.ledgers) == (RunEnd.WITHHELD, len(few))
        parts = Counter(message.topic_name() for message in held)
        assert all(f"{part}: {count}" in said.reason for part, count in parts.items()), said.reason
    assert {(o.outcome, o.ledgers) for o in pipeline.scan_and_delete("alone")} == {("deleted", len(few))}
