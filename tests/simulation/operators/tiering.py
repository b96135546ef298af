"""Tiered storage in a schedule: what an operator does with it, what brokers and buckets do meanwhile.

Belongs here: the settings that it needs, one method per run of the product, acts and states of the world that only it
has. One schedule in so many has it, so that the others stay what they were. Not here: what must hold
(``tiered_laws.py``).
"""

from __future__ import annotations

import random as shared_random
from collections.abc import Callable
from random import Random
from typing import Any
from uuid import UUID

from pulsar_lifecycle.copies.object_pairs import ObjectKind
from pulsar_lifecycle.errors import AccessDenied, LifecycleError, StoreError, Unavailable
from pulsar_lifecycle.runs.apply import Order
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.tiered import offload_run
from pulsar_lifecycle.tiered.buckets import bucket_runs
from pulsar_lifecycle.tiered.buckets.bucket_rules import SweepAction
from pulsar_lifecycle.tiered.planning import offload_planning
from pulsar_lifecycle.values.gaps import in_words
from pulsar_lifecycle.values.outcomes import Action
from tests.kit.simulated.offloaded import BUCKET, CLUSTER
from tests.simulation.laws.deletion_laws import Violation
from tests.simulation.laws.tiered_laws import OFFLOAD, SWEEP
from tests.simulation.operators.operator import Operator
from tests.simulation.world.interception import Injection, Interceptor, Trace, crash
from tests.simulation.world.model import HOUR
from tests.simulation.world.world import BROKER, World

EVERY, AT = 4, 3
"""Which schedules have it, by their seeds."""

LAG = 4 * HOUR
ROUTINE = (
    "scan",
    "plan_offload",
    "offload",
    "lag",
    "scan",
    "plan_offload",
    "offload",
    "harm",
    "wait",
    "scan",
    "delete",
)
SWEEPING = ("leave", "week", "scan", "leave", "day", "scan", "inventory", "sweep", "wait", "scan", "delete")
WAITS = {"lag": LAG + HOUR, "wait": HOUR, "day": 25 * HOUR, "week": 8 * 24 * HOUR}
EXTRAS = {
    "offload": 4,
    "plan_offload": 2,
    "revert": 4,
    "inventory": 2,
    "sweep": 2,
    "damage": 3,
    "blind": 2,
    "attempt": 3,
}
"""Beside the routine: what an operator, the bucket and the brokers do."""
OF_A_PLAN = frozenset({Action.OFFLOAD, Action.COPY_DELETION})
"""What an offload plan orders."""
RUNS = frozenset({"offload", "plan_offload", "revert", "inventory", "sweep"})
BESIDES = frozenset({"damage", "blind", "attempt", "leave", "harm"})
"""Those that are no runs of ours."""


def has(seed: int) -> bool:
    """Whether a schedule has tiered storage."""
    return seed % EVERY == AT


def settings_for(settings: Settings, random: Random) -> Settings:
    """Copies in BookKeeper are ours to delete."""
    changed: dict[str, Any] = {
        "object_store": {"buckets": [BUCKET], "pulsar_cluster": CLUSTER, "exclusive": random.random() < 0.8},
        "offload": {
            "bookkeeper_copies": "ours",
            "deletion_lag": LAG / 1000,
            "loaded_topics": random.random() < 0.7,
            "revert_unproven": random.random() < 0.5,
            "block_size": 5 << 20,
        },
    }
    return Settings.model_validate({**settings.model_dump(), **changed})


def prepare(world: World) -> None:
    """Brokers that have an offloader, and read the bucket first."""
    world.tiered = True
    world.admin.configuration[BROKER] = {
        "managedLedgerOffloadDriver": "aws-s3",
        "s3ManagedLedgerOffloadBucket": BUCKET,
        "managedLedgerOffloadAutoTriggerSizeThresholdBytes": "0",
        "managedLedgerOffloadDeletionLagMs": "-1",
        "topicLevelPoliciesEnabled": "false",
        "defaultRetentionTimeInMinutes": "-1",
        "defaultRetentionSizeInMB": "-1",
        "replicatorPrefix": "pulsar.repl",
    }


class Tiering:
    """What an operator does with tiered storage. Its methods return what to print."""

    def __init__(self, operator: Operator) -> None:
        self.operator = operator
        self.laws = operator.laws.tiered
        self.laws.lag_ms = LAG
        self.turn = 0

    @property
    def world(self) -> World:
        """The cluster."""
        return self.operator.world

    def next(self) -> str:
        """What its routine does now."""
        rounds = (*ROUTINE, *ROUTINE, *SWEEPING)
        self.turn += 1
        return rounds[(self.turn - 1) % len(rounds)]

    # ------------------------------------------------------------------------------------------------------- its runs

    def plan_offload(self) -> str:
        """Plan by the newest scan; writes nothing."""
        operator, world = self.operator, self.world
        if not operator.lake.epochs():
            return "no scan yet"
        world.trace = None
        before = world.zookeeper.zxid
        everything = operator.random.random() < 0.8
        plan, rows = offload_planning.make_offload_plan(
            operator.cluster, operator.lake.epochs()[-1], everything=everything
        )
        self._wrote_nothing("a plan of offloads", before)
        return f"{plan.plan_id}: {rows.num_rows} ledgers, gaps {in_words(plan.gaps)}, warnings {plan.warnings}"

    def offload(self) -> str:
        """Apply the newest plan, or some of it."""
        operator = self.operator
        if not operator.lake.offload_plans_kept:
            return "no plan of offloads yet"
        plan, _ = list(operator.lake.offload_plans_kept.values())[-1]
        order = offload_run.OffloadOrder(plan.plan_id, plan.digest, operator.random.choice([0, 0, 0, 2]))
        run_id = operator._run_id("offload")
        shared_random.seed(operator.random.getrandbits(32))
        with operator._tracing(Trace(run_id, kind=OFFLOAD)):
            done = offload_run.offload_now(operator.cluster, run_id, order, lambda line: None)
        mine = [row for row in self.world.journal.rows if row.run_id == run_id and row.action in OF_A_PLAN]
        if nameless := [row for row in mine if row.plan_id != plan.plan_id]:
            raise Violation(f"rows of an offload run do not name its plan: {nameless}")
        return "; ".join(f"{one.ledger_id} {one.outcome}: {one.reason}" for one in done)

    def revert(self, *, even_if_deleted: bool = False) -> str:
        """Let a topic read some of its ledgers from BookKeeper again; ``even_if_deleted``: those, too."""
        operator, world = self.operator, self.world
        found = [t for t in world.model.topics.values() if any(c.complete for c in t.offloaded.values()) and not t.away]
        if not found:
            return "nothing to revert"
        gone = [t for t in found if any(c.bookkeeper_deleted and world.exists(i) for i, c in t.offloaded.items())]
        topic = operator.random.choice(sorted(gone if even_if_deleted and gone else found, key=lambda t: str(t.name)))
        ledgers = sorted(i for i, c in topic.offloaded.items() if c.complete)
        some = operator.random.sample(ledgers, operator.random.randint(1, len(ledgers)))
        run_id = operator._run_id("take-back")
        with operator._tracing(Trace(run_id, kind=OFFLOAD)):
            done = offload_run.revert_offloads(operator.cluster, run_id, topic.name, some, dry_run=False)
        return "; ".join(f"{one.ledger_id} {one.outcome}: {one.reason}" for one in done)

    def inventory(self) -> str:
        """List the bucket and plan what nothing needs in it; writes nothing."""
        operator, world = self.operator, self.world
        if not operator.lake.epochs():
            return "no scan yet"
        world.trace = None
        before, listed = world.zookeeper.zxid, set(world.buckets.objects[BUCKET])
        plan, rows = bucket_runs.take_inventory(operator.cluster, operator.lake.epochs()[-1])
        self._wrote_nothing("an inventory", before)
        fired = world.interceptor.fired
        if any("503" in one and "objects.list" in one for one in fired):
            raise Violation(f"an inventory says that it is whole, and a listing failed: {fired}")
        if fired or world.objects.stale is not None:
            return f"{plan.plan_id}: {rows.num_rows} to go, gaps {in_words(plan.gaps)}"
        if listed != set(world.buckets.objects[BUCKET]):
            raise Violation("I6: an inventory changed the bucket")
        needed = world.reachable()
        for row in rows.to_pylist():
            if row["action"] == SweepAction.DELETE and UUID(row["uuid"]) in needed:
                raise Violation(f"I3: an inventory plans {row}: {needed[UUID(row['uuid'])]}")
        table = operator.lake.table(plan.epoch_id, bucket_runs.TABLE)
        self._is_whole(listed, table.to_pylist())
        return f"{plan.plan_id}: {rows.num_rows} to go of {table.num_rows}, gaps {in_words(plan.gaps)}"

    def _is_whole(self, listed: set[str], rows: list[dict[str, Any]]) -> None:
        """Every object is in the inventory, and what it calls broken is."""
        told = {row["uuid"] for row in rows} | {row["key"] for row in rows}
        for key in sorted(listed):
            if key not in told and key[:36] not in told:
                raise Violation(f"an inventory leaves {key} out")
        for row in rows:
            if (
                row["kind"] == ObjectKind.BROKEN
                and self._is_its_own(row)
                and self.world.whole(UUID(row["uuid"]), row["ledger_id"])
            ):
                raise Violation(f"an inventory calls a copy broken that is whole: {row}")

    def _is_its_own(self, row: dict[str, Any]) -> bool:
        """Whether the topic that reads a copy has the name that the copy says; a topic may be renamed."""
        uuid = UUID(row["uuid"])
        return any(
            uuid in {context.uuid for context in topic.offloaded.values()}
            for name, topic in self.world.model.topics.items()
            if name == self.world.attempts[uuid][0]
        )

    def sweep(self) -> str:
        """Apply the newest plan of an inventory."""
        operator = self.operator
        if not operator.lake.object_plans_kept:
            return "no plan of objects yet"
        plan, _ = list(operator.lake.object_plans_kept.values())[-1]
        run_id = operator._run_id("sweep")
        with operator._tracing(Trace(run_id, kind=SWEEP)):
            done = bucket_runs.sweep(operator.cluster, run_id, Order(plan.plan_id, plan.digest), lambda line: None)
        self.laws.counts["uploads dropped"] += sum(one.outcome == "aborted" for one in done.dropped)
        return f"{done.applied}, uploads: {[one.outcome for one in done.dropped]}"

    def _wrote_nothing(self, what: str, zxid: int) -> None:
        if not self.world.interceptor.fired and self.world.zookeeper.zxid != zxid:
            raise Violation(f"I6: {what} wrote to the metadata store")

    # ------------------------------------------------------------------------------------------- what happens besides

    def damage(self) -> str:
        """An object changes, or goes, while BookKeeper still has its ledger."""
        return self.world.damage() or "nothing to damage"

    def harm(self) -> str:
        """Perhaps one of the two, before a deletion run goes by what was proven."""
        how = self.world.random.random()
        return self.damage() if how < 0.35 else self.blind() if how < 0.5 else "nothing happens"

    def blind(self) -> str:
        """The brokers' offloader gets a wrong endpoint, or the right one again."""
        self.world.blind = not self.world.blind
        return f"brokers {'cannot' if self.world.blind else 'can'} read the bucket"

    def attempt(self) -> str:
        """A broker's offloader has an upload under way, which no metadata names yet, or was killed amid it."""
        world = self.world
        ledgers = [(t, i) for t in world.model.topics.values() for i in t.ledgers[:-1] if i not in t.offloaded]
        if not ledgers:
            return "nothing to offload"
        topic, ledger = world.random.choice(sorted(ledgers, key=lambda one: one[1]))
        return f"a broker uploads {world.begin_upload(topic.name, ledger)} of {ledger}"

    def leave(self) -> str:
        """Objects are left behind that nothing names; an upload of ours comes to light whose attempt has ended."""
        world = self.world
        ledgers = [(t.name, i) for t in world.model.topics.values() for i in t.ledgers[:-1] if not t.shadow_of]
        for topic, ledger in world.random.sample(ledgers, min(2, len(ledgers))):
            world.upload(topic, ledger, CLUSTER, index=world.random.random() < 0.8)
        opened = world.opened()
        ended = sorted(uuid for uuid in self.laws.begun if uuid not in opened)
        if ended:
            uuid = world.random.choice(ended)
            world.begin_upload(*world.attempts[uuid], uuid)
        return f"objects of {[i for _, i in ledgers]} are left behind, and an upload of {ended[:1]}"


# -------------------------------------------------------------------------------------------------------------- faults

CALLS = (
    ("objects.",),
    ("objects.put", "objects.complete_upload"),
    ("objects.upload_part", "objects.begin_upload"),
    ("objects.get", "objects.head"),
    ("objects.list",),
    ("objects.abort_upload",),
    ("admin.read_entry", "admin.unload"),
    ("store.write",),
    ("journal.record",),
)


def injections(
    random: Random, world: World, tiering: Tiering, interceptor: Interceptor, count: Callable[[str], None]
) -> list[Injection]:
    """One or two faults of a run on tiered storage: throttled, denied, lost, stale; a deletion run amid it."""
    return [_injection(random, world, tiering, interceptor, count) for _ in range(random.choice([1, 1, 2]))]


def _injection(
    random: Random, world: World, tiering: Tiering, interceptor: Interceptor, count: Callable[[str], None]
) -> Injection:
    kind = random.choice(["throttled"] * 5 + ["killed"] * 2 + ["stale", "deletes", "deletes", "blind", "waits"])
    calls, nth, when = random.choice(CALLS), random.randrange(6), random.choice(["before", "after"])
    errors = [Unavailable("503 SlowDown"), Unavailable("503 SlowDown"), StoreError("500"), AccessDenied("403")]
    error = random.choice(errors[:2] if calls == ("objects.list",) else errors)

    def throttled(call: str) -> None:
        count("F16" if call.startswith("objects.") else "F3")
        interceptor.fired.append(f"{error} at {call}")
        raise error

    def stale(call: str) -> None:
        count("F16")
        world.objects.stale = dict(world.buckets.objects[BUCKET])

    def deletes(call: str) -> None:
        count("F10")
        trace = world.trace
        try:
            done = tiering.operator.delete()
        except LifecycleError as refused:
            done = f"{type(refused).__name__}: {refused}"
        finally:
            world.trace = trace
        interceptor.fired.append(f"a deletion run beside it: {done}")

    def blind(call: str) -> None:
        count("F12")
        world.blind = True

    def waits(call: str) -> None:
        world.wait_ms(random.choice([1, 60, 600]) * 1000)

    if kind == "throttled":
        return Injection("throttled", calls, nth, when, throttled, random.choice([1, 2, 5]))
    if kind == "killed":  # with what it has committed not yet said to be
        die = crash(interceptor)

        def killed(call: str) -> None:
            count("F1")
            die(call)

        return Injection("killed", ("store.delete", "journal.record", "objects."), nth, when, killed)
    if kind == "stale":
        return Injection("stale", ("store.",), nth, when, stale)
    if kind == "deletes":
        return Injection("deletes", ("store.write", "journal.record", "objects.", "admin."), nth, when, deletes)
    if kind == "blind":
        return Injection("blind", ("admin.", "objects."), nth, when, blind)
    return Injection("waits", ("store.", "objects."), nth, when, waits)


def reverts_amid(tiering: Tiering, random: Random, count: Callable[[str], None]) -> Injection:
    """While a deletion run is at work, an operator takes an offload back."""

    def act(call: str) -> None:
        count("F10")
        world = tiering.world
        trace, world.trace = world.trace, None
        try:
            done = tiering.revert(even_if_deleted=True)
        except LifecycleError as refused:
            done = f"{type(refused).__name__}: {refused}"
        finally:
            world.trace = trace
        world.interceptor.fired.append(f"meanwhile {done}")

    calls = random.choice([("store.delete_many",), ("journal.archive",), ("store.", "objects.")])
    return Injection("revert", calls, random.randrange(1 if len(calls) == 1 else 12), "before", act)
