"""An open ledger that a broker left because a write of ours came before its load: what it keeps, and what it does not.

Belongs here: from the write to the next scan's word on the topic. Not here: the rule (``test_list_writes.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from pulsar_lifecycle.errors import OutcomeUnknown
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.metastore.list_writes import LOAD_MS
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.topics import protection
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.trimming.delete_topic import delete_topic
from pulsar_lifecycle.trimming.trim import TrimOrder, trim_topics
from pulsar_lifecycle.values.outcomes import Outcome
from tests.kit.crash import raising
from tests.kit.scenes.overtaken_load import left_open
from tests.kit.scenes.topic_scene import TOPIC, outcomes
from tests.kit.scenes.trim_scene import CONTEXT
from tests.kit.scenes.trim_scene import TrimScene as Scene
from tests.kit.simulated.cluster import compacted_tags, cursor_tags, data_tags
from tests.kit.simulated.pipeline import Scan, scan

NAMES = {str(TOPIC), str(TOPIC.partitioned_parent)}
"""The topic, and as whose its schemas go."""


class Overtaken(Scene):
    """A topic that a scan knows, and that brokers may load as we write it."""

    def __init__(self) -> None:
        super().__init__()
        self.first = scan(self.cluster)

    def trim_at(self, load: Callable[[], object]) -> None:
        """``load`` happens when our write arrives, just before it is carried out."""
        self.on_write(load)
        assert set(outcomes(self.trim()).values()) == {Outcome.REMOVED}

    def load(self) -> int:
        return left_open(self.cluster, TOPIC)

    def look(self, *previous: Scan) -> Scan:
        self.cluster.wait(1)
        return scan(self.cluster, previous=previous or [self.first])

    def touch(self) -> None:
        """A broker writes the topic's z-node: what it lists stays."""
        self.cluster.put(self.path, self.cluster.zookeeper.data(self.path))


@pytest.fixture
def scene() -> Overtaken:
    return Overtaken()


def protected(found: Scan) -> Protection | None:
    return protection.deletion_protection(TOPIC, found.context)


def test_what_a_load_left_that_our_write_came_before_keeps_nothing_that_we_took_off(scene: Overtaken) -> None:
    scene.trim_at(scene.load)
    found = scene.look()
    assert found.context.open_topics == found.context.overtaken_topics == NAMES
    assert protected(found) is None
    assert found.context.without_grace().open_topics == frozenset()
    scene.touch()  # the broker's client tried again
    assert scene.look().context.overtaken_topics == NAMES
    later = scene.look(scene.first, found)
    assert later.context.overtaken_topics == NAMES


def test_ledgers_that_nobody_took_off_stay_beside_it(scene: Overtaken) -> None:
    """They may be another cluster's whose topic has the same name."""
    scene.trim_at(scene.load)
    found = scene.look()
    assert found.context.open_topics == NAMES


def older(scene: Overtaken) -> None:
    """Made before the write that ours replaced: that one may have listed it."""
    scene.load()
    scene.touch()
    scene.cluster.wait(1)
    scene.trim()


def later(scene: Overtaken) -> None:
    """Its broker may have read what we wrote."""
    scene.trim()
    scene.load()


def long_before(scene: Overtaken) -> None:
    """No load takes as long."""
    scene.load()
    scene.cluster.clock.advance(LOAD_MS / 1000 + 1)
    scene.trim()


def unknown_outcome(scene: Overtaken) -> None:
    """Nobody knows which transaction our write was."""
    scene.on_write(raising(OutcomeUnknown("connection lost")), "after")
    scene.trim_at(scene.load)


def of_a_cursor(scene: Overtaken) -> None:
    scene.trim_at(lambda: scene.cluster.ledger(cursor_tags(TOPIC, "s"), state=LedgerState.OPEN, entries=()))


def of_a_compaction(scene: Overtaken) -> None:
    scene.trim_at(lambda: scene.cluster.ledger(compacted_tags(TOPIC), state=LedgerState.OPEN, entries=()))


def recovered(scene: Overtaken) -> None:
    """Somebody opens it, whoever that is."""
    scene.trim_at(lambda: scene.cluster.ledger(data_tags(TOPIC), state=LedgerState.IN_RECOVERY, entries=()))


def beside_another(scene: Overtaken) -> None:
    scene.trim_at(scene.load)
    scene.load()


def of_another_topic_of_its_name(scene: Overtaken) -> None:
    scene.trim_at(scene.load)
    data = scene.cluster.zookeeper.data(scene.path)
    for name in scene.cluster.zookeeper.names(scene.path):
        scene.cluster.remove(f"{scene.path}/{name}")
    scene.cluster.remove(scene.path)
    for _ in range(9):  # its version is as high
        scene.cluster.put(scene.path, data)


HAPPENS = (
    *(older, later, long_before, unknown_outcome, of_a_cursor, of_a_compaction, recovered, beside_another),
    of_another_topic_of_its_name,
)


@pytest.mark.parametrize("happens", HAPPENS)
def test_any_other_open_ledger_keeps_what_left_the_list(scene: Overtaken, happens: Callable[[Overtaken], None]) -> None:
    happens(scene)
    found = scene.look()
    assert found.context.open_topics == NAMES
    assert found.context.overtaken_topics == frozenset()
    assert protected(found) is Protection.OPEN_ORPHAN


def test_nothing_is_known_of_what_was_written_before_the_first_scan_that_counts(scene: Overtaken) -> None:
    """The store may have been restored in between: those before were set aside then."""
    scene.trim_at(scene.load)
    scene.cluster.wait(1)
    after = scan(scene.cluster)
    assert scene.look(after).context.overtaken_topics == frozenset()
    assert scene.look(scene.first, after).context.overtaken_topics == NAMES


def test_a_topic_does_not_go_beside_it(scene: Overtaken) -> None:
    """Its z-node alone shows that the load came too late."""
    scene.trim_at(scene.load)
    context = replace(CONTEXT, open_topics=frozenset(NAMES), overtaken_topics=frozenset(NAMES))
    found = scene.act(lambda run, ports, guard: delete_topic(replace(run, context=context), ports, guard, TOPIC, True))
    assert {one.why.code for one in found.values()} == {Protection.OPEN_ORPHAN}
    rest = TrimOrder(TOPIC, up_to=scene.ids[3])
    scene.cursor("s", Position(scene.ids[4], -1))
    scene.cluster.wait(1)
    found = scene.act(lambda run, ports, guard: trim_topics(replace(run, context=context), ports, guard, [rest]))
    assert outcomes(found) == {scene.ids[3]: Outcome.REMOVED}
