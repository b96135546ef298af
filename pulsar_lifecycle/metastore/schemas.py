"""Schemas in the metadata store, as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

import pyarrow as pa

from pulsar_lifecycle.formats import schema
from pulsar_lifecycle.metastore.walk import (
    CHUNK,
    DATA,
    NUM_CHILDREN,
    PATH,
    SCHEMAS_ROOT,
    Unit,
    children_below,
    holding_data,
    rows_below,
)
from pulsar_lifecycle.ports import MetadataStore
from pulsar_lifecycle.values import tables


def schema_units(store: MetadataStore, chosen: Callable[[str], bool] = lambda namespace: True) -> list[Unit]:
    """Every namespace below ``/schemas``, cut into chunks of schema names.

    A namespace that lost its last schema stays behind as an empty z-node and gives no unit.
    """
    tenants, failed = children_below(store, [SCHEMAS_ROOT])
    units = list(failed)
    namespaces, failed = children_below(store, [f"{c.path}/{n}" for c in tenants for n in c.names])
    units += failed
    paths = [f"{c.path}/{n}" for c in namespaces for n in c.names]
    paths = [path for path in paths if chosen(path[len(SCHEMAS_ROOT) + 1 :])]
    listings, failed = children_below(store, paths)
    units += failed + holding_data(store, paths, "not a schema path of Pulsar 4.0")
    for listing in listings:
        for start in range(0, len(listing.names), CHUNK):
            units.append(Unit(listing.path, listing.names[start : start + CHUNK], listing.num_children))
    return units


def read_schemas(
    store: MetadataStore, units: Iterable[Unit], row_schema: pa.Schema = tables.SCHEMAS
) -> Iterator[pa.RecordBatch]:
    """Rows of ``tables.SCHEMAS``; a node without data and with children is a V1 namespace and is walked too."""
    for rows in rows_below(store, units, row_schema):
        if isinstance(rows, pa.RecordBatch):
            yield rows
            continue
        namespaces = {
            n[PATH]
            for index, n in enumerate(rows.nodes)
            if index not in rows.troubles and not n[DATA] and n[NUM_CHILDREN]
        }
        versions = [
            [] if node[PATH] in namespaces else info
            for node, info in zip(rows.nodes, rows.decoded(schema_versions, skip=namespaces), strict=True)
        ]
        ids = [path[len(SCHEMAS_ROOT) + 1 :] for path in rows.column(PATH)]
        yield rows.batch(
            row_schema, {"schema_id": ids, "namespace": [i.rpartition("/")[0] for i in ids], "versions": versions}
        )
        yield from read_schemas(store, [Unit(path, None, 0) for path in sorted(namespaces)], row_schema)


def schema_versions(data: bytes) -> list[tuple[int, int, int]]:
    """(version, ledger id, entry id) of everything a schema locator names. Raises CorruptFormat."""
    locator = schema.decode_locator(data)
    seen = {
        (entry.version, entry.position.ledger_id, entry.position.entry_id) for entry in (locator.latest, *locator.index)
    }
    return sorted(seen)
