"""One ledger, a bucket, and the copy of it there, over the fakes.

Belongs here: the scene and its constants. Not here: what must come out (``tests/unit/tiered/test_upload.py`` and
others).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.formats import ledger_metadata
from pulsar_lifecycle.tiered.upload import Copied, Source, Target, copy_ledger
from tests.golden.files import GOLDEN
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.ledger_reader import FakeLedgerReader
from tests.kit.fakes.object_store import FakeBuckets, FakeObjectStore

BUCKET = "offloaded"
ID = 4711
LOCATION = Location(BUCKET, UUID("db2170f3-52ea-4b25-8101-4a5c63d105aa"), ID)
DATA, INDEX = LOCATION.data_key, LOCATION.index_key
Z_NODE = ledger_metadata.decode((GOLDEN / "offload/g-tiny/zk_bkledger_L14.bin").read_bytes())
PAYLOADS = [bytes([n]) * (n % 60) for n in range(100)]
BLOCK = 400


def source_of(payloads: Sequence[bytes], **changes: Any) -> Source:
    """What BookKeeper says of a ledger of these entries."""
    length = sum(map(len, payloads))
    return Source(replace(Z_NODE, origin=b"", length=length, last_entry_id=len(payloads) - 1, **changes), 1234)


def target(block_size: int = BLOCK) -> Target:
    """Where it is copied to."""
    return Target(LOCATION, "standalone", "t/ns/persistent/a%2Bb", block_size)


@dataclass
class CopyScene:
    """One ledger in BookKeeper, a bucket, and what happens to them."""

    payloads: list[bytes] = field(default_factory=lambda: list(PAYLOADS))
    service: FakeBuckets = field(default_factory=lambda: FakeBuckets(FakeClock(), part_minimum=1))
    reader: FakeLedgerReader = field(default_factory=FakeLedgerReader)

    def __post_init__(self) -> None:
        self.service.create(BUCKET)
        self.objects = FakeObjectStore(self.service)
        self.reader.payloads[ID] = list(self.payloads)
        self.source = source_of(self.payloads)

    def copy(self, to: Target | None = None, **options: Any) -> Copied:
        return copy_ledger(self.reader, self.objects, self.source, to or target(), **options)

    def fail(
        self, method: str, error: Exception, *, after: bool = False, times: int = 1, key: str | None = None
    ) -> None:
        """A request fails, before or ``after`` the bucket did it."""
        left = [times]

        def hook(name: str, bucket: str, keys: Sequence[str]) -> None:
            if name == method and left[0] and (key is None or key in keys):
                left[0] -= 1
                raise error

        setattr(self.objects, "after" if after else "before", hook)

    def data(self, key: str = DATA) -> bytes:
        return self.service.data[BUCKET, key]

    @property
    def methods(self) -> list[str]:
        return [name for name, _, _ in self.objects.requests]
