"""Load runs on a sandbox: topics that only a broker can free, the settings to load them, and what a run leaves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pulsar

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin
from pulsar_lifecycle.lifecycle.load.load_planning import TABLE, make_load_plan
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.settings import PulsarSettings
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.plans.load_plan import TOPICS_TO_LOAD
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from sandbox.clients import Admin, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics
from tests.integration.pipeline import Pipeline, settings_file

CONTENTS = topics.payloads(70)
"""Two ledgers: the sandbox's have 50 entries."""


def pipeline_of(
    cluster: Cluster,
    folder: Path,
    namespaces: Sequence[str],
    *,
    request_timeout: float = 30.0,
    inactivity: Mapping[str, Any] | None = None,
    **load: Any,
) -> Pipeline:
    """One that may load the topics of these namespaces; ``load``: more of that section."""
    section = {"namespaces": list(namespaces), "min_bytes": 1, "min_owner_age": "1s", "timeout": "60s", **load}
    section["max_broker_load"] = 1.0  # a test machine is busy
    overrides = {
        "zookeeper": {"session_timeout": "5s", "slow_above": "2s", "stop_above": "20s"},
        "pulsar": {"request_timeout": f"{request_timeout:g}s"},
        "load": section,
        "inactivity": dict(inactivity or {}),
    }
    return Pipeline(settings_file(cluster, folder, overrides))


def no_retention(admin: Admin, namespace: str) -> None:
    """Let brokers retain nothing that was read."""
    policy = {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0}
    admin.call("POST", f"/v2/namespaces/{namespace}/retention", policy)


def expiry(admin: Admin, namespace: str, seconds: int) -> None:
    """Let brokers expire messages that are older."""
    admin.call("POST", f"/v2/namespaces/{namespace}/messageTTL", seconds)


def filled(
    client: pulsar.Client, admin: Admin, topic: str, *, subscribed: bool = True, read: bool = False
) -> list[int]:
    """A topic, perhaps with a subscription that has read all or nothing, unloaded; returns its ledgers."""
    if subscribed:
        client.subscribe(topic, "s", initial_position=pulsar.InitialPosition.Earliest).close()
    ids = list(dict.fromkeys(topics.publish(client, topic, CONTENTS)))
    if read:
        admin.topic("POST", topic, "/subscription/s/skip_all")
    admin.unload(topic)
    return ids


def planned(pipeline: Pipeline) -> tuple[PlanSummary, dict[str, dict[str, Any]]]:
    """A plan of a new scan, and all rows of ``topics_to_load`` by topic."""
    return plan_of(pipeline, pipeline.scan())


def plan_of(pipeline: Pipeline, epoch: Epoch) -> tuple[PlanSummary, dict[str, dict[str, Any]]]:
    """The same of a scan."""
    summary, _ = make_load_plan(pipeline.where, epoch)
    lake = pipeline.where.lake
    batches = lake.batches(lake.parts(epoch.epoch_id, TABLE), TOPICS_TO_LOAD.names)
    return summary, {row["topic"]: row for batch in batches for row in batch.to_pylist()}


def notes(cluster: Cluster) -> list[str]:
    """The z-nodes of unloads that a load run has left pending."""
    with cluster.metadata() as zk:
        path = control.PENDING_UNLOADS[control.LEASE]
        return list(zk.get_children(path) or ()) if zk.exists(path) else []


def broker_id(cluster: Cluster, topic: str) -> str:
    """The id of the broker that has the bundle of a topic, or takes it."""
    asked = PulsarSettings(admin_url=cluster.admin_url, service_url=cluster.service_url)
    with closing(HttpBrokerAdmin(asked)) as admin:
        return admin.owner(Topic.parse(topic))


def give(cluster: Cluster, admin: Admin, namespace: str, broker: str) -> None:
    """Have a broker, by its id, take a namespace of one bundle."""
    topic = f"persistent://{namespace}/t"
    whole = f"/v2/namespaces/{namespace}/0x00000000_0xffffffff/unload?destinationBroker={broker}"

    def given() -> bool:
        with suppress(LifecycleError):  # it may have another owner, or none, by now
            if broker_id(cluster, topic) == broker:
                return True
            admin.call("PUT", whole, accept=(404, 409, 412, 500))
            return broker_id(cluster, topic) == broker
        return False

    wait_for(f"{broker} to take {namespace}", given)
