"""What must hold whenever the product deletes: a ledger, a topic, an object.

Belongs here: judging a deletion right before it happens, by the simulator's own truth. Nothing here calls a rule of the
product. Not here: writes, journal and queue (``laws.py``).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from pulsar_lifecycle.formats import ledger_path
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo
from pulsar_lifecycle.formats.offload_object import data_key
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Stat
from tests.kit.simulated.offloaded import BUCKET
from tests.simulation.laws.tiered_laws import TieredLaws
from tests.simulation.world.interception import Trace
from tests.simulation.world.model import BOOKKEEPER, HOUR, Counters, Ledger
from tests.simulation.world.ports import SimStore
from tests.simulation.world.world import World

GRACE = 7 * 24 * HOUR
CONFIRMED_AFTER = 24 * HOUR
PAUSE = "/pulsar-lifecycle/pause"
LEASE = "/pulsar-lifecycle/lease"


class Violation(BaseException):
    """An invariant does not hold; no product code may catch it."""


LAST = "I2, I3: it is the last copy"
"""How a violation begins where the only whole copy of an entry goes."""


class DeletionLaws:
    """The judge of what is deleted, and what the judge knows of a schedule.

    ``seen``: by epoch id, when it truly began, the ledgers that nobody needed all the while, and why it cannot have
    read everything (empty if it can). ``namespaces`` and ``sources`` (of shadow topics) existed at the last scan
    that read everything.
    ``taken``: (ledger, action) of what our first phase took off a list and nothing needed since -> its topic, and what
    forbade its deletion even then; ``ours``: the messages that it sent.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.holds: frozenset[str] = frozenset()
        self.system_topics = False
        self.seen: dict[str, tuple[int, frozenset[int], str]] = {}
        self.sent: dict[str, set[int]] = defaultdict(set)
        self.caps: dict[str, int] = {}
        self.marked: set[tuple[int, int]] = set()
        self.paused_at: dict[int, int] = {}
        self.namespaces: set[str] = set()
        self.sources: set[str] = set()
        self.ever_sources: set[str] = set()
        self.marked_copies: set[tuple[int, str]] = set()
        self.counters: dict[str, Counters] = {}
        self.unreachable: dict[str, tuple[int, frozenset[UUID]]] = {}
        self.exclusive = False
        self.objects = self.restored = 0
        self.whole: tuple[Topic | None, str, frozenset[int]] = None, "", frozenset()
        self.effects: list[tuple[str, int, int]] = []
        self.deleted = self.trimmed = self.expired = 0
        self.retaining = False
        """Whether a run of retention is at it."""
        self.judge_retention: Callable[[Topic, list[LedgerInfo]], str] = lambda topic, gone: ""
        self.taken: dict[tuple[int, str], tuple[str, str]] = {}
        self.restores = 0
        self.ours: set[bytes] = set()
        self.tiered = TieredLaws(world)
        self.writing: frozenset[str] = frozenset()
        self.damaged: frozenset[str] = frozenset()

    # -------------------------------------------------------------------------------------------------------- deleting

    def about_to_delete(self, store: SimStore, path: str, stat: Stat, data: bytes) -> None:
        """Judge the deletion of a z-node by the product."""
        if not path.startswith("/ledgers/"):
            if not path.startswith("/pulsar-lifecycle/"):
                raise Violation(f"I8: the product deletes {path}")
            return
        ledger = ledger_path.parse_ledger_path(path)
        trace = store.trace
        if trace is None:
            raise Violation(f"I6: ledger {ledger} is deleted outside of a deletion run")
        if trace.undo:
            self._taken_away_again(ledger, data)
            return
        why = self._why_not(ledger, stat, data, trace)
        if why:
            raise Violation(f"ledger {ledger} is deleted by {trace.run_id}: {why}")
        self.deleted += 1
        self.effects.append((trace.run_id, ledger, self.world.time.now_ms()))
        trace.deleted.add(ledger)

    def _why_not(self, ledger: int, stat: Stat, data: bytes, trace: Trace) -> str:
        world = self.world
        needed = world.live().get(ledger)
        if needed:
            return f"I1: {needed}"
        made = world.model.ledgers.get(ledger)
        if made is None or made.kind == "foreign":
            return "I1: it is not Pulsar's"
        if ledger in world.model.busy or made.state is not LedgerState.CLOSED:
            return "I1: it is not closed"
        return (
            self._not_old_enough(ledger, stat, trace)
            or self._owner_forbids(_owner(made))
            or self._last_in_bookkeeper(ledger)
            or self.tiered.copy_goes(ledger)
            or self._not_archived(ledger, stat, data)
            or self._not_ours_to_act(trace)
        )

    def _not_old_enough(self, ledger: int, stat: Stat, trace: Trace) -> str:
        world = self.world
        if (ledger, stat.czxid) in self.marked:
            return ""
        age = world.time.now_ms() - world.model.ledgers[ledger].born
        if age < GRACE:
            return f"it is {age / HOUR:.0f} hours old, younger than the grace period"
        if not 0 < stat.ctime <= world.time.now_ms():
            return f"its ctime {stat.ctime} says nothing of its age"
        free = [
            at
            for epoch_id, (at, unneeded, _) in self.seen.items()
            if ledger in unneeded and world.happened(at, self.counters[epoch_id])
        ]
        if not free or max(free) - min(free) < CONFIRMED_AFTER:
            return f"no two scans a day apart found it unneeded: {sorted(free)}"
        return ""

    def _last_in_bookkeeper(self, ledger: int) -> str:
        copies = self.world.copies(ledger)
        return self._only_here(ledger, copies.pop(BOOKKEEPER, ()), copies)

    def _shadowed(self) -> set[str]:
        """Topics that a shadow topic reads from now, whether a scan has seen that or not."""
        return {topic.shadow_of for topic in self.world.model.topics.values()}

    def _owner_forbids(self, topic: str) -> str:
        world = self.world
        namespace = topic.partition("://")[2].rpartition("/")[0]
        paths = [f"/admin/policies/{namespace}", f"/managed-ledgers/{namespace}"]
        known = any(world.zookeeper.stat(path) is not None for path in paths)
        if not known and namespace not in self.namespaces:
            return f"I1: its namespace {namespace} exists nowhere"
        names = {topic, topic.rpartition("-partition-")[0], namespace, namespace.partition("/")[0]}
        if self.holds & names:
            return f"legal hold on {self.holds & names}"
        local = topic.rpartition("/")[2]
        if local.startswith("__transaction_log_") or (local.startswith("__") and not self.system_topics):
            return "it is of a system topic"
        if topic in self._shadowed() & self.sources:
            return "it is of a shadow topic's source"
        return ""

    def _not_archived(self, ledger: int, stat: Stat, data: bytes) -> str:
        for node in reversed(self.world.journal.nodes):
            if (node.ledger_id, node.czxid, node.version) == (ledger, stat.czxid, stat.version):
                return "" if node.data == data else "what is archived is not what is deleted"
        return "it is not archived as it is now"

    def _not_ours_to_act(self, trace: Trace) -> str:
        world = self.world
        lease = world.zookeeper.stat(LEASE)
        if lease is None or lease.version != trace.guard[1]:
            return f"its lease is lost: version {lease and lease.version}, taken at {trace.guard[1]}"
        if world.zookeeper.stat(PAUSE) is not None:
            began = self.paused_at.setdefault(id(trace), trace.transactions)
            if trace.transactions > began:
                return "paused"
        spoiled = self.seen[trace.epoch_id][2] if trace.epoch_id in self.seen else "it has no scan"
        if spoiled:
            return f"I8: its evidence {trace.epoch_id} is not covered: {spoiled}"
        if trace.latency_at_receive > 500:
            return f"I9: ZooKeeper answers in {trace.latency_at_receive} ms"
        each = trace.per_second * (world.time.now_ms() - trace.started) / 1000 + trace.batch
        allowed = trace.tasks * each
        if len(trace.deleted) + 1 > allowed + 1:
            return f"I9: {len(trace.deleted) + 1} deletions, the budget allows {allowed:.1f}"
        return ""

    def _taken_away_again(self, ledger: int, data: bytes) -> None:
        """An undo may take away only what it brought back and nobody holds."""
        if ledger in self.world.live():
            raise Violation(f"I1: an undo deletes {ledger}: {self.world.live()[ledger]}")
        if self.world.reader.payloads.get(ledger):
            raise Violation(f"an undo deletes {ledger}, whose entries are there")
        if not any(node.ledger_id == ledger and node.data == data for node in self.world.journal.nodes):
            raise Violation(f"an undo deletes {ledger}, which it did not bring back")

    def whole_deletion(self, topic: Topic, run_id: str) -> None:
        """A run begins that is to delete this topic."""
        self.whole = topic, run_id, frozenset(self.world.model.topics[topic].ledgers)

    def about_to_delete_topic(self, topic: Topic) -> None:
        """Whole topics: only what was asked for, not held, and every ledger has its message and its mark before."""
        asked, run_id, ledgers = self.whole
        if topic != asked:
            raise Violation(f"topic {topic} is deleted, nobody asked for it")
        if why := self._owner_forbids(str(topic)):
            raise Violation(f"topic {topic} is deleted: {why}")
        if self.world.zookeeper.stat(PAUSE) is not None and not self.world.interceptor.fired:
            raise Violation(f"topic {topic} is deleted while paused")
        rows = [r for r in self.world.journal.rows if r.run_id == run_id]
        found = self.world.model.topics.get(topic)
        for ledger in ledgers & set(found.ledgers if found else ()):
            made = self.world.model.ledgers[ledger]
            if not self.world.exists(ledger) or made.topic != topic or made.kind != "data":
                continue
            told = {r.outcome for r in rows if r.ledger_id == ledger}
            if not {"sent", "marked"} <= told:
                raise Violation(f"topic {topic} is deleted before ledger {ledger} has its message and mark: {told}")

    def about_to_delete_objects(self, bucket: str, keys: Sequence[str]) -> None:
        """I3: judge the deletion of offloaded copies."""
        world, trace = self.world, self.world.trace
        for key in keys:
            if key not in world.buckets.objects[bucket]:
                continue
            uuid = UUID(key[:36])
            if trace is None:
                why = "it is deleted outside of a deletion run"
            elif trace.kind:
                why = world.reachable().get(uuid, "") or self.tiered.objects_go(uuid)
            else:
                why = self._copy_needed(uuid, key, trace)
            why = why or self._last_copy_of(uuid, key, keys)
            if why:
                raise Violation(f"object {key} is deleted: {why}")
            self.objects += 1

    def _copy_needed(self, uuid: UUID, key: str, trace: Trace) -> str:
        world = self.world
        if why := world.reachable().get(uuid):
            return f"I3: {why}"
        topic, ledger = world.attempts[uuid]
        if why := self._owner_forbids(str(topic)):
            return why
        rows = (r for r in world.journal.rows if r.run_id == trace.run_id and r.outcome == "deleting")
        if not any(key in r.detail for r in rows):
            return "the journal did not say so before"
        if (ledger, str(topic)) in self.marked_copies:
            return ""
        if not self.exclusive:
            return "our first phase did not ask for it, and the bucket is not ours alone"
        if world.time.now_ms() - world.buckets.objects[BUCKET][key].last_modified < GRACE:
            return "it is younger than the grace period"
        return self._not_unneeded_twice(uuid)

    def _not_unneeded_twice(self, uuid: UUID) -> str:
        world = self.world
        free = [
            at
            for epoch_id, (at, unneeded) in self.unreachable.items()
            if uuid in unneeded and world.happened(at, self.counters[epoch_id])
        ]
        if not free or max(free) - min(free) < CONFIRMED_AFTER:
            return f"no two scans a day apart found it unneeded: {sorted(free)}"
        return ""

    def _last_copy_of(self, uuid: UUID, key: str, going: Sequence[str]) -> str:
        world, (_, ledger) = self.world, self.world.attempts[uuid]
        if key != data_key(uuid, ledger):
            return ""
        return self._only_here(ledger, world.entries_of(uuid, ledger), world.copies(ledger, without=going))

    def _only_here(self, ledger: int, going: Sequence[bytes], others: Mapping[str, Sequence[bytes]]) -> str:
        """Which entry of a ledger that some topic lists only the copy that goes has as written; empty if none."""
        reader = next((topic for topic in self.world.model.topics.values() if ledger in topic.ledgers), None)
        for n, entry in enumerate(self.world.model.ledgers[ledger].entries if reader else ()):
            if entry in going[n : n + 1] and not any(entry in one[n : n + 1] for one in others.values()):
                there = f"there is {', '.join(others)}" if others else "nothing else is there"
                return f"{LAST}: {reader and reader.name} lists {ledger}, and only this has entry {n} whole; {there}"
        return ""


def _owner(made: Ledger) -> str:
    """Full name of the topic that a ledger's tags name; a schema's leaves a V1 name's cluster out."""
    if made.kind != "schema":
        return str(made.topic)
    namespace, _, name = made.topic.schema_id.rpartition("/")
    return str(Topic.from_managed_ledger(f"{namespace}/persistent/{name}"))
