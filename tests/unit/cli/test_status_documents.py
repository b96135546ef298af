"""What `status --json` and `queue status --json` print: scripts read it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pulsar_lifecycle.copies import attempts, unread_locations
from pulsar_lifecycle.io.lake.artefacts import FileLake
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.settings import load_settings
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.referenced import Referenced
from tests.kit.builders import DELETED_ROW
from tests.kit.command import command_over
from tests.kit.fakes.deletion_queue import FakeQueueReader
from tests.kit.simulated.cluster import SimulatedCluster

TOPIC = Topic.parse("persistent://acme/orders/placed")
WHERE = ("aws-s3", "tiered", "eu", "")
BROKEN_UNLOAD = f"{control.PENDING_UNLOADS[control.LEASE]}/garbage"
BROKEN_LOCATION = f"{unread_locations.UNREAD_LOCATIONS}/garbage"
BROKEN_ATTEMPT = f"{attempts.ATTEMPTS}/garbage"


@pytest.fixture
def cluster() -> SimulatedCluster:
    """Everything that our own z-nodes can say, readable or not."""
    found = SimulatedCluster()
    store = found.open_store()
    control.pause(store, "a disk is full")
    control.take_lease(store, "test run r1", found.clock, 0)
    store.create(control.holder_of(control.OFFLOAD_LEASE), b"x", parents=True)
    found.zookeeper.unreadable.add(control.holder_of(control.OFFLOAD_LEASE))
    control.note_unload(store, control.PendingUnload(TOPIC, False, 1, control.LEASE))
    unread_locations.hold(store, WHERE, "run-1", "500: no such bucket")
    for path in (BROKEN_UNLOAD, BROKEN_LOCATION, BROKEN_ATTEMPT):
        found.put(path, b"[]")
    return found


SENTENCES = ("text", "error", "broken", "findings")


def without_sentences(value: Any, key: str = "") -> Any:
    """Sentences of ours as dots, but for what the scene itself says."""
    if isinstance(value, dict):
        return {name: without_sentences(one, name) for name, one in value.items()}
    if isinstance(value, list):
        return [without_sentences(one, key) for one in value]
    ours = key in SENTENCES and value not in ("a disk is full", "test run r1")
    return "..." if ours else value


SAID: dict[str, Any] = {
    "paused": {"text": "a disk is full", "since": 1700000000000},
    "refused": [{"code": "switched_off", "text": "..."}, {"code": "store_went_back", "text": "..."}],
    "lease": {"text": "test run r1", "since": 1700000000000},
    "pending_unloads": [
        {
            "path": "/pulsar-lifecycle/pending-unloads/acme%2Forders%2Fpersistent%2Fplaced",
            "topic": "persistent://acme/orders/placed",
            "loaded": False,
            "since": 1,
            "lease": "/pulsar-lifecycle/lease",
            "at_work": True,
        },
        {"path": "/pulsar-lifecycle/pending-unloads/garbage", "topic": None, "error": "..."},
    ],
    "unread_locations": [
        {
            "path": unread_locations.path_of(WHERE),
            "driver": "aws-s3",
            "bucket": "tiered",
            "region": "eu",
            "endpoint": "",
            "run_id": "run-1",
            "said": "500: no such bucket",
            "since": 1700000000000,
        },
        {"path": "/pulsar-lifecycle/unread-locations/garbage", "error": "..."},
    ],
}


def test_the_documents_have_these_keys_and_values_in_this_order(
    cluster: SimulatedCluster, settings_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = load_settings(settings_file)
    at, fingerprint = cluster.clock.now_ms(), cluster_fingerprint(cluster.open_store(), "/ledgers")
    gap = Gap(GapCode.ROOT_NOT_SCANNED, "bookkeeper.shared_with", "not read")
    epoch = Epoch("e1", "test", fingerprint, at, at, (), 1, 1, (), gaps=(gap,), zxid=2**60)
    FileLake(settings.lake.path).store_epoch(epoch, Referenced(), Context(at, 1, frozenset()))
    rows = [replace(DELETED_ROW, cluster="test", run_id=f"r{i}", at=at + i) for i in range(2)]
    FileJournal(settings.lake.path).record(rows)
    settings_file.write_text(settings_file.read_text() + "deletion = { topicTwoPhaseDeletionEnabled = false }\n")
    run = command_over(
        stores=lambda *_, **__: cluster.open_store(),
        admin=lambda: cluster.admin,
        queue_reader=FakeQueueReader,
        clock=lambda: cluster.clock,
    )
    assert run("status", "--json") == 0
    printed = capsys.readouterr().out
    assert json.dumps(without_sentences(json.loads(printed))) == json.dumps(
        {
            "cluster": "test",
            "fingerprint": fingerprint,
            "zookeeper_latency_ms": 1.0,
            "paused": SAID["paused"],
            "refused": SAID["refused"],
            "lease": SAID["lease"],
            "offload_lease": {"text": "...", "since": None},
            "offload_attempts": {"open": 0, "broken": ["..."]},
            "collection_lease": None,
            "compaction_suspended": [],
            "pending_unloads": SAID["pending_unloads"],
            "unread_locations": SAID["unread_locations"],
            "scan": {
                "epoch_id": "e1",
                "started_at": 1700000000000,
                "finished_at": 1700000000000,
                "covered": False,
                "gaps": [{"code": "root_not_scanned", "where": "bookkeeper.shared_with", "text": "..."}],
                "listed": {},
            },
            "unfinished_scan": None,
            "plan": None,
            "words": [],
            "unmatched_names": [],
            "broken_plans": [],
            "queue": {"pending": 0},
            "lake": {"location": settings.lake.path, "exists": True},
        }
    )
    assert printed == json.dumps(json.loads(printed), indent=2) + "\n"
    assert run("queue", "status", "--json") == 1
    printed = capsys.readouterr().out
    assert json.dumps(without_sentences(json.loads(printed))) == json.dumps(
        {
            "cluster": "test",
            "enabled": False,
            "paused": SAID["paused"],
            "refused": SAID["refused"],
            "lease": SAID["lease"],
            "pending_unloads": SAID["pending_unloads"],
            "unread_locations": SAID["unread_locations"],
            "queue": {
                "main": [],
                "retry": [],
                "dead_letters": [],
                "due_error": "",
                "in_flight": 0,
                "dead": 0,
                "unsubscribed": [],
                "missing": [
                    "persistent://pulsar/system/__ledger_deletion",
                    "persistent://pulsar/system/__ledger_deletion-RETRY",
                    "persistent://pulsar/system/__ledger_deletion-DLQ",
                ],
                "waits": [],
                "due_since": None,
            },
            "waits_for_window": False,
            "left_to_you": False,
            "metrics": {
                "ledgers_sent": 0,
                "offload_ledgers_sent": 0,
                "messages_received": 2,
                "ledgers_deleted": 2,
                "offload_ledgers_deleted": 0,
                "ledger_deletions_failed": 0,
                "offload_ledger_deletions_failed": 0,
                "messages_acknowledged": 2,
                "messages_max_retries_reached": 0,
            },
            "last_run": {"run_id": "r1", "ended_at": 1700000000001, "outcomes": {"deleted": 1}, "deleted_bytes": 10},
            "run_before": {"run_id": "r0", "ended_at": 1700000000000, "outcomes": {"deleted": 1}, "deleted_bytes": 10},
            "findings": ["...", "...", "...", "...", "..."],
        }
    )
    assert printed == json.dumps(json.loads(printed), indent=2) + "\n"
