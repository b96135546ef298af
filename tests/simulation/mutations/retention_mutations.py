"""Deliberate faults of retention, to prove that the simulator bites.

Belongs here: one context manager per mutation. Not here: how many seeds each may take (``test_mutations.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

from pulsar_lifecycle.formats.topic_policies import Replayed, TopicPolicies
from pulsar_lifecycle.lifecycle import retention, retention_planning
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.topics import retention_now
from pulsar_lifecycle.topics.policies import InForce, NamespacePolicies
from pulsar_lifecycle.topics.snapshot import TopicReading
from pulsar_lifecycle.topics.write import TopicRun
from pulsar_lifecycle.trimming import retention_run, trim
from pulsar_lifecycle.trimming.trim import TrimOrder
from tests.simulation.mutations.mutation import Mutation

MONTH = 30 * 86_400_000


def retain_less() -> AbstractContextManager[Any]:
    """Ledgers are taken for a month older than they are."""
    real = retention_planning.judge
    return patch.object(retention_planning, "judge", lambda inputs, now: real(inputs, now + MONTH))


def forget_new_policies() -> AbstractContextManager[Any]:
    """A plan is applied whatever the policy is by now."""
    return patch.object(retention_run.PoliciesInForce, "rule", lambda *_: lambda: None)


def ask_whoever_would_load_it() -> AbstractContextManager[Any]:
    """A broker is asked of each topic before its ledgers go."""
    real = trim._read

    def asking(run: TopicRun, ports: Ports, order: TrimOrder, before: TopicReading | None = None) -> TopicReading:
        ports.admin.internal_stats(order.topic)
        return real(run, ports, order, before)

    return patch.object(trim, "_read", asking)


def count_itself_behind() -> AbstractContextManager[Any]:
    """Of the newest data that is retained, a ledger counts as behind itself."""
    rows = retention._Rows
    real = rows.bytes_after
    return patch.object(rows, "bytes_after", lambda self: real(self) + self.size)


def forget_new_policies_of_topics() -> AbstractContextManager[Any]:
    """A plan is applied whatever policies topics have of their own by now."""
    real = retention_run.retention_now

    def of_namespaces(*said: Any) -> Any:
        found = real(*said)
        return replace(found, policies=InForce(found.policies.by_namespace))

    return patch.object(retention_run, "retention_now", of_namespaces)


def take_topics_for(taken: Callable[[TopicPolicies], TopicPolicies]) -> AbstractContextManager[Any]:
    """Policies of topics are taken for others."""
    real = retention_now.read_namespaces

    def others(*said: Any) -> dict[str, NamespacePolicies]:
        return {
            name: replace(own, topics={topic: taken(one) for topic, one in own.topics.items()})
            for name, own in real(*said).items()
        }

    return patch.object(retention_now, "read_namespaces", others)


def believe_what_was_deleted() -> AbstractContextManager[Any]:
    """Policies of topics hold that were deleted."""
    return patch.object(Replayed, "delete", lambda *_: None)


IGNORE_TOPICS = partial(take_topics_for, lambda _: TopicPolicies())
IGNORE_GLOBAL = partial(take_topics_for, lambda one: TopicPolicies(one.local))

RETENTION: Mapping[str, Mutation] = {
    "plan ledgers younger than their retention": retain_less,
    "apply a plan of retention whatever the policy is by now": forget_new_policies,
    "have brokers load the topics of a plan of retention": ask_whoever_would_load_it,
    "count a ledger among what is retained behind it": count_itself_behind,
    "apply a plan of retention whatever policies topics have by now": forget_new_policies_of_topics,
    "retain whatever the policies of topics say": IGNORE_TOPICS,
    "retain whatever the global policies of topics say": IGNORE_GLOBAL,
    "retain by global policies before local ones": partial(
        take_topics_for, lambda one: TopicPolicies(one.everywhere, one.local)
    ),
    "retain by policies that were deleted": believe_what_was_deleted,
}
