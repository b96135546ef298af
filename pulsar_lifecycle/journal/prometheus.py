"""The metrics as a Prometheus textfile, for node_exporter's textfile collector.

Belongs here: names, labels, writing the file whole or not at all. Not here: what counts for what
(``journal/metrics.py``).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from prometheus_client import CollectorRegistry, write_to_textfile
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from pulsar_lifecycle.deletion_queue.queue_topics import pending
from pulsar_lifecycle.errors import LifecycleError, StoreError
from pulsar_lifecycle.journal import metrics
from pulsar_lifecycle.journal.index_metrics import index_metrics
from pulsar_lifecycle.journal.metrics import METRICS, Metrics
from pulsar_lifecycle.journal.tallies import tallied
from pulsar_lifecycle.runs.cluster import Cluster

PREFIX = "pulsar_lifecycle"

_LOG = logging.getLogger(__name__)


class _Snapshot(Collector):
    def __init__(self, cluster: str, counted: Metrics, in_flight: int | None, more: Sequence[Metric]) -> None:
        self._cluster = cluster
        self._counted = counted.to_json()
        self._in_flight = in_flight
        self._more = more

    def collect(self) -> Iterable[Metric]:
        for metric in METRICS:
            family = CounterMetricFamily(f"{PREFIX}_{metric.name}", metric.help, labels=["cluster"])
            family.add_metric([self._cluster], self._counted[metric.name])
            yield family
        if self._in_flight is not None:
            help_text = "How many estimated in-flight ledger deletions. 0 means that all have been deleted."
            gauge = GaugeMetricFamily(f"{PREFIX}_in_flight_deletions", help_text, labels=["cluster"])
            gauge.add_metric([self._cluster], self._in_flight)
            yield gauge
        yield from self._more


def write_textfile(
    path: str, cluster: str, counted: Metrics, in_flight: int | None, more: Sequence[Metric] = ()
) -> None:
    """Write ``NAME_total{cluster="..."}`` counters and the in-flight gauge, unless that is not known (None).

    ``more``: other metrics, as ``index_metrics`` has them.
    Raises StoreError; what was there before then stays.
    """
    registry = CollectorRegistry()
    registry.register(_Snapshot(cluster, counted, in_flight, more))
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_to_textfile(path, registry)
    except OSError as error:
        raise StoreError(f"metrics.textfile: {path} cannot be written: {error}") from error


@contextmanager
def published(cluster: Cluster) -> Iterator[None]:
    """Around a run with effects: at its end, however it ends, write the textfile that the settings name, if any.

    A failure to write is logged and no more: the run's work is done whether this is or not.
    """
    try:
        yield
    finally:
        if cluster.settings.metrics.textfile:
            _publish(cluster)


def _publish(cluster: Cluster) -> None:
    settings, in_flight = cluster.settings, None
    try:
        with cluster.ports() as ports:
            in_flight = pending(ports.admin)
    except LifecycleError as error:
        _LOG.warning("the intents in flight are not known: %s", error)
    try:
        now, name = cluster.clock.now_ms(), settings.cluster
        tallies = tallied(cluster.journal_reader, now)
        more = index_metrics(cluster.lake, cluster.journal_reader, tallies, name, now)
        write_textfile(settings.metrics.textfile, name, metrics.count(tallies, name), in_flight, more)
    except LifecycleError as error:
        _LOG.warning("the metrics were not written: %s", error)
