"""The history of cursors over random scans: against a walk that knows what happened, nothing in use is inactive."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.lifecycle.activity.activity_tables import CONNECTIONS, CURSOR_ACTIVITY, TOPIC_ACTIVITY
from pulsar_lifecycle.lifecycle.activity.inactive_rules import InactivityChoice, inactive_cursors, inactive_topics
from pulsar_lifecycle.lifecycle.activity.last_use import Clients, cursor_activity
from pulsar_lifecycle.lifecycle.verdicts import RETENTION_LEDGER
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept

HOUR = 3_600_000
PERIOD = 24 * HOUR
START = 1_700_000_000_000
TOPIC, NAMESPACE = "persistent://t/ns/topic", "t/ns"
MANAGED_LEDGER = "t/ns/persistent/topic"


@dataclass(frozen=True)
class Step:
    """What happens before a scan, ``hours`` after the one before.

    ``unanswered``: the brokers do not answer; ``unread``: nor do the bookies.
    """

    hours: int
    entry: int
    acknowledged: int
    connected: int
    recreated: bool
    unanswered: bool
    unread: bool


steps = st.lists(
    st.builds(
        Step,
        hours=st.sampled_from([6, 12, 24]),
        entry=st.sampled_from([0, 0, 0, 1]),
        acknowledged=st.sampled_from([0, 0, 0, 1]),
        connected=st.sampled_from([0, 0, 0, 1]),
        recreated=st.sampled_from([False] * 9 + [True]),
        unanswered=st.sampled_from([False] * 9 + [True]),
        unread=st.sampled_from([False] * 4 + [True]),
    ),
    max_size=12,
)


def cursor(entry: int, last: int, czxid: int, ctime: int, *, unread: bool) -> pa.Table:
    """A cursor with a ledger of its own, which could be read or not."""
    row = {
        "path": f"/managed-ledgers/{MANAGED_LEDGER}/s",
        "managed_ledger": MANAGED_LEDGER,
        "topic": TOPIC,
        "namespace": NAMESPACE,
        "cursor": "s",
        "ctime": ctime,
        "czxid": czxid,
        "version": 1,
        "ledger_id": None if unread else 5,
        "entry_id": None if unread else entry,
        "cursors_ledger_id": 9,
        "cursors_entry_id": None if unread else last,
        "acknowledged": None,
        "replicated_subscription": None if unread else False,
        "last_active": 0,
    }
    names = [name for name in CURSOR_ACTIVITY.names if name in row]
    return pa.Table.from_pylist([row], pa.schema([CURSOR_ACTIVITY.field(name) for name in names]))


@given(steps)
def test_no_cursor_with_use_within_the_period_is_inactive_and_any_other_is_once_it_was_watched_for_it(
    happened: list[Step],
) -> None:
    now, czxid, created, entry, last = START, 1, START - 30 * PERIOD, 0, 0
    inner = pa.array([[{"ledger_id": 5, "entries": 100, "size": 100, "closed_at": START}]], pa.list_(RETENTION_LEDGER))
    topics = pa.table({"managed_ledger": [MANAGED_LEDGER], "topic": [TOPIC], "inner": inner, "loaded_at": [START]})
    topic = dict.fromkeys(TOPIC_ACTIVITY.names) | {"topic": TOPIC, "replicated": False}
    known = pa.Table.from_pylist([topic], TOPIC_ACTIVITY)
    before = CURSOR_ACTIVITY.empty_table()
    watched, used, scans = 0, 0, 0
    seen: tuple[int, int] | None = None
    for number, step in enumerate([Step(0, 0, 0, 0, False, False, False), *happened]):
        now += step.hours * HOUR
        entry, last = entry + step.entry, last + step.entry + step.acknowledged
        if step.recreated:
            czxid, created = czxid + 1, now - 1
        fresh = number == 0 or step.recreated
        watched, scans = (now, 1) if fresh else (watched, scans + 1)
        used = created if fresh else used
        seen = None if fresh else seen
        moved = not fresh and not step.unread and seen != (entry, last)
        seen = seen if step.unread else (entry, last)
        if step.unanswered or step.connected or moved:
            used = now
        rows = [{"topic": TOPIC, "subscription": None, "connected": 0, "published": 0}]
        rows += [{"topic": TOPIC, "subscription": "s", "connected": step.connected, "published": None}]
        said = None if step.unanswered else pa.Table.from_pylist(rows, CONNECTIONS)
        state = pa.array(["loaded"]), pa.array(["listed"])
        clients = Clients.of(pa.array([TOPIC]), *state, said)
        before = cursor_activity(cursor(entry, last, czxid, created, unread=step.unread), topics, clients, before, now)
        (row,) = before.to_pylist()
        assert (row["watched_since"], row["scans"], row["last_read"]) == (watched, scans, used)
        inactive = inactive_cursors(before, known, InactivityChoice(PERIOD), now)
        assert inactive.num_rows == (scans >= 2 and max(watched, used) <= now - PERIOD)
        kept = inactive.column("kept").to_pylist()
        assert all(code == (InactiveKept.UNKNOWN_CURSOR if step.unread else InactiveKept.NOT_CHOSEN) for code in kept)


@given(
    st.lists(st.sampled_from(["s", "t", "u", "t/n/f"]), min_size=1, unique=True),
    st.none() | st.frozensets(st.sampled_from(["s", "t"])),
)
def test_no_cursor_goes_that_may_be_a_functions_and_no_topic_that_has_one(
    cursors: list[str], functions: frozenset[str] | None
) -> None:
    """Whatever is chosen: its name alone counts."""
    at, nothing = START - 2 * PERIOD, dict.fromkeys(CURSOR_ACTIVITY.names)
    own = {"topic": TOPIC, "namespace": NAMESPACE, "known": True, "replicated_subscription": False}
    seen = {"watched_since": at, "scans": 2, "last_read": at, "last_write": at, "last_client": at}
    rows = [{**nothing, **own, **seen, "cursor": name} for name in cursors]
    more = {"last_ledger_id": -1, "end_ledger_id": -1, "unread_subscriptions": 0, "replicated": False}
    topic = {**dict.fromkeys(TOPIC_ACTIVITY.names), "topic": TOPIC, "namespace": NAMESPACE, **seen, **more}
    them, topics = pa.Table.from_pylist(rows, CURSOR_ACTIVITY), pa.Table.from_pylist([topic], TOPIC_ACTIVITY)
    chosen = frozenset([NAMESPACE])
    choice = InactivityChoice(PERIOD, chosen, chosen, functions=functions)
    stays = {name for name in cursors if functions is None or name in functions or "/" in name}
    going = inactive_cursors(them, topics, choice, START).to_pylist()
    assert {row["cursor"] for row in going if row["kept"]} == stays
    (row,) = inactive_topics(topics, them, choice, START).to_pylist()
    assert (row["kept"] is not None) == bool(stays)
