"""What rings by itself: the hourly scan, doorbells at the deletion queue, the alarm of the dead letters.

All ship stopped, and no doorbell rings while the cluster is paused. A doorbell looks and takes nothing: the run it
starts consumes the durable subscription.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets import dead_letters
from assets.dead_letters import PartialReader, open_reader
from assets.names import CLUSTER, READER, key
from orchestration.automatic.at_work import ACTIVE, BY_ITSELF, DELETION, at_work, end_dead, lease_of, may_be_dead
from pulsar_lifecycle.automation_settings import Schedules
from pulsar_lifecycle.deletion.redrive import letters_of
from pulsar_lifecycle.deletion_queue.queue_topics import DELETION_TOPIC, DLQ_TOPIC, RETRY_TOPIC, subscribe_everywhere
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats.retry_letter import due_at
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import Node, QueueReader, Received
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.control import LEASE, check_not_paused, holder_of
from pulsar_lifecycle.runs.plan_checks import SWITCHED_OFF
from resources.lifecycle import LifecycleResource

RING_EVERY_LOOKS = 5
"""A failed run key never rings again, so keys change with time: after so many looks."""

RING_AGAIN_LOOKS = 20
"""While as many messages wait as at the last ring: they cannot be decided yet, and every ring scans."""

TURN_LOOKS = 3
"""So long after a deletion run ended no doorbell rings: what waits for the lease has its turn."""

PAGE = 500
"""Messages of one partition that one tick looks at."""


def looking_schedules(
    cluster: str, crons: Schedules, scan: Any, inventory: Any, reconcile: Any, watch: Any, delayed_index: Any
) -> list[dg.ScheduleDefinition]:
    """What looks at times of its own; none of them changes the cluster."""
    return [
        _looking(cluster, name, job, cron, text)
        for name, job, cron, text in (
            ("hourly_scan", scan, crons.scan, "Scans, judges and plans what nothing refers to. Changes nothing."),
            ("nightly_inventory", inventory, crons.inventory, "Lists the buckets. Changes nothing."),
            ("nightly_reconcile", reconcile, crons.reconcile, "Derives all intents again, as a dry run."),
            ("queue_watch", watch, crons.queue, "Looks at the deletion queue. Takes nothing."),
            ("nightly_delayed_index", delayed_index, crons.delayed_index, "Checks delayed indexes. Changes nothing."),
        )
    ]


def _looking(cluster: str, name: str, job: Any, cron: str, text: str) -> dg.ScheduleDefinition:
    """A schedule that leaves a time out while the run that it started before waits or works: runs would pile up."""
    active = dg.RunsFilter(job_name=job.name, statuses=list(ACTIVE), tags={READER: cluster})

    @dg.schedule(
        name=name,
        job=job,
        cron_schedule=cron,
        default_status=dg.DefaultScheduleStatus.STOPPED,
        description=f"{text} Leaves a time out while the run before it is not over.",
    )
    def ring(context: dg.ScheduleEvaluationContext) -> dg.RunRequest | dg.SkipReason:
        before = context.instance.get_runs(active, limit=1)
        if before:
            return dg.SkipReason(f"run {before[0].run_id}, which it started before, is not over")
        return dg.RunRequest(tags={READER: cluster})

    return ring


def queue_sensors(job: UnresolvedAssetJobDefinition, cluster: str, look_every: float) -> list[dg.SensorDefinition]:
    """One doorbell at the deletion topic, one at the retry topic; they look every so many seconds."""
    return [
        _doorbell("deletion_queue", DELETION_TOPIC, job, cluster, "an intent of the deletion topic", int(look_every)),
        _doorbell("deletion_retry", RETRY_TOPIC, job, cluster, "a retry", int(look_every)),
    ]


def _doorbell(
    name: str, topic: Topic, job: UnresolvedAssetJobDefinition, cluster: str, what: str, look_every: int
) -> dg.SensorDefinition:
    """Rings while a message of a topic is due and no run is at the queue.

    Dagster's storage does not notice that a run died with its host, and such a run holds its pools for ever: one that
    has said nothing for very long is marked as failed before it rings, if nobody has the lease.
    """
    mine = dg.RunsFilter(job_name=job.name, statuses=list(ACTIVE), tags={CLUSTER: cluster})

    @dg.sensor(
        name=name,
        job=job,
        minimum_interval_seconds=look_every,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Starts `{job.name}` when {what} is due: published, and its delay has passed. Takes nothing.",
    )
    def ring(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SensorResult | dg.SkipReason:
        where = lifecycle.without_spark()
        now = where.clock.now_ms()
        active = context.instance.get_runs(mine)
        if not all(may_be_dead(context.instance, run, now) for run in active):
            return dg.SkipReason("a run is at it")
        for other in at_work(context.instance, cluster, now):
            if lease_of(other) == DELETION and BY_ITSELF in other.tags:  # one by hand may wait for a deletion run
                return dg.SkipReason(f"run {other.run_id} of {other.job_name} has its turn")
        if _ended_just_now(context.instance, job.name, cluster, now, TURN_LOOKS * look_every):
            return dg.SkipReason("a deletion run has just ended: what else waits has its turn")
        if not where.settings.deletion.topicTwoPhaseDeletionEnabled:
            return dg.SkipReason(SWITCHED_OFF)
        watch = Watch.parse(context.cursor)
        try:
            with open_reader(where) as (_, reader):
                total, due, unread = watch.look(reader, topic, now)
        except LifecycleError as error:
            return dg.SkipReason(f"the queue could not be read: {error}")
        if not due:
            reason = f"none of {total} messages is due" if total else "the queue is empty"
            reason = f"nothing that could be read is due, and not all could: {unread}" if unread else reason
            return dg.SensorResult(skip_reason=reason, cursor=watch.dump())
        if stopped := held_back(where, now):
            return dg.SensorResult(skip_reason=stopped, cursor=watch.dump())
        for run in context.instance.get_runs(mine) if active else ():  # one may have ended meanwhile
            if not may_be_dead(context.instance, run, now):
                return dg.SkipReason("a run is at it")
            context.log.warning(end_dead(context.instance, run))
        every = look_every * (RING_AGAIN_LOOKS if watch.rung == total else RING_EVERY_LOOKS)
        watch.rung = total
        bucket = f"{every}-{now // (every * 1000)}"
        return dg.SensorResult(
            [dg.RunRequest(run_key=f"{name}-{bucket}", tags={"lifecycle/waiting": str(total)})], cursor=watch.dump()
        )

    return ring


def _ended_just_now(instance: dg.DagsterInstance, job: str, cluster: str, now: int, seconds: float) -> bool:
    """Whether the newest run of a job ended within so many seconds before ``now`` (ms)."""
    newest = instance.get_run_records(dg.RunsFilter(job_name=job, tags={CLUSTER: cluster}), limit=1)
    ended = newest[0].end_time if newest else None
    return ended is not None and 0 <= now / 1000 - ended < seconds


def held_back(where: Cluster, now: int) -> str | None:
    """Why a run would be refused once it had scanned, as far as can be told before the scan."""
    try:
        with where.ports(read_only=True) as ports:
            check_not_paused(ports.store)
            holder = ports.store.read([holder_of(LEASE)])[0]
        if holder is not None:
            who = holder.data.decode(errors="replace") if isinstance(holder, Node) else f"who ({holder.reason})"
            return f"another run is at it: {who}"
        return _unconfirmed(where, now)
    except LifecycleError as error:
        return str(error)


def _unconfirmed(where: Cluster, now: int) -> str | None:
    """Why no scan made now could be confirmed by an earlier one. Without any, a run is to make the first."""
    settings = where.settings
    declared = settings.bookkeeper.shared_with
    roots = None if declared is None else [root.name for root in declared]
    epochs = [e for e in where.lake.epochs(cluster=settings.cluster) if e.covers(roots)]
    if not epochs:
        return None
    wait = settings.orphans.confirm_after - (now - epochs[0].started_at) / 1000
    first = f"the first covered scan, {epochs[0].epoch_id}, is too young to confirm another"
    return f"{first}: nothing can be deleted for {wait:.0f} s" if wait > 0 else None


@dataclass
class Watch:
    """What a doorbell knows between ticks: how far it has looked in each partition, and what is due next there.

    ``parts``: partition -> (position looked up to, when (ms) the first message up to there is due). It only saves
    reading; without it everything that waits is looked at again. ``rung``: how many messages waited at the last ring.
    """

    parts: dict[str, tuple[Position, int | None]] = field(default_factory=dict[str, tuple[Position, int | None]])
    rung: int = -1

    @classmethod
    def parse(cls, cursor: str | None) -> "Watch":
        """A cursor that we did not write, or not in this form, is none."""
        try:
            stored = json.loads(cursor or "{}")
            parts = {name: (Position(*where), due) for name, (where, due) in stored["parts"].items()}
            return cls(parts, int(stored["rung"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def dump(self) -> str:
        """As the sensor's cursor: one entry a partition."""
        parts = {name: [[p.ledger_id, p.entry_id], due] for name, (p, due) in self.parts.items()}
        return json.dumps({"parts": parts, "rung": self.rung})

    def forget_all_but(self, parts: list[str]) -> None:
        """Drop partitions that are gone or have nothing left."""
        self.parts = {name: known for name, known in self.parts.items() if name in parts}

    def look(self, reader: QueueReader, topic: Topic, now: int) -> tuple[int, bool, str]:
        """How many messages wait, whether one is due, and why a partition could not be read; empty if all could."""
        waiting: dict[str, int] = {}
        due, unread = False, ""
        for part in reader.partitions(topic):
            try:
                if count := reader.backlog(part):
                    waiting[str(part)] = count
                    due |= self.is_due(reader, part, now)
            except LifecycleError as error:
                unread = unread or str(error)
        self.forget_all_but(list(waiting))
        return sum(waiting.values()), due, unread

    def is_due(self, reader: QueueReader, part: Topic, now: int) -> bool:
        """Whether a message of this partition is due; looks at one page, behind what it knows already."""
        upto, due = self.parts.pop(str(part), (None, None))
        if due is not None and due <= now:  # it may be done meanwhile: look again, from the first that waits
            upto, due = None, None
        page = reader.waiting(part, upto, PAGE)
        first = min([due_at(m.properties, m.publish_time, now) for m in page.messages], default=None)
        if first is not None and first <= now:
            return True
        known = [at for at in (due, first) if at is not None]
        self.parts[str(part)] = (page.upto, min(known, default=None))
        return False


def dead_letter_sensor(cluster: str) -> dg.SensorDefinition:
    """Reports every dead letter once, and keeps the dead-letter topic's subscription alive."""
    asset_key = key(cluster, dead_letters.NAME)

    @dg.sensor(
        name="dead_letters",
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Reports new dead letters as a materialization of `dead_letters` and its check. Gives the queue's "
        "topics the durable subscription back where it is missing. Sends and takes nothing.",
    )
    def alarm(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SensorResult | dg.SkipReason:
        where = lifecycle.without_spark()
        before = Reported.parse(context.cursor)
        try:
            with open_reader(where) as (admin, reader):
                mended = subscribe_everywhere(admin)
                new, upto = _new_letters(PartialReader(reader), before.upto)
                found, unread = dead_letters.look_at(reader)
            cursor = Reported(upto, found.count).dump()
            if not new and not mended and found.count == before.count:
                news = f"not all could be read: {unread}" if unread else "none of them new"
                return dg.SensorResult(skip_reason=f"{found.count} dead letters, {news}", cursor=cursor)
            reasons = dead_letters.reasons_of(found, where)
        except LifecycleError as error:
            return dg.SkipReason(f"the dead letters could not be read: {error}")
        picture = dead_letters.picture_of(found, unread, reasons, where.clock.now_ms())
        verdict, fresh = picture.verdict(mended), letters_of(new, reasons)
        shown: Mapping[str, Any] = {
            **picture.shown(),
            "new": len(fresh),
            "new dead letters": dead_letters.sample(fresh),
            "subscriptions made again": ", ".join(map(str, mended)) or "none",
        }
        return dg.SensorResult(
            asset_events=[
                dg.AssetMaterialization(asset_key, metadata=shown, description=verdict.text),
                dg.AssetCheckEvaluation(
                    asset_key=asset_key,
                    check_name=dead_letters.CHECK,
                    passed=verdict.passed,
                    severity=verdict.severity,
                    description=verdict.text,
                ),
            ],
            cursor=cursor,
        )

    return alarm


@dataclass
class Reported:
    """What the alarm knows between ticks: up to where it reported each partition, and how many there were.

    Without it, what still waits is reported once more.
    """

    upto: dict[str, Position] = field(default_factory=dict[str, Position])
    count: int = 0

    @classmethod
    def parse(cls, cursor: str | None) -> "Reported":
        """A cursor that we did not write, or not in this form, is none."""
        try:
            stored = json.loads(cursor or "{}")
            return cls({name: Position(*where) for name, where in stored["upto"].items()}, int(stored["count"]))
        except (ValueError, KeyError, TypeError, AttributeError):
            return cls()

    def dump(self) -> str:
        """As the sensor's cursor: one entry a partition."""
        upto = {name: [position.ledger_id, position.entry_id] for name, position in self.upto.items()}
        return json.dumps({"upto": upto, "count": self.count})


def _new_letters(reader: QueueReader, seen: Mapping[str, Position]) -> tuple[list[Received], dict[str, Position]]:
    """One page of every partition, behind what was reported; what is left over is the next tick's."""
    new: list[Received] = []
    upto: dict[str, Position] = {}
    for part in reader.partitions(DLQ_TOPIC):
        page = reader.waiting(part, seen.get(str(part)), PAGE)
        new += page.messages
        upto[str(part)] = page.upto
    return new, upto
