"""What scans say a topic ever listed: whatever its brokers made and trimmed between them, nothing is missing."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from hypothesis import event, example, given
from hypothesis import strategies as st

from pulsar_lifecycle.ports import JournalRow
from pulsar_lifecycle.scan.listed_ever import AskedTopic, ever_listed
from pulsar_lifecycle.values.outcomes import Outcome, Phase
from pulsar_lifecycle.values.tables import MANAGED_LEDGERS
from tests.kit.builders import ROW
from tests.kit.fakes.lake import FakeLake
from tests.kit.simulated import pipeline
from tests.kit.simulated.cluster import SimulatedCluster

TOPIC = "persistent://acme/orders/placed"
ACTS = st.sampled_from(["load", "publish", "trim", "truncate", "lost write", "put back", "write", "scan"])
ROLL = st.sampled_from([("load", "publish"), ("load", "publish", "scan"), ("load", "publish", "trim", "scan")])


class History:
    """A topic as a broker 4.0.7 writes it, and the scans that saw it."""

    def __init__(self) -> None:
        self.lake, self.scans = FakeLake(), list[Any]()
        self.listed: dict[int, int] = {}
        """By id, how many entries."""
        self.with_entries: set[int] = set()
        self.put_back: set[int] = set()
        self.version, self.last_id = 0, 0

    def load(self) -> None:
        """The last ledger goes if it is empty, and one more is made: one write."""
        if self.listed and not self.listed[self.last_id]:
            del self.listed[self.last_id]
        self.last_id += 1
        self.listed[self.last_id] = 0
        self.version += 1

    def publish(self) -> None:
        if self.listed:
            self.listed[self.last_id] += 1
            self.with_entries.add(self.last_id)

    def trim(self, keep: int = 0) -> None:
        going = [i for i in self.listed if i < self.last_id]
        going = going[:1] if keep else going
        for i in going:
            del self.listed[i]
        self.version += bool(going)

    def scan(self) -> None:
        epoch = f"scan-{len(self.scans):03}"
        row = {"managed_ledger": "acme/orders/persistent/placed", "czxid": 1, "ctime": 2, "version": self.version}
        row["ledgers"] = [{"ledger_id": i} for i in self.listed]
        part = self.lake.write_part(epoch, "managed_ledgers", MANAGED_LEDGERS, [_batch(row)])
        self.lake.publish(epoch, "managed_ledgers", [part])
        self.scans.append(SimpleNamespace(epoch_id=epoch))

    def act(self, name: str) -> None:
        if name == "write":
            self.version += 1
        elif name == "lost write":  # of a trim: its broker has them off its list, and the next rollover's write, too
            version = self.version
            self.trim(keep=1)
            self.version = version
        elif name == "put back":  # what an undo restored, by hand: not the last that left
            gone = sorted(self.with_entries - self.listed.keys())[-2:-1]
            self.listed = dict.fromkeys(gone, 1) | self.listed
            self.put_back.update(gone)
            self.version += 1
        elif name == "truncate":
            self.trim()
        elif name == "trim":
            self.trim(keep=1)
        else:
            getattr(self, name)()


def _batch(row: dict[str, Any]) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([row], MANAGED_LEDGERS)


def restored(ledger_id: int) -> JournalRow:
    """What an undo says of a ledger that is back."""
    return replace(ROW, cluster="simulated", ledger_id=ledger_id, phase=Phase.UNDO, outcome=Outcome.RESTORED)


MADE = ("load", "publish")


@example([(*MADE, *MADE, "scan", *MADE, "truncate", *MADE, "truncate", "put back", "scan")], 9)
@given(st.lists(ROLL | ACTS.map(lambda act: (act,)), min_size=3, max_size=20), st.integers(0, 12))
def test_a_topic_whose_every_ledger_is_known_lacks_none(acts: list[tuple[str, ...]], before: int) -> None:
    history = History()
    for act in chain.from_iterable(acts):
        history.act(act)
    asked = AskedTopic(1, 2, before, frozenset(i for i in history.listed if i < before))
    servers = SimulatedCluster()
    servers.journal.record([restored(i) for i in history.put_back])
    cluster = pipeline.where(servers, None, history.lake)
    found = ever_listed(cluster, history.scans, {TOPIC: asked}).get(TOPIC)
    event(f"known: {found is not None}, all listed: {history.with_entries <= history.listed.keys()}")
    if found is not None:
        assert {i for i in history.with_entries if i < before} <= found.keys() | asked.listed
        assert all(i < before for i in found)
