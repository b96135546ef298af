"""Which subscriptions have expired: the rule over tables says of each what a broker says of one that it has at hand."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.lifecycle.load.going_subscriptions import expired_subscriptions
from pulsar_lifecycle.lifecycle.load.monitors import Monitors
from pulsar_lifecycle.lifecycle.retention_inputs import NAMED_POSITIONS
from pulsar_lifecycle.topics.load_losses import LoadLosses
from pulsar_lifecycle.topics.policies import InForce
from pulsar_lifecycle.values import tables

NOW = 1_700_000_000_000
MINUTE = 60_000
SYSTEM, KEPT = "audit", "kept"
NAMES = ("s", "t", SYSTEM, KEPT, "a/b/function", "__compaction", "pulsar.dedup", "pulsar.repl.west")


@dataclass(frozen=True)
class Cursor:
    """A cursor of topic ``topic``; times in minutes ago, None where nobody knows."""

    topic: int
    name: str
    active: int | None
    written: int
    in_ledger: bool
    replicated: bool | None
    known: bool


@dataclass(frozen=True)
class Topic:
    """When its last ledger was made (minutes ago), None without any; whether it was never closed; minutes to expire."""

    made: int | None
    idle: bool
    expiry: int | None


ages = st.integers(0, 100)
topics = st.lists(st.builds(Topic, st.none() | ages, st.booleans(), st.sampled_from([None, 0, 10, 50])), max_size=4)
cursors = st.builds(
    Cursor,
    st.integers(0, 4),
    st.sampled_from(NAMES),
    st.none() | ages,
    ages,
    st.booleans(),
    st.sampled_from([False, False, True, None]),
    st.booleans(),
)


def has_expired(one: Cursor, made: Sequence[Topic], names: Counter[tuple[int, str]]) -> bool:
    """As ``checkInactiveSubscriptions`` says it, of what the last broker has written down for sure."""
    if one.topic >= len(made):
        return False
    topic = made[one.topic]
    if one.name in NAMES[2:] or re.match(".+/.+/", one.name) or one.replicated is not False:
        return False
    sure = not one.in_ledger and one.known and topic.made is not None and one.written < topic.made and not topic.idle
    return bool(
        sure
        and topic.expiry
        and one.active is not None
        and one.active > topic.expiry
        and names[one.topic, one.name] < 2
    )


@given(topics, st.lists(cursors, max_size=8))
def test_each_subscription_is_judged_by_itself(made: list[Topic], some: list[Cursor]) -> None:
    listed = [
        {
            "managed_ledger": f"t/{n}/persistent/a",
            "namespace": f"t/{n}",
            "ledgers": [] if one.made is None else [{"ledger_id": 10 * n}, {"ledger_id": 10 * n + 1}],
        }
        for n, one in enumerate(made)
    ]
    ledgers = [
        {"ledger_id": 10 * n + 1, "mtime": NOW - one.made * MINUTE}
        for n, one in enumerate(made)
        if one.made is not None
    ]
    rows = [
        {
            "managed_ledger": f"t/{one.topic}/persistent/a",
            "cursor": one.name,
            "last_active": None if one.active is None else NOW - one.active * MINUTE,
            "cursors_ledger_id": 7 if one.in_ledger else -1,
            "mtime": NOW - one.written * MINUTE,
            "replicated_subscription": one.replicated,
            "ledger_id": 1 if one.known else None,
            "entry_id": -1 if one.known else None,
        }
        for one in some
    ]
    nothing = InForce({})
    expiry = {f"t/{n}": one.expiry for n, one in enumerate(made)}
    found = expired_subscriptions(
        pa.Table.from_pylist(rows, NAMED_POSITIONS),
        pa.Table.from_pylist(listed, tables.MANAGED_LEDGERS),
        pa.Table.from_pylist(ledgers, tables.BOOKKEEPER_LEDGERS),
        pa.array([f"t/{n}/persistent/a" for n, one in enumerate(made) if one.idle], pa.string()),
        Monitors(nothing, nothing, expiry, nothing, nothing, LoadLosses(), frozenset({SYSTEM})),
        {KEPT},
        NOW,
    )
    names = Counter((one.topic, one.name) for one in some)
    assert found.tolist() == [has_expired(one, made, names) for one in some]
