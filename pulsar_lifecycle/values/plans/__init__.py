"""What every plan has in common: a digest over its rows and the facts that make it actionable, and its age.

Belongs here: whether a stored plan is what it says it is. Not here: what its rows mean (``plans/deletion_plan.py``,
``plans/offload_plan.py``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import RefusedBy
from pulsar_lifecycle.values.gaps import Gap, in_words
from pulsar_lifecycle.values.refusals import RefusalCode


class Summary(Protocol):
    """What the checks read of a plan's summary; times in ms."""

    @property
    def plan_id(self) -> str: ...  # noqa: D102 - see the dataclasses
    @property
    def cluster(self) -> str: ...  # noqa: D102
    @property
    def fingerprint(self) -> str: ...  # noqa: D102
    @property
    def created_at(self) -> int: ...  # noqa: D102
    @property
    def actionable(self) -> bool: ...  # noqa: D102
    @property
    def gaps(self) -> tuple[Gap, ...]: ...  # noqa: D102
    @property
    def digest(self) -> str: ...  # noqa: D102


def epoch_of(plan_id: str) -> str:
    """The scan that a plan was made of, by the plan's id (``KIND-EPOCH-TOKEN``); empty for another form."""
    found = _ID.fullmatch(plan_id)
    return found["epoch"] if found else ""


TOKEN_BYTES = 4
"""How many random bytes end a plan's id: scripts make many plans of a scan, and no two may have the same."""
_ID = re.compile(r"[a-z][a-z-]*-(?P<epoch>\d.*)-[0-9a-f]+")


def digest(rows: pa.Table, facts: Mapping[str, Any], by: str = "ledger_id") -> str:
    """SHA-256 (hex) over ``facts`` and the rows, canonical and sorted by the column ``by``."""
    hashed = hashlib.sha256()
    hashed.update(json.dumps(facts, sort_keys=True).encode() + b"\n")
    for batch in by_id(rows, by).to_batches(max_chunksize=AT_ONCE):
        hashed.update(canonical(batch))
    return hashed.hexdigest()


AT_ONCE = 50_000
"""Rows that are written out at once."""


def canonical(rows: pa.RecordBatch) -> bytes:
    """A line of JSON for each row, keys sorted, as ``json.dumps`` writes it."""
    if not rows.num_rows:
        return b""
    pieces: list[Any] = []
    for number, name in enumerate(sorted(rows.schema.names)):
        pieces += [pa.scalar(("{" if number == 0 else ", ") + json.dumps(name) + ": "), _as_json(rows.column(name))]
    lines = pc.binary_join_element_wise(*pieces, pa.scalar("}\n"), pa.scalar(""))
    return b"".join(lines.cast(pa.binary()).to_pylist())


def _as_json(column: Any) -> Any:
    """The values of a column as JSON texts; each distinct one is written once."""
    if pa.types.is_integer(column.type):
        return column.cast(pa.string()).fill_null("null")
    if pa.types.is_string(column.type) or pa.types.is_boolean(column.type):
        column = column.dictionary_encode()
        texts = pa.array([_write(value) for value in column.dictionary.to_pylist()], pa.string())
        return texts.take(column.indices).fill_null("null")
    return pa.array([_write(value) for value in column.to_pylist()], pa.string())


_write = json.JSONEncoder(sort_keys=True, ensure_ascii=False).encode


def by_id(rows: pa.Table, by: str = "ledger_id") -> pa.Table:
    """The rows sorted by the column that tells them apart."""
    ids = rows.column(by).to_numpy()
    return rows if (ids[:-1] < ids[1:]).all() else rows.sort_by(by)


def old_version(plan_id: str) -> RefusedBy:
    """The refusal of a plan whose rows are not as this version stores them."""
    return RefusedBy(RefusalCode.OLD_VERSION, f"plan {plan_id}: an earlier version made it; make a new one")


def check_digest(plan_id: str, given: str, stored: str, found: str) -> None:
    """Raise Refused unless the digest that was given is the one of a plan's summary and of its files, ``found``."""
    if found != stored:
        raise RefusedBy(
            RefusalCode.PLAN_DIFFERS,
            f"plan {plan_id}: its files have digest {found}, its summary {stored}: they were changed; make a new plan",
        )
    if given != stored:
        raise RefusedBy(
            RefusalCode.PLAN_DIFFERS,
            f"plan {plan_id}: its digest is {stored}, you gave {given}: look at the plan, then give its digest",
        )


def age_text(dated: int, now: int, valid_for_ms: int) -> str:
    """How old something is that is too old to go by, or dated ahead of our clock, in words; times in ms."""
    if dated > now:
        return f"dated {(dated - now) / 1000:.0f} s ahead of this host's clock: set the clocks right"
    return f"{(now - dated) // 60_000} minutes old, valid for {valid_for_ms // 60_000}"


def check_applicable(
    summary: Summary, found: str, *, digest_given: str, cluster: str, fingerprint: str, now: int, valid_for_ms: int
) -> None:
    """Raise Refused unless the plan is whole, actionable, fresh, and of this cluster; ``found``: its files' digest.

    By its name, too: the journal files by that what a run did, and another name would not find it again.
    """
    check_digest(summary.plan_id, digest_given, summary.digest, found)
    if summary.cluster != cluster:
        raise RefusedBy(
            RefusalCode.OTHER_CLUSTER,
            f"plan {summary.plan_id} is for cluster {summary.cluster}, the settings say {cluster}",
        )
    if summary.fingerprint != fingerprint:
        raise RefusedBy(
            RefusalCode.OTHER_CLUSTER,
            f"plan {summary.plan_id} is of another cluster: fingerprint {summary.fingerprint}, "
            f"this one has {fingerprint}",
        )
    if not summary.actionable:
        raise RefusedBy(RefusalCode.REPORT_ONLY, f"plan {summary.plan_id} is report-only: " + in_words(summary.gaps))
    if not 0 <= now - summary.created_at <= valid_for_ms:
        age = age_text(summary.created_at, now, valid_for_ms)
        raise RefusedBy(RefusalCode.PLAN_EXPIRED, f"plan {summary.plan_id} is {age}; make a new one")
