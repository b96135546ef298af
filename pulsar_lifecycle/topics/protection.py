"""What protects a topic's data: legal holds, settings, system topics, shadow topics, unknown namespaces."""

from __future__ import annotations

from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.records import findings
from pulsar_lifecycle.records.findings import Context, Finding
from pulsar_lifecycle.records.owner_names import holders, schema_owner

NEVER = (
    "pulsar/system/__ledger_deletion",
    "/__transaction_log_",
    "__transaction_pending_ack",
    "/transaction_coordinator_",
)
"""Parts of topic names whose ledgers are never deleted by us: our own queue, and transactions."""


def owner_rule(namespace: str, topic: str, context: Context) -> tuple[str, str] | None:
    """Why an owner's ledgers are kept: (finding, reason), or None where the owner is no reason.

    ``namespace`` is ``T/NS``, ``topic`` the full name.
    """
    local = topic.rpartition("/")[2]
    if any(part in topic for part in NEVER):
        return Finding.KEPT, "deletion queue or transaction: never deleted"
    if namespace not in context.namespaces and namespace not in context.gone_namespaces:
        return (
            Finding.FOREIGN,
            f"namespace {namespace} exists under no declared root: foreign or gone (bookkeeper.gone_namespaces)",
        )
    if namespace in context.shared_namespaces:
        return Finding.KEPT, f"namespace {namespace} is another cluster's too: only its own brokers know what they hold"
    if namespace in context.kept_namespaces:
        return Finding.KEPT, f"namespace {namespace} could not be read whole"
    if context.kept_topics and not context.kept_topics.isdisjoint((topic, schema_owner(topic))):
        return Finding.KEPT, (
            "references of its topic, or of its schemas, are in an entry that is gone or damaged, or in the memory of "
            "a broker that fails at saying so"
        )
    if context.holds and not context.holds.isdisjoint(holders(namespace, topic)):
        return Finding.KEPT, "legal hold"
    if context.holds and topic in context.held_parents:
        return Finding.KEPT, "legal hold on one of its partitions"
    if not context.shadow_sources.isdisjoint((topic, holders(namespace, topic)[-1])):
        return Finding.KEPT, "source of a shadow topic"
    if not context.system_topics and (local.startswith("__") or namespace == "pulsar/system"):
        return (
            Finding.KEPT,
            "system topic (orphans.system_topics opts in; to trim or delete it trimming.system_topics, too)",
        )
    return None


NEVER_TRIMMED = "__transaction_"
"""Local names of transaction topics begin so; ``orphans.NEVER`` has those that bear it elsewhere."""

UNKNOWN_NAMESPACE = (
    "namespace {} is not known to the newest scan: run the job `scan`; if that does not know it either, "
    "it is foreign or gone, and nothing of it is touched"
)


def topic_rule(topic: Topic, shadow_source: str, context: findings.Context) -> str:
    """Why nothing of a topic may leave its metadata; empty if the topic is no reason.

    ``shadow_source`` is what its own or its partitioned topic's properties name as the source of a shadow topic.
    """
    if shadow_source:
        return f"shadow topic of {shadow_source}: its ledgers are its source's"
    if topic.domain != "persistent":
        return "not a persistent topic"
    if topic.local.startswith(NEVER_TRIMMED):
        return "deletion queue or transaction: never deleted"
    found = owner_rule(str(topic.namespace), str(topic), context)
    if found and found[0] is findings.Finding.FOREIGN:  # of a topic that is there now, and perhaps newer than the scan
        return UNKNOWN_NAMESPACE.format(topic.namespace)
    return found[1] if found else ""
