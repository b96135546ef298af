"""The index of delayed messages, side by side with the broker's own tracker out of its jar.

    .venv/bin/python bench/delayed.py [--sizes 1M,10M] [--shapes random,clumped,half] [--rounds 3]

No servers: storage is a map in memory on both sides, of the bytes that a broker stores. Each side runs alone, on one
thread, and CPU time of that thread is counted: neither Java's compiler nor its collector. The best of some rounds, so
that Java is warm. Progress and a table go to stderr, one JSON document to stdout. It fails when a count or a byte is
wrong, never because something was slow.

Ledgers have 50,000 entries. ``random``: all entries delayed, over 24 hours. ``clumped``: due in the order in which they
were published, a minute later each thousand. ``half``: every other entry at random, over 24 hours.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ground import expect, number, tell

from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
from pulsar_lifecycle.delayed_index.stored.index_findings import judge
from pulsar_lifecycle.delayed_index.stored.subscription import StoredBucket, StoredSubscription, TopicEntries
from pulsar_lifecycle.delayed_index.tracking.membership import EntrySet
from pulsar_lifecycle.delayed_index.tracking.sealing import read_whole
from pulsar_lifecycle.delayed_index.tracking.tracker import BucketTracker
from pulsar_lifecycle.formats.delayed_indexes import Indexes, decode_segments
from pulsar_lifecycle.formats.delayed_table import decode_whole
from pulsar_lifecycle.model import Position
from sandbox.servers.toolchain import find_tools
from tests.kit.delayed.bucket_storage import InMemoryBucketKeys, InMemoryBucketStorage
from tests.kit.delayed.java_tracker import java_tracker

PER_LEDGER = 50_000
START_MS = 1_795_225_194_411
DAY_MS = 86_400_000
TOPIC, CURSOR = "persistent://public/default/t", "sub"
MERGED_TO = 4
"""Buckets that are left where merging is measured."""
BATCH = 50_000
"""Messages added at once, as they are read from the topic."""


def main() -> None:
    """Run every size and shape, and print the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="1M,10M", help="delayed messages (default 1M,10M)")
    parser.add_argument("--shapes", default="random,clumped,half", help="which data (default random,clumped,half)")
    parser.add_argument("--rounds", type=int, default=3, help="the best of so many is told (default 3)")
    parser.add_argument("--java-limit", default="1M", help="Java's tracker is not run beyond (default 1M)")
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory(prefix="pulsar-lifecycle-bench-") as folder:
        for size in map(number, options.sizes.split(",")):
            for shape in options.shapes.split(","):
                messages = make(shape, size)
                row = {"messages": size, "shape": shape, "load_average": round(os.getloadavg()[0], 1)}
                row["ours"], entries = measure(messages, options.rounds)
                tell(f"{size} {shape}: ours {row['ours']}")
                if size <= number(options.java_limit):
                    row["java"] = measure_java(messages, options.rounds, Path(folder), entries)
                    tell(f"{size} {shape}: Java {row['java']}")
                    shared = sorted(row["ours"].keys() & row["java"].keys())
                    row["java_over_ours"] = {name: round(row["java"][name] / row["ours"][name], 2) for name in shared}
                rows.append(row)
    print(json.dumps({"bench": "delayed", "cpus": os.cpu_count(), "unit": "CPU ns an index", "rows": rows}))
    show(rows)


def make(shape: str, count: int) -> Indexes:
    """Delayed messages in the topic's order."""
    rng = np.random.default_rng(17)
    places = np.arange(count) * (2 if shape == "half" else 1) + 100_000 * PER_LEDGER
    if shape == "clumped":
        times = START_MS + 60_000 * (np.arange(count) // 1_000) + rng.integers(0, 1_000, count)
    else:
        times = START_MS + rng.integers(0, DAY_MS, count)
    return Indexes(times, places // PER_LEDGER, places % PER_LEDGER)


def best(rounds: int, count: int, action: Callable[[], Any]) -> tuple[float, Any]:
    """CPU ns an index of the fastest round, and what the last one gave."""
    least, found = float("inf"), None
    for _ in range(rounds):
        del found
        began = time.thread_time_ns()
        found = action()
        least = min(least, time.thread_time_ns() - began)
    return round(least / count, 1), found


def measure(messages: Indexes, rounds: int) -> tuple[dict[str, float], list[tuple[bytes, ...]]]:
    """CPU ns an index of each operation, bytes an index; and the snapshots."""
    count, settings = len(messages), DelayedIndexSettings()
    storage, keys = CountingStorage(), InMemoryBucketKeys()
    found: dict[str, float] = {}

    def load(now: int = 1, using: DelayedIndexSettings = settings) -> BucketTracker:
        return BucketTracker(using, storage, keys, TOPIC, CURSOR, now)

    def build(using: DelayedIndexSettings = settings) -> BucketTracker:
        storage.snapshots.clear()
        storage.written = 0
        keys.buckets.clear()
        tracker = load(using=using)
        for begin in range(0, count, BATCH):
            part = messages[begin : begin + BATCH]
            tracker.add_messages(part.ledgers, part.entries, part.timestamps, 1)
        return tracker

    few = DelayedIndexSettings(delayed_delivery_max_num_buckets=MERGED_TO)
    found["build_merging"], tracker = best(rounds, count, lambda: build(few))
    expect("messages tracked", tracker.number_of_delayed_messages, count)
    expect("buckets", len(tracker.buckets), MERGED_TO)
    merged = storage.written
    found["build"], tracker = best(rounds, count, build)
    found["merges_a_message"] = round(merged / storage.written - 1, 2)
    found["merge"] = round((found["build_merging"] - found["build"]) / found["merges_a_message"], 1)
    expect("messages tracked", tracker.number_of_delayed_messages, count)
    found["memory_bytes"] = round(tracker.nbytes / count, 2)
    found["contains_batched"], contained = best(
        rounds, count, lambda: tracker.contains_messages(messages.ledgers, messages.entries)
    )
    expect("messages contained", int(contained.sum()), count)
    some = list(zip(messages.ledgers[::100].tolist(), messages.entries[::100].tolist(), strict=True))
    found["contains"], _ = best(rounds, len(some), lambda: [tracker.contains_message(*one) for one in some])
    found["recover"], recovered = best(rounds, count, load)
    sealed = sum(len(bucket.undelivered) for bucket in tracker.buckets)
    expect("messages recovered", recovered.number_of_delayed_messages, sealed)
    entries = [one.entries for one in storage.snapshots.values()]
    found["stored_bytes"] = round(sum(len(entry) for one in entries for entry in one) / sealed, 2)
    found["decode"], decoded = best(rounds, sealed, lambda: [decode_segments(one[1:])[0] for one in entries])
    expect("messages decoded", sum(map(len, decoded)), sealed)
    found["arrays_bytes"] = (
        sum(one.timestamps.nbytes + one.ledgers.nbytes + one.entries.nbytes for one in decoded) / sealed
    )
    del decoded
    truth = by_bucket(messages, tracker)
    found["check"], wrong = best(rounds, sealed, lambda: check(messages, tracker, entries))
    expect("findings", wrong, 0)
    found["check_bitmaps"], differing = best(
        rounds, sealed, lambda: sum(check_bitmaps(*pair) for pair in zip(truth, entries, strict=True))
    )
    expect("buckets whose bitmaps say otherwise", differing, 0)
    found["due_list"], due = best(rounds, sealed, lambda: due_list(entries))
    expect("messages due", len(due), sealed)
    del due
    began = time.thread_time_ns()
    handed = 0
    while part := len(tracker.get_scheduled_messages(BATCH, START_MS + 400 * DAY_MS)):
        handed += part
    found["drain"] = round((time.thread_time_ns() - began) / count, 1)
    expect("messages handed out", handed, count)
    expect("snapshots left", len(storage.snapshots), 0)
    return found, entries


class CountingStorage(InMemoryBucketStorage):
    """Counts the bytes written; a merge writes messages again."""

    written = 0

    def create_bucket_snapshot(self, entries: Sequence[bytes], bucket_key: str, topic: str, cursor: str) -> int:
        """As above it."""
        self.written += sum(map(len, entries))
        return super().create_bucket_snapshot(entries, bucket_key, topic, cursor)


def by_bucket(messages: Indexes, tracker: BucketTracker) -> list[Indexes]:
    """What each bucket should have."""
    bounds = [
        np.searchsorted(messages.ledgers, (bucket.start_ledger_id, bucket.end_ledger_id + 1))
        for bucket in tracker.buckets
    ]
    return [messages[begin:end] for begin, end in bounds]


def check(messages: Indexes, tracker: BucketTracker, entries: list[tuple[bytes, ...]]) -> int:
    """How many findings there are: every snapshot decoded, against itself and against every message of the topic."""
    buckets: list[StoredBucket] = []
    for one, stored in zip(tracker.buckets, entries, strict=True):
        place = one.key, str(one.bucket_id), one.start_ledger_id, one.end_ledger_id, one.bucket_id, one.length
        buckets.append(StoredBucket(*place, *read_whole(stored)))
    start = Position(int(messages.ledgers[0]), -1)
    subscription = StoredSubscription(CURSOR, "", 0, 0, start, (), (), tuple(buckets))
    counts = dict.fromkeys(range(start.ledger_id, int(messages.ledgers[-1]) + 1), PER_LEDGER)
    return len(judge(subscription, TopicEntries(messages, counts, {}), 1))


def check_bitmaps(truth: Indexes, entries: tuple[bytes, ...]) -> bool:
    """Whether entry 0 alone says anything else than the topic."""
    told = EntrySet()
    told.add(truth.ledgers, truth.entries)
    return told != EntrySet(decode_whole(entries[0], 0).bitmaps)


def due_list(entries: list[tuple[bytes, ...]]) -> Indexes:
    """All that is scheduled, in the order in which it is due."""
    return Indexes.concatenate([decode_segments(one[1:])[0] for one in entries]).sorted()


def measure_java(messages: Indexes, rounds: int, folder: Path, ours: list[tuple[bytes, ...]]) -> dict[str, float]:
    """The same of the broker's tracker; fails if its bytes are others."""
    data, classes = folder / "messages.bin", folder / "classes"
    classes.mkdir(exist_ok=True)
    with data.open("wb") as file:
        for column in (messages.ledgers, messages.entries, messages.timestamps):
            file.write(column.astype("<i8").tobytes())
    with java_tracker(find_tools(tell), classes, "4g") as tracker:
        settings = DelayedIndexSettings()
        tracker.ask("start", 50_000, settings.time_step_ms, settings.max_indexes_per_segment, -1, 1_000, "false", 1)
        answer = dict(word.split("=") for word in tracker.ask("bench", data, rounds).split())
        theirs = list(tracker.snapshots().values())
    expect("snapshots alike", sum(a == b for a, b in zip(ours, theirs, strict=True)), len(ours))
    names = ("build", "contains", "recover", "decode", "check", "drain")
    return {name: round(float(answer[name]), 1) for name in names if name in answer}


def show(rows: list[dict[str, Any]]) -> None:
    """The table, on stderr."""
    for row in rows:
        tell(f"{row['messages']:>10} {row['shape']:>8} (load {row['load_average']})")
        for name, value in row["ours"].items():
            java = row.get("java", {}).get(name)
            beside = "" if java is None else f"{java:>10} Java {java / value:>8.2f} times ours"
            tell(f"{name:>20} {value:>10}{beside}")


if __name__ == "__main__":
    main()
