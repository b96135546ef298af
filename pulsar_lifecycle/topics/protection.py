"""What protects a topic's data: legal holds, settings, system topics, shadow topics, unknown namespaces.

Belongs here: the rules, as codes, and the sentence of each. Not here: reading what they judge by, what protects one
ledger (``trimming/trim_rules.py``, ``deletion/planning/orphans.py``).
"""

from __future__ import annotations

from enum import StrEnum

from pulsar_lifecycle.model import PENDING_ACKS, Topic
from pulsar_lifecycle.values import findings
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.owner_names import holders, schema_owner

OF_TRANSACTIONS = ("/__transaction_log_", PENDING_ACKS, "/transaction_coordinator_")
"""Parts of the names of managed ledgers that transactions keep; only brokers' own code reads these. A broker that has
one open does not list it among its topics."""

NEVER = ("pulsar/system/__ledger_deletion", *OF_TRANSACTIONS)
"""Parts of topic names whose ledgers are never deleted by us: our own queue, and transactions."""

NEVER_TRIMMED = "__transaction_"
"""Local names of transaction topics begin so; :data:`NEVER` has those that bear it elsewhere."""


class Protection(StrEnum):
    """What keeps every ledger of a topic."""

    RESERVED = "reserved"
    """Its topic is the deletion queue, or of transactions."""
    UNNAMED_OWNER = "unnamed_owner"
    """Its tags name no owner that a topic can have."""
    UNKNOWN_NAMESPACE = "unknown_namespace"
    """No declared root has its namespace: it is foreign or gone."""
    SHARED_NAMESPACE = "shared_namespace"
    """Another cluster has its namespace, too."""
    UNREAD_NAMESPACE = "unread_namespace"
    """Its namespace could not be read whole."""
    LOST_ENTRIES = "lost_entries"
    """An entry that names ledgers of its topic is gone or damaged, or its broker does not tell what it has in memory.
    """
    LEGAL_HOLD = "legal_hold"
    """Its topic, namespace or tenant is on legal hold, until `orphans.legal_holds` does not name it any more."""
    LEGAL_HOLD_ON_PARTITION = "legal_hold_on_partition"
    """A partition of its topic is on legal hold, as above."""
    SHADOW_SOURCE = "shadow_source"
    """Its topic is the source of a shadow topic, or was within `orphans.confirm_after`."""
    SYSTEM_TOPIC = "system_topic"
    """Its topic is a system topic."""

    SHADOW_TOPIC = "shadow_topic"
    """Its topic is a shadow topic: the ledgers are its source's, which has them once it has no shadow topic."""
    NOT_PERSISTENT = "not_persistent"
    """Its topic is not a persistent one."""

    LOADED = "loaded"
    """A broker has its topic loaded, or may have: it trims the topic itself."""
    LAST_LEDGER_OPEN = "last_ledger_open"
    """No broker has its topic, and its last ledger was never closed, as that broker died: nobody trims it until one
    loads it."""
    TERMINATED = "terminated"
    """Its topic is terminated: a broker that loads it does not write its z-node, and would not see our write."""
    OPEN_ATTEMPT = "open_attempt"
    """An offload of a ledger of its topic is not complete."""
    OPEN_ORPHAN = "open_orphan"
    """The newest scan found an unreferenced ledger of its topic that was never closed."""


_TEXTS = {
    Protection.RESERVED: "deletion queue or transaction: never deleted",
    Protection.UNNAMED_OWNER: "its tags name no owner that a topic can have",
    Protection.LOST_ENTRIES: "references of its topic, or of its schemas, are in an entry that is gone or damaged, "
    "or in the memory of a broker that fails at saying so",
    Protection.LEGAL_HOLD: "legal hold on it, its namespace or its tenant: withdraw it in orphans.legal_holds",
    Protection.LEGAL_HOLD_ON_PARTITION: "legal hold on one of its partitions: withdraw it in orphans.legal_holds",
    Protection.SHADOW_SOURCE: "source of a shadow topic, which lists its ledgers: kept until no topic has named it as "
    "its source for orphans.confirm_after",
    Protection.SYSTEM_TOPIC: "system topic (orphans.system_topics opts in; to trim or delete it "
    "trimming.system_topics, too)",
    Protection.NOT_PERSISTENT: "not a persistent topic",
    Protection.OPEN_ORPHAN: "the newest scan found an unreferenced ledger of it that was never closed: the deletion "
    "run would wait; scan again, and if it is open still, have BookKeeper close it (Find and delete leaked ledgers)",
}


def owner_protection(namespace: str, topic: str, context: Context) -> Protection | None:
    """What protects an owner's ledgers; None where the owner is no reason.

    ``namespace`` is ``T/NS``, ``topic`` the full name; both are empty where an owner cannot be named.
    """
    local = topic.rpartition("/")[2]
    if any(part in topic for part in NEVER):
        return Protection.RESERVED
    if not namespace:
        return Protection.UNNAMED_OWNER
    if namespace not in context.namespaces and namespace not in context.gone_namespaces:
        return Protection.UNKNOWN_NAMESPACE
    if namespace in context.shared_namespaces:
        return Protection.SHARED_NAMESPACE
    if namespace in context.kept_namespaces:
        return Protection.UNREAD_NAMESPACE
    if context.kept_topics and not context.kept_topics.isdisjoint((topic, schema_owner(topic))):
        return Protection.LOST_ENTRIES
    if context.holds and not context.holds.isdisjoint(holders(namespace, topic)):
        return Protection.LEGAL_HOLD
    if context.holds and topic in context.held_parents:
        return Protection.LEGAL_HOLD_ON_PARTITION
    if not context.shadow_sources.isdisjoint((topic, holders(namespace, topic)[-1])):
        return Protection.SHADOW_SOURCE
    if not context.system_topics and _is_system(namespace, local):
        return Protection.SYSTEM_TOPIC
    return None


def _is_system(namespace: str, local: str) -> bool:
    return local.startswith("__") or namespace == "pulsar/system"


def of_transactions(topic: Topic) -> bool:
    """Whether transactions keep it (:data:`OF_TRANSACTIONS`)."""
    return any(part in str(topic) for part in OF_TRANSACTIONS)


def is_brokers_own(topic: Topic) -> bool:
    """Whether it is a system topic, of transactions, or of the deletion queue, and none of clients."""
    return _is_system(str(topic.namespace), topic.local) or any(part in str(topic) for part in NEVER)


def owner_rule(namespace: str, topic: str, context: Context) -> Why | None:
    """:func:`owner_protection` with its sentence; None where the owner is no reason."""
    code = owner_protection(namespace, topic, context)
    if code is Protection.UNKNOWN_NAMESPACE:
        text = f"namespace {namespace} exists under no declared root: foreign or gone (bookkeeper.gone_namespaces)"
        return Why(code, text)
    return Why(code, _text(code, namespace)) if code else None


def _text(code: Protection, namespace: str) -> str:
    if code is Protection.SHARED_NAMESPACE:
        return f"namespace {namespace} is another cluster's too: only its own brokers know what they hold"
    if code is Protection.UNREAD_NAMESPACE:
        return f"namespace {namespace} could not be read whole"
    if code is Protection.UNKNOWN_NAMESPACE:  # of a topic that is there now, and perhaps newer than the scan
        return UNKNOWN_NAMESPACE.format(namespace)
    return _TEXTS[code]


UNKNOWN_NAMESPACE = (
    "namespace {} is not known to the newest scan: run the job `scan`; if that does not know it either, "
    "it is foreign or gone, and nothing of it is touched"
)


def topic_protection(topic: Topic, shadow_source: str, context: findings.Context) -> Protection | None:
    """What keeps everything of a topic in its metadata; None if the topic is no reason.

    ``shadow_source`` is what its own or its partitioned topic's properties name as the source of a shadow topic.
    """
    if shadow_source:
        return Protection.SHADOW_TOPIC
    if topic.domain != "persistent":
        return Protection.NOT_PERSISTENT
    if topic.local.startswith(NEVER_TRIMMED):
        return Protection.RESERVED
    return owner_protection(str(topic.namespace), str(topic), context)


def topic_rule(topic: Topic, shadow_source: str, context: findings.Context) -> Why | None:
    """:func:`topic_protection` with its sentence; None if the topic is no reason."""
    code = topic_protection(topic, shadow_source, context)
    if code is Protection.SHADOW_TOPIC:
        text = f"shadow topic of {shadow_source}: its ledgers are its source's, which keeps them while it is there"
        return Why(code, f"{text}; once no topic has named that source for orphans.confirm_after, ask for the source")
    return Why(code, _text(code, str(topic.namespace))) if code else None


def deletion_protection(topic: Topic, context: findings.Context) -> Protection | None:
    """What would keep a deletion run from deleting any ledger that leaves the metadata of a topic."""
    return Protection.OPEN_ORPHAN if str(topic) in context.writable_topics else None


def deletion_rule(topic: Topic, context: findings.Context) -> Why | None:
    """:func:`deletion_protection` with its sentence; None if there is no reason."""
    code = deletion_protection(topic, context)
    return Why(code, _TEXTS[code]) if code else None
