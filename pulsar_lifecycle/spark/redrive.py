"""A redrive of dead letters as a whole: opening the ports, taking the lease, working. It needs no Spark.

Not here: what is sent again, and in which order of steps (``engine/redrive.py``).
"""

from __future__ import annotations

from collections.abc import Callable

from pulsar_lifecycle.engine import control, history
from pulsar_lifecycle.engine.redrive import Redriven, Wanted, redrive
from pulsar_lifecycle.errors import Refused
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.io.lake.journal import dead_letter_reasons
from pulsar_lifecycle.io.prometheus import published
from pulsar_lifecycle.io.zookeeper.store import cluster_fingerprint
from pulsar_lifecycle.plan.caps import lowered
from pulsar_lifecycle.plan.deletion import SWITCHED_OFF
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.spark.runs import held_lease

SAMPLE = 50
"""Letters sent again that the result shows."""


AT_ONCE = 1_000
"""Letters that a launch sends again which does not say how many."""


def at_most(settings: Settings, asked: int | None) -> int:
    """How many letters one launch sends again. Raises UsageError for more than ``apply.max_ledgers``."""
    ceiling = settings.apply.max_ledgers
    return min(AT_ONCE, ceiling) if asked is None else lowered("max_messages", asked, "apply.max_ledgers", ceiling)


def redrive_now(
    settings: Settings, run_id: str, wanted: Wanted, max_messages: int | None, progress: Callable[[str], None]
) -> Redriven:
    """Send what is wanted again, under the lease; :func:`at_most`. Raises Refused, Paused, LeaseLost, UsageError."""
    most = at_most(settings, max_messages)
    if not settings.deletion.topicTwoPhaseDeletionEnabled:
        raise Refused(SWITCHED_OFF)
    with published(settings), Connections(settings) as ports:
        store = ports.store
        control.check_not_paused(store)
        root = settings.bookkeeper.ledgers_root
        scans = ports.lake.epochs(cluster=settings.cluster)
        history.check_history(store, scans, cluster_fingerprint(store, root), root)
        with held_lease(settings, store, f"redrive {run_id}") as lease:
            return redrive(
                run_id,
                settings.cluster,
                wanted,
                most,
                dead_letter_reasons(settings.lake.path, settings.cluster, 0),
                store=store,
                lease=lease,
                letters=ports.dead_letters,
                journal=ports.journal,
                clock=ports.clock,
                wait_ms=int(settings.deletion.idle_timeout * 1000),
                progress=progress,
                sample=SAMPLE,
            )
