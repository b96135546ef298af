"""What must hold of tiered storage, by the simulator's own truth: the safety rules I2 and I3.

Belongs here: judging each write of a topic's offloads, each object that is written or deleted, each message that a
sweep sends, and what the journal says of offloads. Not here: the other laws (``laws.py``), which call these.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from uuid import UUID

from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, OffloadContext
from pulsar_lifecycle.formats.offload_object import data_key
from pulsar_lifecycle.ports import JournalRow
from tests.kit.simulated.offloaded import BUCKET
from tests.simulation.world.interception import Trace
from tests.simulation.world.model import ModelTopic
from tests.simulation.world.world import World

OFFLOAD, SWEEP = "offload", "sweep"
"""Kinds of runs that act on tiered storage; they revert, too."""


class TieredLaws:
    """The judge of offloads. Each method says what is wrong, or nothing.

    ``lag_ms``: how long a copy in BookKeeper stays after its offload. ``counts``: what was done, by its name.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.lag_ms = 0
        self.counts = Counter[str]()
        self.completed: dict[UUID, int] = {}
        """When (true ms) each attempt of ours was committed."""
        self.begun: set[UUID] = set()
        self.verified: set[UUID] = set()
        self.marked: dict[int, tuple[str, UUID]] = {}
        """Ledger -> the run that began to delete its copy in BookKeeper, and the offload that it had proven."""
        self.messages: set[int] = set()

    # -------------------------------------------------------------------------------------------------- topics' z-nodes

    def edited(
        self, topic: ModelTopic, old: Sequence[LedgerInfo], new: Sequence[LedgerInfo], trace: Trace | None
    ) -> str:
        """A topic's z-node is written: judge how its offloads change, and let the model follow."""
        before = {item.ledger_id: item.offload for item in old}
        for item in new:
            was, now = before[item.ledger_id], item.offload
            if was == now:
                continue
            if trace is None or trace.kind != OFFLOAD:
                return f"the offload of {item.ledger_id} is changed outside of an offload run"
            if why := self._changed(topic, item.ledger_id, was, now, trace):
                return f"ledger {item.ledger_id} of {topic.name} by {trace.run_id}: {why}"
            if topic.loaded:
                topic.stale.setdefault(item.ledger_id, was)
            if now is None:
                topic.offloaded.pop(item.ledger_id, None)
            else:
                topic.offloaded[item.ledger_id] = now
        return ""

    def _changed(
        self, topic: ModelTopic, ledger: int, was: OffloadContext | None, now: OffloadContext | None, trace: Trace
    ) -> str:
        if was and was.complete and now is None:
            self.counts["reverted"] += 1
            whole = self.world.in_bookkeeper(ledger)
            return "" if whole else "it is reverted, and BookKeeper does not have it whole"
        if now is None or now.uuid is None or not now.complete:
            return f"{was} becomes {now}"
        if ledger == max(topic.ledgers):
            return "the last ledger of a topic is offloaded: a broker that loads it forgets that"
        if now.uuid not in self.verified:
            return f"I2: no proof of {now.uuid} is in the journal"
        if not self.world.whole(now.uuid, ledger):
            return f"I2: the objects of {now.uuid} are not what was written to it"
        if was is None or not was.complete:
            namespace = str(topic.name.namespace)
            if namespace in trace.unread - trace.read:
                return "I2: it is committed, and no broker has read what was committed before it in this run"
            trace.unread.add(namespace)
            return self._committed(topic, ledger, now)
        return self._deleted_in_bookkeeper(topic, ledger, was, now, trace)

    def _committed(self, topic: ModelTopic, ledger: int, now: OffloadContext) -> str:
        assert now.uuid is not None
        if self.world.opened().get(now.uuid) is not False:
            return f"{now.uuid} is committed, which is no open attempt of ours, or aborted"
        if self.world.attempts[now.uuid] != (topic.name, ledger):
            return f"{now.uuid} is committed, an attempt on {self.world.attempts[now.uuid]}"
        if now.bookkeeper_deleted:
            return "it is committed and listed as deleted in BookKeeper at once"
        self.completed[now.uuid] = self.world.time.now_ms()
        self.counts["offloaded"] += 1
        return ""

    def _deleted_in_bookkeeper(
        self, topic: ModelTopic, ledger: int, was: OffloadContext, now: OffloadContext, trace: Trace
    ) -> str:
        if (was.uuid, was.driver_metadata, True) != (now.uuid, now.driver_metadata, now.bookkeeper_deleted):
            return f"{was} becomes {now}"
        assert now.uuid is not None
        since = self.completed.get(now.uuid, was.timestamp or 0)
        if self.world.time.now_ms() - since < self.lag_ms:
            return f"I2: BookKeeper's copy is listed as deleted {self.world.time.now_ms() - since} ms after its offload"
        if not trace.read_well:
            return (
                "I2: BookKeeper's copy is listed as deleted; no broker read its location in this run, or one could not"
            )
        if self.marked.get(ledger) != (trace.run_id, now.uuid):
            return "its copy in BookKeeper is listed as deleted before the journal says so"
        if ledger not in self.messages:
            return "its copy in BookKeeper is listed as deleted before its message is sent"
        if now.uuid in self.world.opened():
            return "I2: its copy in BookKeeper is listed as deleted while its attempt is open"
        self.counts["listed as deleted"] += 1
        return ""

    # ------------------------------------------------------------------------------------------------------- BookKeeper

    def copy_goes(self, ledger: int) -> str:
        """I2: the copy in BookKeeper of a ledger that a topic lists is about to go."""
        topics = [topic for topic in self.world.model.topics.values() if ledger in topic.ledgers]
        read = {context.uuid for topic in topics if (context := topic.offloaded.get(ledger)) and context.uuid}
        if not read:
            return ""
        if self.marked.get(ledger, ("", None))[1] not in read:  # an operator may have attached it to two topics
            return f"I2: topics read {sorted(map(str, read))}, and no copy deletion of ours had proven one of them"
        if self.world.held():
            return "I2: a broker could not read its location, and none has since"
        self.counts["copies deleted"] += 1
        return ""

    # ---------------------------------------------------------------------------------------------------------- objects

    def object_is_written(self, key: str, trace: Trace | None) -> str:
        """An upload begins, goes on, or ends; or an object is put."""
        if trace is None or trace.kind != OFFLOAD:
            return "it is written outside of an offload run"
        aborting = self.world.opened().get(UUID(key[:36]))
        return "" if aborting is False else "it is of no open attempt of ours, or of an aborted one"

    def upload_is_dropped(self, key: str, trace: Trace | None) -> str:
        """An upload of which parts may be there is dropped."""
        uuid = UUID(key[:36])
        if trace is None or trace.kind not in (OFFLOAD, SWEEP) or uuid not in self.begun:
            return "no attempt of ours began it"
        if trace.kind == SWEEP and self.world.opened().get(uuid) is False:
            return "I3: its attempt is open"
        return ""

    def objects_go(self, uuid: UUID) -> str:
        """Objects are deleted by an offload run: of an aborted attempt."""
        if self.world.opened().get(uuid) is not True:
            return "I3: it is of no aborted attempt of ours"
        self.counts["attempts removed"] += 1
        return ""

    # ---------------------------------------------------------------------------------------------------------- journal

    def told(self, row: JournalRow) -> str:
        """The journal is told something of an offload."""
        detail: Mapping[str, str] = (
            json.loads(row.detail) if row.action in ("offload", "bookkeeper-copy-deletion") else {}
        )
        if "uuid" not in detail or not detail["uuid"]:
            return ""
        uuid = UUID(detail["uuid"])
        if row.outcome == "verified":
            self.verified.add(uuid)
            known = row.ledger_id in self.world.model.ledgers  # a restore amid the run takes back that there is one
            if known and not self.world.whole(uuid, row.ledger_id):
                return f"I2: the journal says that {uuid} of {row.ledger_id} is proven, and it is not what was written"
        if (row.action, row.outcome) == ("bookkeeper-copy-deletion", "marked"):
            self.marked[row.ledger_id] = row.run_id, uuid
        if row.outcome == "attempt-aborted" and data_key(uuid, row.ledger_id) in self.world.buckets.objects[BUCKET]:
            return f"the journal says that the objects of {uuid} are gone, and they are there"
        return ""
