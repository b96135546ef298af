"""Sections of the settings file that say what runs may do: to which ledgers and topics, how much, how fast.

Belongs here: rules, caps and rates with their defaults and checks. Not here: where servers are (``settings.py``), who
said a word against a rule (``words.py``).
"""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, StrictBool, field_validator, model_validator

from pulsar_lifecycle.setting_types import Seconds, Section
from pulsar_lifecycle.words import (
    AcknowledgedEntry,
    AcknowledgedZnode,
    Explained,
    LegalHold,
    RaisedShrinkage,
    in_force,
)


def owner_names(value: tuple[str, ...]) -> tuple[str, ...]:
    """Tenants, namespaces and full topic names. One that no owner's name can equal would select nothing, unsaid."""
    names = list(value)
    for name in value:
        scheme, found, rest = name.partition("://")
        parts = (rest if found else name).split("/")
        known = (scheme == "persistent" and len(parts) >= 3) if found else len(parts) <= 3
        if not known or not all(parts) or name != name.strip() or any("*" in part for part in parts[:2]):
            raise ValueError(
                f"expected tenant, tenant/namespace or persistent://tenant/namespace/topic, found {name!r}"
            )
        if not found and len(parts) == 3:  # a V1 namespace, or a topic as Pulsar's own ports shorten it: both
            names.append(f"persistent://{name}")
    return tuple(names)


MAX_LOSS = (0.2, 1_000, 1 << 40)
"""Defaults of what may get lost between two scans: share, ledgers, bytes."""


class OrphanSettings(Section):
    """When a ledger that nothing refers to may be planned for deletion."""

    grace_period: Seconds = 7 * 86400.0
    """Younger ledgers are never planned; at least 24 h."""
    confirm_after: Seconds = 86400.0
    """The confirming second scan must be at least this much later than the first; at least 24 h."""
    plan_valid_for: Seconds = 86400.0
    """How old a plan may be when it is applied, and the newest scan when a deletion run begins."""
    acknowledged_znodes: tuple[Explained[AcknowledgedZnode], ...] = ()
    """``{ path, by, why, until }``. Undecodable z-nodes of cursors and schemas that the operator has looked at: they no
    longer block, their namespace is kept. One of a topic blocks until it is repaired or removed: a shadow topic needs
    ledgers of other namespaces."""
    acknowledged_entries: tuple[Explained[AcknowledgedEntry], ...] = ()
    """``{ entry, by, why, until }``; ``entry`` is ``Z-NODE LEDGER ENTRY``, as a gap names it. Entries that no bookie
    answers for and never will: they no longer block, their owner is kept."""
    legal_holds: tuple[LegalHold, ...] = ()
    """``tenant``, ``tenant/namespace`` or a full topic name: nothing of theirs is ever planned or deleted.
    A string, or ``{ name, by, why, until }``."""
    system_topics: bool = False
    """Let orphans of system topics be planned."""
    max_shrinkage: float = Field(default=MAX_LOSS[0], ge=0, le=1)
    """Share of the ledgers that a table of a root lists, and of their bytes, that may lose their references from one
    scan to the next though BookKeeper has them still, net of our own journal. More makes the plan report-only."""
    max_lost_ledgers: int = Field(default=MAX_LOSS[1], ge=0)
    """The same as a number of ledgers, whatever the share."""
    max_lost_bytes: int = Field(default=MAX_LOSS[2], ge=0)
    """The same in bytes, as written, before replication."""
    max_shrinkage_raised: Explained[RaisedShrinkage] | None = None
    """``{ by, why, until }``: who raised one of these three above its default, and why; required then. Where that has
    expired, the defaults count."""

    @field_validator("legal_holds")
    @classmethod
    def _hold_something(cls, value: tuple[LegalHold, ...]) -> tuple[LegalHold, ...]:
        owner_names(tuple(word.name for word in value))
        return value

    @model_validator(mode="after")
    def _raised_by_somebody(self) -> OrphanSettings:
        if self.raised and self.max_shrinkage_raised is None:
            raise ValueError(
                f"{self.raised} above its default weakens a safety rule, so say who and why: "
                'max_shrinkage_raised = { by = "...", why = "...", until = 2026-12-31 }'
            )
        return self

    @property
    def raised(self) -> str:
        """The first limit of what may get lost that is above its default; empty if none is."""
        now = (self.max_shrinkage, self.max_lost_ledgers, self.max_lost_bytes)
        names = ("max_shrinkage", "max_lost_ledgers", "max_lost_bytes")
        return next((n for n, is_, default in zip(names, now, MAX_LOSS, strict=True) if is_ > default), "")

    def holds(self, now: int) -> frozenset[str]:
        """Every name that a legal hold in force at ``now`` (ms) means."""
        return frozenset(owner_names(tuple(in_force(self.legal_holds, now))))

    def acknowledged(self, now: int) -> frozenset[str]:
        """The z-nodes' paths that are acknowledged at ``now`` (ms)."""
        return in_force(self.acknowledged_znodes, now)

    def acknowledged_entries_at(self, now: int) -> frozenset[str]:
        """The entries, ``Z-NODE LEDGER ENTRY``, that are acknowledged at ``now`` (ms)."""
        return in_force(self.acknowledged_entries, now)

    def loss(self, now: int) -> tuple[float, int, int]:
        """How much may get lost at ``now`` (ms): share, ledgers, bytes."""
        raised = self.max_shrinkage_raised
        share, ledgers, nbytes = self.max_shrinkage, self.max_lost_ledgers, self.max_lost_bytes
        if raised and raised.holds(now):
            return share, ledgers, nbytes
        return min(share, MAX_LOSS[0]), min(ledgers, MAX_LOSS[1]), min(nbytes, MAX_LOSS[2])


class ApplySettings(Section):
    """Caps of one launch: apply (direct or not), sweep, reconcile, trim, deleting topics, redrive.

    A launch may lower them; one that asks for more fails before anything is done.
    """

    max_ledgers: int = Field(default=100_000, gt=0)
    """Ledgers; dead letters of a redrive."""
    max_share: float = Field(default=0.05, gt=0, le=1)
    """Share of the cluster's ledgers."""
    max_bytes: int = Field(default=1 << 50, gt=0)
    """On the bookies' disks, with all replicas, or in the bucket."""
    max_ledgers_per_topic: int = Field(default=100_000, gt=0)
    """Ledgers of one topic."""


class ConsumedRecordsSettings(Section):
    """Records that go once they are consumed, whatever retention says: job ``plan_consumed_records``.

    How far its plans go by themselves says ``automation.consumed_records``.
    """

    subscriptions: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    """By namespace (``tenant/namespace``) or full topic name, the subscriptions that count: what all of them have
    acknowledged goes. Where one does not exist, nothing does. A partition's own entry goes before its topic's, and that
    before its namespace's."""

    @field_validator("subscriptions")
    @classmethod
    def _count_something(cls, value: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for name, subscriptions in value.items():
            owner_names((name,))
            if "/" not in name:
                raise ValueError(f"expected tenant/namespace or persistent://tenant/namespace/topic, found {name!r}")
            if not subscriptions or not all(subscriptions):
                raise ValueError(f"{name}: expected the names of the subscriptions that count")
        return value


class DeletionSettings(Section):
    """The deletion queue and the deletion run. The camel-case names are PIP-186's own."""

    topicTwoPhaseDeletionEnabled: bool = True  # noqa: N815 - the PIP's name
    """PIP-186's switch. ``false`` refuses every deletion, and deletes no copy in BookKeeper; what the queue holds
    stays there. Offloading, undo and reverting offloads go on."""
    twoPhaseDeletionLedgerDeletionParallelism: int = Field(default=4, gt=0)  # noqa: N815 - the PIP's name
    """Partitions the deletion topic is created with."""
    twoPhaseDeletionReconsumeLaterInSeconds: int = Field(default=600, gt=0)  # noqa: N815 - the PIP's name
    """How much later a message that failed is tried again."""
    twoPhaseDeletionMaxRetryDeleteCount: int = Field(default=10, ge=0)  # noqa: N815 - the PIP's name
    """Tries after the first; then it goes to the dead-letter topic."""
    deliver_after: Seconds = 600.0
    """An intent is delivered this much later; at least 10 min."""
    deletes_per_second: int = Field(default=1_000, gt=0)
    """Z-node deletions per second, over all executors together."""
    bytes_per_second: int = Field(default=1 << 40, gt=0)
    """Bytes (as written, before replication) that are deleted per second, over all executors together."""
    batch: int = Field(default=500, gt=0, le=2000)
    """Ledgers of one ZooKeeper transaction."""
    max_messages: int = Field(default=1_000_000, gt=0)
    """Messages one run takes from the queue."""
    idle_timeout: Seconds = 5.0
    """A consumer that received nothing for this long ends its work."""
    waiting_delay: Seconds = Field(default=1_800.0, ge=1.0, le=86_400.0)
    """A message that must wait comes again after this; 1 s to a day."""


class TrimmingSettings(Section):
    """Taking ledgers off the lists of topics that live on."""

    loaded_topics: StrictBool | tuple[str, ...] = False
    """Write the z-nodes of loaded topics too: of all (``true``), or of those of these tenants, namespaces and full
    topic names. Each is unloaded at once, and its clients reconnect."""
    system_topics: bool = False
    """Let system topics be trimmed and deleted, where ``orphans.system_topics`` is true as well; transactions and the
    deletion queue never."""
    unloads_per_second: float = Field(default=5.0, gt=0)
    """How fast topics are unloaded."""
    max_unloads: int = Field(default=500, ge=0)
    """Unloads that one run may do. Deleting records up to the end of a topic takes two of them."""

    @field_validator("loaded_topics")
    @classmethod
    def _load_something(cls, value: bool | tuple[str, ...]) -> bool | tuple[str, ...]:
        return value if isinstance(value, bool) else owner_names(value)


class OffloadSettings(Section):
    """Offloading ledgers to the object store from outside the brokers."""

    namespaces: tuple[str, ...] = ()
    """Namespaces whose topics may have offload policies of their own though the namespace has none."""
    brokers: dict[str, str] = Field(default_factory=dict)
    """What the brokers' own ``broker.conf`` says of tiered storage and no API shows: their bucket, region, endpoint and
    block size, by the names that they have there (``s3ManagedLedgerOffloadBucket`` ...)."""
    loaded_topics: StrictBool | tuple[str, ...] = False
    """As ``trimming.loaded_topics``, for offloading and for deleting copies in BookKeeper."""
    bookkeeper_copies: Literal["brokers", "ours"] = "brokers"
    """Who deletes copies in BookKeeper: ``brokers``, by their own deletion lag and without a proof, or ``ours``. With
    ``ours`` the brokers' lag must be -1: where it is not, no copy is deleted."""
    deletion_lag: Seconds = 4 * 3600.0
    """How long after its offload we delete a copy in BookKeeper, with ``bookkeeper_copies = "ours"``. The default is
    the brokers' own (``managedLedgerOffloadDeletionLagMs``)."""
    revert_unproven: StrictBool = False
    """Let a topic read a ledger from BookKeeper again, once its offloaded copy fails a proof and BookKeeper has it
    whole."""
    block_size: int = Field(default=64 << 20, ge=5 << 20)
    """Bytes of a part where no policy says it (``s3ManagedLedgerOffloadMaxBlockSizeInBytes``)."""
    read_bytes_per_second: int = Field(default=1 << 28, gt=0)
    """Bytes read from the bookies per second, over all executors together. A deletion run that compares copies has as
    much for both of them."""
    max_ledgers: int = Field(default=10_000, gt=0)
    """Ledgers that one run offloads; and as many copies in BookKeeper that it deletes."""
    max_bytes: int = Field(default=1 << 44, gt=0)
    """The same in bytes of entries."""
    waive_read_check: bool = False
    """Commit before any broker has read: only where the sandbox's marker is, whose brokers have no offloader."""

    @field_validator("loaded_topics")
    @classmethod
    def _load_something(cls, value: bool | tuple[str, ...]) -> bool | tuple[str, ...]:
        return value if isinstance(value, bool) else owner_names(value)


class CollectionSettings(Section):
    """Making bookies collect garbage and compact (job ``collect_bookies``)."""

    min_bytes: int = Field(default=10 << 30, gt=0)
    """A bookie that could free less is left alone; so is its major compaction after a minor one."""
    at_once: int = Field(default=1, gt=0)
    """Bookies that collect at the same time, all of one rack."""
    max_add_latency: Seconds = 0.1
    """A collecting bookie whose adds take longer (99th percentile) stops the run."""
    stalled_after: Seconds = 4 * 3600.0
    """A collecting bookie without progress for so long stops the run. Progress shows once an entry log is done: one of
    many small entries takes hours."""


class LoadSettings(Section):
    """Retention that needs a broker: which topics a run may load (job ``load_topics``), and how many at once.

    Retention of all others goes by metadata alone.
    """

    namespaces: tuple[str, ...] = ()
    """Tenants, namespaces and full topic names whose topics may be loaded."""
    subscription_expiry: tuple[str, ...] = ()
    """Of these, where subscriptions past ``subscriptionExpirationTimeMinutes`` are deleted: those that the plan names,
    others perhaps by a broker meanwhile. Elsewhere a topic with one that is past it within a day is not loaded."""
    inactive_subscriptions: tuple[str, ...] = ()
    """Of these, where the inactive subscriptions of the scan's plan are deleted. ``inactivity.subscriptions`` must name
    the topic, too. Each topic is loaded for that, whatever the subscription keeps. Elsewhere such subscriptions stay
    while no broker has their topic."""
    topic_deletion: tuple[str, ...] = ()
    """Of these, where a broker may delete inactive topics meanwhile. Elsewhere a topic that could be deleted is not
    loaded; nor anywhere one with a subscription that never goes."""
    backlog_eviction: tuple[str, ...] = ()
    """Of these, where a broker may drop unread messages beyond a backlog quota (``consumer_backlog_eviction``)
    meanwhile, which no cap counts. Elsewhere a topic that has any is not loaded."""
    compaction: tuple[str, ...] = ()
    """Of these, where a broker may begin a compaction by a compaction threshold meanwhile, or make the cursor of one.
    Elsewhere a topic where that would happen is not loaded."""
    min_bytes: int = Field(default=1 << 20, gt=0)
    """A topic that a load frees less of is left alone; ledgers that were never closed count as enough."""
    at_once: int = Field(default=10, gt=0)
    """Topics of one broker that are loaded at the same time, and of those whose bundles nobody owns."""
    max_per_broker: int = Field(default=500, gt=0)
    """Topics of one broker that one run loads; those of bundles that nobody owns count for each."""
    max_per_bundle: int = Field(default=100, gt=0)
    """Topics of one bundle that one run loads."""
    max_broker_load: float = Field(default=0.7, gt=0, le=1)
    """A broker that uses more of its CPU, direct memory or network gets no topic to load."""
    min_owner_age: Seconds = 600.0
    """A bundle whose owner changed later than this is left alone: it may be moved for its load."""
    timeout: Seconds = Field(default=300.0, gt=0)
    """How long one step of topics that are loaded together may take."""

    @field_validator(
        *("namespaces", "subscription_expiry", "inactive_subscriptions", "topic_deletion"),
        *("backlog_eviction", "compaction"),
    )
    @classmethod
    def _name_something(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return owner_names(value)


FUNCTIONS_METADATA = "persistent://public/functions/metadata"
"""The function workers' topic, where their configuration says nothing else."""


class InactivitySettings(Section):
    """When topics and subscriptions count as inactive, and which of these may be deleted (job ``report_activity``).

    Without a name here they are only reported.
    """

    period: Seconds = 7 * 86400.0
    """How long nobody used it, all of it within our own history of scans; at least 24 h to delete anything."""
    max_gap: Seconds = 2 * 86400.0
    """Two scans with reports that are further apart begin the history anew."""
    topics: tuple[str, ...] = ()
    """Tenants, namespaces and full topic names whose inactive topics may be deleted, by plan and apply."""
    subscriptions: tuple[str, ...] = ()
    """The same of inactive subscriptions, whose unread messages then go by retention."""
    kept_subscriptions: tuple[str, ...] = ()
    """Names of subscriptions that never go, as inactive or expired: whole names, no patterns."""
    functions_metadata: str = FUNCTIONS_METADATA
    """The function workers' topic of functions, sinks and sources, whose subscriptions never go either:
    their ``pulsarFunctionsNamespace`` and ``functionMetadataTopicName``. Empty: none is read. Any other than the
    default must exist."""

    @field_validator("topics", "subscriptions")
    @classmethod
    def _name_something(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        return owner_names(value)

    @field_validator("functions_metadata")
    @classmethod
    def _name_a_topic(cls, value: str) -> str:
        if value and not re.fullmatch(r"persistent://[^/]+/[^/]+/[^/]+", value):
            raise ValueError(f"persistent://TENANT/NAMESPACE/TOPIC, or nothing, found {value!r}")
        return value


class DelayedIndexRepairs(Section):
    """Repairs of delayed-index buckets (job ``repair_delayed_index``)."""

    namespaces: tuple[str, ...] = ()
    """Namespaces whose subscriptions a plan may have; empty: all."""
    whole_backlogs: tuple[str, ...] = ()
    """Namespaces whose topics `check_delayed_index` reads from their slowest subscription on, whether a subscription
    has buckets or not: so it finds delayed messages that brokers have in memory alone. Of others it reads only topics
    of which a subscription has buckets."""
    loaded_topics: StrictBool | tuple[str, ...] = False
    """Repair subscriptions of topics that a broker has, which is made to unload them first: all, none, or those of
    these tenants, namespaces and topics."""
    merge_below: int = Field(default=10_000, gt=0)
    """Buckets with fewer messages count as small."""
    merge_above: int = Field(default=20, ge=0)
    """A subscription with more small buckets than these has them merged; 0: never."""
    brokers: dict[str, str] = Field(default_factory=dict)
    """What ``broker.conf`` says of delayed delivery, by the names that it has there
    (``delayedDeliveryMinIndexCountPerBucket`` ...): new buckets are cut as brokers cut theirs. What is not named has
    the brokers' default."""

    @field_validator("loaded_topics")
    @classmethod
    def _load_something(cls, value: bool | tuple[str, ...]) -> bool | tuple[str, ...]:
        return value if isinstance(value, bool) else owner_names(value)


class MetricsSettings(Section):
    """Where the metrics of two-phase deletion go besides the UI."""

    textfile: str = ""
    """A file for Prometheus' node_exporter (textfile collector); an absolute path that ends in ``.prom``.
    It is written after each run with effects and by ``queue status``. Empty: none is written."""

    @field_validator("textfile")
    @classmethod
    def _collected(cls, value: str) -> str:
        if value and not (value.startswith("/") and value.endswith(".prom")):  # any other name is never collected
            raise ValueError(f"expected an absolute path that ends in .prom, found {value!r}")
        return value
