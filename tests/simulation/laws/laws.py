"""What must hold at every moment of a schedule, by the simulator's own truth: the safety rules I1 to I9.

Belongs here: judging each write of the product as it happens, each journal row and each acknowledgement. Nothing here
calls a rule of the product. Not here: deletions (``deletion_laws.py``), offloads (``tiered_laws.py``), and liveness,
which only the end of a schedule can judge (``simulator.py``).
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from uuid import UUID

from pulsar_lifecycle.copies.attempts import ATTEMPTS
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.deletion_message import PendingDeleteLedgerInfo, encode_deletion_message
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.offload_object import uuid_of
from pulsar_lifecycle.formats.retry_letter import RECONSUMETIMES, WAITING_FOR, reconsume_times
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow, Received, Sent
from pulsar_lifecycle.values.outcomes import FINAL, Action, Outcome
from pulsar_lifecycle.values.plans.plan_kind import PlanKind, kind_of
from tests.kit.simulated.offloaded import BUCKET
from tests.simulation.laws.deletion_laws import DeletionLaws, Violation
from tests.simulation.laws.load_laws import notes_of
from tests.simulation.laws.tiered_laws import OFFLOAD, SWEEP
from tests.simulation.world.model import HOUR, ModelTopic
from tests.simulation.world.ports import SimStore
from tests.simulation.world.queue import SimQueue
from tests.simulation.world.world import World

SETTLED_WITHIN = 6 * 24 * HOUR
OF_WHAT_NOTHING_LISTS = (PlanKind.ORPHANS, PlanKind.RECONCILE, PlanKind.OBJECTS)
"""Plans of what no topic lists; the messages of any other are about ledgers that leave their topics."""

DAMAGED = "references of it are in a damaged entry"
"""Why a deletion run keeps what is of a topic, as :meth:`Laws._forbids` says it."""


class Laws(DeletionLaws):
    """The judge of one schedule: it watches every port of ``world``."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.counts = Counter[str]()
        world.zookeeper.on_delete = self.about_to_delete
        world.zookeeper.on_write = self.about_to_write
        world.admin.on_delete_topic = self.about_to_delete_topic
        world.objects.on_delete = self.about_to_delete_objects
        world.objects.on_write = self.about_to_write_object
        world.objects.on_drop = self.about_to_drop_upload
        world.journal.on_record = self.about_to_record
        world.on_load = self.is_loaded
        world.wire = self.wire

    def wire(self, queue: SimQueue) -> None:
        """Watch a session with the queue."""
        queue.on_acknowledge = self.about_to_acknowledge
        queue.on_sent = self.was_sent

    def is_loaded(self, topic: ModelTopic) -> None:
        """No run has a topic loaded, but one that offloads: a broker reads for it, and it must unload the topic."""
        trace = self.world.trace
        reads = trace is not None and trace.kind == OFFLOAD
        if reads and any(self.world.zookeeper.stat(path) for path in notes_of(topic)):
            return
        if not self.world.interceptor.fired:  # else a run may ask of one that a broker had a moment ago
            raise Violation(f"load: {topic.name} is loaded without order")

    def about_to_write_object(self, key: str) -> None:
        """Nothing is uploaded but what an open attempt of ours is about."""
        if why := self.tiered.object_is_written(key, self.world.trace):
            raise Violation(f"object {key} is written: {why}")

    def about_to_drop_upload(self, key: str) -> None:
        """I3: judge the end of an upload."""
        if why := self.tiered.upload_is_dropped(key, self.world.trace):
            raise Violation(f"an upload of {key} is dropped: {why}")

    # --------------------------------------------------------------------------------------------------------- writing

    def about_to_write(self, store: SimStore, path: str, old: bytes, new: bytes) -> None:
        """Judge a write of the product: its own z-nodes, and managed ledgers without holes."""
        if path.startswith(f"{ATTEMPTS}/"):
            self._attempted(json.loads(new))
        if path.startswith("/pulsar-lifecycle"):
            return
        if path.startswith("/ledgers/") and not old and self.world.trace and self.world.trace.undo:
            self._brought_back(path, new)
            return
        if not path.startswith("/managed-ledgers/") or path.count("/persistent/") != 1 or not old:
            raise Violation(f"I8: the product writes {path}")
        listed = managed_ledger.decode(old).ledgers
        worse = store.trace is not None and store.trace.read_badly  # what no broker could read is reverted at once
        if any(item.offload and item.offload.uuid and not item.offload.complete for item in listed) and not worse:
            raise Violation(f"the product writes {path}, and ends the offload attempt of a broker there")
        before = [item.ledger_id for item in listed]
        left = managed_ledger.decode(new).ledgers
        after = [item.ledger_id for item in left]
        if not after or after != before[len(before) - len(after) :]:
            raise Violation(f"I5: the product makes {after} of {before} in {path}")
        why = self.world.trimmed(path, after)
        if why:
            raise Violation(f"I5: the product makes {after} of {before} in {path}: {why}")
        topic = Topic.from_managed_ledger(path.removeprefix("/managed-ledgers/"))
        if why := self.tiered.edited(self.world.model.topics[topic], listed, left, store.trace):
            raise Violation(why)
        gone = list(listed[: len(before) - len(after)])
        if self.retaining:
            if why := self.judge_retention(topic, gone):
                raise Violation(f"retention: the product makes {after} of {before} in {path}: {why}")
            self.expired += len(gone)
        self.trimmed += len(before) - len(after)
        owner = str(Topic.from_managed_ledger(path.removeprefix("/managed-ledgers/")))
        for item in listed[: len(before) - len(after)]:
            made = self.world.model.ledgers.get(item.ledger_id)  # one in recovery is left to the orphan scan
            if self.world.exists(item.ledger_id) and made and made.state is LedgerState.CLOSED:
                self._take(item.ledger_id, Action.DELETE_LEDGER, owner)
            attempt = item.offload.uuid if item.offload and item.offload.complete else None
            if attempt and str(self.world.attempts[attempt][0]) == owner:  # objects of a topic that was renamed stay
                self._take(item.ledger_id, Action.DELETE_OFFLOADED, owner)

    def _attempted(self, attempt: Mapping[str, str]) -> None:
        """An attempt of ours is noted, before anything of it is uploaded."""
        uuid = UUID(attempt["uuid"])
        self.tiered.begun.add(uuid)
        self.world.attempts[uuid] = Topic.parse(attempt["topic"]), int(attempt["ledger_id"])

    def _take(self, ledger: int, action: str, topic: str) -> None:
        if not self.world.clock.skew_ms:  # by a wrong clock its objects may be younger than its message
            self.taken[ledger, action] = topic, self._forbids(topic)

    def open_leaks(self) -> frozenset[str]:
        """Topics of which an open ledger has leaked."""
        leaks = (self.world.model.ledgers[i] for i in self.world.leaks())
        return frozenset(str(one.topic) for one in leaks if one.state is not LedgerState.CLOSED)

    def looked(self, open_before: frozenset[str], damaged_before: frozenset[str]) -> None:
        """A scan is through that began with these ``open_leaks`` and damaged owners: it may have missed later ones."""
        self._forget_what_is_needed()
        self.writing = open_before & self.open_leaks()
        self.damaged = damaged_before & self.world.damaged_owners()

    def unlisted_open(self) -> Mapping[int, int | None]:
        """Open ledgers that no metadata names -> what created the z-node of their topic; of those that can be read."""
        world, live = self.world, self.world.live(memory=False)
        found = [i for i, made in world.model.ledgers.items() if made.state is not LedgerState.CLOSED and i not in live]
        there = [i for i in found if world.exists(i) and world.path(i) not in world.corrupted]
        stats = {i: world.zookeeper.stat(world.topic_path(world.model.ledgers[i].topic)) for i in there}
        return {i: stat.czxid if stat else None for i, stat in stats.items()}

    def freed(self, topics: Collection[str], open_before: Mapping[int, int | None], restores: int) -> None:
        """A scan frees what left these topics' lists, whatever unlisted ledgers of them are open: none can be listed.

        It began with those, and with so many restores.
        """
        still = self.unlisted_open().items() & open_before.items() if self.world.restored == restores else ()
        for ledger, czxid in still:
            topic = str(self.world.model.ledgers[ledger].topic)
            if topic in topics and (czxid is None or self.world.model.overtaken.get(ledger) != czxid):
                raise Violation(f"I1: what left the list of {topic} is free to go, and a broker may list {ledger}")
            self.counts["open ledgers that a scan freed"] += topic in topics

    def _forbids(self, topic: str) -> str:
        """Why a deletion run would keep what is of a topic, whoever took it off a list."""
        if topic in self.damaged:
            return DAMAGED
        return "an open ledger of it had leaked" if topic in self.writing else self._owner_forbids(topic)

    def _forget_what_is_needed(self) -> None:
        """What something refers to again may be kept, and all that a restore made uncertain."""
        if self.world.restored != self.restores:
            self.restores = self.world.restored
            self.taken.clear()
            self.ours.clear()
        if self.taken:
            live = set(self.world.live()).union(*(topic.ledgers for topic in self.world.model.topics.values()))
            named = {self.world.attempts[uuid][1] for uuid in self.world.reachable() if uuid in self.world.attempts}
            self.taken = {
                (ledger, action): one
                for (ledger, action), one in self.taken.items()
                if ledger not in live and not (action == Action.DELETE_OFFLOADED and ledger in named)
            }

    def _forget_what_ended(self, row: JournalRow) -> None:
        """What was deleted, or is kept for a reason that is new."""
        key = row.ledger_id, row.action
        if key not in self.taken:
            return
        topic, why = self.taken[key]
        namespace = str(Topic.parse(topic).namespace)
        path = f"/managed-ledgers/{namespace}"
        shared = any(root.zookeeper.stat(path) is not None for root in self.world.roots.values())
        shared = shared or row.ledger_id in self.world.declared  # its number may have been given out again
        made, stat = self.world.model.ledgers[row.ledger_id], self.world.zookeeper.stat(self.world.path(row.ledger_id))
        changed = made.state is not LedgerState.CLOSED or (stat is not None and stat.ctime != made.born)
        changed = changed and row.action == Action.DELETE_LEDGER
        names = {topic, str(Topic.parse(topic).partitioned_parent)}  # a partition is kept with its topic
        new = shared or bool(names & self.world.damaged_owners())
        unknown = namespace not in self.namespaces  # deleted, and made again since that scan
        forbidden = unknown or bool(names & (self._shadowed() | self.ever_sources)) or self._forbids(topic)
        new = new or (not why and (changed or forbidden))
        if (
            row.outcome in (Outcome.DELETED, Outcome.GONE)
            or row.phase == "undo"
            or (row.outcome in (Outcome.KEPT, Outcome.REFUSED) and new)
        ):
            del self.taken[key]

    def _ends_well(self, row: JournalRow) -> None:
        """What our first phase took off a list is deleted or gone, by its own message or another.

        It may be dead-lettered, for what fails may fail each time, but not for a reason that was there before.
        """
        topic, why = self.taken.get((row.ledger_id, row.action), ("", ""))
        gone_dead = row.outcome == Outcome.DEAD_LETTERED and why not in (
            "",
            DAMAGED,
        )  # damage keeps, it makes nothing fail
        if topic == row.topic and (row.outcome in (Outcome.KEPT, Outcome.REFUSED) or gone_dead):
            said = f"{row.outcome}: {row.reason}" + (f" ({why})" if why else "")
            raise Violation(f"our first phase took {row.ledger_id} off a list, and {row.action} ends as {said}")

    def _brought_back(self, path: str, data: bytes) -> None:
        """An undo creates what the archive holds, where it was, or the folders above it."""
        nodes = [node for node in self.world.journal.nodes if node.path == path]
        if nodes and nodes[-1].data != data:
            raise Violation(f"an undo creates {path} with other bytes than were archived last")
        if not nodes and (data or not any(node.path.startswith(f"{path}/") for node in self.world.journal.nodes)):
            raise Violation(f"I8: an undo creates {path}")
        self.restored += bool(nodes)

    def about_to_take_letters(self, messages: Sequence[Received]) -> None:
        """I4: a dead letter is acknowledged once it was sent again and the journal says so."""
        rows = [r for r in self.world.journal.rows if r.phase == "redrive" and r.outcome == "sent"]
        said = {json.loads(row.detail)["dead_letter"] for row in rows}
        for message in messages:
            if message.message_id.hex() not in said:
                raise Violation(f"I4: a dead letter is taken that the journal says nothing of: {message.raw[:80]!r}")

    # -------------------------------------------------------------------------------------------- journal, queue, caps

    def about_to_record(self, rows: Sequence[JournalRow]) -> None:
        """Judge what the journal is told."""
        self._forget_what_is_needed()
        trace = self.world.trace
        back = trace is not None and self.world.restored_at >= trace.started  # a restore changed all since
        for row in rows:
            self._forget_what_ended(row)
            if why := self.tiered.told(row):
                raise Violation(why)
            if row.phase == "bookkeeper-copy-deletion" and row.outcome == "marked":
                self.marked.add((row.ledger_id, json.loads(row.detail).get("czxid")))
            if row.phase == "mark" and row.outcome == "marked":
                self.marked.add((row.ledger_id, json.loads(row.detail).get("czxid", -1)))
                self.marked_copies.add((row.ledger_id, row.topic))
            if row.action == Action.DELETE_OFFLOADED and row.outcome == Outcome.DELETED:
                left = [o for o in json.loads(row.detail)["objects"] if o["key"] in self.world.buckets.objects[BUCKET]]
                if left:
                    raise Violation(f"I4: the journal says that {left[0]['key']} is deleted, and it is there")
            whole = back or self.world.reader.payloads.get(row.ledger_id)
            if row.phase == "undo" and row.outcome == "restored" and not whole:
                raise Violation(f"the journal says that {row.ledger_id} is restored, and no bookie has its entries")
            if row.phase != "delete" or row.ledger_id < 0 or row.action != "delete-ledger":
                continue
            there = self.world.exists(row.ledger_id)
            mine = trace is not None and row.ledger_id in trace.deleted
            if row.outcome == Outcome.DELETED and there and not back:
                raise Violation(f"I4: the journal says that {row.ledger_id} is deleted, and it is there")
            told = (*rows, *self.world.journal.rows)  # another message about it, perhaps another task's
            other = mine and any(one.ledger_id == row.ledger_id and one.outcome == Outcome.DELETED for one in told)
            if (
                mine
                and not there
                and not other
                and row.outcome in (Outcome.RETRYING, Outcome.DEAD_LETTERED, "kept", "refused")
            ):
                raise Violation(f"I4: {row.ledger_id} is deleted, and the journal says {row.outcome}: {row.reason}")

    def all_said(self, began: int) -> None:
        """I4: once a run that began then (ms) is through, the journal names the run of every deletion before it.

        Of a ledger that came back before anybody could, the undo's rows name it.
        """
        since = max(began - SETTLED_WITHIN, self.world.restored_at + 1)
        said = {
            (r.run_id, r.ledger_id)
            for r in self.world.journal.rows
            if r.phase == "delete" and r.outcome == Outcome.DELETED
        }
        undone = (r for r in self.world.journal.rows if r.phase == "undo" and r.outcome in ("recreated", "restored"))
        said |= {(json.loads(r.detail)["archived_by"], r.ledger_id) for r in undone}
        for run_id, ledger, at in self.effects:
            if since <= at < began and (run_id, ledger) not in said:
                raise Violation(f"I4: {run_id} deleted {ledger}, and no later run wrote that down")

    def was_sent(self, sent: Sent) -> None:
        """P13: however often a plan is applied, it sends no more than its cap."""
        if sent.error is None and kind_of(sent.info.plan_id) not in OF_WHAT_NOTHING_LISTS:
            self.ours.add(encode_deletion_message(sent.info))
            self.tiered.messages.add(sent.info.ledger_id)
        if self.world.trace and self.world.trace.kind == SWEEP:
            self._is_swept(sent.info)
            return
        if sent.error is not None or not sent.info.plan_id:
            return
        ledgers = self.sent[sent.info.plan_id]
        ledgers.add(sent.info.ledger_id)
        cap = self.caps.get(sent.info.plan_id)
        if cap is not None and len(ledgers) > cap:
            raise Violation(f"P13: plan {sent.info.plan_id} sent {len(ledgers)} intents, its cap is {cap}")

    def _is_swept(self, info: PendingDeleteLedgerInfo) -> None:
        """I3: a sweep asks for the deletion of objects that two scans a day apart found unneeded, and nobody needs.

        One that is under way cannot know of a restore: the deletion run does, which takes the message.
        """
        context = info.offload_context
        assert context is not None
        uuid = uuid_of(context.msb, context.lsb)
        fired = self.world.interceptor.fired
        if any(act.startswith("restore ") for act in fired):
            return
        why = self.world.reachable().get(uuid, "") if not fired else ""
        if why := why or self._not_unneeded_twice(uuid):
            raise Violation(f"I3: a sweep sends a message about {uuid}: {why}")
        self.tiered.counts["swept"] += 1

    def about_to_acknowledge(self, messages: Sequence[Received]) -> None:
        """I4: what is acknowledged has a final row, or a copy in the retry or dead-letter topic."""
        rows = self._rows_by_message()
        topics = self.world.deletion_topics
        for message in messages:
            said = rows.get(message.message_id.hex(), [])
            outcomes = {row.outcome for row in said}
            if said and message.raw in self.ours:
                self._ends_well(said[-1])
            if outcomes & FINAL:
                continue
            copies = [(raw, p) for _, _, raw, p in topics.waiting.values()] + list(topics.dead)
            if said and said[-1].outcome == Outcome.WAITING:
                self._is_sent_back(message, copies)
                continue
            times = str(reconsume_times(message.properties) + 1)
            copied = any(raw == message.raw and p.get(RECONSUMETIMES) == times for raw, p in copies)
            if not outcomes & {Outcome.RETRYING, Outcome.DEAD_LETTERED}:
                raise Violation(
                    f"I4: a message is acknowledged that the journal knows nothing of: {message.raw[:80]!r}"
                )
            if not copied and Outcome.DEAD_LETTERED not in outcomes:
                raise Violation(f"I4: a message is acknowledged and there is no copy to retry: {message.raw[:80]!r}")

    def _is_sent_back(self, message: Received, copies: Sequence[tuple[bytes, dict[str, str]]]) -> None:
        """I4: what waits is acknowledged once it waits behind the others, retried as often as before."""
        count = message.properties.get(RECONSUMETIMES)
        if not any(raw == message.raw and WAITING_FOR in p and p.get(RECONSUMETIMES) == count for raw, p in copies):
            raise Violation(f"I4: a message that waits is acknowledged and waits nowhere: {message.raw[:80]!r}")

    def _rows_by_message(self) -> dict[str, list[JournalRow]]:
        found: dict[str, list[JournalRow]] = defaultdict(list)
        for row in self.world.journal.rows:
            if row.phase == "delete":
                found[json.loads(row.detail).get("message", "")].append(row)
        return found
