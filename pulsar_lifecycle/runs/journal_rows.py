"""The journal's row of a decision or an effect: the one place that builds it, and that reads its details.

Not here: what a row says, which whoever decides or acts knows; finding rows (``journal/queries.py``).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from pydantic import TypeAdapter, ValidationError

from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.outcomes import Action, Outcome, Phase

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

D = TypeVar("D")
Details: TypeAlias = "Sequence[DataclassInstance]"
"""Typed values whose fields the row's ``detail`` has, as JSON, under their names; what is None is left out."""


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
            detail=_stored(what.details),
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
    """What a row speaks of: a ledger of a topic; -1 is the topic, or none."""

    ledger_id: int
    component: str
    topic: str
    bytes: int = 0
    checksum: str = ""
    details: Details = ()


@dataclass(frozen=True, slots=True)
class MessageSent:
    """Details of phase ``send``: the message, and the UUID of the offloaded copy that it is about."""

    message: str
    uuid: str | None = None


@dataclass(frozen=True, slots=True)
class BookieTold:
    """Details of what a bookie was told: why; free bytes and entry logs before it collected, and after."""

    bookie: str
    free: tuple[int, int] | None = None
    entry_logs: tuple[int, int] | None = None
    why: str | None = None


def details_of(kind: type[D], detail: str) -> D | None:
    """The details of a row that a dataclass has as its fields; others the row may have besides.

    None where the row does not have them, or has them of other types: it is another program's, and shows nothing.
    """
    try:
        return _reader(kind).validate_json(detail, strict=True)
    except ValidationError:
        return None


@cache
def _reader(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _stored(details: Details) -> str:
    if not details:
        return "{}"
    found: dict[str, object] = {}
    for some in details:
        found |= _fields(some)
    return _JSON.encode({name: value for name, value in found.items() if value is not None})


def _fields(some: DataclassInstance) -> dict[str, object]:
    return {name: getattr(some, name) for name in some.__dataclass_fields__}


_JSON = json.JSONEncoder(sort_keys=True, default=_fields)
"""One for all rows: ``json.dumps`` would make one for each."""
