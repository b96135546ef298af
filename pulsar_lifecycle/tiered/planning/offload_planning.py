"""Which ledgers are to be offloaded: the policies in force by now, over the tables of the newest scan.

Belongs here: gathering what the rule needs, spreading it, storing candidates and plan. Not here: the rule
(``tiered/planning/candidates.py``), doing it (``tiered/offload_run.py``). Writes nothing to the cluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pulsar_lifecycle.copies import attempts
from pulsar_lifecycle.deletion_queue.queue_topics import pending
from pulsar_lifecycle.errors import NotFound, RefusedBy, UsageError
from pulsar_lifecycle.journal.intents import IntentState
from pulsar_lifecycle.journal.offloads import copy_deletions
from pulsar_lifecycle.journal.queries import deleted_ids, read_intent_states, rows_of_outcome, waiting_ledgers
from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
from pulsar_lifecycle.metastore.namespaces import RESTORE, policy_documents
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import BrokerAdmin, JournalReader, Lake
from pulsar_lifecycle.run_settings import OffloadSettings
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.scan import history_check
from pulsar_lifecycle.tiered.planning import candidates
from pulsar_lifecycle.tiered.planning.candidates import TopicState
from pulsar_lifecycle.tiered.planning.policy_checks import (
    competing_brokers,
    unlike_cluster,
    unlike_object_store,
    unproven,
)
from pulsar_lifecycle.tiered.planning.topic_order import topic_order
from pulsar_lifecycle.topics import protection, retention_policy
from pulsar_lifecycle.topics.load_losses import LoadLosses, brokers_say, losses_in_force
from pulsar_lifecycle.topics.offload_policy import (
    BROKER_READ_PRIORITY,
    OFFLOAD_POLICIES,
    OffloadPolicy,
    of_layers,
)
from pulsar_lifecycle.topics.policies import (
    POLICY_SWITCHES,
    InForce,
    Layers,
    Unknown,
    common_configuration,
)
from pulsar_lifecycle.topics.retention_policy import RETENTION_POLICIES, RetentionPolicy
from pulsar_lifecycle.topics.system_topics.change_events import read_namespaces
from pulsar_lifecycle.topics.write import writes_loaded
from pulsar_lifecycle.values import plans
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.findings import Context, Finding
from pulsar_lifecycle.values.gaps import Gap, GapCode
from pulsar_lifecycle.values.outcomes import Action, Outcome, Waiting
from pulsar_lifecycle.values.plans import offload_plan
from pulsar_lifecycle.values.plans.offload_plan import CANDIDATES, OffloadChoice, OffloadCode, OffloadPlan
from pulsar_lifecycle.values.plans.plan_kind import PlanKind
from pulsar_lifecycle.values.topic_load import LoadState

TABLE = "offload_candidates"


@dataclass(frozen=True, slots=True)
class OffloadPolicies:
    """What decides which ledgers go: the policies in force of the namespaces that are planned.

    ``left_out``: namespace or topic -> why nothing of it is touched. ``problems`` are what the plan cannot be applied
    with, ``warnings`` what the operator should know. ``unknown``: namespaces whose topics' policies could not be read.
    """

    offloading: InForce[OffloadPolicy]
    retention: InForce[RetentionPolicy]
    left_out: Mapping[str, Why]
    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()
    unknown: Mapping[str, Unknown] = field(default_factory=dict[str, Unknown])
    losses: LoadLosses = field(default_factory=LoadLosses)
    """What topics of these namespaces lose by a load."""

    @property
    def namespaces(self) -> list[str]:
        """Those that are planned."""
        return list(self.offloading.by_namespace)

    def of(self, topic: Topic) -> tuple[OffloadPolicy, RetentionPolicy, Why | None]:
        """Policy, retention, and why it is left out of a topic; a partition has those of its partitioned topic."""
        own = str(topic.partitioned_parent)
        where = own if own in self.offloading.by_topic else str(topic.namespace)
        return self.offloading.of(topic), self.retention.of(topic), self.left_out.get(where)

    def now_of(self, topic: Topic) -> OffloadPolicy | Why:
        """Policy of a topic, or why it is left out; its namespace need not be one that is planned."""
        namespace = str(topic.namespace)
        if namespace not in self.offloading.by_namespace:
            return self.left_out[namespace]
        policy, _, left_out = self.of(topic)
        return left_out or policy


def make_offload_plan(
    cluster: Cluster,
    epoch: Epoch,
    namespaces: Collection[str] = (),
    *,
    everything: bool = False,
    topics: Collection[str] = (),
    upto: str = "",
) -> tuple[OffloadPlan, pa.Table]:
    """Judge every ledger of the candidate namespaces (or of ``namespaces``, or ``topics``) and store the plan.

    Returns the plan and the rows that are to be done; all of them are table ``offload_candidates`` of the epoch.
    ``everything`` offloads whatever is eligible, whatever the thresholds; so do ``topics``, and ``upto`` only what is
    before a position: :func:`~pulsar_lifecycle.tiered.planning.topic_order.topic_order`. Raises NotFound, UsageError,
    and what the cluster's servers raise.
    """
    ordered = topic_order(cluster, epoch, namespaces, topics, upto)
    if ordered is not None:
        namespaces, everything = {str(Topic.parse(name).namespace) for name in ordered}, True
    settings, now = cluster.settings, cluster.clock.now_ms()
    root = settings.bookkeeper.ledgers_root
    gaps = list(epoch.gaps)
    with cluster.ports(read_only=True) as ports:
        store = ports.store
        open_ones = attempts.open_attempts(store)
        sandbox = control.is_sandbox(store)
        scans = cluster.lake.epochs(cluster=settings.cluster)
        broken = history_check.broken_since(store, scans, cluster_fingerprint(store, root), root)
    gaps += [broken] if broken and broken not in gaps else []
    gaps += attempts.unread(open_ones)
    policies = _policies(cluster, namespaces, sandbox)
    gaps += [Gap(GapCode.POLICIES_UNKNOWN, "", problem) for problem in policies.problems]
    judging = _Judging(
        cluster.lake,
        policies,
        replace(
            cluster.lake.context(epoch.epoch_id),
            holds=settings.orphans.holds(now),
            gone_namespaces=frozenset(),
            system_topics=settings.trimming.system_topics,
        ),
        _loaded(cluster, epoch, policies),
        {one.ledger_id: one.uuid for one in attempts.whole(open_ones)},
        leftovers(cluster, epoch, now),
        done_since(cluster, epoch.started_at),
        now,
        everything,
        int(settings.offload.deletion_lag * 1000) if settings.offload.bookkeeper_copies == "ours" else None,
        settings.object_store.buckets if settings.object_store else (),
        settings.offload.loaded_topics,
        ordered,
    )
    cluster.store(epoch.epoch_id, TABLE, CANDIDATES, judging.rows, cluster.parts(epoch.epoch_id, "managed_ledgers"))
    todo = pc.field("action").isin([OffloadChoice.OFFLOAD, OffloadChoice.DELETE_COPY])
    batches = list(cluster.lake.batches(cluster.parts(epoch.epoch_id, TABLE), CANDIDATES.names, todo))
    rows = pa.Table.from_batches(batches, CANDIDATES).sort_by("ledger_id")
    named = rows.filter(pc.not_equal(rows.column("warning"), "")).select(["namespace", "warning"])
    warned = sorted({f"{row['namespace']}: {row['warning']}" for row in named.to_pylist()})
    kept = cluster.lake.batches(
        cluster.parts(epoch.epoch_id, TABLE), ["bytes", "action"], pc.field("action") == OffloadChoice.BROKERS_DELETE
    )
    brokers_delete = pa.Table.from_batches(
        list(kept), pa.schema([CANDIDATES.field("bytes"), CANDIDATES.field("action")])
    )
    plan = OffloadPlan(
        plan_id=f"{PlanKind.OFFLOAD}-{epoch.epoch_id}-{cluster.ids.token(plans.TOKEN_BYTES)}",
        cluster=epoch.cluster,
        fingerprint=epoch.fingerprint,
        epoch_id=epoch.epoch_id,
        created_at=now,
        actionable=not gaps,
        gaps=tuple(gaps),
        warnings=(*policies.warnings, *warned),
        digest="",
        ordered=everything,
        **totals(rows, brokers_delete),
    )
    plan = replace(plan, digest=offload_plan.digest(rows, plan.to_json()))
    cluster.lake.store_offload_plan(plan, rows)
    return plan, rows


def run_config(plan: OffloadPlan) -> dict[str, Any]:
    """The run configuration with which job ``offload`` applies a plan."""
    return {"ops": {"offload_ledgers": {"config": {"plan_id": plan.plan_id, "digest": plan.digest}}}}


def totals(rows: pa.Table, brokers_delete: pa.Table) -> dict[str, int]:
    """Ledgers and bytes of a plan's rows, by what is to be done, and of those that brokers would delete."""
    going = rows.filter(pc.equal(rows.column("action"), OffloadChoice.OFFLOAD))
    leaving = rows.filter(pc.equal(rows.column("action"), OffloadChoice.DELETE_COPY))
    waiting = rows.filter(pc.equal(rows.column("outlook"), Outcome.LEFT_TO_BROKER))
    counted = {"": going, "copies": leaving, "left_to_broker": waiting, "brokers_delete": brokers_delete}
    found: dict[str, int] = {}
    for name, some in counted.items():
        found[name or "ledgers"] = some.num_rows
        found[f"{name}_bytes" if name else "bytes"] = int(pc.sum(some.column("bytes")).as_py() or 0)
    return found


def _loaded(cluster: Cluster, epoch: Epoch, policies: OffloadPolicies) -> frozenset[str]:
    """Topics of the candidate namespaces that the scan counted as loaded."""
    wanted = (pc.field("load_state") == LoadState.LOADED) & pc.field("namespace").isin(
        pa.array(policies.namespaces, pa.string())  # without a type, none at all has another one than the column
    )
    rows = cluster.lake.batches(cluster.parts(epoch.epoch_id, "topics"), ["topic"], wanted)
    return frozenset(topic for batch in rows for topic in batch.column("topic").to_pylist())


def leftovers(cluster: Cluster, epoch: Epoch, now: int) -> BitMap64:
    """Offload leftovers of the scan, without those whose message a deletion run is yet to decide, or that are gone.

    A deletion run scans before it deletes: a plan of that scan, made after it, would find none of them.
    """
    wanted = pc.field("finding") == Finding.OFFLOAD_LEFTOVER.value
    rows = cluster.lake.batches(cluster.parts(epoch.epoch_id, "findings"), ["ledger_id"], wanted)
    found = BitMap64([ledger for batch in rows for ledger in batch.column("ledger_id").to_pylist()])
    settings = cluster.settings
    found -= BitMap64(deleted_ids(cluster.journal_reader, epoch.started_at, settings.cluster))
    sent = in_flight(
        cluster.journal_reader, settings.cluster, found, now - int(settings.orphans.grace_period * 1000), now
    )
    if sent:
        with cluster.ports(read_only=True) as ports:
            found -= sent if queued(ports.admin) else BitMap64()
    return found


def done_since(cluster: Cluster, since: int) -> dict[OffloadChoice, BitMap64]:
    """What runs have offloaded, and which copies they have listed as deleted, at ``since`` (ms) or later.

    A scan or a plan of before may not know. A run would refuse the ones, and read the others whole, and ask for their
    deletion, once more.
    """

    def ledgers(outcome: Outcome, action: Action) -> BitMap64:
        mine = (pc.field("cluster") == cluster.settings.cluster) & (pc.field("action") == action)
        done = rows_of_outcome(cluster.journal_reader, outcome, since, mine, ["ledger_id"])
        return BitMap64(done.column("ledger_id").to_pylist())

    return {
        OffloadChoice.OFFLOAD: ledgers(Outcome.OFFLOADED, Action.OFFLOAD),
        OffloadChoice.DELETE_COPY: ledgers(Outcome.BOOKKEEPER_DELETED, Action.COPY_DELETION),
    }


def in_flight(journal: JournalReader, cluster: str, ledger_ids: BitMap64, since: int, now: int) -> BitMap64:
    """Ledgers whose copy in BookKeeper we began to delete, by a message of ``since`` (ms) or later that is undecided.

    An older one may be lost: sending another is harmless. Without those that wait for a read at their location: an
    offload run makes that read through a ledger of its plan, and there may be no other.
    """
    if not ledger_ids:
        return ledger_ids
    intents = read_intent_states(journal, cluster)
    waits = pc.and_(
        pc.equal(intents.column("state"), IntentState.IN_FLIGHT),
        pc.equal(intents.column("action"), Action.DELETE_LEDGER),
    )
    waits = pc.and_(waits, pc.greater_equal(intents.column("sent_at"), since))
    sent = ledger_ids & BitMap64(intents.filter(waits).column("ledger_id").to_pylist())
    unread = waiting_ledgers(journal, cluster, sent, Waiting.UNREAD_LOCATION, now)
    return (sent & BitMap64(copy_deletions(journal, cluster))) - BitMap64(unread)


def queued(admin: BrokerAdmin) -> bool:
    """Whether the deletion queue holds anything; if not, what the journal says is in flight is lost."""
    try:
        return pending(admin) > 0
    except NotFound:
        return False


@dataclass(frozen=True)
class _Judging:
    """The candidates of one file of topics; runs in a task."""

    lake: Lake
    policies: OffloadPolicies
    context: Context
    loaded: frozenset[str]
    ours: Mapping[int, UUID]
    leftovers: BitMap64
    done_since: Mapping[OffloadChoice, BitMap64]
    now: int
    everything: bool
    our_lag_ms: int | None
    buckets: tuple[str, ...]
    loaded_topics: bool | tuple[str, ...]
    ordered: Mapping[str, int | None] | None
    """Only these topics, and before which ledger (None: all of it); None: every topic."""

    def rows(self, part: str) -> Iterator[pa.RecordBatch]:
        """Rows of :data:`CANDIDATES`."""
        planned = pa.array(self.policies.namespaces, pa.string())  # none at all has no type of its own
        wanted = pc.field("problem").is_null() & pc.field("namespace").isin(planned)
        if self.ordered is not None:
            wanted &= pc.field("topic").isin(pa.array(self.ordered, pa.string()))
        columns = ["topic", "namespace", "ledgers", "shadow_source", "problem"]
        for batch in self.lake.batches([part], columns, wanted):
            found = [row for topic in batch.to_pylist() for row in self._of_topic(topic)]
            yield pa.RecordBatch.from_pylist(found, CANDIDATES)

    def _of_topic(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        topic = Topic.parse(row["topic"])
        policy, retention, left_out = self.policies.of(topic)
        rule = protection.topic_rule(topic, row["shadow_source"] or "", self.context)
        state = TopicState(
            row["topic"],
            row["namespace"],
            row["ledgers"] or [],
            rule or left_out,
            row["topic"] in self.loaded and not writes_loaded(self.loaded_topics, topic),
        )
        return candidates.judge(
            state,
            policy,
            retention,
            self.now,
            self.ours,
            everything=self.everything,
            upto=(self.ordered or {}).get(row["topic"]),
            leftovers=self.leftovers,
            done_since=self.done_since,
            our_lag_ms=self.our_lag_ms,
            buckets=self.buckets,
        )


@dataclass(frozen=True, slots=True)
class PoliciesNow:
    """By topic, its policy or why it is not to be touched; by namespace, what its topics lose by a load."""

    of_topics: Mapping[str, OffloadPolicy | Why] = field(default_factory=dict[str, OffloadPolicy | Why])
    losses: Mapping[str, LoadLosses] = field(default_factory=dict[str, LoadLosses])


def policies_now(cluster: Cluster, topics: Collection[str]) -> PoliciesNow:
    """What is in force for a plan's topics as they are now; without what is gone.

    Raises Refused where nothing may be offloaded as the cluster is configured by now.
    """
    parsed = [Topic.parse(name) for name in topics]
    with cluster.ports(read_only=True) as ports:
        documents = policy_documents(ports.configuration)
        namespaces = {str(topic.namespace) for topic in parsed} & {*documents.known, *documents.undecodable}
        if not namespaces:
            return PoliciesNow()
        sandbox = control.is_sandbox(ports.store)
    policies = _policies(cluster, namespaces, sandbox)
    if policies.problems:
        raise RefusedBy(GapCode.POLICIES_UNKNOWN, "; ".join(policies.problems))
    now = {str(topic): policies.now_of(topic) for topic in parsed if str(topic.namespace) in namespaces}
    return PoliciesNow(now, dict.fromkeys(policies.namespaces, policies.losses))


def _policies(cluster: Cluster, namespaces: Collection[str], sandbox: bool) -> OffloadPolicies:
    """The policies in force of every candidate namespace, and of its topics that have their own."""
    settings = cluster.settings
    with cluster.ports(read_only=True) as ports:
        configurations = ports.admin.configurations()
        brokers, problems = broker_layer(configurations, settings.offload, sandbox=sandbox)
        documents = policy_documents(ports.configuration)
    known, undecodable = documents.known, documents.undecodable
    if strange := sorted(set(namespaces) - {*known, *undecodable}):
        raise UsageError(f"namespaces: {', '.join(strange)}: no such namespace")
    asked = {*namespaces, *settings.offload.namespaces}
    layers = Layers(brokers, {name: known[name] for name in (namespaces or known) if name in known})
    every = layers.in_force(OFFLOAD_POLICIES, of_layers).by_namespace
    found = {name for name, one in every.items() if name in asked or (one.driver and one.automatic)}
    layers = replace(layers, namespaces={name: one for name, one in layers.namespaces.items() if name in found})
    layers = replace(layers, topics=read_namespaces(cluster, layers.namespaces, brokers))
    unknown = {name: one.unknown for name, one in layers.topics.items() if one.unknown}
    offloading = layers.in_force(OFFLOAD_POLICIES, of_layers)
    in_use = {name: one for name, one in {**offloading.by_namespace, **offloading.by_topic}.items() if one.acts}
    left_out = unlike_object_store(in_use, settings.object_store)
    said = [f"{name} is left out: {why}" for name, why in left_out.items()]
    if len(left_out) == len(in_use):
        problems, said = [*problems, *said], []
    left_out |= {name: Why(why.code, str(why)) for name, why in unknown.items()}
    bad = {name: error for name, error in undecodable.items() if not namespaces or name in namespaces}
    left_out |= {name: Why(OffloadCode.LEFT_OUT, str(error)) for name, error in bad.items()}
    said += [f"{name} is left out: {error}. {RESTORE}" for name, error in bad.items()]
    said += [f"{name} is left out: {why}" for name, why in unknown.items()]
    said += unlike_cluster(configurations, settings.object_store, settings.cluster) if in_use else []
    said += unproven(in_use) + (competing_brokers(in_use) if settings.offload.bookkeeper_copies == "ours" else [])
    retention = layers.in_force(RETENTION_POLICIES, retention_policy.in_force)
    losses = losses_in_force(replace(layers, brokers=brokers_say(configurations)))
    return OffloadPolicies(offloading, retention, left_out, tuple(problems), tuple(said), unknown, losses)


def broker_layer(
    configurations: Mapping[str, Mapping[str, str]], settings: OffloadSettings, *, sandbox: bool
) -> tuple[dict[str, str], list[str]]:
    """What all brokers are configured with, with what the settings add; and what speaks against acting on it.

    Brokers that differ in what decides about offloads are a problem; so is a setting that contradicts them, except on
    the sandbox, whose brokers have no offloader.
    """
    about = ("offload", "retention", BROKER_READ_PRIORITY, *POLICY_SWITCHES)
    brokers, problems = common_configuration(configurations, about)
    for name, value in settings.brokers.items():
        if brokers.get(name, value) != value and not sandbox:
            problems.append(f"offload.brokers.{name} is {value!r}, and the brokers say {brokers[name]!r}")
        brokers[name] = value
    return brokers, problems
