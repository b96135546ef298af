"""Namespaces and their policies in the metadata store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pulsar_lifecycle.errors import (
    CorruptFormat,
    UnsupportedFormat,
)
from pulsar_lifecycle.metastore.walk import namespace_paths
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, POLICIES_ROOT
from pulsar_lifecycle.ports import MetadataStore, Node, Unread

RESTORE = (
    "Set its policies again with pulsar-admin; where brokers cannot read them either, write the "
    "z-node anew from a backup"
)
"""What an operator does where policies cannot be decoded."""


@dataclass(frozen=True, slots=True)
class PolicyDocuments:
    """Policies by namespace, V1 ones included, as their JSON says; ``undecodable``: why those of some are not known."""

    known: Mapping[str, dict[str, Any]]
    undecodable: Mapping[str, CorruptFormat]


def namespace_policies(store: MetadataStore) -> dict[str, dict[str, Any]]:
    """Policies of every namespace, as :func:`policy_documents`. Raises CorruptFormat for any that cannot be decoded."""
    found = policy_documents(store)
    for error in found.undecodable.values():
        raise error
    return dict(found.known)


def policy_documents(store: MetadataStore) -> PolicyDocuments:
    """Policies of every namespace; one that cannot be decoded leaves those of the others known.

    Errors name the z-node. Raises UnsupportedFormat where one could not be read.
    """
    paths, failed = namespace_paths(store, POLICIES_ROOT)
    if failed:
        raise UnsupportedFormat(failed[0].parent, 0, f"readable policies: {failed[0].why}")
    found: dict[str, dict[str, Any]] = {}
    bad: dict[str, CorruptFormat] = {}
    for path, node in zip(paths, store.read(paths), strict=True):
        if isinstance(node, Unread):
            raise UnsupportedFormat(path, 0, f"readable policies: {node.reason}")
        if node is None or not node.data:
            continue
        namespace = path[len(POLICIES_ROOT) + 1 :]
        try:
            found[namespace] = _decoded(node)
        except CorruptFormat as error:
            bad[namespace] = error
    return PolicyDocuments(found, bad)


def policies_of(store: MetadataStore, namespace: str) -> dict[str, Any]:
    """Policies of one namespace, none where there is no z-node of it. Raises CorruptFormat."""
    path = f"{POLICIES_ROOT}/{namespace}"
    (node,) = store.read([path])
    return policies_in(path, node)


def policies_in(path: str, node: Node | Unread | None) -> dict[str, Any]:
    """What a z-node of policies says, nothing without one. Raises CorruptFormat, UnsupportedFormat if it was unread."""
    if isinstance(node, Unread):
        raise UnsupportedFormat(path, 0, f"readable policies: {node.reason}")
    return _decoded(node) if node else {}


def _decoded(node: Node) -> dict[str, Any]:
    try:
        document = json.loads(node.data)
    except (ValueError, RecursionError) as error:
        raise CorruptFormat(node.path, 0, f"policies as JSON: {error}") from error
    _check_policies(node.path, document)
    return document


def _check_policies(path: str, document: Any) -> None:
    """Raise CorruptFormat unless what :func:`read_topics` takes out of policies is of the type they have in Pulsar."""
    retention = document.get("retention_policies") if isinstance(document, dict) else None
    if not isinstance(document, dict) or not isinstance(retention, dict | None):
        raise CorruptFormat(path, 0, "policies, an object, with an object retention_policies")
    numbers = {name: (retention or {}).get(name) for name in ("retentionTimeInMinutes", "retentionSizeInMB")}
    numbers["message_ttl_in_seconds"] = document.get("message_ttl_in_seconds")
    for name, value in numbers.items():
        if value is not None and (type(value) is not int or not -(2**63) <= value < 2**63):
            raise CorruptFormat(path, 0, f"policies with a whole number as {name}, found {value!r}")


def namespaces(store: MetadataStore) -> frozenset[str]:
    """Every namespace of this root: those with policies and those with managed ledgers.

    What cannot be listed is left out: its ledgers then count as foreign, and the tables' own rows say what is unread.
    """
    found: set[str] = set()
    for root in (MANAGED_LEDGERS_ROOT, POLICIES_ROOT):
        paths, _ = namespace_paths(store, root)
        found.update(path[len(root) + 1 :] for path in paths)
    return frozenset(found)
