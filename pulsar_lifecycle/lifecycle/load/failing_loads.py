"""Topics that no broker can load, as far as a scan and the registered bookies prove it.

Belongs here: which failures there are, and finding them in the tables of a scan. Not here: which ledgers are lost
(``bookies/lost_ledgers.py``). Loads nothing. Upstream, managed-ledger 4.0.7: ``ManagedLedgerImpl.initialize`` opens the
last ledger, and ``ManagedCursorImpl.recoverFromLedger`` reads the last entry of each cursor's ledger; of a ledger that
does not exist, both go on without it. ``initializeBookKeeper`` then begins a ledger, unless the topic is terminated.
Before that a broker waits for the policies of the namespace's topics (``SystemTopicBasedTopicPoliciesService``), except
of a system topic. No schema is read: brokers do that for producers and consumers, and drop a schema whose ledger does
not exist (``SchemaRegistryServiceImpl.trimDeletedSchemaAndGetList``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats.topic_policies import CHANGE_EVENTS
from pulsar_lifecycle.lifecycle.bookies.lost_ledgers import LOSS_COLUMNS, LOST, LedgerLoss, lost_ledgers
from pulsar_lifecycle.lifecycle.retention_tables import IDLE, UNLOADED
from pulsar_lifecycle.metastore.load_state import ask_configurations
from pulsar_lifecycle.metastore.namespaces import policy_documents
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Lake
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.topics.policies import topics_have_policies
from pulsar_lifecycle.values.tables import BOOKKEEPER_LEDGERS, Problem

T = TypeVar("T")


class LoadFailure(StrEnum):
    """Why no broker can load a topic, or only with a subscription that goes back."""

    TOPIC_UNDECODABLE = "topic_undecodable"
    """The topic's z-node cannot be decoded. Restore it from a backup of ZooKeeper."""
    LAST_LEDGER_UNRECOVERABLE = "last_ledger_unrecoverable"
    """The last ledger is not closed, and too few bookies of its last ensemble are registered to close it. Start them.
    Where they are gone for good, so may be what was written last: once the ledger is deleted by BookKeeper's shell
    (`deleteledger`), brokers load the topic without any of its messages."""
    LAST_LEDGER_BARE = "last_ledger_bare"
    """The z-node of the last ledger has no data. Restore it from a backup of ZooKeeper. Once that z-node is deleted,
    brokers load the topic without the ledger's messages."""
    CURSOR_UNDECODABLE = "cursor_undecodable"
    """A cursor's z-node cannot be decoded, and brokers load no topic without all its cursors, unless
    `lazyCursorRecovery` is set. Restore it from a backup of ZooKeeper."""
    CURSOR_LEDGER_UNREADABLE = "cursor_ledger_unreadable"
    """No bookie that has the last entry of a cursor's ledger is registered, or that ledger's z-node has no data. Start
    the bookies. Where they are gone for good, brokers with `managedLedgerForceRecovery` load the topic: the
    subscription goes back to the position in its z-node, and what it acknowledged since is delivered again. It is not
    named where all brokers have that set, or `lazyCursorRecovery`."""
    CURSOR_WOULD_GO_BACK = "cursor_would_go_back"
    """A cursor's ledger is not closed, and too few of its bookies are registered to close it. Brokers load the topic
    all the same: the subscription goes back to the position in its z-node, for good, and what it acknowledged since is
    delivered again. Start the bookies before a client uses the topic."""
    TOO_FEW_BOOKIES = "too_few_bookies"
    """Each load begins a ledger, and fewer bookies take entries than it is to be on: `bookkeeperEnsemble` of its
    namespace, else `managedLedgerDefaultEnsembleSize`. Start bookies, or free the disks of read-only ones. A policy of
    the topic's own and `bookkeeper_opportunisticStriping` are not looked at."""
    POLICIES_UNREADABLE = "policies_unreadable"
    """Before a broker loads a topic it reads `__change_events` of its namespace, which no broker can load: that topic's
    code says why. Without its messages brokers forget the policies that topics have of their own, such as a longer
    retention, and go by the namespace's: set that so that nothing is lost before you delete a ledger of it."""


FAILING_LOADS = pa.schema(
    [
        pa.field("topic", pa.string()),
        pa.field("code", pa.string()),
        pa.field("cursor", pa.string()),
        pa.field("ledger_id", pa.int64()),
        pa.field("why", pa.string()),
    ]
)
"""One row per reason for which no broker can load a topic, or only so: a :class:`LoadFailure`. ``cursor`` and
``ledger_id`` are null where it is about none; ``why`` is a sentence, which names the bookies."""
_LAZY, _FORCED = "lazyCursorRecovery", "managedLedgerForceRecovery"
_GO_ON = {
    LoadFailure.CURSOR_UNDECODABLE: (_LAZY,),
    LoadFailure.CURSOR_LEDGER_UNREADABLE: (_LAZY, _FORCED),
}
"""With which settings brokers load the topic all the same: without the cursor, or with one that goes back."""
_OF_LAST_LEDGER = {
    LedgerLoss.UNRECOVERABLE: LoadFailure.LAST_LEDGER_UNRECOVERABLE,
    LedgerLoss.NO_METADATA: LoadFailure.LAST_LEDGER_BARE,
}
_OF_CURSOR_LEDGER = {
    LedgerLoss.UNRECOVERABLE: LoadFailure.CURSOR_WOULD_GO_BACK,
    LedgerLoss.LAST_ENTRY_AWAY: LoadFailure.CURSOR_LEDGER_UNREADABLE,
    LedgerLoss.NO_METADATA: LoadFailure.CURSOR_LEDGER_UNREADABLE,
}


def failing_loads(cluster: Cluster, epoch_id: str) -> pa.Table:
    """:data:`FAILING_LOADS` of a scan, by the bookies that are registered and the policies now, sorted by topic.

    What a broker has loaded is left out, but for z-nodes that cannot be decoded: when it lets go of a topic, it closes
    the last ledger by metadata alone, and says anew where cursors stand. So is a failure with a cursor that all brokers
    that answer are configured to go on after. Raises what ZooKeeper raises; what no broker says for want of an answer
    is no reason.
    """
    lake = cluster.lake
    with cluster.ports(read_only=True) as ports:
        bookies = ports.bookies.bookies()
        brokers = list(_said(lambda: ask_configurations(ports.admin)[0]).values())
        needed = _ensembles(_said(lambda: policy_documents(ports.configuration).known), brokers)
    registered = frozenset(bookies)
    parts = cluster.parts(epoch_id, "bookkeeper_ledgers")
    lost = pa.concat_tables([LOST.empty_table(), *cluster.tasks.map(_Lost(lake, registered), parts)])
    topics = _Topics(lake, *(cluster.parts(epoch_id, one) for one in ("topics", "managed_ledgers", "managed_cursors")))
    every = [*topics.undecodable(), *topics.of_last_ledgers(lost), *topics.of_cursor_ledgers(lost)]
    harmless = {code.value for code, names in _GO_ON.items() if any(_all_say(brokers, name) for name in names)}
    rows = [row for row in every if row["code"] not in harmless]
    writable = sum(not read_only for read_only in bookies.values())
    few = {
        name: f"a load begins a ledger on {size} bookies, and {writable} of {len(bookies)} registered take entries"
        for name, size in needed.items()
        if size > writable
    }
    unread = _without_policies(rows) if brokers and all(map(topics_have_policies, brokers)) else {}
    found = [
        pa.Table.from_pylist(rows, FAILING_LOADS),
        *topics.of_namespaces(few, LoadFailure.TOO_FEW_BOOKIES),
        *topics.of_namespaces(unread, LoadFailure.POLICIES_UNREADABLE, clients=True),
    ]
    return pa.concat_tables(found).sort_by([("topic", "ascending"), ("code", "ascending")])


def _said(ask: Callable[[], Mapping[str, T]]) -> Mapping[str, T]:
    """What servers say; nothing where they do not."""
    try:
        return ask()
    except LifecycleError:
        return {}


def _all_say(brokers: Sequence[Mapping[str, str]], name: str) -> bool:
    """Whether there are brokers that answer, and all of them have this set."""
    return bool(brokers) and all(one.get(name) == "true" for one in brokers)


def _ensembles(namespaces: Mapping[str, Mapping[str, Any]], brokers: Sequence[Mapping[str, str]]) -> Mapping[str, int]:
    """On how many bookies a new ledger of each namespace is, where that is known; where brokers differ, the fewest."""
    said = [one.get(_BROKER_ENSEMBLE, "") for one in brokers]
    default = min(map(int, said)) if said and all(map(str.isdecimal, said)) else None
    own = {name: said.get(_PERSISTENCE) for name, said in namespaces.items()}
    found = {name: said.get(_ENSEMBLE) if isinstance(said, Mapping) else default for name, said in own.items()}
    return {name: size for name, size in found.items() if type(size) is int}


def _without_policies(rows: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
    """The namespaces of which no broker can load ``__change_events``, by these rows of topics that no broker has."""
    lost = (row for row in rows if row["ledger_id"] is not None and row["code"] != LoadFailure.CURSOR_WOULD_GO_BACK)
    some = (row["topic"] for row in lost if f"/{CHANGE_EVENTS}" in row["topic"])
    of = [one for one in map(Topic.parse, some) if one.partitioned_parent.local == CHANGE_EVENTS]
    return {str(one.namespace): f"brokers read policies in {one} first, which they cannot load" for one in of}


_PERSISTENCE, _ENSEMBLE, _BROKER_ENSEMBLE = "persistence", "bookkeeperEnsemble", "managedLedgerDefaultEnsembleSize"


@dataclass(frozen=True, slots=True)
class _Lost:
    """The lost ledgers of a file of ``bookkeeper_ledgers``; runs in a task."""

    lake: Lake
    registered: Set[str]

    def __call__(self, part: str) -> pa.Table:
        """Those that are not closed, and those of cursors."""
        not_closed, bare = pc.field("state") != "CLOSED", pc.field("problem") == Problem.EMPTY.value
        schema = pa.schema([BOOKKEEPER_LEDGERS.field(name) for name in LOSS_COLUMNS])
        wanted = not_closed | bare | pc.field("cursor").is_valid()
        rows = pa.Table.from_batches(self.lake.batches([part], LOSS_COLUMNS, wanted), schema)
        return lost_ledgers(rows, self.registered)


@dataclass(frozen=True, slots=True)
class _Topics:
    """Files of three tables of a scan."""

    lake: Lake
    topics: Sequence[str]
    managed_ledgers: Sequence[str]
    managed_cursors: Sequence[str]

    def undecodable(self) -> Iterator[dict[str, Any]]:
        """Topics, and cursors, whose z-nodes could not be decoded."""
        corrupt = pc.field("problem") == Problem.CORRUPT.value
        for row in self._rows(self.managed_ledgers, ["managed_ledger", "topic", "error"], corrupt):
            yield _row(row, LoadFailure.TOPIC_UNDECODABLE, row["error"] or "")
        for row in self._rows(self.managed_cursors, ["managed_ledger", "topic", "cursor", "error"], corrupt):
            yield _row(row, LoadFailure.CURSOR_UNDECODABLE, f"cursor {row['cursor']}: {row['error'] or ''}")

    def of_last_ledgers(self, lost: pa.Table) -> Iterator[dict[str, Any]]:
        """Topics that no broker has, whose last ledger is lost; a shadow topic's is not its own."""
        losses = _by_ledger(lost, _OF_LAST_LEDGER)
        if not losses:
            return
        here = pc.field("last_ledger_id").isin(pa.array(list(losses), pa.int64()))
        rows = list(self._rows(self.topics, ["managed_ledger", "topic", "last_ledger_id"], IDLE & here))
        shadows = self._shadows()
        for row in rows:
            if row["managed_ledger"] not in shadows:
                code, why = losses[row["last_ledger_id"]]
                yield _row(row, code, f"last ledger {row['last_ledger_id']} {why}", ledger_id=row["last_ledger_id"])

    def of_cursor_ledgers(self, lost: pa.Table) -> Iterator[dict[str, Any]]:
        """Topics that no broker has, with a cursor whose ledger is lost."""
        losses = _by_ledger(lost, _OF_CURSOR_LEDGER)
        if not losses:
            return
        columns = ["managed_ledger", "topic", "cursor", "cursors_ledger_id"]
        here = pc.field("cursors_ledger_id").isin(pa.array(list(losses), pa.int64()))
        rows = list(self._rows(self.managed_cursors, columns, here))
        owners = pa.array([row["managed_ledger"] for row in rows], pa.string())
        free = pc.field("managed_ledger").isin(owners) & (UNLOADED | IDLE)
        known = {row["managed_ledger"] for row in self._rows(self.topics, ["managed_ledger"], free)}
        for row in rows:
            if row["managed_ledger"] in known:
                ledger_id = row["cursors_ledger_id"]
                code, why = losses[ledger_id]
                yield _row(row, code, f"ledger {ledger_id} of cursor {row['cursor']} {why}", ledger_id=ledger_id)

    def of_namespaces(self, why: Mapping[str, str], code: LoadFailure, *, clients: bool = False) -> Iterator[pa.Table]:
        """Topics of these namespaces that no broker has and that begin a ledger; ``clients``: no system topics."""
        if not why:
            return
        names = pa.array(list(why), pa.string())
        texts, shadows = pa.array(list(why.values()), pa.string()), pa.array(self._shadows(), pa.string())
        where = (UNLOADED | IDLE) & pc.field("namespace").isin(names) & ~pc.field("terminated")
        where &= ~pc.field("managed_ledger").isin(shadows)
        if clients:
            where &= ~pc.match_substring_regex(pc.field("topic"), "^[^:]+://[^/]+/[^/]+/__|^[^:]+://pulsar/system/")
        for batch in self.lake.batches(self.topics, ["topic", "namespace"], where):
            columns = {
                "topic": batch.column("topic"),
                "code": pa.repeat(pa.scalar(code.value), batch.num_rows),
                "why": texts.take(pc.index_in(batch.column("namespace"), names)),
            }
            nothing = {field.name: pa.nulls(batch.num_rows, field.type) for field in FAILING_LOADS}
            yield pa.table(nothing | columns, FAILING_LOADS)

    def _shadows(self) -> list[str]:
        """Managed ledgers of shadow topics."""
        shadow = pc.field("shadow_source").is_valid()
        return [row["managed_ledger"] for row in self._rows(self.managed_ledgers, ["managed_ledger"], shadow)]

    def _rows(self, parts: Sequence[str], columns: Sequence[str], where: pc.Expression) -> Iterator[dict[str, Any]]:
        for batch in self.lake.batches(parts, columns, where):
            yield from batch.to_pylist()


def _by_ledger(lost: pa.Table, codes: Mapping[LedgerLoss, LoadFailure]) -> dict[int, tuple[LoadFailure, str]]:
    """Code, and the rest of the sentence, of the ledgers whose loss is one of these."""
    some = lost.filter(pc.is_in(lost.column("loss"), pa.array([one.value for one in codes])))
    return {row["ledger_id"]: (codes[LedgerLoss(row["loss"])], _text(row)) for row in some.to_pylist()}


def _text(lost: Mapping[str, Any]) -> str:
    away = ", ".join(sorted(lost["away"]))
    return {
        LedgerLoss.UNRECOVERABLE: f"is not closed, and no broker can close it while {away} are not registered",
        LedgerLoss.LAST_ENTRY_AWAY: f"has its last entry on {away} alone, which are not registered",
        LedgerLoss.NO_METADATA: "has a z-node without data",
    }[LedgerLoss(lost["loss"])]


def _row(row: Mapping[str, Any], code: LoadFailure, why: str, *, ledger_id: int | None = None) -> dict[str, Any]:
    topic = row["topic"] or row["managed_ledger"]
    return {"topic": topic, "code": code.value, "cursor": row.get("cursor"), "ledger_id": ledger_id, "why": why}
