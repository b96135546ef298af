"""A cluster of a few z-nodes, what its lake remembers, and a question to ``explain``.

Belongs here: the cluster and short forms of what ``explain`` says. Not here: what a test expects.
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

import pyarrow as pa

from pulsar_lifecycle.formats import cursor, ledger_metadata, managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.inspect.explain import Explanation, explain
from pulsar_lifecycle.inspect.explain_codes import Verdict
from pulsar_lifecycle.inspect.ledger_history import History
from pulsar_lifecycle.model import Position
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.gaps import Gap
from pulsar_lifecycle.values.outcomes import Action
from pulsar_lifecycle.values.tables import REFERENCES
from tests.kit.fakes.clock import FakeClock
from tests.kit.fakes.ledger_reader import FakeLedgerReader
from tests.kit.fakes.metadata_store import FakeZooKeeper

ROOT = "/ledgers"
OWNER = "shop/orders/persistent/placed"
TOPIC_PATH = f"/managed-ledgers/{OWNER}"
HOUR = 3_600_000
DATA = {"application": "pulsar", "component": "managed-ledger", "pulsar/managed-ledger": OWNER}


class World:
    """A cluster, what its lake remembers, and the question; every ledger is made at 0 h, the question comes at 30 h."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.born = self.clock.now_ms()
        self.zookeeper = FakeZooKeeper(self.clock)
        self.reader = FakeLedgerReader()
        self.writer = self.zookeeper.session()
        self.history = History(epoch=self.epoch(), context=self.context())

    def epoch(self, hours: int = 25, gaps: tuple[Gap, ...] = ()) -> Epoch:
        at = self.born + hours * HOUR
        return Epoch("e1", "test", "f", at, at + 1, (), 100, 100, (), gaps=gaps)

    def context(self) -> Context:
        return Context(now=self.born + 25 * HOUR, grace=24 * HOUR, namespaces=frozenset({"shop/orders"}))

    def ledger(self, ledger_id: int, tags: dict[str, str], state: LedgerState = LedgerState.CLOSED) -> None:
        custom = {key: value.encode() for key, value in tags.items()}
        segments = (Segment(0, ("bookie-1",)),)
        metadata = LedgerMetadata(state, 1, 1, 1, segments, 1000, 0, DigestType.CRC32C, custom_metadata=custom)
        self.node(ledger_path(ledger_id, ROOT), ledger_metadata.encode(metadata))

    def topic(self, *infos: LedgerInfo, path: str = TOPIC_PATH) -> None:
        self.node(path, managed_ledger.encode(ManagedLedgerInfo(infos)))

    def cursor(self, name: str, ledger_id: int) -> None:
        info = cursor.ManagedCursorInfo(ledger_id, Position(1, 0))
        self.node(f"{TOPIC_PATH}/{name}", cursor.encode(info))

    def node(self, path: str, data: bytes) -> None:
        self.writer.create(path, data, parents=True)

    def remember(self, ledger_id: int, kind: str, owner: str, referrer: str) -> None:
        row = {"ledger_id": ledger_id, "kind": kind, "owner": owner, "referrer": referrer}
        rows = pa.Table.from_pylist(
            [{**row, "keeps_bookkeeper_copy": True, "problem": None, "error": None}], REFERENCES
        )
        self.history = replace(self.history, references=rows)

    def explain(self, ledger_id: int) -> Explanation:
        self.clock.advance(30 * 3600 - (self.clock.now_ms() - self.born) / 1000)
        return explain(
            ledger_id,
            self.history,
            store=self.zookeeper.session(read_only=True),
            reader=self.reader,
            now=self.clock.now_ms(),
            ledgers_root=ROOT,
        )


def said(found: Explanation) -> tuple[Verdict, StrEnum]:
    return found.verdict, found.code


def text(found: Explanation) -> str:
    return found.answer.why.text


def journalled(outcome: str, at: int = 1) -> dict[str, object]:
    topic = "persistent://shop/orders/placed"
    reason = "nothing refers to it"
    row = {"run_id": "run-9", "action": Action.DELETE_LEDGER, "phase": "delete", "outcome": outcome, "reason": reason}
    return {**row, "ledger_id": 7, "topic": topic, "detail": "{}", "at": at, "code": None}
