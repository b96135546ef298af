"""Z-nodes for tests of the metadata store: made, looked at, removed."""

from __future__ import annotations

from pulsar_lifecycle.ports import Children, MetadataStore
from pulsar_lifecycle.settings import ZooKeeperSettings


def settings(hosts: str) -> ZooKeeperSettings:
    # The guard has tests of its own; on a busy test machine it must not end the others.
    return ZooKeeperSettings.model_validate(
        {"hosts": hosts, "slow_above": 30, "stop_above": 60, "session_timeout": 10, "reads_per_second": 1_000_000}
    )


def remove(store: MetadataStore, path: str) -> None:
    below = store.children([path])[0]
    paths = [f"{path}/{name}" for name in below.names] if isinstance(below, Children) else []
    for child, names in zip(paths, store.children(paths), strict=True):
        if isinstance(names, Children) and not names.names:
            store.delete(child, -1)
        else:
            remove(store, child)
    store.delete(path, -1)


def fill(store: MetadataStore, root: str, count: int) -> list[str]:
    paths = [f"{root}/n{i:05d}" for i in range(count)]
    for i, path in enumerate(paths):
        store.create(path, b"x" * (i % 300))
    return paths


def exists(store: MetadataStore, *paths: str) -> list[bool]:
    return [node is not None for node in store.read(paths)]
