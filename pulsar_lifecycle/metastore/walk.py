"""The metastore as tables: walk ZooKeeper's trees and yield Arrow batches of ``values/tables.py``.

Belongs here: which z-nodes make up a table, how the work is cut into units that executors share, and the rows for
what was listed and not read. Not here: judging the rows, and Spark. A walk never skips: what it does not understand
becomes a row with a ``problem``. Paths and names as in BookKeeper 4.17 (``HierarchicalLedgerManager``) and Pulsar 4.0
(``MetaStoreImpl``, ``BookkeeperSchemaStorage``).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from pulsar_lifecycle.errors import (
    CorruptFormat,
)
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, decode_name
from pulsar_lifecycle.ports import MetadataStore, Node, Unread
from pulsar_lifecycle.values.tables import Problem, Trouble

SCHEMAS_ROOT = "/schemas"

CHUNK = 5_000
"""Z-nodes per unit of work and per Arrow batch."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A piece of a table: z-nodes ``names`` below ``parent``; ``names`` None lists them when it is read.

    ``listed`` is what the parent's Stat counted at the listing. ``trouble`` makes the unit one row that says so.
    """

    parent: str
    names: tuple[str, ...] | None
    listed: int
    trouble: Trouble | None = None

    @property
    def why(self) -> str:
        """What is wrong with it."""
        return self.trouble.error if self.trouble else ""

    @property
    def weight(self) -> int:
        """About how many z-nodes it holds."""
        return CHUNK if self.names is None else len(self.names)


def unread(path: str, error: str) -> Unit:
    """What could not be read, as a unit: one row, of a z-node or of all below it."""
    return Unit(path, None, 0, Trouble(Problem.UNREAD, error))


def share(units: Sequence[Unit], parts: int) -> list[list[Unit]]:
    """Units in at most ``parts`` groups of about equal weight, none empty."""
    groups: list[list[Unit]] = [[] for _ in range(min(parts, max(len(units), 1)))]
    loads = [0] * len(groups)
    for unit in sorted(units, key=lambda u: -u.weight):
        lightest = loads.index(min(loads))
        groups[lightest].append(unit)
        loads[lightest] += unit.weight
    return [group for group in groups if group]


STRANGE = "not a managed-ledger path of Pulsar 4.0"


def holding_data(store: MetadataStore, paths: Sequence[str], strange: str = STRANGE) -> list[Unit]:
    """Error units for z-nodes above topics or schemas that hold data: written by something else than Pulsar 4.0."""
    return [
        unread(node.path, f"it holds {len(node.data)} bytes: {strange}")
        for node in store.read(paths)
        if isinstance(node, Node) and node.data
    ]


def namespace_of(path: str) -> str:
    """Namespace of a z-node of a topic, a cursor or a schema; what is not below one of these names itself.

    Below an unknown domain that is ``T/NS``: only namespaces of that form have one.
    """
    if path.startswith(f"{SCHEMAS_ROOT}/"):
        return path[len(SCHEMAS_ROOT) + 1 :].rpartition("/")[0]
    owner = path[len(MANAGED_LEDGERS_ROOT) + 1 :]
    namespace, found, _ = owner.partition("/persistent/")
    return namespace if found or owner.count("/") < 3 else "/".join(owner.split("/")[:2])


def namespace_paths(store: MetadataStore, root: str) -> tuple[list[str], list[Unit]]:
    """Z-nodes ``root/T/NS`` and V1 ``root/T/C/NS``, and an error unit for each part that could not be listed.

    A V1 cluster's node is among them too: nothing tells it from a V2 namespace without topics.
    """
    above, found, bad = [root], list[str](), list[Unit]()
    for depth in range(3):
        listings, failed = children_below(store, above)
        bad += failed
        above = [f"{c.path}/{n}" for c in listings for n in c.names if depth < 2 or n not in _DOMAINS]
        found += above if depth else []
    return found, bad


_DOMAINS = ("persistent", "non-persistent")


def children_below(store: MetadataStore, paths: Sequence[str]) -> tuple[list[Any], list[Unit]]:
    """Listings of ``paths``, and an error unit for each that could not be listed whole.

    A listing whose length differs from the node's own count is read again a few times: children come and go.
    """
    good: list[Any] = []
    bad: list[Unit] = []
    todo = list(paths)
    for tried in range(LISTING_TRIES):
        if not todo:
            break
        again: list[str] = []
        for path, children in zip(todo, store.children(todo), strict=True):
            if children is None:
                if path in (MANAGED_LEDGERS_ROOT, SCHEMAS_ROOT):
                    bad.append(Unit(path, None, 0, Trouble(Problem.MISSING_ROOT, "the root does not exist")))
            elif isinstance(children, Unread):
                bad.append(unread(path, children.reason))
            elif children.is_whole:
                good.append(children)
            elif tried + 1 < LISTING_TRIES:
                again.append(path)
            else:
                counted = f"{len(children.names)} children listed, its Stat counts {children.num_children}"
                bad.append(unread(path, counted))
        todo = again
    return good, bad


LISTING_TRIES = 5


def descend(store: MetadataStore, paths: list[str], levels: int) -> tuple[list[str], list[Unit]]:
    """Paths so many levels below ``paths``, and the units that could not be listed."""
    failed: list[Unit] = []
    for _ in range(levels):
        listings, broken = children_below(store, paths)
        failed += broken
        paths = [f"{c.path}/{n}" for c in listings for n in c.names]
    return paths, failed


def node_names(listings: Iterable[Any]) -> list[str]:
    """The names of all listings."""
    return [name for listing in listings for name in listing.names]


def rows_below(store: MetadataStore, units: Iterable[Unit], schema: pa.Schema) -> Iterator[Rows | pa.RecordBatch]:
    """The z-nodes of the units in chunks; what could not be listed comes as a finished batch of error rows."""
    for unit in units:
        if unit.trouble:
            yield trouble_batch(schema, unit)
            continue
        names, listed = unit.names, unit.listed
        if names is None:
            listings, failed = children_below(store, [unit.parent])
            for broken in failed:
                yield trouble_batch(schema, broken)
            names, listed = (listings[0].names, listings[0].num_children) if listings else ((), 0)
        for start in range(0, len(names), CHUNK):
            yield from scanned(store, [f"{unit.parent}/{name}" for name in names[start : start + CHUNK]], listed)


def scanned(store: MetadataStore, paths: list[str], listed: int | Mapping[str, int]) -> Iterator[Rows]:
    """One chunk, as the store's scan gives it: what is gone or unread comes after what was read."""
    rows = Rows(listed)
    for batch in store.scan(paths):
        rows.nodes += batch.rows
        missing = [(path, _GONE) for path in batch.gone]
        missing += [(u.path, Trouble(Problem.UNREAD, u.reason)) for u in batch.unread]
        for path, trouble in missing:
            rows.troubles[len(rows.nodes)] = trouble
            rows.nodes.append((path, b"", 0, 0, 0, 0, 0, 0, ()))
    if rows.nodes:
        yield rows


_GONE = Trouble(Problem.GONE, "it was listed, and is not there any more")


def trouble_batch(schema: pa.Schema, unit: Unit) -> pa.RecordBatch:
    """One row that says why a unit has no other."""
    problem = unit.trouble.problem.value if unit.trouble else None
    values = {"path": unit.parent, "problem": problem, "error": unit.why}
    return pa.RecordBatch.from_arrays([pa.array([values.get(f.name)], f.type) for f in schema], schema=schema)


def owner_columns(rows: Rows) -> dict[str, list[Any]]:
    """The columns that say whose a z-node is."""
    columns: dict[str, list[Any]] = {"managed_ledger": [], "topic": [], "namespace": []}
    for index, path in enumerate(rows.column(PATH)):
        owner = path[len(MANAGED_LEDGERS_ROOT) + 1 :]
        domain, _, name = owner.rpartition("/")
        namespace = domain.rpartition("/")[0]
        try:
            local: str | None = decode_name(name)
        except CorruptFormat as error:
            local = None
            rows.note(index, Problem.UNREAD, error)
        columns["managed_ledger"].append(owner)
        known = local is not None and domain.endswith(f"/{KNOWN_DOMAIN}")
        columns["topic"].append(f"persistent://{namespace}/{local}" if known else None)
        columns["namespace"].append(namespace)
    return columns


KNOWN_DOMAIN = "persistent"
"""The domain whose topics have z-nodes, in all versions that we know."""


def note_domains(rows: Rows, above: int) -> None:
    """Say of each z-node below another domain that it is, unless more is wrong with it; after it was decoded.

    The domain is so many levels ``above`` the z-nodes.
    """
    for index, path in enumerate(rows.column(PATH)):
        domain = path.split("/")[-1 - above]
        if domain != KNOWN_DOMAIN:
            rows.note(index, Problem.UNKNOWN_DOMAIN, f"topics of domain {domain} are not known: its namespace is kept")


def _array(values: Any, kind: pa.DataType) -> pa.Array:
    """``values`` as an Arrow array; of nothing but None it is made at once."""
    if (
        isinstance(values, list)
        and values
        and values[0] is None
        and not any(values)
        and values.count(None) == len(values)
    ):
        return pa.nulls(len(values), kind)
    return pa.array(values, kind)


PATH, DATA, CZXID, MZXID, CTIME, MTIME, VERSION, NUM_CHILDREN = range(8)
"""Where a :class:`ports.ScanBatch` row has what."""


class Rows:
    """Z-nodes as scanned, and by their index what is wrong with some.

    ``listed`` is by parent, or one number for a single parent.
    """

    def __init__(self, listed: int | Mapping[str, int]) -> None:
        self.listed = listed
        self.nodes: list[Any] = []
        self.troubles: dict[int, Trouble] = {}

    def note(self, index: int, problem: Problem, error: object) -> None:
        """Say what is wrong with a z-node, unless something was wrong before."""
        if index not in self.troubles:
            self.troubles[index] = Trouble(problem, str(error))

    def column(self, index: int) -> list[Any]:
        """One field of every z-node."""
        return [node[index] for node in self.nodes]

    def decoded(self, decoder: Callable[[bytes], Any], skip: Container[str] = ()) -> list[Any]:
        """The decoded values; None where something is wrong already, or after noting it."""
        values: list[Any] = []
        for index, node in enumerate(self.nodes):
            value = None
            if index not in self.troubles and node[PATH] not in skip:
                try:
                    value = decoder(node[DATA])
                except CorruptFormat as error:
                    self.note(index, Problem.CORRUPT, error)
            values.append(value)
        return values

    def batch(self, schema: pa.Schema, columns: Mapping[str, Any]) -> pa.RecordBatch:
        """An Arrow batch: the given columns, the rest from the z-nodes; a row with a problem has path and census."""
        return pa.RecordBatch.from_arrays(
            [_array(self._values(f.name, columns), f.type) for f in schema], schema=schema
        )

    def dictionaries(self, schema: pa.Schema, columns: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The rows of :meth:`batch`, one by one: for a few of them Arrow takes longer than all else."""
        values = [self._values(name, columns) for name in schema.names]
        return [dict(zip(schema.names, row, strict=True)) for row in zip(*values, strict=True)]

    def _values(self, name: str, columns: Mapping[str, Any]) -> Any:
        if name in columns:
            return columns[name]
        if name in ("problem", "error"):
            if not self.troubles:
                return [None] * len(self.nodes)
            values: list[str | None] = [None] * len(self.nodes)
            for index, trouble in self.troubles.items():
                values[index] = trouble.problem.value if name == "problem" else trouble.error
            return values
        if name == "path":
            return self.column(PATH)
        if name == "parent":
            return [node[PATH].rpartition("/")[0] for node in self.nodes]
        if name == "listed":
            if isinstance(self.listed, int):
                return [self.listed] * len(self.nodes)
            return [self.listed[node[PATH].rpartition("/")[0]] for node in self.nodes]
        return self.column({"czxid": CZXID, "ctime": CTIME, "mtime": MTIME, "version": VERSION}[name])
