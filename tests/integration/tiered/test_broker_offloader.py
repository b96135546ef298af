"""The stand-in for a broker's offloader is one: brokers write, read and delete as 4.0.7 does with its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.formats.topic_policies import CHANGE_EVENTS
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.topics.system_topics.change_events import read_namespaces
from pulsar_lifecycle.values.outcomes import Outcome
from sandbox.clients import Admin, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics
from sandbox.servers.toolchain import SandboxError
from tests.integration.pipeline import Pipeline, existing, new_namespace, settings_file
from tests.integration.tiered.broker_offloads import (
    MAX_BLOCK,
    begin_offload,
    misbehaving,
    offload_status,
    offloaded_by_broker,
    published,
    read_by_broker,
    set_policy,
    trim,
    with_offloader,
)
from tests.integration.tiered.offloads import check_ledgers, contexts, keys, messages, offload, planned, s3_client

pytestmark = pytest.mark.integration


@pytest.fixture
def bucket(offloading: Cluster) -> Iterator[Any]:
    with s3_client(offloading) as client:
        yield client


@pytest.fixture
def operator(offloading: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Pipeline]:
    def make(**offload: Any) -> Pipeline:
        return Pipeline(
            settings_file(offloading, tmp_path_factory.mktemp("pipeline"), with_offloader(offloading, **offload))
        )

    return make


def test_a_broker_offloads_reads_and_deletes(
    offloading: Cluster, operator: Callable[..., Pipeline], bucket: Any
) -> None:
    namespace = new_namespace(offloading, "brokers-own")
    topic = f"persistent://{namespace}/a b+é"
    set_policy(offloading, namespace, -1, s3ManagedLedgerOffloadMaxBlockSizeInBytes=MAX_BLOCK)
    payloads = [*topics.payloads(50, "small"), *(os.urandom(300_000) for _ in range(50)), b"last"]
    ledgers = published(offloading, topic, payloads)
    going = sorted(set(ledgers[:-1]))
    before = read_by_broker(offloading, topic, len(payloads))
    assert [payload for *_, payload in before] == payloads
    offloaded_by_broker(offloading, topic, ledgers)
    pipeline = operator()
    check_ledgers(pipeline.where.settings, topic)  # entry by entry against BookKeeper
    assert messages(pipeline, topic) == payloads[:-1]
    assert existing(offloading, going) == set(going)
    set_policy(offloading, namespace, 0)
    trim(offloading, topic)
    wait_for("the broker to delete BookKeeper's copies", lambda: not existing(offloading, going))
    assert all(contexts(offloading, topic)[ledger].bookkeeper_deleted for ledger in going)
    with Admin(offloading.admin_url) as admin:
        admin.unload(topic)
        assert read_by_broker(offloading, topic, len(payloads)) == before
        none = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
        admin.call("POST", f"/v2/namespaces/{namespace}/retention", none)
    trim(offloading, topic)
    wait_for("the broker to delete the objects", lambda: not any(keys(bucket, ledger) for ledger in going))


def test_a_broker_reads_what_we_offload(offloading: Cluster, operator: Callable[..., Pipeline]) -> None:
    namespace = new_namespace(offloading, "ours")
    topic = f"persistent://{namespace}/t"
    set_policy(offloading, namespace, -1, s3ManagedLedgerOffloadMaxBlockSizeInBytes=MAX_BLOCK)
    payloads = [*topics.payloads(50, "small"), *(os.urandom(300_000) for _ in range(50)), b"last"]
    ledgers = published(offloading, topic, payloads)
    going = sorted(set(ledgers[:-1]))
    before = read_by_broker(offloading, topic, len(payloads))
    pipeline = operator(loaded_topics=True)
    plan, _ = planned(pipeline, namespace)
    assert plan.actionable, plan.gaps
    said = offload(pipeline, plan)
    made = contexts(offloading, topic)
    assert all(made[ledger] and made[ledger].complete for ledger in going), said
    set_policy(offloading, namespace, 0)
    assert read_by_broker(offloading, topic, len(payloads)) == before
    trim(offloading, topic)
    wait_for("the broker to delete BookKeeper's copies", lambda: not existing(offloading, going))
    with Admin(offloading.admin_url) as admin:
        admin.unload(topic)
    assert read_by_broker(offloading, topic, len(payloads)) == before


def test_policies_that_are_in_a_bucket_alone_are_read_there(offloading: Cluster, tmp_path: Path) -> None:
    """As earlier versions of brokers offloaded them; 4.0.7 reads them, and offloads none."""
    namespace = new_namespace(offloading, "policies")
    topic, events = f"persistent://{namespace}/t", f"persistent://{namespace}/{CHANGE_EVENTS}"
    settings = with_offloader(offloading, loaded_topics=True, bookkeeper_copies="ours", deletion_lag=0)
    pipeline = Pipeline(settings_file(offloading, tmp_path, settings | {"trimming": {"system_topics": True}}))
    with Admin(offloading.admin_url) as admin:
        admin.topic("PUT", topic)
        first, second = ({"retentionTimeInMinutes": n, "retentionSizeInMB": n} for n in (7, 70))
        admin.topic("POST", topic, "/retention", first)
        admin.topic("POST", topic, "/retention?isGlobal=true", second)
        admin.unload(events)  # its ledger is closed; brokers load it again
        admin.topic("POST", topic, "/messageTTL?messageTTL=5")
        going = min(contexts(offloading, events))
        for run, outcome in ("offload", Outcome.OFFLOADED), ("delete-copies", Outcome.BOOKKEEPER_DELETED):
            plan, _ = planned(pipeline, namespace)
            said = offload(pipeline, plan, run)
            assert said[going].outcome == outcome, said
        assert contexts(offloading, events)[going].bookkeeper_deleted
        found = read_namespaces(pipeline.where, [namespace], {})[namespace].of(Topic.parse(topic))
        admin.unload(events)  # a broker reads it anew
        assert admin.topic("GET", topic, "/retention") == found.first("retentionPolicies") == first
        assert admin.topic("GET", topic, "/retention?isGlobal=true") == second
    assert (found.everywhere or {})["retentionPolicies"] == second
    assert found.first("messageTTLInSeconds") == 5


def test_it_misbehaves_on_demand(offloading: Cluster, bucket: Any) -> None:
    topic = f"persistent://{new_namespace(offloading, 'told')}/t"
    payloads = topics.payloads(60)
    ledgers = published(offloading, topic, payloads)
    with misbehaving(offloading, "hold-offloads") as resume:
        begin_offload(offloading, topic, ledgers[-1])
        wait_for("the data object", lambda: len(keys(bucket, ledgers[0])) == 1)
        assert offload_status(offloading, topic) == "RUNNING"
        attempt = contexts(offloading, topic)[ledgers[0]]
        assert not attempt.complete
        resume()
        wait_for("the offload", lambda: offload_status(offloading, topic) == "SUCCESS")
    assert contexts(offloading, topic)[ledgers[0]].uuid == attempt.uuid
    with misbehaving(offloading, "fail-reads"), Admin(offloading.admin_url) as admin:
        admin.unload(topic)
        with pytest.raises(SandboxError, match="500"):
            admin.topic("GET", topic, f"/ledger/{ledgers[0]}/entry/0")
    assert [payload for *_, payload in read_by_broker(offloading, topic, 60)] == payloads
