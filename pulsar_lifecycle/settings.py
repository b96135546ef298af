"""The settings file: one TOML document per cluster, validated as a whole when it is loaded.

Belongs here: every setting with its default, its unit and its check. Not here: opening anything. Secrets are named by
file or environment variable, never written in the file. Its path comes from ``PULSAR_LIFECYCLE_CONFIG``.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import (
    Field,
    StrictBool,
    ValidationError,
    field_validator,
    model_validator,
)

from pulsar_lifecycle.errors import ConfigError
from pulsar_lifecycle.setting_types import Seconds, SecretRef, Section, Tls
from pulsar_lifecycle.words import (
    AcknowledgedEntry,
    AcknowledgedZnode,
    Explained,
    GoneNamespace,
    LegalHold,
    NotSharing,
    RaisedShrinkage,
    Word,
    WordKind,
    in_force,
)

CONFIG_VARIABLE = "PULSAR_LIFECYCLE_CONFIG"


class ZooKeeperSettings(Section):
    """How to reach the metadata store and how hard to lean on it."""

    hosts: str
    """Connect string ``host:port,host:port`` with an optional ``/chroot``."""
    tls: Tls | None = None
    """TLS to ZooKeeper."""
    digest: SecretRef | None = None
    """``user:password`` for the digest scheme."""
    sasl_mechanism: Literal["", "DIGEST-MD5", "GSSAPI"] = ""
    """``DIGEST-MD5`` or ``GSSAPI``; empty: no SASL."""
    sasl_username: str = ""
    """For ``DIGEST-MD5``."""
    sasl_password: SecretRef | None = None
    """Secret, for ``DIGEST-MD5``."""
    session_timeout: Seconds = 30.0
    """A dead run's lease is free after this long."""
    reads_per_second: int = Field(default=50_000, gt=0)
    """Z-nodes read per second, over all executors together."""
    slow_above: Seconds = 0.1
    """Latency of ZooKeeper at which reading and deleting slow down."""
    stop_above: Seconds = 0.5
    """Latency at which they stop."""


class PulsarSettings(Section):
    """The brokers: admin REST and binary protocol."""

    admin_url: str
    """``http(s)://host:port``."""
    service_url: str
    """``pulsar(+ssl)://host:port``."""
    token: SecretRef | None = None
    """Secret: a JWT."""
    tls: Tls | None = None
    """TLS to the brokers, admin and binary protocol."""
    request_timeout: Seconds = 30.0
    """For admin requests, sends and receipts."""

    @field_validator("service_url")
    @classmethod
    def _binary(cls, value: str) -> str:
        if not re.fullmatch(r"pulsar(\+ssl)?://[^\s/]+/?", value):
            raise ValueError(f"expected pulsar://host:6650 or pulsar+ssl://host:6651, found {value!r}")
        return value


class SharedRoot(Section):
    """Another Pulsar cluster whose ledgers live in the same BookKeeper: its metadata is read for references."""

    name: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    """Its tables are stored and its coverage is proven under this name."""
    hosts: str
    tls: Tls | None = None
    digest: SecretRef | None = None


class BookKeeperSettings(Section):
    """The BookKeeper cluster and who shares it."""

    ledgers_root: str = "/ledgers"
    """Where BookKeeper's metadata is, below the chroot of ``zookeeper.hosts``."""
    shared_with: tuple[SharedRoot, ...] | None = None
    """Every other Pulsar cluster on this BookKeeper: ``{ name, hosts, tls, digest }``; ``[]`` states that there is
    none. Unset: plans are report-only."""
    not_sharing: tuple[Explained[NotSharing], ...] = ()
    """``{ path, by, why, until }``. Z-nodes of our ZooKeeper, its chroot left out (``/``, ``/west``), with metadata of
    clusters that have a BookKeeper of their own, or that we may not list. Every scan looks two levels deep below ``/``,
    below our own chroot, and below each z-node above it. What it finds and no setting speaks of makes plans
    report-only."""
    gone_namespaces: tuple[Explained[GoneNamespace], ...] = ()
    """``{ name, by, why, until }``. Namespaces that exist under no declared root and whose ledgers may be judged all
    the same."""
    read_timeout: Seconds = 10.0
    """How long a bookie may be silent before another replica is asked."""
    gc_wait: Seconds = 900.0
    """How long an undo waits before it asks the bookies again: the longest ``gcWaitTime`` of any of them, and what one
    collection takes."""
    tls: Tls | None = None
    """TLS to the bookies; then none is read in the clear. Bookies that demand SASL cannot be read."""

    @field_validator("shared_with")
    @classmethod
    def _told_apart(cls, value: tuple[SharedRoot, ...] | None) -> tuple[SharedRoot, ...] | None:
        names = [root.name for root in value or ()]
        for name in names:
            if names.count(name) > 1:  # only the first would be read, and the proof would hold for both
                raise ValueError(f"two roots have the name {name!r}")
        return value

    def not_sharing_at(self, now: int) -> frozenset[str]:
        """The z-nodes of other clusters' metadata that do not matter by the operator's word at ``now`` (ms)."""
        return in_force(self.not_sharing, now)

    def gone(self, now: int) -> frozenset[str]:
        """The namespaces that are gone by the operator's word at ``now`` (ms)."""
        return in_force(self.gone_namespaces, now)


class ObjectStoreSettings(Section):
    """The object store of tiered storage; nothing of it is ever taken from a message.

    Without it messages about offloaded copies wait, behind the others, and no offloaded ledger is trimmed.
    """

    endpoint: str = ""
    """``http(s)://host:port`` of an S3 service; empty: Amazon's own of the region. Messages and the AWS configuration
    of the machine never change it."""
    region: str = "us-east-1"
    """The region of endpoint and buckets."""
    access_key: SecretRef | None = None
    """Secret."""
    secret_key: SecretRef | None = None
    """Secret. Both or neither; neither: the machine's own credentials (instance role, web identity, AWS variables)."""
    buckets: tuple[str, ...] = Field(min_length=1)
    """The only buckets that are ever looked at; a message that names another is refused. Keep a bucket here for as long
    as objects are in it."""
    pulsar_cluster: str = ""
    """The cluster's name as its offloaders write it into the objects (``clusterName``); empty: ``cluster``. Only
    objects that carry it are deleted."""
    exclusive: bool = False
    """States that no other cluster of that name ever wrote into these buckets. Messages that our own trims and
    deletions of topics did not send need it."""
    addressing: Literal["auto", "path", "virtual"] = "auto"
    """How a bucket is addressed: in the path, or as a virtual host."""
    sign_payload: bool = True
    """Over plain http also sign the SHA-256 of what is sent. Uploads are covered by their signed Content-MD5 anyway.
    https never needs it. ``false`` saves CPU time, and on some servers the memory of a whole part."""
    tls: Tls | None = None
    """TLS to the object store."""
    connect_timeout: Seconds = 5.0
    """For a connection."""
    read_timeout: Seconds = 30.0
    """For an answer."""
    attempts: int = Field(default=5, gt=0)
    """Tries of one request, waiting longer before each."""
    connections: int = Field(default=16, gt=0)
    """Requests at a time, of each executor core."""

    @field_validator("endpoint")
    @classmethod
    def _url(cls, value: str) -> str:
        if value and not re.fullmatch(r"https?://[^/\s]+/?", value):
            raise ValueError(f"expected http(s)://host:port, found {value!r}")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _both_keys(self) -> ObjectStoreSettings:
        if (self.access_key is None) != (self.secret_key is None):
            raise ValueError("give both access_key and secret_key, or neither")
        return self


class LakeSettings(Section):
    """Where epochs, plans, journal and archive are kept: a folder that driver and executors share."""

    path: str
    """Absolute folder that driver and executors share, or ``s3://bucket/prefix``."""

    @field_validator("path")
    @classmethod
    def _absolute(cls, value: str) -> str:
        if not (value.startswith("/") or "://" in value.rstrip("/")):
            raise ValueError("expected an absolute path or a URI such as s3://bucket/prefix")
        return value.rstrip("/")


class SparkSettings(Section):
    """The Spark session; ``conf`` goes to it as it is."""

    master: str = "local[*]"
    """Any Spark master."""
    conf: dict[str, str] = Field(default_factory=dict)
    """Passed to Spark as it is."""
    scan_partitions: int = Field(default=8, gt=0)
    """Tasks a table is read in."""


def _owner_names(value: tuple[str, ...]) -> tuple[str, ...]:
    """Tenants, namespaces and full topic names. One that no owner's name can equal would select nothing, unsaid."""
    names = list(value)
    for name in value:
        scheme, found, rest = name.partition("://")
        parts = (rest if found else name).split("/")
        known = (scheme == "persistent" and len(parts) >= 3) if found else len(parts) <= 3
        if not known or not all(parts) or name != name.strip():
            raise ValueError(
                f"expected tenant, tenant/namespace or persistent://tenant/namespace/topic, found {name!r}"
            )
        if not found and len(parts) == 3:  # a V1 namespace, or a topic as Pulsar's own tools shorten it: both
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
        _owner_names(tuple(word.name for word in value))
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
        return frozenset(_owner_names(tuple(in_force(self.legal_holds, now))))

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
    """On the bookies or in the bucket; of trimmed and deleted topics as written, before replication."""
    max_ledgers_per_topic: int = Field(default=100_000, gt=0)
    """Ledgers of one topic."""


class DeletionSettings(Section):
    """The deletion queue and the deletion run. The camel-case names are PIP-186's own."""

    topicTwoPhaseDeletionEnabled: bool = True  # noqa: N815 - the PIP's name
    """PIP-186's switch. ``false`` refuses every deletion, and releases no copy in BookKeeper; what the queue holds
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
    """Topics one run may unload."""

    @field_validator("loaded_topics")
    @classmethod
    def _load_something(cls, value: bool | tuple[str, ...]) -> bool | tuple[str, ...]:
        return value if isinstance(value, bool) else _owner_names(value)


class OffloadSettings(Section):
    """Offloading ledgers to the object store from outside the brokers."""

    namespaces: tuple[str, ...] = ()
    """Namespaces whose topics may have offload policies of their own though the namespace has none."""
    brokers: dict[str, str] = Field(default_factory=dict)
    """What the brokers' own ``broker.conf`` says of tiered storage and no API shows: their bucket, region, endpoint and
    block size, by the names that they have there (``s3ManagedLedgerOffloadBucket`` ...)."""
    loaded_topics: StrictBool | tuple[str, ...] = False
    """As ``trimming.loaded_topics``, for offloading and for giving up copies in BookKeeper."""
    release: Literal["brokers", "ours"] = "brokers"
    """Who gives up copies in BookKeeper: ``brokers``, by their own deletion lag and without a proof, or ``ours``. With
    ``ours`` the brokers' lag must be -1: where it is not, nothing is released."""
    deletion_lag: Seconds = 4 * 3600.0
    """How long after its offload we give up a copy in BookKeeper, with ``release = "ours"``. The default is the
    brokers' own (``managedLedgerOffloadDeletionLagMs``)."""
    revert_unproven: StrictBool = False
    """Let a topic read a ledger from BookKeeper again, once its offloaded copy fails a proof and BookKeeper has it
    whole."""
    block_size: int = Field(default=64 << 20, ge=5 << 20)
    """Bytes of a part where no policy says it (``s3ManagedLedgerOffloadMaxBlockSizeInBytes``)."""
    read_bytes_per_second: int = Field(default=1 << 28, gt=0)
    """Bytes read from the bookies per second, over all executors together. A deletion run that compares copies has as
    much for both of them."""
    max_ledgers: int = Field(default=10_000, gt=0)
    """Ledgers that one run offloads; and again as many may be released."""
    max_bytes: int = Field(default=1 << 44, gt=0)
    """The same in bytes of entries."""
    waive_read_check: bool = False
    """Commit before any broker has read: only where the sandbox's marker is, whose brokers have no offloader."""

    @field_validator("loaded_topics")
    @classmethod
    def _load_something(cls, value: bool | tuple[str, ...]) -> bool | tuple[str, ...]:
        return value if isinstance(value, bool) else _owner_names(value)


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


class Settings(Section):
    """The whole file."""

    cluster: str = Field(pattern=r"^[A-Za-z0-9_]+$")
    """Short name (letters, digits, ``_``); asset keys and partition sets carry it."""
    zookeeper: ZooKeeperSettings
    configuration_store: str = ""
    """Connect string of the configuration metadata store, where it is another one than ``zookeeper.hosts``."""
    pulsar: PulsarSettings
    bookkeeper: BookKeeperSettings = BookKeeperSettings()
    object_store: ObjectStoreSettings | None = None
    lake: LakeSettings
    spark: SparkSettings = SparkSettings()
    orphans: OrphanSettings = OrphanSettings()
    apply: ApplySettings = ApplySettings()
    deletion: DeletionSettings = DeletionSettings()
    trimming: TrimmingSettings = TrimmingSettings()
    offload: OffloadSettings = OffloadSettings()
    metrics: MetricsSettings = MetricsSettings()

    def words(self) -> list[Word]:
        """Everything that the operator says here against, or beyond, the safety rules; expired ones too."""
        raised = self.orphans.max_shrinkage_raised
        return [
            *self.orphans.legal_holds,
            *self.orphans.acknowledged_znodes,
            *self.orphans.acknowledged_entries,
            *self.bookkeeper.gone_namespaces,
            *self.bookkeeper.not_sharing,
            *([raised] if raised and self.orphans.raised else []),
        ]

    def words_in_force(self, now: int) -> frozenset[tuple[WordKind, str]]:
        """Kind and subject of the words that hold at ``now`` (ms)."""
        return frozenset((word.kind, word.subject) for word in self.words() if word.holds(now))


def load_settings(path: str | os.PathLike[str] | None = None) -> Settings:
    """Read and validate the file at ``path``, or the one ``PULSAR_LIFECYCLE_CONFIG`` names.

    Raises ConfigError with one line per wrong key.
    """
    name = os.fspath(path) if path is not None else os.environ.get(CONFIG_VARIABLE, "")
    if not name:
        raise ConfigError(f"no settings file: set {CONFIG_VARIABLE} to the path of a lifecycle.toml")
    try:
        document: dict[str, Any] = tomllib.loads(Path(name).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{name}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: not UTF-8 text at byte {error.start}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{name}: not valid TOML: {error}") from error
    try:
        return Settings.model_validate(document)
    except ValidationError as error:
        lines = [f"{name}: {'.'.join(map(str, e['loc'])) or 'document'}: {e['msg']}" for e in error.errors()]
        raise ConfigError("\n".join(lines)) from None
