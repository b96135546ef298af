"""What rings by itself: the hourly scan, doorbells at the deletion queue, the alarm of the dead letters.

All ship stopped, and doorbells are silent while the cluster is paused. A doorbell looks and takes nothing: the run it
starts consumes the durable subscription.
"""

import json
from collections.abc import Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from assets import dead_letters
from assets.dead_letters import open_reader
from assets.names import key
from pulsar_lifecycle.engine.control import check_not_paused
from pulsar_lifecycle.engine.redrive import letters_of
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats.retry_letter import due_at
from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.io.queue import DELETION_TOPIC, DLQ_TOPIC, RETRY_TOPIC, subscribe_everywhere
from pulsar_lifecycle.io.zk import KazooStore
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.plan.deletion import SWITCHED_OFF
from pulsar_lifecycle.ports import MetadataStore, QueueReader, Received
from pulsar_lifecycle.settings import Settings
from resources.lifecycle import LifecycleResource

RING_EVERY_SECONDS = 300
"""A failed run key never rings again, so keys change with time."""

RING_AGAIN_SECONDS = 1200
"""While as many messages wait as at the last ring: they cannot be decided yet, and every ring scans."""

PAGE = 500
"""Messages of one partition that one tick looks at."""

_ACTIVE = [
    dg.DagsterRunStatus.QUEUED,
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
]


def scan_schedule(job: UnresolvedAssetJobDefinition) -> dg.ScheduleDefinition:
    """Every hour."""
    return dg.ScheduleDefinition(
        name="hourly_scan", job=job, cron_schedule="7 * * * *", default_status=dg.DefaultScheduleStatus.STOPPED
    )


def queue_sensors(job: UnresolvedAssetJobDefinition) -> list[dg.SensorDefinition]:
    """One doorbell at the deletion topic, one at the retry topic."""
    return [
        _doorbell("deletion_queue", DELETION_TOPIC, job, "an intent of the deletion topic"),
        _doorbell("deletion_retry", RETRY_TOPIC, job, "a retry"),
    ]


def _doorbell(name: str, topic: Topic, job: UnresolvedAssetJobDefinition, what: str) -> dg.SensorDefinition:
    """Rings while a message of a topic is due and no run is at the queue."""

    @dg.sensor(
        name=name,
        job=job,
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description=f"Starts `{job.name}` when {what} is due: published, and its delay has passed. Takes nothing.",
    )
    def ring(context: dg.SensorEvaluationContext, lifecycle: LifecycleResource) -> dg.SensorResult | dg.SkipReason:
        if context.instance.get_runs(dg.RunsFilter(job_name=job.name, statuses=_ACTIVE), limit=1):
            return dg.SkipReason("a run is at it")
        if not lifecycle.settings().deletion.topicTwoPhaseDeletionEnabled:
            return dg.SkipReason(SWITCHED_OFF)
        now = SystemClock().now_ms()
        watch = Watch.parse(context.cursor)
        try:
            with open_reader(lifecycle.settings()) as (_, reader):
                waiting = {part: reader.backlog(part) for part in reader.partitions(topic)}
                watch.forget_all_but([str(part) for part, count in waiting.items() if count])
                due = [part for part, count in waiting.items() if count and watch.is_due(reader, part, now)]
        except LifecycleError as error:
            return dg.SkipReason(f"the queue could not be read: {error}")
        total = sum(waiting.values())
        if not due:
            reason = f"none of {total} messages is due" if total else "the queue is empty"
            return dg.SensorResult(skip_reason=reason, cursor=watch.dump())
        if stopped := held_back(lifecycle.settings()):
            return dg.SensorResult(skip_reason=stopped, cursor=watch.dump())
        every = RING_AGAIN_SECONDS if watch.rung == total else RING_EVERY_SECONDS
        watch.rung = total
        bucket = f"{every}-{now // (every * 1000)}"
        return dg.SensorResult(
            [dg.RunRequest(run_key=f"{name}-{bucket}", tags={"lifecycle/waiting": str(total)})], cursor=watch.dump()
        )

    return ring


def held_back(settings: Settings) -> str:
    """Why a run would be refused before it began; empty if it would not. A run that scans first would scan in vain."""
    try:
        with open_store(settings) as store:
            check_not_paused(store)
    except LifecycleError as error:
        return str(error)
    return ""


def open_store(settings: Settings) -> AbstractContextManager[MetadataStore]:
    """The metadata store, to look."""
    return KazooStore(settings.zookeeper, read_only=True)


@dataclass
class Watch:
    """What a doorbell knows between ticks: how far it has looked in each partition, and what is due next there.

    ``parts``: partition -> (position looked up to, when (ms) the first message up to there is due). It only spares
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

    def is_due(self, reader: QueueReader, part: Topic, now: int) -> bool:
        """Whether a message of this partition is due; looks at one page, behind what it knows already."""
        upto, due = self.parts.pop(str(part), (None, None))
        if due is not None and due <= now:  # it may be done meanwhile: look again, from the first that waits
            upto, due = None, None
        page = reader.waiting(part, upto, PAGE)
        first = min([due_at(m.properties, m.publish_time) for m in page.messages], default=None)
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
        settings = lifecycle.settings()
        before = Reported.parse(context.cursor)
        try:
            with open_reader(settings) as (admin, reader):
                mended = subscribe_everywhere(admin)
                new, upto = _new_letters(reader, before.upto)
                picture = dead_letters.take_picture(reader, settings)
        except LifecycleError as error:
            return dg.SkipReason(f"the dead letters could not be read: {error}")
        count = picture.found.count
        cursor = Reported(upto, count).dump()
        if not new and not mended and count == before.count:
            return dg.SensorResult(skip_reason=f"{count} dead letters, none of them new", cursor=cursor)
        verdict = picture.verdict(mended)
        fresh = letters_of(new, dead_letters.reasons_of(picture.found, settings))
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
