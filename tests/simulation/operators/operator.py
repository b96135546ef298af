"""The control plane in a schedule: the driver's code of ``deletion/deletion_run.py`` over the simulator's ports,
without Spark.

Belongs here: one method per thing an operator does. Not here: what goes wrong
(``faults``), what must hold (``laws``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from random import Random

import pyarrow as pa

from pulsar_lifecycle.cli.plans import refusal_of
from pulsar_lifecycle.deletion import deletion_run
from pulsar_lifecycle.deletion import reconcile as reconciling
from pulsar_lifecycle.deletion import redrive as redriving
from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.deletion.redrive import LetterFilter
from pulsar_lifecycle.deletion.undo import undo_run as undoing
from pulsar_lifecycle.deletion.workers import OutcomeCount, RunEnd, _Worker
from pulsar_lifecycle.errors import Refused, RefusedBy, UsageError
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.caps import AS_SET, Lowered, Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan.epochs import weighed_against
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.trimming.trim import TrimOrder
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.gaps import GapCode, in_words
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans import deletion_plan
from pulsar_lifecycle.values.refusals import RefusalCode
from pulsar_lifecycle.words import RaisedShrinkage
from tests.kit.fakes.lake import FakeLake
from tests.kit.simulated import pipeline
from tests.kit.simulated.connections import SimIds, where_of
from tests.simulation.faults import disasters
from tests.simulation.laws.deletion_laws import Violation
from tests.simulation.laws.laws import Laws
from tests.simulation.operators import explaining
from tests.simulation.world.interception import Interceptor, Trace
from tests.simulation.world.model import ModelTopic
from tests.simulation.world.queue import SimDeadLetters
from tests.simulation.world.tasks import SimTasks
from tests.simulation.world.world import World

OVER_CAPS = (RefusalCode.MAX_LEDGERS, RefusalCode.MAX_SHARE, RefusalCode.MAX_BYTES, RefusalCode.MAX_LEDGERS_PER_TOPIC)


class Operator:
    """One control plane. Its methods return what to print; refusals are answers, not errors."""

    def __init__(self, world: World, laws: Laws, random: Random, settings: Settings) -> None:
        self.world = world
        self.laws = laws
        self.random = random
        self.settings = settings
        self.lake = FakeLake()
        self.tasks = SimTasks(world, self._working)
        self.cluster = where_of(
            world,
            settings,
            self.lake,
            tasks=self.tasks,
            ids=SimIds(lambda: world.random),
            dead_letters=self.dead_letters,
        )
        laws.exclusive = settings.object_store is not None and settings.object_store.exclusive
        laws.holds = settings.orphans.holds(0)
        laws.system_topics = settings.orphans.system_topics
        self.runs = self.depth = 0
        self.withheld: list[OutcomeCount] = []
        self.trimmed = Topic.parse("persistent://acme/orders/none")
        self.spoiled: Callable[[], str] = lambda: ""
        self.between: Callable[[], None] | None = None

    # ------------------------------------------------------------------------------------------------------ read-only

    @contextmanager
    def writing_nothing(self, what: str) -> Iterator[None]:
        """What is done within must not write to the metadata store; where something happened meanwhile, that may."""
        before, acts = self.world.zookeeper.zxid, len(self.world.interceptor.fired)
        yield
        if len(self.world.interceptor.fired) == acts and self.world.zookeeper.zxid != before:
            raise Violation(f"I6: {what} wrote to the metadata store")

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
        unlisted, restores = self.laws.unlisted_open(), world.restored
        listed, damaged = {str(t.name): set(t.ledgers) for t in there}, world.damaged_owners()
        mute = world.mute()

        def noted(epoch: Epoch) -> None:
            """The laws know of each scan that is finished, whatever becomes of its process."""
            for topic in there if epoch.covered else ():
                topic.unscanned = False
            if epoch.covered:
                world.listed, late = listed, [t for t in world.model.topics.values() if not t.away]
                world.most_listed = len(set[int]().union(*listed.values(), *(t.ledgers for t in late)))
            unneeded = frozenset(set(world.model.ledgers) - (live & set(world.live(memory=False))))
            existing = frozenset(i for i in unneeded if world.exists(i))
            self.laws.seen[epoch.epoch_id] = began, existing, in_words(epoch.gaps)
            self.laws.counters[epoch.epoch_id] = counters
            world.undone = [(first, last, after or counters) for first, last, after in world.undone]
            unreachable = frozenset(set(world.attempts) - (reached & set(world.reachable())))
            self.laws.unreachable[epoch.epoch_id] = began, unreachable
            self.laws.ever_sources |= sources
            if epoch.covered:
                self.laws.namespaces, self.laws.sources = namespaces, sources
            self.laws.looked(open_leaks, damaged)
            self.laws.freed(self.lake.context(epoch.epoch_id).overtaken_topics, unlisted, restores)

        found = self._scan(self.cluster, noted)
        if self._only_leaks(found):
            found = self._scan(replace(self.cluster, settings=_whatever_got_lost(self.settings)), noted)
        if len(world.interceptor.fired) == acts and world.zookeeper.zxid != before:
            raise Violation("I6: a scan wrote to the metadata store")
        if len(world.interceptor.fired) == acts and spoiled and found.epoch.covered:
            raise Violation(f"I8: {spoiled}, and the scan says that it read everything")
        if len(world.interceptor.fired) == acts and not spoiled and self._stopped_by_one(mute, found):
            raise Violation(f"what the broker does not say of {mute[0]} stops every plan: {in_words(found.epoch.gaps)}")
        if len(world.interceptor.fired) == acts and (forgotten := self._forgotten(mute, found)):
            raise Violation(f"I1: its broker does not say what it holds of {forgotten[0]}, and nothing keeps that")
        return f"{found.findings.num_rows} findings" + (
            f"; gaps: {in_words(found.epoch.gaps)}" if found.epoch.gaps else ""
        )

    def _scan(self, cluster: Cluster, noted: Callable[[Epoch], None]) -> pipeline.Scan:
        """One scan; ``noted`` is told of it as soon as its epoch is closed."""
        kept = set(self.lake.finished_epochs())
        try:
            epoch = judged_scan.scan(cluster, self._run_id("scan"))
        finally:
            for epoch_id in set(self.lake.finished_epochs()) - kept:
                noted(self.lake.epoch(epoch_id))
        return pipeline.scan_of(self.lake, epoch.epoch_id)

    def _stopped_by_one(self, mute: list[str], found: pipeline.Scan) -> bool:
        """Whether a scan waits for what brokers never say of single topics, though they answer otherwise."""
        if self.world.lagging:
            return False
        topics = [name for name in mute if name not in self.world.admin.denied]
        unread = {gap.where for gap in found.epoch.gaps if gap.code is GapCode.REFERENCE_UNREAD}
        return any(f"broker memory of {name}" in unread for name in topics)

    def _forgotten(self, mute: list[str], found: pipeline.Scan) -> list[str]:
        """Topics of which brokers never say what they hold, and that a scan takes for known."""
        if self.world.lagging or not found.epoch.covered:
            return []
        return [name for name in mute if name not in found.context.kept_topics]

    def _only_leaks(self, found: pipeline.Scan) -> bool:
        """Whether an operator who looks at what a scan calls lost sees that nobody needs any of it."""
        others = {GapCode.OTHER_ROOT, GapCode.OTHER_ROOT_UNLISTED, GapCode.OTHER_BOOKIES}
        if {gap.code for gap in found.epoch.gaps} & {GapCode.LOST_REFERENCES, *others} != {GapCode.LOST_REFERENCES}:
            return False
        last = weighed_against(self.lake, found.epoch)  # type: ignore[arg-type]
        assert last is not None
        lost = set(self.lake.referenced(last.epoch_id).needed - found.refs.needed)
        return not lost & set(self.world.live()) and not any(t.away for t in self.world.model.topics.values())

    def plan(self) -> str:
        """A plan of the newest scan; the same scan gives the same rows and digest."""
        finished = self.lake.finished_epochs()
        if not finished or self.lake.epoch(finished[-1]) not in self.lake.epochs():
            return "no scan yet"
        world = self.world
        with self.writing_nothing("a plan"):
            summary, rows = deletion_run.make_plan(self.cluster, self.lake.epoch(finished[-1]))
        shuffled = rows.take(pa.array(self.random.sample(range(rows.num_rows), rows.num_rows), pa.int64()))
        if deletion_plan.digest(shuffled, summary.to_json()) != summary.digest:
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
        kept, now = self.lake.kept_plans[plan_id], self.world.clock.now_ms()
        said = refusal_of(*kept, self.lake, self.settings, now)  # type: ignore[arg-type]
        try:
            with self._within_caps(run_id):
                applied = deletion_run.apply_plan(self.cluster, run_id, order, lambda line: None)
        except Refused as refused:
            over = isinstance(refused, RefusedBy) and refused.code in OVER_CAPS
            if as_set and over and not said:
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
            with self._within_caps(run_id):
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
            effects = [
                r
                for r in self.world.journal.rows
                if r.run_id == run_id and r.outcome in (Outcome.SENT, Outcome.DELETED)
            ]
            touched = {r.ledger_id for r in effects}
            cap = self.settings.apply.max_ledgers
            if len(touched) > cap:
                raise Violation(f"P13: {run_id} sent or deleted {len(touched)} ledgers, apply.max_ledgers is {cap}")

    def delete(self) -> str:
        """One deletion run."""
        run_id, began = self._run_id("delete"), self.world.time.now_ms()
        explained = explaining.explained(self) if self._undisturbed() else {}
        with self._tracing(Trace(run_id)):
            outcomes = deletion_run.delete_pending(self.cluster, run_id)
        explaining.check(explained, self.world.journal.rows, run_id)
        self.withheld = [one for one in outcomes if one.outcome == RunEnd.WITHHELD]
        if self.depth == 0:
            self.laws.all_said(began)
        return str(outcomes)

    def _undisturbed(self) -> bool:
        """Whether nothing happens to the run that begins now; of those, some are enough."""
        return self.depth == 0 and not self.world.interceptor.injections and not self.between and self.runs % 3 == 0

    def direct(self, plan_id: str) -> str:
        """Delete a plan's ledgers without the queue."""
        summary = self.lake.kept_plans[plan_id][0]
        run_id = self._run_id("direct")
        order = Order(plan_id, summary.digest, self._launched_with(f"{run_id} {plan_id}"))
        with self._tracing(Trace(run_id)), self._within_caps(run_id):
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
        with self._within_caps(run_id):
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
        with self._within_caps(run_id):
            done = trim_run.delete_topics(self.cluster, run_id, [topic], force=True, dry_run=False)
        return f"{topic}: " + "; ".join(f"{one.ledger_id} {one.outcome}: {one.reason}" for one in done)

    def undo(self) -> str:
        """Undo some earlier run's deletions, or those of a few ledgers."""
        archived = self.world.journal.nodes
        if not archived:
            return "nothing to undo"
        one = self.random.choice([*archived, *archived[-3:] * 3])
        whole = self.random.random() < 0.5
        request = undoing.UndoRequest(
            run_id=one.run_id if whole else "",
            ledger_ids=() if whole else (one.ledger_id,),
            dry_run=False,
            accept_unknown=self.random.random() < 0.2,
        )
        run_id = self._run_id("undo")
        with self._tracing(Trace(run_id, undo=True, started=self.world.time.now_ms())):
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
        self.lake.set_scans_aside(self.settings.cluster, self.world.clock.now_ms(), "simulated")
        self.world.wait_ms(1)  # a scan that begins at the same moment would be set aside, too
        self.laws.taken.clear()
        return "earlier scans are set aside"

    def redrive(self) -> str:
        """Send dead letters again, afresh."""
        most = self.random.choice([1, None])
        run_id = self._run_id("redrive")
        self.world.trace = None
        with self._within_caps(run_id):
            done = redriving.redrive_now(self.cluster, run_id, LetterFilter(), most, lambda line: None)
        return f"{done.sent} of {done.looked} dead letters are sent again"

    def reconcile(self) -> str:
        """Derive intents again: of a namespace or of all, without or with those that are in flight."""
        namespaces, resend = self.random.choice([[], ["acme/orders"]]), self.random.random() < 0.5
        run_id = self._run_id("reconcile")
        self.world.trace = None
        with self._within_caps(run_id):
            done = reconciling.reconcile(
                self.cluster, run_id, namespaces, apply=True, resend=resend, progress=lambda line: None
            )
        return f"{done.summary.plan_id}: {done.summary.ledgers} ledgers, {done.applied}"

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

    def dead_letters(self) -> SimDeadLetters:
        """A consumer of the dead-letter topic."""
        world = self.world
        letters = SimDeadLetters(world.deletion_topics, world.time, world.interceptor)
        letters.on_acknowledge = self.laws.about_to_take_letters
        return letters

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


def _namespaces(world: World) -> set[str]:
    found: set[str] = set()
    for root in ("/admin/policies/", "/managed-ledgers/"):
        for path in world.zookeeper._nodes:
            if path.startswith(root):
                parts = path[len(root) :].split("/")
                found |= {"/".join(parts[:2]), "/".join(parts[:3])}
    return found


def _whatever_got_lost(settings: Settings) -> Settings:
    """The settings of an operator who lets any number of references get lost."""
    word = RaisedShrinkage(by="the operator", why="nobody needs what got lost")
    limits = {"max_shrinkage": 1.0, "max_lost_ledgers": 1 << 40, "max_lost_bytes": 1 << 50}
    orphans = settings.orphans.model_copy(update={**limits, "max_shrinkage_raised": word})
    return settings.model_copy(update={"orphans": orphans})


def new_interceptor(world: World) -> Interceptor:
    """The switch of a new process."""
    interceptor = Interceptor()
    world.interceptor = interceptor
    for port in (world.reader, world.admin, world.journal, world.objects):
        port.interceptor = interceptor
    return interceptor
