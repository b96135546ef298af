"""One index of delayed messages for all subscriptions of a topic: each is told of what is due, as if it had its own.

Belongs here: what each subscription has read, acknowledged and is owed. Not here: the index itself (:mod:`tracker`).
Upstream: PIP-195, "Share the delayed message index across subscriptions", ``delayedDeliverySharedIndexEnabled``. No
broker has built it. As the PIP has it, a message that is due leaves the index, and is owed to every subscription that
has read past it; one that has not read it yet finds it due when it does. A bitmap of what is owed is all that a
subscription costs, however slow it is.

Times are ms, and never fall: an earlier one than the last counts as the last. Nothing here waits or asks the time. Not
safe for threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from pulsar_lifecycle.delayed_index.tracking.membership import EntrySet, Mask
from pulsar_lifecycle.delayed_index.tracking.tracker import BucketTracker
from pulsar_lifecycle.formats.delayed_indexes import Longs
from pulsar_lifecycle.model import Position

_AT_ONCE = 1 << 14
"""So many messages that are due are taken out of the index together, at least."""


@dataclass(frozen=True, slots=True)
class AcknowledgedMessages:
    """What a subscription has acknowledged; whoever is given it takes it over."""

    mark_delete: Position
    """Everything up to it, inclusive."""
    individually: EntrySet = field(default_factory=EntrySet)
    """And these, after it."""


class SharedIndex:
    """Delayed messages of a topic, each handed out once to each subscription, when it is due.

    A subscription reads in order, from behind its mark-delete position, and tells every delayed message that it comes
    to. A message that it reads before others that it has not read may be handed out twice; none is lost by it.
    """

    def __init__(self, tracker: BucketTracker, subscriptions: Mapping[str, AcknowledgedMessages]) -> None:
        """Over the topic's only tracker, whose cursor no consumer uses; ``subscriptions`` are all that there are."""
        self._tracker = tracker
        self._now = 0
        self._views = {name: _View(acknowledged) for name, acknowledged in subscriptions.items()}

    # ------------------------------------------------------------------------------------------------- subscriptions

    def read_from(self, subscription: str, acknowledged: AcknowledgedMessages) -> None:
        """A new subscription, or one that is reset, in either direction: it reads on from there."""
        self._views[subscription] = _View(acknowledged)
        self._forget_passed()

    def clear(self, subscription: str) -> None:
        """Forget what it read and did not acknowledge, as when its last consumer goes: it reads that again."""
        self._views[subscription] = _View(self._view(subscription).acknowledged)

    def unsubscribe(self, subscription: str) -> None:
        """A subscription is deleted. The index keeps nothing after the last one."""
        self._views.pop(subscription, None)
        if self._views:
            self._forget_passed()
        else:
            self._tracker.clear()

    def mark_delete(self, subscription: str, position: Position) -> None:
        """All up to ``position``, inclusive, is acknowledged; done too where it was before."""
        self._view(subscription).mark_delete(position)
        self._forget_passed()

    def acknowledge(self, subscription: str, ledgers: Longs, entries: Longs) -> None:
        """These messages are acknowledged, each told once."""
        self._view(subscription).acknowledge(ledgers, entries)

    # ---------------------------------------------------------------------------------------------------- messages

    @property
    def number_of_delayed_messages(self) -> int:
        """Of the topic: all in the index, whichever subscriptions wait for them."""
        return self._tracker.number_of_delayed_messages

    def owed(self, subscription: str) -> int:
        """Messages that are due, are out of the index, and were not handed out to the subscription."""
        return len(self._view(subscription).owed)

    @property
    def nbytes(self) -> int:
        """Bytes of messages in memory: those of the index once, and each subscription's bitmaps."""
        return self._tracker.nbytes + sum(view.nbytes for view in self._views.values())

    def has_message_available(self, subscription: str, now_ms: int) -> bool:
        """Whether any may be due; those that the index has may turn out to be other subscriptions' alone."""
        owed = self._view(subscription).owed
        return len(owed) > 0 or self._tracker.has_message_available(self._clock(now_ms))

    def contains_message(self, subscription: str, ledger: int, entry: int) -> bool:
        """Whether it will be handed out to the subscription, if that reads past it."""
        return bool(self.contains_messages(subscription, np.array([ledger]), np.array([entry]))[0])

    def contains_messages(self, subscription: str, ledgers: Longs, entries: Longs) -> Mask:
        """As :meth:`contains_message`, of many."""
        view = self._view(subscription)
        found = self._tracker.contains_messages(ledgers, entries) & view.needs(ledgers, entries)
        return found | view.owed.contains(ledgers, entries)

    def pass_over(self, subscription: str, ledgers: Longs, entries: Longs) -> int:
        """How many of the next entries need not be read: the subscription reads on behind them."""
        found = self.contains_messages(subscription, ledgers, entries)
        count = len(found) if found.all() else int(np.argmin(found))
        self._view(subscription).read_past(ledgers[:count], entries[:count])
        return count

    def add_message(self, subscription: str, ledger: int, entry: int, deliver_at: int, now_ms: int) -> bool:
        """The subscription has read it. False where it is due: deliver it."""
        one = np.array([[ledger], [entry], [deliver_at]], np.int64)
        return bool(self.add_messages(subscription, one[0], one[1], one[2], now_ms)[0])

    def add_messages(self, subscription: str, ledgers: Longs, entries: Longs, deliver_at: Longs, now_ms: int) -> Mask:
        """As :meth:`add_message`, of many at one time; all arrays of one length."""
        view, now = self._view(subscription), self._clock(now_ms)
        left = view.owed.contains(ledgers, entries) | ~view.needs(ledgers, entries)
        new = ~left
        left[new] = self._tracker.add_messages(ledgers[new], entries[new], deliver_at[new], now)
        view.read_past(ledgers, entries)
        return left

    def get_scheduled_messages(self, subscription: str, max_messages: int, now_ms: int) -> EntrySet:
        """Take out at most ``max_messages`` that are due for the subscription: the first in the topic."""
        view, now = self._view(subscription), self._clock(now_ms)
        while (missing := max_messages - len(view.owed)) > 0:
            found = self._tracker.get_scheduled_messages(max(missing, _AT_ONCE), now)
            unread = self._tracker.take_unread()
            for each in self._views.values():
                each.owe(found.ledgers, found.entries)
                each.miss(unread)
            if not len(found):
                break
        return view.owed.pop_first(max_messages)

    def take_unread(self, subscription: str) -> EntrySet:
        """Entries that one subscription must have read again, and added, before anything else is asked for it."""
        view = self._view(subscription)
        found, view.unread = view.unread, EntrySet()
        return found

    def _view(self, subscription: str) -> _View:
        try:
            return self._views[subscription]
        except KeyError:
            raise ValueError(f"subscription {subscription!r}: reads nothing here; call read_from first") from None

    def _clock(self, now_ms: int) -> int:
        self._now = max(self._now, now_ms)
        return self._now

    def _forget_passed(self) -> None:
        """Buckets go whose ledgers every subscription has acknowledged, due or not: the slowest one keeps the rest."""
        self._tracker.forget_before(min(view.acknowledged.mark_delete.ledger_id for view in self._views.values()))


class _View:
    """What one subscription sees of the index."""

    __slots__ = ("acknowledged", "owed", "read_position", "unread")

    def __init__(self, acknowledged: AcknowledgedMessages) -> None:
        self.acknowledged = acknowledged
        self.read_position = _after(acknowledged.mark_delete)
        """Everything before it was read, passed over, or acknowledged."""
        self.owed = EntrySet()
        self.unread = EntrySet()

    @property
    def nbytes(self) -> int:
        return self.acknowledged.individually.nbytes + self.owed.nbytes + self.unread.nbytes

    def needs(self, ledgers: Longs, entries: Longs) -> Mask:
        """Which messages are not acknowledged."""
        passed = _before(ledgers, entries, _after(self.acknowledged.mark_delete))
        return ~(passed | self.acknowledged.individually.contains(ledgers, entries))

    def owe(self, ledgers: Longs, entries: Longs) -> None:
        """These are due, and in the index no more."""
        mine = _before(ledgers, entries, self.read_position) & self.needs(ledgers, entries)
        self.owed.add(ledgers[mine], entries[mine])
        self.unread.discard(ledgers[mine], entries[mine])

    def miss(self, unread: EntrySet) -> None:
        """These are in the index no more, and when they are due is not known."""
        if len(unread):
            ledgers, entries = unread.columns()
            mine = _before(ledgers, entries, self.read_position) & self.needs(ledgers, entries)
            self.unread.add(ledgers[mine], entries[mine])

    def read_past(self, ledgers: Longs, entries: Longs) -> None:
        """It has read up to the last of these; earlier ones may be read again."""
        if len(ledgers):
            ledger = int(ledgers.max())
            last = Position(ledger, int(entries[ledgers == ledger].max()))
            self.read_position = max(self.read_position, _after(last))

    def mark_delete(self, position: Position) -> None:
        if position <= self.acknowledged.mark_delete:
            return
        for messages in (self.acknowledged.individually, self.owed, self.unread):
            messages.discard_until(position.ledger_id, position.entry_id)
        self.acknowledged = AcknowledgedMessages(position, self.acknowledged.individually)
        self.read_position = max(self.read_position, _after(position))

    def acknowledge(self, ledgers: Longs, entries: Longs) -> None:
        new = self.needs(ledgers, entries)
        self.acknowledged.individually.add(ledgers[new], entries[new])
        self.owed.discard(ledgers, entries)
        self.unread.discard(ledgers, entries)


def _after(position: Position) -> Position:
    return Position(position.ledger_id, position.entry_id + 1)


def _before(ledgers: Longs, entries: Longs, position: Position) -> Mask:
    return (ledgers < position.ledger_id) | ((ledgers == position.ledger_id) & (entries < position.entry_id))
