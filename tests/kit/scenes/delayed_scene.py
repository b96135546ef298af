"""A cluster of fakes with topics whose delayed messages a subscription has in buckets, and scans of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.delayed_index.stored.check_run import check_delayed_indexes
from pulsar_lifecycle.delayed_index.tracking.sealing import read_whole, seal
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats import delayed_indexes, ledger_metadata
from pulsar_lifecycle.formats.delayed_indexes import Indexes
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.model import Topic, encode_name
from pulsar_lifecycle.values.epoch import Epoch
from tests.kit.builders import entry
from tests.kit.scenes.retention_scene import NAMESPACE, RetentionScene
from tests.kit.simulated.cluster import bucket_tags, data_tags

COUNT = 50
"""Messages of a ledger."""
DAY = 86_400_000


class DelayedScene(RetentionScene):
    """Topics of ledgers of fifty messages, due in ten days and later; the last ledger has none that are delayed."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__(folder, monkeypatch)
        self.began = self.now
        self.change(brokers={"delayedDeliveryMinIndexCountPerBucket": "20"})

    def change(self, **repairs: Any) -> None:
        """Change section ``[delayed_index]`` of the settings."""
        self.set(delayed_index=self.settings.delayed_index.model_copy(update=repairs))

    def set(self, **sections: Any) -> None:
        """Change sections of the settings."""
        self.settings = self.settings.model_copy(update=sections)
        object.__setattr__(self.cluster, "settings", self.settings)

    def due(self, ledger: int, number: int) -> int:
        """When a message is due."""
        return self.began + 10 * DAY + number * 7919 % 600 * 1000 + ledger

    def backlog(self, name: str, ledgers: int = 3, cursors: Sequence[str] = ("s",)) -> list[int]:
        """A topic, a bucket for each of its ledgers but the last in each cursor; returns these ledgers."""
        topic, servers = self.named(name), self.servers
        ids: list[int] = []
        for _ in range(ledgers):
            (number,) = [servers.ledger(data_tags(topic))]
            servers.reader.payloads[number] = []
            due = [self.due(number, one) for one in range(COUNT)]
            entries = [entry(b"m", deliver_at_time=at) for at in due]
            servers.ledger(data_tags(topic), entries=entries, ledger_id=number)
            ids.append(number)
        last = servers.ledger(data_tags(topic), entries=[entry(b"last")])
        servers.topic(topic, [*ids, last], counts=dict.fromkeys(ids, COUNT))
        for cursor in cursors:
            buckets = {(one, one): self.snapshot(name, one, cursor) for one in ids}
            servers.cursor(topic, cursor, buckets=buckets, at=ids[0])
        return ids

    def snapshot(self, name: str, ledger: int, cursor: str = "s", *, without: int = 0) -> int:
        """A snapshot of a ledger's messages; its last segment lacks the last ``without`` of them."""
        indexes = Indexes.of([(self.due(ledger, one), ledger, one) for one in range(COUNT)])
        sealed = seal(indexes, 60_000, 10, ledger, ledger)
        bounds = sealed.bounds.copy()
        bounds[-1] -= without
        entries = [sealed.entries[0], *delayed_indexes.encode_segments(sealed.indexes[: bounds[-1]], bounds)]
        return self.servers.ledger(bucket_tags(self.named(name), cursor, ledger, ledger), entries=entries)

    def named(self, name: str) -> Topic:
        """A topic of the scene's namespace."""
        return Topic.parse(f"persistent://{NAMESPACE}/{name}")

    def keys(self, name: str, cursor: str = "s") -> dict[str, int]:
        """The buckets that a cursor names."""
        info = cursor_format.decode(self.servers.zookeeper.data(self._cursor(name, cursor)))
        return {k: int(v) for k, v in info.cursor_properties.items() if k.startswith(cursor_format.BUCKET_PREFIX)}

    def messages(self, name: str, cursor: str = "s") -> list[int]:
        """The entries of the snapshots that a cursor names, by length: what stays the same when all is written anew."""
        return sorted(len(one) for i in self.keys(name, cursor).values() for one in self.servers.reader.payloads[i])

    def indexed(self, name: str, cursor: str = "s") -> set[tuple[int, int]]:
        """The messages, by ledger and entry, of the snapshots that a cursor names."""
        payloads = self.servers.reader.payloads
        found = [read_whole(payloads[i])[1].triples() for i in self.keys(name, cursor).values()]
        return {(ledger, number) for triples in found for _, ledger, number in triples}

    def reopen(self, ledger_id: int) -> None:
        """A ledger was never closed."""
        path = self.servers.path(ledger_id)
        metadata = ledger_metadata.decode(self.servers.zookeeper.data(path))
        opened = replace(metadata, state=LedgerState.OPEN, length=0, last_entry_id=-1)
        self.servers.put(path, ledger_metadata.encode(opened))

    def name_bucket(self, name: str, ledger: int, snapshot: int, cursor: str = "s") -> None:
        """Let a cursor name another snapshot for a ledger."""
        buckets = {**self._spans(name, cursor), (ledger, ledger): snapshot}
        self.servers.cursor(self.named(name), cursor, buckets=buckets, at=min(buckets)[0])

    def properties(self, name: str, properties: Mapping[str, str], cursor: str = "s") -> None:
        """Let a cursor have these properties."""
        path = self._cursor(name, cursor)
        info = cursor_format.decode(self.servers.zookeeper.data(path))
        self.servers.put(path, cursor_format.encode(replace(info, cursor_properties=properties)))

    def lose(self, ledger_id: int) -> None:
        """A ledger is gone, from the metadata store and from its bookies."""
        self.servers.remove(self.servers.path(ledger_id))
        self.servers.reader.payloads.pop(ledger_id)

    def checked(self) -> Epoch:
        """A scan whose delayed indexes were checked."""
        epoch = self.scan()
        check_delayed_indexes(self.cluster, epoch.epoch_id)
        return epoch

    def _spans(self, name: str, cursor: str) -> dict[tuple[int, int], int]:
        found: dict[tuple[int, int], int] = {}
        for key, snapshot in self.keys(name, cursor).items():
            start, end = key.rsplit("_", 2)[1:]
            found[int(start), int(end)] = snapshot
        return found

    def _cursor(self, name: str, cursor: str) -> str:
        return f"{self.servers.topic_path(self.named(name))}/{encode_name(cursor)}"
