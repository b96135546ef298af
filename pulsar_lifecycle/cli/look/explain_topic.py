"""``explain TOPIC``: why its ledgers are there, as a page. Not here: the answer (``inspect/explain_topic.py``)."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.options import brokers_of

if TYPE_CHECKING:
    from pulsar_lifecycle.inspect.cursor_holds import HeldBy
    from pulsar_lifecycle.inspect.explain_topic import HeldLedger, TopicExplanation
    from pulsar_lifecycle.model import Topic
    from pulsar_lifecycle.runs.cluster import Cluster


def explain_topic(where: Cluster, subject: Topic, *, as_json: bool) -> bool:
    """Print why each ledger of a topic is there, and what would free it; whether no warning comes with that."""
    from pulsar_lifecycle.inspect.explain_topic import explain_topic as explanation_of

    found = explanation_of(where, subject, brokers_of(where))
    if as_json:
        show.json_document(_document(found))
    else:
        _print(found)
    return not found.warnings


def _print(found: TopicExplanation) -> None:
    from pulsar_lifecycle.inspect.cursor_holds import CursorHold

    listed = Counter((one.code, one.freed_by) for one in found.ledgers)
    size = Counter[tuple[str, str]]()
    unsized = Counter[tuple[str, str]]()
    for one in found.ledgers:
        size[one.code, one.freed_by] += one.bytes or 0
        unsized[one.code, one.freed_by] += one.bytes is None
    show.facts(
        [
            ("topic", str(found.topic)),
            ("load state", found.load.text),
            ("retention", str(found.policy) if found.policy else "not known"),
            ("protected", found.protection and found.protection.text),
            ("ledgers", f"{len(found.ledgers)}, {_size(sum(size.values()), unsized.total())}"),
            ("kept from a load", found.load_kept),
            ("last ledger open", ", ".join(found.open_causes) or None),
            ("warnings", list(found.warnings)),
            ("scan", f"{found.epoch_id}: holds, shadow topics and namespaces are as of it"),
        ]
    )
    show.text("what keeps them", "bold cyan")
    rows = [(one[0], listed[one], _size(size[one], unsized[one]), one[1] or "nothing") for one in listed]
    show.table(["code", "ledgers", "bytes", "freed by"], rows, 2)
    show.text(f"cursors ({len(found.cursors)})", "bold cyan")
    rows = [
        (
            one.name,
            str(one.position or "not known"),
            "" if one.unacknowledged is None else _size(one.unacknowledged, one.unsized),
            f"{show.moment(one.last_active)} ({show.ago(one.last_active)})" if one.last_active else "",
            ", ".join(
                [f"{code} (of {one.ranges} ranges)" if code is CursorHold.HOLE else str(code) for code in one.holds]
                + ([f"pinned by a delayed message until {show.moment(one.pinned_until)}"] if one.pinned_until else [])
                + ([f"unused since {show.moment(one.unused_since)}{_kept(one)}"] if one.unused_since else [])
            ),
        )
        for one in found.cursors
    ]
    show.table(["cursor", "stands at", "unacknowledged", "last active", "held by"], rows, 2)
    show.text("ledgers, the oldest first", "bold cyan")
    rows = [_line(one) for one in found.ledgers]
    show.table(
        ["ledger", "entries", "bytes", "closed", "where", "code", "held by", "retention ends"], rows[: show.ROWS], 2
    )
    if len(rows) > show.ROWS:
        show.text(f"  ... {len(rows) - show.ROWS} younger ones; --json has all of them")


def _kept(one: HeldBy) -> str:
    """What keeps an unused subscription from a plan."""
    return f", kept by {one.unused_kept}" if one.unused_kept else ""


def _size(known: int, unsized: int) -> str:
    return f"{show.size(known)} and {show.counted(unsized, 'ledger')} of unknown size" if unsized else show.size(known)


def _line(one: HeldLedger) -> list[Any]:
    held = (_state(one) or "").lower()
    where = " and ".join(part for part in (held and f"BookKeeper ({held})", "bucket" if one.offloaded else "") if part)
    return [
        one.ledger_id,
        "" if one.entries is None else one.entries,
        "" if one.bytes is None else show.size(one.bytes),
        show.moment(one.closed_at) if one.closed_at else "",
        where or "nowhere",
        one.code.value,
        ", ".join(one.held_by[:1]) + (f" and {len(one.held_by) - 1} more" if one.held_by[1:] else ""),
        show.moment(one.expires_at) if one.expires_at is not None else "",
    ]


def _state(one: HeldLedger) -> str | None:
    """What BookKeeper says of it, or the problem of its z-node."""
    from pulsar_lifecycle.formats.ledger_metadata import LedgerState

    return one.state.name if isinstance(one.state, LedgerState) else one.state


def _document(found: TopicExplanation) -> dict[str, Any]:
    return {
        "topic": str(found.topic),
        "load_state": found.load.state.value,
        "load_reason": found.load.reason.value,
        "retention": found.policy and {**asdict(found.policy), "text": str(found.policy)},
        "protection": found.protection and found.protection.text,
        "ledgers": [{**asdict(one), "state": _state(one), "freed_by": one.freed_by or None} for one in found.ledgers],
        "cursors": [{**asdict(one), "position": one.position and str(one.position)} for one in found.cursors],
        "load_kept": found.load_kept,
        "open_causes": list(found.open_causes),
        "warnings": list(found.warnings),
        "epoch_id": found.epoch_id,
    }
