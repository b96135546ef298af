"""Reconciling while the queue's topics are not whole, as after the restore that it is for."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from assets.reconcile import intents_shown, reconciled_shown
from pulsar_lifecycle.deletion import reconcile
from pulsar_lifecycle.deletion_queue.queue_topics import (
    DELETION_TOPIC,
    RETRY_TOPIC,
    SUBSCRIPTION,
    create_missing,
    topics_of,
)
from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.runs.apply import Applied
from pulsar_lifecycle.runs.caps import Caps
from pulsar_lifecycle.runs.cluster import Cluster
from tests.kit.fakes.broker_admin import FakeBrokerAdmin
from tests.kit.fakes.connections import connecting
from tests.kit.simulated.cluster import SimulatedCluster, data_tags
from tests.kit.simulated.pipeline import plan, two_scans

TOPIC = Topic.parse("persistent://acme/orders/x")
NAMESPACE = str(TOPIC.namespace)


class Scene:
    """A cluster with two orphans, one of them in flight by the journal, and the admin API of its brokers."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        cluster = SimulatedCluster()
        cluster.topic(TOPIC, [cluster.ledger(data_tags(TOPIC))])
        orphans = [cluster.ledger(data_tags(TOPIC)) for _ in range(2)]
        summary, rows, _ = plan(cluster, *two_scans(cluster))
        self.admin = FakeBrokerAdmin()
        create_missing(self.admin, 2)
        self.planned: list[list[int]] = []
        sent = JournalRow("r", "c", "p", orphans[0], "", str(TOPIC), "delete-ledger", "send", "sent", "", 1, "", "", 1)
        FileJournal(str(folder)).record([sent])
        settings = SimpleNamespace(
            zookeeper=None,
            pulsar=None,
            cluster="c",
            lake=SimpleNamespace(path=str(folder)),
            apply=SimpleNamespace(model_dump=lambda: dict.fromkeys(Caps.__slots__, 1)),
        )
        lake = SimpleNamespace(context=lambda epoch_id: SimpleNamespace(namespaces=frozenset({NAMESPACE})))
        connect = connecting(store=object, admin=lambda: self.admin, lake=lambda: lake)
        self.cluster = Cluster(cast("Any", settings), connect=connect)

        def make_plan(cluster: object, epoch: object, kind: str, only: Any) -> Any:
            self.planned.append(only(rows).column("ledger_id").to_pylist())
            return summary, only(rows)

        for name in ("check_may_act", "check_store"):
            monkeypatch.setattr(reconcile.evidence, name, lambda *_: "")
        newest = SimpleNamespace(epoch_id="e", started_at=0)
        monkeypatch.setattr(reconcile.evidence, "newest_epoch", lambda *_: newest)
        monkeypatch.setattr(reconcile.deletion_run, "make_plan", make_plan)
        monkeypatch.setattr(reconcile.deletion_run, "apply_plan", lambda *_: Applied(1, 0, 0, ""))

    def reconcile(self, *, apply: bool) -> reconcile.Reconciled:
        return reconcile.reconcile(
            self.cluster, "run-1", [NAMESPACE], apply=apply, resend=False, progress=lambda line: None
        )


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(tmp_path, monkeypatch)


@pytest.mark.parametrize("apply", [True, False])
@pytest.mark.parametrize("topic", [DELETION_TOPIC, RETRY_TOPIC])
def test_a_partition_without_subscription_counts_as_empty_and_is_named(scene: Scene, topic: Any, apply: bool) -> None:
    first, lost = topics_of(scene.admin, topic)
    scene.admin.topics[first][SUBSCRIPTION].backlog = 3
    scene.admin.topics[lost].clear()
    found = scene.reconcile(apply=apply)
    assert (found.backlog, found.unsubscribed) == (3, (str(lost),))
    assert (found.applied is not None) == apply
    for shown in (reconciled_shown(found), intents_shown(found)[NAMESPACE]):
        assert str(lost) in shown["without subscription"]
    assert scene.planned == [[3]]


def test_where_all_lost_it_what_is_in_flight_by_the_journal_is_sent_again(scene: Scene) -> None:
    for topic in (DELETION_TOPIC, RETRY_TOPIC):
        for part in topics_of(scene.admin, topic):
            scene.admin.topics[part].clear()
    found = scene.reconcile(apply=False)
    assert (found.backlog, len(found.unsubscribed)) == (0, 4)
    assert scene.planned == [[2, 3]]


def test_a_queue_that_is_whole_gets_no_word(scene: Scene) -> None:
    found = scene.reconcile(apply=False)
    assert (found.backlog, found.unsubscribed) == (0, ())
    assert "without subscription" not in reconciled_shown(found)
