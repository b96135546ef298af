"""Where the disk goes, on a real cluster: each ledger has one reason, and the sums are BookKeeper's own.

Its two brokers do by themselves what production's do; they delete no topic of this test, and split none of its bundles.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import httpx
import pulsar
import pytest

from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.lifecycle.held.backlog import BacklogEnds
from pulsar_lifecycle.lifecycle.held.held_run import BACKLOG_TABLE, OPEN_TABLE, build_held, held_rows
from pulsar_lifecycle.lifecycle.held.open_ledgers import OpenCause
from pulsar_lifecycle.lifecycle.reasons import Reason
from pulsar_lifecycle.lifecycle.storage_run import REASONS_TABLE, build_storage_report, by_reason, scanned, totals
from sandbox.clients import Admin, pulsar_client, wait_for
from sandbox.cluster import Cluster
from sandbox.planting import plant, topics, znodes
from tests.integration.lifecycle.retention import (
    BUNDLES,
    HOUR,
    backlog,
    close_earlier,
    keep_inactive_topics,
    loaded,
    retention,
)
from tests.integration.pipeline import (
    Pipeline,
    at_rest,
    new_namespace,
    transactions,
    wait_listed,
    wait_unlisted,
    wait_until_unloaded_counts,
)

pytestmark = pytest.mark.integration

ROOTS = ["/managed-ledgers/it", "/pulsar-lifecycle"]


@pytest.fixture(scope="module")
def sandbox(production: Cluster) -> Cluster:
    return production


def bookkeeper_list(sandbox: Cluster) -> dict[int, tuple[bool, int]]:
    """BookKeeper's own list of ledgers: whether each is closed, and its bytes times write quorum.

    A bookie answers 500 for a ledger that a broker deleted since the list was made, and for one that cannot be decoded.
    """
    (bookie, *_) = sandbox.state.as_json()["bookies"]
    found: dict[int, tuple[bool, int]] = {}
    with httpx.Client(base_url=f"{bookie['http']}/api/v1/ledger", timeout=60) as http:
        for ledger in http.get("/list").raise_for_status().json():
            answer = http.get(f"/metadata?ledger_id={ledger}")
            if answer.status_code == 500:
                found[int(ledger)] = False, 0
                continue
            (said,) = answer.raise_for_status().json().values()
            size = said["length"] * said["writeQuorumSize"] if said["closed"] else 0
            found[int(ledger)] = said["closed"], size
    return found


def never_closed(sandbox: Cluster, topic: str) -> int:
    """Give a topic that no broker has a last ledger that is open, as a broker that died leaves it."""
    metadata = znodes.ledger_metadata(sandbox.bookies, znodes.managed_ledger_tags(topic), closed=False)
    with sandbox.metadata() as zk:
        ledger = znodes.new_ledger(zk, metadata)
        with znodes.editing(zk, topic) as info:
            before = info.ledgerInfo[-1]  # its broker writes down what it has, as it adds another one
            closed = ledger_metadata.decode(zk.get(ledger_path(before.ledgerId))[0])
            before.entries, before.size = closed.last_entry_id + 1, closed.length
            before.timestamp = int(time.time() * 1000)
            info.ledgerInfo.add(ledgerId=ledger)
    return ledger


def held_open(pipeline: Pipeline, epoch_id: str, expected: Mapping[Reason, set[int]], live: str) -> None:
    """What was never closed is listed with what it holds; a ledger in use is only once it is older than retention."""
    rows = {row["ledger_id"]: row for row in held_rows(pipeline.where.lake, epoch_id, OPEN_TABLE).to_pylist()}
    (dead,) = (rows[ledger] for ledger in expected[Reason.EXPIRED_OPEN])
    assert (dead["loaded"], dead["expired"], dead["bytes"]) == (False, True, 0)  # nothing was written into it
    assert OpenCause.NOT_LOADED in dead["causes"]
    assert OpenCause.SETTINGS_UNKNOWN not in dead["causes"]
    assert live not in {row["topic"] for row in rows.values()}


def test_a_storage_report_gives_each_ledger_its_reason_and_adds_up_to_bookkeepers_own_list(
    sandbox: Cluster, pipelines: Callable[[Mapping[str, Any]], Pipeline]
) -> None:
    namespace, now = new_namespace(sandbox, "storage", BUNDLES), new_namespace(sandbox, "at-once", BUNDLES)
    read, own, live, many, later = (
        f"persistent://{namespace}/{name}" for name in ("read", "own", "live", "many", "later")
    )
    dead = f"persistent://{now}/dead"
    contents = topics.payloads(230)
    expected: dict[Reason, set[int]] = {}
    with pulsar_client(sandbox.service_url) as client, Admin(sandbox.admin_url) as admin:
        for one in (namespace, now):
            keep_inactive_topics(admin, one)
        consumer = client.subscribe(read, "s", initial_position=pulsar.InitialPosition.Earliest)
        ids = {name: list(dict.fromkeys(topics.publish(client, name, contents))) for name in (read, own, dead)}
        for message in [consumer.receive(60_000) for _ in range(120)]:
            consumer.acknowledge(message)
        wait_for("the receipts", lambda: backlog(admin, read) == 110)
        consumer.close()
        topics.publish(client, many, contents[:60], keys=[f"key-{number % 7}" for number in range(60)])
        expected[Reason.COMPACTED] = {admin.compact(many)}
        admin.post_schema(many, 1)
        expected[Reason.SCHEMA] = set(admin.schema_ledgers(many))
        due = [int(time.time() * 1000) + HOUR + number for number in range(120)]
        expected[Reason.DELAYED_INDEX] = set(topics.delayed_backlog(sandbox, client, later, "s", contents[:120], due))
        expected[Reason.LAST_LEDGER] = {topics.publish(client, live, contents)[-1]}
        admin.topic("POST", own, "/retention", {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1})
        for name in ids:
            admin.unload(name)
        retention(admin, namespace, 60)
        admin.call("POST", f"/v2/namespaces/{now}/retention", {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
        expected[Reason.ORPHAN] = {
            one.ledger_id for one in plant.orphan_data(sandbox, f"persistent://{namespace}/gone")
        }
        left = plant.offload_leftover(sandbox, f"persistent://{namespace}/left")
        expected[Reason.OFFLOAD_LEFTOVER] = {one.ledger_id for one in left}
        expected[Reason.FOREIGN] = {one.ledger_id for one in plant.foreign(sandbox)}
        expected[Reason.EXPIRED_OPEN] = {never_closed(sandbox, dead)}
        expected[Reason.EXPIRED] = {*ids[read][:2], *ids[dead]}
        expected[Reason.BACKLOG] = set(ids[read][2:])
        expected[Reason.RETAINED] = set(ids[own])
        with sandbox.metadata() as zk:
            expected[Reason.PINNED] = set(znodes.listed_ledgers(zk, later)[:-1])
            expected[Reason.CURSOR] = {znodes.read_cursor(zk, later, "s").cursorsLedgerId} - {-1}
        since = time.time()
        close_earlier(sandbox, [read])
        wait_unlisted(sandbox, ids)
        wait_listed(sandbox, live)
        wait_until_unloaded_counts(since)

    pipeline = pipelines({})
    with sandbox.metadata() as zk:
        for _ in range(5):  # until no broker deletes or closes a ledger of another test, or loads a topic, meanwhile
            before = at_rest(zk, ROOTS)
            listed = bookkeeper_list(sandbox)
            # no bookie lists anything once a z-node without data is among the ledgers
            expected[Reason.UNJUDGED] = {one.ledger_id for one in plant.empty(sandbox)}
            epoch = pipeline.scan()
            for ledger in expected[Reason.UNJUDGED]:
                zk.delete(ledger_path(ledger))
            rows, problems = build_storage_report(pipeline.where, epoch)
            assert not build_held(pipeline.where, epoch)
            after, written = bookkeeper_list(sandbox), transactions(zk, ROOTS)
            if (after, written) == (listed, before):
                break
        assert after == listed
        assert written == before
    assert not problems
    held_open(pipeline, epoch.epoch_id, expected, live)
    (behind,) = (row for row in held_rows(pipeline.where.lake, epoch.epoch_id, BACKLOG_TABLE).to_pylist()
                 if (row["topic"], row["cursor"]) == (read, "s"))  # fmt: skip
    assert behind["bytes"] > 0
    assert (behind["expired_bytes"], behind["ends"]) == (0, BacklogEnds.NO_TTL)
    assert epoch.covered, epoch.gaps
    assert totals(rows) == scanned(pipeline.where, epoch.epoch_id)
    assert totals(rows).ledgers == len(listed) + len(expected[Reason.UNJUDGED])
    assert totals(rows).physical_bytes == sum(size for _, size in listed.values())

    order = list(Reason)
    found: dict[int, Reason] = {}
    for row in pipeline.where.lake.read_epoch_table(epoch.epoch_id, REASONS_TABLE).to_pylist():
        said = Reason(row["reason"])
        found[row["ledger_id"]] = min(found.get(row["ledger_id"], said), said, key=order.index)
    wrong = {i: (found.get(i), reason) for reason, some in expected.items() for i in some if found.get(i) != reason}
    assert not wrong
    assert set(by_reason(rows)) >= set(expected)
    assert sum(one["ledgers_unsized"] for one in by_reason(rows).values()) >= len(expected[Reason.EXPIRED_OPEN])
    assert not loaded(sandbox) & set(ids)
