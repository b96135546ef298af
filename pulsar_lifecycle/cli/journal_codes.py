"""Which words the columns ``outcome`` and ``code`` of the journal have, for the command that asks for rows with one.

Not here: what they mean, which stands in the enumerations.
"""

from __future__ import annotations

from enum import StrEnum

from pulsar_lifecycle.errors import UsageError
from pulsar_lifecycle.lifecycle.bookies.collection import CollectionChoice, CollectionEnd, StopReason
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.visit import LoadStep
from pulsar_lifecycle.lifecycle.verdicts import RetentionVerdict
from pulsar_lifecycle.scan.snapshot_memory import Memory
from pulsar_lifecycle.topics.load_losses import LoadLoss
from pulsar_lifecycle.topics.policies import Unreadable
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.trimming.trim_rules import Stays
from pulsar_lifecycle.values.codes import Code, check_known
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.outcomes import Outcome, Waiting
from pulsar_lifecycle.values.plans.delete_records_plan import RecordsError
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept
from pulsar_lifecycle.values.plans.offload_plan import OffloadCode
from pulsar_lifecycle.values.refusals import RefusalCode
from pulsar_lifecycle.values.topic_load import LoadReason
from pulsar_lifecycle.words import WordKind

CODES: tuple[type[StrEnum], ...] = (
    Code,
    CollectionChoice,
    CollectionEnd,
    Finding,
    InactiveKept,
    LoadKept,
    LoadLoss,
    LoadReason,
    LoadStep,
    Memory,
    OffloadCode,
    Outcome,
    Protection,
    RecordsError,
    RefusalCode,
    RetentionVerdict,
    Stays,
    StopReason,
    Unreadable,
    Waiting,
    WordKind,
)
"""The enumerations that column ``code`` has members of."""


def check(code: str | None, outcome: str | None) -> None:
    """Raises UsageError for a code or an outcome that no row can have; None and the empty code are fine.

    Every outcome may be a code, as bookies' rows have some for both.
    """
    codes = {str(one) for codes in CODES for one in codes}
    if code:
        check_known("a code", code, codes)
    if outcome is None or is_outcome(outcome):
        return
    if outcome in codes:
        raise UsageError(f"{outcome!r} is no outcome but a code: use --code {outcome}")
    check_known("an outcome", outcome, set(map(str, Outcome)))


def is_outcome(word: str) -> bool:
    """Whether column ``outcome`` may have it."""
    return word in set(map(str, Outcome))
