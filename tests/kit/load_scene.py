"""A cluster of fakes with topics that need a broker, whose fake broker loads, expires, trims and unloads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pytest

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic
from tests.kit.retention_scene import NAMESPACE, RetentionScene
from tests.simulation.cluster import data_tags


class LoadScene(RetentionScene):
    """Topics of namespace ``acme/orders``, which the settings let us load; nothing there expires or is deleted."""

    CONFIGURATION: ClassVar[dict[str, str]] = {
        "ttlDurationDefaultInSeconds": "0",
        "subscriptionExpirationTimeMinutes": "0",
        "brokerDeleteInactiveTopicsEnabled": "false",
        "brokerDeleteInactiveTopicsMode": "delete_when_no_subscriptions",
        "additionalSystemCursorNames": "[]",
    }

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._policies: dict[str, Any] = {}
        super().__init__(folder, monkeypatch)
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
