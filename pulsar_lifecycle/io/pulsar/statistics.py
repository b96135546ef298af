"""What brokers say of topics in use: ``/broker-stats/topics``, and ``stats`` of one.

Not here: asking for it (``admin.py``). Source: ``PersistentTopic.updateRates``, 4.0.7.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pulsar_lifecycle.errors import NotFound, StoreError
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import TopicConnections

_PERSISTENT = "persistent://"


def topics_of(answer: Any, where: str) -> Mapping[str, Any]:
    """What is said of each topic, by its full name. Raises StoreError for another shape."""
    try:
        return {
            name: said
            for bundles in answer.values()
            for domains in bundles.values()
            for names in domains.values()
            for name, said in names.items()
        }
    except AttributeError:
        raise _unlike(where, "{namespace: {bundle: {domain: {topic: ...}}}}") from None


def connections_of(topics: Mapping[str, Any]) -> dict[str, TopicConnections]:
    """The clients of the persistent ones of these topics. Raises StoreError where one does not say so."""
    found: dict[str, TopicConnections] = {}
    for name, said in topics.items():
        if name.startswith(_PERSISTENT):
            try:
                own = {str(sub): len(one["consumers"]) for sub, one in said["subscriptions"].items()}
                found[name] = TopicConnections(int(said["producerCount"]), own, int(said["msgInCount"]))
            except (AttributeError, KeyError, TypeError, ValueError):
                raise _unlike(name, "producerCount, msgInCount and subscriptions with their consumers") from None
    return found


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


def _unlike(what: str, expected: str) -> StoreError:
    return StoreError(f"statistics of {what} are not what Pulsar 4.0 sends: expected {expected}")
