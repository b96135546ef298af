"""Deleting a subscription that is expired or inactive, of a topic that its broker has loaded for a visit.

Belongs here: whether it is still what was judged, and what becomes of the visit. Not here: which ones are to go
(``going_subscriptions.py``), the request itself (``lifecycle/subscription_deletion.py``).

A broker writes a cursor's z-node with the first position that it stores, and when it closes the cursor. So one whose
z-node is as it was judged, and of which the broker knows of no use since it loaded the topic, was not used since then.
"""

from __future__ import annotations

from pulsar_lifecycle.errors import NotFound
from pulsar_lifecycle.lifecycle.load.fresh import missing_cursors
from pulsar_lifecycle.lifecycle.load.visit import Visit
from pulsar_lifecycle.lifecycle.subscription_deletion import Deleting, Subscription, topic_would_go, used_since
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, cursor_name, encode_name
from pulsar_lifecycle.ports import Node, Unread
from pulsar_lifecycle.records.codes import Code, Why
from pulsar_lifecycle.records.outcomes import Outcome
from pulsar_lifecycle.records.plans.inactive_plan import InactiveKept
from pulsar_lifecycle.topics import snapshot


def unsubscribe(deleting: Deleting, visit: Visit, name: str) -> None:
    """Have the topic's broker delete one of ``visit.leaving``, unless it was used; journalled before and after.

    ``visit`` then says what became of it. Raises what its broker answers to a look.
    """
    store, topic = deleting.ports.store, visit.topic
    at = visit.before.cursors.get(name)
    about = Subscription(name, at.ledger_id, at.entry_id) if at else Subscription(name)
    path = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}/{encode_name(name)}"
    store.sync("/")
    node = store.read([path])[0]
    try:
        kept = _kept(deleting, visit, name, node)
    except NotFound:
        if not all(missing_cursors(store, topic, [name])):
            raise
        node = kept = None
    if node is None:
        deleting.journal(topic, about, 0, Outcome.NOTHING, Why(Code.NOT_THERE, "it does not exist any more"))
        return
    if kept or not isinstance(node, Node):
        why = kept or _CHANGED
        visit.stays[name] = why
        deleting.journal(topic, about, 0, Outcome.LEFT, why)
        return
    outcome, why = deleting.delete(topic, node, about, 0)
    deleting.journal(topic, about, 0, outcome, why)
    if outcome is Outcome.DONE:
        visit.unsubscribed.add(name)
    elif why.code is Code.OUTCOME_UNKNOWN:
        visit.failure, visit.unanswered = why.put(f"subscription {name}: {why}"), True
    else:
        visit.stays[name] = why


_CHANGED = Why(Code.CHANGED_MEANWHILE, "it was used, or is another one, since it was judged")


def _kept(deleting: Deleting, visit: Visit, name: str, node: Node | Unread | None) -> Why | None:
    """Why it stays; None if nothing keeps it. Its broker is asked last."""
    if node is None:
        return None
    if not isinstance(node, Node) or (node.stat.czxid, node.stat.version) != visit.leaving[name]:
        return _CHANGED
    monitors = visit.monitors
    if monitors is None or not monitors.expires_messages(name):
        return Why(InactiveKept.SYSTEM_CURSOR, "by now brokers call it their own, or may")
    cursors = [cursor_name(one) for one in snapshot.cursors(deleting.ports.store, node.path.rpartition("/")[0])]
    if not visit.may_be_deleted and topic_would_go(visit.topic, cursors, {name}, monitors):
        return Why(InactiveKept.LAST_SUBSCRIPTION, "its broker would delete its topic, too, or may")
    return used_since(deleting.ports.admin, visit.topic, name, 0)
