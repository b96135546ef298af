"""What a position cuts off any partition: nothing at or above it, a prefix, and never back behind an earlier one."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from pulsar_lifecycle.delete_records import cut_rules
from pulsar_lifecycle.delete_records.partition import Extent, PartitionView
from pulsar_lifecycle.delete_records.request import END, Options
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.model import MessagePosition, Position, Topic

TOPIC = Topic.parse("persistent://acme/orders/placed")

positions = st.builds(MessagePosition, st.integers(0, 30), st.integers(0, 6), st.integers(0, 2))


@st.composite
def views(draw: st.DrawFn) -> PartitionView:
    ids = sorted(draw(st.sets(st.integers(1, 25), min_size=1, max_size=8)))
    extents = [Extent(LedgerInfo(i), draw(st.integers(0, 5))) for i in ids]
    cursors = draw(
        st.dictionaries(st.sampled_from(["a", "b"]), st.builds(Position, st.integers(0, 26), st.integers(-1, 5)))
    )
    watermark = draw(st.none() | positions)
    info = ManagedLedgerInfo(tuple(extent.item for extent in extents))
    return PartitionView(TOPIC, info, watermark, extents, {}, cursors, {}, None)


def messages(view: PartitionView) -> list[MessagePosition]:
    return [MessagePosition(e.ledger_id, n) for e in view.extents for n in range(e.entries)]


@given(views(), positions | st.just(END), st.booleans())
def test_no_message_at_or_above_the_low_watermark_goes(
    view: PartitionView, asked: MessagePosition | int, exact: bool
) -> None:
    if isinstance(asked, MessagePosition) and cut_rules.misplaced(view, asked):
        return
    cut = cut_rules.cut_at(view, asked, Options(exact=exact))
    ids = [extent.ledger_id for extent in view.extents]
    assert list(cut.ledgers) == ids[: len(cut.ledgers)]
    assert len(cut.ledgers) < len(ids) or cut.rolls
    assert all(one < cut.low_watermark for one in messages(view) if one.ledger_id in cut.ledgers)
    left = [one for one in messages(view) if one.ledger_id not in cut.ledgers]
    assert all(cut.first_readable <= one for one in left)
    if cut.exact:
        assert all(one >= cut.low_watermark for one in left)
    if asked == END:
        assert cut.exact or not left


@given(views(), positions | st.just(END))
def test_the_low_watermark_never_moves_back(view: PartitionView, asked: MessagePosition | int) -> None:
    if isinstance(asked, MessagePosition) and cut_rules.misplaced(view, asked):
        return
    cut = cut_rules.cut_at(view, asked, Options())
    assert view.watermark is None or cut.low_watermark >= view.watermark
    again = cut_rules.cut_at(replace(view, watermark=cut.low_watermark), asked, Options())
    assert again.low_watermark == cut.low_watermark


@given(views(), positions)
def test_a_cursor_that_has_yet_to_read_something_below_is_named(view: PartitionView, asked: MessagePosition) -> None:
    if cut_rules.misplaced(view, asked):
        return
    cut = cut_rules.cut_at(view, asked, Options())
    behind = dict(cut.moved)
    for name, at in view.positions.items():
        unread = [one for one in messages(view) if at < one.entry < cut.low_watermark.entry]
        assert (name in behind) or not unread
        assert cut_rules.entries_behind(view, at, cut.low_watermark) >= len(unread)
    past = view.last_below(cut.low_watermark)
    assert not [one for one in messages(view) if past < one.entry < cut.low_watermark.entry]
