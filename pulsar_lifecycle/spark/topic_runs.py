"""What every run that writes topics' z-nodes is composed of: its ports, the owners' rules, what its brokers say.

Belongs here: from settings and a scan to ``TopicRun`` and ``Tools``. Not here: leases, plans and what is done
(``phase_one.py``, ``offload.py``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from pulsar_lifecycle.engine import control, inventory, standing
from pulsar_lifecycle.engine.decision import Tools
from pulsar_lifecycle.engine.throttle import RateBudget
from pulsar_lifecycle.engine.topic_write import TopicRun
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.plan.coverage import Epoch
from pulsar_lifecycle.plan.orphans import Context
from pulsar_lifecycle.spark import runs
from pulsar_lifecycle.spark.scan import Cluster


def owners_rules(cluster: Cluster, epoch: Epoch, now: int) -> Context:
    """The owners' rules, as the scans found them and the settings say at ``now`` (ms)."""
    settings = cluster.settings
    return replace(
        runs.context_of(cluster, epoch),
        holds=settings.orphans.holds(now),
        gone_namespaces=frozenset(),
        system_topics=settings.trimming.system_topics,
        offload_buckets=frozenset(settings.object_store.buckets if settings.object_store else ()),
    )


def topic_run(
    cluster: Cluster, run_id: str, tools: Tools, context: Context, now: int, loaded_topics: bool | tuple[str, ...]
) -> TopicRun:
    """``now`` (ms) must be from before the brokers are asked, which is done here."""
    settings = cluster.settings
    return TopicRun(
        run_id=run_id,
        cluster=settings.cluster,
        ledgers_root=settings.bookkeeper.ledgers_root,
        now=now,
        brokers=inventory.hear(tools.store, tools.admin),
        context=context,
        deliver_after_ms=runs.deliver_after_ms_of(settings, control.is_sandbox(tools.store)),
        loaded_topics=loaded_topics if isinstance(loaded_topics, bool) else frozenset(loaded_topics),
        shadows=standing.Shadows(lambda: runs.shadow_sources(cluster, tools.store), tools.clock),
    )


@contextmanager
def topic_tools(cluster: Cluster, *, read_only: bool = False, buckets: bool = False) -> Iterator[Tools]:
    """The ports of one run on the driver; with ``buckets`` the object store, too."""
    settings, clock = cluster.settings, cluster.clock
    pace = RateBudget(settings.offload.read_bytes_per_second, clock).take
    with Connections(settings, read_only=read_only, pace=pace) as ports:
        objects = ports.objects if buckets else None
        yield Tools(ports.store, ports.reader, ports.admin, ports.queue, ports.journal, ports.clock, objects)
