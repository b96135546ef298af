"""Which ledgers may leave a topic's list, and why every other one stays."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from pulsar_lifecycle.copies import listed_ledgers
from pulsar_lifecycle.copies.listed_ledgers import BookKeeperCopy
from pulsar_lifecycle.formats.deletion_message import LedgerComponent, LedgerType
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext, OffloadSegment
from pulsar_lifecycle.model import Position, Topic
from pulsar_lifecycle.topics import protection
from pulsar_lifecycle.topics.protection import Protection
from pulsar_lifecycle.trimming import trim_rules
from pulsar_lifecycle.trimming.trim_rules import Stays
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.findings import Context

TOPIC = Topic.parse("persistent://acme/orders/a+b c~é-partition-0")
CONTEXT = Context(now=0, grace=0, namespaces=frozenset({"acme/orders"}), offload_buckets=frozenset({"b"}))
UUID_1 = UUID(int=(1 << 127) + 5)


def row(ledger_id: int, **changes: Any) -> dict[str, Any]:
    """A ledger's z-node as the inventory reads it."""
    return {
        "ledger_id": ledger_id,
        "problem": None,
        "error": None,
        "state": "CLOSED",
        "entries": 1,
        "length": 10,
        "czxid": 100 + ledger_id,
        "ctime": 200 + ledger_id,
        "application": "pulsar",
        "component": "managed-ledger",
        "managed_ledger": TOPIC.managed_ledger,
        "cursor": None,
        "schema_id": None,
        "compacted_topic": None,
        "bucket_topic": None,
        "bucket_key": None,
        "bucket_cursor": None,
        **changes,
    }


def info(*ids: int, offload: dict[int, OffloadContext] | None = None) -> ManagedLedgerInfo:
    return ManagedLedgerInfo(tuple(LedgerInfo(i, 1, 10, 1, (offload or {}).get(i)) for i in ids))


def copies(*ids: int) -> dict[int, BookKeeperCopy]:
    return {i: listed_ledgers.copy_of(i, row(i), TOPIC) for i in ids}


def context_of(*, complete: bool = True, bookkeeper_deleted: bool = False, **changes: Any) -> OffloadContext:
    made = OffloadContext(UUID_1, complete, bookkeeper_deleted, 1, "aws-s3", {"bucket": "b"})
    return replace(made, **changes)


def judged(
    ledgers: ManagedLedgerInfo, asked: set[int], cursors: dict[str, Position] | None = None, **more: Any
) -> dict[int, StrEnum | None]:
    """Why each ledger stays; None for one that goes."""
    return {i: why and why.code for i, why in stays(ledgers, asked, cursors, **more).items()}


def stays(
    ledgers: ManagedLedgerInfo, asked: set[int], cursors: dict[str, Position] | None = None, **more: Any
) -> dict[int, Why | None]:
    """The same with the sentence."""
    known = more.pop("copies", None) or copies(*(i.ledger_id for i in ledgers.ledgers))
    verdicts = trim_rules.judge(ledgers, cursors or {}, known, asked, more.pop("context", CONTEXT), **more)
    assert [v.ledger_id for v in verdicts] == sorted(asked)
    return {v.ledger_id: v.stays for v in verdicts}


def test_a_prefix_goes_whatever_the_order_of_the_list() -> None:
    assert judged(info(4, 1, 3, 2), {1, 2}) == {1: None, 2: None}


def test_the_last_ledger_stays() -> None:
    assert judged(info(1, 2), {1, 2}) == {1: None, 2: Stays.LAST_LEDGER}
    assert judged(info(7), {7}) == {7: Stays.LAST_LEDGER}


def test_nothing_leaves_a_hole() -> None:
    found = stays(info(1, 2, 3, 4), {1, 3})
    assert found == {1: None, 3: Why(Stays.NOT_PREFIX, "ledger 2 before it stays: it would leave a hole")}


def test_nothing_at_or_past_a_cursor_goes() -> None:
    cursors = {"fast": Position(9, 0), "a+b": Position(3, -1)}
    why = Why(Stays.CURSOR, "cursor a+b stands at 3:-1")
    assert stays(info(1, 2, 3, 4, 9), {1, 2, 3, 4}, cursors) == {1: None, 2: None, 3: why, 4: why}


def of_entries(said: int | None, stored: int | None = None, **changes: Any) -> tuple[LedgerInfo, BookKeeperCopy | None]:
    copy = (
        None if stored is None and not changes else listed_ledgers.copy_of(3, row(3, entries=stored, **changes), TOPIC)
    )
    return LedgerInfo(3, said, 10, 1), copy


@pytest.mark.parametrize(
    ("ledger", "position", "behind"),
    [
        (of_entries(5, 5), Position(3, 4), True),
        (of_entries(5, 5), Position(3, 3), False),
        (of_entries(5, 5), Position(3, 9), False),
        (of_entries(5, 5), Position(4, -1), True),
        (of_entries(5, 5), Position(2, 9), False),
        (of_entries(5), Position(3, 4), True),
        (of_entries(5), Position(3, 3), False),
        (of_entries(5, 7), Position(3, 4), False),
        (of_entries(7, 5), Position(3, 4), False),
        (of_entries(7, 5), Position(3, 6), False),
        (of_entries(None, 5), Position(3, 4), True),
        (of_entries(None), Position(3, 4), False),
        (of_entries(0), Position(3, -1), False),
        (of_entries(5, None, state="OPEN"), Position(3, 4), False),
        (of_entries(5, None, state="OPEN"), Position(4, 0), True),
        (of_entries(0, 0), Position(3, -1), True),
        (of_entries(0, 0), Position(1, 0), True),
        (of_entries(None, 0), Position(1, 0), True),
        (of_entries(5, 0), Position(3, 4), False),
    ],
)
def test_a_ledger_whose_last_entry_a_cursor_stands_at_is_behind_it(
    ledger: tuple[LedgerInfo, BookKeeperCopy | None], position: Position, behind: bool
) -> None:
    """``ManagedLedgerImpl.internalTrimLedgers``; where topic and BookKeeper count otherwise, it stays."""
    assert trim_rules.acknowledged(*ledger, position) is behind


def test_the_ledger_that_all_cursors_have_read_to_its_end_goes() -> None:
    found = judged(info(1, 2, 3, 4), {1, 2, 3}, {"s": Position(2, 0), "t": Position(3, 0)})
    assert found == {1: None, 2: None, 3: Stays.CURSOR}


def test_a_cursor_in_a_ledger_that_is_gone_holds_everything_after_it() -> None:
    assert judged(info(5, 6, 7), {5, 6}, {"s": Position(4, 9)}) == {5: Stays.CURSOR, 6: Stays.CURSOR}


def test_what_the_topic_does_not_list_is_said_so() -> None:
    assert judged(info(1, 2), {1, 99}) == {1: None, 99: Stays.NOT_LISTED}


def test_an_open_offload_attempt_of_a_broker_holds_the_whole_topic() -> None:
    """Taking ledger 1 off the list would fence the broker, and end what it is at."""
    found = info(1, 2, 3, 4, offload={2: context_of(complete=False)})
    own = listed_ledgers.open_attempt(found)
    assert own
    assert own.code is Code.BROKERS_ATTEMPT
    assert stays(found, {1, 2, 3}) == dict.fromkeys((1, 2, 3), own)


@pytest.mark.parametrize(
    "offload",
    [
        context_of(uuid=None),
        context_of(driver_name=None),
        context_of(complete=False, uuid=None, bookkeeper_deleted=True),
        context_of(segments=(OffloadSegment(UUID_1, True, 1, 1, 1, "aws-s3", {}),)),
    ],
)
def test_a_copy_that_cannot_be_named_holds_its_ledger(offload: OffloadContext) -> None:
    found = info(1, 2, offload={1: offload})
    own = listed_ledgers.kept_copy(found.ledgers[0], copies(1)[1], CONTEXT)
    assert own
    assert own.code is (Code.STREAMING if offload.segments else Code.COPY_KEPT)
    assert stays(found, {1}) == {1: own}


def test_an_attempt_that_never_began_holds_nothing() -> None:
    assert judged(info(1, 2, offload={1: context_of(complete=False, uuid=None)}), {1}) == {1: None}


def test_an_offloaded_ledger_needs_no_copy_in_bookkeeper_once_that_is_deleted() -> None:
    gone = listed_ledgers.copies_of({1: None, 2: row(2)}, TOPIC, CONTEXT)
    offloaded = info(1, 2, offload={1: context_of(bookkeeper_deleted=True)})
    assert judged(offloaded, {1}, copies=gone) == {1: None}
    assert judged(info(1, 2), {1}, copies=gone) == {1: Code.NOT_IN_BOOKKEEPER}


@pytest.mark.parametrize(
    "changes",
    [
        {"problem": "unread", "error": "no permission"},
        {"application": None},
        {"component": "schema"},
        {"cursor": "s"},
        {"managed_ledger": "acme/orders/persistent/other"},
        {"state": "OPEN"},
    ],
)
def test_what_the_deletion_run_would_keep_stays_listed(changes: dict[str, Any]) -> None:
    known = {1: listed_ledgers.copy_of(1, row(1, **changes), TOPIC)}
    own = known[1].problem
    assert own
    assert own.code is Code.NOT_IN_BOOKKEEPER
    assert stays(info(1, 2), {1}, copies=known) == {1: own}


def test_an_under_replicated_ledger_stays() -> None:
    known = listed_ledgers.copies_of({1: row(1), 2: row(2)}, TOPIC, replace(CONTEXT, under_replicated=BitMap64([1])))
    assert judged(info(1, 2), {1}, copies=known) == {1: Code.UNDER_REPLICATED}
    assert known[2].problem is None


@pytest.mark.parametrize("bookkeeper_deleted", [False, True])
@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"driver_name": "google-cloud-storage"}, Code.OTHER_DRIVER),
        ({"driver_name": "filesystem", "driver_metadata": {}}, Code.OTHER_DRIVER),
        ({"driver_metadata": {"bucket": "other"}}, Code.NO_BUCKET),
        ({"driver_metadata": {}}, Code.NO_BUCKET),
        ({"driver_name": "S3"}, None),
    ],
)
def test_an_offloaded_copy_that_no_deletion_run_could_delete_holds_its_ledger(
    changes: dict[str, Any], code: Code | None, bookkeeper_deleted: bool
) -> None:
    found = info(1, 2, offload={1: context_of(bookkeeper_deleted=bookkeeper_deleted, **changes)})
    own = listed_ledgers.kept_copy(found.ledgers[0], copies(1)[1], CONTEXT)
    assert (own and own.code) is code
    assert stays(found, {1}) == {1: own}


def test_without_an_object_store_no_offloaded_ledger_leaves() -> None:
    nowhere = replace(CONTEXT, offload_buckets=frozenset())
    assert judged(info(1, 2, offload={1: context_of()}), {1}, context=nowhere) == {1: Code.NO_BUCKET}
    assert judged(info(1, 2), {1}, context=nowhere) == {1: None}


def test_nothing_leaves_a_topic_with_a_leaked_open_ledger() -> None:
    context = replace(CONTEXT, open_topics=frozenset({str(TOPIC)}))
    rule = protection.deletion_rule(TOPIC, context)
    assert rule
    assert rule.code is Protection.OPEN_ORPHAN
    assert protection.deletion_rule(TOPIC.partitioned_parent, context) is None


def test_a_reason_of_the_topic_holds_all_of_it() -> None:
    held = Why(Protection.LEGAL_HOLD, "legal hold")
    assert stays(info(1, 2, 3), {1, 2}, topic=held) == {1: held, 2: held}


SYSTEM = Context(
    now=0,
    grace=0,
    namespaces=frozenset({"acme/orders", "pulsar/system"}),
    holds=frozenset({"persistent://acme/orders/held"}),
    shadow_sources=frozenset({"persistent://acme/orders/source"}),
    system_topics=True,
)


@pytest.mark.parametrize(
    ("name", "context", "code"),
    [
        ("acme/orders/plain", CONTEXT, None),
        ("acme/orders/held", SYSTEM, Protection.LEGAL_HOLD),
        ("acme/orders/held-partition-1", SYSTEM, Protection.LEGAL_HOLD),
        ("acme/orders/source", SYSTEM, Protection.SHADOW_SOURCE),
        ("acme/orders/source-partition-3", SYSTEM, Protection.SHADOW_SOURCE),
        ("acme/orders/__change_events", CONTEXT, Protection.SYSTEM_TOPIC),
        ("acme/orders/__change_events", SYSTEM, None),
        ("pulsar/system/__ledger_deletion-partition-0", SYSTEM, Protection.RESERVED),
        ("pulsar/system/__ledger_deletion-DLQ", SYSTEM, Protection.RESERVED),
        ("pulsar/system/__transaction_log_3", SYSTEM, Protection.RESERVED),
        ("pulsar/system/transaction_coordinator_assign-partition-0", SYSTEM, Protection.RESERVED),
        ("acme/orders/__transaction_buffer_snapshot", SYSTEM, Protection.RESERVED),
        ("acme/orders/t-s__transaction_pending_ack", SYSTEM, Protection.RESERVED),
        ("other/orders/plain", CONTEXT, Protection.UNKNOWN_NAMESPACE),
    ],
)
def test_owners_are_refused_by_name(name: str, context: Context, code: Protection | None) -> None:
    found = protection.topic_rule(Topic.parse(f"persistent://{name}"), "", context)
    assert (found and found.code) is code
    assert found is None or found.text


def test_a_shadow_topic_and_one_that_is_not_persistent_are_refused() -> None:
    shadow = protection.topic_rule(TOPIC, "persistent://a/b/c", CONTEXT)
    assert shadow
    assert shadow.code is Protection.SHADOW_TOPIC
    assert "shadow topic of persistent://a/b/c" in shadow.text
    other = protection.topic_rule(Topic.parse("non-persistent://acme/orders/t"), "", CONTEXT)
    assert other
    assert other.code is Protection.NOT_PERSISTENT


def test_one_message_per_copy() -> None:
    def kinds(offload: OffloadContext | None, node: dict[str, Any] | None) -> list[LedgerType]:
        copy = listed_ledgers.copy_of(1, node, TOPIC)
        found = trim_rules.data_messages(TOPIC, LedgerInfo(1, offload=offload), copy, 7)
        assert {m.topic_name for m in found} == {str(TOPIC)}
        assert {m.component for m in found} == {LedgerComponent.MANAGED_LEDGER}
        return [m.ledger_type for m in found]

    assert kinds(None, row(1)) == [LedgerType.LEDGER]
    assert kinds(context_of(complete=False), row(1)) == [LedgerType.LEDGER]
    assert kinds(context_of(), row(1)) == [LedgerType.LEDGER, LedgerType.OFFLOAD_LEDGER]
    bookkeeper_deleted = context_of(bookkeeper_deleted=True)
    assert kinds(bookkeeper_deleted, row(1)) == [LedgerType.LEDGER, LedgerType.OFFLOAD_LEDGER]
    for bad in (None, row(1, state="OPEN"), row(1, component="schema"), row(1, managed_ledger="a/b/persistent/c")):
        assert kinds(bookkeeper_deleted, bad) == [LedgerType.OFFLOAD_LEDGER]


def test_a_message_carries_what_the_second_phase_compares() -> None:
    ledger, offloaded = trim_rules.data_messages(TOPIC, LedgerInfo(1, offload=context_of()), copies(1)[1], 7)
    assert (ledger.czxid, ledger.ctime, ledger.sent_at) == (101, 201, 7)
    assert offloaded.offload_context is not None
    where = offloaded.offload_context
    assert (where.msb, where.lsb) == (-(1 << 63), 5)
    assert (where.driver_name, where.metadata) == ("aws-s3", {"bucket": "b"})


def test_other_components_are_named_by_their_own_tags() -> None:
    cursor = trim_rules.tagged_message(TOPIC, row(1, cursor="a%2Bb"), 7)
    assert cursor is not None
    assert (cursor.component, cursor.cursor_name) == (LedgerComponent.MANAGED_CURSOR, "a+b")
    bucket = trim_rules.tagged_message(
        TOPIC,
        row(
            2,
            component="delayed-index-bucket",
            managed_ledger=None,
            bucket_topic=str(TOPIC),
            bucket_key="#pulsar.internal.delayed.bucket_1_2",
            bucket_cursor="s",
        ),
        7,
    )
    assert bucket is not None
    assert (bucket.component, bucket.cursor_name, bucket.bucket_key) == (
        LedgerComponent.DELAYED_INDEX_BUCKET,
        "s",
        "#pulsar.internal.delayed.bucket_1_2",
    )


@pytest.mark.parametrize(
    "changes",
    [
        {"problem": "corrupt", "error": "x"},
        {"application": None},
        {"component": "other"},
        {"managed_ledger": "a/b/persistent/c"},
    ],
)
def test_a_ledger_whose_tags_name_another_owner_gives_no_message(changes: dict[str, Any]) -> None:
    assert trim_rules.tagged_message(TOPIC, row(1, **changes), 7) is None


def test_only_what_comes_before_the_first_failed_send_leaves() -> None:
    assert trim_rules.prefix([1, 2, 3, 4], {1, 2, 4}) == [1, 2]
    assert trim_rules.prefix([1, 2], set()) == []


def test_topics_go_round_their_bundles() -> None:
    names = [Topic.parse(f"persistent://a/b/{n}") for n in "uvwxyz"]
    assert trim_rules.spread(zip("113122", names, strict=True)) == [names[i] for i in (0, 2, 4, 1, 5, 3)]


IDS = st.lists(st.integers(0, 40), unique=True, max_size=12)


@given(
    listed=IDS,
    asked=st.sets(st.integers(0, 40)),
    cursors=st.dictionaries(st.sampled_from("abc"), st.builds(Position, st.integers(0, 45), st.integers(-1, 3))),
    broken=st.sets(st.integers(0, 40), max_size=3),
    running=st.sets(st.integers(0, 40), max_size=2),
)
def test_never_a_hole_never_the_last_never_at_or_past_a_cursor(
    listed: list[int], asked: set[int], cursors: dict[str, Position], broken: set[int], running: set[int]
) -> None:
    ledgers = info(*listed, offload=dict.fromkeys(running, context_of(complete=False)))
    known = {
        i: replace(copy, problem=Why(Code.UNREAD, "broken") if i in broken else None)
        for i, copy in copies(*listed).items()
    }
    goes = {v.ledger_id for v in trim_rules.judge(ledgers, cursors, known, asked, CONTEXT) if v.goes}
    in_order = sorted(listed)
    assert goes == set(in_order[: len(goes)])
    assert goes <= asked
    assert not goes & broken
    assert not goes or running.isdisjoint(listed)
    assert not listed or in_order[-1] not in goes
    slowest = min(cursors.values(), default=Position(100, 0))
    assert all(i < slowest.ledger_id or slowest == Position(i, 0) for i in goes)
    stopped = in_order[len(goes)] if len(goes) < len(listed) else None
    if stopped is not None and stopped in asked:  # it stays for a reason of its own
        held = stopped >= slowest.ledger_id and slowest != Position(stopped, 0)
        assert held or stopped in broken or not running.isdisjoint(listed) or stopped == in_order[-1]


def test_an_owner_that_cannot_be_named_is_kept_and_said_to_be() -> None:
    assert protection.owner_protection("", "", SYSTEM) is Protection.UNNAMED_OWNER
    rule = protection.owner_rule("", "", SYSTEM)
    assert rule
    assert (rule.code, rule.text) == (Protection.UNNAMED_OWNER, "its tags name no owner that a topic can have")
