"""What every run that writes topics' z-nodes is composed of: its ports, the owners' rules, what its brokers say.

Belongs here: from settings and a scan to ``TopicRun`` and ``Ports``. Not here: leases, plans and what is done
(``trimming/trim_run.py``, ``tiered/offload_run.py``).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.metastore import load_state
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.metastore.namespaces import policies_of
from pulsar_lifecycle.metastore.topics import partitioned_shadow_sources
from pulsar_lifecycle.model import Namespace
from pulsar_lifecycle.ports import Clock, MetadataStore
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.holds_now import HoldsNow
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.settings import Settings
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.load_losses import LoadLosses, brokers_say, losses_in_force
from pulsar_lifecycle.topics.policies import Layers
from pulsar_lifecycle.topics.system_topics.change_events import read_namespaces
from pulsar_lifecycle.topics.unloads import Unloads
from pulsar_lifecycle.topics.write import STOPPING, TopicRun
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.findings import Context

AGAIN_AFTER = 10_000
"""How long (ms) a namespace whose policies could not be read is left alone."""

MIN_DELIVER_AFTER = 600.0
"""Seconds an intent waits at least; only the sandbox's marker allows less."""


def deliver_after_ms_of(settings: Settings, sandbox: bool) -> int:
    """How long (ms) an intent that is sent now waits before it is delivered."""
    wanted = settings.deletion.deliver_after
    return int((wanted if sandbox else max(wanted, MIN_DELIVER_AFTER)) * 1000)


def unloads_of(settings: Settings, clock: Clock, shares: int = 1) -> Unloads:
    """One run's budget of unloads, or one of so many shares of it: at least one each, unless the run has none."""
    trimming = settings.trimming
    limit = min(trimming.max_unloads, max(1, trimming.max_unloads // shares))
    return Unloads(trimming.unloads_per_second / shares, limit, clock)


def shadow_sources(cluster: Cluster, store: MetadataStore) -> snapshot.ShadowSources:
    """What shadow topics under any declared root read from now."""
    with cluster.ports(read_only=True) as ports:
        found = snapshot.shadow_sources(store, ports.configuration)
        for root in cluster.roots()[1:]:
            other = ports.root(root)
            found |= snapshot.shadow_sources(other, other)
    return found


def partitioned_shadows(cluster: Cluster) -> snapshot.ShadowSources:
    """What partitioned shadow topics of this cluster read from now; what others do, their z-nodes say."""
    with cluster.ports(read_only=True) as ports:
        return snapshot.ShadowSources(partitioned=partitioned_shadow_sources(ports.configuration))


def owners_rules(cluster: Cluster, epoch: Epoch, now: int) -> Context:
    """The owners' rules, as the scans found them and the settings say at ``now`` (ms)."""
    settings = cluster.settings
    return replace(
        evidence.context_of(cluster, epoch),
        holds=settings.orphans.holds(now),
        gone_namespaces=frozenset(),
        system_topics=settings.trimming.system_topics,
        offload_buckets=frozenset(settings.object_store.buckets if settings.object_store else ()),
    )


class LossesNow:
    """What topics lose by a load, by namespace: as is ``known``, or read when it is first asked, once in a run.

    ``configurations``: what brokers are configured with, by id, where that is known; else they are asked. What cannot
    be read is unknown, and tried again ``AGAIN_AFTER`` later: all topics of the namespace may ask. For any number of
    threads.
    """

    def __init__(
        self,
        cluster: Cluster,
        known: Mapping[str, LoadLosses] | None = None,
        configurations: Mapping[str, Mapping[str, str]] | None = None,
    ) -> None:
        self._cluster, self._known, self._lock = cluster, dict(known or {}), threading.Lock()
        self._brokers = brokers_say(configurations) if configurations else None
        self._unknown: dict[str, tuple[int, LoadLosses]] = {}
        """What was found of a namespace that could not be read whole, and when (ms) that was."""

    def __call__(self, namespace: Namespace) -> LoadLosses:
        """Raises Paused, LeaseLost, Overloaded."""
        name = str(namespace)
        with self._lock:
            if name in self._known:
                return self._known[name]
            last = self._unknown.get(name)
            if last and 0 <= self._cluster.clock.now_ms() - last[0] < AGAIN_AFTER:
                return last[1]
            try:
                found = self._read(name)
            except STOPPING:
                raise
            except LifecycleError:
                found = LoadLosses()
            if found.replication.by_namespace.get(name) is not None:  # else its topics' policies are not known
                self._known[name] = found
            else:
                self._unknown[name] = self._cluster.clock.now_ms(), found
            return found

    def _read(self, name: str) -> LoadLosses:
        with self._cluster.ports(read_only=True) as ports:
            if self._brokers is None:
                self._brokers = brokers_say(ports.admin.configurations())
            ports.configuration.sync("/")
            documents = {name: policies_of(ports.configuration, name)}
        topics = read_namespaces(self._cluster, documents, self._brokers)
        return losses_in_force(Layers(self._brokers, documents, topics))


def topic_run(
    cluster: Cluster,
    run_id: str,
    ports: Ports,
    context: Context,
    now: int,
    loaded_topics: bool | tuple[str, ...],
    brokers: Brokers | None = None,
    configurations: Mapping[str, Mapping[str, str]] | None = None,
) -> TopicRun:
    """``now`` (ms) must be from before the brokers are asked, which is done here if they were not.

    ``configurations``: as :class:`LossesNow` takes them.
    """
    settings = cluster.settings
    return TopicRun(
        run_id=run_id,
        cluster=settings.cluster,
        ledgers_root=settings.bookkeeper.ledgers_root,
        now=now,
        brokers=brokers or load_state.fetch_brokers(ports.store, ports.admin),
        context=context,
        deliver_after_ms=deliver_after_ms_of(settings, control.is_sandbox(ports.store)),
        loaded_topics=loaded_topics if isinstance(loaded_topics, bool) else frozenset(loaded_topics),
        shadows=snapshot.Shadows(lambda: shadow_sources(cluster, ports.store), ports.clock),
        holds_now=HoldsNow(cluster.settings_file, ports.clock).names,
        losses=LossesNow(cluster, configurations=configurations),
    )


@contextmanager
def topic_ports(cluster: Cluster, *, read_only: bool = False, buckets: bool = False) -> Iterator[Ports]:
    """The ports of one run on the driver; with ``buckets`` the object store, too, where the settings have one."""
    with cluster.ports(read_only=read_only, pace=cluster.entry_pace()) as ports:
        objects = ports.objects_if_set if buckets else None
        yield Ports(ports.store, ports.reader, ports.admin, ports.queue, ports.journal, ports.clock, objects)
