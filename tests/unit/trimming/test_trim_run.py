"""The rules that a run of the first phase is given: those of a deletion run hold, too."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pulsar_lifecycle.errors import StoreError
from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.run_settings import ApplySettings
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.topics.first_phase import LedgerOutcome
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.trimming.trim_rules import Stays
from pulsar_lifecycle.values.epoch import Census, Epoch
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.refusals import RefusalCode
from tests.kit.builders import some_why
from tests.kit.fakes.metadata_store import FakeStore, Operation
from tests.kit.refused import refused_by
from tests.kit.simulated.cluster import SimulatedCluster, data_tags
from tests.kit.simulated.pipeline import lake_of, two_scans, where

BUCKETS = {"buckets": ["tiered", "older"]}


def rules(lake: Path, **sections: Any) -> Context:
    """What the first phase goes by, under these settings and a scan of this moment."""
    required = {
        "cluster": "c",
        "zookeeper": {"hosts": "h:2181"},
        "pulsar": {"admin_url": "http://h:8080", "service_url": "pulsar://h:6650"},
        "bookkeeper": {"shared_with": []},
        "lake": {"path": str(lake)},
    }
    now = SystemClock().now_ms()
    epoch = Epoch("e1", "c", "fp", now, now + 1, (), 1, 1, ())
    kept = SimpleNamespace(
        epochs=lambda fingerprint="": [epoch],
        context=lambda epoch_id: Context(now=0, grace=0, namespaces=frozenset(), open_topics=frozenset({"t"})),
    )
    settings = Settings.model_validate(required | sections)
    cluster = SimpleNamespace(lake=kept, settings=settings, roots=lambda: [""], clock=SystemClock())
    return trim_run.context_of(cast("Any", cluster), "fp")


@pytest.mark.parametrize("trimming", [False, True])
@pytest.mark.parametrize("orphans", [False, True])
def test_system_topics_go_where_both_phases_may(tmp_path: Path, trimming: bool, orphans: bool) -> None:
    given = rules(tmp_path, trimming={"system_topics": trimming}, orphans={"system_topics": orphans})
    assert given.system_topics == (trimming and orphans)


def test_offloaded_copies_may_go_where_a_deletion_run_may_delete_them(tmp_path: Path) -> None:
    assert rules(tmp_path, object_store=BUCKETS).offload_buckets == {"tiered", "older"}
    assert rules(tmp_path).offload_buckets == frozenset()


def test_what_the_newest_scan_found_open_is_known(tmp_path: Path) -> None:
    assert rules(tmp_path).open_topics == {"t"}


@pytest.mark.parametrize(
    ("caps", "code"),
    [
        ({"max_ledgers": 4, "max_ledgers_per_topic": 3, "max_bytes": 60, "max_share": 0.4}, None),
        ({"max_ledgers": 3}, RefusalCode.MAX_LEDGERS),
        ({"max_ledgers_per_topic": 2}, RefusalCode.MAX_LEDGERS_PER_TOPIC),
        ({"max_bytes": 59}, RefusalCode.MAX_BYTES),
        ({"max_share": 0.39}, RefusalCode.MAX_SHARE),
    ],
)
def test_the_caps_of_one_launch_hold_for_what_leaves_lists_too(caps: dict[str, Any], code: RefusalCode | None) -> None:
    """What stays and what is of a topic as a whole does not count."""
    goes = [
        LedgerOutcome(topic, ledger, Outcome.GOES, some_why(""), 10, on_disk=on_disk)
        for topic, ledger, on_disk in (("t1", 1, 0), ("t1", 2, 30), ("t1", 3, 10), ("t2", 4, 10))
    ]
    others = [
        LedgerOutcome("t1", -1, Outcome.GOES, some_why("the topic")),
        LedgerOutcome("t2", 5, "refused", some_why("a cursor stands there"), 1 << 60),
    ]
    census = Census("bookkeeper_ledgers", "", 10, 10, 0, 0)
    epoch = Epoch("e1", "c", "fp", 1, 2, (census,), 1, 1, ())
    settings = SimpleNamespace(cluster="c", apply=ApplySettings.model_validate({"max_share": 1.0} | caps))
    cluster: Any = SimpleNamespace(lake=SimpleNamespace(epochs=lambda cluster: [epoch]), settings=settings)
    with refused_by(code) if code else nullcontext():
        counted = trim_run.check_caps(cluster, goes + others)
        assert counted == {"t1": {1, 2, 3}, "t2": {4}}


def test_what_could_not_go_when_the_caps_were_checked_stays() -> None:
    """A topic that was refused then, and goes now, would be over the cap that nobody compared it with."""
    servers = SimulatedCluster()
    topics = [Topic.parse(f"persistent://acme/orders/{name}") for name in ("a", "b")]
    ledgers = {topic: [servers.ledger(data_tags(topic)) for _ in range(3)] for topic in topics}
    for topic, ids in ledgers.items():
        servers.topic(topic, ids)
    now, before = two_scans(servers)
    servers.put(f"{servers.topic_path(topics[1])}/s", b"no cursor")
    orders = [TrimOrder(topic, up_to=ids[1]) for topic, ids in ledgers.items()]

    def mended(operation: Operation) -> None:
        """The other topic can be read once the first is written, which is after the caps were checked."""
        if operation == Operation("write", (servers.topic_path(topics[0]),)):
            servers.zookeeper.delete(f"{servers.topic_path(topics[1])}/s", -1)

    real = servers.open_store

    def open_store(**asked: bool) -> FakeStore:
        store = real(**asked)
        store.before = mended
        return store

    servers.open_store = open_store  # type: ignore[method-assign]
    found = trim_run.trim(where(servers, None, lake_of(before, now)), "run", orders, dry_run=False)
    by_ledger = {one.ledger_id: one for one in found}
    first, second = ledgers.values()
    assert {by_ledger[i].outcome for i in first[:2]} == {Outcome.REMOVED}
    assert {by_ledger[i].outcome for i in second[:2]} == {Outcome.REFUSED}
    assert {by_ledger[i].why.code for i in second[:2]} == {Stays.NOT_COUNTED}


def test_nothing_is_sent_by_a_run_whose_journal_cannot_be_written() -> None:
    """Each of three tries would send the messages of a topic again, and end before its list was written."""
    servers, topic = SimulatedCluster(), Topic.parse("persistent://acme/orders/a")
    ids = [servers.ledger(data_tags(topic)) for _ in range(3)]
    servers.topic(topic, ids)
    now, before = two_scans(servers)
    servers.journal.failure = StoreError("the disk is full")
    with pytest.raises(StoreError):
        trim_run.trim(
            where(servers, None, lake_of(before, now)), "run", [TrimOrder(topic, up_to=ids[1])], dry_run=False
        )
    assert servers.open_queue().backlog() == 0
