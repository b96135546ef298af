"""What the cluster holds of one z-node, ledger or topic, decoded for a person.

Belongs here: reading it through the ports without loading a topic or recovering a ledger, as plain values for JSON
under upstream's field names. Not here: judging (``explain``), printing. Ledger passwords and credentials in policies
are hidden. What cannot be read stands in the document under ``error``; only a missing or unreadable subject raises.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from pulsar_lifecycle.errors import CorruptFormat, LifecycleError, NotFound
from pulsar_lifecycle.formats import bookie_info, ledger_metadata, ledger_path, managed_ledger, schema
from pulsar_lifecycle.formats import cursor as cursor_format
from pulsar_lifecycle.formats.ledger_metadata import COMPONENT_SCHEMA, LedgerMetadata, LedgerState
from pulsar_lifecycle.formats.plain_data import describe
from pulsar_lifecycle.inspect import explain
from pulsar_lifecycle.metastore import load_state
from pulsar_lifecycle.metastore.bookkeeper_ledgers import ledger_rows
from pulsar_lifecycle.metastore.load_state import Brokers
from pulsar_lifecycle.metastore.schemas import schema_versions
from pulsar_lifecycle.metastore.walk import SCHEMAS_ROOT
from pulsar_lifecycle.model import MANAGED_LEDGERS_ROOT, Position, Topic, cursor_name
from pulsar_lifecycle.ports import Children, Entry, LedgerReader, MetadataStore, Node, Stat
from pulsar_lifecycle.records.owner_names import owner_in
from pulsar_lifecycle.scan import stored_references
from pulsar_lifecycle.scan.references import KINDS

Document = dict[str, Any]

PARTITIONED_ROOT = "/admin/partitioned-topics"
HIDDEN = "(hidden)"
_SECRET = re.compile(r"password|secret|token|credential|authenticationparam|privatekey", re.IGNORECASE)


def described(format_name: str, data: bytes) -> Document:
    """``plain_data.describe`` without secrets. Raises UsageError, CorruptFormat, UnsupportedFormat."""
    return without_secrets(describe(format_name, data))


def without_secrets(value: Any) -> Any:
    """The same plain value; what stands under a name that sounds like a secret's is hidden, unless it is empty.

    ``{"key": NAME, "value": ...}`` and ``{"name": NAME, "value": ...}``, upstream's pairs, count as such too.
    """
    if isinstance(value, dict):
        named = str(value.get("key", value.get("name", "")))
        return {
            key: HIDDEN
            if isinstance(item, str) and item and _SECRET.search(named if key == "value" else key)
            else without_secrets(item)
            for key, item in value.items()
        }
    return [without_secrets(item) for item in value] if isinstance(value, list) else value


# ----------------------------------------------------------------------------------------------------------- z-nodes


def znode(store: MetadataStore, path: str, ledgers_root: str) -> Document:
    """Any z-node, decoded by where it lies. Raises NotFound, AccessDenied.

    ``value`` is None for an empty one; bytes that do not decode are in ``raw``, with ``error``.
    """
    store.sync("/")
    node = explain.readable(store.read([path])[0], path)
    if node is None:
        raise NotFound(f"{path}: there is no such z-node")
    listing = store.children([path])[0]
    format_name = format_of(path, ledgers_root)
    document: Document = {"path": path, "stat": stat_fields(node.stat), "format": format_name, "value": None}
    try:
        document["value"] = _value(node, format_name)
    except CorruptFormat as error:
        document |= {"error": str(error), "raw": f"0x{node.data.hex()}"}
    document["children"] = sorted(listing.names) if isinstance(listing, Children) else []
    return document


def format_of(path: str, ledgers_root: str) -> str:
    """The name of a ``describe`` format, ``bookie``, or ``plain`` for what is JSON or text, by a z-node's path."""
    parts = path.split("/")
    if path.startswith(f"{ledgers_root}/"):
        if path.startswith(f"{ledgers_root}/available/") and parts[-1] != bookie_info.READ_ONLY:
            return "bookie"
        try:
            ledger_path.parse_ledger_path(path, ledgers_root)
        except CorruptFormat:
            return "plain"
        return "ledger-metadata"
    if path.startswith(f"{MANAGED_LEDGERS_ROOT}/"):
        for domain in (4, 5):  # T/NS/persistent, and V1 T/C/NS/persistent
            if parts[domain : domain + 1] == ["persistent"]:
                return {1: "managed-ledger", 2: "cursor"}.get(len(parts) - domain - 1, "plain")
    if path.startswith(f"{SCHEMAS_ROOT}/") and len(parts) >= 5:
        return "schema-locator"
    return "plain"


def _value(node: Node, format_name: str) -> Any:
    if format_name == "bookie":
        return asdict(bookie_info.decode(node.data, node.path.rpartition("/")[2]))
    if not node.data:
        return None
    if format_name != "plain":
        return described(format_name, node.data)
    try:
        text = node.data.decode()
        value = json.loads(text) if text.lstrip()[:1] in ("{", "[") else text
    except ValueError:
        return f"0x{node.data.hex()}"
    return without_secrets(value)


def stat_fields(stat: Stat) -> Document:
    """A Stat under ZooKeeper's field names."""
    return {
        "czxid": stat.czxid,
        "mzxid": stat.mzxid,
        "pzxid": stat.pzxid,
        "ctime": stat.ctime,
        "mtime": stat.mtime,
        "version": stat.version,
        "cversion": stat.cversion,
        "ephemeralOwner": stat.ephemeral_owner,
        "dataLength": stat.data_length,
        "numChildren": stat.num_children,
    }


# ----------------------------------------------------------------------------------------------------------- ledgers


def ledger(store: MetadataStore, reader: LedgerReader, ledger_id: int, ledgers_root: str) -> Document:
    """A ledger: metadata, owner by its tags, where its replicas are, its last entry, and what refers to it now.

    Only the owner is asked for references. Raises NotFound, AccessDenied.
    """
    path = ledger_path.ledger_path(ledger_id, ledgers_root)
    try:
        shown = znode(store, path, ledgers_root)
    except NotFound as error:
        raise NotFound(f"{error}: BookKeeper does not have it; explain tells what the journal knows of it") from None
    document: Document = {"ledgerId": ledger_id, "path": path, "stat": shown["stat"], "metadata": shown["value"]}
    node = explain.readable(store.read([path])[0], path)
    if node is None:
        raise NotFound(f"{path}: it was deleted while it was read")
    if shown["value"] is None:
        problem = shown.get("error", "the z-node is empty: a half-deleted ledger")
        return document | {"error": problem, "raw": shown.get("raw", "")}
    metadata = ledger_metadata.decode(node.data)
    row = ledger_rows([node], ledgers_root).to_pylist()[0]
    namespace, topic = owner_in(row)
    document["owner"] = {
        "namespace": namespace,
        "topic": topic,
        "component": row["component"],
        "cursor": row["cursor"] or row["bucket_cursor"],
        "schemaId": row["schema_id"],
    }
    document["replicas"] = _replicas(store, metadata, ledgers_root)
    document["underReplicated"] = _under_replicated(store, ledger_id, ledgers_root)
    document["lastEntry"] = _last_entry(reader.last_entries([(ledger_id, metadata)])[0])
    schemas = [row["schema_id"]] if topic and row["component"] == COMPONENT_SCHEMA else []
    owners = [Topic.parse(topic).managed_ledger] if topic and not schemas else []
    found = explain.look(store, reader, ledger_id, owners, schemas, ledgers_root)
    document["references"] = [
        {"kind": r["kind"], "name": KINDS[r["kind"]].name, "referrer": r["referrer"]}
        for r in found.references.to_pylist()
    ]
    document["asked"] = list(found.asked)
    document["notRead"] = list(found.trouble)
    return document


def _replicas(store: MetadataStore, metadata: LedgerMetadata, root: str) -> list[Document]:
    bookies = list(dict.fromkeys(b for segment in metadata.segments for b in segment.bookies))
    writable, read_only = (store.read([f"{at}/{b}" for b in bookies]) for at in bookie_info.folders(root))
    return [
        {
            "bookieId": bookie,
            "state": "writable" if up is not None else "read-only" if ro is not None else "not registered",
            "firstEntryIds": [s.first_entry_id for s in metadata.segments if bookie in s.bookies],
        }
        for bookie, up, ro in zip(bookies, writable, read_only, strict=True)
    ]


def _under_replicated(store: MetadataStore, ledger_id: int, root: str) -> bool:
    # ZkLedgerUnderreplicationManager: the id as 16 hexadecimal digits in four levels.
    digits = f"{ledger_id:016x}"
    levels = "/".join(digits[i : i + 4] for i in range(0, 16, 4))
    return store.read([f"{root}/underreplication/ledgers/{levels}/urL{ledger_id:010d}"])[0] is not None


def _last_entry(entry: Entry | LifecycleError | None) -> Document:
    if isinstance(entry, LifecycleError):
        return {"error": str(entry)}
    return {"entryId": -1} if entry is None else {"entryId": entry.entry_id, "size": len(entry.payload)}


# ------------------------------------------------------------------------------------------------------------ topics


def topic(
    store: MetadataStore, reader: LedgerReader, brokers: Brokers, subject: Topic, now: int, ledgers_root: str
) -> Document:
    """A topic with its ledgers, cursors, schema and load state; of a partitioned topic its partitions.

    Raises NotFound, AccessDenied, and CorruptFormat for a topic z-node that does not decode.
    """
    store.sync("/")
    path = f"{MANAGED_LEDGERS_ROOT}/{subject.managed_ledger}"
    node = explain.readable(store.read([path])[0], path)
    if node is None:
        return _partitioned(store, subject, path)
    info = managed_ledger.decode(node.data)
    ledgers = _ledgers(store, reader, node.data, info, ledgers_root)
    last = max((item["ledgerId"] for item in ledgers), default=None)
    state = next((item["bookkeeper"].get("state") for item in ledgers if item["ledgerId"] == last), None)
    broker = brokers.loaded.get(str(subject))
    load = load_state.load_state(info, node.stat.mtime, state, broker, brokers, now)
    return {
        "topic": str(subject),
        "path": path,
        "stat": stat_fields(node.stat),
        "loadState": load.state.value,
        "loadReason": load.reason.value,
        "loadDetail": load.detail,
        "loadText": load.text,
        "broker": broker,
        "terminatedPosition": str(info.terminated) if info.terminated else None,
        "properties": without_secrets(dict(info.properties)),
        "ledgerInfo": ledgers,
        "cursors": _cursors(store, reader, path, ledgers_root),
        "schema": _schema(store, reader, subject, ledgers_root),
    }


def _partitioned(store: MetadataStore, subject: Topic, path: str) -> Document:
    parent = f"{PARTITIONED_ROOT}/{subject.managed_ledger}"
    node = explain.readable(store.read([parent])[0], parent)
    if node is None:
        raise NotFound(f"{subject}: there is no such topic: neither {path} nor {parent} exists")
    try:
        count = int(json.loads(node.data)["partitions"])
    except (ValueError, KeyError, TypeError):
        raise CorruptFormat(parent, 0, '{"partitions": N}') from None
    parts = [Topic(subject.namespace, f"{subject.local}-partition-{n}", subject.domain) for n in range(count)]
    nodes = store.read([f"{MANAGED_LEDGERS_ROOT}/{part.managed_ledger}" for part in parts])
    return {
        "topic": str(subject),
        "path": parent,
        "partitions": [
            {"topic": str(part), **_summary(explain.readable(found, str(part)))}
            for part, found in zip(parts, nodes, strict=True)
        ],
    }


def _summary(node: Node | None) -> Document:
    if node is None:
        return {"absent": "it has no z-node: it was never created, or deleted"}
    try:
        return {"ledgers": len(managed_ledger.decode(node.data).ledgers), "mtime": node.stat.mtime}
    except CorruptFormat as error:
        return {"error": str(error)}


def _ledgers(
    store: MetadataStore, reader: LedgerReader, data: bytes, info: managed_ledger.ManagedLedgerInfo, root: str
) -> list[Document]:
    """Each LedgerInfo joined with BookKeeper's metadata, in the order of ids."""
    shown = {item["ledgerId"]: item for item in described("managed-ledger", data).get("ledgerInfo", [])} if data else {}
    ids = sorted(item.ledger_id for item in info.ledgers)
    metadata = dict(zip(ids, stored_references.metadata_of(store, ids, root), strict=True))
    open_ = [(i, m) for i, m in metadata.items() if isinstance(m, LedgerMetadata) and m.state != LedgerState.CLOSED]
    last = dict(zip((i for i, _ in open_), reader.last_entries(open_), strict=True))
    return [{**shown[i], "bookkeeper": _bookkeeper(metadata[i], last.get(i))} for i in ids]


def _bookkeeper(metadata: LedgerMetadata | LifecycleError, last: Entry | LifecycleError | None) -> Document:
    if isinstance(metadata, LifecycleError):
        return {"error": "not in BookKeeper" if isinstance(metadata, NotFound) else str(metadata)}
    document: Document = {"state": metadata.state.name, "bookies": list(metadata.segments[-1].bookies)}
    if metadata.state == LedgerState.CLOSED:
        return document | {"lastEntryId": metadata.last_entry_id, "length": metadata.length}
    found = _last_entry(last)
    return document | ({"error": found["error"]} if "error" in found else {"lastEntryId": found["entryId"]})


def _cursors(store: MetadataStore, reader: LedgerReader, path: str, root: str) -> list[Document]:
    listing = store.children([path])[0]
    if not isinstance(listing, Children):
        return []
    names = sorted(listing.names)
    decoded: list[cursor_format.ManagedCursorInfo | LifecycleError] = []
    for name, found in zip(names, store.read([f"{path}/{name}" for name in names]), strict=True):
        try:
            node = explain.readable(found, f"{path}/{name}")
            decoded.append(cursor_format.decode(node.data) if node else NotFound("deleted while it was read"))
        except LifecycleError as error:
            decoded.append(error)
    ids = [info.cursors_ledger_id for info in decoded if isinstance(info, cursor_format.ManagedCursorInfo)]
    ids = [i for i in ids if i >= 0]
    entries = dict(zip(ids, stored_references.last_entries_of(store, reader, ids, root), strict=True))
    return [_cursor(name, info, entries, path) for name, info in zip(names, decoded, strict=True)]


def _cursor(
    name: str,
    info: cursor_format.ManagedCursorInfo | LifecycleError,
    entries: Mapping[int, tuple[LedgerMetadata | LifecycleError, Entry | LifecycleError | None]],
    path: str,
) -> Document:
    document: Document = {"name": cursor_name(name)}
    if isinstance(info, LifecycleError):
        return document | {"error": str(info)}
    held = info.cursors_ledger_id
    document |= {
        "cursorsLedgerId": held,
        "lastActive": info.last_active,
        **_position("its z-node", info.mark_delete, len(info.individual_deleted), info.properties),
        "cursorProperties": without_secrets(dict(info.cursor_properties)),
    }
    if held < 0:
        return document
    metadata, entry = entries[held]
    try:
        position = stored_references.cursor_state(metadata, entry, path)
    except LifecycleError as error:
        return document | {"positionFrom": "its z-node, which is stale", "error": f"cursor ledger {held}: {error}"}
    assert isinstance(entry, Entry)
    where = f"cursor ledger {held}, entry {entry.entry_id}"
    ranges: Sequence[object] = position.individual_deleted or position.deleted_bits
    return document | _position(where, position.mark_delete, len(ranges), position.properties)


def _position(where: str, mark_delete: Position | None, ranges: int, properties: Any) -> Document:
    return {
        "markDelete": str(mark_delete) if mark_delete else None,
        "individualDeletedRanges": ranges,
        "properties": dict(properties),
        "positionFrom": where,
    }


def _schema(store: MetadataStore, reader: LedgerReader, subject: Topic, root: str) -> Document | None:
    path = f"{SCHEMAS_ROOT}/{subject.schema_id}"
    try:
        node = explain.readable(store.read([path])[0], path)
        if node is None:
            return None
        versions = schema_versions(node.data)
    except LifecycleError as error:
        return {"schemaId": subject.schema_id, "path": path, "error": str(error)}
    entries = stored_references.last_entries(store, reader, [ledger for _, ledger, _ in versions], root)
    return {
        "schemaId": subject.schema_id,
        "path": path,
        "versions": [
            {"version": version, "ledgerId": ledger_id, "entryId": entry_id, **_schema_info(entry, entry_id)}
            for (version, ledger_id, entry_id), entry in zip(versions, entries, strict=True)
        ],
    }


def _schema_info(entry: Entry | LifecycleError | None, entry_id: int) -> Document:
    """Type and time of a version, out of its entry; schema ledgers hold a single one."""
    if isinstance(entry, LifecycleError):
        return {"error": str(entry)}
    if entry is None or entry.entry_id != entry_id:
        return {"error": "its entry is not the last one of its ledger"}
    try:
        info = schema.decode_info(schema.decode_entry(entry.payload).schema_data)
    except CorruptFormat as error:
        return {"error": str(error)}
    return {"type": info.type.name, "timestamp": info.timestamp, "deleted": info.deleted}


def parse_topic(text: str) -> Topic:
    """A full topic name, ``tenant/namespace/topic``, or a managed-ledger name. Raises CorruptFormat."""
    if "://" in text:
        return Topic.parse(text)
    if "/persistent/" in text:
        return Topic.from_managed_ledger(text)
    return Topic.parse(f"persistent://{text}")
