"""The settings file: one TOML document per cluster, validated as a whole when it is loaded.

Belongs here: where the servers and the lake are, how to reach them, and the whole file; every setting has its default,
its unit and its check. Not here: what runs may do (``run_settings.py``), opening anything. Secrets are named by file or
environment variable, never written in the file. Its path comes from ``PULSAR_LIFECYCLE_CONFIG``.
"""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from pulsar_lifecycle.automation_settings import AutomationSettings
from pulsar_lifecycle.errors import ConfigError
from pulsar_lifecycle.run_settings import (
    ApplySettings,
    CollectionSettings,
    ConsumedRecordsSettings,
    DelayedIndexRepairs,
    DeletionSettings,
    InactivitySettings,
    LoadSettings,
    MetricsSettings,
    OffloadSettings,
    OrphanSettings,
    TrimmingSettings,
)
from pulsar_lifecycle.setting_types import Seconds, SecretRef, Section, Tls
from pulsar_lifecycle.words import Explained, GoneNamespace, NotSharing, Word, WordKind, in_force

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

    def without_chroot(self) -> tuple[ZooKeeperSettings, str]:
        """How to reach the whole of the same ZooKeeper, and the chroot that was left out (empty: none)."""
        hosts, _, chroot = self.hosts.partition("/")
        chroot = chroot.strip("/")
        return self.model_copy(update={"hosts": hosts}), f"/{chroot}" if chroot else ""


class PulsarSettings(Section):
    """The brokers: admin REST and binary protocol."""

    admin_url: str
    """``http(s)://host:port`` of a load balancer or a broker, or ``http(s)://host:port,host:port`` of several brokers:
    where one does not answer the next is asked. No run goes on once none does."""
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


class BookieAdminSettings(Section):
    """The HTTP servers of the bookies (``httpServerEnabled``); where they are, bookies say themselves."""

    tls: Tls | None = None
    """TLS to them; then none is asked in the clear."""
    request_timeout: Seconds = 10.0
    """How long one may take to answer."""


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
    """How long a bookie may take to answer before another replica is asked."""
    gc_wait: Seconds = 900.0
    """How long an undo waits before it asks the bookies again: the longest ``gcWaitTime`` of any of them, and what one
    collection takes."""
    flush_interval: Seconds = 60.0
    """The longest ``flushInterval`` of any bookie. One that crashes before its next flush has again what it collected:
    so long after all said that they have nothing, delete records with ``--wait-for-bookies`` asks them again."""
    tls: Tls | None = None
    """TLS to the bookies; then none is read in the clear. Bookies that demand SASL cannot be read."""
    admin: BookieAdminSettings = BookieAdminSettings()
    """The bookies' HTTP servers."""

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
    objects that carry it are proven or deleted."""
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
    tries: int = Field(default=5, gt=0)
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


class CatalogSettings(Section):
    """What Dagster's catalog says of every asset: who owns it, and how old it may be before its health is bad."""

    owners: tuple[str, ...] = ()
    """``team:NAME`` or e-mail addresses."""
    scan_fresh_for: Seconds = Field(default=5_400.0, ge=75)
    """A scan and the plan of orphans: too old half an hour after an hourly scan that is missing would have ended. One
    that takes less than half an hour longer than the last is in time. Other plans that go by themselves, or once
    approved, are too old so long after ``orphans.plan_valid_for``: they may be made at night."""
    queue_fresh_for: Seconds = Field(default=3_600.0, ge=75)
    """The look at the deletion queue."""
    inventory_fresh_for: Seconds = Field(default=2 * 86_400.0, ge=75)
    """The inventory of the buckets, and the plan of objects that is made with it."""

    @field_validator("owners")
    @classmethod
    def _reachable(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if not re.fullmatch(r"team:\S+|[^@\s]+@[^@\s]+\.[^@\s]+", name):
                raise ValueError(f"expected team:NAME or an e-mail address, found {name!r}")
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
    automation: AutomationSettings = AutomationSettings()
    consumed_records: ConsumedRecordsSettings = ConsumedRecordsSettings()
    deletion: DeletionSettings = DeletionSettings()
    trimming: TrimmingSettings = TrimmingSettings()
    offload: OffloadSettings = OffloadSettings()
    collection: CollectionSettings = CollectionSettings()
    load: LoadSettings = LoadSettings()
    inactivity: InactivitySettings = InactivitySettings()
    delayed_index: DelayedIndexRepairs = DelayedIndexRepairs()
    metrics: MetricsSettings = MetricsSettings()
    catalog: CatalogSettings = CatalogSettings()

    @model_validator(mode="after")
    def _some_plan_fits(self) -> Settings:
        self.automation.check_minimums(self.apply.max_ledgers, self.apply.max_bytes)
        return self

    def root(self, name: str) -> ZooKeeperSettings:
        """How to reach the metadata store of our own root (empty name) or of a declared one. Raises ConfigError."""
        if not name:
            return self.zookeeper
        for shared in self.bookkeeper.shared_with or ():
            if shared.name == name:
                limits = self.zookeeper.model_dump(
                    include={"session_timeout", "reads_per_second", "slow_above", "stop_above"}
                )
                return ZooKeeperSettings(hosts=shared.hosts, tls=shared.tls, digest=shared.digest, **limits)
        raise ConfigError(f"bookkeeper.shared_with: there is no root named {name!r}")

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
