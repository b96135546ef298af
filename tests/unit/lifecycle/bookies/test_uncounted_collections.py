"""Which bookies are not said to have collected: whoever answers for them, whatever else moves meanwhile; over fakes."""

from dataclasses import replace

import pytest

from pulsar_lifecycle.errors import OutcomeUnknown
from pulsar_lifecycle.lifecycle.bookies.collection import CollectionEnd
from pulsar_lifecycle.run_settings import CollectionSettings
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.fakes.bookie_admin import IDLE
from tests.kit.scenes.lifecycle.collection_scene import GB, Scene, outcomes, spoil


@pytest.mark.parametrize("of_major", [False, True])
def test_one_that_may_not_have_heard_is_not_said_to_have_collected(of_major):
    scene = Scene()

    def begin(bookie, major):
        if bookie == "a" and major == of_major:
            raise OutcomeUnknown("it never came")
        Scene.begin(scene, bookie, major)

    scene.bookies.on_collect = begin
    found = scene.run()
    assert outcomes(found) == {"a": Outcome.UNANSWERED, "b": Outcome.COLLECTED, "c": Outcome.COLLECTED}


@pytest.mark.parametrize("of_major", [False, True])
def test_one_whose_proxy_answers_for_it_is_not_said_to_have_collected(of_major):
    """The bookie counts its collections, and none ended since."""
    scene = Scene()
    scene.counts_collections()

    def begin(bookie, major):
        if bookie != "a" or major != of_major:
            Scene.begin(scene, bookie, major)

    scene.bookies.on_collect = begin
    found = scene.run()
    assert outcomes(found) == {"a": Outcome.UNANSWERED, "b": Outcome.COLLECTED, "c": Outcome.COLLECTED}
    assert found["a"].why.code is CollectionEnd.UNCOUNTED
    assert "a ledger directory counts no collection since: does a proxy answer, " in found["a"].why.text


def test_one_whose_proxy_answers_for_it_is_not_said_to_have_freed_what_others_did():
    """A disk that other servers use, too, has more free by them."""
    scene = Scene()
    scene.counts_collections()
    scene.bookies.on_collect = lambda bookie, major: scene.set(bookie, free=60 * GB)
    found = scene.run()
    assert outcomes(found) == dict.fromkeys("abc", Outcome.UNANSWERED)
    assert {one.freed for one in found.values()} == {0}


def test_one_whose_collection_failed_is_not_said_to_have_collected():
    """It was seen at it; a collection that fails is counted as none, and compacts nothing."""
    scene = Scene()
    scene.counts_collections()
    tick = scene.tick

    def ticks():
        before = scene.bookies.statuses["a"]
        tick()
        if before.collecting and not scene.bookies.statuses["a"].collecting:
            scene.bookies.statuses["a"] = replace(before, collecting=False)

    scene.tick = ticks
    assert outcomes(scene.run())["a"] is Outcome.UNANSWERED


def test_one_of_whose_directories_one_alone_has_collected_is_not_said_to_have():
    scene = Scene()
    (first,) = scene.bookies.statuses["a"].directories
    second = replace(first, path="/d-2", collections=3)
    scene.set("a", directories=(replace(first, collections=3), second), compactions=(IDLE, IDLE))
    tick = scene.tick

    def ticks():
        tick()
        (first, *_) = scene.bookies.statuses["a"].directories
        scene.set("a", directories=(first, second))

    scene.tick = ticks
    assert outcomes(scene.run())["a"] is Outcome.UNANSWERED


def test_one_whose_metrics_go_away_is_said_to_have_had_no_major_compaction():
    scene = Scene()
    spoil(scene, "a", directories=None)
    tick = scene.tick

    def ticks():
        said = scene.bookies.statuses["a"]
        if said.directories is None and scene.left.get("a"):
            scene.left.pop("a")
            scene.set("a", collecting=False, compactions=(replace(IDLE, minors=1),))
        tick()

    scene.tick = ticks
    found = scene.run()
    assert outcomes(found) == dict.fromkeys("abc", Outcome.COLLECTED)
    assert found["a"].why.code is CollectionEnd.MAJOR_UNKNOWN
    assert "whether a major one would free much is not known: " in found["a"].why.text
    assert ("a", True) not in scene.bookies.collections


def test_one_that_compacts_one_directory_by_itself_and_may_not_have_heard_is_not_said_to_have_collected():
    scene = Scene()
    scene.settings = CollectionSettings(min_bytes=1 << 50)  # a minor one is enough
    scene.counts_collections()

    def begin(bookie, major):
        if bookie == "a":
            scene.set("a", compactions=(replace(IDLE, minors=IDLE.minors + 1),))
            raise OutcomeUnknown("it never came")
        Scene.begin(scene, bookie, major)

    scene.bookies.on_collect = begin
    found = scene.run()
    assert outcomes(found) == {"a": Outcome.UNANSWERED, "b": Outcome.COLLECTED, "c": Outcome.COLLECTED}
    assert found["a"].why.code is CollectionEnd.BEGIN_UNKNOWN
    assert found["a"].why.text == "whether it began a minor compaction is not known"
