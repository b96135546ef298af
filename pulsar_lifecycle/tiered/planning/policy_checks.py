"""Whether the offload policies in force go together with our settings, and with what brokers do themselves.

Belongs here: what is said of policies; pure. Not here: reading them (``planning/offload_planning.py``), the rule of a
ledger (``planning/candidates.py``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pulsar_lifecycle.formats.offload_data import MIN_BLOCK_SIZE
from pulsar_lifecycle.settings import ObjectStoreSettings
from pulsar_lifecycle.topics import offload_policy
from pulsar_lifecycle.topics.offload_policy import DRIVER, OffloadPolicy, competing
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.plans.offload_plan import OffloadCode


def unlike_cluster(
    configurations: Mapping[str, Mapping[str, str]], store: ObjectStoreSettings | None, cluster: str
) -> list[str]:
    """How the name that brokers write into their objects is not the one that we expect there."""
    ours = (store and store.pulsar_cluster) or cluster
    return [
        f"the brokers' clusterName is {name!r}, object_store.pulsar_cluster or else cluster says {ours!r}: of what "
        "brokers offloaded nothing is proven, deleted in BookKeeper or swept until they agree"
        for name in sorted({found.get("clusterName", "") for found in configurations.values()} - {"", ours})
    ]


def unproven(policies: Mapping[str, OffloadPolicy]) -> list[str]:
    """Where no read through a broker can show that it has access to the bucket; ``policies`` by namespace or topic."""
    return [
        f"{name}: {offload_policy.BOOKKEEPER_FIRST}" for name, policy in policies.items() if not policy.tiered_first
    ]


def competing_brokers(policies: Mapping[str, OffloadPolicy]) -> list[str]:
    """Where brokers delete copies beside us, so that we delete none; ``policies`` by namespace or topic."""
    return [f"{name}: no copy is deleted: {why}" for name, policy in policies.items() if (why := competing(policy))]


def unlike_object_store(policies: Mapping[str, OffloadPolicy], store: ObjectStoreSettings | None) -> dict[str, Why]:
    """How what the brokers read from is not what we would write to, by the namespace or topic of ``policies``."""
    if store is None:
        nowhere = Why(OffloadCode.LEFT_OUT, "object_store is not set: there is nowhere to offload to")
        return dict.fromkeys(policies, nowhere)
    found = dict[str, Why]()
    for name, policy in policies.items():
        if why := "; ".join(_unlike(policy, store)):
            text = f"driver {policy.driver} of the {policy.sources.get(DRIVER, 'brokers')}: {why}"
            found[name] = Why(OffloadCode.LEFT_OUT, text)
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
