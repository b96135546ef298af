"""What brokers say of topics in use: ``/broker-stats/topics``, ``stats`` and ``internalStats`` of one.

Not here: asking for it (``admin.py``). Source: ``PersistentTopic.updateRates``, 4.0.7.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pulsar_lifecycle.errors import NotFound, StoreError
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.ports import Acknowledged, TopicConnections, TopicInternals
from pulsar_lifecycle.values.topic_load import PendingAcks

_PERSISTENT = "persistent://"
_RESOURCES = ("cpu", "directMemory", "bandwidthIn", "bandwidthOut")
"""What brokers are overloaded by."""
_MOST = "brk_lb_resource_usage"


def topics_of(answer: Any, where: str) -> list[tuple[str, Any]]:
    """What is said of each topic, with its full name. Raises StoreError for another shape.

    One may be there twice, in a bundle that was split, too.
    """
    try:
        return [
            (name, said)
            for bundles in answer.values()
            for domains in bundles.values()
            for names in domains.values()
            for name, said in names.items()
        ]
    except AttributeError:
        raise _unlike(where, "{namespace: {bundle: {domain: {topic: ...}}}}") from None


def connections_of(topics: Iterable[tuple[str, Any]]) -> dict[str, TopicConnections]:
    """The clients of the persistent ones of these topics. Raises StoreError where one does not say so."""
    found: dict[str, TopicConnections] = {}
    for name, said in topics:
        if name.startswith(_PERSISTENT):
            try:
                own = {str(sub): len(one["consumers"]) for sub, one in said["subscriptions"].items()}
                here = TopicConnections(int(said["producerCount"]), own, int(said["msgInCount"]))
                found[name] = here.joined(found.get(name))
            except (AttributeError, KeyError, TypeError, ValueError):
                raise _unlike(name, "producerCount, msgInCount and subscriptions with their consumers") from None
    return found


def usage_of(answer: Any, where: str) -> float:
    """The share of its scarcest resource that a broker uses, by its load report. Raises StoreError for another shape.

    A resource without a limit does not count, heap neither (``LocalBrokerData.getMaxResourceUsage``). A broker that
    says 0 of its CPU has just started and not measured it: it counts as using all.
    """
    try:
        used = [(float(answer[name]["usage"]), float(answer[name]["limit"])) for name in _RESOURCES]
    except (KeyError, TypeError, ValueError):
        raise _unlike(where, f"{', '.join(_RESOURCES)} with usage and limit") from None
    measured = used[0][0] > 0
    return max((usage / limit for usage, limit in used if limit > 0), default=0.0) if measured else 1.0


def measured_usage(answer: Any, where: str) -> float | None:
    """As :func:`usage_of`, by the metrics of a broker with the extensible load manager (``BrokerLoadData.toMetrics``).

    None where they are another's. Raises StoreError for another shape.
    """
    try:
        own = [one for one in answer if one["dimensions"].get("metric") == "loadBalancing"]
        most = [float(one["metrics"][_MOST]) for one in own if one["dimensions"].get("feature") == "max"]
        cpu = max((float(one["metrics"].get("brk_lb_cpu_usage", 0)) for one in own), default=0.0)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise _unlike(where, f"metrics with dimensions, and {_MOST}") from None
    if not most:
        return None
    return max(most) if cpu > 0 else 1.0


def interval_ms(broker: str, configuration: Mapping[str, str]) -> int:
    """How often a broker says so anew. Raises StoreError where its configuration does not tell."""
    try:
        seconds = int(configuration["statsUpdateFrequencyInSecs"])
    except (KeyError, ValueError):
        seconds = 0
    if seconds <= 0:
        raise _unlike(broker, "statsUpdateFrequencyInSecs above 0")
    return seconds * 1000


def check_replicator(broker: str, configuration: Mapping[str, str]) -> None:
    """Raise StoreError where a broker's configuration does not tell how names of replicators' cursors begin."""
    if not configuration.get("replicatorPrefix"):
        raise _unlike(broker, "a replicatorPrefix")


def internals_of(answer: Any, where: str) -> TopicInternals:
    """``PersistentTopicInternalStats``. Raises StoreError for another shape."""
    try:
        cursors: Mapping[str, Mapping[str, Any]] = answer["cursors"]
        compacted = int(answer["compactedLedger"]["ledgerId"])
        return TopicInternals(
            state=str(answer["state"]),
            ledgers=tuple(int(ledger["ledgerId"]) for ledger in answer["ledgers"]),
            cursor_ledgers={
                name: int(cursor["cursorLedger"]) for name, cursor in cursors.items() if cursor["cursorLedger"] >= 0
            },
            cursor_properties={
                name: {key: int(value) for key, value in cursor["properties"].items()}
                for name, cursor in cursors.items()
            },
            compacted_ledger=compacted if compacted >= 0 else None,
            schema_ledgers=tuple(int(ledger["ledgerId"]) for ledger in answer["schemaLedgers"]),
            acknowledged={
                name: Acknowledged(
                    _position(cursor["markDeletePosition"]), _ranges(cursor["individuallyDeletedMessages"])
                )
                for name, cursor in cursors.items()
            },
            last_confirmed=_position(answer["lastConfirmedEntry"]),
            entries=_entries(answer["ledgers"], int(answer.get("currentLedgerEntries", 0))),
            added=int(answer.get("entriesAddedCounter", -1)),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        raise _unlike(where, "PersistentTopicInternalStats") from None


def _entries(ledgers: Sequence[Mapping[str, Any]], current: int) -> dict[int, int]:
    """By ledger; of the last one, while it is written, only ``currentLedgerEntries`` says how many."""
    found = {int(one["ledgerId"]): int(one.get("entries", 0)) for one in ledgers}
    if found:
        last = max(found)
        found[last] = max(found[last], current)
    return found


def _position(text: str) -> Position:
    """``ledger:entry``, as PositionImpl prints it."""
    ledger, entry = text.split(":")
    return Position(int(ledger), int(entry))


def _ranges(text: str) -> tuple[tuple[Position, Position], ...]:
    """``[(1:2..1:4],(2:-1..2:0]]``, as LongPairRangeSet prints it: the first excluded, the last included."""
    found = re.findall(r"\((-?\d+:-?\d+)\.\.(-?\d+:-?\d+)\]", text)
    if text != "[" + ",".join(f"({first}..{last}]" for first, last in found) + "]":
        raise ValueError(f"expected ranges of positions, found {text[:80]!r}")
    return tuple((_position(first), _position(last)) for first, last in found)


_USED = ("lastConsumedFlowTimestamp", "lastConsumedTimestamp", "lastAckedTimestamp")


def last_use(stats: Any, topic: Topic, subscription: str) -> int | None:
    """When a subscription was last used (ms), by ``TopicStats``: 0 for never since the load, None for now.

    Raises NotFound, StoreError.
    """
    try:
        if subscription not in stats["subscriptions"]:
            raise NotFound(f"{topic}: no subscription {subscription}")
        said = stats["subscriptions"][subscription]
        return None if said["consumers"] else max(int(said[name]) for name in _USED)
    except (KeyError, TypeError, ValueError):
        raise _unlike(str(topic), f"subscriptions with their consumers and {', '.join(_USED)}") from None


def pending_acks_of(stats: Any, what: str) -> PendingAcks:
    """What ``TransactionPendingAckStats`` say. Raises StoreError."""
    state = stats.get("state") if isinstance(stats, dict) else None
    if state not in [one for one in PendingAcks if one is not PendingAcks.OFF]:  # it may be no word at all
        raise _unlike(what, f"a state such as {PendingAcks.READY}")
    return PendingAcks(state)


def _unlike(what: str, expected: str) -> StoreError:
    return StoreError(f"statistics of {what} are not what Pulsar 4.0 sends: expected {expected}")
