"""Topics past their retention on a sandbox: policies, earlier closing times, who has what loaded."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import replace

from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.io.pulsar.admin import HttpBrokerAdmin
from pulsar_lifecycle.settings import PulsarSettings
from sandbox.clients import Admin
from sandbox.cluster import Cluster
from sandbox.planting import znodes

HOUR = 3_600_000
BUNDLES = 64
"""So many that none of a test's namespace has more topics than the three with which production's brokers split it."""


def retention(admin: Admin, namespace: str, minutes: int) -> None:
    policy = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": -1}
    admin.call("POST", f"/v2/namespaces/{namespace}/retention", policy)


def keep_inactive_topics(admin: Admin, namespace: str) -> None:
    """Let no broker delete topics of the namespace that nobody uses, which it may as soon as it has loaded one."""
    policy = {
        "inactiveTopicDeleteMode": "delete_when_no_subscriptions",
        "maxInactiveDurationSeconds": HOUR // 1000,
        "deleteWhileInactive": False,
    }
    admin.call("POST", f"/v2/namespaces/{namespace}/inactiveTopicPolicies", policy)


def close_earlier(sandbox: Cluster, names: Sequence[str]) -> None:
    """Let all but the last ledger of these topics, which no broker has, be closed two hours ago."""
    at = int(time.time() * 1000) - 2 * HOUR
    with sandbox.metadata() as zk:
        for name in names:
            data, stat = zk.get(znodes.topic_znode(name))
            info = managed_ledger.decode(data)
            earlier = [replace(item, timestamp=at) for item in info.ledgers[:-1]]
            changed = replace(info, ledgers=(*earlier, info.ledgers[-1]))
            zk.set(znodes.topic_znode(name), managed_ledger.encode(changed), version=stat.version)


def unloaded(sandbox: Cluster, admin: Admin, names: Collection[str]) -> bool:
    """Have brokers unload those that they list, which a bundle's move may have them load again.

    While its bundle moves a topic has no owner, or not yet that one: its unload is answered with 412 or 500.
    """
    listed = set(names) & loaded(sandbox)
    for name in listed:
        admin.topic("PUT", name, "/unload", accept=(404, 412, 500))
    return not listed


def loaded(sandbox: Cluster) -> set[str]:
    asked = PulsarSettings(admin_url=sandbox.admin_url, service_url=sandbox.service_url)
    with closing(HttpBrokerAdmin(asked)) as admin:
        return {str(topic) for topic in admin.loaded_topics()}


def backlog(admin: Admin, topic: str) -> int:
    stats = admin.topic("GET", topic, "/stats?getPreciseBacklog=true")
    return int(stats["subscriptions"]["s"]["msgBacklog"])
