"""Buckets in memory; passes the contract of tests/unit/io/test_objects.py.

``FakeBuckets`` is the service, ``FakeObjectStore`` a client of it and ``ports.ObjectStore``. Faults are injected with
``before`` and ``after``: callables that get the method's name, the bucket and the keys (one request each) and may
raise. Unavailable raised ``after`` a deletion means that only its answer got lost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from pulsar_lifecycle.errors import LifecycleError, NotFound, Refused
from pulsar_lifecycle.ports import Clock, ObjectDeletion, ObjectHead

Hook = Callable[[str, str, Sequence[str]], None]


@dataclass
class FakeBuckets:
    """``objects`` by bucket and key; ``versioned`` buckets keep the bytes of what was deleted."""

    clock: Clock
    objects: dict[str, dict[str, ObjectHead]] = field(default_factory=dict)
    versioned: set[str] = field(default_factory=set)

    def create(self, bucket: str) -> None:
        self.objects.setdefault(bucket, {})

    def put(self, bucket: str, key: str, data: bytes, metadata: Mapping[str, str] | None = None) -> None:
        etag = hashlib.md5(data, usedforsecurity=False).hexdigest()
        stored = {name.lower(): value for name, value in (metadata or {}).items()}
        self.objects[bucket][key] = ObjectHead(key, len(data), etag, self.clock.now_ms(), stored)

    def keys(self, bucket: str) -> set[str]:
        return set(self.objects[bucket])


class FakeObjectStore:
    def __init__(self, service: FakeBuckets, allowed: Sequence[str] | None = None) -> None:
        self.service = service
        self.allowed = allowed
        self.before: Hook = lambda name, bucket, keys: None
        self.after: Hook = lambda name, bucket, keys: None
        self.requests: list[tuple[str, str, tuple[str, ...]]] = []

    def head(self, bucket: str, key: str) -> ObjectHead | None:
        self._ask("head", bucket, [key])
        if bucket not in self.service.objects:
            raise NotFound(f"there is no bucket {bucket}")
        return self.service.objects[bucket].get(key)

    def head_many(self, bucket: str, keys: Sequence[str]) -> list[ObjectHead | LifecycleError | None]:
        self._check(bucket)
        found: list[ObjectHead | LifecycleError | None] = []
        for key in keys:
            try:
                found.append(self.head(bucket, key))
            except LifecycleError as error:
                found.append(error)
        return found

    def delete_many(self, bucket: str, keys: Sequence[str]) -> list[ObjectDeletion]:
        try:
            self._ask("delete_many", bucket, keys)
            if bucket not in self.service.objects:
                raise NotFound(f"there is no bucket {bucket}")
            for key in keys:
                self.service.objects[bucket].pop(key, None)
            self.after("delete_many", bucket, keys)
        except Refused:
            raise
        except LifecycleError as error:
            return [ObjectDeletion(key, str(error)) for key in keys]
        return [ObjectDeletion(key, marker=bucket in self.service.versioned) for key in keys]

    def close(self) -> None:
        pass

    def _ask(self, name: str, bucket: str, keys: Sequence[str]) -> None:
        self._check(bucket)
        self.requests.append((name, bucket, tuple(keys)))
        self.before(name, bucket, keys)

    def _check(self, bucket: str) -> None:
        if self.allowed is not None and bucket not in self.allowed:
            raise Refused(f"bucket {bucket} is not one of object_store.buckets")
