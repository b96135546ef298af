"""A redrive of dead letters as a whole: opening the ports, taking the lease, working. It needs no Spark.

Not here: what is sent again, and in which order of steps (``engine/redrive.py``).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing

from pulsar_lifecycle.engine import control, history
from pulsar_lifecycle.engine.redrive import Redriven, Wanted, redrive
from pulsar_lifecycle.errors import Refused
from pulsar_lifecycle.io.admin import HttpBrokerAdmin
from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.io.journal import FileJournal, dead_letter_reasons
from pulsar_lifecycle.io.lake import Lake
from pulsar_lifecycle.io.prometheus import published
from pulsar_lifecycle.io.queue import PulsarDeadLetterQueue
from pulsar_lifecycle.io.zk import KazooStore, cluster_fingerprint
from pulsar_lifecycle.plan.deletion import SWITCHED_OFF
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.spark.runs import held_lease

SAMPLE = 50
"""Letters sent again that the result shows."""


def redrive_now(
    settings: Settings, run_id: str, wanted: Wanted, max_messages: int, progress: Callable[[str], None]
) -> Redriven:
    """Send what is wanted again, under the lease. Raises Refused, Paused, LeaseLost."""
    if not settings.deletion.topicTwoPhaseDeletionEnabled:
        raise Refused(SWITCHED_OFF)
    with (
        published(settings),
        KazooStore(settings.zookeeper) as store,
        closing(HttpBrokerAdmin(settings.pulsar)) as admin,
        closing(
            PulsarDeadLetterQueue(settings.pulsar, admin, settings.deletion.twoPhaseDeletionLedgerDeletionParallelism)
        ) as letters,
    ):
        control.check_not_paused(store)
        root = settings.bookkeeper.ledgers_root
        scans = Lake(settings.lake.path).epochs(cluster=settings.cluster)
        history.check_history(store, scans, cluster_fingerprint(store, root), root)
        with held_lease(settings, store, f"redrive {run_id}") as lease:
            return redrive(
                run_id,
                settings.cluster,
                wanted,
                max_messages,
                dead_letter_reasons(settings.lake.path, settings.cluster, 0),
                store=store,
                lease=lease,
                letters=letters,
                journal=FileJournal(settings.lake.path),
                clock=SystemClock(),
                wait_ms=int(settings.deletion.idle_timeout * 1000),
                progress=progress,
                sample=SAMPLE,
            )
