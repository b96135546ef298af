# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import.
"""Which ledgers are to be offloaded: the policies as the cluster has them now, over the tables of the newest scan.

Belongs here: gathering what the rule needs, spreading it, storing candidates and plan. Not here: the rule
(``plan/offload.py``), doing it (``spark/offload.py``). Writes nothing to the cluster.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.compute as pc
from pyroaring import BitMap64

from pulsar_lifecycle.engine import attempts, control, history, inventory
from pulsar_lifecycle.errors import AccessDenied, NotFound, Refused, UsageError
from pulsar_lifecycle.formats.offload_data import MIN_BLOCK_SIZE
from pulsar_lifecycle.io.admin import HttpBrokerAdmin
from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.io.journal import intents_standing, released_ledgers
from pulsar_lifecycle.io.lake import Lake
from pulsar_lifecycle.io.queue import pending
from pulsar_lifecycle.io.zk import KazooStore, cluster_fingerprint
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.plan import offload, trimming
from pulsar_lifecycle.plan.coverage import Epoch
from pulsar_lifecycle.plan.offload import CANDIDATES, OFFLOAD, RELEASE, OffloadPlan, TopicState
from pulsar_lifecycle.plan.offload_policy import (
    BROKER_READ_PRIORITY,
    DRIVER,
    OffloadPolicy,
    Retention,
    in_force,
    retention_in_force,
)
from pulsar_lifecycle.plan.orphans import Context, Finding
from pulsar_lifecycle.plan.outcomes import DELETE_LEDGER
from pulsar_lifecycle.plan.reconciliation import IN_FLIGHT
from pulsar_lifecycle.ports import BrokerAdmin, MetadataStore, Unread
from pulsar_lifecycle.settings import ObjectStoreSettings, OffloadSettings
from pulsar_lifecycle.spark.scan import Cluster
from pulsar_lifecycle.spark.sources import configuration_settings

TABLE = "offload_candidates"
CHANGE_EVENTS = "__change_events"
"""The topic in which a namespace keeps the policies of its topics; without it no topic has any."""

_TOPIC_POLICIES = ("offloadPolicies", "retention")


@dataclass(frozen=True, slots=True)
class Policies:
    """What decides which ledgers go: by namespace, and by topic where a topic has policies of its own.

    ``left_out``: namespace or topic -> why nothing of it is touched. ``problems`` are what the plan cannot be applied
    with, ``warnings`` what the operator should know.
    """

    by_namespace: Mapping[str, tuple[OffloadPolicy, Retention]]
    by_topic: Mapping[str, tuple[OffloadPolicy, Retention]]
    left_out: Mapping[str, str]
    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    def of(self, topic: Topic) -> tuple[OffloadPolicy, Retention, str]:
        """Policy, retention, and why it is left out of a topic; a partition has those of its partitioned topic."""
        own, namespace = str(topic.partitioned_parent), str(topic.namespace)
        if own in self.by_topic:
            return *self.by_topic[own], self.left_out.get(own, "")
        return *self.by_namespace[namespace], self.left_out.get(own) or self.left_out.get(namespace, "")


def make_offload_plan(
    cluster: Cluster, epoch: Epoch, namespaces: Collection[str] = (), *, everything: bool = False
) -> tuple[OffloadPlan, pa.Table]:
    """Judge every ledger of the candidate namespaces (or of ``namespaces``) and store the plan.

    Returns the plan and the rows that are to be done; all of them are table ``offload_candidates`` of the epoch.
    ``everything`` offloads whatever is eligible, whatever the thresholds. Raises NotFound, and what the cluster's
    servers raise.
    """
    settings, now = cluster.settings, SystemClock().now_ms()
    root = settings.bookkeeper.ledgers_root
    gaps = list(epoch.gaps)
    with KazooStore(settings.zookeeper, read_only=True) as store:
        open_ones = attempts.open_attempts(store)
        sandbox = control.is_sandbox(store)
        scans = cluster.lake.epochs(cluster=settings.cluster)
        broken = history.broken_since(store, scans, cluster_fingerprint(store, root), root)
    gaps += [broken] if broken and broken not in gaps else []
    gaps += [f"{one.path}: {one.reason}" for one in open_ones if isinstance(one, attempts.BrokenAttempt)]
    policies = _policies(cluster, epoch, namespaces, sandbox)
    gaps += policies.problems
    judging = _Judging(
        cluster.lake,
        policies,
        replace(
            cluster.lake.context(epoch.epoch_id),
            holds=frozenset(settings.orphans.legal_holds),
            gone_namespaces=frozenset(),
            system_topics=settings.trimming.system_topics,
        ),
        _loaded(cluster, epoch, policies),
        {one.ledger_id: one.uuid for one in attempts.whole(open_ones)},
        _leftovers(cluster, epoch, now),
        now,
        everything,
        settings.offload.release == "ours",
        settings.object_store.buckets if settings.object_store else (),
    )
    cluster.store(epoch.epoch_id, TABLE, CANDIDATES, judging.rows, cluster.parts(epoch.epoch_id, "managed_ledgers"))
    todo = pc.field("action").isin([OFFLOAD, RELEASE])
    batches = list(cluster.lake.batches(cluster.parts(epoch.epoch_id, TABLE), CANDIDATES.names, todo))
    rows = pa.Table.from_batches(batches, CANDIDATES).sort_by("ledger_id")
    named = rows.filter(pc.not_equal(rows.column("warning"), "")).select(["namespace", "warning"])
    warned = sorted({f"{row['namespace']}: {row['warning']}" for row in named.to_pylist()})
    going = rows.filter(pc.equal(rows.column("action"), OFFLOAD))
    leaving = rows.filter(pc.equal(rows.column("action"), RELEASE))
    plan = OffloadPlan(
        plan_id=f"offload-{epoch.epoch_id}-{secrets.token_hex(2)}",
        cluster=epoch.cluster,
        fingerprint=epoch.fingerprint,
        epoch_id=epoch.epoch_id,
        created_at=now,
        actionable=not gaps,
        gaps=tuple(gaps),
        warnings=(*policies.warnings, *warned),
        ledgers=going.num_rows,
        bytes=int(pc.sum(going.column("bytes")).as_py() or 0),
        released=leaving.num_rows,
        released_bytes=int(pc.sum(leaving.column("bytes")).as_py() or 0),
        digest="",
    )
    plan = replace(plan, digest=offload.digest(rows, plan.to_json()))
    cluster.lake.store_offload_plan(plan, rows)
    return plan, rows


def _loaded(cluster: Cluster, epoch: Epoch, policies: Policies) -> frozenset[str]:
    """Topics of the candidate namespaces that the scan counted as loaded."""
    wanted = (pc.field("load_state") == "loaded") & pc.field("namespace").isin(list(policies.by_namespace))
    rows = cluster.lake.batches(cluster.parts(epoch.epoch_id, "topics"), ["topic"], wanted)
    return frozenset(topic for batch in rows for topic in batch.column("topic").to_pylist())


def _leftovers(cluster: Cluster, epoch: Epoch, now: int) -> BitMap64:
    """Offload leftovers of the scan, without those whose message a deletion run is yet to decide."""
    wanted = pc.field("finding") == Finding.OFFLOAD_LEFTOVER.value
    rows = cluster.lake.batches(cluster.parts(epoch.epoch_id, "findings"), ["ledger_id"], wanted)
    found = BitMap64([ledger for batch in rows for ledger in batch.column("ledger_id").to_pylist()])
    settings = cluster.settings
    sent = in_flight(settings.lake.path, settings.cluster, found, now - int(settings.orphans.grace_period * 1000))
    if sent:
        with closing(HttpBrokerAdmin(settings.pulsar)) as admin:
            found -= sent if queued(admin) else BitMap64()
    return found


def in_flight(lake: str, cluster: str, ledger_ids: BitMap64, since: int) -> BitMap64:
    """Ledgers that we released, and whose message was sent at ``since`` (ms) or later and not decided, by the journal.

    An older one may be lost: sending another is harmless.
    """
    if not ledger_ids:
        return ledger_ids
    intents = intents_standing(lake, cluster)
    waits = pc.and_(pc.equal(intents.column("state"), IN_FLIGHT), pc.equal(intents.column("action"), DELETE_LEDGER))
    waits = pc.and_(waits, pc.greater_equal(intents.column("at"), since))
    sent = BitMap64(intents.filter(waits).column("ledger_id").to_pylist())
    return ledger_ids & sent & BitMap64(released_ledgers(lake, cluster))


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
    policies: Policies
    context: Context
    loaded: frozenset[str]
    ours: Mapping[int, UUID]
    leftovers: BitMap64
    now: int
    everything: bool
    release: bool
    buckets: tuple[str, ...]

    def rows(self, part: str) -> Iterator[pa.RecordBatch]:
        """Rows of :data:`CANDIDATES`."""
        wanted = pc.field("error").is_null() & pc.field("namespace").isin(list(self.policies.by_namespace))
        columns = ["topic", "namespace", "ledgers", "shadow_source", "error"]
        for batch in self.lake.batches([part], columns, wanted):
            found = [row for topic in batch.to_pylist() for row in self._of_topic(topic)]
            yield pa.RecordBatch.from_pylist(found, CANDIDATES)

    def _of_topic(self, row: Mapping[str, Any]) -> list[dict[str, Any]]:
        topic = Topic.parse(row["topic"])
        policy, retention, left_out = self.policies.of(topic)
        state = TopicState(
            row["topic"],
            row["namespace"],
            row["ledgers"] or [],
            row["topic"] in self.loaded,
            trimming.topic_rule(topic, row["shadow_source"] or "", self.context) or left_out,
        )
        return offload.judge(
            state,
            policy,
            retention,
            self.now,
            self.ours,
            everything=self.everything,
            leftovers=self.leftovers,
            release=self.release,
            buckets=self.buckets,
        )


# ------------------------------------------------------------------------------------------------------- the policies


def policies_now(cluster: Cluster, epoch: Epoch, topics: Collection[str]) -> dict[str, tuple[OffloadPolicy, str]]:
    """The policies of a plan's topics as they are now, and why one is not to be touched; without what is gone.

    Raises Refused where nothing may be offloaded as the cluster is configured by now.
    """
    parsed = [Topic.parse(name) for name in topics]
    with KazooStore(configuration_settings(cluster.settings), read_only=True) as configuration:
        existing = inventory.namespace_policies(configuration).keys()
    namespaces = {str(topic.namespace) for topic in parsed} & existing
    if not namespaces:
        return {}
    with KazooStore(cluster.settings.zookeeper, read_only=True) as store:
        sandbox = control.is_sandbox(store)
        telling = _with_change_events(store, namespaces)
    asked: dict[str, list[Topic]] = {}
    for topic in dict.fromkeys(topic.partitioned_parent for topic in parsed if str(topic.namespace) in telling):
        asked.setdefault(str(topic.namespace), []).append(topic)
    policies = _policies(cluster, epoch, namespaces, sandbox, asked)
    if policies.problems:
        raise Refused("; ".join(policies.problems))
    found = {str(topic): policies.of(topic) for topic in parsed if str(topic.namespace) in namespaces}
    return {name: (policy, left_out) for name, (policy, _, left_out) in found.items()}


def _policies(
    cluster: Cluster,
    epoch: Epoch,
    namespaces: Collection[str],
    sandbox: bool,
    topics: Mapping[str, Sequence[Topic]] | None = None,
) -> Policies:
    """Policy and retention of every candidate namespace, and of its topics (or of ``topics``) that have their own."""
    settings = cluster.settings
    with closing(HttpBrokerAdmin(settings.pulsar)) as admin:
        broker, problems = broker_layer(admin.configurations(), settings.offload, sandbox=sandbox)
        with KazooStore(configuration_settings(settings), read_only=True) as configuration:
            documents = inventory.namespace_policies(configuration)
        if strange := sorted(set(namespaces) - documents.keys()):
            raise UsageError(f"namespaces: {', '.join(strange)}: no such namespace")
        found = {
            name: (in_force(None, documents[name], broker), retention_in_force(None, documents[name], broker))
            for name in (namespaces or documents)
        }
        asked = {*namespaces, *settings.offload.namespaces}
        found = {name: one for name, one in found.items() if name in asked or (one[0].driver and one[0].automatic)}
        by_topic, unknown = dict[str, tuple[OffloadPolicy, Retention]](), list[str]()
        if broker.get("topicLevelPoliciesEnabled") != "false":
            some = _topics_with_policies(cluster, epoch, found) if topics is None else topics
            by_topic, unknown = _of_topics(admin, some, documents, broker)
    in_use = {name: policy for name, (policy, _) in (*found.items(), *by_topic.items()) if policy.acts}
    left_out = unlike_object_store(in_use, settings.object_store)
    said = [f"{name} is left out: {why}" for name, why in left_out.items()]
    if len(left_out) == len(in_use):
        problems, said = [*problems, *said], []
    left_out |= dict.fromkeys(unknown, "the brokers say that it does not exist: its own policies are unknown")
    return Policies(found, by_topic, left_out, tuple(problems), (*said, *unproven(in_use)))


def broker_layer(
    configurations: Mapping[str, Mapping[str, str]], settings: OffloadSettings, *, sandbox: bool
) -> tuple[dict[str, str], list[str]]:
    """What all brokers are configured with, with what the settings add; and what speaks against acting on it.

    Brokers that differ in what decides about offloads are a problem; so is a setting that contradicts them, except on
    the sandbox, whose brokers have no offloader.
    """
    named = {name for found in configurations.values() for name in found if "ffload" in name or "etention" in name}
    names = sorted({*named, "topicLevelPoliciesEnabled", BROKER_READ_PRIORITY})
    broker: dict[str, str] = {}
    problems: list[str] = []
    for name in names:
        values = {found.get(name, "") for found in configurations.values()}
        if len(values) > 1:
            problems.append(f"the brokers differ in {name}: {', '.join(sorted(map(repr, values)))}")
        broker[name] = min(values)
    for name, value in settings.brokers.items():
        if broker.get(name, value) != value and not sandbox:
            problems.append(f"offload.brokers.{name} is {value!r}, and the brokers say {broker[name]!r}")
        broker[name] = value
    return broker, problems


def _with_change_events(store: MetadataStore, namespaces: Collection[str]) -> list[str]:
    """The namespaces in which a topic can have policies of its own, now. Raises AccessDenied if that is not seen."""
    paths = {name: f"{inventory.MANAGED_LEDGERS_ROOT}/{name}/persistent" for name in namespaces}
    found: list[str] = []
    for (name, path), listing in zip(paths.items(), store.children(list(paths.values())), strict=True):
        if isinstance(listing, Unread):
            raise AccessDenied(f"{path}: {listing.reason}")
        if listing and any(child.startswith(CHANGE_EVENTS) for child in listing.names):
            found.append(name)
    return found


def _topics_with_policies(cluster: Cluster, epoch: Epoch, candidates: Mapping[str, Any]) -> dict[str, list[Topic]]:
    """The topics of candidate namespaces in which any topic can have policies of its own; partitions as one."""
    wanted = pc.field("error").is_null() & pc.field("namespace").isin(list(candidates))
    rows = cluster.lake.batches(
        cluster.parts(epoch.epoch_id, "managed_ledgers"), ["topic", "namespace", "error"], wanted
    )
    topics: dict[str, dict[Topic, None]] = {}
    for batch in rows:
        for name, namespace in zip(*(batch.column(c).to_pylist() for c in ("topic", "namespace")), strict=True):
            topics.setdefault(namespace, {})[Topic.parse(name).partitioned_parent] = None
    return {
        namespace: [topic for topic in found if not topic.local.startswith("__")]
        for namespace, found in topics.items()
        if any(topic.local == CHANGE_EVENTS for topic in found)
    }


def _of_topics(
    admin: BrokerAdmin,
    topics: Mapping[str, Sequence[Topic]],
    documents: Mapping[str, Mapping[str, Any]],
    broker: Mapping[str, str],
) -> tuple[dict[str, tuple[OffloadPolicy, Retention]], list[str]]:
    """Those that have policies of their own, and of which that is not known."""
    found: dict[str, tuple[OffloadPolicy, Retention]] = {}
    unknown: list[str] = []
    for namespace, some in topics.items():
        for topic in some:
            try:
                own = admin.topic_policies(topic, _TOPIC_POLICIES)
            except NotFound:  # deleted meanwhile, or a broker that does not know it yet
                unknown.append(str(topic))
                continue
            if own:
                found[str(topic)] = (
                    in_force(own.get("offloadPolicies"), documents[namespace], broker),
                    retention_in_force(own.get("retention"), documents[namespace], broker),
                )
    return found, unknown


def unproven(policies: Mapping[str, OffloadPolicy]) -> list[str]:
    """Where no read through a broker can show that it has access to the bucket; ``policies`` by namespace or topic."""
    return [f"{name}: {offload.BOOKKEEPER_FIRST}" for name, policy in policies.items() if not policy.tiered_first]


def unlike_object_store(policies: Mapping[str, OffloadPolicy], store: ObjectStoreSettings | None) -> dict[str, str]:
    """How what the brokers read from is not what we would write to, by the namespace or topic of ``policies``."""
    if store is None:
        return dict.fromkeys(policies, "object_store is not set: there is nowhere to offload to")
    found = dict[str, str]()
    for name, policy in policies.items():
        if why := "; ".join(_unlike(policy, store)):
            found[name] = f"driver {policy.driver} of the {policy.sources.get(DRIVER, 'brokers')}: {why}"
    return found


def _unlike(policy: OffloadPolicy, store: ObjectStoreSettings) -> Iterator[str]:
    if not policy.bucket:
        yield "no API shows its bucket; say in offload.brokers what broker.conf says of it"
    elif policy.bucket not in store.buckets:
        yield f"its bucket {policy.bucket} is not one of object_store.buckets"
    if policy.endpoint and policy.endpoint != store.endpoint:
        yield f"its endpoint is {policy.endpoint}, object_store.endpoint {store.endpoint!r}"
    if policy.region and not policy.endpoint and policy.region != store.region:
        yield f"its region is {policy.region}, object_store.region {store.region!r}"
    if policy.block_size is not None and policy.block_size < MIN_BLOCK_SIZE:
        yield f"its MaxBlockSizeInBytes is {policy.block_size}, S3 needs {MIN_BLOCK_SIZE} or more"
