"""A cluster of fakes with topics that need a broker, whose fake broker loads, expires, trims and unloads them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import ledger_metadata, managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.model import Position, Topic, encode_name
from tests.kit.fakes.broker_admin import FakeSubscription
from tests.kit.scenes.retention_scene import MINUTE, NAMESPACE, RetentionScene
from tests.kit.simulated.cluster import BROKER, data_tags


class LoadScene(RetentionScene):
    """Topics of namespace ``acme/orders``, which the settings let us load; nothing there expires or is deleted."""

    CONFIGURATION: ClassVar[dict[str, str]] = {
        "ttlDurationDefaultInSeconds": "0",
        "subscriptionExpirationTimeMinutes": "0",
        "brokerDeleteInactiveTopicsEnabled": "false",
        "brokerDeleteInactiveTopicsMode": "delete_when_no_subscriptions",
        "additionalSystemCursorNames": "[]",
        "replicatorPrefix": "pulsar.repl",
        "backlogQuotaCheckEnabled": "true",
        "backlogQuotaDefaultRetentionPolicy": "producer_request_hold",
        "backlogQuotaDefaultLimitBytes": "-1",
        "backlogQuotaDefaultLimitGB": "-1.0",
        "backlogQuotaDefaultLimitSecond": "-1",
        "brokerServiceCompactionThresholdInBytes": "0",
    }

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, *, files: bool = False) -> None:
        self._policies: dict[str, Any] = {}
        self.trimmed: list[int] = []
        """What the fake broker trimmed."""
        super().__init__(folder, monkeypatch, files=files)
        self.change(namespaces=(NAMESPACE,), min_bytes=1)
        self.configure()

    def retention(self, minutes: int, megabytes: int, namespace: str = NAMESPACE) -> None:
        """Set the namespace's retention, beside what else it says."""
        self.namespace(retention_policies={"retentionTimeInMinutes": minutes, "retentionSizeInMB": megabytes})

    def namespace(self, **policies: Any) -> None:
        """Set policies of the namespace."""
        self._policies |= policies
        self.servers.put(f"/admin/policies/{NAMESPACE}", json.dumps(self._policies).encode())

    def configure(self, **changes: str | None) -> None:
        """What the brokers say; None: they do not say it."""
        said = {**self.CONFIGURATION, **changes}
        known = {name: value for name, value in said.items() if value is not None}
        self.servers.admin.configuration = dict.fromkeys(self.servers.admin.broker_ids, known)

    def change(self, **load: Any) -> None:
        """Change section ``[load]`` of the settings."""
        section = self.settings.load.model_copy(update=load)
        object.__setattr__(self, "settings", self.settings.model_copy(update={"load": section}))
        object.__setattr__(self.cluster, "settings", self.settings)

    def open_topic(self, name: str) -> int:
        """A topic whose only ledger was never closed; returns it."""
        topic = Topic.parse(f"persistent://{NAMESPACE}/{name}")
        ledger = self.servers.ledger(data_tags(topic), state=LedgerState.OPEN)
        self.servers.topic(topic, [ledger])
        return ledger

    # ------------------------------------------------------------------------------------------------------ its broker

    def work(self) -> None:
        """Let the fake broker do what a broker does: load, expire, trim, unload. It owns every bundle for long."""
        admin = self.servers.admin
        admin.on_load, admin.on_unload = self._load, self._unload
        admin.on_expire, admin.on_trim = self._expire, self._trim
        admin.on_unsubscribe = lambda topic, name: self.servers.remove(self.cursor_path(topic.local, name))
        self.own()

    def own(self, namespace: str = NAMESPACE) -> None:
        """The broker owns the namespace's bundle."""
        lock = json.dumps({"httpUrl": f"http://{BROKER}"}).encode()
        self.servers.put(f"/namespace/{namespace}/0x00000000_0xffffffff", lock)

    def info(self, name: str) -> ManagedLedgerInfo:
        """A topic's z-node."""
        return managed_ledger.decode(self.servers.zookeeper.data(self._path(name)))

    def cursor_path(self, name: str, subscription: str) -> str:
        """The z-node of a topic's subscription."""
        return f"{self._path(name)}/{encode_name(subscription)}"

    def is_loaded(self, name: str) -> bool:
        """Whether the broker has a topic loaded."""
        return f"persistent://{NAMESPACE}/{name}" in self.servers.admin.loaded

    def _path(self, name: str) -> str:
        topic = Topic.parse(f"persistent://{NAMESPACE}/{name}")
        self.servers.admin.topics.setdefault(topic, {})
        return self.servers.topic_path(topic)

    def ready(self, *names: str) -> None:
        """The broker knows these topics and their subscriptions."""
        for name in names:
            path = self._path(name)
            own = self.servers.admin.topics[Topic.parse(f"persistent://{NAMESPACE}/{name}")]
            for cursor in self.servers.zookeeper.names(path):
                own.setdefault(cursor, FakeSubscription())

    def _load(self, topic: Topic) -> None:
        """The last ledger is recovered, whatever its state, and becomes a young one; a new one is behind it."""
        path = self.servers.topic_path(topic)
        info = managed_ledger.decode(self.servers.zookeeper.data(path))
        *before, last = info.ledgers
        entries = self.servers.reader.payloads[last.ledger_id]
        self._close(last.ledger_id)
        young = replace(last, entries=len(entries), size=sum(map(len, entries)), timestamp=self.now)
        current = self.servers.ledger(data_tags(topic), state=LedgerState.OPEN, entries=())
        ledgers = (*before, *((young,) if entries else ()), LedgerInfo(current, None, None, None, None))
        self.servers.put(path, managed_ledger.encode(replace(info, ledgers=ledgers)))

    def _close(self, ledger_id: int) -> None:
        path = self.servers.path(ledger_id)
        metadata = ledger_metadata.decode(self.servers.zookeeper.data(path))
        entries = self.servers.reader.payloads[ledger_id]
        if metadata.state is not LedgerState.CLOSED:
            closed = replace(
                metadata, state=LedgerState.CLOSED, length=sum(map(len, entries)), last_entry_id=len(entries) - 1
            )
            self.servers.put(path, ledger_metadata.encode(closed))

    def _unload(self, topic: Topic) -> None:
        info = managed_ledger.decode(self.servers.zookeeper.data(self.servers.topic_path(topic)))
        self._close(info.ledgers[-1].ledger_id)

    def _expire(self, topic: Topic, subscription: str, seconds: int) -> None:
        """Up to the end of what was closed long enough ago, as it was before the load."""
        info = managed_ledger.decode(self.servers.zookeeper.data(self.servers.topic_path(topic)))
        old = [one for one in info.ledgers if one.timestamp and self.now - one.timestamp > seconds * 1000]
        if old:
            path = f"{self.servers.topic_path(topic)}/{encode_name(subscription)}"
            end = Position(old[-1].ledger_id, (old[-1].entries or 0) - 1)
            self.servers.put(path, cursor_format.encode(cursor_format.ManagedCursorInfo(-1, end)))

    def _trim(self, topic: Topic) -> None:
        """``internalTrimLedgers`` for retention by time, and for a time of 0."""
        path = self.servers.topic_path(topic)
        info = managed_ledger.decode(self.servers.zookeeper.data(path))
        limit = self._policies["retention_policies"]["retentionTimeInMinutes"]
        free = min((self._free(path, name, info) for name in self.servers.zookeeper.names(path)), default=1 << 62)
        ledgers = list(info.ledgers)
        while (
            len(ledgers) > 1 and ledgers[0].ledger_id < free and 0 <= limit * MINUTE < self.now - self._at(ledgers[0])
        ):
            self.trimmed.append(ledgers.pop(0).ledger_id)
        self.servers.put(path, managed_ledger.encode(replace(info, ledgers=tuple(ledgers))))

    def _at(self, ledger: LedgerInfo) -> int:
        return (ledger.timestamp or 0) - (
            1 if self._policies["retention_policies"]["retentionTimeInMinutes"] == 0 else 0
        )

    def _free(self, path: str, name: str, info: ManagedLedgerInfo) -> int:
        """The first ledger that a cursor needs."""
        cursor = cursor_format.decode(self.servers.zookeeper.data(f"{path}/{name}"))
        at = cursor.mark_delete
        if cursor.cursors_ledger_id >= 0:
            (entry,) = self.servers.reader.payloads[cursor.cursors_ledger_id]
            at = cursor_format.decode_position(entry).mark_delete
        assert at is not None
        entries = {one.ledger_id: one.entries or 0 for one in info.ledgers}
        return at.ledger_id + (at.entry_id + 1 == entries.get(at.ledger_id))
