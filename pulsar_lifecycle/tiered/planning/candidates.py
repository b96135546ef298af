"""Which ledgers go to tiered storage, and which copies in BookKeeper are due to go after it.

Belongs here: the rule for the ledgers of one topic, in the words of an operator, and the plan as a value. Pure: the
topic's row of a scan, its policy and its retention come in. Not here: reading any of it, and acting
(``tiered/commit.py``). Upstream: ``ManagedLedgerImpl.maybeOffload`` and PIP-17, Pulsar 4.0.7. A plan proposes:
everything is looked at again before anything is done.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.records.plans.offload_plan import OffloadChoice
from pulsar_lifecycle.topics.listed_ledgers import THEIRS
from pulsar_lifecycle.topics.offload_policy import (
    BOOKKEEPER_FIRST,
    KNOWN_DRIVERS,
    OffloadPolicy,
    competing,
    refusal,
    warning,
)
from pulsar_lifecycle.topics.retention_policy import RetentionPolicy


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as a scan found it: ``ledgers`` as in ``tables.MANAGED_LEDGERS``, ``rule``: why it is not touched.

    ``left_to_broker``: it counts as loaded, and the settings do not let it be written then.
    """

    topic: str
    namespace: str
    ledgers: list[dict[str, Any]]
    rule: str
    left_to_broker: bool = False


def judge(
    state: TopicState,
    policy: OffloadPolicy,
    retention: RetentionPolicy,
    now: int,
    ours: Mapping[int, UUID],
    *,
    everything: bool = False,
    leftovers: Container[int] = (),
    our_lag_ms: int | None,
    buckets: Container[str],
) -> list[dict[str, Any]]:
    """A row of :data:`CANDIDATES` per ledger of a topic, by id.

    ``ours``: ledger id -> UUID of our own open attempts. ``leftovers``: offloaded ledgers that BookKeeper
    still has though their topics gave them up. ``everything`` leaves the thresholds out: an operator asked
    for all that is eligible. ``our_lag_ms``: after how long we release copies in BookKeeper; None: brokers do it.
    ``buckets`` are those of object_store. The last ledger is never offloaded: a broker that loads the topic forgets its
    offload.
    """
    ledgers = sorted(state.ledgers, key=lambda item: item["ledger_id"])
    state = replace(state, rule=state.rule or _open_attempt(ledgers, ours))
    whole = state.rule or _whole(policy, retention, everything=everything)
    lag_ms = policy.deletion_lag_ms if our_lag_ms is None else our_lag_ms
    beyond = 0
    found: list[dict[str, Any]] = []
    for place, item in enumerate(reversed(ledgers)):
        beyond += (item["size"] or 0) if item["timestamp"] else 0
        action, reason = _of_ledger(state, item, policy, now, lag_ms, whole, last=place == 0)
        if item["offload_complete"] and item["bookkeeper_deleted"] and item["ledger_id"] in leftovers:
            action, reason = _of_leftover(state, item, policy)
        if action == OffloadChoice.RELEASE and our_lag_ms is None:
            action, reason = (
                OffloadChoice.DONE,
                f"{reason}; its copy in BookKeeper is its brokers' to release (offload.release)",
            )
        if action == OffloadChoice.RELEASE and (why := competing(policy)):
            action, reason = OffloadChoice.WITHHELD, f"{reason}; its copy in BookKeeper is not released by us: {why}"
        if action == OffloadChoice.RELEASE and (why := _unreachable(item["offload_bucket"], buckets)):
            action, reason = OffloadChoice.DONE, f"{reason}; its copy in BookKeeper stays: {why}"
        if action is None:
            action, reason = (
                (OffloadChoice.OFFLOAD, "asked for") if everything else _by_threshold(item, policy, beyond, now)
            )
        found.append(_row(state, item, policy, action, reason, warning(policy, retention), lag_ms))
    return found[::-1]


def _open_attempt(ledgers: Sequence[Mapping[str, Any]], ours: Mapping[int, UUID]) -> str:
    """``trimming.open_attempt`` of what a scan found."""
    for item in ledgers:
        uuid = item["offload_uuid"]
        if uuid and not item["offload_complete"] and str(ours.get(item["ledger_id"])) != uuid:
            return f"offload attempt {uuid} of ledger {item['ledger_id']} is not complete: {THEIRS}"
    return ""


def _whole(policy: OffloadPolicy, retention: RetentionPolicy, *, everything: bool) -> str:
    """Why nothing of a topic is offloaded; empty if its policy is no reason."""
    if not policy.driver:
        return "no offload driver is configured for it"
    if not policy.acts:
        known = policy.driver.lower() in KNOWN_DRIVERS
        return f"its driver is {policy.driver}: only aws-s3 and S3 act" if known else f"unknown driver {policy.driver}"
    if not policy.tiered_first and not policy.keeps_both:
        return f"{BOOKKEEPER_FIRST}: nothing is offloaded while a deletion lag is set"
    if not policy.automatic and not everything:
        return "no offload threshold is set: it is offloaded only when an operator asks"
    return "" if everything else refusal(policy, retention)


def _of_ledger(
    state: TopicState,
    item: Mapping[str, Any],
    policy: OffloadPolicy,
    now: int,
    lag_ms: int | None,
    whole: str,
    *,
    last: bool,
) -> tuple[OffloadChoice | None, str]:
    """Action and reason where the thresholds do not matter; no action leaves the word to them."""
    if item["offload_complete"]:
        return _of_offloaded(state, item, policy, now, lag_ms)
    if whole:
        return OffloadChoice.KEEP, whole
    if last:
        return OffloadChoice.KEEP, "the last ledger of its topic"
    if not item["timestamp"]:
        return OffloadChoice.KEEP, "its topic does not say when it was closed"
    if not item["size"] or not item["entries"]:
        return OffloadChoice.KEEP, "empty"
    if item["bookkeeper_deleted"]:
        return (
            OffloadChoice.KEEP,
            "its topic releases its copy in BookKeeper without a complete offload: it needs repair",
        )
    return None, ""


def _of_offloaded(
    state: TopicState, item: Mapping[str, Any], policy: OffloadPolicy, now: int, lag: int | None
) -> tuple[OffloadChoice, str]:
    if item["bookkeeper_deleted"]:
        return OffloadChoice.DONE, "offloaded; its copy in BookKeeper was released"
    if state.rule:
        return OffloadChoice.DONE, f"offloaded; its copy in BookKeeper stays: {state.rule}"
    since = item["offloaded_at"]
    if not item["offload_uuid"]:
        return OffloadChoice.DONE, _NAMELESS
    if not policy.tiered_first:
        return OffloadChoice.DONE, f"offloaded; its copy in BookKeeper is not released by us: {BOOKKEEPER_FIRST}"
    if not policy.acts or lag is None or lag < 0:
        return OffloadChoice.DONE, "offloaded; its copy in BookKeeper stays until retention: no deletion lag is set"
    if not since or now - since <= lag:
        return (
            OffloadChoice.DONE,
            f"offloaded; its copy in BookKeeper stays until the deletion lag of {lag // 1000} s has passed",
        )
    return OffloadChoice.RELEASE, f"offloaded for longer than the deletion lag of {lag // 1000} s"


_NAMELESS = "offloaded, and its topic does not name the attempt: its copy in BookKeeper stays"


def _of_leftover(state: TopicState, item: Mapping[str, Any], policy: OffloadPolicy) -> tuple[OffloadChoice, str]:
    """Its topic released its copy in BookKeeper, which is there still."""
    if state.rule:
        return OffloadChoice.DONE, state.rule
    if not item["offload_uuid"]:
        return OffloadChoice.DONE, _NAMELESS
    if not policy.acts:
        return (
            OffloadChoice.DONE,
            f"released, and still in BookKeeper: its driver is {policy.driver or 'none'}, which does not act",
        )
    if not policy.tiered_first:
        return OffloadChoice.DONE, f"released, and still in BookKeeper, where we leave it: {BOOKKEEPER_FIRST}"
    return OffloadChoice.RELEASE, "released, and still in BookKeeper"


def _by_threshold(item: Mapping[str, Any], policy: OffloadPolicy, beyond: int, now: int) -> tuple[OffloadChoice, str]:
    """``beyond``: bytes of this ledger and of all that come after it."""
    age = (now - item["timestamp"]) // 1000
    if 0 <= policy.threshold_bytes < beyond:
        return OffloadChoice.OFFLOAD, f"{beyond} bytes from here on, the threshold is {policy.threshold_bytes}"
    if 0 <= policy.threshold_seconds <= age:
        return OffloadChoice.OFFLOAD, f"closed {age} s ago, the threshold is {policy.threshold_seconds}"
    return OffloadChoice.KEEP, "below the thresholds"


def _unreachable(bucket: str | None, buckets: Container[str]) -> str:
    if not bucket:
        return "its topic does not say which bucket it was offloaded to"
    return "" if bucket in buckets else f"name {bucket} in object_store.buckets"


def _bucket(item: Mapping[str, Any], policy: OffloadPolicy) -> str:
    return (item["offload_complete"] and item["offload_bucket"]) or policy.bucket


def _row(
    state: TopicState,
    item: Mapping[str, Any],
    policy: OffloadPolicy,
    action: OffloadChoice,
    reason: str,
    warned: str,
    lag_ms: int | None,
) -> dict[str, Any]:
    released = action == OffloadChoice.RELEASE and item["bookkeeper_deleted"]  # nothing is written
    left = state.left_to_broker and action in (OffloadChoice.OFFLOAD, OffloadChoice.RELEASE) and not released
    return {
        "ledger_id": item["ledger_id"],
        "action": action,
        "reason": reason,
        "topic": state.topic,
        "namespace": state.namespace,
        "entries": item["entries"],
        "bytes": item["size"],
        "closed_at": item["timestamp"] or None,
        "uuid": item["offload_uuid"],
        "driver": policy.driver,
        "bucket": _bucket(item, policy),
        "region": policy.region,
        "endpoint": policy.endpoint,
        "block_size": policy.block_size,
        "lag_ms": lag_ms,
        "warning": warned if action == OffloadChoice.OFFLOAD else "",
        "outlook": Outcome.LEFT_TO_BROKER if left else "",
    }
