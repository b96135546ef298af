"""``inspect znode | ledger | topic | object | file``: what cluster, bucket, or a dumped file holds, decoded.

Belongs here: which of it a table shows. Not here: reading and decoding (``inspect/describe.py`` and
``inspect/offload_objects.py``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.options import AsJson, brokers_of, cluster_of

if TYPE_CHECKING:
    from pulsar_lifecycle.model import Topic

MAX_LEDGER_ID = 2**63 - 1

app = typer.Typer(
    help="Decode what the cluster holds. Loads no topic, recovers no ledger, writes nothing.", no_args_is_help=True
)


@app.command()
def znode(
    context: typer.Context,
    path: Annotated[str, typer.Argument(help="Path of a z-node, such as /managed-ledgers/T/NS/persistent/TOPIC.")],
    as_json: AsJson = False,
) -> None:
    """A z-node: its Stat, its children, and its data decoded by where it lies. Exit code 1 if it does not decode."""
    from pulsar_lifecycle.errors import UsageError
    from pulsar_lifecycle.inspect import describe as inspection

    if not path.startswith("/"):
        raise UsageError(f"expected an absolute path, found {path!r}")
    where = cluster_of(context)
    with where.ports(read_only=True) as ports:
        root = where.settings.bookkeeper.ledgers_root
        document = inspection.znode(ports.store, path.rstrip("/") or "/", root)
    if as_json:
        show.json_document(document)
    else:
        _print_znode(document)
    if "error" in document:
        raise typer.Exit(1)


@app.command()
def ledger(
    context: typer.Context,
    ledger_id: Annotated[int, typer.Argument(min=0, max=MAX_LEDGER_ID)],
    as_json: AsJson = False,
) -> None:
    """A ledger: metadata, owner, replicas, last entry, and what its owner says of it. Exit code 1 if it is broken."""
    from pulsar_lifecycle.inspect import describe as inspection

    where = cluster_of(context)
    with where.ports(read_only=True) as ports:
        root = where.settings.bookkeeper.ledgers_root
        document = inspection.ledger(ports.store, ports.reader, ledger_id, root)
    if as_json:
        show.json_document(document)
    else:
        _print_ledger(document)
    if "error" in document:
        raise typer.Exit(1)


@app.command()
def topic(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="persistent://tenant/namespace/topic, or tenant/namespace/topic.")],
    as_json: AsJson = False,
) -> None:
    """A topic: its ledgers as topic and BookKeeper know them, cursors, schema, and whether a broker has it loaded.

    Exit code 1 if any of it could not be read.
    """
    from pulsar_lifecycle.inspect import describe as inspection

    subject = topic_named(name)
    where = cluster_of(context)
    brokers = brokers_of(where)
    with where.ports(read_only=True) as ports:
        now, root = ports.clock.now_ms(), where.settings.bookkeeper.ledgers_root
        document = inspection.topic(ports.store, ports.reader, brokers, subject, now, root)
    if as_json:
        show.json_document(document)
    elif "partitions" in document:
        show.text(f"{document['topic']} is partitioned", "bold")
        show.documents(document["partitions"])
    else:
        _print_topic(document)
    if _unread(document):
        raise typer.Exit(1)


@app.command()
def delayed(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="persistent://tenant/namespace/topic, or tenant/namespace/topic.")],
    subscription: Annotated[str, typer.Option(help="Only this one. [default: all]", show_default=False)] = "",
    whole: Annotated[bool, typer.Option("--whole", help="Subscriptions that have no buckets, too.")] = False,
    as_json: AsJson = False,
) -> None:
    """The delayed index of a topic: its buckets, what is wrong with them, how many messages are due when.

    Reads the topic's entries from where the slowest of these subscriptions stands. What brokers have in memory it
    cannot see. Exit code 1 for a finding.
    """
    from pulsar_lifecycle.cli.look.delayed_index import print_index
    from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
    from pulsar_lifecycle.inspect.delayed import delayed_index

    subject = topic_named(name)
    where = cluster_of(context)
    with where.ports(read_only=True) as ports:
        now = ports.clock.now_ms()
        root = where.settings.bookkeeper.ledgers_root
        broker = DelayedIndexSettings.from_settings(where.settings.delayed_index.brokers)
        document = delayed_index(ports, subject, root, now, broker, subscription, whole=whole)
    if as_json:
        show.json_document(document)
    else:
        print_index(document)
    if document["findings"]:
        raise typer.Exit(1)


@app.command("object")
def object_(
    context: typer.Context,
    key: Annotated[str, typer.Argument(help="Key of the data or the index object: <uuid>-ledger-<id>[-index].")],
    bucket: Annotated[
        str, typer.Option(help="One of object_store.buckets. [default: the only one]", show_default=False)
    ] = "",
    as_json: AsJson = False,
) -> None:
    """An offloaded ledger: both objects, its index, its first and last entry. Exit code 1 if it is not whole."""
    from pulsar_lifecycle.errors import UsageError
    from pulsar_lifecycle.inspect import offload_objects

    where = cluster_of(context)
    declared = where.settings.object_store
    with where.ports(read_only=True) as ports:
        objects, names = ports.objects, declared.buckets if declared else ()
        if not bucket and len(names) != 1:
            raise UsageError(f"give --bucket, one of {', '.join(names)}")
        document = offload_objects.offloaded(objects, bucket or "".join(names), key)
    if as_json:
        show.json_document(document)
    else:
        _print_object(document)
    if not document["whole"]:
        raise typer.Exit(1)


@app.command()
def file(
    path: Annotated[
        Path, typer.Argument(help="A dumped z-node, entry payload or offload object.", exists=True, dir_okay=False)
    ],
    format_name: Annotated[
        str,
        typer.Option(
            "--as",
            metavar="FORMAT",
            help="managed-ledger, cursor, cursor-entry, ledger-metadata, schema-locator, schema-entry, "
            "bucket-metadata, bucket-segment, message, offload-data or offload-index.",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """A dumped file, decoded strictly: what does not decode is refused with the byte where it went wrong."""
    from pulsar_lifecycle.errors import CorruptFormat
    from pulsar_lifecycle.inspect import describe as inspection

    data = path.read_bytes()
    document = inspection.described(format_name, data)
    if not data:  # to Protobuf a message without fields
        raise CorruptFormat(format_name, 0, "data, and the file is empty")
    if as_json:
        show.json_document(document)
    else:
        show.fields(document)


# ------------------------------------------------------------------------------------------------------------ tables


def _print_znode(document: dict[str, Any]) -> None:
    show.text(f"{document['path']} ({document['format']})", "bold")
    value = document["value"]
    if "error" in document:
        show.facts([("error", document["error"]), ("raw", document["raw"])])
    elif value is None:
        empty = {
            "managed-ledger": "empty: a topic that was never loaded",
            "ledger-metadata": "empty: a half-deleted ledger",
        }
        show.text(empty.get(document["format"], "empty"))
    elif isinstance(value, dict):
        show.fields(value)
    else:
        show.text(str(value))
    show.text("Stat", "bold cyan")
    ids = ("czxid", "mzxid", "pzxid", "ephemeralOwner")  # as ZooKeeper's own shell prints them
    show.fields({name: f"{v:#x}" if name in ids else v for name, v in document["stat"].items()}, 2)
    _print_children(document["children"])


def _print_children(names: list[str]) -> None:
    if names:
        show.text(f"children ({len(names)})", "bold cyan")
        shown = names[:20] + ([f"... {len(names) - 20} more; --json has all of them"] if len(names) > 20 else [])
        for name in shown:
            show.text(f"  {name}")


def _print_ledger(document: dict[str, Any]) -> None:
    metadata = document["metadata"]
    if "error" in document:
        show.facts([("ledger", document["ledgerId"]), ("path", document["path"]), ("error", document["error"])])
        show.facts([("raw", document["raw"] or None)])
        return
    last = document["lastEntry"]
    owner = document["owner"]
    stat = document["stat"]
    quorums = (metadata["ensembleSize"], metadata["quorumSize"], metadata.get("ackQuorumSize", metadata["quorumSize"]))
    closed = metadata["state"] == "CLOSED"
    show.facts(
        [
            ("ledger", document["ledgerId"]),
            ("state", metadata["state"]),
            ("size", show.size(metadata["length"]) if closed else "not known while it is not closed"),
            ("last entry", f"not read: {last['error']}" if "error" in last else last["entryId"]),
            ("made", f"{show.moment(stat['ctime'])} ({show.ago(stat['ctime'])})"),
            ("owner", owner["topic"] or "none that its tags name"),
            ("component", owner["component"] or "not tagged by Pulsar"),
            ("cursor", owner["cursor"]),
            ("schema", owner["schemaId"]),
            ("E / Qw / Qa", " / ".join(map(str, quorums))),
            ("under-replicated", document["underReplicated"]),
            ("z-node", f"{document['path']}, version {stat['version']}, czxid {stat['czxid']:#x}"),
        ]
    )
    show.text("replicas", "bold cyan")
    show.documents(document["replicas"], 2)
    show.text("tags", "bold cyan")
    tags = [(tag["key"], tag.get("value", "")) for tag in metadata.get("customMetadata", [])]
    show.facts(tags or [("none", "")], 2)
    show.text("referred to by", "bold cyan")
    for found in document["references"]:
        show.text(f"  {found['referrer']} ({found['name']})")
    if not document["references"]:
        show.text("  nothing its owner has" if document["asked"] else "  not asked: its tags name no owner")
    for trouble in document["notRead"]:
        show.text(f"  not read: {trouble}", "bold red")
    show.text(f"`pulsar-lifecycle explain {document['ledgerId']}` says whether it is kept, and why.", "dim")


def _print_topic(document: dict[str, Any]) -> None:
    stat = document["stat"]
    show.facts(
        [
            ("topic", document["topic"]),
            ("load state", _load_state(document)),
            ("terminated at", document["terminatedPosition"]),
            ("z-node", f"{document['path']}, version {stat['version']}"),
            ("last written", f"{show.moment(stat['mtime'])} ({show.ago(stat['mtime'])})"),
            ("properties", document["properties"] or None),
        ]
    )
    show.text(f"ledgers ({len(document['ledgerInfo'])})", "bold cyan")
    columns = ["ledger", "entries", "size", "closed", "offload", "in BookKeeper", "bookies"]
    rows = [_ledger_line(item) for item in document["ledgerInfo"]]
    show.table(columns, rows[-show.ROWS :], 2)
    if len(rows) > show.ROWS:
        show.text(f"  ... {len(rows) - show.ROWS} older ones; --json has all of them")
    show.text(f"cursors ({len(document['cursors'])})", "bold cyan")
    if document["cursors"]:
        columns = ["cursor", "mark-delete", "holes", "position from", "last active", "refers to", "error"]
        show.table(columns, [_cursor_line(item) for item in document["cursors"]], 2)
    schema = document["schema"]
    show.text("schema", "bold cyan")
    if schema is None:
        show.text("  none")
    elif "error" in schema:
        show.text(f"  {schema['path']}: {schema['error']}", "bold red")
    else:
        show.documents(schema["versions"], 2)


def _unread(document: dict[str, Any]) -> bool:
    """Whether anything of a topic, or of its partitions, could not be read; a copy that was released may be gone."""
    schema = document.get("schema") or {}
    parts = [*document.get("partitions", []), *document.get("cursors", []), schema, *schema.get("versions", [])]
    for item in document.get("ledgerInfo", []):
        if not item.get("offloadContext", {}).get("bookkeeperDeleted"):
            parts.append(item["bookkeeper"])
    return any("error" in part for part in parts)


def _load_state(document: dict[str, Any]) -> str:
    """What no broker's list says is not known, and every other reason to call a topic loaded is caution."""
    from pulsar_lifecycle.records.topic_load import LoadReason, LoadState

    state = document["loadState"]
    unsure = state == LoadState.LOADED and document["loadReason"] != LoadReason.LISTED
    return f"{'unknown, counts as loaded' if unsure else state.replace('_', ' ')}: {document['loadText']}"


def _print_object(document: dict[str, Any]) -> None:
    show.facts(
        [
            ("ledger", document["ledgerId"]),
            ("uuid", document["uuid"]),
            ("bucket", document["bucket"]),
            ("pair", "whole, as far as heads, index and both ends tell" if document["whole"] else "not whole"),
        ]
    )
    for problem in document["problems"]:
        show.text(problem, "bold red")
    for role in ("data", "index"):
        show.text(f"{role} object", "bold cyan")
        show.fields(document[role], 2)
    if "offloadIndex" in document:
        show.text("index", "bold cyan")
        blocks = document["offloadIndex"].pop("blocks")
        show.fields(document["offloadIndex"], 2)
        show.text(f"blocks ({len(blocks)})", "bold cyan")
        show.table(list(blocks[0]), [list(block.values()) for block in blocks[: show.ROWS]], 2)
        if len(blocks) > show.ROWS:
            show.text(f"  ... {len(blocks) - show.ROWS} more; --json has all of them")
    for name, title in (("firstEntry", "first entry"), ("lastEntry", "last entry")):
        if document.get(name):
            show.text(title, "bold cyan")
            show.fields(document[name], 2)


def _ledger_line(item: dict[str, Any]) -> list[Any]:
    held = item["bookkeeper"]
    closed = held.get("state") == "CLOSED"
    entries = item.get("entries") or (held["lastEntryId"] + 1 if "lastEntryId" in held else None)
    bytes_ = item.get("size") or (held["length"] if closed else None)
    offload = item.get("offloadContext", {})
    state = ""
    if offload.get("complete"):
        state = "complete" + (", BookKeeper copy deleted" if offload.get("bookkeeperDeleted") else "")
    elif offload.get("uidMsb") is not None or offload.get("timestamp"):
        state = "started, not complete"
    return [
        item["ledgerId"],
        entries,
        show.size(bytes_) if bytes_ is not None else "",
        show.moment(item["timestamp"]) if item.get("timestamp") else "",
        state,
        held.get("state", held.get("error")),
        ", ".join(held.get("bookies", [])),
    ]


def _cursor_line(item: dict[str, Any]) -> list[Any]:
    if "markDelete" not in item:
        return [item["name"], "", "", "", "", "", item["error"]]
    refers = [f"cursor ledger {item['cursorsLedgerId']}"] if item["cursorsLedgerId"] >= 0 else []
    refers += [f"{name} {value}" for name, value in item["properties"].items()]
    refers += [f"{name.rpartition('.')[2]} {value}" for name, value in item["cursorProperties"].items()]
    active = show.moment(item["lastActive"]) if item["lastActive"] else ""
    holes = item["individualDeletedRanges"] or ""
    return [
        item["name"],
        item["markDelete"],
        holes,
        item["positionFrom"],
        active,
        ", ".join(refers),
        item.get("error", ""),
    ]


def topic_named(name: str) -> Topic:
    """A topic by its name. Raises UsageError for what is none."""
    from pulsar_lifecycle.errors import CorruptFormat, UsageError
    from pulsar_lifecycle.inspect.describe import parse_topic

    try:
        return parse_topic(name)
    except CorruptFormat as error:
        raise UsageError(f"no topic name: expected {error.expected}") from None
