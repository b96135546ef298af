"""The demo's act about a full disk: data past its retention in topics that no broker has, and what must hold after.

Belongs here: making the topics, and checking ledgers, messages and the bookie's files independently of what the
product says it did. Not here: driving the jobs (:mod:`sandbox.demo`).
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pulsar

from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.settings import Settings
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import topics, znodes
from sandbox.planting.seed import Live
from sandbox.planting.topics import digest

HISTORY, SESSIONS, ALERTS = "disk/history", "disk/sessions", "disk/alerts"
"""Retention of an hour; none, so that a broker would trim at once; none, and a TTL of five seconds."""
_MB = 1 << 20
_TWO_HOURS_MS = 7_200_000


@dataclass(frozen=True)
class Expired:
    """What the act has made: the ledgers that are to go, by what frees them, and the topics that must stay whole."""

    by_metadata: dict[str, list[int]]
    """Topic -> ledgers past the retention time. No broker may load it."""
    by_broker: dict[str, list[int]]
    """Topic -> ledgers that only a broker frees: one never closed, and one whose messages are past their TTL."""
    live: list[Live]
    entry_logs: int
    """Bytes of the bookie's entry logs then."""

    @property
    def ledgers(self) -> set[int]:
        """Every ledger that is to go."""
        return {ledger for made in (self.by_metadata, self.by_broker) for ids in made.values() for ledger in ids}


def seed(cluster: Cluster, settings: Settings) -> Expired:
    """Make the topics. Kills the first broker and starts it again: that leaves a ledger open for ever.

    The bookie collects once, as one that has run for a quarter of an hour would have: before, it cannot say what it
    has.
    """
    clicks, views, held = (f"persistent://{HISTORY}/{name}" for name in ("clicks", "views", "held"))
    session, alert = f"persistent://{SESSIONS}/killed", f"persistent://{ALERTS}/abandoned"
    with Admin(cluster.admin_url) as admin, pulsar_client(cluster.service_url) as client:
        _namespace(admin, HISTORY, 60)
        _namespace(admin, SESSIONS, 0)
        _namespace(admin, ALERTS, 0)
        admin.call("POST", f"/v2/namespaces/{ALERTS}/messageTTL", 5)
        ids = {clicks: _publish(client, clicks, 160), views: _publish(client, views, 30)}
        client.subscribe(held, "slow", initial_position=pulsar.InitialPosition.Earliest).close()
        ids[held] = _publish(client, held, 60, 100)
        client.subscribe(alert, "pager", initial_position=pulsar.InitialPosition.Earliest).close()
        ids[alert] = _publish(client, alert, 20)
        for topic in (clicks, views, held, alert):
            admin.unload(topic)
        ids[session] = _publish(client, session, 20)
    cluster.kill("broker-1")
    cluster.start_server("broker-1")
    _close_earlier(cluster, (clicks, held))
    _collect(settings)
    wait_for("the broker to forget the topics", lambda: not loaded(cluster))
    live = [
        Live(clicks, 10, digest(_payloads(clicks, 160)[150:])),
        Live(views, 30, digest(_payloads(views, 30))),
        Live(held, 60, digest(_payloads(held, 60, 100))),
    ]
    by_metadata, by_broker = {clicks: ids[clicks][:-1]}, {session: ids[session], alert: ids[alert]}
    return Expired(by_metadata, by_broker, live, entry_log_bytes(cluster))


def left(cluster: Cluster, made: Expired) -> list[int]:
    """The ledgers that should be gone and that BookKeeper still lists."""
    with cluster.metadata() as zk:
        return sorted(ledger for ledger in made.ledgers if zk.exists(znodes.ledger_znode(ledger)))


def loaded(cluster: Cluster) -> set[str]:
    """The topics past their retention time that a broker has loaded: nobody needed them."""
    with Admin(cluster.admin_url) as admin:
        bundles = admin.call("GET", "/v2/broker-stats/topics").get(HISTORY, {})
    return {topic for domains in bundles.values() for names in domains.values() for topic in names}


def entry_log_bytes(cluster: Cluster) -> int:
    """Bytes of the entry logs on the bookie's disk, as its files show them."""
    return sum(file.stat().st_size for file in Path(cluster.data).glob("bookie-*/ledgers/current/*.log"))


def _namespace(admin: Admin, name: str, minutes: int) -> None:
    admin.create_namespace(name)
    policy = {"retentionTimeInMinutes": minutes, "retentionSizeInMB": -1 if minutes else 0}
    admin.call("POST", f"/v2/namespaces/{name}/retention", policy)


def _payloads(topic: str, count: int, size: int = _MB) -> list[bytes]:
    """Payloads that cannot be compressed, the same each time."""
    source = random.Random(topic)  # noqa: S311 - content, no secret
    return [source.randbytes(size) for _ in range(count)]


def _publish(client: pulsar.Client, topic: str, count: int, size: int = _MB) -> list[int]:
    """The ledgers that the messages went to, oldest first."""
    return list(dict.fromkeys(topics.publish(client, topic, _payloads(topic, count, size))))


def _close_earlier(cluster: Cluster, names: Sequence[str]) -> None:
    """Let all but the last ledger of these topics be closed two hours ago: a demo cannot wait for a retention time."""
    at = int(time.time() * 1000) - _TWO_HOURS_MS
    with cluster.metadata() as zk:
        for name in names:
            with znodes.editing(zk, name) as info:
                for entry in info.ledgerInfo[:-1]:
                    entry.timestamp = at


def _collect(settings: Settings) -> None:
    with Connections(settings, read_only=True) as ports:
        admin = ports.bookies
        (bookie,) = admin.bookies()
        before = admin.status(bookie).compactions[0].minors
        admin.collect(bookie, major=False)
        wait_for("the bookie to collect", lambda: admin.status(bookie).compactions[0].minors > before)
