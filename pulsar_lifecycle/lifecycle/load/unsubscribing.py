"""Deleting a subscription that is expired or inactive, of a topic that its broker has loaded for a visit.

Belongs here: whether it is still what was judged, whether it stays on another partition of the same wave, and what
becomes of the visit. Not here: which ones are to go
(``going_subscriptions.py``), the request itself (``lifecycle/subscription_deletion.py``).

A broker writes a cursor's z-node with the first position that it stores, and when it closes the cursor. So one whose
z-node is as it was judged, and of which the broker knows of no use since it loaded the topic, was not used since then.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from pulsar_lifecycle.errors import CorruptFormat, NotFound, Overloaded, Unavailable
from pulsar_lifecycle.lifecycle.load.fresh import missing_cursors
from pulsar_lifecycle.lifecycle.load.load_rules import LoadKept
from pulsar_lifecycle.lifecycle.load.visit import Visit
from pulsar_lifecycle.lifecycle.subscription_deletion import (
    Deleting,
    Subscription,
    persisted,
    topic_would_go,
    used_since,
)
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, cursor_name, encode_name
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.inactive_plan import InactiveKept


@dataclass(frozen=True, slots=True)
class Unsubscribing:
    """The subscriptions of one wave of ``visits``: those of partitions together stay on all once they stay on one.

    ``ledgers_root``: where the metadata of cursors' ledgers is.
    """

    deleting: Deleting
    ledgers_root: str
    visits: Sequence[Visit]

    def judge(self, visit: Visit) -> None:
        """Look which of ``visit.together`` stay, before any of the wave is deleted; each is journalled.

        Raises what its broker answers to a look.
        """
        going: set[str] = set()
        for name in visit.leaving:
            going.add(name)
            _, kept = self._look(visit, name, going) if name in visit.together else (None, None)
            if kept:
                going.remove(name)
                self._leave(visit, name, kept)

    def delete(self, visit: Visit, name: str) -> None:
        """Have the topic's broker delete one of ``visit.leaving``, unless it was used; journalled before and after.

        ``visit`` then says what became of it. Raises what its broker answers to a look.
        """
        if name in visit.stays:
            return
        if other := self._stays_on(visit, name):
            self._leave(visit, name, Why(LoadKept.PARTITION_STAYS, f"it stays on {other.topic}"))
            return
        node, kept = self._look(visit, name, {name})
        about = _about(visit, name)
        if kept:
            self._leave(visit, name, kept)
            return
        if node is None:
            why = Why(Code.NOT_THERE, "it does not exist any more")
            self.deleting.journal(visit.topic, about, 0, Outcome.NOTHING, why)
            return
        outcome, why = self.deleting.delete(visit.topic, node, about, 0)
        self.deleting.journal(visit.topic, about, 0, outcome, why)
        if outcome is Outcome.DONE:
            visit.unsubscribed.add(name)
        elif why.code is Code.OUTCOME_UNKNOWN:
            visit.failure, visit.unanswered = why.put(f"subscription {name}: {why}"), True
        else:
            visit.stays[name] = why

    def _leave(self, visit: Visit, name: str, why: Why) -> None:
        visit.stays[name] = why
        self.deleting.journal(visit.topic, _about(visit, name), 0, Outcome.LEFT, why)

    def _stays_on(self, visit: Visit, name: str) -> Visit | None:
        """The visit of another partition that does not delete it, and whose topic has it still."""
        if name not in visit.together:
            return None
        owner = visit.topic.partitioned_parent
        others = (one for one in self.visits if one is not visit and name in one.together)
        left = (one for one in others if not one.gone and name not in one.unsubscribed)
        ended = (one for one in left if one.topic.partitioned_parent == owner and (one.failure or name in one.stays))
        store = self.deleting.ports.store
        return next((one for one in ended if not all(missing_cursors(store, one.topic, [name]))), None)

    def _look(self, visit: Visit, name: str, going: Collection[str]) -> tuple[Node | None, Why | None]:
        """Its z-node, and why it stays; neither where it does not exist any more."""
        store = self.deleting.ports.store
        store.sync("/")
        node = store.read([f"{MANAGED_LEDGERS_ROOT}/{visit.topic.managed_ledger}/{encode_name(name)}"])[0]
        if node is None:
            return None, None
        if not isinstance(node, Node) or (node.stat.czxid, node.stat.version) != visit.leaving[name]:
            return None, Why(Code.CHANGED_MEANWHILE, "it was used, or is another one, since it was judged")
        try:
            return node, self._kept(visit, name, node, going)
        except NotFound:
            if not all(missing_cursors(store, visit.topic, [name])):
                raise
            return None, None

    def _kept(self, visit: Visit, name: str, node: Node, going: Collection[str]) -> Why | None:
        """Why it stays; None if nothing keeps it. Its broker is asked last.

        ``going``: with it, what else is gone by then. Its z-node does not say that it is replicated while it has a
        ledger.
        """
        ports, monitors = self.deleting.ports, visit.monitors
        if monitors is None or not monitors.expires_messages(name):
            return Why(InactiveKept.SYSTEM_CURSOR, "by now brokers call it their own, or may")
        try:
            replicated = persisted(ports, node, self.ledgers_root).replicated
        except Overloaded:
            raise
        except (CorruptFormat, NotFound, Unavailable) as error:
            return Why(InactiveKept.UNKNOWN_CURSOR, f"its cursor ledger cannot be read: {error}")
        if replicated:
            return Why(InactiveKept.REPLICATED, "it is a replicated subscription: its consumers may be elsewhere")
        cursors = [cursor_name(one) for one in snapshot.cursors(ports.store, node.path.rpartition("/")[0])]
        if not visit.may_be_deleted and topic_would_go(visit.topic, cursors, going, monitors):
            return Why(InactiveKept.LAST_SUBSCRIPTION, "its broker would delete its topic, too, or may")
        return used_since(ports.admin, visit.topic, name, 0)


def _about(visit: Visit, name: str) -> Subscription:
    at, (czxid, _) = visit.before.cursors.get(name), visit.leaving[name]
    place = (at.ledger_id, at.entry_id) if at else (None, None)
    return Subscription(name, *place, czxid)
