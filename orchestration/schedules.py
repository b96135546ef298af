"""What rings by itself: the hourly scan, and a doorbell at the deletion queue. What has effects ships stopped."""

from contextlib import closing

import dagster as dg
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.io.admin import HttpBrokerAdmin
from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.io.queue import pending
from resources.lifecycle import LifecycleResource

RING_EVERY_SECONDS = 300
"""A failed run key never rings again, so keys change with time."""

RING_AGAIN_SECONDS = 1200
"""While as many intents wait as at the last ring: they are not due, or cannot be decided yet, and every ring scans."""

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


def queue_sensor(job: UnresolvedAssetJobDefinition) -> dg.SensorDefinition:
    """Rings while intents wait and no run is at them; takes nothing from the queue."""

    @dg.sensor(
        name="deletion_queue",
        job=job,
        minimum_interval_seconds=60,
        default_status=dg.DefaultSensorStatus.STOPPED,
        description="Starts `delete_pending` while intents wait in the deletion queue. Reads only the backlog.",
    )
    def deletion_queue(
        context: dg.SensorEvaluationContext, lifecycle: LifecycleResource
    ) -> dg.SensorResult | dg.SkipReason:
        if context.instance.get_runs(dg.RunsFilter(job_name=job.name, statuses=_ACTIVE), limit=1):
            return dg.SkipReason("a run is at it")
        try:
            with closing(HttpBrokerAdmin(lifecycle.settings().pulsar)) as admin:
                waiting = pending(admin)
        except LifecycleError as error:
            return dg.SkipReason(f"the backlog could not be read: {error}")
        if not waiting:
            return dg.SkipReason("the queue is empty")
        every = RING_AGAIN_SECONDS if context.cursor == str(waiting) else RING_EVERY_SECONDS
        bucket = f"{every}-{SystemClock().now_ms() // (every * 1000)}"
        return dg.SensorResult(
            [dg.RunRequest(run_key=f"deletion-queue-{bucket}", tags={"lifecycle/waiting": str(waiting)})],
            cursor=str(waiting),
        )

    return deletion_queue
