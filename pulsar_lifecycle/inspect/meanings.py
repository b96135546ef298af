"""What codes mean: the docstrings of the enumerations that have them, for the page of codes and the command ``code``.

Not here: which of them a journal row may have (``cli/journal_codes.py``).
"""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from difflib import get_close_matches
from enum import Enum
from types import ModuleType
from typing import Any, NamedTuple

from pulsar_lifecycle.errors import UsageError
from pulsar_lifecycle.values.outcomes import WAITS_FOR, Waiting

CODES = (
    ("What a journal row is about", "pulsar_lifecycle.values.outcomes.Action"),
    ("Which part of it", "pulsar_lifecycle.values.outcomes.Phase"),
    ("What became of it", "pulsar_lifecycle.values.outcomes.Outcome"),
    ("Why: the code of a journal row", "pulsar_lifecycle.values.codes.Code"),
    ("Why a launch is refused", "pulsar_lifecycle.values.refusals.RefusalCode"),
    ("Whether a plan is applied by itself", "pulsar_lifecycle.runs.automation_rule.AutomationCode"),
    ("What a deletion run says of itself", "pulsar_lifecycle.deletion.workers.RunEnd"),
    ("Why a deletion run stopped itself", "pulsar_lifecycle.deletion.workers.StopCode"),
    ("What an offload plan does with a ledger", "pulsar_lifecycle.values.plans.offload_plan.OffloadChoice"),
    ("Why an offload plan does that", "pulsar_lifecycle.values.plans.offload_plan.OffloadCode"),
    ("What a message waits for", "pulsar_lifecycle.values.outcomes.Waiting"),
    ("Where an intent stands that has no final outcome", "pulsar_lifecycle.journal.intents.IntentState"),
    ("Problems of a scanned row", "pulsar_lifecycle.values.tables.Problem"),
    ("How a scan knows whether a topic is loaded", "pulsar_lifecycle.values.topic_load.LoadReason"),
    ("Findings of a scan", "pulsar_lifecycle.values.findings.Finding"),
    ("Gaps in the coverage of a scan", "pulsar_lifecycle.values.gaps.GapCode"),
    ("What retention says of a ledger", "pulsar_lifecycle.lifecycle.verdicts.RetentionVerdict"),
    ("Why a ledger is on the bookies' disks", "pulsar_lifecycle.lifecycle.reasons.Reason"),
    ("What a topic needs a broker for", "pulsar_lifecycle.lifecycle.load.load_rules.LoadNeed"),
    ("Why no broker can load a topic", "pulsar_lifecycle.lifecycle.load.failing_loads.LoadFailure"),
    ("Why a topic that needs a broker is not loaded", "pulsar_lifecycle.lifecycle.load.load_rules.LoadKept"),
    ("What a topic loses by a load", "pulsar_lifecycle.topics.load_losses.LoadLoss"),
    ("Why a step of a load ended so", "pulsar_lifecycle.lifecycle.load.visit.LoadStep"),
    ("By what the last use of a topic is known", "pulsar_lifecycle.lifecycle.activity.activity_tables.UseEvidence"),
    ("What keeps an inactive topic or subscription", "pulsar_lifecycle.values.plans.inactive_plan.InactiveKept"),
    ("Why records of a partition are not deleted", "pulsar_lifecycle.values.plans.delete_records_plan.RecordsError"),
    ("How partitions and metadata disagree", "pulsar_lifecycle.lifecycle.activity.partition_check.PartitionFinding"),
    ("What is wrong with a delayed index", "pulsar_lifecycle.delayed_index.stored.index_codes.IndexFinding"),
    ("What that does to messages", "pulsar_lifecycle.delayed_index.stored.index_codes.Harm"),
    ("Why a bucket cannot be read", "pulsar_lifecycle.delayed_index.stored.index_codes.BucketProblem"),
    ("What a repair does to buckets", "pulsar_lifecycle.delayed_index.repair.levels.RepairLevel"),
    ("Where a retention policy is set", "pulsar_lifecycle.topics.retention_policy.Level"),
    ("What protects a whole topic", "pulsar_lifecycle.topics.protection.Protection"),
    ("Why a ledger stays on its topic's list", "pulsar_lifecycle.trimming.trim_rules.Stays"),
    ("What `explain` answers", "pulsar_lifecycle.inspect.explain_codes.Verdict"),
    ("Why `explain` answers so", "pulsar_lifecycle.inspect.explain_codes.ExplainCode"),
    ("What `offload status` rests on", "pulsar_lifecycle.inspect.offload_status.OffloadStateCode"),
    ("What is in a bucket", "pulsar_lifecycle.copies.object_pairs.ObjectKind"),
    ("What a plan of a bucket does with it", "pulsar_lifecycle.tiered.buckets.bucket_rules.SweepAction"),
    ("Why the policies of a namespace's topics are not known", "pulsar_lifecycle.topics.policies.Unreadable"),
    ("What a broker's memory may hold of a snapshot", "pulsar_lifecycle.scan.snapshot_memory.Memory"),
    ("Why a ledger is not closed", "pulsar_lifecycle.lifecycle.held.open_ledgers.OpenCause"),
    ("What holds a cursor", "pulsar_lifecycle.inspect.cursor_holds.CursorHold"),
    ("What takes a backlog away", "pulsar_lifecycle.lifecycle.held.backlog.BacklogEnds"),
    ("What a bookie's disk waits for", "pulsar_lifecycle.lifecycle.bookies.bookie_disk.DiskVerdict"),
    ("What a collection plan does with a bookie", "pulsar_lifecycle.lifecycle.bookies.collection.CollectionChoice"),
    ("How a bookie's collection ended", "pulsar_lifecycle.lifecycle.bookies.collection.CollectionEnd"),
    ("What stops a collection run", "pulsar_lifecycle.lifecycle.bookies.collection.StopReason"),
    ("What an answer of delete records lacks", "pulsar_lifecycle.delete_records.request.Lacks"),
    ("What an answer of delete records does not tell", "pulsar_lifecycle.delete_records.request.NotAsked"),
    ("Where a ledger still is whose records were deleted", "pulsar_lifecycle.delete_records.absence.Presence"),
    ("Why a position or a time is not answered", "pulsar_lifecycle.delete_records.times.time_offsets.OffsetProblem"),
    ("The operator's words", "pulsar_lifecycle.words.WordKind"),
)
"""Every enumeration of codes: where its codes are met, and its dotted name."""


class Meaning(NamedTuple):
    """What ``code`` means ``where`` it is met."""

    code: str
    where: str
    means: str


def meanings(code: str) -> list[Meaning]:
    """What a code means, in each place where one of that name is met. Raises UsageError for one that there is not."""
    every = [Meaning(one, where, means) for where, name in CODES for one, means in members(load(name))]
    if found := [one for one in every if one.code == code]:
        return found
    like = get_close_matches(code, {one.code for one in every}, n=3)
    raise UsageError(f"there is no code {code!r}" + (f": did you mean {' or '.join(like)}?" if like else ""))


def load(name: str) -> Any:
    """What a dotted name means: a module or something in one."""
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def documented(where: ModuleType | type) -> dict[str, str]:
    """Name -> the string that stands right below its assignment, in the order of the source."""
    body = ast.parse(textwrap.dedent(inspect.getsource(where))).body
    if isinstance(where, type) and isinstance(body[0], ast.ClassDef):
        body = body[0].body
    found: dict[str, str] = {}
    for statement, below in zip(body, [*body[1:], ast.Pass()], strict=True):
        target = statement.targets[0] if isinstance(statement, ast.Assign) else getattr(statement, "target", None)
        if isinstance(target, ast.Name):
            said = below.value if isinstance(below, ast.Expr) else None
            found[target.id] = said.value if isinstance(said, ast.Constant) and isinstance(said.value, str) else ""
    return found


def text(docstring: str | None) -> str:
    """A docstring as Markdown on one line."""
    plain = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", docstring or "")
    return " ".join(re.sub(r"``([^`]+)``", r"`\1`", plain).split())


def members(enum: type[Enum]) -> Iterator[tuple[str, str]]:
    """Code and meaning of an enumeration; what a message waits for has its sentence in a table of its own."""
    said = documented(enum)
    for one in enum:
        waits = WAITS_FOR.get(one) if isinstance(one, Waiting) else None
        yield str(one.value), text(said.get(one.name)) or text(waits)
