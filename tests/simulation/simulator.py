"""A seed makes a schedule: a small cluster, then up to 60 steps of brokers, operators, time and faults, then peace.

Belongs here: drawing the steps, running them one by one against the product's own code, and judging the end: once
faults stop, everything planned goes and the queue empties. Not here: what a step does (``acts.py``, ``faults.py``,
``operator.py``) and what must always hold (``laws.py``). A step has a seed of its own, so that a schedule with some
steps left out is still the same schedule.
"""

from __future__ import annotations

import gc
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.errors import LifecycleError, Refused
from pulsar_lifecycle.formats.deletion_message import LedgerType
from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.records.plans import deletion_plan as plan_deletion
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.settings import Settings
from tests.simulation import acts, disasters, faults, retaining, tiering, traps
from tests.simulation.acts import WEST
from tests.simulation.cluster import another_cluster
from tests.simulation.laws import Laws, Violation
from tests.simulation.offloaded import BUCKET, CLUSTER
from tests.simulation.operator import Operator, new_interceptor
from tests.simulation.ports import Crash
from tests.simulation.world import HOUR, World

pa.set_cpu_count(1)
pa.set_io_thread_count(1)
gc.set_threshold(200_000, 20, 100)  # a schedule leaves little behind, and half of what is looked at is the libraries'

DAY = 24 * HOUR
ROUTINE = ("week", "scan", "day", "scan", "plan", "apply", "hour", "scan", "delete", "delete")
WAITS = {"week": 8 * DAY, "day": 25 * HOUR, "hour": HOUR}
KINDS = {"routine": 36, "world": 30, "time": 6, "queue": 9, "operator": 8, "unwell": 5, "heal": 7}
EXTRAS = {
    "delete": 3,
    "scan": 1,
    "apply": 2,
    "old-plan": 2,
    "direct": 2,
    "pause": 1,
    "resume": 1,
    "redrive": 1,
    "other-plan": 1,
    "backup": 4,
    "restore": 4,
    "accept": 1,
    "trim": 4,
    "delete_topic": 3,
    "undo": 3,
}
DISASTROUS = 5
"""One schedule in so many has disasters."""
FAULTY = 0.5
"""Share of the control plane's steps that something happens to."""
TRAP_FAULTY = 0.1
"""The same of the steps of a trap."""


@dataclass
class Result:
    """How a schedule ended; ``violation`` is empty if every invariant held.

    ``error`` says that no law found it: the code raised what it must not.
    """

    seed: int
    violation: str = ""
    error: bool = False
    at_step: int = -1
    steps: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    facts: Counter[str] = field(default_factory=Counter)


def simulate(
    seed: int, *, skip: Collection[int] = (), say: Callable[[str], None] = lambda line: None, most: int = 60
) -> Result:
    """Run one schedule; ``skip`` leaves out some of its steps."""
    return _Schedule(seed, skip, say, most).run()


def shrink(seed: int, most_runs: int = 150) -> list[int]:
    """Steps that can be left out while the schedule still violates something."""
    found = simulate(seed)
    skip = set(range(found.at_step + 1, found.steps)) if found.at_step >= 0 else set[int]()
    if not simulate(seed, skip=skip).violation:
        skip = set()
    runs, size = 0, max(1, found.steps // 4)
    while size >= 1 and runs < most_runs:
        for start in range(0, found.steps, size):
            more = skip | set(range(start, min(start + size, found.steps)))
            if more == skip:
                continue
            runs += 1
            if simulate(seed, skip=more).violation:
                skip = more
        size //= 2
    return sorted(skip)


class _Schedule:
    def __init__(self, seed: int, skip: Collection[int], say: Callable[[str], None], most: int) -> None:
        random = Random(seed)
        self.result = Result(seed)
        self.say = say
        self.skip = frozenset(skip)
        self.begins = random.getrandbits(32)
        count = random.randint(12, most)
        weights = KINDS | {"tiered": 30} if tiering.has(seed) else KINDS
        weights = weights | {"retention": 90} if retaining.has(seed) else weights
        kinds = random.choices(list(weights), list(weights.values()), k=count)
        self.steps = [(kind, random.getrandbits(32)) for kind in kinds]
        self.result.steps = count
        self.world = World(Random(self.begins))
        self.world.deletion_topics.max_unacked = Random(self.begins + 2).choice([0, 2, 3, 6])
        self.laws = Laws(self.world)
        settings = _settings(Random(self.begins))
        if tiering.has(seed):
            settings = tiering.settings_for(settings, Random(self.begins + 6))
            tiering.prepare(self.world)
        self.operator = Operator(self.world, self.laws, Random(self.begins), settings)
        self.tiering = tiering.Tiering(self.operator)
        self.retaining = retaining.Retaining(self.operator) if retaining.has(seed) else None
        if settings.bookkeeper.shared_with:
            self.world.roots[WEST] = another_cluster()
        self.operator.spoiled = lambda: faults.spoiled(self.world)
        self.routine = random.randrange(2) * 2
        self.trap, self.trap_from = traps.of(seed), Random(self.begins + 4).randrange(count // 2)

    def run(self) -> Result:
        """All steps, then peace."""
        index = -1
        try:
            self.say(f"seed {self.result.seed}: {self._begin()}")
            for index, (kind, seed) in enumerate(self.steps):
                if index in self.skip:
                    continue
                random = Random(seed)
                self.world.random = self.operator.random = random
                if self.result.seed % DISASTROUS == 0:
                    code, done = disasters.strike(Random(seed + 1), self.world)
                    if done:
                        self._count(code)
                        self.say(f"{index:3} {done}")
                    if done.startswith(disasters.LOST):
                        self._as_if_nothing_had_happened()
                self._spring(index)
                self.say(f"{index:3} {kind}: {getattr(self, '_' + kind)(random)}")
            index = len(self.steps)
            self._peace()
        except Violation as violation:
            self._violated(index, str(violation))
        except Exception as error:  # a bug is a finding as well
            self.say(traceback.format_exc())
            where = traceback.extract_tb(error.__traceback__)[-1]
            self.result.error = True
            self._violated(index, f"{type(error).__name__}: {error} ({where.filename}:{where.lineno})")
        self.result.facts["deleted"] += self.laws.deleted
        self.result.facts["brought back"] += self.laws.restored
        self.result.facts["objects deleted"] += self.laws.objects
        self.result.facts["trimmed"] += self.laws.trimmed
        self.result.facts["expired"] += self.laws.expired
        self.result.facts.update(self.laws.tiered.counts)
        return self.result

    def _violated(self, index: int, what: str) -> None:
        self.result.violation, self.result.at_step = what, index
        self.say(f"{index:3} VIOLATION: {what}")

    def _count(self, code: str) -> None:
        if code:
            self.result.faults[code] += 1

    def _begin(self) -> str:
        rests = str(acts.plain(self.world)) if self.world.random.random() < 0.5 else "no topic rests"
        said = "; ".join([rests, *(self._act() for _ in range(self.world.random.randint(4, 14)))])
        if self.world.random.random() < 0.3:
            self.world.take_backup()
        return said

    def _act(self) -> str:
        done = acts.happen(self.world, acts.ACTS)
        self._count(faults.code_of(done))
        return done

    # ----------------------------------------------------------------------------------------------------------- steps

    def _world(self, random: Random) -> str:
        return "; ".join(self._act() for _ in range(random.randint(1, 3)))

    def _time(self, random: Random) -> str:
        minutes = random.choice([1, 5, 30, 120, 600, 1500, 3000, 3 * 1440, 9 * 1440])
        if minutes > 8 * 1440 and random.random() < 0.3:
            self._count("F22")
            minutes = 30 * 1440
        self.world.wait_ms(minutes * 60_000)
        return f"{minutes} minutes"

    def _queue(self, random: Random) -> str:
        return faults.disturb(random, self.world, self._count)

    def _unwell(self, random: Random) -> str:
        return faults.unwell(random, self.world, self._count)

    def _heal(self, random: Random) -> str:
        said = faults.heal(self.world)
        if self.world.zookeeper.stat(control.PAUSE) is not None:
            self.world.remove(control.PAUSE)
            said += ", nothing is paused"
        return said

    def _routine(self, random: Random) -> str:
        what = ROUTINE[self.routine % len(ROUTINE)]
        self.routine += 1
        if what in WAITS:
            self.world.wait_ms(WAITS[what])
            return what
        return self._control(random, what)

    def _operator(self, random: Random) -> str:
        what = random.choices(list(EXTRAS), list(EXTRAS.values()))[0]
        return self._control(random, what)

    def _tiered(self, random: Random) -> str:
        extras = tiering.EXTRAS
        return self._tier(
            random,
            self.tiering.next() if random.random() < 0.7 else random.choices(list(extras), [*extras.values()])[0],
        )

    def _retention(self, random: Random) -> str:
        assert self.retaining is not None
        what = self.retaining.next()
        if what == "scan":
            return self._process(random, what, self.operator.scan, 0.2)
        work = getattr(self.retaining, what)
        return self._process(random, what, work, 0.2) if what in retaining.RUNS else work()

    def _tier(self, random: Random, what: str, faulty: float = FAULTY) -> str:
        """Something of tiered storage, or of what goes with it."""
        if what in tiering.WAITS:
            self.world.wait_ms(tiering.WAITS[what])
            return what
        if what in tiering.BESIDES:
            self._count("F17")
            return getattr(self.tiering, what)()
        whose = self.operator if what in ("scan", "delete") else self.tiering
        return self._process(random, what, getattr(whose, what), faulty)

    def _control(self, random: Random, what: str) -> str:
        operator, plans = self.operator, list(self.operator.lake.kept_plans)
        if what in ("apply", "old-plan", "direct", "other-plan") and not plans:
            return f"{what}: no plan yet"
        if what == "apply":
            limit = random.choice([0, 0, 0, 2])
            return self._process(random, "apply", lambda: operator.apply(plans[-1], limit))
        if what == "old-plan":
            plan = random.choice(plans)
            return self._process(random, what, lambda: operator.apply(plan))
        if what == "direct":
            return self._process(random, what, lambda: operator.direct(plans[-1]))
        if what == "other-plan":
            return self._other_plan(random, plans[-1])
        if what == "backup":
            self.world.take_backup()
            return "a backup of the metadata store is taken"
        if what == "restore":
            if self.world.backup is None:
                return "no backup to restore"
            self._count("F9")
            if random.random() < 0.5:  # a new election: the counter of transactions goes up, the rest back
                nodes, model, payloads, last, _ = self.world.backup
                later = ((self.world.zookeeper.zxid >> 32) + 1) << 32
                self.world.backup = (nodes, model, payloads, last, later)
            self.world.restore()
            return "the metadata store is restored from its backup"
        if what == "accept":
            return operator.accept_restore() if self.world.restored else "nothing to accept"
        return self._process(random, what, getattr(operator, what))

    def _other_plan(self, random: Random, plan_id: str) -> str:
        """A plan whose summary or rows are not what was looked at, or of another cluster."""
        self._count("F20")
        kept = self.operator.lake.kept_plans
        summary, rows = kept[plan_id]
        if random.random() < 0.5:
            other = replace(summary, fingerprint="0" * 32)
            other = replace(other, digest=plan_deletion.digest(rows, other.to_json()))
        else:
            other = replace(summary, actionable=True, cluster_ledgers=summary.cluster_ledgers + 1)
        kept["other"] = (other, rows)
        try:
            self.operator.apply("other")
        except LifecycleError as refused:
            return f"another cluster's plan: {refused}"
        finally:
            del kept["other"]
        raise Violation(f"P8: a plan of another cluster is applied: {other}")

    def _process(self, random: Random, what: str, work: Callable[[], str], faulty: float = FAULTY) -> str:
        """One process of the control plane, to which something may happen."""
        world, operator = self.world, self.operator
        world.wait_ms(1)  # no two processes journal at one moment
        interceptor = new_interceptor(world)
        operator.between = None
        if random.random() < faulty and what not in ("pause", "resume"):
            interceptor.injections = faults.injections(random, world, operator, interceptor, self._count)
            if world.tiered and hasattr(self.tiering, what):
                if random.random() < 0.7:
                    interceptor.injections = tiering.injections(random, world, self.tiering, interceptor, self._count)
            elif world.tiered and what == "delete" and random.random() < 0.3:
                interceptor.injections.append(tiering.takes_back_amid(self.tiering, random, self._count))
            at_the_write = random.random() if what == "trim" else 1
            if at_the_write < 0.1:
                trimmed = lambda: world.model.topics.get(operator.trimmed)  # noqa: E731
                interceptor.injections = [faults.recreated_at_the_compare_and_set(world, trimmed, self._count)]
            elif at_the_write < 0.6:
                interceptor.injections = [faults.lost_at_the_compare_and_set(random, self._count)]
            if random.random() < 0.15:
                lost = faults.executor_lost(random, interceptor, self._count)
                operator.between = lambda: interceptor.injections.append(lost)
        try:
            said = work()
            self.result.facts[f"{what} ended"] += 1
        except Crash as crash:
            _unhide(crash)
            said = f"killed at {crash}"
        except LifecycleError as error:
            _unhide(error)
            said = f"{type(error).__name__}: {error}"
            if isinstance(error, Refused):
                self.result.facts["refused"] += 1
        finally:
            new_interceptor(world)
            for store in list(world.zookeeper.open):
                world.zookeeper.end_session(store._session)
            world.zookeeper.open.clear()
            world.deletion_topics.held.clear()
            world.trace = world.objects.stale = None
        self.result.facts[what] += 1
        return f"{what}: {said}" + "".join(f"\n        {line}" for line in interceptor.fired)

    # ------------------------------------------------------------------------------------------------------------- end

    def _peace(self) -> None:
        """Faults stop, runs go on as scheduled: then what was planned goes, and the queue empties."""
        world, operator = self.world, self.operator
        self.say("peace: " + self._heal(Random(0)))
        world.random = operator.random = Random(self.begins)
        for act in (acts.settle_recovery,) * 4:
            act(world)
        if self._scans_mislead():
            operator.accept_restore()
        self._no_more_delays()
        late = [at for at, _, _, _ in world.deletion_topics.waiting.values()]
        world.wait_ms(max([8 * DAY, *(at - world.time.now_ms() for at in late)]))  # until wrong clocks are right
        for wait, what in ((0, "scan"), (25 * HOUR, "scan"), (0, "plan")):
            world.wait_ms(wait)
            self.say(f"peace: {self._calmly(getattr(operator, what))}")
        if not operator.lake.kept_plans:
            return
        summary, rows = list(operator.lake.kept_plans.values())[-1]
        if not summary.actionable:
            self.result.facts["report-only at the end"] += 1
            return
        self._storm(summary.plan_id)
        if world.tiered:
            self._storm_of_offloads()
        self.say(f"peace: {self._heal(Random(0))}")
        for act in (acts.settle_recovery,) * 9:
            act(world)
        self._no_more_delays()
        if self._scans_mislead():
            operator.accept_restore()
            self.say(f"peace: {self._calmly(operator.scan)}")
            world.wait_ms(25 * HOUR)
        for what in (operator.scan, operator.plan):
            self.say(f"peace: {self._calmly(what)}")
        summary, rows = list(operator.lake.kept_plans.values())[-1]
        if not summary.actionable:
            self.result.facts["report-only at the end"] += 1
            return
        self.say(f"peace: {faults.flood(Random(self.begins + 3), world, self._count)}")
        self.say(f"peace: {self._calmly(lambda: operator.overreach(summary.plan_id))}")
        self.say(f"peace: {self._calmly(lambda: operator.apply(summary.plan_id, as_set=True))}")
        for _ in range(13):
            world.wait_ms(HOUR)
            if not self._undecided():
                break
            self.say(f"peace: {self._calmly(operator.scan)}")
            self.say(f"peace: {self._calmly(operator.delete)}")
            if operator.withheld:
                raise Violation(f"what waits hides what is due: {operator.withheld}")
        self._all_done(summary, rows.column("ledger_id").to_pylist())

    def _as_if_nothing_had_happened(self) -> None:
        """The scheduled runs go on while z-nodes are lost."""
        for what in ROUTINE:
            if what in WAITS:
                self.world.wait_ms(WAITS[what])
            elif what == "apply":
                self.say(f"    {what}: {self._calmly(self.operator.apply_newest)}")
            else:
                self.say(f"    {what}: {self._calmly(getattr(self.operator, what))}")

    def _spring(self, index: int) -> None:
        """Play the schedule's trap, if it has one that was not played and the cluster has a place for it."""
        if self.trap is None or index < self.trap_from:
            return
        random, (code, script) = Random(self.begins + 5), self.trap
        was, self.world.random, self.operator.random = self.world.random, random, random
        for what, work in script(random, self.world, self.operator):
            if self.trap:
                self.say(f"{index:3} trap: {script.__name__}")
                self._count(code)
                self.trap = None
            self.say(f"    {self._process(random, what, work, TRAP_FAULTY)}")
        self.world.random = self.operator.random = was

    def _scans_mislead(self) -> bool:
        """Whether an operator must set the scans aside: the store was restored, or a clock was ahead at one of them."""
        newest = max((e.started_at for e in self.operator.lake.epochs()), default=0)
        return bool(self.world.restored) or newest > self.world.time.now_ms()

    def _no_more_delays(self) -> None:
        topics, soon = self.world.deletion_topics, self.world.time.now_ms() + HOUR
        for number, (at, due, raw, properties) in list(topics.waiting.items()):
            topics.waiting[number] = (at, min(due, soon), raw, properties)

    def _storm(self, plan_id: str) -> None:
        """A plan that can be applied, on a cluster that is well: now every call of a port counts."""
        random = Random(self.begins + 1)
        self.world.random = self.operator.random = random
        apply = lambda: self.operator.apply(plan_id, as_set=True)  # noqa: E731
        if random.random() < 0.3:
            self.world.take_backup()
        self.say(f"storm: {self._process(random, 'apply', apply, 0.6)}")
        for _ in range(2):
            self.say(f"storm: {self._world(random)}")
            first = random.choice(["trim", "trim", "trim", "delete_topic"])
            if first == "trim" and (rests := acts.plain(self.world)):
                self.say(f"storm: {rests}")
                self.world.wait_ms(HOUR)
            self.say(f"storm: {self._process(random, first, getattr(self.operator, first), 0.7)}")
            for _ in range(random.randrange(4)):
                self.say(f"storm: {faults.disturb(random, self.world, self._count)}")
            self.world.wait_ms(random.choice([HOUR, 12 * HOUR]))
            self.say(f"storm: {self._process(random, 'scan', self.operator.scan, 0.2)}")
            if self.world.backup is not None and random.random() < 0.1:
                self.say(f"storm: {self._control(random, 'restore')}")
            self.world.lagging = random.random() < 0.4
            self.say(f"storm: {self._process(random, 'delete', self.operator.delete, 0.95)}")
            if random.random() < 0.4:
                self.say(f"storm: {self._process(random, 'undo', self.operator.undo, 0.5)}")
            if random.random() < 0.3:
                self.say(f"storm: {self._process(random, 'redrive', self.operator.redrive, 0.5)}")

    def _storm_of_offloads(self) -> None:
        """Offload, release and delete, now that a scan covers the cluster; then once more without faults."""
        self.say(f"storm: {self._heal(Random(0))}")
        random = Random(self.begins + 7)
        self.world.random = self.operator.random = random
        for what in (*tiering.ROUTINE, "damage", *tiering.ROUTINE, *tiering.SWEEPING):
            if random.random() < 0.2:
                self.say(f"storm: {self._world(random)}")
            self.say(f"storm: {self._tier(random, what, 0.6)}")
        self.say(f"storm: {self._heal(Random(0))}")
        for what in tiering.ROUTINE:
            if what in tiering.WAITS:
                self.world.wait_ms(tiering.WAITS[what])
            else:
                whose = self.operator if what in ("scan", "delete") else self.tiering
                self.say(f"storm: {self._calmly(getattr(whose, what))}")

    def _calmly(self, work: Callable[[], str]) -> str:
        new_interceptor(self.world)
        self.operator.between = None
        try:
            return work()
        except LifecycleError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            self.world.zookeeper.open.clear()

    def _undecided(self) -> list[bytes]:
        """The messages that runs must be able to settle."""
        topics = self.world.deletion_topics
        left = [topics.received(number) for number in topics.waiting]
        if self.operator.settings.object_store is None:  # nothing can be said of offloaded copies: they wait
            left = [m for m in left if not m.info or m.info.ledger_type is not LedgerType.OFFLOAD_LEDGER]
        return [message.raw[:200] for message in left]

    def _all_done(self, summary: Any, planned: list[int]) -> None:
        world = self.world
        if left := self._undecided():
            raise Violation(f"liveness: after all the queue still holds {left}")
        live = world.live()
        caps = self.operator.settings.apply.max_ledgers
        stay = [i for i in planned if world.exists(i) and i not in live]
        if stay and len(planned) <= caps:
            rows = {r.ledger_id: (r.outcome, r.reason) for r in world.journal.rows if r.ledger_id in stay}
            undone = [i for i in stay if rows.get(i, ("",))[0] != Outcome.DEAD_LETTERED]
            if undone:
                raise Violation(f"liveness: planned by {summary.plan_id} and still there: {undone}: {rows}")


def _unhide(error: BaseException | None) -> None:
    """Raise the violation that an error of some clean-up stands in front of."""
    while error is not None:
        if isinstance(error, Violation):
            raise error
        error = error.__context__


_BASE: dict[str, Any] = {
    "cluster": "simulated",
    "zookeeper": {"hosts": "simulated:2181", "session_timeout": 2},
    "pulsar": {"admin_url": "http://simulated:8080", "service_url": "pulsar://simulated:6650"},
    "lake": {"path": "/simulated"},
    "spark": {"scan_partitions": 1},
}


def _settings(random: Random) -> Settings:
    holds = random.choice([[], [], [], ["acme/other"], ["persistent://acme/orders/placed"]])
    shared: dict[str, Any] = {"buckets": [BUCKET], "pulsar_cluster": CLUSTER}
    exclusive = shared | {"exclusive": True}
    settings: dict[str, Any] = {
        **_BASE,
        "bookkeeper": {"shared_with": random.choice([[]] * 16 + [[{"name": WEST, "hosts": "west:2181"}]] * 3 + [None])},
        "orphans": {"legal_holds": holds, "system_topics": random.random() < 0.2},
        "object_store": random.choice([None, shared, exclusive, exclusive, exclusive]),
        "trimming": {"loaded_topics": random.random() < 0.6},
        "apply": {"max_share": 1.0, "max_ledgers": random.choice([3, 100, 100])},
        "deletion": {
            "twoPhaseDeletionLedgerDeletionParallelism": 1,
            "idle_timeout": 1,
            "batch": random.choice([1, 2, 3, 5]),
            "deletes_per_second": random.choice([1, 1000]),
            "twoPhaseDeletionMaxRetryDeleteCount": random.choice([0, 2, 10]),
        },
    }
    settings["trimming"]["system_topics"] = random.random() < 0.3
    if settings["object_store"] and random.random() < 0.1:
        settings["object_store"] = settings["object_store"] | {"buckets": ["undeclared"]}
    return Settings.model_validate(settings)
