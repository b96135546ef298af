"""A cluster of fakes whose topics and subscriptions are watched, scan after scan, a day apart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.lifecycle.activity.activity_run import (
    CURSORS,
    TOPIC_TABLE,
    ActivityReport,
    build_activity,
)
from pulsar_lifecycle.model import Position, Topic, encode_name
from pulsar_lifecycle.ports import TopicConnections
from pulsar_lifecycle.values.epoch import Epoch
from tests.kit.scenes.lifecycle.load_scene import LoadScene
from tests.kit.scenes.retention_scene import NAMESPACE
from tests.kit.simulated.cluster import data_tags
from tests.kit.simulated.topic_policies import set_topic_policies

DAY = 86_400_000


class ActivityScene(LoadScene):
    """Topics of namespace ``acme/orders``; their retention is none, and the settings let all that is inactive go."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, files: bool = False) -> None:
        super().__init__(folder, monkeypatch, files=files)
        self.retention(0, 0)
        self.choose(topics=(NAMESPACE,), subscriptions=(NAMESPACE,))
        self.epoch: Epoch | None = None
        """The newest."""

    def choose(self, **inactivity: Any) -> None:
        """Change section ``[inactivity]`` of the settings."""
        section = self.settings.inactivity.model_copy(update=inactivity)
        object.__setattr__(self, "settings", self.settings.model_copy(update={"inactivity": section}))
        object.__setattr__(self.cluster, "settings", self.settings)

    def named(self, name: str) -> Topic:
        return Topic.parse(f"persistent://{NAMESPACE}/{name}")

    def used(self, name: str, *subscriptions: str, read: bool = True) -> list[int]:
        """A topic of two ledgers, closed a day ago; its subscriptions have read all of it, or nothing."""
        ids = self.topic(name, 24 * 60, 24 * 60)
        for subscription in subscriptions:
            self.at(name, subscription, Position(ids[-1], 0) if read else Position(ids[0], -1))
        return ids

    def at(self, name: str, subscription: str, position: Position, last_active: int = 0) -> None:
        """Where a subscription stands, in its z-node."""
        info = cursor_format.ManagedCursorInfo(-1, position, last_active=last_active or None)
        path = f"{self.servers.topic_path(self.named(name))}/{encode_name(subscription)}"
        self.servers.put(path, cursor_format.encode(info))

    def write(self, name: str) -> int:
        """The topic gets another closed ledger."""
        topic = self.named(name)
        path = self.servers.topic_path(topic)
        ledger = self.servers.ledger(data_tags(topic))
        info = managed_ledger.decode(self.servers.zookeeper.data(path))
        added = managed_ledger.LedgerInfo(ledger, 1, 100, self.now, None)
        self.servers.put(path, managed_ledger.encode(replace(info, ledgers=(*info.ledgers, added))))
        return ledger

    def clients(self, name: str, producers: int = 0, published: int = 0, **consumers: int) -> None:
        """The broker has the topic loaded, with these clients."""
        self.servers.load(self.named(name))
        self.servers.admin.clients[self.named(name)] = TopicConnections(producers, consumers, published)

    def unlisted(self, name: str) -> None:
        """The broker lists it no more."""
        self.servers.admin.loaded.pop(str(self.named(name)))

    def days(self, count: float, *, every: float = 1) -> ActivityReport:
        """Scan and report now and ``every`` day, for so many days; returns the last report."""
        report = self.report()
        for _ in range(round(count / every)):
            self.servers.wait(every * 24 - 1)  # a scan takes an hour
            report = self.report()
        return report

    def report(self) -> ActivityReport:
        """Scan and report."""
        self.epoch = self.scan()
        return build_activity(self.cluster, self.epoch)

    def row(self, name: str, cursor: str = "") -> dict[str, Any]:
        """What the newest report says of a topic or a subscription."""
        assert self.epoch
        table = self.lake.read_epoch_table(self.epoch.epoch_id, CURSORS if cursor else TOPIC_TABLE).to_pylist()
        own = [row for row in table if row["topic"] == str(self.named(name))]
        return next(row for row in own if not cursor or row["cursor"] == cursor)


def never_deleted(scene: ActivityScene, name: str) -> None:
    """From now on a topic has a policy of its own that keeps it while it is inactive."""
    policies = {"inactiveTopicPolicies": {"deleteWhileInactive": False}}
    set_topic_policies(scene.servers, scene.named(name), policies)


def kept(table: Any) -> dict[str, str | None]:
    """What keeps each inactive topic or subscription, by the last part of its topic's name, and its own."""
    return {
        "/".join(filter(None, (row["topic"].rpartition("/")[2], row.get("cursor")))): row["kept"]
        for row in table.to_pylist()
    }
