"""Steps that several tests of offload runs begin with.

Belongs here: an attempt that was begun, interrupted, or must be refused. Not here: the topic
(``offload_scene.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import pytest

from pulsar_lifecycle.errors import (
    StoreError,
)
from pulsar_lifecycle.tiered import revert
from pulsar_lifecycle.tiered.commit import Proven
from pulsar_lifecycle.tiered.outcome import OffloadOutcome
from pulsar_lifecycle.values.copies import NamespaceLocation, OffloadLocation
from tests.kit.crash import Crash
from tests.kit.scenes.tiered.offload_scene import BUCKET, LOCATION, Session
from tests.kit.scenes.tiered.offload_scene import OffloadScene as Scene
from tests.kit.scenes.topic_scene import TOPIC


class Off:
    """A host's clock that is wrong by so many ms."""

    def __init__(self, scene: Scene, by: int) -> None:
        self._clock, self._by = scene.cluster.clock, by

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._by

    def sleep(self, seconds: float) -> None:
        self._clock.sleep(seconds)


def fill(scene: Scene, ledger_id: int, entries: Sequence[bytes]) -> None:
    """Its bookies hold these."""
    scene.cluster.reader.payloads[ledger_id] = list(entries)


def begun(scene: Scene, ledger_ids: Sequence[int] | None = None) -> tuple[Session, list[Proven]]:
    """Attempts that are copied and proven."""
    session = scene.session()
    found, _ = session.begin(scene.wanted if ledger_ids is None else ledger_ids)
    return session, [session.copy(one) for one in found]


def unreadable_bookkeeper(scene: Scene) -> None:
    scene.cluster.zookeeper.unreadable.add(scene.cluster.path(scene.ids[0]))


def listed_as_deleted(scene: Scene) -> None:
    offload = scene.items[scene.ids[0]].offload
    assert offload
    scene.write(scene.ids[0], replace(offload, bookkeeper_deleted=True))


ROTTEN = StoreError("entry 1: CRC32C")


def reverted(scene: Scene, *, dry_run: bool = False) -> list[OffloadOutcome]:
    session = scene.session_again()
    if dry_run:
        return revert.plan_revert(session.run, session.ports, TOPIC, scene.wanted)
    return revert.revert_topic(session.run, session.ports, session.guard, TOPIC, scene.wanted)


def interrupted_after_the_commit(scene: Scene) -> None:
    """Killed between the compare-and-set of three ledgers and the end of their attempts."""
    scene.waived = True
    session, proven = begun(scene)

    def die(name: str) -> None:
        if name == "after record" and len(scene.complete) == len(proven):
            raise Crash

    scene.tick = die
    with pytest.raises(Crash):
        session.commit(proven)
    scene.tick = lambda name: None
    scene.waived = False
    assert (scene.complete, scene.open_attempts) == (scene.wanted, scene.wanted)


def words(scene: Scene) -> list[dict[str, Any]]:
    """What the journal has of reads through brokers."""
    return [asdict(row) for row in scene.cluster.journal.rows if row.action == "read-check"]


HERE: NamespaceLocation = (str(TOPIC.namespace), "aws-s3", tuple(sorted(LOCATION)))
SITE: OffloadLocation = ("aws-s3", BUCKET, "r", "http://s3")
