"""The steps of a schedule, and running one: a process of the control plane, to which something may happen.

Belongs here: drawing steps and running them one by one against the product's own code. Not here: what a step does
(``world``, ``faults``, ``operators``), and a schedule's end (``simulator.py``). A step has a seed of its own, so that a
schedule with some steps left out is still the same schedule.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from random import Random

from pulsar_lifecycle.errors import LifecycleError, Refused
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.values.plans import deletion_plan
from tests.kit.simulated.cluster import another_cluster
from tests.simulation.faults import injections, queue_faults, states, traps
from tests.simulation.laws.deletion_laws import Violation
from tests.simulation.laws.laws import Laws
from tests.simulation.operators import (
    delaying,
    idle_loads,
    idling,
    loading,
    recording,
    recording_offloaded,
    retaining,
    tiering,
)
from tests.simulation.operators.operator import Operator, new_interceptor
from tests.simulation.settings import random_settings
from tests.simulation.world import acts
from tests.simulation.world.interception import Crash
from tests.simulation.world.model import HOUR
from tests.simulation.world.other_acts import WEST
from tests.simulation.world.world import World

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
    "redrive": 0.5,
    "reconcile": 0.5,
    "other-plan": 1,
    "backup": 4,
    "restore": 4,
    "accept": 1,
    "trim": 4,
    "delete_topic": 3,
    "undo": 3,
}
FAULTY = 0.5
"""Share of the control plane's steps that something happens to."""


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


class Steps:
    """The steps of a schedule: each is drawn from its seed and run by itself."""

    def __init__(self, seed: int, skip: Collection[int], say: Callable[[str], None], most: int) -> None:
        random = Random(seed)
        self.result = Result(seed)
        self.say = say
        self.skip = frozenset(skip)
        self.begins = random.getrandbits(32)
        count = random.randint(12, most)
        weights = KINDS | {"tiered": 30} if tiering.has(seed) else KINDS
        if any(one.has(seed) for one in (retaining, loading, recording, recording_offloaded, delaying, idling)):
            weights = weights | {"retention": 90}
        kinds = random.choices(list(weights), list(weights.values()), k=count)
        self.steps = [(kind, random.getrandbits(32)) for kind in kinds]
        self.result.steps = count
        self.world = World(Random(self.begins))
        self.world.deletion_topics.max_unacked = Random(self.begins + 2).choice([0, 2, 3, 6])
        self.laws = Laws(self.world)
        settings = random_settings(Random(self.begins))
        if tiering.has(seed):
            settings = tiering.settings_for(settings, Random(self.begins + 6))
            tiering.prepare(self.world)
        if loading.has(seed):
            settings = loading.settings_for(settings, Random(self.begins + 6))
        if delaying.has(seed):
            settings = delaying.settings_for(settings, Random(self.begins + 6))
        if idle_loads.has(seed):
            settings = idle_loads.settings_for(settings, Random(self.begins + 6))
        elif idling.has(seed):
            settings = idling.settings_for(settings)
        self.operator = Operator(self.world, self.laws, Random(self.begins), settings)
        self.tiering = tiering.Tiering(self.operator)
        self.retaining = self._besides(seed)
        if settings.bookkeeper.shared_with:
            self.world.roots[WEST] = another_cluster()
        self.operator.spoiled = lambda: states.spoiled(self.world)
        self.routine = random.randrange(2) * 2
        self.trap, self.trap_from = traps.of(seed), Random(self.begins + 4).randrange(count // 2)

    def _besides(
        self, seed: int
    ) -> retaining.Retaining | recording.Recording | delaying.Delaying | idling.Idling | None:
        """What an operator does besides deletions, in some schedules."""
        if idle_loads.has(seed):
            return idle_loads.IdleLoads(self.operator)
        if idling.has(seed):
            return idling.Idling(self.operator)
        if delaying.has(seed):
            return delaying.Delaying(self.operator, merging=delaying.merges(seed), throwing=delaying.throws(seed))
        if recording.has(seed) or recording_offloaded.has(seed):
            return recording_offloaded.of(seed, self.operator)
        return loading.of(seed, self.operator)

    def _count(self, code: str) -> None:
        if code:
            self.result.faults[code] += 1

    def _act(self) -> str:
        done = acts.happen(self.world, acts.ACTS)
        self._count(done.fault)
        return str(done)

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
        return queue_faults.disturb(random, self.world, self._count)

    def _unwell(self, random: Random) -> str:
        return states.unwell(random, self.world, self._count)

    def _heal(self, random: Random) -> str:
        said = states.heal(self.world)
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
        return self._retain(random, self.retaining.next())

    def _retain(self, random: Random, what: str) -> str:
        """Something of retention, of loads, of records, or of what nobody uses."""
        assert self.retaining is not None
        if what == "scan":
            return self._process(random, what, self.operator.scan, 0.2)
        work = getattr(self.retaining, what)
        return self._process(random, what, work, 0.2) if what in self.retaining.RUNS else work()

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
            other = replace(other, digest=deletion_plan.digest(rows, other.to_json()))
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
            interceptor.injections = injections.injections(random, world, operator, interceptor, self._count)
            if world.tiered and (hasattr(self.tiering, what) or what in recording_offloaded.RecordingOfOffloaded.RUNS):
                if random.random() < 0.7:
                    interceptor.injections = tiering.injections(random, world, self.tiering, interceptor, self._count)
            elif world.tiered and what == "delete" and random.random() < 0.3:
                interceptor.injections.append(tiering.reverts_amid(self.tiering, random, self._count))
            at_the_write = random.random() if what == "trim" else 1
            if at_the_write < 0.1:
                trimmed = lambda: world.model.topics.get(operator.trimmed)  # noqa: E731
                interceptor.injections = [injections.recreated_at_the_compare_and_set(world, trimmed, self._count)]
            elif at_the_write < 0.6:
                interceptor.injections = [injections.lost_at_the_compare_and_set(random, self._count)]
            if random.random() < 0.15:
                lost = injections.executor_lost(random, interceptor, self._count)
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

    def _calmly(self, work: Callable[[], str]) -> str:
        new_interceptor(self.world)
        self.operator.between = None
        try:
            return work()
        except LifecycleError as error:
            return f"{type(error).__name__}: {error}"
        finally:
            self.world.zookeeper.open.clear()


def _unhide(error: BaseException | None) -> None:
    """Raise the violation that an error of some clean-up stands in front of."""
    while error is not None:
        if isinstance(error, Violation):
            raise error
        error = error.__context__
