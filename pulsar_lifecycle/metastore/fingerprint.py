"""Which cluster a metadata store is of."""

from __future__ import annotations

import hashlib

from pulsar_lifecycle.errors import AccessDenied, NotFound
from pulsar_lifecycle.ports import MetadataStore, Unread


def cluster_fingerprint(store: MetadataStore, ledgers_root: str) -> str:
    """What tells this cluster from every other one: 32 hexadecimal digits, the same for its whole life.

    A SHA-256 over BookKeeper's INSTANCEID, if there is one, and czxid and ctime of ``ledgers_root`` and
    ``/managed-ledgers``. Raises NotFound where there is no Pulsar cluster, or one that
    never had a topic.
    """
    roots = (ledgers_root, "/managed-ledgers")
    instance, *nodes = store.read([f"{ledgers_root}/INSTANCEID", *roots])
    parts: list[str] = []
    for path, node in zip(roots, nodes, strict=True):
        if node is None:
            raise NotFound(f"{path}: there is no such z-node, so this is no Pulsar cluster's metadata")
        if isinstance(node, Unread):
            raise AccessDenied(f"{path}: {node.reason}")
        parts.append(f"{node.stat.czxid}:{node.stat.ctime}")
    if isinstance(instance, Unread):
        raise AccessDenied(f"{instance.path}: {instance.reason}")
    if instance is not None:
        parts.append(instance.data.decode("ascii", "backslashreplace").strip())
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:32]
