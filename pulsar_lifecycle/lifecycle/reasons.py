"""Why a ledger is on the bookies' disks: what topics, references and findings of a scan say of it.

Belongs here: the codes, and the rule that gives them, over whole tables. Pure. Not here: which of several reasons
counts, and sums (``lifecycle/storage.py``).
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.lifecycle.retention import whole
from pulsar_lifecycle.lifecycle.verdicts import GOING, RetentionVerdict
from pulsar_lifecycle.topics.retention_policy import MS_PER_MINUTE
from pulsar_lifecycle.values.findings import Finding
from pulsar_lifecycle.values.owner_names import topic_of


class Reason(StrEnum):
    """Why a ledger is on the bookies' disks. Of several that hold for one, the first in this order counts."""

    SCHEMA = "schema"
    """It holds a schema."""
    CURSOR = "cursor"
    """It holds the positions of a cursor."""
    COMPACTED = "compacted"
    """It holds the compacted view of a topic."""
    DELAYED_INDEX = "delayed_index"
    """It holds a snapshot of a delayed index."""
    PINNED = "pinned_by_delayed_message"
    """A durable cursor of its topic stands in it, or before it, and the first message that this one has not
    acknowledged is delayed: until that is due it keeps every later ledger, whatever consumers do."""
    BACKLOG = "backlog"
    """A durable cursor of its topic stands in it, or before it."""
    RETAINED = "retained"
    """Acknowledged, and within the retention in force."""
    EXPIRED_OPEN = "expired_open"
    """The last ledger of its topic, never closed: nobody trims it. It was made longer ago than the retention time, or
    time or size is 0; every ledger before it is past its retention; no broker lists the topic. Whether a cursor needs
    some of it, only its bookies know."""
    LAST_LEDGER = "last_ledger"
    """The last ledger of its topic, past its retention if it is closed: brokers keep it until a newer one is there."""
    EXPIRED = "expired"
    """Acknowledged and past its retention, or empty, and not trimmed."""
    OFFLOAD_LEFTOVER = "offload_leftover"
    """Offloaded: its copy in BookKeeper waits for its lag, or for its deletion."""
    PENDING_DELETION = "pending_deletion"
    """Nothing refers to it, and by the journal the deletion queue has a message about it: a deletion run decides."""
    ORPHAN = "orphan"
    """Nothing refers to it, and it is past the grace period."""
    UNREFERENCED = "unreferenced"
    """Nothing refers to it, and a rule keeps it: too young, open, held (asset ``unjudged_ledgers``)."""
    FOREIGN = "foreign"
    """Not Pulsar's by its metadata, another cluster's, or of a namespace that no declared root has."""
    UNJUDGED = "unjudged"
    """Its z-node, its topic, a cursor's position or the policy in force is not known, or the scan is not covered."""


LEDGER_REASONS = pa.schema(
    [
        pa.field("ledger_id", pa.int64()),
        pa.field("reason", pa.string()),
        pa.field("namespace", pa.string()),
        pa.field("topic", pa.string()),
    ]
)
"""A row for each thing that says why a ledger is there; a ledger may have several, or none. Null: not known."""

OF_KIND = {
    "R2": Reason.CURSOR,
    "R3": Reason.COMPACTED,
    "R4": Reason.DELAYED_INDEX,
    "R5": Reason.SCHEMA,
}
"""The reason that a reference of a kind (``references.KINDS``) is. Topics' own lists (R1) are judged by retention."""

OF_FINDING = {
    Finding.OFFLOAD_LEFTOVER: Reason.OFFLOAD_LEFTOVER,
    Finding.ORPHAN: Reason.ORPHAN,
    Finding.OPEN_ORPHAN: Reason.ORPHAN,
    Finding.TOO_YOUNG: Reason.UNREFERENCED,
    Finding.OPEN: Reason.UNREFERENCED,
    Finding.KEPT: Reason.UNREFERENCED,
    Finding.FOREIGN: Reason.FOREIGN,
    Finding.EMPTY_ZNODE: Reason.UNJUDGED,
    Finding.UNDECODABLE: Reason.UNJUDGED,
}
"""The reason that a finding is. Those that it lacks are about ledgers that BookKeeper does not have, or in use."""

_ALONE = {
    RetentionVerdict.CURSOR: Reason.BACKLOG,
    RetentionVerdict.WITHIN_TIME: Reason.RETAINED,
    RetentionVerdict.WITHIN_SIZE: Reason.RETAINED,
    RetentionVerdict.FOREVER: Reason.RETAINED,
    **dict.fromkeys(GOING, Reason.EXPIRED),
}
_REASONS = tuple(Reason)
_NUMBER = {reason: number for number, reason in enumerate(_REASONS)}


def with_backlog(verdicts: pa.Table, topics: int) -> Any:
    """Which of ``topics`` topics have a ledger that a cursor keeps; ``verdicts`` as :func:`of_topics` takes them."""
    kept = np.asarray(pc.equal(whole(verdicts.column("alone")).cast(pa.string()), str(RetentionVerdict.CURSOR)))
    topic = np.asarray(whole(verdicts.column("managed_ledger")).indices)
    return np.bincount(topic[kept], minlength=topics) > 0


def of_topics(
    verdicts: pa.Table,
    listed: pa.Table,
    inputs: pa.Table,
    bookkeeper: pa.Table,
    idle: Any,
    now: int,
    pins: pa.Table | None = None,
) -> pa.Table:
    """Rows of :data:`LEDGER_REASONS`, one for each ledger that topics list, in the order of ``verdicts``.

    ``verdicts`` (``RETENTION_VERDICTS``) were given on ``inputs`` (``RETENTION_TOPICS``) at ``now`` (ms); ``listed``
    (``tables.MANAGED_LEDGERS``) are the same topics in the same order. ``bookkeeper`` (``tables.BOOKKEEPER_LEDGERS``)
    has the last ledger of each. ``idle``: managed ledgers that no broker lists and whose last ledger is not closed.
    ``pins``: what is pinned by delayed messages (``delayed_pins.PINS``), None where nobody looked. A shadow topic's
    list says only that its source's ledgers are there.
    """
    topic = np.asarray(whole(verdicts.column("managed_ledger")).indices)
    alone = whole(verdicts.column("alone"))
    codes = alone.dictionary.to_pylist()
    meant = [
        _ALONE.get(RetentionVerdict(code), Reason.UNJUDGED) if code in set(RetentionVerdict) else Reason.UNJUDGED
        for code in codes
    ]
    reason = np.array([_NUMBER[one] for one in meant], np.int8)[np.asarray(alone.indices)]
    last = np.append(topic[1:] != topic[:-1], True)[: len(topic)]
    if pins is not None:
        first = _first_pinned(listed, pins)
        pinned = np.asarray(whole(verdicts.column("ledger_id"))) >= first[topic]
        reason[pinned & (reason == _NUMBER[Reason.BACKLOG])] = _NUMBER[Reason.PINNED]
    expired = reason == _NUMBER[Reason.EXPIRED]
    kept_before = np.bincount(topic[~expired & ~last], minlength=listed.num_rows) > 0
    reason[last & expired] = _NUMBER[Reason.LAST_LEDGER]

    ids = whole(verdicts.column("ledger_id"))
    places = np.flatnonzero(last)
    open_, made = _open_since(bookkeeper, ids.take(pa.array(places)))
    places, owner = places[open_], topic[places[open_]]
    minutes, mb = (_numbers(inputs.column(name), -1)[owner] for name in ("retention_minutes", "retention_mb"))
    aged = (minutes > 0) & (now - made[open_] > minutes * MS_PER_MINUTE)
    past = (aged | (minutes == 0) | (mb == 0)) & inputs.column("durable_cursors").is_valid().to_numpy()[owner]
    unlisted = np.asarray(pc.is_in(whole(listed.column("managed_ledger")), idle))[owner]
    expired_open = past & unlisted & ~kept_before[owner]
    reason[places] = np.where(expired_open, _NUMBER[Reason.EXPIRED_OPEN], _NUMBER[Reason.LAST_LEDGER])

    copied = pc.fill_null(whole(listed.column("ledgers")).flatten().field("offload_complete"), False)
    reason[np.asarray(copied)] = _NUMBER[Reason.OFFLOAD_LEFTOVER]
    shadow = np.asarray(whole(listed.column("shadow_source")).is_valid())
    reason[shadow[topic]] = _NUMBER[Reason.UNJUDGED]
    names = (whole(listed.column(name)).take(pa.array(topic)) for name in ("namespace", "topic"))
    return pa.table([ids, _texts(reason), *names], schema=LEDGER_REASONS)


def _first_pinned(listed: pa.Table, pins: pa.Table) -> Any:
    """By topic, the first ledger that a delayed message keeps; beyond all of them for none."""
    first = np.full(listed.num_rows, np.iinfo(np.int64).max)
    row = pc.index_in(whole(pins.column("managed_ledger")), whole(listed.column("managed_ledger")))
    np.minimum.at(first, np.asarray(row, np.int64), np.asarray(whole(pins.column("ledger_id")), np.int64))
    return first


def of_references(references: pa.Table, foreign: Collection[str] = ()) -> pa.Table:
    """Rows of :data:`LEDGER_REASONS` of references (``tables.REFERENCES``) to ledgers, but for topics' own lists.

    ``foreign``: namespaces that only another cluster has; the lists of their topics count, too.
    """
    kinds, owners = (whole(references.column(name)).dictionary_encode() for name in ("kind", "owner"))
    pairs = np.asarray(kinds.indices, np.int64) * max(1, len(owners.dictionary)) + np.asarray(owners.indices)
    distinct, which = np.unique(pairs, return_inverse=True)
    kind_names, owner_names = kinds.dictionary.to_pylist(), owners.dictionary.to_pylist()
    reasons: list[str | None] = []
    namespaces: list[str | None] = []
    topics: list[str | None] = []
    for pair in distinct.tolist():
        kind, owner = kind_names[pair // len(owner_names)], owner_names[pair % len(owner_names)]
        topic = topic_of(kind, owner)
        namespace = str(topic.namespace) if topic else None
        reasons.append(Reason.FOREIGN if namespace in foreign else OF_KIND.get(kind))
        namespaces.append(namespace)
        topics.append(str(topic) if topic else None)
    places = pa.array(which.astype(np.int64))
    columns = [pa.array(values, pa.string()).take(places) for values in (reasons, namespaces, topics)]
    found = pa.table([references.column("ledger_id"), *columns], schema=LEDGER_REASONS)
    return found.filter(found.column("reason").is_valid())


def of_findings(findings: pa.Table, pending: Any, *, covered: bool) -> pa.Table:
    """Rows of :data:`LEDGER_REASONS` of findings (``tables.FINDINGS``).

    That nothing refers to a ledger is only known by a ``covered`` scan. ``pending``: ids of ledgers about which the
    deletion queue has a message.
    """
    meant = {str(one): reason for one, reason in OF_FINDING.items()}
    if not covered:
        meant |= dict.fromkeys(UNREFERENCED, Reason.UNJUDGED)
    codes = whole(findings.column("finding")).dictionary_encode()
    reasons = pa.array([meant.get(code) for code in codes.dictionary.to_pylist()], pa.string()).take(codes.indices)
    free = pc.is_in(reasons, pa.array([str(Reason.ORPHAN), str(Reason.UNREFERENCED)]))
    sent = pc.and_(free, pc.is_in(whole(findings.column("ledger_id")), pending))
    reasons = pc.if_else(sent, str(Reason.PENDING_DELETION), reasons)
    names = [pc.if_else(pc.equal(column, ""), _NONE, column) for column in map(findings.column, ("namespace", "topic"))]
    found = pa.table([findings.column("ledger_id"), reasons, *names], schema=LEDGER_REASONS)
    return found.filter(pc.and_(found.column("reason").is_valid(), found.column("ledger_id").is_valid()))


UNREFERENCED = [str(one) for one, reason in OF_FINDING.items() if reason in (Reason.ORPHAN, Reason.UNREFERENCED)]
"""Findings of ledgers that nothing refers to."""
_NONE = pa.scalar(None, pa.string())


def _open_since(bookkeeper: pa.Table, ids: Any) -> tuple[Any, Any]:
    """Which of these ledgers exist and are not closed, and when each was made (ms)."""
    known = bookkeeper.filter(
        pc.and_(bookkeeper.column("problem").is_null(), pc.not_equal(bookkeeper.column("state"), _CLOSED))
    )
    place = pc.index_in(ids, whole(known.column("ledger_id")))
    return np.asarray(place.is_valid()), _numbers(whole(known.column("ctime")).take(place), 0)


_CLOSED = LedgerState.CLOSED.name


def _texts(numbers: Any) -> Any:
    return pa.array([str(reason) for reason in _REASONS], pa.string()).take(pa.array(numbers))


def _numbers(column: Any, missing: int) -> Any:
    return np.asarray(column.fill_null(missing), dtype=np.int64)
