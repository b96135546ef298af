"""Which ledgers go to tiered storage, and which copies in BookKeeper are due to go after it.

Belongs here: the rule for the ledgers of one topic, in the words of an operator, and the plan as a value. Pure: the
topic's row of a scan, its policy and its retention come in. Not here: reading any of it, and acting
(``tiered/commit.py``). Upstream: ``ManagedLedgerImpl.maybeOffload`` and PIP-17, Pulsar 4.0.7. A plan proposes:
everything is looked at again before anything is done.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import partial
from typing import Any
from uuid import UUID

from pulsar_lifecycle.copies.listed_ledgers import THEIRS
from pulsar_lifecycle.topics.offload_policy import (
    BOOKKEEPER_FIRST,
    KNOWN_DRIVERS,
    OffloadPolicy,
    competing,
    refusal,
    warning,
)
from pulsar_lifecycle.topics.retention_policy import RetentionPolicy
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.offload_plan import OffloadChoice, OffloadCode


@dataclass(frozen=True, slots=True)
class TopicState:
    """A topic as a scan found it: ``ledgers`` as in ``tables.MANAGED_LEDGERS``, ``rule``: why it is not touched.

    ``left_to_broker``: it counts as loaded, and the settings do not let it be written then.
    """

    topic: str
    namespace: str
    ledgers: list[dict[str, Any]]
    rule: Why | None
    left_to_broker: bool = False


def judge(
    state: TopicState,
    policy: OffloadPolicy,
    retention: RetentionPolicy,
    now: int,
    ours: Mapping[int, UUID],
    *,
    everything: bool = False,
    upto: int | None = None,
    leftovers: Container[int] = (),
    done_since: Mapping[OffloadChoice, Container[int]],
    our_lag_ms: int | None,
    buckets: Container[str],
) -> list[dict[str, Any]]:
    """A row of :data:`CANDIDATES` per ledger of a topic, by id.

    ``ours``: ledger id -> UUID of our own open attempts. ``leftovers``: offloaded ledgers that BookKeeper
    still has though their topics list them as deleted. ``done_since``: with which a run has done that by now; the scan
    may not have seen it. ``everything`` leaves the thresholds out: an operator asked for all that is eligible; from
    ledger ``upto`` on nothing is done (``asyncOffloadPrefix``). ``our_lag_ms``: after how long we delete copies in
    BookKeeper; None: brokers do it. ``buckets`` are those of object_store. The last ledger is never offloaded: a broker
    that loads the topic forgets its offload.
    """
    ledgers = sorted(state.ledgers, key=lambda item: item["ledger_id"])
    state = replace(state, rule=state.rule or _open_attempt(ledgers, ours))
    whole = state.rule or _whole(policy, retention, everything=everything)
    lag_ms = policy.deletion_lag_ms if our_lag_ms is None else our_lag_ms
    beyond = 0
    found: list[dict[str, Any]] = []
    for place, item in enumerate(reversed(ledgers)):
        beyond += (item["size"] or 0) if item["timestamp"] else 0
        said = _of_ledger(state, item, policy, now, lag_ms, whole, last=place == 0)
        if item["offload_complete"] and item["bookkeeper_deleted"] and item["ledger_id"] in leftovers:
            said = _of_leftover(state, item, policy)
        if said and said.choice is OffloadChoice.DELETE_COPY:
            said = _of_copy_deletion(said, item, policy, our_lag_ms, buckets)
        if said is None and everything:
            said = _Verdict(OffloadChoice.OFFLOAD, OffloadCode.ASKED_FOR, "asked for")
        said = said or _by_threshold(item, policy, beyond, now)
        if item["ledger_id"] in done_since.get(said.choice, ()):
            text = "a run has done it since the scan began: the next scan says what is left"
            said = _Verdict(OffloadChoice.DONE, OffloadCode.DONE_SINCE, text)
        if upto is not None and item["ledger_id"] >= upto and said.choice in _DOING:
            said = _Verdict(OffloadChoice.KEEP, OffloadCode.BEYOND_POSITION, f"not before ledger {upto}, as asked for")
        found.append(_row(state, item, policy, said, warning(policy, retention) or "", lag_ms))
    return found[::-1]


_DOING = (OffloadChoice.OFFLOAD, OffloadChoice.DELETE_COPY, OffloadChoice.BROKERS_DELETE)


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What is to be done with a ledger, and why."""

    choice: OffloadChoice
    code: StrEnum
    text: str


def _open_attempt(ledgers: Sequence[Mapping[str, Any]], ours: Mapping[int, UUID]) -> Why | None:
    """``listed_ledgers.open_attempt`` of what a scan found."""
    for item in ledgers:
        uuid = item["offload_uuid"]
        if uuid and not item["offload_complete"] and str(ours.get(item["ledger_id"])) != uuid:
            text = f"offload attempt {uuid} of ledger {item['ledger_id']} is not complete: {THEIRS}"
            return Why(Code.BROKERS_ATTEMPT, text)
    return None


def _whole(policy: OffloadPolicy, retention: RetentionPolicy, *, everything: bool) -> Why | None:
    """Why nothing of a topic is offloaded; None if its policy is no reason."""
    if not policy.driver:
        return Why(OffloadCode.NO_DRIVER, "no offload driver is configured for it")
    if not policy.acts:
        known = policy.driver.lower() in KNOWN_DRIVERS
        text = f"its driver is {policy.driver}: only aws-s3 and S3 act" if known else f"unknown driver {policy.driver}"
        return Why(OffloadCode.OTHER_DRIVER, text)
    if not policy.tiered_first and not policy.keeps_both:
        text = f"{BOOKKEEPER_FIRST}: nothing is offloaded while a deletion lag is set"
        return Why(OffloadCode.BOOKKEEPER_FIRST, text)
    if not policy.automatic and not everything:
        text = "no offload threshold is set: it is offloaded only when an operator asks"
        return Why(OffloadCode.NO_THRESHOLD, text)
    return None if everything else refusal(policy, retention)


def _of_ledger(
    state: TopicState,
    item: Mapping[str, Any],
    policy: OffloadPolicy,
    now: int,
    lag_ms: int | None,
    whole: Why | None,
    *,
    last: bool,
) -> _Verdict | None:
    """The verdict where thresholds do not matter; None where they decide."""
    keep = partial(_Verdict, OffloadChoice.KEEP)
    if item["offload_complete"]:
        return _of_offloaded(state, item, policy, now, lag_ms)
    if whole:
        return keep(whole.code, whole.text)
    if last:
        return keep(OffloadCode.LAST_LEDGER, "the last ledger of its topic")
    if not item["timestamp"]:
        return keep(OffloadCode.CLOSED_UNKNOWN, "its topic does not say when it was closed")
    if not item["size"] or not item["entries"]:
        return keep(OffloadCode.EMPTY, "empty")
    if item["bookkeeper_deleted"]:
        text = "its topic lists its copy in BookKeeper as deleted without a complete offload: it needs repair"
        return keep(OffloadCode.NEEDS_REPAIR, text)
    return None


def _of_offloaded(
    state: TopicState, item: Mapping[str, Any], policy: OffloadPolicy, now: int, lag: int | None
) -> _Verdict:
    done = partial(_Verdict, OffloadChoice.DONE)
    if item["bookkeeper_deleted"]:
        return done(OffloadCode.BOOKKEEPER_DELETED, "offloaded; its copy in BookKeeper is listed as deleted")
    if state.rule:
        return done(state.rule.code, f"offloaded; its copy in BookKeeper stays: {state.rule}")
    since = item["offloaded_at"]
    if not item["offload_uuid"]:
        return done(OffloadCode.NO_UUID, _NAMELESS)
    if not policy.tiered_first:
        text = f"offloaded; its copy in BookKeeper is not deleted by us: {BOOKKEEPER_FIRST}"
        return done(OffloadCode.BOOKKEEPER_FIRST, text)
    if not policy.acts or lag is None or lag < 0:
        text = "offloaded; its copy in BookKeeper stays until retention: no deletion lag is set"
        return done(OffloadCode.NO_LAG, text)
    if not since or now - since <= lag:
        text = f"offloaded; its copy in BookKeeper stays until the deletion lag of {lag // 1000} s has passed"
        return done(OffloadCode.LAG, text)
    text = f"offloaded for longer than the deletion lag of {lag // 1000} s"
    return _Verdict(OffloadChoice.DELETE_COPY, OffloadCode.LAG_PASSED, text)


_NAMELESS = "offloaded, and its topic does not name the attempt: its copy in BookKeeper stays"


def _of_leftover(state: TopicState, item: Mapping[str, Any], policy: OffloadPolicy) -> _Verdict:
    """Its topic lists its copy in BookKeeper as deleted, and it is there still."""
    done = partial(_Verdict, OffloadChoice.DONE)
    if state.rule:
        return done(state.rule.code, state.rule.text)
    if not item["offload_uuid"]:
        return done(OffloadCode.NO_UUID, _NAMELESS)
    if not policy.acts:
        driver = policy.driver or "none"
        text = f"listed as deleted, and still in BookKeeper: its driver is {driver}, which does not act"
        return done(OffloadCode.OTHER_DRIVER if policy.driver else OffloadCode.NO_DRIVER, text)
    if not policy.tiered_first:
        text = f"listed as deleted, and still in BookKeeper, where we leave it: {BOOKKEEPER_FIRST}"
        return done(OffloadCode.BOOKKEEPER_FIRST, text)
    return _Verdict(OffloadChoice.DELETE_COPY, OffloadCode.LEFTOVER, "listed as deleted, and still in BookKeeper")


def _of_copy_deletion(
    said: _Verdict, item: Mapping[str, Any], policy: OffloadPolicy, our_lag_ms: int | None, buckets: Container[str]
) -> _Verdict:
    """What is due to be deleted, if that is not ours to do, or cannot be done."""
    if our_lag_ms is None:
        text = f"{said.text}; its copy in BookKeeper is its brokers' to delete (offload.bookkeeper_copies)"
        return _Verdict(OffloadChoice.DONE, OffloadCode.BROKERS_DELETE, text)
    if why := competing(policy):
        text = f"{said.text}; its copy in BookKeeper is not deleted by us: {why}"
        return _Verdict(OffloadChoice.BROKERS_DELETE, OffloadCode.BROKERS_DELETE, text)
    bucket = item["offload_bucket"]
    if bucket and bucket in buckets:
        return said
    why = (
        f"name {bucket} in object_store.buckets"
        if bucket
        else "its topic does not say which bucket it was offloaded to"
    )
    return _Verdict(OffloadChoice.DONE, OffloadCode.NO_BUCKET, f"{said.text}; its copy in BookKeeper stays: {why}")


def _by_threshold(item: Mapping[str, Any], policy: OffloadPolicy, beyond: int, now: int) -> _Verdict:
    """``beyond``: bytes of this ledger and of all that come after it."""
    age = (now - item["timestamp"]) // 1000
    if 0 <= policy.threshold_bytes < beyond:
        text = f"{beyond} bytes from here on, the threshold is {policy.threshold_bytes}"
        return _Verdict(OffloadChoice.OFFLOAD, OffloadCode.SIZE_THRESHOLD, text)
    if 0 <= policy.threshold_seconds <= age:
        text = f"closed {age} s ago, the threshold is {policy.threshold_seconds}"
        return _Verdict(OffloadChoice.OFFLOAD, OffloadCode.AGE_THRESHOLD, text)
    return _Verdict(OffloadChoice.KEEP, OffloadCode.BELOW_THRESHOLDS, "below the thresholds")


def _bucket(item: Mapping[str, Any], policy: OffloadPolicy) -> str:
    return (item["offload_complete"] and item["offload_bucket"]) or policy.bucket


def _row(
    state: TopicState,
    item: Mapping[str, Any],
    policy: OffloadPolicy,
    said: _Verdict,
    warned: str,
    lag_ms: int | None,
) -> dict[str, Any]:
    action = said.choice
    deleted = action is OffloadChoice.DELETE_COPY and item["bookkeeper_deleted"]  # nothing is written
    left = state.left_to_broker and action in (OffloadChoice.OFFLOAD, OffloadChoice.DELETE_COPY) and not deleted
    return {
        "ledger_id": item["ledger_id"],
        "action": action.value,
        "code": said.code.value,
        "reason": said.text,
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
