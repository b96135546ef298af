"""The journal's row of a decision or an effect: the one place that builds it.

Not here: what a row says, which whoever decides or acts knows; reading rows (``journal/queries.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.records.codes import Why
from pulsar_lifecycle.records.outcomes import Action, Outcome, Phase


@dataclass(frozen=True, slots=True)
class Writer:
    """Who journals: a run over a cluster, and the plan that it works off, if it does."""

    run_id: str
    cluster: str
    plan_id: str = ""

    def row(self, step: Step, what: Subject, outcome: Outcome, why: Why, now: int) -> JournalRow:
        """The row that this became of a subject in a step, at that time (ms)."""
        return JournalRow(
            run_id=self.run_id,
            cluster=self.cluster,
            plan_id=self.plan_id,
            ledger_id=what.ledger_id,
            component=what.component,
            topic=what.topic,
            action=step.action,
            phase=step.phase,
            outcome=outcome,
            reason=why.text,
            bytes=what.bytes,
            checksum=what.checksum,
            detail=json.dumps(what.detail, sort_keys=True),
            at=now,
            code=why.code.value,
        )


@dataclass(frozen=True, slots=True)
class Step:
    """What a row is about: an action, and which phase of it."""

    action: Action
    phase: Phase


@dataclass(frozen=True, slots=True)
class Subject:
    """What a row speaks of: a ledger of a topic; -1 is the topic, or none. ``detail`` goes into JSON."""

    ledger_id: int
    component: str
    topic: str
    bytes: int = 0
    checksum: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict[str, Any])
