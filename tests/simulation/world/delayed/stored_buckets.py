"""The buckets of a subscription as its broker stores them: ledgers, and properties of the cursor.

Belongs here: making, reading and deleting them in the simulated cluster. Not here: when a broker does it
(``delayed_brokers.py``), and the steps of a merge (``merging_tracker.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pulsar_lifecycle.delayed_index.keys import parse_bucket_key
from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.model import encode_name
from tests.kit.simulated.cluster import bucket_key
from tests.simulation.world.model import ModelTopic
from tests.simulation.world.world import World

Place = tuple[int, int]


class StoredBuckets:
    """Storage and properties of one subscription, as a tracker wants them."""

    def __init__(self, world: World, topic: ModelTopic, name: str) -> None:
        self.world, self.topic, self.name = world, topic, name

    def read(self) -> Mapping[str, int]:
        return {bucket_key(*span): ledger for span, ledger in self.topic.cursors[self.name].buckets.items()}

    def put(self, key: str, bucket_id: int) -> None:
        self.topic.cursors[self.name].buckets[parse_bucket_key(key)] = bucket_id
        self.world.store_cursor(self.topic, self.name)

    def remove(self, key: str) -> None:
        self.topic.cursors[self.name].buckets.pop(parse_bucket_key(key), None)
        self.world.store_cursor(self.topic, self.name)

    def create_bucket_snapshot(self, entries: Sequence[bytes], bucket_key: str, topic: str, cursor: str) -> int:
        span = parse_bucket_key(bucket_key)
        return self.world.make("bucket", self.topic.name, cursor=self.name, span=span, entries=list(entries))

    def get_bucket_snapshot_metadata(self, bucket_id: int) -> bytes:
        return self._entries(bucket_id)[0]

    def get_bucket_snapshot_segments(
        self, bucket_id: int, first_segment_entry_id: int, last_segment_entry_id: int
    ) -> list[bytes]:
        return self._entries(bucket_id)[first_segment_entry_id : last_segment_entry_id + 1]

    def get_bucket_snapshot_length(self, bucket_id: int) -> int:
        return sum(map(len, self._entries(bucket_id)))

    def delete_bucket_snapshot(self, bucket_id: int) -> None:
        if self.world.exists(bucket_id) and bucket_id not in self.world.live():
            self.world.drop(bucket_id, leak=0.1)

    def start(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _entries(self, bucket_id: int) -> list[bytes]:
        if not self.world.exists(bucket_id) or bucket_id not in self.world.reader.payloads:
            raise NotFound(f"snapshot {bucket_id} is gone")
        return self.world.reader.payloads[bucket_id]

    # ---------------------------------------------------------------------------------------------- as a merge has them

    def begin(self, key: str, entries: Sequence[bytes]) -> int:
        """A snapshot that only the broker's memory has, until its key is stored."""
        bucket_id = self.create_bucket_snapshot(entries, key, "", "")
        self.topic.cursors[self.name].swallowed[parse_bucket_key(key)] = bucket_id
        return bucket_id

    def name_begun(self, key: str) -> bool:
        """Store the key of a snapshot that was begun; whether it was there."""
        bucket_id = self.topic.cursors[self.name].swallowed.pop(parse_bucket_key(key), None)
        if bucket_id is not None:
            self.put(key, bucket_id)
        return bucket_id is not None

    def delete_named(self, bucket_id: int) -> None:
        """As brokers delete a snapshot: before the key that names it."""
        if self.world.exists(bucket_id):
            self.world.remove(self.world.path(bucket_id))

    @property
    def version(self) -> int:
        """Of the cursor's z-node; -1 where there is none."""
        stat = self.world.zookeeper.stat(f"{self.world.topic_path(self.topic.name)}/{encode_name(self.name)}")
        return stat.version if stat else -1
