"""Deliberate faults of retention, to prove that the simulator bites.

Belongs here: one context manager per mutation. Not here: how many seeds each may take (``test_mutations.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from pulsar_lifecycle.lifecycle import retention_planning
from pulsar_lifecycle.ports.bundle import Ports
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


RETENTION: Mapping[str, Mutation] = {
    "plan ledgers younger than their retention": retain_less,
    "apply a plan of retention whatever the policy is by now": forget_new_policies,
    "have brokers load the topics of a plan of retention": ask_whoever_would_load_it,
}
