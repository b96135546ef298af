"""The offload policy in force of a topic, and whether it makes sense beside its retention.

Belongs here: how topic, namespace and broker settings become one policy, as brokers compute it. Not here: reading them
(``io/pulsar/admin.py``, ``metastore/walk.py``), which ledgers it means (``tiered/planning/candidates.py``).
Upstream: ``OffloadPoliciesImpl.mergeConfiguration`` and ``TieredStorageConfiguration.getKeys``, Pulsar 4.0.7; the rule
about retention is PIP-17's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.topics.retention_policy import RetentionPolicy
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.plans.offload_plan import OffloadCode

ACTING_DRIVERS = {"aws-s3": "AWS_S3", "s3": "S3"}
"""Drivers (in lower case) whose objects we write -> ``managedLedgerOffloadDriver`` in their metadata."""
KNOWN_DRIVERS = frozenset({*ACTING_DRIVERS, "google-cloud-storage", "filesystem", "azureblob", "aliyun-oss"})

OFFLOAD_POLICIES = "offloadPolicies"
"""Field of TopicPolicies."""

DRIVER = "managedLedgerOffloadDriver"
THRESHOLD_BYTES = "managedLedgerOffloadThresholdInBytes"
THRESHOLD_SECONDS = "managedLedgerOffloadThresholdInSeconds"
DELETION_LAG = "managedLedgerOffloadDeletionLagInMillis"
READ_PRIORITY = "managedLedgerOffloadedReadPriority"
"""Fields of OffloadPolicies; thresholds below 0 are off."""

BROKER_READ_PRIORITY = "managedLedgerDataReadPriority"
BOOKKEEPER_FIRST = (
    f"brokers read BookKeeper first ({READ_PRIORITY}, {BROKER_READ_PRIORITY}), so none has shown that it can read the "
    "bucket"
)
"""Why no copy in BookKeeper may go, by whomever: the read check read that very copy."""

_TIERED_STORAGE_FIRST = "tiered-storage-first"
"""The brokers' default; the JSON of a policy spells it ``TIERED_STORAGE_FIRST``."""

_NUMBERS = frozenset(
    {
        THRESHOLD_BYTES,
        THRESHOLD_SECONDS,
        DELETION_LAG,
        "managedLedgerOffloadMaxBlockSizeInBytes",
        "s3ManagedLedgerOffloadMaxBlockSizeInBytes",
    }
)
"""Fields of which an empty text says nothing; any other one that a policy sets to it is set."""

_BROKER_NAMES = {
    DRIVER: "managedLedgerOffloadDriver",
    THRESHOLD_BYTES: "managedLedgerOffloadAutoTriggerSizeThresholdBytes",
    THRESHOLD_SECONDS: "managedLedgerOffloadThresholdInSeconds",
    DELETION_LAG: "managedLedgerOffloadDeletionLagMs",
    READ_PRIORITY: BROKER_READ_PRIORITY,
}
"""What the same is called in broker.conf; what is not here has the same name there."""

_OLD_NAMES = {
    THRESHOLD_BYTES: "offload_threshold",
    THRESHOLD_SECONDS: "offload_threshold_in_seconds",
    DELETION_LAG: "offload_deletion_lag_ms",
}
"""Fields of namespace policies that count where ``offload_policies`` has none (oldPoliciesCompatible)."""

_BROUGHT: Mapping[str, Any] = {"s3ManagedLedgerOffloadMaxBlockSizeInBytes": 64 << 20}
"""What a policy of a topic or a namespace says without being asked, before any word of the brokers."""


@dataclass(frozen=True, slots=True)
class OffloadPolicy:
    """An offload policy in force. Thresholds below 0 are off; a deletion lag of None or below 0 keeps both copies.

    ``bucket`` is empty where only the brokers' configuration files know it: no API shows it.
    """

    driver: str
    bucket: str
    region: str
    endpoint: str
    threshold_bytes: int
    threshold_seconds: int
    deletion_lag_ms: int | None
    block_size: int | None
    tiered_first: bool
    """Whether brokers read the offloaded copy as soon as there is one: only then a read proves that they can."""
    sources: Mapping[str, str]
    """Field -> ``topic``, ``namespace`` or ``broker``: whose word it is."""

    @property
    def automatic(self) -> bool:
        """Whether brokers offload by it without being asked."""
        return self.threshold_bytes >= 0 or self.threshold_seconds >= 0

    @property
    def acts(self) -> bool:
        """Whether its driver is one whose objects we write."""
        return self.driver.lower() in ACTING_DRIVERS

    @property
    def keeps_both(self) -> bool:
        """Whether copies in BookKeeper stay beside the offloaded ones: no deletion lag is set."""
        return self.deletion_lag_ms is None or self.deletion_lag_ms < 0

    @property
    def brokers_delete(self) -> bool:
        """Whether brokers may delete copies of loaded topics by themselves; they prove nothing first.

        Where nobody says their lag, they may.
        """
        return self.deletion_lag_ms is None or self.deletion_lag_ms >= 0


def of_layers(topic: TopicPolicies, namespace: Mapping[str, Any] | None, broker: Mapping[str, Any]) -> OffloadPolicy:
    """:func:`in_force` of all that a topic has of its own; a rule for ``topics.policies.Layers``."""
    return in_force(topic.first(OFFLOAD_POLICIES), namespace, broker)


def in_force(
    topic: Mapping[str, Any] | None, namespace: Mapping[str, Any] | None, broker: Mapping[str, Any]
) -> OffloadPolicy:
    """The policy of a topic: of each field the first that is set, topic before namespace before broker.

    ``topic``: its ``offloadPolicies``; ``namespace``: the whole namespace policies; ``broker``: a broker's runtime
    configuration, or what the operator says of it. Raises CorruptFormat naming a field that is no number.
    """
    layers = {
        "topic": {**_BROUGHT, **topic} if topic else {},
        "namespace": _of_namespace(namespace or {}),
        "broker": {name: broker.get(theirs) for name, theirs in _BROKER_NAMES.items()} | dict(broker),
    }
    sources: dict[str, str] = {}

    def first(name: str) -> Any:
        for layer, values in layers.items():
            value = values.get(name)
            if value is not None and (value != "" or (layer != "broker" and name not in _NUMBERS)):
                sources[name] = layer
                return value
        return None

    def number(name: str) -> int | None:
        value = first(name)
        try:
            return None if value is None else int(value)
        except (TypeError, ValueError):
            raise CorruptFormat(f"offload policy of the {sources[name]}", 0, f"a number as {name}") from None

    driver = str(first(DRIVER) or "")

    def of_driver(name: str) -> str:
        """``TieredStorageConfiguration.getKeys``: aws-s3 has names of its own, which come first."""
        own = f"s3ManagedLedgerOffload{name}" if driver.lower() == "aws-s3" else ""
        return (own if own and first(own) is not None else "") or f"managedLedgerOffload{name}"

    names = {name: of_driver(name) for name in ("Bucket", "Region", "ServiceEndpoint", "MaxBlockSizeInBytes")}
    size, seconds = number(THRESHOLD_BYTES), number(THRESHOLD_SECONDS)
    priority = first(READ_PRIORITY)
    tiered_first = priority is None or str(priority).lower().replace("_", "-") == _TIERED_STORAGE_FIRST
    return OffloadPolicy(
        driver=driver,
        bucket=str(first(names["Bucket"]) or ""),
        region=str(first(names["Region"]) or ""),
        endpoint=str(first(names["ServiceEndpoint"]) or "").rstrip("/"),
        threshold_bytes=-1 if size is None else size,
        threshold_seconds=-1 if seconds is None else seconds,
        deletion_lag_ms=number(DELETION_LAG),
        block_size=number(names["MaxBlockSizeInBytes"]),
        tiered_first=tiered_first,
        sources=sources,
    )


def _of_namespace(policies: Mapping[str, Any]) -> Mapping[str, Any]:
    own: dict[str, Any] = policies.get("offload_policies") or {}
    if type(own) is not dict:
        raise CorruptFormat("offload policy of the namespace", 0, "an object as offload_policies")
    old = {name: policies.get(theirs) for name, theirs in _OLD_NAMES.items()}
    said = {name: value for name, value in old.items() if value is not None and (name == DELETION_LAG or value != -1)}
    brought: Mapping[str, Any] = _BROUGHT if own or said else {}
    return said | {name: value for name, value in {**brought, **own}.items() if value is not None}


def refusal(policy: OffloadPolicy, retention: RetentionPolicy) -> Why | None:
    """Why offloading by this policy makes no sense: retention would delete first. None if it does make sense."""
    if policy.threshold_seconds >= 0 and retention.minutes > 0 and policy.threshold_seconds >= retention.minutes * 60:
        limits = f"{THRESHOLD_SECONDS} is {policy.threshold_seconds}, retentionTimeInMinutes {retention.minutes}"
        return Why(OffloadCode.RETENTION_FIRST, f"{limits}: {_BELOW}")
    if policy.threshold_bytes >= 0 and retention.megabytes > 0 and policy.threshold_bytes >= retention.megabytes << 20:
        limits = f"{THRESHOLD_BYTES} is {policy.threshold_bytes}, retentionSizeInMB {retention.megabytes}"
        return Why(OffloadCode.RETENTION_FIRST, f"{limits}: {_BELOW}")
    return None


_BELOW = "the threshold must be below the retention, or ledgers are deleted before they are offloaded"


def competing(policy: OffloadPolicy) -> Why | None:
    """Why we delete no copy by this policy: brokers would beside us, and without a proof. None if they do not."""
    if not policy.brokers_delete:
        return None
    said = "nobody says" if policy.deletion_lag_ms is None else f"is {policy.deletion_lag_ms}"
    text = (
        f"brokers delete copies in BookKeeper by themselves, unproven ({DELETION_LAG} {said}): with "
        "offload.bookkeeper_copies "
        '= "ours" it must be -1, and offload.deletion_lag counts'
    )
    return Why(Code.BROKERS_DELETE, text)


def warning(policy: OffloadPolicy, retention: RetentionPolicy) -> str | None:
    """What an operator should know of a policy that is not refused."""
    if policy.automatic and retention.nothing:
        return "retention is 0: only unacknowledged backlog is left to offload"
    return None
