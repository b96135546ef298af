"""Deliberate faults of runs that have brokers load topics, to prove that the laws of loads bite.

Belongs here: one context manager per mutation, by what the product would do. Not here: how many seeds each may take
(``test_mutations.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.formats.topic_policies import TopicPolicies
from pulsar_lifecycle.lifecycle import unused_subscriptions
from pulsar_lifecycle.lifecycle.load import (
    going_subscriptions,
    load_planning,
    load_rules,
    load_run,
    monitors,
    unsubscribing,
)
from pulsar_lifecycle.lifecycle.load.load_rules import LoadChoice
from pulsar_lifecycle.lifecycle.load.monitors import Monitors
from pulsar_lifecycle.lifecycle.load.visit import Visit
from pulsar_lifecycle.lifecycle.load.visits import Visits
from pulsar_lifecycle.metastore import load_state
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Children
from pulsar_lifecycle.runs import control
from pulsar_lifecycle.topics import load_losses
from tests.simulation.mutations.mutation import Mutation
from tests.simulation.operators import idling


@contextmanager
def load_whatever_needs_it() -> Iterator[None]:
    """Topics are loaded whose namespace the settings do not name."""
    real = load_planning.choice_of

    def any_topic(*said: Any) -> LoadChoice:
        return replace(real(*said), load=frozenset({"acme"}))

    with patch.object(load_planning, "choice_of", any_topic), patch.object(load_run, "choice_of", any_topic):
        yield


@contextmanager
def brokers_may_evict() -> Iterator[None]:
    """A backlog quota is no reason to leave a topic alone."""
    real = load_planning.choice_of

    def any_topic(*said: Any) -> LoadChoice:
        return replace(real(*said), backlog_eviction=frozenset({"acme"}))

    with patch.object(load_planning, "choice_of", any_topic), patch.object(load_run, "choice_of", any_topic):
        yield


@contextmanager
def ask_of_whatever_is_there(namespace: str) -> Iterator[None]:
    """Who asks which topics brokers have asks of one besides, whether a broker has it or not."""
    real = load_state.fetch_brokers

    def asking(store: Any, admin: Any) -> Any:
        (found,) = store.children([f"/managed-ledgers/{namespace}/persistent"])
        for name in found.names[:1] if isinstance(found, Children) else ():
            admin.internal_stats(Topic.from_managed_ledger(f"{namespace}/persistent/{name}"))
        return real(store, admin)

    with patch.object(load_state, "fetch_brokers", asking):
        yield


@contextmanager
def load_their_neighbours() -> Iterator[None]:
    """A bundle that nobody owns is taken as for a client, with all that is in it."""
    real = Visits._load

    def looks_up(visits: Visits, visit: Visit) -> None:
        visits.ports.admin.owner(visit.topic)
        real(visits, visit)

    with patch.object(Visits, "_load", looks_up):
        yield


def load_without_a_note() -> AbstractContextManager[Any]:
    """Nobody knows of a topic that its run leaves loaded."""
    return patch.object(control, "note_unload", lambda store, pending: True)


@contextmanager
def _in_both(name: str, instead: Callable[..., Any]) -> Iterator[None]:
    """Replace what monitors take from the rule about loads in both modules."""
    with patch.object(load_losses, name, instead), patch.object(monitors, name, instead):
        yield


def expire_at_once() -> AbstractContextManager[Any]:
    """Messages count as expired that are older than a second."""
    return _in_both("ttl", lambda *_: 1)


def expire_for_everyone() -> AbstractContextManager[Any]:
    """A replicator's messages expire like a client's."""
    return patch.object(Monitors, "expires_messages", lambda self, cursor: True)


def expire_by(taken: Callable[[TopicPolicies], TopicPolicies]) -> AbstractContextManager[Any]:
    """Policies of topics are taken for others, as far as their TTL goes."""
    real = load_losses.ttl
    return _in_both("ttl", lambda topic, *others: real(taken(topic), *others))


def load_whatever_counts_at_first() -> AbstractContextManager[Any]:
    """What brokers do by global policies, before the local ones count, is nobody's business."""
    return _in_both("at_first", lambda _: None)


def brokers_may_expire_sooner() -> AbstractContextManager[Any]:
    """Whether brokers expire messages by a TTL that counts at first alone is nobody's business."""
    return patch.object(load_losses, "_sooner", lambda *_: False)


def brokers_may_forget() -> AbstractContextManager[Any]:
    """Whether brokers delete what a topic has for deduplication, as that is off at first, is nobody's business."""
    return patch.object(load_losses, "_forgets", lambda *_: False)


def brokers_may_unsubscribe() -> AbstractContextManager[Any]:
    """Which subscriptions brokers delete by themselves of a topic that is loaded is nobody's business."""
    real, code = load_rules._monitored, load_rules.LoadKept.SUBSCRIPTION_WOULD_EXPIRE
    return patch.object(load_rules, "_monitored", lambda *said: [one for one in real(*said) if one is not code])


def delete_what_is_used() -> AbstractContextManager[Any]:
    """What its broker knows of a subscription is nobody's business."""
    return patch.object(unsubscribing, "used_since", lambda *_: None)


def believe_the_dead() -> AbstractContextManager[Any]:
    """What a z-node says of a subscription's last use counts, whatever the broker that had it last could write."""
    real = going_subscriptions._last_closed

    def long_ago(listed: pa.Table, ledgers: pa.Table) -> Any:
        return pc.multiply(real(listed, ledgers), 0)

    return patch.object(going_subscriptions, "_last_closed", long_ago)


@contextmanager
def look_at_no_other_partition() -> Iterator[None]:
    """Whether an inactive subscription stays on another partition is nobody's business."""
    nothing = patch.object(unused_subscriptions.Together, "look", lambda *_: {})
    with nothing, patch.object(unsubscribing.Unsubscribing, "judge", lambda *_: None):
        yield


@contextmanager
def take_all_for_inactive() -> Iterator[None]:
    """A load plan has every subscription of topics that no broker has."""
    real = load_planning.planned_inactive

    def every(cluster: Any, epoch_id: str) -> Mapping[str, Mapping[str, int]]:
        found = {topic: dict(some) for topic, some in real(cluster, epoch_id).items()}
        for batch in cluster.lake.batches(cluster.parts(epoch_id, "managed_cursors"), ["topic", "cursor", "czxid"]):
            for topic, cursor, czxid in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if topic:
                    found.setdefault(topic, {})[cursor] = czxid
        return found

    with patch.object(load_planning, "planned_inactive", every):
        yield


LOADS: Mapping[str, Mutation] = {
    "load topics that nobody ordered": load_whatever_needs_it,
    "load what shares a bundle": load_their_neighbours,
    "load without a note": load_without_a_note,
    "have brokers load topics for a scan": partial(ask_of_whatever_is_there, "acme/lending"),
    "expire messages younger than their TTL": expire_at_once,
    "expire messages whatever the policies of topics say": partial(expire_by, lambda _: TopicPolicies()),
    "expire messages whatever the global policies of topics say": partial(
        expire_by, lambda one: TopicPolicies(one.local)
    ),
    "load topics whatever their global policies do at first": load_whatever_counts_at_first,
    "load topics whose TTL counts too late": brokers_may_expire_sooner,
    "load topics whose deduplication counts too late": brokers_may_forget,
    "expire messages of cursors that are no subscriptions": expire_for_everyone,
    "let brokers delete subscriptions meanwhile": brokers_may_unsubscribe,
    "let brokers drop backlogs meanwhile": brokers_may_evict,
    "delete subscriptions that are used since the load": delete_what_is_used,
    "believe z-nodes of subscriptions whose broker died": believe_the_dead,
}

IDLE_LOADS: Mapping[str, Mutation] = {
    "delete inactive subscriptions that are used since the load": delete_what_is_used,
    "delete inactive subscriptions that stay on other partitions": look_at_no_other_partition,
    "take every subscription of unloaded topics for inactive": take_all_for_inactive,
    "have brokers load topics beside a plan of their loads": partial(ask_of_whatever_is_there, idling.NAMESPACES[0]),
}

UNORDERED: Mapping[str, Mutation] = {
    "have brokers load topics for any run": partial(ask_of_whatever_is_there, "acme/orders"),
}
