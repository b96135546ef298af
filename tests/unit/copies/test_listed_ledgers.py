"""How it is said why a listed ledger's copy is kept, or its topic left alone; the rules have tests of their codes."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pulsar_lifecycle.copies import listed_ledgers
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo, OffloadContext, OffloadSegment
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.findings import Context

TOPIC = Topic.parse("persistent://acme/orders/placed")
CONTEXT = Context(now=0, grace=0, namespaces=frozenset({"acme/orders"}), offload_buckets=frozenset({"b"}))
UUID_1 = UUID(int=1)
WHOLE = {
    "problem": None,
    "application": "pulsar",
    "component": "managed-ledger",
    "cursor": None,
    "managed_ledger": TOPIC.managed_ledger,
    "state": "CLOSED",
}


def offloaded(driver: str | None = "aws-s3", bucket: str = "b", **more: Any) -> OffloadContext:
    return OffloadContext(UUID_1, True, False, 1, driver, {"bucket": bucket}, **more)


@pytest.mark.parametrize(
    ("offload", "text"),
    [
        (offloaded(None), "its offload context is not whole: where the copy is cannot be said"),
        (
            offloaded(segments=(OffloadSegment(UUID_1, True, 1, 1, 1, "aws-s3", {}),)),
            "streaming offload: which of its objects are whole is not known",
        ),
        (
            offloaded("filesystem"),
            "its offloaded copy is of driver filesystem: only those of aws-s3 and S3 can be deleted",
        ),
        (
            offloaded(bucket="other"),
            "its offloaded copy is in bucket 'other', which is not one of object_store.buckets",
        ),
        (None, "its copy in BookKeeper was not looked at"),
    ],
)
def test_why_a_copy_is_kept(offload: OffloadContext | None, text: str) -> None:
    why = listed_ledgers.kept_copy(LedgerInfo(1, 1, 10, 1, offload), None, CONTEXT)
    assert why
    assert why.text == text


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        (None, "BookKeeper does not have it: a dangling reference"),
        ({"problem": "unread", "error": "/x: no"}, "its z-node in BookKeeper could not be read: /x: no"),
        (
            {"component": "schema"},
            "BookKeeper's z-node does not call it a topic's data: the deletion run would keep it",
        ),
        ({"managed_ledger": "a/b/persistent/c"}, "BookKeeper's z-node says that it is of a/b/persistent/c"),
        ({"state": "OPEN"}, "never closed"),
    ],
)
def test_why_a_copy_in_bookkeeper_is_kept(changes: dict[str, Any] | None, text: str) -> None:
    row = None if changes is None else WHOLE | changes
    assert listed_ledgers.copy_of(1, row, TOPIC).problem == Why(Code.NOT_IN_BOOKKEEPER, text)
    assert listed_ledgers.copy_of(1, WHOLE, TOPIC).problem is None


def test_a_brokers_attempt_is_named_with_its_ledger() -> None:
    begun = OffloadContext(UUID_1, False, False, 1, "aws-s3", {})
    why = listed_ledgers.open_attempt(ManagedLedgerInfo((LedgerInfo(1), LedgerInfo(2, offload=begun))))
    assert why
    assert why.text.startswith(f"offload attempt {UUID_1} of ledger 2 is not complete: its broker may be at it, ")
