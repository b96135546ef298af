"""BookKeeper's ledgers in the metadata store, as rows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from pulsar_lifecycle.errors import (
    CorruptFormat,
    NotFound,
    UnsupportedFormat,
)
from pulsar_lifecycle.formats import ledger_metadata, ledger_path
from pulsar_lifecycle.metastore.walk import (
    DATA,
    PATH,
    Rows,
    Unit,
    children_below,
    descend,
    node_names,
    rows_below,
    unread,
)
from pulsar_lifecycle.ports import MetadataStore, Node
from pulsar_lifecycle.values import tables
from pulsar_lifecycle.values.tables import Problem

_SPECIAL = frozenset(
    {"LAYOUT", "INSTANCEID", "available", "cookies", "idgen", "idgen-long", "underreplication", "replicas"}
)


def ledger_units(store: MetadataStore, root: str = "/ledgers") -> list[Unit]:
    """Every node below ``root`` that holds ledger z-nodes, in both hierarchical layouts.

    Raises UnsupportedFormat for another ledger manager, NotFound when ``root`` is no BookKeeper root. Pulsar's own
    metadata driver writes no LAYOUT node and always keeps the hierarchical tree (PulsarLedgerManagerFactory).
    """
    layout = store.read([f"{root}/LAYOUT"])[0]
    top, units = children_below(store, [root])
    if isinstance(layout, Node):
        ledger_path.parse_layout(layout.data)
    elif layout is not None or "available" not in node_names(top):
        raise NotFound(f"{root} is no BookKeeper root that can be read: is bookkeeper.ledgers_root right?")
    folders = [n for n in node_names(top) if ledger_path.is_ledger_folder(n)]
    unknown = [n for n in node_names(top) if n not in folders and n not in _SPECIAL]
    units += [unread(f"{root}/{n}", "not a node of a known ledger layout") for n in unknown]
    leaf_parents, failed = descend(store, [f"{root}/{n}" for n in folders if len(n) == 2], 1)
    units += failed
    long_parents, failed = descend(store, [f"{root}/{n}" for n in folders if len(n) == 3], 3)
    units += failed
    return units + [Unit(path, None, 0) for path in leaf_parents + long_parents]


def listed_ids(store: MetadataStore, root: str = "/ledgers") -> tuple[Any, bool]:
    """The ids of all ledgers that there are now (numpy, int64, ascending); and whether all could be listed.

    Reads names alone. Raises as :func:`ledger_units`.
    """
    units = ledger_units(store, root)
    parents = [unit.parent for unit in units if unit.trouble is None]
    whole, found = len(parents) == len(units), [np.array([], np.int64)]
    for start in range(0, len(parents), _LISTED_AT_ONCE):
        listings, failed = children_below(store, parents[start : start + _LISTED_AT_ONCE])
        whole = whole and not failed
        for listing in listings:
            first = id_range(listing.path, root)[0]
            numbers = (_LEAVES.get(f"/{name}") for name in listing.names)
            found.append(np.array([first + number for number in numbers if number is not None], np.int64))
    return np.sort(np.concatenate(found)), whole


_LISTED_AT_ONCE = 50
"""Nodes with up to 10,000 ledgers each whose children are listed together."""


def id_range(parent: str, root: str = "/ledgers") -> tuple[int, int]:
    """Lowest and highest ledger id that can live below a node of :func:`ledger_units`."""
    digits = parent[len(root) :].replace("/", "")
    if not digits.isdecimal():
        return 0, 2**63 - 1
    low = int(digits) * 10_000
    return low, low + 9_999


def read_ledgers(
    store: MetadataStore, units: Iterable[Unit], schema: pa.Schema = tables.BOOKKEEPER_LEDGERS, root: str = "/ledgers"
) -> Iterator[pa.RecordBatch]:
    """Rows of ``tables.BOOKKEEPER_LEDGERS``, or of the picked columns."""
    for rows in rows_below(store, units, schema):
        yield rows if isinstance(rows, pa.RecordBatch) else _ledger_batch(rows, schema, root)


def ledger_rows(nodes: Sequence[Node], root: str = "/ledgers") -> pa.Table:
    """The rows of ledger z-nodes that were read one by one."""
    return pa.Table.from_batches(
        [_ledger_batch(_rows_of(nodes), tables.BOOKKEEPER_LEDGERS, root)], tables.BOOKKEEPER_LEDGERS
    )


def ledger_dictionaries(nodes: Sequence[Node], root: str = "/ledgers") -> list[dict[str, Any]]:
    """:func:`ledger_rows` as dictionaries: of a few, Arrow would take longer than all else."""
    rows, schema = _rows_of(nodes), tables.BOOKKEEPER_LEDGERS
    return rows.dictionaries(schema, _ledger_columns(rows, schema, root))


def _rows_of(nodes: Sequence[Node]) -> Rows:
    rows = Rows(1)
    rows.nodes = [
        (
            n.path,
            n.data,
            n.stat.czxid,
            n.stat.mzxid,
            n.stat.ctime,
            n.stat.mtime,
            n.stat.version,
            n.stat.num_children,
            (),
        )
        for n in nodes
    ]
    return rows


def _ledger_batch(rows: Rows, schema: pa.Schema, root: str) -> pa.RecordBatch:
    return rows.batch(schema, _ledger_columns(rows, schema, root))


def _ledger_columns(rows: Rows, schema: pa.Schema, root: str) -> dict[str, list[Any]]:
    datas = rows.column(DATA)
    ids = _ledger_ids(rows.column(PATH), root)
    for index, (ledger_id, data) in enumerate(zip(ids, datas, strict=True)):
        if ledger_id is None:
            rows.note(index, Problem.UNREAD, "not a ledger z-node")
        if not data:
            rows.note(index, Problem.EMPTY, "the z-node has no data")
    columns, problems = ledger_metadata.decode_columns(datas, frozenset(schema.names) & _DECODED)
    for index, problem in enumerate(problems):
        if problem is not None:
            rows.note(index, Problem.CORRUPT, problem)
    return {"ledger_id": ids, **columns}


_LEAVES = {f"/L{n:04d}": n for n in range(10_000)}


def _ledger_ids(paths: Sequence[str], root: str) -> list[int | None]:
    """Ledger ids of z-node paths, None for what is not one.

    A parent is parsed once, its leaves are looked up: a tenth of parsing every path, of which there are ten million.
    """
    firsts: dict[str, int | None] = {}
    ids: list[int | None] = []
    for path in paths:
        parent, leaf = path[:-6], path[-6:]
        if parent not in firsts:
            ends = [_parsed(f"{parent}/L{n}", root) for n in ("0000", "9999")]
            firsts[parent] = None if None in ends else ends[0]
        first, number = firsts[parent], _LEAVES.get(leaf)
        ids.append(_parsed(path, root) if first is None or number is None else first + number)
    return ids


def _parsed(path: str, root: str) -> int | None:
    try:
        return ledger_path.parse_ledger_path(path, root)
    except CorruptFormat:
        return None


_DECODED = frozenset(
    (
        "state",
        "entries",
        "length",
        "ensemble_size",
        "write_quorum",
        "ack_quorum",
        "ensembles",
        "application",
        "component",
        "managed_ledger",
        "cursor",
        "schema_id",
        "compacted_topic",
        "bucket_key",
        "bucket_topic",
        "bucket_cursor",
    )
)


def under_replicated(store: MetadataStore, root: str = "/ledgers") -> set[int]:
    """Ledger ids that the auditor has marked below ``underreplication/ledgers``."""
    level = [f"{root}/underreplication/ledgers"]
    if store.children(level)[0] is None:
        return set()
    found: set[int] = set()
    while level:
        listings, failed = children_below(store, level)
        for unit in failed:
            raise UnsupportedFormat(unit.parent, 0, f"a readable under-replication list: {unit.why}")
        level = []
        for listing in listings:
            for name in listing.names:
                if re.fullmatch(r"urL\d+", name):
                    found.add(int(name[3:]))
                else:
                    level.append(f"{listing.path}/{name}")
    return found
