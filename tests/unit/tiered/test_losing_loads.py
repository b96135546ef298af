"""A topic that loses data once a broker loads it is not read: another one of its namespace is."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import uuid4

import pytest

from pulsar_lifecycle.errors import BundleShared, Unavailable
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.tiered import commit as tiered_commit
from pulsar_lifecycle.tiered.outcome import OffloadOutcome
from pulsar_lifecycle.tiered.read_check import ReadCheck
from pulsar_lifecycle.topics.load_losses import LoadLoss, LoadLosses, Replication
from pulsar_lifecycle.topics.policies import InForce
from pulsar_lifecycle.values.codes import Code
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.crash import raising
from tests.kit.scenes.tiered.commit_cases import begun, interrupted_after_the_commit, words
from tests.kit.scenes.tiered.copy_deletion_scene import CopyDeletionScene
from tests.kit.scenes.tiered.offload_scene import OffloadScene as Scene
from tests.kit.scenes.topic_scene import OTHER, TOPIC, outcomes
from tests.kit.simulated.cluster import data_tags

KNOWN: InForce[Replication | None] = InForce({str(TOPIC.namespace): Replication()})
LAZY = LoadLosses(KNOWN, lazy_cursors=True)
ELSEWHERE = LoadLosses(InForce({str(TOPIC.namespace): Replication(here=False)}))
LOSING = pytest.mark.parametrize(
    ("losses", "code"),
    [
        (LAZY, LoadLoss.CURSORS_COME_LATER),
        (ELSEWHERE, LoadLoss.NOT_REPLICATED_HERE),
        (LoadLosses(), LoadLoss.LOSS_UNKNOWN),
    ],
)


def assert_waits_for_another(found: Sequence[OffloadOutcome], code: LoadLoss) -> None:
    """Each must be read first, and its topic must not be loaded."""
    assert {(one.outcome, one.why.code) for one in found} == {(Outcome.FAILED, Code.READ_CHECK_DUE)}
    assert all(f"({code})" in one.reason and "another topic of its namespace" in one.reason for one in found)


@LOSING
def test_nothing_is_copied_that_must_be_read_first_where_its_topic_would_lose_data(
    losses: LoadLosses, code: LoadLoss
) -> None:
    scene = Scene()
    scene.cluster.cursor(TOPIC, "s")
    scene.losses = losses
    attempts, found = scene.session().begin(scene.wanted)
    assert (attempts, scene.open_attempts, scene.cluster.admin.touched) == ([], [], [])
    assert_waits_for_another(found, code)


@LOSING
def test_no_ledger_of_a_topic_is_committed_that_must_be_read_first_and_would_lose_data_by_now(
    losses: LoadLosses, code: LoadLoss
) -> None:
    scene = Scene()
    scene.cluster.cursor(TOPIC, "s")
    session, proven = begun(scene)
    scene.losses = losses
    found = session.commit(proven)
    assert_waits_for_another(found, code)
    assert (scene.complete, scene.cluster.admin.touched, words(scene)) == ([], [], [])
    assert scene.open_attempts == scene.wanted


def test_once_another_topic_of_its_namespace_was_read_it_is_offloaded_unloaded() -> None:
    scene = Scene()
    scene.cluster.cursor(TOPIC, "s")
    scene.losses = LAZY
    ids = [scene.cluster.ledger(data_tags(OTHER)) for _ in range(2)]
    scene.cluster.topic(OTHER, ids)
    scene.cluster.admin.topics[OTHER] = {}
    scene.cluster.admin.on_read = lambda topic, position: None
    scene.cluster.admin.on_unload = lambda topic: None
    scene.cluster.wait(1)
    session = scene.session()
    wanted = list(session.asked(ids[:1]))
    there, _ = tiered_commit.begin_topic(
        session.run, session.ports, session.guard, OTHER, wanted, uuid4, session.read_check
    )
    others = [session.copy(one) for one in there]
    (read,) = tiered_commit.commit_topic(session.run, session.ports, session.guard, OTHER, others, session.read_check)
    assert read.outcome == Outcome.OFFLOADED
    assert outcomes(session.offload(scene.wanted)) == dict.fromkeys(scene.wanted, Outcome.OFFLOADED)
    assert set(scene.cluster.admin.touched) == {OTHER}


@LOSING
def test_a_loaded_topic_is_not_offloaded_that_would_lose_data_by_its_unload(losses: LoadLosses, code: LoadLoss) -> None:
    scene = Scene()
    scene.cluster.cursor(TOPIC, "s")
    scene.cluster.load(TOPIC)
    scene.loaded_topics, scene.losses = True, losses
    attempts, found = scene.session().begin(scene.wanted)
    assert (attempts, scene.open_attempts, scene.cluster.admin.touched) == ([], [], [])
    assert {(one.outcome, one.why.code) for one in found} == {(Outcome.LEFT_TO_BROKER, code)}


def with_a_cursor_that_goes_back(scene: Scene) -> None:
    """Its ledger was never closed, and no bookie that has its entry answers."""
    tags = {**data_tags(TOPIC), "pulsar/cursor": "s"}
    ledger = scene.cluster.ledger(tags, state=LedgerState.OPEN, entries=[scene.cluster.position_entry()])
    scene.cluster.cursor(TOPIC, "s", ledger=ledger)
    scene.cluster.reader.failures[ledger] = Unavailable("bookie-1:3181 does not answer")


def test_nothing_is_copied_that_must_be_read_first_where_a_subscription_would_go_back() -> None:
    scene = Scene()
    with_a_cursor_that_goes_back(scene)
    attempts, found = scene.session().begin(scene.wanted)
    assert (attempts, scene.open_attempts, scene.cluster.admin.touched) == ([], [], [])
    assert {(one.outcome, one.why.code) for one in found} == {(Outcome.FAILED, Code.READ_CHECK_DUE)}
    assert all("put a subscription back" in one.reason and "cursor s" in one.reason for one in found)


@pytest.mark.parametrize("shared", [False, True])
def test_what_must_be_read_first_is_copied_once_others_are_not_loaded_with_it(shared: bool) -> None:
    """Nothing is uploaded that no broker could be asked to read."""
    scene = Scene()
    if shared:
        scene.cluster.admin.on_take = raising(BundleShared("beside"))
    attempts, found = scene.session().begin(scene.wanted)
    assert [one.ledger_id for one in attempts] == ([] if shared else scene.wanted)
    assert {one.why.code for one in found} == ({Code.READ_CHECK_DUE} if shared else set())
    assert all("beside" in one.reason for one in found)
    assert scene.cluster.admin.touched == []


def test_a_loaded_topic_is_not_offloaded_whose_unload_would_put_a_subscription_back() -> None:
    """A topic whose broker died counts as loaded: to unload it a broker loads it."""
    scene = Scene()
    with_a_cursor_that_goes_back(scene)
    scene.cluster.load(TOPIC)
    scene.loaded_topics = True
    attempts, found = scene.session().begin(scene.wanted)
    assert (attempts, scene.open_attempts, scene.cluster.admin.touched) == ([], [], [])
    assert {(one.outcome, one.why.code) for one in found} == {(Outcome.LEFT_TO_BROKER, Code.CURSORS_UNREAD)}


@LOSING
def test_what_a_killed_run_committed_waits_for_a_read_of_another_topic(losses: LoadLosses, code: LoadLoss) -> None:
    scene = Scene()
    scene.cluster.cursor(TOPIC, "s")
    interrupted_after_the_commit(scene)
    scene.losses = losses
    _, found = scene.session_again().finish_attempts(())
    assert {one.outcome for one in found} == {Outcome.FAILED}
    assert all(f"({code})" in one.reason for one in found)
    assert (scene.cluster.admin.touched, scene.complete, scene.open_attempts) == ([], scene.wanted, scene.wanted)


@LOSING
def test_no_copy_is_deleted_whose_topic_would_have_to_be_read_for_that(losses: LoadLosses, code: LoadLoss) -> None:
    scene = CopyDeletionScene()
    scene.cluster.cursor(TOPIC, "s")
    scene.losses = losses
    scene.read_check = ReadCheck(False, [str(TOPIC)])
    said = scene.begin_deletions()
    assert {one.why.code for one in said.values()} == {Code.LOCATION_UNREAD}
    assert all(f"({code})" in one.reason for one in said.values())
    assert (scene.cluster.admin.touched, scene.deleted_ids, scene.waiting) == ([], [], 0)


def test_a_topic_without_cursors_is_read_whatever_brokers_say_of_cursors() -> None:
    scene = Scene()
    scene.losses = LAZY
    session, proven = begun(scene)
    assert outcomes(session.commit(proven)) == dict.fromkeys(scene.wanted, Outcome.OFFLOADED)
    assert set(scene.cluster.admin.touched) == {TOPIC}
