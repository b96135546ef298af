"""What deleting records of some partitions comes to: their low watermarks, what goes, or why nothing does.

Belongs here: what brokers let our role do, the order of steps, the rows of the plan. Not here: the rules
(``cut_rules.py``), acting (``partition_effects.py``). Writes nothing, and loads no topic. Source: KIP-107, "How to
delete data before a given offset".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.delete_records import cut_rules
from pulsar_lifecycle.delete_records.cut_rules import Cut, Refusal
from pulsar_lifecycle.delete_records.leftovers import add_leftovers, copies_stored
from pulsar_lifecycle.delete_records.partition import PartitionView
from pulsar_lifecycle.delete_records.request import (
    END,
    PLAIN,
    Offset,
    Options,
    Timestamp,
    TopicPartition,
    check_request,
)
from pulsar_lifecycle.delete_records.times.offsets import counts_between, out_of_order, read_offsets
from pulsar_lifecycle.delete_records.times.time_offsets import ResolvedOffset
from pulsar_lifecycle.delete_records.topic_view import (
    Clusters,
    Read,
    losing,
    read_partition,
    replication_of,
    unread_policies,
    unreplicated,
)
from pulsar_lifecycle.errors import AccessDenied, LifecycleError, NotFound, StoreError
from pulsar_lifecycle.metastore import load_state
from pulsar_lifecycle.metastore.load_state import BrokerAnswers, Brokers
from pulsar_lifecycle.model import MessagePosition, Namespace, Position
from pulsar_lifecycle.ports import MetadataStore
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.side_by_side import shared
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.topics.topic_run import topic_ports, topic_run
from pulsar_lifecycle.topics.write import TopicRun
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.plans import delete_records_plan
from pulsar_lifecycle.values.plans.delete_records_plan import RECORDS, RecordsError
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary, summary_of

Row = dict[str, Any]
"""A row of ``RECORDS``."""
AT_ONCE = 64
"""Partitions that are read at once."""
EACH = 4
"""Partitions that are worth a thread."""


def plan_delete_records(
    cluster: Cluster,
    offsets: Mapping[TopicPartition, Offset],
    options: Options = PLAIN,
    step: Callable[[str], AbstractContextManager[object]] = nullcontext,
    kind: PlanKind = PlanKind.DELETE_RECORDS,
    unread: Mapping[TopicPartition, Refusal] | None = None,
) -> tuple[PlanSummary, pa.Table]:
    """Resolve and judge every partition as it is now, and store the plan; a row for each, with its error if it has one.

    ``kind`` begins the plan's id. ``unread``: those of ``offsets`` that are known to have an error.

    Raises UsageError for what is no offset, Refused and NotFound where there is no scan to rest on, and what the
    servers raise that all partitions need.
    """
    check_request(offsets)
    with topic_ports(cluster, read_only=True, buckets=True) as ports:
        fingerprint = evidence.check_store(cluster, ports.store)
        epoch = evidence.newest_epoch(cluster, fingerprint)
        context, now = trim_run.context_of(cluster, fingerprint), ports.clock.now_ms()
        with step("brokers"):
            brokers = ask_brokers(ports)
        loaded_topics = cluster.settings.trimming.loaded_topics
        run = topic_run(cluster, "plan", ports, context, now, loaded_topics, brokers.brokers, brokers.configurations)
        planning = _Planning(cluster, run, ports, brokers, options)
        with cluster.ports(read_only=True) as connections:
            policies = connections.configuration
            with step("rights"):
                planning.denied = {**(unread or {}), **denials(ports, policies, brokers, offsets)}
            allowed = [topic for topic in offsets if topic not in planning.denied]
            with step("replication"):
                planning.clusters = replication_of(policies, ports, run.ledgers_root, brokers.cluster, allowed)
        with step("partitions"):
            planned = planning.rows(offsets)
        with step("leftovers"):
            add_leftovers(cluster, epoch, ports, planned, planning.views)
    rows = plans.by_id(pa.Table.from_pylist(planned, RECORDS))
    gaps = evidence.gaps_of(cluster, epoch)
    token = cluster.ids.token(plans.TOKEN_BYTES)
    summary = summary_of(kind, token, epoch, gaps, now, rows, delete_records_plan.digest)
    cluster.lake.store_delete_records_plan(summary, rows)
    return summary, rows


def run_config(summary: PlanSummary) -> dict[str, Any]:
    """The run configuration with which Dagster's job ``delete_records`` applies a plan under the settings' caps."""
    config = {"plan_id": summary.plan_id, "digest": summary.digest, "dry_run": True}
    return {"ops": {"delete_before": {"config": config}}}


class _Planning:
    """One request; what was asked once holds for all partitions that it concerns."""

    def __init__(self, cluster: Cluster, run: TopicRun, ports: Ports, brokers: BrokerAnswers, options: Options) -> None:
        self._cluster, self._run, self._ports, self._brokers, self._options = cluster, run, ports, brokers, options
        self.denied: Mapping[TopicPartition, Refusal] = {}
        """Topics whose records our role may not delete, or whose partitions are not known: nothing of them is read."""
        self.clusters: Mapping[TopicPartition, Clusters] = {}
        """Where each topic is replicated to."""
        self.views: Mapping[TopicPartition, PartitionView] = {}
        """The partitions that could be read, once there are :meth:`rows`."""

    def rows(self, offsets: Mapping[TopicPartition, Offset]) -> list[Row]:
        """The plan's row of each partition."""
        self._ports.store.sync("/")
        looked = self._looked(list(offsets))
        self.views = views = {topic: read.view for topic, read in looked.items() if isinstance(read, Read)}
        needed = {
            topic: view
            for topic, view in views.items()
            if self._is_past(offsets[topic]) or not self._judged(topic, offsets[topic], looked[topic], None)[1]
        }
        resolved = read_offsets(self._cluster, self._ports, needed, offsets, self._options)
        rows: dict[TopicPartition, Row] = {}
        cuts: dict[TopicPartition, tuple[PartitionView, Cut]] = {}
        for topic, offset in offsets.items():
            view, answer = views.get(topic), resolved.get(topic)
            judged = self._judged(topic, offset, looked[topic], answer)
            rows[topic] = row_of(topic, offset, view, *judged, self._options)
            if isinstance(read := looked[topic], Read):
                rows[topic] |= {"czxid": read.node.stat.czxid, "ctime": read.node.stat.ctime}
            if isinstance(answer, ResolvedOffset):
                rows[topic] |= _read(answer)
            if view and judged[0]:
                cuts[topic] = view, judged[0]
        for topic, counts in counts_between(self._cluster, self._ports, cuts).items():
            rows[topic] |= {"messages_between": counts.messages, "bytes_between": counts.bytes}
        return list(rows.values())

    def _is_past(self, offset: Offset) -> bool:
        """Whether it is a time that no message may still be published before."""
        return isinstance(offset, Timestamp) and offset.ms <= self._run.now

    def _looked(self, topics: Sequence[TopicPartition]) -> dict[TopicPartition, Read | Refusal]:
        """What each partition is now, many read at once."""
        ports = shared(self._ports)

        def look(topic: TopicPartition) -> Read | Refusal:
            return self.denied.get(topic) or read_partition(self._run, ports, self._brokers, topic)

        if len(topics) <= EACH:
            return {topic: look(topic) for topic in topics}
        with ThreadPoolExecutor(min(AT_ONCE, -(-len(topics) // EACH)), "partitions") as pool:
            return dict(zip(topics, pool.map(look, topics), strict=True))

    def _lost(self, view: PartitionView) -> Why | None:
        """By a load of the partition."""
        return self._run.lost_at_load(view.topic, view.positions)

    def _judged(
        self, topic: TopicPartition, offset: Offset, read: Read | Refusal, answer: ResolvedOffset | Refusal | None
    ) -> tuple[Cut | None, Refusal | None]:
        """What a partition's offset cuts off it, and why it is not cut."""
        if isinstance(read, Refusal):
            return None, read
        if isinstance(offset, MessagePosition) and (refusal := cut_rules.unmeasured(read.view, offset)):
            return None, refusal
        if isinstance(offset, MessagePosition) and (misplaced := cut_rules.misplaced(read.view, offset)):
            return None, misplaced
        if isinstance(offset, Timestamp) and not self._is_past(offset):
            return None, cut_rules.not_yet(offset, self._run.now)
        if isinstance(answer, Refusal):
            return None, answer
        asked = offset
        if isinstance(offset, Timestamp):
            followed = answer is not None and not (answer.at_end and read.view.unmeasured)
            asked = (answer.position if answer and followed else None) or END
        if isinstance(asked, Timestamp):
            raise TypeError(asked)
        if refusal := cut_rules.unmeasured(read.view, asked):
            return None, refusal
        cut = cut_rules.cut_at(read.view, asked, self._options)
        delivery = (answer.latest_deliver_at or 0) if answer else 0
        refusal = cut_rules.refuse(
            read.view,
            cut,
            self._options,
            self._run.context,
            may_write_loaded=self._run.writes_loaded(topic),
            latest_delivery=delivery if delivery > self._run.now else 0,
        )
        refusal = refusal or unreplicated(read.view, self.clusters) or losing(read.view, cut, self._lost)
        if refusal is None and isinstance(offset, Timestamp) and answer and not self._options.any_order:
            refusal = out_of_order(answer)
        return cut, refusal


def _read(answer: ResolvedOffset) -> Row:
    """The columns that entries were read for."""
    return {
        "messages": answer.goes.messages,
        "published_before": answer.before.at if answer.before else None,
        "published_at": answer.after.at if answer.after else None,
        "at_risk": answer.disorder.at_risk.messages if answer.disorder else 0,
        "unfinished": list(answer.unfinished_chunks),
    }


def ask_brokers(ports: Ports) -> BrokerAnswers:
    """``load_state.ask_brokers``; where our role may not ask them, no answers but the error."""
    try:
        return load_state.ask_brokers(ports.store, ports.admin)
    except AccessDenied as error:
        return BrokerAnswers(Brokers.failed(error), {}, {}, "", frozenset())


def denials(
    ports: Ports, policies: MetadataStore, brokers: BrokerAnswers, topics: Iterable[TopicPartition]
) -> dict[TopicPartition, Refusal]:
    """Topics whose records our role may not delete. The others, too, where it may not ask ``brokers`` what they have.

    A broker knows the tenant and the role alone: one question answers for all topics of a namespace. One whose name
    the broker's HTTP server refuses, as it does a NUL, is alone with that.
    """
    by_namespace: dict[Namespace, Refusal | None] = {}
    found: dict[TopicPartition, Refusal] = {}
    for topic in topics:
        if topic.namespace not in by_namespace:
            refusal = _denial(ports, topic) or _unknown(brokers)
            if refusal and refusal.error is RecordsError.TIMEOUT:  # a broker cannot answer without the policies
                refusal = unread_policies(policies, topic.namespace) or refusal
            if refusal and refusal.error is RecordsError.BROKER_FAILED:
                found[topic] = refusal
                continue
            by_namespace[topic.namespace] = refusal
        if refusal := by_namespace[topic.namespace]:
            found[topic] = refusal
    return found


def _denial(ports: Ports, topic: TopicPartition) -> Refusal | None:
    try:
        ports.admin.check_admin(topic)
    except AccessDenied as error:
        text = f"brokers do not take our role for an admin of tenant {topic.namespace.tenant}: {error}"
        return Refusal(RecordsError.NOT_AUTHORIZED, Why(Code.TENANT_DENIED, text))
    except NotFound:
        return None  # what there is, its z-nodes say
    except LifecycleError as error:
        answered = isinstance(error, StoreError)
        text = f"whether our role may delete its data is not known: {error}"
        return Refusal.plain(RecordsError.BROKER_FAILED if answered else RecordsError.TIMEOUT, text)
    return None


def _unknown(brokers: BrokerAnswers) -> Refusal | None:
    unknown = brokers.brokers.unknown
    if not unknown:
        return None
    text = f"our role may not ask brokers what they have loaded: {unknown.text}"
    return Refusal(RecordsError.NOT_AUTHORIZED, unknown.put(text))


def row_of(
    topic: TopicPartition,
    offset: Offset,
    view: PartitionView | None,
    cut: Cut | None,
    refusal: Refusal | None,
    options: Options,
) -> Row:
    """A row of ``RECORDS``, but for its ``leftovers``; what is not known of the partition is null."""
    sizes = [_size(view, i) for i in cut.ledgers] if view and cut else []
    return {
        "ledger_id": cut.low_watermark.ledger_id if cut else -1,
        "topic": str(topic),
        "namespace": str(topic.namespace),
        "asked": str(offset),
        "low_watermark": str(cut.low_watermark) if cut else None,
        "old_low_watermark": str(view.watermark) if view and view.watermark else None,
        "end": str(view.end) if view and view.end else None,
        "first_readable": str(cut.first_readable) if cut else None,
        "rolls": bool(cut and cut.rolls),
        "exact": options.exact,
        "no_undo": options.no_undo,
        "ledgers": list(cut.ledgers) if cut else [],
        "sizes": sizes,
        "copies": copies_stored(_copies(view, cut)) if view and cut else [],
        "leftovers": [],
        "lost_copies": 0,
        "bytes": 0 if refusal else sum(sizes),
        "messages": None,
        "messages_between": 0 if cut and cut.exact else None,
        "bytes_between": 0 if cut and cut.exact else None,
        "published_before": None,
        "published_at": None,
        "at_risk": None,
        "unfinished": [],
        "moved_cursors": [_moved(view, cut, name, at) for name, at in cut.moved] if view and cut else [],
        "readers": list(view.readers) if view else [],
        "broker": (view.broker or None) if view else None,
        "error": refusal.error.value if refusal else None,
        "code": refusal.why.code.value if refusal else None,
        "reason": refusal.why.text if refusal else None,
    }


def _moved(view: PartitionView, cut: Cut, name: str, at: Position) -> Row:
    entries = cut_rules.entries_behind(view, at, cut.low_watermark)
    return {"cursor": name, "position": str(at), "entries": entries}


def _copies(view: PartitionView, cut: Cut) -> list[Location]:
    """Offloaded copies of what goes, and of the ledger that the low watermark lies in: their objects must be gone, too.

    The latter's only if its broker trims it meanwhile. Nothing goes while an attempt is open.
    """
    named = {*cut.ledgers, cut.low_watermark.ledger_id}
    contexts = {item.ledger_id: item.offload for item in view.info.ledgers if item.ledger_id in named}
    return [
        Location(bucket, offload.uuid, ledger_id)
        for ledger_id, offload in sorted(contexts.items())
        if offload and offload.uuid and (bucket := offload.driver_metadata.get("bucket", ""))
    ]


def _size(view: PartitionView, ledger_id: int) -> int:
    copy = view.copies.get(ledger_id)
    listed = next((item.size for item in view.info.ledgers if item.ledger_id == ledger_id), None)
    written = next((extent.written for extent in view.extents if extent.ledger_id == ledger_id), 0)
    return max(copy.on_disk if copy else 0, listed or 0, written)
