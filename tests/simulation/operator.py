"""The control plane in a schedule: the driver's code of ``deletion/deletion_run.py`` over the simulator's ports,
without Spark.

Belongs here: what stands for the lake, for Spark's executors and for the adapters, and one method per thing an operator
does. Not here: the scan's joins (``pipeline.py``), what goes wrong (``faults.py``), what must hold (``laws.py``).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from random import Random
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pyarrow as pa

from pulsar_lifecycle.cli.plans import refusal_of
from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.deletion import redrive as redriving
from pulsar_lifecycle.deletion.redrive import LetterFilter
from pulsar_lifecycle.deletion.undo import undo_run as undoing
from pulsar_lifecycle.deletion.workers import WITHHELD, Outcome, _Worker
from pulsar_lifecycle.errors import NotFound, Refused, UsageError
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.io.lake import journal as stored
from pulsar_lifecycle.io.lake.journal import JOURNAL
from pulsar_lifecycle.journal import archive, first_phase_marks, offloads, queries, read_checks
from pulsar_lifecycle.journal.first_phase_marks import ENDS, open_copies, open_marks
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.records import deletion_plan as plan_deletion
from pulsar_lifecycle.records import findings
from pulsar_lifecycle.records.copies import Asked
from pulsar_lifecycle.records.deletion_plan import PlanSummary
from pulsar_lifecycle.records.epoch import Epoch, last_covered
from pulsar_lifecycle.records.gaps import GapCode
from pulsar_lifecycle.records.known_words import KnownWord
from pulsar_lifecycle.records.offload_plan import OffloadPlan
from pulsar_lifecycle.records.offload_uuids import OffloadUuids
from pulsar_lifecycle.records.outcomes import DELETE_LEDGER, DELETE_OFFLOADED, DELETED, LEFT, MARKED, SENT
from pulsar_lifecycle.records.referenced import Referenced
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import AS_SET, Lowered, Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import Tasks
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.tiered import offload_planning, offload_run
from pulsar_lifecycle.tiered.buckets import bucket_runs
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.trimming.trim import TrimOrder
from tests.fakes.deletion_queue import FakeQueueReader
from tests.simulation import disasters, pipeline
from tests.simulation.laws import Laws, Violation
from tests.simulation.ports import Interceptor, SimDeadLetters, Trace
from tests.simulation.tasks import SimTasks
from tests.simulation.world import ModelTopic, World

_LIBRARY = [module for name, module in sorted(sys.modules.items()) if name.startswith("pulsar_lifecycle.")]
_COMPOSING = [module for module in _LIBRARY if not module.__name__.startswith("pulsar_lifecycle.io.")]
assert {bucket_runs, offload_run, offload_planning} <= set(_COMPOSING)
"""Every module that may open a port: all that the operator's runs import."""


class Lake:
    """Epochs and plans in memory, as ``io.lake.artefacts.Lake`` keeps them."""

    location = "/simulated"

    def __init__(self) -> None:
        self.scans: list[pipeline.Scan] = []
        self.until = -1
        self.written = 0
        self.kept_words: list[KnownWord] = []
        self.kept_plans: dict[str, tuple[PlanSummary, pa.Table]] = {}
        self.offload_plans: dict[str, tuple[OffloadPlan, pa.Table]] = {}
        self.object_plans: dict[str, tuple[PlanSummary, pa.Table]] = {}
        self.tables: dict[str, pa.Table] = {}
        """What runs have stored beside a scan's own tables, by epoch and name."""

    def epochs(self, fingerprint: str = "", cluster: str = "") -> list[Epoch]:
        found = [s.epoch for s in self.scans if fingerprint in ("", s.epoch.fingerprint)]
        return sorted(found, key=lambda e: e.started_at)

    def words(self, cluster: str) -> list[KnownWord]:
        return self.kept_words

    def store_words(self, cluster: str, words: Sequence[KnownWord]) -> None:
        self.kept_words = list(words)

    def set_aside_until(self, cluster: str) -> int:
        return self.until

    def scan(self, epoch_id: str) -> pipeline.Scan:
        found = next((s for s in self.scans if s.epoch.epoch_id == epoch_id), None)
        if found is None:
            raise NotFound(f"epoch {epoch_id} is not kept")
        return found

    def named_uuids(self, epoch_id: str) -> OffloadUuids:
        return self.scan(epoch_id).offload_uuids

    def epoch(self, epoch_id: str) -> Epoch:
        return self.scan(epoch_id).epoch

    def referenced(self, epoch_id: str) -> Referenced:
        return self.scan(epoch_id).refs

    def context(self, epoch_id: str) -> findings.Context:
        return self.scan(epoch_id).context

    def read_epoch_table(self, epoch_id: str, table: str, columns: list[str] | None = None) -> pa.Table:
        return self.scan(epoch_id).findings.select(columns or [])

    def offload_uuids(self, epoch_id: str) -> OffloadUuids:
        return self.scan(epoch_id).offload_uuids

    def parts(self, epoch_id: str, table: str) -> list[str]:
        if f"{epoch_id}/{table}" not in self.tables and table not in self.scan(epoch_id).tables:
            raise NotFound(f"epoch {epoch_id} has no table {table}")
        return [f"{epoch_id}/{table}"]

    def batches(self, parts: Iterable[str], columns: Sequence[str], where: Any = None) -> Iterator[pa.RecordBatch]:
        for part in parts:
            epoch_id, _, table = part.partition("/")
            rows = self.tables[part] if part in self.tables else self.scan(epoch_id).tables[table]
            yield from (rows if where is None else rows.filter(where)).select(list(columns)).to_batches()

    def write_part(self, epoch_id: str, table: str, schema: pa.Schema, batches: Iterable[pa.RecordBatch]) -> str:
        self.written += 1
        name = f"part {self.written} of {epoch_id}/{table}"
        self.tables[name] = pa.Table.from_batches(batches, schema)
        return name

    def publish(self, epoch_id: str, table: str, names: Sequence[str]) -> None:
        self.tables[f"{epoch_id}/{table}"] = pa.concat_tables([self.tables.pop(name) for name in names])

    def store_offload_plan(self, plan: OffloadPlan, rows: pa.Table) -> None:
        self.offload_plans[plan.plan_id] = plan, rows

    def offload_plan(self, plan_id: str) -> tuple[OffloadPlan, pa.Table]:
        return self.offload_plans[plan_id]

    def store_object_plan(self, summary: PlanSummary, rows: pa.Table) -> None:
        self.object_plans[summary.plan_id] = summary, rows

    def object_plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        return self.object_plans[plan_id]

    @property
    def plan_count(self) -> int:
        return len(self.kept_plans) + len(self.offload_plans) + len(self.object_plans)

    def store_plan(self, summary: PlanSummary, rows: pa.Table) -> str:
        self.kept_plans[summary.plan_id] = (summary, rows)
        return summary.plan_id

    def plan(self, plan_id: str) -> tuple[PlanSummary, pa.Table]:
        if plan_id not in self.kept_plans:
            raise NotFound(f"plan {plan_id} is not kept")
        return self.kept_plans[plan_id]


class _Connections(Connections):
    """``io.connect.Connections`` to the simulated cluster."""

    def __init__(self, operator: Operator, settings: Settings, **asked: Any) -> None:
        super().__init__(settings, **asked)
        self._operator, world = operator, operator.world
        self.__dict__ |= {
            "reader": world.reader,
            "admin": world.admin,
            "objects": world.objects,
            "queue_reader": FakeQueueReader(world.deletion_topics),
            "journal": world.journal,
            "lake": operator.lake,
            "clock": world.clock,
        }

    @cached_property
    def queue(self) -> Any:
        return self._operator.world.open_queue()

    @cached_property
    def dead_letters(self) -> Any:
        return self._operator.dead_letters()

    def _metadata(self, zookeeper: Any, *, read_only: bool = True, **_: Any) -> Any:
        return self._opened.enter_context(self._operator.store_of(zookeeper, read_only))


@dataclass(frozen=True)
class _Cluster(Cluster):
    """``runs.cluster.Cluster`` without Spark, over the simulator's ports."""

    operator: Operator

    @property
    def clock(self) -> Any:
        return self.operator.world.clock

    @property
    def journal(self) -> Any:
        return self.operator.world.journal

    @property
    def tasks(self) -> Tasks:
        return self.operator.tasks


class Operator:
    """One control plane. Its methods return what to print; refusals are answers, not errors."""

    def __init__(self, world: World, laws: Laws, random: Random, settings: Settings) -> None:
        self.world = world
        self.laws = laws
        self.random = random
        self.settings = settings
        self.lake = Lake()
        self.tasks = SimTasks(world, self._working)
        self.cluster: Any = _Cluster(None, settings, "", self.lake, self)  # type: ignore[arg-type]
        self.policy = pipeline.Policy(
            shared_with=evidence.declared_roots(self.cluster),
            holds=settings.orphans.holds(0),
            system_topics=settings.orphans.system_topics,
            acknowledged=tuple(settings.orphans.acknowledged(0)),
        )
        laws.exclusive = settings.object_store is not None and settings.object_store.exclusive
        laws.holds = self.policy.holds
        laws.system_topics = self.policy.system_topics
        self.runs = self.depth = 0
        self.withheld: list[Outcome] = []
        self.trimmed = Topic.parse("persistent://acme/orders/none")
        self.spoiled: Callable[[], str] = lambda: ""
        self.between: Callable[[], None] | None = None
        self._stored: dict[str, tuple[int, pa.Table]] = {}

    # ------------------------------------------------------------------------------------------------------ read-only

    def scan(self) -> str:
        """One epoch; writes nothing."""
        world = self.world
        world.trace = None
        before, began, spoiled = world.zookeeper.zxid, world.time.now_ms(), self.spoiled()
        live, acts = set(world.live(memory=False)), len(world.interceptor.fired)
        reached, counters = set(world.reachable()), world.counters()
        namespaces = _namespaces(world)
        there = [t for t in world.model.topics.values() if not t.away]
        sources, open_leaks = {t.shadow_of for t in there}, self.laws.open_leaks()
        listed, damaged = {str(t.name): set(t.ledgers) for t in there}, world.damaged_owners()
        mute = world.mute()
        found = pipeline.scan(world, self.policy, self.lake.scans)
        if self._only_leaks(found):
            found = pipeline.scan(world, replace(self.policy, max_shrinkage=1), self.lake.scans)
        if len(world.interceptor.fired) == acts and world.zookeeper.zxid != before:
            raise Violation("I6: a scan wrote to the metadata store")
        if len(world.interceptor.fired) == acts and spoiled and found.epoch.covered:
            raise Violation(f"I8: {spoiled}, and the scan says that it read everything")
        if len(world.interceptor.fired) == acts and not spoiled and self._stopped_by_one(mute, found):
            raise Violation(f"what the broker does not say of {mute[0]} stops every plan: {found.epoch.gaps}")
        if len(world.interceptor.fired) == acts and (forgotten := self._forgotten(mute, found)):
            raise Violation(f"I1: its broker does not say what it holds of {forgotten[0]}, and nothing keeps that")
        unneeded = frozenset(set(world.model.ledgers) - (live & set(world.live(memory=False))))
        existing = frozenset(i for i in unneeded if world.exists(i))
        if self.lake.scans and self.lake.scans[-1].epoch.epoch_id == found.epoch.epoch_id:
            self.lake.scans.pop()
        self.lake.scans.append(found)
        for topic in there if found.epoch.covered else ():
            topic.unseen = False
        if found.epoch.covered:
            world.listed = listed
        self.laws.seen[found.epoch.epoch_id] = (
            began,
            existing,
            "" if found.epoch.covered else "; ".join(found.epoch.gaps),
        )
        self.laws.counters[found.epoch.epoch_id] = counters
        world.undone = [(first, last, after or counters) for first, last, after in world.undone]
        unreachable = frozenset(set(world.attempts) - reached - set(world.reachable()))
        self.laws.unreachable[found.epoch.epoch_id] = began, unreachable
        self.laws.ever_sources |= sources
        if found.epoch.covered:
            self.laws.namespaces, self.laws.sources = namespaces, sources
        self.laws.looked(open_leaks, damaged)
        return f"{found.findings.num_rows} findings" + (f"; gaps: {found.epoch.gaps}" if found.epoch.gaps else "")

    def _stopped_by_one(self, mute: list[str], found: pipeline.Scan) -> bool:
        """Whether a scan waits for what brokers never say of single topics, though they answer otherwise."""
        if self.world.lagging:
            return False
        topics = [name for name in mute if name not in self.world.admin.denied]
        return any(f"broker memory of {name}:" in gap for name in topics for gap in found.epoch.gaps)

    def _forgotten(self, mute: list[str], found: pipeline.Scan) -> list[str]:
        """Topics of which brokers never say what they hold, and that a scan takes for known."""
        if self.world.lagging or not found.epoch.covered:
            return []
        return [name for name in mute if name not in found.context.kept_topics]

    def _only_leaks(self, found: pipeline.Scan) -> bool:
        """Whether an operator who looks at what a scan calls lost sees that nobody needs any of it."""
        if {gap.code for gap in found.epoch.coded_gaps} != {GapCode.LOST_REFERENCES}:
            return False
        last = last_covered((s.epoch for s in self.lake.scans), found.epoch.fingerprint)
        assert last is not None
        lost = set(self.lake.referenced(last.epoch_id).needed - found.refs.needed)
        return not lost & set(self.world.live()) and not any(t.away for t in self.world.model.topics.values())

    def plan(self) -> str:
        """A plan of the newest scan; the same scan gives the same rows and digest."""
        if not self.lake.scans:
            return "no scan yet"
        world, zxid, acts = self.world, self.world.zookeeper.zxid, len(self.world.interceptor.fired)
        with self._adapters():
            summary, rows = deletion_run.make_plan(self.cluster, self.lake.scans[-1].epoch)
        if len(world.interceptor.fired) == acts and world.zookeeper.zxid != zxid:
            raise Violation("I6: a plan wrote to the metadata store")
        shuffled = rows.take(pa.array(self.random.sample(range(rows.num_rows), rows.num_rows), pa.int64()))
        if plan_deletion.digest(shuffled, summary.to_json()) != summary.digest:
            raise Violation("P11: the digest depends on the order of rows")
        live_then = {i for i in rows.column("ledger_id").to_pylist() if i in world.live()}
        return f"{summary.plan_id}: {rows.num_rows} ledgers, actionable {summary.actionable}" + (
            f", of which brokers hold {sorted(live_then)}" if live_then else ""
        )

    # -------------------------------------------------------------------------------------------------------- effects

    def apply(self, plan_id: str, limit: int = 0, as_set: bool = False) -> str:
        """Send a plan's intents; ``as_set``: under the settings' caps."""
        caps = self.settings.apply
        self.laws.caps[plan_id] = min(caps.max_ledgers, limit or caps.max_ledgers, self.laws.caps.get(plan_id, 1 << 30))
        if limit == 0:
            self.laws.caps[plan_id] = caps.max_ledgers
        summary = self.lake.kept_plans[plan_id][0]
        run_id = self._run_id("apply")
        order = Order(plan_id, summary.digest, AS_SET if as_set else self._launched_with(f"{run_id} {plan_id}"), limit)
        self.world.trace = None
        said = refusal_of(*self.lake.kept_plans[plan_id], self.lake, self.settings, self.world.clock.now_ms())  # type: ignore[arg-type]
        try:
            with self._adapters(), self._within_caps(run_id):
                applied = deletion_run.apply_plan(self.cluster, run_id, order, lambda line: None)
        except Refused as refused:
            if as_set and str(refused).startswith("max_") and not said:
                raise Violation(f"P13: a launch is refused that the plan's page does not refuse: {refused}") from None
            raise
        if applied.sent and not limit and said:
            raise Violation(f"P13: {applied.sent} intents are sent of a plan whose page says: {said}")
        return str(applied)

    def apply_newest(self) -> str:
        """Apply the newest plan."""
        plans = list(self.lake.kept_plans)
        return self.apply(plans[-1]) if plans else "no plan yet"

    def overreach(self, plan_id: str) -> str:
        """P13: a launch that asks for more than the settings allow does nothing."""
        caps, summary, run_id = self.settings.apply, self.lake.kept_plans[plan_id][0], self._run_id("overreach")
        order = Order(plan_id, summary.digest, Lowered(max_ledgers=caps.max_ledgers * 100))
        self.world.trace = None
        try:
            with self._adapters(), self._within_caps(run_id):
                deletion_run.apply_plan(self.cluster, run_id, order, lambda line: None)
        except UsageError as refused:
            return str(refused)
        raise Violation(f"P13: {plan_id} was applied under caps above those of the settings")

    def _launched_with(self, launch: str) -> Lowered:
        """Caps of a launch: mostly the settings', sometimes fewer, sometimes more."""
        asked = Random(launch).choice([None] * 8 + [2, 1_000, 1_000])
        return Lowered(max_ledgers=asked)

    @contextmanager
    def _within_caps(self, run_id: str) -> Iterator[None]:
        """P13: whatever a launch asks for, it sends and deletes no more ledgers than the settings allow."""
        try:
            yield
        finally:
            effects = [r for r in self.world.journal.rows if r.run_id == run_id and r.outcome in (SENT, DELETED)]
            touched = {r.ledger_id for r in effects}
            cap = self.settings.apply.max_ledgers
            if len(touched) > cap:
                raise Violation(f"P13: {run_id} sent or deleted {len(touched)} ledgers, apply.max_ledgers is {cap}")

    def delete(self) -> str:
        """One deletion run."""
        run_id, began = self._run_id("delete"), self.world.time.now_ms()
        with self._tracing(Trace(run_id)), self._adapters():
            outcomes = deletion_run.delete_pending(self.cluster, run_id)
        self.withheld = [one for one in outcomes if one.outcome == WITHHELD]
        if self.depth == 0:
            self.laws.all_said(began)
        return str(outcomes)

    def direct(self, plan_id: str) -> str:
        """Delete a plan's ledgers without the queue."""
        summary = self.lake.kept_plans[plan_id][0]
        run_id = self._run_id("direct")
        order = Order(plan_id, summary.digest, self._launched_with(f"{run_id} {plan_id}"))
        with self._tracing(Trace(run_id)), self._adapters(), self._within_caps(run_id):
            outcomes = deletion_run.apply_directly(self.cluster, run_id, order)
        return str(outcomes)

    def trim(self, of: ModelTopic | None = None) -> str:
        """Take the oldest ledgers off some topic's list, or of the one that is given."""
        topics = [of] if of else list(self.world.model.topics.values())
        topics = sorted(topics, key=lambda t: (bool(t.cursors), str(t.name)))
        topics = [t for t in topics if len(t.ledgers) > 1]
        if not topics:
            return "no topic to trim"
        passed = {t.name: min((self.world.stands(c) for c in t.cursors.values()), default=1 << 60) for t in topics}
        ready = [t for t in topics if passed[t.name] > t.ledgers[0] and not t.shadow_of and not t.away]
        topic = self.random.choice((ready or topics[:1]) * 9 + topics)
        order = TrimOrder(topic.name, up_to=self.random.choice(topic.ledgers[1:]))
        self.trimmed = topic.name
        self.world.trace = None
        run_id = self._run_id("trim")
        with self._adapters(), self._within_caps(run_id):
            done = trim_run.trim(self.cluster, run_id, [order], dry_run=False)
        return "; ".join(f"{one.ledger_id} {one.outcome}: {one.reason}" for one in done)

    def delete_topic(self) -> str:
        """Delete some topic whole."""
        names = sorted((t for t, one in self.world.model.topics.items() if not one.away), key=str)
        if not names:
            return "no topic to delete"
        topic = self.random.choice(names)
        run_id = self._run_id("delete-topic")
        self.laws.whole_deletion(topic, run_id)
        self.world.trace = None
        with self._adapters(), self._within_caps(run_id):
            done = trim_run.delete_topics(self.cluster, run_id, [topic], force=True, dry_run=False)
        return f"{topic}: " + "; ".join(f"{one.ledger_id} {one.outcome}: {one.reason}" for one in done)

    def undo(self) -> str:
        """Undo some earlier run's deletions, or those of a few ledgers."""
        archived = self.world.journal.nodes
        if not archived:
            return "nothing to undo"
        one = self.random.choice([*archived, *archived[-3:] * 3])
        whole = self.random.random() < 0.5
        request = undoing.Request(
            run_id=one.run_id if whole else "",
            ledger_ids=() if whole else (one.ledger_id,),
            dry_run=False,
            accept_unknown=self.random.random() < 0.2,
        )
        run_id = self._run_id("undo")
        with self._tracing(Trace(run_id, undo=True, started=self.world.time.now_ms())), self._adapters():
            found = undoing.undo_deletions(self.cluster, run_id, request, lambda line: None)
        return "; ".join(f"{u.ledger_id} {u.outcome}: {u.reason}" for u in found.ledgers)

    def pause(self) -> str:
        """Stop every effect."""
        store = self.world.open_store()
        control.pause(store, "simulated")
        store.close()
        return "paused"

    def resume(self) -> str:
        """Let effects go on."""
        store = self.world.open_store()
        control.resume(store)
        store.close()
        return "resumed"

    def accept_restore(self) -> str:
        """Set every earlier scan aside, as the command of that name does; what is lost is put back before."""
        disasters.relieve(self.world)
        self.lake.scans.clear()
        self.lake.until = self.world.clock.now_ms()
        self.laws.taken.clear()
        return "earlier scans are set aside"

    def redrive(self) -> str:
        """Send dead letters again, afresh."""
        most = self.random.choice([1, None])
        run_id = self._run_id("redrive")
        self.world.trace = None
        with self._adapters(), self._within_caps(run_id):
            done = redriving.redrive_now(self.settings, run_id, LetterFilter(), most, lambda line: None)
        return f"{done.sent} of {done.looked} dead letters are sent again"

    # ------------------------------------------------------------------------------------------------- in place of

    def _run_id(self, what: str) -> str:
        self.runs += 1
        return f"{what}-{self.runs}"

    @contextmanager
    def _tracing(self, trace: Trace) -> Iterator[None]:
        was, self.world.trace = self.world.trace, trace
        self.depth += 1
        try:
            yield
        finally:
            self.world.trace = was
            self.depth -= 1

    @contextmanager
    def _adapters(self) -> Iterator[None]:
        """The simulator's ports wherever a module of the library opens one of ours."""
        world = self.world
        stand_ins: dict[str, Any] = {
            "Connections": lambda settings, **asked: _Connections(self, settings, **asked),
            "system_clock": lambda: world.clock,
            "marked_ledgers": self._marked_ledgers,
            "marked_offloads": self._marked_offloads,
            "nodes_in_doubt": lambda lake, cluster, since: world.journal.nodes_in_doubt(cluster, since),
            "uuid4": lambda: UUID(int=world.random.getrandbits(128), version=4),
            "secrets": SimpleNamespace(token_hex=lambda n: f"{self.lake.plan_count:04x}"),
        }
        kept = [
            (module, name, vars(module)[name])
            for module in _COMPOSING
            for name in stand_ins.keys() & vars(module).keys()
        ]
        for module, name, _ in kept:
            setattr(module, name, stand_ins[name])
        for module in (stored, archive, first_phase_marks, offloads, queries, read_checks):
            kept.append((module, "scan", module.scan))
            module.scan = self._scan
        try:
            yield
        finally:
            for module, name, value in kept:
                setattr(module, name, value)

    def _marked_ledgers(self, lake: str, cluster: str) -> dict[int, tuple[int, int]]:
        rows = ((r.ledger_id, json.loads(r.detail)["czxid"], r.at) for r in self._open(DELETE_LEDGER))
        return {ledger: (czxid, at) for ledger, czxid, at in rows if czxid is not None}

    def _marked_offloads(self, lake: str, cluster: str) -> dict[int, tuple[Asked, int]]:
        copies = ((r, *_copy(r)) for r in self._open(DELETE_OFFLOADED))
        return {r.ledger_id: (Asked(r.topic, UUID(copy) if copy else None, bucket), r.at) for r, copy, bucket in copies}

    def store_of(self, settings: Any, read_only: bool) -> Any:
        """A session with the metadata store that the settings name."""
        root = self.world.roots.get(settings.hosts.partition(":")[0])
        return closing(root.open_store(read_only=True)) if root else self.world.open_store(read_only=read_only)

    def dead_letters(self) -> SimDeadLetters:
        """A consumer of the dead-letter topic."""
        world = self.world
        letters = SimDeadLetters(world.deletion_topics, world.time, world.interceptor)
        letters.on_acknowledge = self.laws.about_to_take_letters
        return letters

    def _scan(
        self, lake: str, kind: str, schema: pa.Schema, condition: Any, columns: list[str] | None = None
    ) -> pa.Table:
        """``io.lake.journal._scan`` of what the journal, or the archive, has in memory."""
        rows: Sequence[Any] = self.world.journal.rows if kind == JOURNAL else self.world.journal.nodes
        count, known = self._stored.get(kind, (0, _dated([], schema)))
        if count < len(rows):
            known = pa.concat_tables([known, _dated(rows[count:], schema)]).combine_chunks()
            self._stored[kind] = len(rows), known
        found = known if condition is None else known.filter(condition)
        return found.select(columns or schema.names)

    def _open(self, action: str) -> list[JournalRow]:
        """Marks that stand, as ``io.lake.journal`` reads them."""
        rows = self.world.journal.rows
        settled = ENDS[action == DELETE_OFFLOADED]
        marked = [r for r in rows if r.phase == "mark" and r.outcome == MARKED]
        if not marked:
            return []
        left = [r for r in rows if r.phase == "mark" and r.outcome == LEFT]
        ended = [r for r in rows if r.phase == "delete" and r.action == action and r.outcome in settled]
        parts = (tuple((r.ledger_id, r.at, *_copy(r)) for r in some) for some in (marked, left, ended))
        stand = _standing(open_copies if action == DELETE_OFFLOADED else _open_ledgers, *parts)
        return sorted((r for r in marked if (r.ledger_id, r.at) in stand), key=lambda r: r.at)

    def _working(self, work: object) -> None:
        """What the laws must know of a run whose tasks begin now; here an executor may be doomed."""
        trace = self.world.trace
        if isinstance(work, _Worker) and trace is not None:
            run = work.run
            trace.guard = run.guard
            trace.epoch_id = self.lake.epochs()[-1].epoch_id
            trace.batch, trace.per_second, trace.started = run.batch, run.deletes_per_second, self.world.time.now_ms()
        if self.between and self.depth == 1:
            self.between()


def _dated(rows: Sequence[Any], schema: pa.Schema) -> pa.Table:
    """Rows of the journal or the archive as ``io.lake.journal`` reads them, all filed under the last day."""
    columns = [[getattr(row, name) for row in rows] for name in schema.names]
    return pa.table([*columns, ["9999-12-31"] * len(rows)], pa.schema([*schema, pa.field("date", pa.string())]))


_MARKS = pa.schema({"ledger_id": pa.int64(), "at": pa.int64(), "uuid": pa.string(), "bucket": pa.string()})
_Said = tuple[tuple[int, int, str | None, str | None], ...]


def _copy(row: JournalRow) -> tuple[str | None, str | None]:
    """The offloaded copy that a row names: its UUID and bucket."""
    detail = json.loads(row.detail)
    return detail.get("uuid"), detail.get("bucket")


def _open_ledgers(marked: pa.Table, left: pa.Table, settled: pa.Table) -> pa.Table:
    return open_marks(marked, pa.concat_tables([left, settled]))


@lru_cache(maxsize=8)
def _standing(rule: Callable[..., pa.Table], marked: _Said, left: _Said, settled: _Said) -> frozenset[tuple[int, int]]:
    """``rule`` of :data:`_MARKS`, as (ledger, at)."""
    tables = (
        pa.Table.from_pylist([dict(zip(_MARKS.names, row, strict=True)) for row in some], _MARKS)
        for some in (marked, left, settled)
    )
    return frozenset((row["ledger_id"], row["at"]) for row in rule(*tables).to_pylist())


def _namespaces(world: World) -> set[str]:
    found: set[str] = set()
    for root in ("/admin/policies/", "/managed-ledgers/"):
        for path in world.zookeeper._nodes:
            if path.startswith(root):
                parts = path[len(root) :].split("/")
                found |= {"/".join(parts[:2]), "/".join(parts[:3])}
    return found


def new_interceptor(world: World) -> Interceptor:
    """The switch of a new process."""
    interceptor = Interceptor()
    world.interceptor = interceptor
    for port in (world.reader, world.admin, world.journal, world.objects):
        port.interceptor = interceptor
    return interceptor
