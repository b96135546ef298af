"""A topic as it was read, and which of its ledgers may leave it.

Belongs here: putting what was read before the rule (``trim_rules.py``), and what is said of each ledger then. Not here:
the order of the steps, and acting (``trim.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pulsar_lifecycle.copies.listed_ledgers import BookKeeperCopy, copies_of
from pulsar_lifecycle.formats.deletion_message import LedgerComponent
from pulsar_lifecycle.formats.managed_ledger import LedgerInfo, ManagedLedgerInfo
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.ports.bundle import Ports
from pulsar_lifecycle.topics import protection, snapshot
from pulsar_lifecycle.topics.first_phase import LedgerOutcome
from pulsar_lifecycle.topics.snapshot import TopicReading
from pulsar_lifecycle.topics.write import SHADOWS_SEEN_FOR, TopicRun, checked_path, why_loaded
from pulsar_lifecycle.trimming import trim_rules
from pulsar_lifecycle.trimming.trim_rules import TrimVerdict
from pulsar_lifecycle.values.codes import Why
from pulsar_lifecycle.values.outcomes import Outcome


@dataclass(frozen=True)
class TrimView:
    """A topic at one moment, and what may leave it; ``checked_path`` is empty if nothing may."""

    topic: Topic
    reading: TopicReading
    copies: Mapping[int, BookKeeperCopy]
    verdicts: Sequence[TrimVerdict]
    checked_path: str

    @property
    def node(self) -> Node:
        """Its z-node."""
        return self.reading.node

    @property
    def info(self) -> ManagedLedgerInfo:
        """What that holds."""
        return self.reading.info

    @cached_property
    def listed(self) -> Mapping[int, LedgerInfo]:
        """The ledgers that it lists, by id."""
        return {item.ledger_id: item for item in self.info.ledgers}

    @cached_property
    def goes(self) -> list[int]:
        """The ledgers that may leave it, oldest first."""
        return [v.ledger_id for v in self.verdicts if v.goes]

    def why_loaded(self, run: TopicRun) -> Why | None:
        """Why the topic counts as loaded; None if it is unloaded."""
        store, root = self.reading.store, run.ledgers_root
        return why_loaded(store, root, run.brokers, run.now, self.topic, self.node, self.info)

    def outcome(self, ledger_id: int, outcome: Outcome, why: Why) -> LedgerOutcome:
        """What becomes of a ledger."""
        copy, component = self.copies.get(ledger_id), LedgerComponent.MANAGED_LEDGER.value
        on_disk = copy.on_disk if copy else 0
        return LedgerOutcome(str(self.topic), ledger_id, outcome, why, self.length(ledger_id), component, on_disk)

    def length(self, ledger_id: int) -> int:
        """Bytes of a ledger; 0 where that is not known."""
        item, copy = self.listed.get(ledger_id), self.copies.get(ledger_id)
        if item is None or item.size is None:
            return copy.length if copy else 0
        return item.size

    def stays(self, verdict: TrimVerdict) -> LedgerOutcome:
        """What becomes of a ledger that may not leave.

        One with a lower id than all that are listed has left already, unless BookKeeper says that it is of another
        topic.
        """
        first = min(self.listed, default=-1)
        if verdict.ledger_id >= first:
            return self.outcome(verdict.ledger_id, Outcome.REFUSED, verdict.why)
        copy = self.copies[verdict.ledger_id]
        if copy.row and copy.row["managed_ledger"] != self.topic.managed_ledger:
            return self.outcome(verdict.ledger_id, Outcome.REFUSED, verdict.why.put(f"{verdict.why}: {copy.problem}"))
        why = verdict.why.put(f"{verdict.why}: it begins with ledger {first}")
        return self.outcome(verdict.ledger_id, Outcome.NOTHING, why)


def look(
    run: TopicRun,
    ports: Ports,
    topic: Topic,
    reading: TopicReading,
    asked: Collection[int],
    rules: Iterable[Callable[[], Why | None]],
) -> TrimView:
    """Judge the ledgers ``asked`` for of a topic as it was read; ``rules`` as in ``TrimOrder``.

    Raises Refused naming what cannot be known of it.
    """
    info, root = reading.info, run.ledgers_root
    positions = snapshot.positions(ports, root, reading.node.path, reading.cursors)
    copies = copies_of(reading.rows(asked), topic, run.context)
    rule = run.topic_rule(topic, snapshot.shadow_source(reading.store, topic, info), SHADOWS_SEEN_FOR)
    rule = rule or protection.deletion_rule(topic, run.context)
    why = rule or next(filter(None, (ask() for ask in rules)), None)
    verdicts = trim_rules.judge(info, positions, copies, asked, run.context, why)
    goes = any(v.goes for v in verdicts)
    checked = checked_path(reading.store, root, topic, reading.node, info) if goes else ""
    return TrimView(topic, reading, copies, verdicts, checked)
