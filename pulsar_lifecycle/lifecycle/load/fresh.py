"""Some topics as they are now, read out of metadata for the rules of retention and of loading.

Belongs here: reading a handful of topics into the tables that a plan takes from a scan. Not here: the rules
(``lifecycle/load/load_rules.py``, ``lifecycle/retention.py``). Loads no topic, writes nothing, recovers no ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.ledger_metadata import LedgerState
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.lifecycle.load.ledgers_once_loaded import TopicTables
from pulsar_lifecycle.lifecycle.retention import judge
from pulsar_lifecycle.lifecycle.retention_inputs import named_positions, policy_columns, retention_topics
from pulsar_lifecycle.lifecycle.verdicts import RetentionVerdict
from pulsar_lifecycle.metastore import load_state, topics
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.metastore.walk import Unit
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Position, Topic, cursor_name, encode_name
from pulsar_lifecycle.ports import LedgerReader, MetadataStore, Node
from pulsar_lifecycle.topics import snapshot
from pulsar_lifecycle.topics.policies import InForce
from pulsar_lifecycle.topics.retention_policy import RetentionPolicy
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.findings import Context
from pulsar_lifecycle.values.topic_load import LoadReason, LoadState

_UNKNOWN = frozenset(
    {RetentionVerdict.UNKNOWN_POLICY, RetentionVerdict.UNKNOWN_CURSOR, RetentionVerdict.UNKNOWN_LEDGER}
)


@dataclass(frozen=True, slots=True)
class TopicNow:
    """A topic's z-node, whose last ledger has ``last_state`` in BookKeeper, and its durable cursors by name.

    ``versions``: the czxid and the version of their z-nodes.
    """

    info: ManagedLedgerInfo
    node: Node
    last_state: str
    rows: Mapping[int, Mapping[str, Any] | None]
    cursors: Mapping[str, Position | None]
    versions: Mapping[str, tuple[int, int]]

    @property
    def ids(self) -> list[int]:
        """The ledgers that it lists."""
        return sorted(item.ledger_id for item in self.info.ledgers)

    @property
    def sizes(self) -> dict[int, int]:
        """Bytes of its ledgers, as its z-node says, or BookKeeper where that does not."""
        own = {item.ledger_id: item.size or 0 for item in self.info.ledgers}
        return {i: own[i] or (self.rows.get(i) or {}).get("length") or 0 for i in self.ids}

    def end_of_closed(self, limit: int) -> Position | None:
        """The last entry of its ledgers, from the first on, closed before ``limit`` (ms); None without any."""
        end: Position | None = None
        for item in sorted(self.info.ledgers, key=lambda item: item.ledger_id):
            row = self.rows.get(item.ledger_id) or {}
            closed = item.timestamp or (row.get("mtime") if row.get("state") == LedgerState.CLOSED.name else None)
            entries = item.entries or row.get("entries") or 0
            if item.ledger_id == self.ids[-1]:
                closed = row.get("mtime") if row.get("state") == LedgerState.CLOSED.name else None
                entries = row.get("entries") or 0
            if closed is None or closed >= limit:
                break
            end = Position(item.ledger_id, entries - 1) if entries else end
        return end


@dataclass(frozen=True, slots=True)
class FreshTopics:
    """What was read: each topic that there is and that can be read, and the tables of all of them.

    ``positions``: rows of ``NAMED_POSITIONS``.
    """

    topics: Mapping[Topic, TopicNow]
    listed: pa.Table
    positions: pa.Table
    bookkeeper: pa.Table

    def for_loading(
        self,
        policies: InForce[RetentionPolicy | None],
        context: Context,
        brokers: Brokers,
        now: int,
        opened: Callable[[pa.Table, Any], pa.Table],
    ) -> TopicTables:
        """The tables of ``load_rules.topics_to_load``. ``now`` (ms) is from before ``brokers`` were asked.

        ``opened``: asks bookies for what is in the last ledgers of managed ledgers (``TopicTables.opened``).
        """
        loaded: list[str] = []
        idle: list[str] = []
        for topic, one in self.topics.items():
            state = load_state.load_state(
                one.info, one.node.stat.mtime, one.last_state, brokers.loaded.get(str(topic)), brokers, now
            )
            if state.state is not LoadState.UNLOADED:
                loaded.append(str(topic))
            if state.reason is LoadReason.LAST_LEDGER_NOT_CLOSED:
                idle.append(topic.managed_ledger)
        inputs = retention_topics(self.listed, self.positions, self.bookkeeper, policies, context, loaded)
        *_, level = policy_columns(self.listed, policies)
        nobody = pa.array(idle, pa.string())
        sizes = opened(self.listed, nobody)
        return TopicTables(
            self.listed, inputs, self.bookkeeper, self.positions, nobody, sizes, level, lambda _: self.bookkeeper
        )

    def trimmed_by_broker(
        self, policies: InForce[RetentionPolicy | None], context: Context, now: int
    ) -> dict[Topic, set[int] | None]:
        """By topic, the ledgers that its broker, which has it loaded, trims at ``now`` (ms).

        None where a policy, a cursor or a ledger before the last is not known, such as while its broker replaces a
        cursor's ledger.
        """
        inputs = retention_topics(self.listed, self.positions, self.bookkeeper, policies, context)
        going: dict[Topic, set[int]] = {topic: set() for topic in self.topics}
        doubtful: set[Topic] = set()
        for row in judge(inputs, now).to_pylist():
            topic = Topic.from_managed_ledger(row["managed_ledger"])
            if row["goes_when_loaded"]:
                going[topic].add(row["ledger_id"])
            elif row["alone"] in _UNKNOWN and row["ledger_id"] != self.topics[topic].ids[-1]:
                doubtful.add(topic)
        return {topic: None if topic in doubtful else ledgers for topic, ledgers in going.items()}


def read_now(store: MetadataStore, reader: LedgerReader, root: str, wanted: Collection[Topic]) -> FreshTopics:
    """Read topics afresh; one that is gone, or cannot be read, is missing in what is returned."""
    store.sync("/")
    units = [Unit(*_split(topic), 0) for topic in wanted]
    listed = _table(topics.read_managed_ledgers(store, units), tables.MANAGED_LEDGERS)
    listed = listed.filter(listed.column("problem").is_null())
    names = [Topic.parse(name) for name in listed.column("topic").to_pylist()]
    nodes = dict(zip(names, store.read(["/".join(_path(topic)) for topic in names]), strict=True))
    infos = {topic: managed_ledger.decode(node.data) for topic, node in nodes.items() if isinstance(node, Node)}
    units = [unit for topic, unit in zip(wanted, units, strict=True) if topic in infos]
    cursors = _table(topics.read_cursors(store, units), tables.MANAGED_CURSORS)
    positions = named_positions(store, reader, cursors, root)
    ids = [item.ledger_id for info in infos.values() for item in info.ledgers]
    rows = snapshot.ledger_rows(store, ids, root)
    at_now, versions = _cursor_positions(cursors, positions), _cursor_versions(cursors)
    found: dict[Topic, TopicNow] = {}
    for topic, info in infos.items():
        node, own = nodes[topic], {item.ledger_id: rows[item.ledger_id] for item in info.ledgers}
        last = own[max(own)] if own else None
        assert isinstance(node, Node)
        found[topic] = TopicNow(
            info, node, (last or {}).get("state") or "", own, at_now.get(str(topic), {}), versions.get(str(topic), {})
        )
    bookkeeper = pa.Table.from_pylist([row for row in rows.values() if row], tables.BOOKKEEPER_LEDGERS)
    there = pa.array([name in found for name in names], pa.bool_())
    return FreshTopics(found, listed.filter(there), positions, bookkeeper)


def missing(store: MetadataStore, names: Sequence[str]) -> list[bool]:
    """Which of these managed ledgers, or cursors of some, have no z-node."""
    if not names:
        return []
    store.sync("/")
    return [node is None for node in store.read([f"{MANAGED_LEDGERS_ROOT}/{name}" for name in names])]


def missing_cursors(store: MetadataStore, topic: Topic, names: Sequence[str]) -> list[bool]:
    """Which of a topic's subscriptions have no z-node."""
    return missing(store, [f"{topic.managed_ledger}/{encode_name(name)}" for name in names])


def _cursor_positions(cursors: pa.Table, positions: pa.Table) -> dict[str, dict[str, Position | None]]:
    """By topic, where its cursors stand; None where that is unknown."""
    found: dict[str, dict[str, Position | None]] = {}
    pairs: Sequence[tuple[Any, Any]] = list(zip(cursors.to_pylist(), positions.to_pylist(), strict=True))
    for cursor, at in pairs:
        if cursor["topic"] and cursor["path"]:
            known = at["ledger_id"] is not None and at["entry_id"] is not None
            name = cursor_name(cursor["path"].rpartition("/")[2])
            found.setdefault(cursor["topic"], {})[name] = Position(at["ledger_id"], at["entry_id"]) if known else None
    return found


def _cursor_versions(cursors: pa.Table) -> dict[str, dict[str, tuple[int, int]]]:
    """By topic, the czxid and the version of its cursors' z-nodes."""
    found: dict[str, dict[str, tuple[int, int]]] = {}
    for one in cursors.select(["topic", "cursor", "czxid", "version"]).to_pylist():
        if one["topic"] and one["czxid"] is not None:
            found.setdefault(one["topic"], {})[one["cursor"]] = one["czxid"], one["version"]
    return found


def _table(batches: Any, schema: pa.Schema) -> pa.Table:
    return pa.Table.from_batches(batches, schema)


def _path(topic: Topic) -> tuple[str, str]:
    parent, _, name = f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}".rpartition("/")
    return parent, name


def _split(topic: Topic) -> tuple[str, tuple[str, ...]]:
    parent, name = _path(topic)
    return parent, (name,)
