"""Reconciling while the queue's topics are not whole, as after the restore that it is for."""

from __future__ import annotations

from typing import Any

import pytest

from assets.reconcile import intents_shown, reconciled_shown
from pulsar_lifecycle.deletion import reconcile
from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, RETRY_TOPIC, SUBSCRIPTION, topics_of
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.scenes.orphan_scene import TOPIC, OrphanScene

NAMESPACE = str(TOPIC.namespace)


class Scene(OrphanScene):
    """Two orphans, one of them in flight by the journal."""

    def __init__(self) -> None:
        super().__init__()
        self.said(self.orphans[0], Outcome.SENT)

    def reconcile(self, *, apply: bool) -> reconcile.Reconciled:
        return reconcile.reconcile(
            self.cluster, "run-1", [NAMESPACE], apply=apply, resend=False, progress=lambda line: None
        )


@pytest.fixture
def scene() -> Scene:
    return Scene()


def planned(found: reconcile.Reconciled) -> list[int]:
    return found.rows.column("ledger_id").to_pylist()


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
    assert planned(found) == [3]


def test_where_all_lost_it_what_is_in_flight_by_the_journal_is_sent_again(scene: Scene) -> None:
    for topic in (DELETION_TOPIC, RETRY_TOPIC):
        for part in topics_of(scene.admin, topic):
            scene.admin.topics[part].clear()
    found = scene.reconcile(apply=False)
    assert (found.backlog, len(found.unsubscribed)) == (0, 4)
    assert planned(found) == [2, 3]


def test_a_queue_that_is_whole_gets_no_word(scene: Scene) -> None:
    found = scene.reconcile(apply=False)
    assert (found.backlog, found.unsubscribed) == (0, ())
    assert "without subscription" not in reconciled_shown(found)
