"""A seed makes a schedule: a small cluster, then up to 60 steps of brokers, operators, time and faults, then peace.

Belongs here: a schedule from its beginning to its end: once faults stop, everything planned goes and the queue empties.
Not here: its steps (``steps.py``) and what must always hold (``laws``).
"""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.formats.deletion_message import LedgerType
from pulsar_lifecycle.values.outcomes import Outcome
from tests.simulation.faults import disasters, queue_faults
from tests.simulation.laws.deletion_laws import Violation
from tests.simulation.operators import delaying, idling, loading, recording_offloaded, tiering
from tests.simulation.steps import DAY, ROUTINE, WAITS, Result, Steps
from tests.simulation.world import broker_acts, other_acts
from tests.simulation.world.model import HOUR

pa.set_cpu_count(1)
pa.set_io_thread_count(1)
gc.set_threshold(200_000, 20, 100)  # a schedule leaves little behind, and half of what is looked at is the libraries'
DISASTROUS = 5
"""One schedule in so many has disasters."""
TRAP_FAULTY = 0.1
"""The same of the steps of a trap."""


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


class _Schedule(Steps):
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
        self.result.facts.update(self.laws.counts)
        self.result.facts.update(self.retaining.counts if self.retaining else {})
        return self.result

    def _violated(self, index: int, what: str) -> None:
        self.result.violation, self.result.at_step = what, index
        self.say(f"{index:3} VIOLATION: {what}")

    def _begin(self) -> str:
        rests = str(broker_acts.plain(self.world)) if self.world.random.random() < 0.5 else "no topic rests"
        said = "; ".join([rests, *(self._act() for _ in range(self.world.random.randint(4, 14)))])
        if self.world.random.random() < 0.3:
            self.world.take_backup()
        return said

    # ------------------------------------------------------------------------------------------------------------- end

    def _peace(self) -> None:
        """Faults stop, runs go on as scheduled: then what was planned goes, and the queue empties."""
        world, operator = self.world, self.operator
        self.say("peace: " + self._heal(Random(0)))
        world.random = operator.random = Random(self.begins)
        for act in (other_acts.end_recovery,) * 4:
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
        if isinstance(self.retaining, recording_offloaded.RecordingOfOffloaded):
            self._storm_of(recording_offloaded.STORM, 10)
        if world.tiered:
            self._storm_of_offloads()
        if isinstance(self.retaining, loading.Loading):
            self._storm_of(loading.STORM, 8)
        if isinstance(self.retaining, idling.Idling):
            self._storm_of(self.retaining.STORM, 8)
        if isinstance(self.retaining, delaying.Delaying):
            self._storm_of(delaying.STORM, 9)
            self._repaired(self.retaining)
        self.say(f"peace: {self._heal(Random(0))}")
        for act in (other_acts.end_recovery,) * 9:
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
        self.say(f"peace: {queue_faults.flood(Random(self.begins + 3), world, self._count)}")
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
            if first == "trim" and (rests := broker_acts.plain(self.world)):
                self.say(f"storm: {rests}")
                self.world.wait_ms(HOUR)
            self.say(f"storm: {self._process(random, first, getattr(self.operator, first), 0.7)}")
            for _ in range(random.randrange(4)):
                self.say(f"storm: {queue_faults.disturb(random, self.world, self._count)}")
            self.world.wait_ms(random.choice([HOUR, 12 * HOUR]))
            self.say(f"storm: {self._process(random, 'scan', self.operator.scan, 0.2)}")
            if self.world.backup is not None and random.random() < 0.1:
                self.say(f"storm: {self._control(random, 'restore')}")
            self.world.lagging = random.random() < 0.4
            self.say(f"storm: {self._process(random, 'delete', self.operator.delete, 0.95)}")
            if random.random() < 0.4:
                self.say(f"storm: {self._process(random, 'undo', self.operator.undo, 0.5)}")
            if random.random() < 0.3:
                again = "redrive" if self.result.seed % 3 else "reconcile"
                self.say(f"storm: {self._process(random, again, getattr(self.operator, again), 0.5)}")

    def _storm_of(self, steps: Sequence[str], seed: int) -> None:
        """What an operator does besides deletions, now that a scan covers the cluster."""
        self.say(f"storm: {self._heal(Random(0))}")
        random = Random(self.begins + seed)
        self.world.random = self.operator.random = random
        for what in steps:
            if random.random() < 0.1:
                self.say(f"storm: {self._world(random)}")
            self.say(f"storm: {self._retain(random, what)}")

    def _repaired(self, one: delaying.Delaying) -> None:
        """Repair without faults, as far as a plan may, and have brokers deliver everything."""
        self.say(f"storm: {self._heal(Random(0))}")
        one.faulty = False
        for what in ("hours", "scan", "check", "plan_repair", "repair"):
            work = self.operator.scan if what == "scan" else getattr(one, what)
            self.say(f"storm: {self._calmly(work)}")
        one.all_comes()

    def _storm_of_offloads(self) -> None:
        """Offload and delete, now that a scan covers the cluster; then once more without faults."""
        self.say(f"storm: {self._heal(Random(0))}")
        random = Random(self.begins + 7)
        self.world.random = self.operator.random = random
        for what in (*tiering.ROUTINE, "damage", *tiering.ROUTINE, *tiering.SWEEPING):
            if random.random() < 0.2:
                self.say(f"storm: {self._world(random)}")
            self.say(f"storm: {self._tier(random, what, 0.6)}")
        self.say(f"storm: {self._heal(Random(0))}")
        for _ in range(3):  # a launch deletes few copies while a location is unread, and their objects may be lost
            for what in tiering.ROUTINE:
                if what in tiering.WAITS:
                    self.world.wait_ms(tiering.WAITS[what])
                else:
                    whose = self.operator if what in ("scan", "delete") else self.tiering
                    self.say(f"storm: {self._calmly(getattr(whose, what))}")
            if not self.world.held():
                break
            self.say(f"storm: {broker_acts.end_offloads(self.world)}")  # no run of ours touches a topic that has one

    def _undecided(self) -> list[bytes]:
        """The messages that runs must be able to end."""
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
