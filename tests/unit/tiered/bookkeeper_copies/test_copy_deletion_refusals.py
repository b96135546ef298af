"""Which copies in BookKeeper are not deleted, and by which code."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from uuid import uuid4

import pytest

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.copies.attempts import Attempt
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.tiered.bookkeeper_copies import Due
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.outcomes import Outcome, Phase
from tests.kit.refused import refused_by
from tests.kit.scenes.tiered.copy_deletion_scene import BROKEN, CONTEXT, LAG
from tests.kit.scenes.tiered.copy_deletion_scene import CopyDeletionScene as Scene
from tests.kit.scenes.topic_scene import OTHER, TOPIC, outcomes
from tests.kit.simulated.cluster import cursor_tags, data_tags
from tests.kit.simulated.offloaded import BUCKET


@pytest.fixture
def scene() -> Scene:
    return Scene()


def refusal(scene: Scene, *due: Due, **given: Any) -> Why:
    """Why the copy of the first ledger is not deleted; nothing may have happened to it, but that it is journalled."""
    version, sent, rows = scene.cluster.zookeeper.stat(scene.path), scene.waiting, len(scene.rows)
    asked = due or (scene.proven(scene.due[0]),)
    said = scene.begin_deletions(*asked, **given)[scene.due[0]]
    assert said.outcome == Outcome.REFUSED
    assert (scene.cluster.zookeeper.stat(scene.path), scene.waiting) == (version, sent)
    assert scene.rows[rows:] == [(one.ledger_id, Phase.COPY_DELETION, Outcome.REFUSED) for one in asked]
    return said.why


def test_the_lag_must_have_passed(scene: Scene) -> None:
    timestamp = scene.contexts[scene.due[0]].timestamp
    assert timestamp
    age = scene.cluster.clock.now_ms() - timestamp
    assert refusal(scene, lag=age + 1_000_000).code is Code.LAG
    assert outcomes(scene.begin_deletions(lag=age - 1)) == dict.fromkeys(scene.due, Outcome.BOOKKEEPER_DELETED)


@pytest.mark.parametrize("lag", [None, -1])
def test_without_a_lag_nothing_goes_by_itself(scene: Scene, lag: int | None) -> None:
    assert refusal(scene, lag=lag).code is Code.LAG
    scene.change(scene.due[0], bookkeeper_deleted=True)
    scene.cluster.wait(1)
    assert outcomes(scene.begin_deletions(lag=lag)) == {
        scene.due[0]: Outcome.BOOKKEEPER_DELETED,
        scene.due[1]: Outcome.REFUSED,
    }


@pytest.mark.parametrize("timestamp", [None, 0, 1 << 60])
def test_an_offload_of_an_unknown_time_stays(scene: Scene, timestamp: int | None) -> None:
    scene.change(scene.due[0], timestamp=timestamp)
    assert refusal(scene).code is Code.LAG


def test_a_clock_that_runs_ahead_shortens_no_lag(scene: Scene) -> None:
    timestamp = scene.contexts[scene.due[0]].timestamp
    assert timestamp
    assert refusal(scene, now=timestamp + LAG).code is Code.LAG  # the metadata store's time when the lease was taken


def test_another_attempt_than_was_proven(scene: Scene) -> None:
    proven = scene.proven(scene.due[0])
    scene.change(scene.due[0], uuid=uuid4())
    assert refusal(scene, proven).code is Code.COPY_DIFFERS


def test_another_bucket_than_was_proven(scene: Scene) -> None:
    assert refusal(scene, scene.proven(scene.due[0], bucket="empty")).code is Code.COPY_DIFFERS
    scene.change(scene.due[0], driver_metadata={})
    assert refusal(scene).code is Code.COPY_DIFFERS


@pytest.mark.parametrize("changes", [{"complete": False}, {"complete": False, "bookkeeper_deleted": True}])
def test_an_offload_that_is_not_complete(scene: Scene, changes: dict[str, bool]) -> None:
    scene.change(scene.due[0], **changes)
    assert refusal(scene).code is Code.NOT_OFFLOADED


def test_a_context_that_was_reverted(scene: Scene) -> None:
    scene.write(scene.due[0], None)
    assert refusal(scene).code is Code.NOT_OFFLOADED


def test_a_ledger_that_is_not_listed(scene: Scene) -> None:
    scene.list_only(scene.ids[1:])
    assert refusal(scene).code is Code.DELISTED


def test_the_last_ledger(scene: Scene) -> None:
    scene.list_only(scene.ids[:1])
    assert refusal(scene).code is Code.LAST_LEDGER


def our_attempt(scene: Scene, ledger_id: int) -> Attempt:
    return Attempt(ledger_id, str(TOPIC), uuid4(), "aws-s3", (("bucket", BUCKET),), 5 << 20, "other", 1)


def test_a_ledger_whose_attempt_is_open(scene: Scene) -> None:
    attempts.begin(scene.store, our_attempt(scene, scene.due[0]))
    assert refusal(scene).code is Code.ATTEMPT_OPEN
    scene.cluster.put(attempts.path_of(scene.due[0]), b"?")
    assert refusal(scene).code is Code.ATTEMPT_OPEN


@pytest.mark.parametrize("state", [LedgerState.OPEN, LedgerState.IN_RECOVERY])
def test_a_ledger_that_was_never_closed(scene: Scene, state: LedgerState) -> None:
    scene.cluster.ledger(data_tags(TOPIC), state=state, ledger_id=scene.due[0])
    assert refusal(scene).code is Code.NOT_IN_BOOKKEEPER


@pytest.mark.parametrize("tags", [data_tags(OTHER), cursor_tags(TOPIC, "s"), None])
def test_a_ledger_of_somebody_else(scene: Scene, tags: dict[str, str] | None) -> None:
    scene.cluster.ledger(tags, ledger_id=scene.due[0])
    assert refusal(scene).code is Code.NOT_IN_BOOKKEEPER


def test_a_ledger_that_bookkeeper_does_not_have(scene: Scene) -> None:
    scene.cluster.remove(scene.cluster.path(scene.due[0]))
    scene.change(scene.due[0], bookkeeper_deleted=True)
    assert refusal(scene).code is Code.NOT_IN_BOOKKEEPER


def test_a_ledger_that_is_not_as_long_as_its_copy(scene: Scene) -> None:
    scene.cluster.ledger(data_tags(TOPIC), entries=[b"x" * 5] * 2, ledger_id=scene.due[0])
    why = refusal(scene)
    assert why.code is Code.UNLIKE_BOOKKEEPER
    assert why.text == "BookKeeper says 2 entries of 10 bytes, its offloaded copy has 1 of 10"


def test_a_topic_that_says_something_else_than_its_copy(scene: Scene) -> None:
    ledgers = tuple(replace(item, entries=7) if item.ledger_id == scene.due[0] else item for item in scene.info.ledgers)
    scene.cluster.put(scene.path, managed_ledger.encode(replace(scene.info, ledgers=ledgers)))
    assert refusal(scene).code is Code.UNLIKE_BOOKKEEPER


@pytest.mark.parametrize(
    ("context", "code"),
    [
        (replace(CONTEXT, holds=frozenset({"acme"})), Protection.LEGAL_HOLD),
        (replace(CONTEXT, namespaces=frozenset()), Protection.UNKNOWN_NAMESPACE),
        (replace(CONTEXT, shadow_sources=frozenset({str(TOPIC)})), Protection.SHADOW_SOURCE),
        (replace(CONTEXT, shared_namespaces=frozenset({"acme/orders"})), Protection.SHARED_NAMESPACE),
    ],
)
def test_a_topic_that_is_not_touched(scene: Scene, context: Context, code: Protection) -> None:
    assert refusal(scene, context=context).code is code


def test_the_source_of_a_shadow_topic_of_now(scene: Scene) -> None:
    scene.cluster.topic(OTHER, [scene.cluster.ledger(data_tags(OTHER))], shadow_of=str(TOPIC))
    assert refusal(scene).code is Protection.SHADOW_SOURCE


def test_a_shadow_topic(scene: Scene) -> None:
    info = replace(scene.info, properties={"PULSAR.SHADOW_SOURCE": str(OTHER)})
    scene.cluster.put(scene.path, managed_ledger.encode(info))
    assert refusal(scene).code is Protection.SHADOW_TOPIC


def test_a_topic_that_cannot_be_read(scene: Scene) -> None:
    due = scene.proven(scene.due[0])
    scene.cluster.put(scene.path, BROKEN)
    with refused_by(Code.TOPIC_UNREAD):
        scene.begin_deletions(due)


def test_a_loaded_topic_that_the_policy_does_not_name_gets_no_message() -> None:
    scene = Scene(loaded=True)
    scene.loaded_topics = False
    said = scene.begin_deletions()
    assert outcomes(said) == dict.fromkeys(scene.due, Outcome.LEFT_TO_BROKER)
    assert (scene.deleted_ids, scene.waiting, scene.left_pending) == ([], 0, [])
    scene.change(scene.due[0], bookkeeper_deleted=True)
    assert outcomes(scene.begin_deletions()) == {
        scene.due[0]: Outcome.BOOKKEEPER_DELETED,
        scene.due[1]: Outcome.LEFT_TO_BROKER,
    }


def test_no_loaded_topic_without_an_unload_left() -> None:
    scene = Scene(loaded=True)
    scene.limit = 0
    assert outcomes(scene.begin_deletions()) == dict.fromkeys(scene.due, Outcome.LEFT_TO_BROKER)
    assert scene.deleted_ids == []
    scene.scan()
    assert {d.outcome for d in scene.delete()} == {Outcome.RETRYING}
    assert scene.left == scene.due
