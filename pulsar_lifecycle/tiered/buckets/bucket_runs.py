"""The inventory of the buckets, the plan of what nothing needs in them, and applying it.

Belongs here: listing and joining spread over tasks, storing, composing one run. Not here: the rules
(``tiered/buckets/bucket_rules.py``), what one task asks (``tiered/buckets/bucket_listing.py``). Keys are spread by the
first digits of their UUIDs: what metadata names is stored sorted by UUID, so that a task reads its share alone. Making
a plan writes nothing to cluster or bucket.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.copies import attempts, object_pairs
from pulsar_lifecycle.copies.object_pairs import OFFLOAD_REFERENCES
from pulsar_lifecycle.errors import RefusedBy
from pulsar_lifecycle.journal import operator_words
from pulsar_lifecycle.journal.offloads import begun_attempts, failed_proofs, sent_copies
from pulsar_lifecycle.journal.prometheus import published
from pulsar_lifecycle.ports import Connect, JournalReader, Lake
from pulsar_lifecycle.runs import control, plan_checks
from pulsar_lifecycle.runs.apply import Applied, send_intents
from pulsar_lifecycle.runs.caps import Caps, Order, caps_of
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import share_of
from pulsar_lifecycle.scan import evidence
from pulsar_lifecycle.scan.confirmation import in_use_at_any
from pulsar_lifecycle.settings import ObjectStoreSettings, Settings
from pulsar_lifecycle.tiered.buckets import bucket_listing, bucket_rules
from pulsar_lifecycle.tiered.buckets.abort import Sweep, UploadOutcome, abort_uploads
from pulsar_lifecycle.tiered.buckets.bucket_listing import Inventory
from pulsar_lifecycle.tiered.buckets.bucket_rules import KeyRange, Rules, SweepAction
from pulsar_lifecycle.topics import topic_run
from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.gaps import Gaps
from pulsar_lifecycle.values.offload_uuids import NamedByAny
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary, summary_of
from pulsar_lifecycle.values.refusals import RefusalCode
from pulsar_lifecycle.values.tables import OBJECTS

TABLE = "objects"
NAMED = "offload_references"
"""Tables of an epoch: ``values.tables.OBJECTS`` and ``OFFLOAD_REFERENCES``."""

FEW_TASKS = 16
FEW_COPIES = 1_000_000
"""Up to so many tasks at a time, and offloads, keys are spread by one digit of the UUIDs, above it by two: a task holds
what metadata names of its share in memory."""


def take_inventory(cluster: Cluster, epoch: Epoch) -> tuple[PlanSummary, pa.Table]:
    """List the buckets, judge every object by an epoch, and store the plan of what may go.

    Returns the plan and its rows; all objects are table ``objects`` of the epoch. Raises Refused without
    ``object_store``, and what the servers raise: a listing is whole or there is none.
    """
    settings = cluster.settings
    declared = _declared(settings)
    with cluster.ports(read_only=True) as ports:
        open_ones = attempts.open_attempts(ports.store)
    now = cluster.clock.now_ms()
    gaps = evidence.gaps_of(cluster, epoch)
    gaps += attempts.unread(open_ones)
    older = evidence.earlier_epochs(cluster, epoch)
    if not older:
        gaps.append(evidence.unconfirmed(settings))
    asked = evidence.since(cluster, older[-1], epoch) if older else []
    lake = cluster.lake
    inventory = Inventory(
        buckets=declared.buckets,
        rules=_rules(cluster, epoch, now, older[-1] if older else None, open_ones),
        now=lake.named_uuids(epoch.epoch_id),
        earlier=NamedByAny(tuple(lake.named_uuids(e.epoch_id) for e in asked)),
        referenced=lake.referenced(epoch.epoch_id),
        listed_earlier=in_use_at_any(lake.referenced(e.epoch_id) for e in asked),
        ledgers_root=settings.bookkeeper.ledgers_root,
    )
    topics = [
        (root, part) for root in cluster.roots() for part in cluster.parts(epoch.epoch_id, "managed_ledgers", root)
    ]
    cluster.store(epoch.epoch_id, NAMED, OFFLOAD_REFERENCES, _References(lake).rows, topics)
    few = cluster.tasks.at_once <= FEW_TASKS and len(lake.offload_uuids(epoch.epoch_id)) <= FEW_COPIES
    prefixes = bucket_rules.prefixes(1 if few else 2)
    parts = [_Part(prefix=prefix) for prefix in prefixes]
    for bucket in declared.buckets:
        parts += [_Part(bucket=bucket, gaps=tuple(bucket_rules.gaps(prefixes))), _Part(bucket=bucket)]
    task = _Looking(
        share_of(cluster.tasks, settings), lake, inventory, lake.parts(epoch.epoch_id, NAMED), cluster.connect
    )
    cluster.store(epoch.epoch_id, TABLE, OBJECTS, task.rows, parts)
    return _plan(cluster, epoch, older[-1].epoch_id if older else "", now, tuple(gaps))


def _declared(settings: Settings) -> ObjectStoreSettings:
    if settings.object_store is None:
        raise RefusedBy(RefusalCode.NO_OBJECT_STORE, "object_store is not set: there are no buckets to look at")
    return settings.object_store


def _rules(
    cluster: Cluster,
    epoch: Epoch,
    now: int,
    earlier: Epoch | None,
    open_ones: list[attempts.Attempt | attempts.BrokenAttempt],
) -> Rules:
    settings = cluster.settings
    declared = _declared(settings)
    return Rules(
        context=replace(evidence.rules_of_deletion(cluster, epoch, now), now=now, gone_namespaces=frozenset()),
        cluster=declared.pulsar_cluster or settings.cluster,
        exclusive=declared.exclusive,
        scanned_from=epoch.started_at,
        confirmed_from=earlier.started_at if earlier else None,
        open_attempts=frozenset(one.uuid for one in attempts.whole(open_ones)),
        unproven={
            (uuid, ledger_id): f"a proof of run {row.run_id} found it damaged: {row.reason}"
            for (ledger_id, uuid), row in failed_proofs(cluster.journal_reader, settings.cluster).items()
        },
    )


def _plan(cluster: Cluster, epoch: Epoch, confirmed_by: str, now: int, gaps: Gaps) -> tuple[PlanSummary, pa.Table]:
    lake, parts = cluster.lake, cluster.parts(epoch.epoch_id, TABLE)
    todo = pc.field("action") != ""
    rows = pa.Table.from_batches(list(lake.batches(parts, OBJECTS.names, todo)), OBJECTS)
    rows = rows.sort_by([(name, "ascending") for name in ("ledger_id", "bucket", "key", "upload_id")])
    copies = pc.field("uuid").is_valid() & (pc.field("upload_id") == "")
    ledgers = sum(batch.num_rows for batch in lake.batches(parts, ["uuid"], copies))
    summary = summary_of(
        PlanKind.OBJECTS, cluster.ids.token(plans.TOKEN_BYTES), epoch, gaps, now, rows, bucket_rules.digest,
        confirmed_by=confirmed_by, cluster_ledgers=ledgers,
    )  # fmt: skip
    lake.store_object_plan(summary, rows)
    return summary, rows


@dataclass(frozen=True)
class _References:
    """What the topics in one file name, sorted by UUID."""

    lake: Lake

    def rows(self, piece: tuple[str, str]) -> Iterator[pa.RecordBatch]:
        root, part = piece
        columns = ["topic", "path", "ledgers", "offload_uuids"]
        batches = self.lake.batches([part], columns, pc.field("offload_uuids").is_valid())
        found = [object_pairs.offload_references(batch, root) for batch in batches]
        if found:
            yield from pa.concat_tables(found).sort_by("uuid").to_batches()


@dataclass(frozen=True)
class _Part:
    """What one task lists: keys with a prefix in all buckets, keys in the gaps of a bucket, or its uploads."""

    prefix: str = ""
    bucket: str = ""
    gaps: tuple[KeyRange, ...] = ()


AT_ONCE = 5_000
"""Rows of a batch."""


@dataclass(frozen=True)
class _Looking:
    settings: Settings
    lake: Lake
    inventory: Inventory
    offload_references: list[str]
    connect: Connect

    def rows(self, part: _Part) -> Iterator[pa.RecordBatch]:
        """Rows of ``OBJECTS``."""
        some: list[bucket_listing.Row] = []
        for row in self._found(part):
            some.append(row)
            if len(some) == AT_ONCE:
                yield pa.RecordBatch.from_pylist(some, OBJECTS)
                some = []
        yield pa.RecordBatch.from_pylist(some, OBJECTS)

    def _found(self, part: _Part) -> Iterator[bucket_listing.Row]:
        with self.connect(self.settings, read_only=True) as ports:
            if part.prefix:
                named = self._named(part.prefix)
                yield from bucket_listing.look_below(
                    self.inventory, ports.store, ports.reader, ports.objects, part.prefix, named
                )
            elif part.gaps:
                for gap in part.gaps:
                    yield from bucket_listing.look_between(ports.objects, part.bucket, gap)
            else:
                began = _began(ports.journal_reader, self.settings)
                yield from bucket_listing.look_at_uploads(self.inventory, ports.objects, part.bucket, began)

    def _named(self, prefix: str) -> dict[UUID, list[object_pairs.OffloadReference]]:
        uuid = pc.field("uuid")
        share = (uuid >= prefix) & (uuid < bucket_rules.following(prefix))
        batches = self.lake.batches(self.offload_references, OFFLOAD_REFERENCES.names, share)
        return object_pairs.by_uuid(row for batch in batches for row in batch.to_pylist())


def _began(journal: JournalReader, settings: Settings) -> bucket_listing.Began:
    return lambda ledger_ids: begun_attempts(journal, settings.cluster, ledger_ids)


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep did: messages sent about copies, and what became of uploads."""

    applied: Applied
    dropped: tuple[UploadOutcome, ...]


def rows_to_sweep(cluster: Cluster, order: Order) -> pa.Table:
    """What :func:`sweep` would do now; writes nothing. Raises Refused, NotFound."""
    caps = caps_of(cluster.settings, order)
    with cluster.ports(read_only=True) as ports:
        return _chosen(cluster, order, caps, evidence.check_store(cluster, ports.store))[1]


def sweep(cluster: Cluster, run_id: str, order: Order, progress: Callable[[str], None]) -> Swept:
    """Send a message for each planned copy, and drop the planned uploads. Raises Refused, Paused, NotFound.

    Repeated, it sends what was not sent and drops what is still there.
    """
    settings = cluster.settings
    caps = caps_of(settings, order)
    with published(cluster), cluster.ports() as ports:
        store, journal, clock, objects = ports.store, ports.journal, ports.clock, ports.objects
        summary, rows = _chosen(cluster, order, caps, evidence.check_may_act(cluster, store))
        operator_words.note_words(cluster, run_id)
        copies = rows.filter(pc.equal(rows.column("action"), SweepAction.DELETE))
        sent = pa.array([str(uuid) for uuid in sent_copies(ports.journal_reader, summary.plan_id)], pa.string())
        todo = copies.filter(pc.invert(pc.is_in(copies.column("uuid"), sent)))
        applied = send_intents(
            run_id,
            summary,
            todo.append_column("logical_bytes", todo.column("bytes")),
            frozenset(),
            store=store,
            queue=ports.queue,
            journal=journal,
            clock=clock,
            deliver_after_ms=topic_run.deliver_after_ms_of(settings, control.is_sandbox(store)),
            progress=progress,
            intents=bucket_rules.intents,
        )
        dropped = abort_uploads(
            Sweep(run_id, settings.cluster, summary.plan_id),
            rows.filter(pc.equal(rows.column("action"), SweepAction.ABORT)).to_pylist(),
            _rules(cluster, cluster.lake.epoch(summary.epoch_id), clock.now_ms(), None, []),
            _began(ports.journal_reader, settings),
            store=store,
            objects=objects,
            journal=journal,
            clock=clock,
        )
        done = [one for some in dropped for one in some]
    return Swept(replace(applied, already=copies.num_rows - todo.num_rows), tuple(done))


def _chosen(cluster: Cluster, order: Order, caps: Caps, fingerprint: str) -> tuple[PlanSummary, pa.Table]:
    """The rows to apply, lowest ledgers first. Raises Refused by the rules of every plan."""
    _declared(cluster.settings)
    summary, rows = cluster.lake.object_plan(order.plan_id)
    evidence.check_plan(cluster, order, summary, bucket_rules.digest(rows, summary.to_json()), fingerprint)
    some = plan_checks.within(rows, order.namespaces).slice(0, order.limit or rows.num_rows)
    plan_checks.check_caps(summary, some.append_column("physical_bytes", some.column("bytes")), caps)
    return summary, some


def run_config(summary: PlanSummary) -> dict[str, Any]:
    """The run configuration with which Dagster's job ``sweep_objects`` applies a plan under the settings' caps."""
    config = {"plan_id": summary.plan_id, "digest": summary.digest, "dry_run": True}
    return {"ops": {"sweep": {"config": config}}}
