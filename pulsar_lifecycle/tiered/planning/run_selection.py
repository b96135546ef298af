"""Which rows of an offload plan one run works on, and in which order.

Belongs here: what counts against the caps, what what is in force by now speaks against, what waits because its topic
may not be written now, the waves. Not here: the plan's own rule (``tiered/planning/candidates.py``), doing it
(``tiered/offload_run.py``).
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any, TypeVar

import pyarrow as pa

from pulsar_lifecycle.errors import CorruptFormat
from pulsar_lifecycle.formats import managed_ledger
from pulsar_lifecycle.formats.managed_ledger import ManagedLedgerInfo
from pulsar_lifecycle.metastore import load_state
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Topic
from pulsar_lifecycle.ports import MetadataStore, Node
from pulsar_lifecycle.tiered.outcome import POLICY, OffloadOutcome
from pulsar_lifecycle.tiered.read_check import ASKED
from pulsar_lifecycle.topics.offload_policy import ACTING_DRIVERS, BOOKKEEPER_FIRST, OffloadPolicy, competing
from pulsar_lifecycle.topics.write import TopicRun
from pulsar_lifecycle.values.codes import Code, Why
from pulsar_lifecycle.values.copies import OffloadLocation, offload_location
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.offload_plan import OffloadChoice
from pulsar_lifecycle.values.topic_load import LoadState

WAVE_BYTES = 64 << 30
WAVE_LEDGERS = 2_000
"""A wave ends with the topic that fills it."""
LOOKED_AT = 1_000
"""Rows whose topics are looked at together."""

Row = Mapping[str, Any]
T = TypeVar("T")


class LeftToBrokers:
    """What a run leaves to brokers before it reads or copies anything: rows of topics that it may not write now.

    ``rows`` are those met so far. A ledger whose copy in BookKeeper its topic lists as deleted never waits: nothing is
    written.
    """

    def __init__(self, run: TopicRun, store: MetadataStore, check: Callable[[], None]) -> None:
        self.rows: list[Row] = []
        self._run, self._store, self._check = run, store, check
        self._seen: dict[str, tuple[Why | None, frozenset[int]]] = {}
        """Topic -> why it may not be written (None: it may), and the ledgers that it lists as deleted in BookKeeper."""

    def without(self, rows: Sequence[Row]) -> list[Row]:
        """The rows that need not wait. ``check`` is called before each look; raises what it and the store raise."""
        self._look([name for name in dict.fromkeys(row["topic"] for row in rows) if name not in self._seen])
        going: list[Row] = []
        for row in rows:
            why, deleted = self._seen[row["topic"]]
            (self.rows if why and row["ledger_id"] not in deleted else going).append(row)
        return going

    def outcomes(self, action: OffloadChoice) -> list[OffloadOutcome]:
        """One for each topic with rows of this action that wait."""
        mine = {row["ledger_id"]: row for row in self.rows if row["action"] == action}.values()
        counts = Counter(row["topic"] for row in mine)
        sizes: Counter[str] = Counter()
        for row in mine:
            sizes[row["topic"]] += row["bytes"] or 0
        return [
            OffloadOutcome(
                name,
                -1,
                Outcome.LEFT_TO_BROKER,
                Why(Code.TOPIC_LOADED, f"{count} of its ledgers wait: {self._seen[name][0]}"),
                sizes[name],
                ledgers=count,
            )
            for name, count in counts.items()
        ]

    def _look(self, names: Sequence[str]) -> None:
        run = self._run
        self._check()
        topics = {name: Topic.parse(name) for name in names}
        self._seen |= dict.fromkeys((n for n, topic in topics.items() if run.writes_loaded(topic)), (None, frozenset()))
        topics = {name: topic for name, topic in topics.items() if name not in self._seen}
        nodes = self._store.read([f"{MANAGED_LEDGERS_ROOT}/{topic.managed_ledger}" for topic in topics.values()])
        found = {name: _readable(node) for name, node in zip(topics, nodes, strict=True)}
        last = [max((i.ledger_id for i in read[1].ledgers), default=None) if read else None for read in found.values()]
        states = load_state.ledger_states(self._store, last, run.ledgers_root)
        for (name, read), state in zip(found.items(), states, strict=True):
            if read is None:  # the run itself says what is wrong with it
                self._seen[name] = None, frozenset()
                continue
            node, info = read
            load = load_state.load_state(
                info, node.stat.mtime, state, run.brokers.loaded.get(name), run.brokers, run.now
            )
            stays: Why | None = None
            if load.state is LoadState.LOADED:
                text = f"its topic counts as loaded ({load.text}), and {POLICY} does not name it"
                stays = Why(Code.TOPIC_LOADED, text)
            gone = frozenset(i.ledger_id for i in info.ledgers if i.offload and i.offload.bookkeeper_deleted)
            self._seen[name] = stays, gone


def _readable(node: object) -> tuple[Node, ManagedLedgerInfo] | None:
    try:
        return (node, managed_ledger.decode(node.data)) if isinstance(node, Node) else None
    except CorruptFormat:
        return None


def in_agreement(
    rows: pa.Table,
    policies: Mapping[str, OffloadPolicy | Why],
    done: Mapping[OffloadChoice, Container[int]],
    *,
    ours: bool,
) -> tuple[pa.Table, dict[OffloadChoice, list[OffloadOutcome]]]:
    """The rows that nothing in force now speaks against; of the others an outcome for each choice, topic and reason.

    ``policies``: topic -> its policy as it is now, or why it is not to be touched. ``done``: with which ledgers a run
    has done that since. ``ours``: whether copies in BookKeeper are ours to delete.
    """
    names = ("ledger_id", "topic", "action", "driver", "bucket", "region", "endpoint")
    parts = (rows.column(name).to_pylist() for name in names)
    against = [
        _DONE if ledger in done.get(choice, ()) else _against(policies.get(topic), ours, choice, *place)
        for ledger, topic, choice, *place in zip(*parts, strict=True)
    ]
    counts = Counter(zip(*(rows.column(name).to_pylist() for name in ("action", "topic")), against, strict=True))
    outcomes: dict[OffloadChoice, list[OffloadOutcome]] = {choice: [] for choice in OffloadChoice}
    for (choice, name, why), count in counts.items():
        if why:
            said = why.put(f"{count} of its ledgers are left alone: {why}")
            outcomes[OffloadChoice(choice)].append(OffloadOutcome(name, -1, Outcome.REFUSED, said, ledgers=count))
    return rows.filter(pa.array([not why for why in against], pa.bool_())), outcomes


_DONE = Why(Code.CHANGED_SINCE_PLAN, "a run has done that since the plan was made: a new plan has what is left")


def _against(
    policy: OffloadPolicy | Why | None,
    ours: bool,
    action: str,
    driver: str,
    bucket: str,
    region: str,
    end: str,
) -> Why | None:
    if policy is None:
        return Why(Code.NAMESPACE_GONE, "its namespace is gone")
    if isinstance(policy, Why):
        return policy
    if action == OffloadChoice.OFFLOAD and (driver, bucket, region, end) != (
        policy.driver,
        policy.bucket,
        policy.region,
        policy.endpoint,
    ):
        text = "its offload policy names another location than when the plan was made: plan again"
        return Why(Code.CHANGED_SINCE_PLAN, text)
    if action == OffloadChoice.DELETE_COPY and not ours:
        return Why(
            Code.BROKERS_DELETE,
            "copies in BookKeeper are the brokers' to delete (offload.bookkeeper_copies), or deletion is switched off "
            "(deletion.topicTwoPhaseDeletionEnabled)",
        )
    if action == OffloadChoice.DELETE_COPY and (why := competing(policy)):
        return why
    if action == OffloadChoice.DELETE_COPY and (driver, region, end) != (policy.driver, policy.region, policy.endpoint):
        text = "its brokers read another location by now than when the plan was made: plan again"
        return Why(Code.CHANGED_SINCE_PLAN, text)
    if action == OffloadChoice.DELETE_COPY and not policy.tiered_first:
        return Why(Code.BOOKKEEPER_FIRST, BOOKKEEPER_FIRST)
    return None


def driver_metadata(row: Row) -> tuple[tuple[str, str], ...]:
    """Driver properties of an offload context (``getOffloadDriverMetadata``)."""
    return (
        ("bucket", row["bucket"]),
        ("managedLedgerOffloadDriver", ACTING_DRIVERS[row["driver"].lower()]),
        ("region", row["region"]),
        ("serviceEndpoint", row["endpoint"]),
    )


def location_of(row: Row) -> OffloadLocation:
    """The location of an offload that a plan names."""
    return offload_location(
        row["driver"], {"bucket": row["bucket"], "region": row["region"], "serviceEndpoint": row["endpoint"]}
    )


def _is_late(row: Row) -> bool:
    """Whether a copy in BookKeeper is of a location that brokers could not read."""
    return bool(row.get("unread")) and row["action"] == OffloadChoice.DELETE_COPY


def _few(rows: Iterable[Row], without: Callable[[Sequence[Row]], Sequence[Row]]) -> frozenset[int]:
    """A copy to be deleted of each of a few topics of each location, others in each run: some may be in trouble."""
    by_location: dict[OffloadLocation, dict[str, list[Row]]] = {}
    for row in rows:
        if row["action"] == OffloadChoice.DELETE_COPY:
            by_location.setdefault(location_of(row), {}).setdefault(row["topic"], []).append(row)
    found: list[int] = []
    for topics in by_location.values():
        some = [random.sample(topics[name], 1)[0] for name in random.sample(list(topics), min(LOOKED_AT, len(topics)))]
        found += [row["ledger_id"] for row in without(some)[:ASKED]]
    return frozenset(found)


def chosen(
    rows: pa.Table,
    limit: int,
    max_ledgers: int,
    max_bytes: int,
    without: Callable[[Sequence[Row]], Sequence[Row]] = lambda rows: rows,
    unread: Collection[OffloadLocation] = (),
) -> list[Row]:
    """The rows of one run, the oldest ledgers first: at least one, and as many as the caps allow of each action.

    ``limit`` (0: none) is over all of them; ``without`` takes out what does not count. Those of locations that brokers
    could not read (``unread``) come last; of their copies in BookKeeper a few go, which asks them once more.
    """
    found: list[Row] = []
    asking: frozenset[int] = frozenset()
    room = dict.fromkeys((OffloadChoice.OFFLOAD, OffloadChoice.DELETE_COPY), (max_ledgers, max_bytes))
    order = ["ledger_id"]
    if unread:
        columns = ["ledger_id", "topic", "driver", "bucket", "region", "endpoint", "action", "bytes"]
        named = rows.select(columns).to_pylist()
        last = pa.array([row["action"] in room and location_of(row) in unread for row in named], pa.bool_())
        asking = _few((row for row, late in zip(named, last.to_pylist(), strict=True) if late), without)
        rows, order = rows.append_column("unread", last), ["unread", "ledger_id"]
    for batch in rows.sort_by([(name, "ascending") for name in order]).to_batches(LOOKED_AT):
        rows_now = [row for row in batch.to_pylist() if row["action"] in room]
        for row in without([row for row in rows_now if not _is_late(row) or row["ledger_id"] in asking]):
            if limit and len(found) >= limit:
                return found
            if row["action"] not in room:
                continue
            ledgers, size = room[row["action"]]
            first = ledgers == max_ledgers
            size -= row["bytes"] or 0
            if ledgers and (size >= 0 or first):
                found.append(row)
                room[row["action"]] = ledgers - 1, size
            else:
                del room[row["action"]]
        if not room:
            break
    return found


def held_back(
    rows: pa.Table, taken: Sequence[Row], waiting: Sequence[Row], unread: Collection[OffloadLocation]
) -> list[OffloadOutcome]:
    """One for each topic with copies in BookKeeper that stay in this run as their location is ``unread``.

    Those that are ``taken``, as :func:`chosen` gives them, ask for all; what waits is told as ``waiting``.
    """
    if not unread:
        return []
    told = {row["ledger_id"] for row in (*taken, *waiting)}
    named = rows.select(["ledger_id", "topic", "driver", "bucket", "region", "endpoint", "action", "bytes"]).to_pylist()
    held: dict[str, list[Row]] = {}
    for row in named:
        if row["action"] == OffloadChoice.DELETE_COPY and row["ledger_id"] not in told and location_of(row) in unread:
            held.setdefault(row["topic"], []).append(row)
    return [
        OffloadOutcome(
            name,
            -1,
            Outcome.LEFT,
            Why(
                Code.LOCATION_UNREAD,
                f"{len(some)} of its ledgers wait: brokers could not read bucket {some[0]['bucket']} when last asked, "
                "so a few copies are deleted first; launch again once those are",
            ),
            sum(row["bytes"] or 0 for row in some),
            ledgers=len(some),
        )
        for name, some in held.items()
    ]


def waves(rows: Sequence[Row], unread: Collection[OffloadLocation] = ()) -> Iterator[list[Row]]:
    """The rows in waves of whole topics, topics with the most bytes first; those that name ``unread`` locations last.

    The first that fails there stops the run.
    """
    topics: dict[str, list[Row]] = {}
    for row in rows:
        topics.setdefault(row["topic"], []).append(row)
    wave: list[Row] = []
    size = 0
    for some in sorted(
        topics.values(),
        key=lambda group: (bool(unread) and location_of(group[0]) in unread, -sum(row["bytes"] or 0 for row in group)),
    ):
        wave += some
        size += sum(row["bytes"] or 0 for row in some)
        if size >= WAVE_BYTES or len(wave) >= WAVE_LEDGERS:
            yield wave
            wave, size = [], 0
    if wave:
        yield wave


def grouped_by(rows: Iterable[Row], key: Callable[[Row], T]) -> dict[T, list[Row]]:
    """Rows by ``key``, each group in the order given."""
    groups: dict[T, list[Row]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return groups


def by_topic(rows: Iterable[Row]) -> list[tuple[Topic, list[Row]]]:
    """Each topic with its rows."""
    return [(Topic.parse(name), some) for name, some in grouped_by(rows, itemgetter("topic")).items()]
