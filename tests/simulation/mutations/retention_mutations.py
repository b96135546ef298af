"""Deliberate faults of retention, to prove that the simulator bites.

Belongs here: one context manager per mutation. Not here: how many seeds each may take (``test_mutations.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from pulsar_lifecycle.lifecycle import retention_planning
from pulsar_lifecycle.trimming import retention_run
from tests.simulation.mutations.mutation import Mutation

MONTH = 30 * 86_400_000


def retain_less() -> AbstractContextManager[Any]:
    """Ledgers are taken for a month older than they are."""
    real = retention_planning.judge
    return patch.object(retention_planning, "judge", lambda inputs, now: real(inputs, now + MONTH))


def forget_new_policies() -> AbstractContextManager[Any]:
    """A plan is applied whatever the policy is by now."""
    return patch.object(retention_run.PoliciesInForce, "rule", lambda *_: lambda: None)


RETENTION: Mapping[str, Mutation] = {
    "plan ledgers younger than their retention": retain_less,
    "apply a plan of retention whatever the policy is by now": forget_new_policies,
}
