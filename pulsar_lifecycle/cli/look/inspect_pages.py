"""What ``inspect`` prints of a z-node, a ledger, a topic or an offloaded ledger: which of it a table shows.

Not here: reading (``inspect/decoded``), JSON (``inspect_documents.py``).
"""

from __future__ import annotations

from typing import Any

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.look.inspect_documents import (
    broken_ledger_fields,
    cursor_error,
    entry_fields,
    head_fields,
    not_held,
    partition_documents,
    position_from,
    replica_fields,
    stat_fields,
    version_fields,
)
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.formats import offload_index
from pulsar_lifecycle.inspect.decoded.decoded_ledger import BrokenLedger, DecodedLedger
from pulsar_lifecycle.inspect.decoded.decoded_topic import (
    BrokenCursor,
    DecodedCursor,
    DecodedLedgerInfo,
    DecodedTopic,
    InBookKeeper,
    PartitionedTopic,
)
from pulsar_lifecycle.inspect.decoded.decoded_znode import DecodedNode, described
from pulsar_lifecycle.inspect.decoded.offload_objects import OffloadedPair
from pulsar_lifecycle.ports import Entry
from pulsar_lifecycle.scan.references import KINDS
from pulsar_lifecycle.values.topic_load import LoadReason, LoadState, TopicLoad


def print_znode(found: DecodedNode) -> None:
    """A z-node: its data, its Stat, its children."""
    show.text(f"{found.node.path} ({found.format})", "bold")
    value = found.value
    if found.broken is not None:
        show.facts([("error", found.broken), ("raw", f"0x{found.node.data.hex()}")])
    elif value is None:
        empty = {
            "managed-ledger": "empty: a topic that was never loaded",
            "ledger-metadata": "empty: a half-deleted ledger",
        }
        show.text(empty.get(found.format, "empty"))
    elif isinstance(value, dict):
        show.fields(value)
    else:
        show.text(str(value))
    show.text("Stat", "bold cyan")
    ids = ("czxid", "mzxid", "pzxid", "ephemeralOwner")  # as ZooKeeper's own shell prints them
    show.fields({name: f"{v:#x}" if name in ids else v for name, v in stat_fields(found.node.stat).items()}, 2)
    _print_children(list(found.children))


def _print_children(names: list[str]) -> None:
    if names:
        show.text(f"children ({len(names)})", "bold cyan")
        shown = names[:20] + ([f"... {len(names) - 20} more; --json has all of them"] if len(names) > 20 else [])
        for name in shown:
            show.text(f"  {name}")


def print_ledger(found: DecodedLedger | BrokenLedger) -> None:
    """A ledger; of a broken one what is wrong."""
    path, stat = found.shown.node.path, found.shown.node.stat
    if isinstance(found, BrokenLedger):
        wrong = broken_ledger_fields(found)
        show.facts([("ledger", found.ledger_id), ("path", path), ("error", wrong["error"])])
        show.facts([("raw", wrong["raw"] or None)])
        return
    metadata, owner, last = found.metadata, found.owner, found.last_entry
    quorums = (metadata["ensembleSize"], metadata["quorumSize"], metadata.get("ackQuorumSize", metadata["quorumSize"]))
    closed = metadata["state"] == "CLOSED"
    unread = f"not read: {last}" if isinstance(last, LifecycleError) else None
    show.facts(
        [
            ("ledger", found.ledger_id),
            ("state", metadata["state"]),
            ("size", show.size(metadata["length"]) if closed else "not known while it is not closed"),
            ("last entry", unread or (last.entry_id if isinstance(last, Entry) else -1)),
            ("made", f"{show.moment(stat.ctime)} ({show.ago(stat.ctime)})"),
            ("owner", owner.topic or "none that its tags name"),
            ("component", owner.component or "not tagged by Pulsar"),
            ("cursor", owner.cursor),
            ("schema", owner.schema_id),
            ("E / Qw / Qa", " / ".join(map(str, quorums))),
            ("under-replicated", found.under_replicated),
            ("z-node", f"{path}, version {stat.version}, czxid {stat.czxid:#x}"),
        ]
    )
    show.text("replicas", "bold cyan")
    show.documents([replica_fields(one) for one in found.replicas], 2)
    show.text("tags", "bold cyan")
    tags = [(tag["key"], tag.get("value", "")) for tag in metadata.get("customMetadata", [])]
    show.facts(tags or [("none", "")], 2)
    show.text("referred to by", "bold cyan")
    for one in found.references:
        show.text(f"  {one.referrer} ({KINDS[one.kind].name})")
    if not found.references:
        show.text("  nothing its owner has" if found.asked else "  not asked: its tags name no owner")
    for trouble in found.not_read:
        show.text(f"  not read: {trouble}", "bold red")
    show.text(f"`pulsar-lifecycle explain {found.ledger_id}` says whether it is kept, and why.", "dim")


def print_topic(found: DecodedTopic | PartitionedTopic) -> None:
    """A topic; of a partitioned one its partitions."""
    if isinstance(found, PartitionedTopic):
        show.text(f"{found.topic} is partitioned", "bold")
        show.documents(partition_documents(found))
        return
    stat = found.node.stat
    show.facts(
        [
            ("topic", found.topic),
            ("load state", _load_state(found.load)),
            ("terminated at", found.terminated),
            ("z-node", f"{found.node.path}, version {stat.version}"),
            ("last written", f"{show.moment(stat.mtime)} ({show.ago(stat.mtime)})"),
            ("properties", found.properties or None),
        ]
    )
    show.text(f"ledgers ({len(found.ledgers)})", "bold cyan")
    columns = ["ledger", "entries", "size", "closed", "offload", "in BookKeeper", "bookies"]
    rows = [_ledger_line(one) for one in found.ledgers]
    show.table(columns, rows[-show.ROWS :], 2)
    if len(rows) > show.ROWS:
        show.text(f"  ... {len(rows) - show.ROWS} older ones; --json has all of them")
    show.text(f"cursors ({len(found.cursors)})", "bold cyan")
    if found.cursors:
        columns = ["cursor", "mark-delete", "holes", "position from", "last active", "refers to", "error"]
        show.table(columns, [_cursor_line(one) for one in found.cursors], 2)
    show.text("schema", "bold cyan")
    if found.schema is None:
        show.text("  none")
    elif isinstance(found.schema.versions, LifecycleError):
        show.text(f"  {found.schema.path}: {found.schema.versions}", "bold red")
    else:
        show.documents([version_fields(one) for one in found.schema.versions], 2)


def _load_state(load: TopicLoad) -> str:
    """What no broker's list says is not known, and every other reason to call a topic loaded is caution."""
    unsure = load.state is LoadState.LOADED and load.reason is not LoadReason.LISTED
    return f"{'unknown, counts as loaded' if unsure else load.state.replace('_', ' ')}: {load.text}"


def print_pair(found: OffloadedPair) -> None:
    """Both objects of an offloaded ledger, and what is wrong with them."""
    where = found.location
    show.facts(
        [
            ("ledger", where.ledger_id),
            ("uuid", where.uuid),
            ("bucket", where.bucket),
            ("pair", "whole, as far as heads, index and both ends tell" if found.whole else "not whole"),
        ]
    )
    for problem in found.problems:
        show.text(str(problem), "bold red")
    for role, key, head in (("data", where.data_key, found.data), ("index", where.index_key, found.index)):
        show.text(f"{role} object", "bold cyan")
        show.fields(head_fields(key, head), 2)
    if found.offload_index is not None:
        show.text("index", "bold cyan")
        index = described("offload-index", offload_index.encode(found.offload_index))
        blocks = index.pop("blocks")
        show.fields(index, 2)
        show.text(f"blocks ({len(blocks)})", "bold cyan")
        show.table(list(blocks[0]), [list(block.values()) for block in blocks[: show.ROWS]], 2)
        if len(blocks) > show.ROWS:
            show.text(f"  ... {len(blocks) - show.ROWS} more; --json has all of them")
    for entry, title in ((found.first_entry, "first entry"), (found.last_entry, "last entry")):
        if entry is not None:
            show.text(title, "bold cyan")
            show.fields(entry_fields(entry), 2)


def _ledger_line(one: DecodedLedgerInfo) -> list[Any]:
    item, held = one.listed, one.held
    entries, bytes_ = item.get("entries") or None, item.get("size") or None
    if isinstance(held, InBookKeeper):
        if held.closed:
            entries, bytes_ = entries or held.metadata.last_entry_id + 1, bytes_ or held.metadata.length
        elif not isinstance(held.last_entry, LifecycleError):
            entries = entries or (0 if held.last_entry is None else held.last_entry.entry_id + 1)
    offload = item.get("offloadContext", {})
    state = ""
    if offload.get("complete"):
        state = "complete" + (", BookKeeper copy deleted" if offload.get("bookkeeperDeleted") else "")
    elif offload.get("uidMsb") is not None or offload.get("timestamp"):
        state = "started, not complete"
    return [
        one.ledger_id,
        entries,
        show.size(bytes_) if bytes_ is not None else "",
        show.moment(item["timestamp"]) if item.get("timestamp") else "",
        state,
        held.metadata.state.name if isinstance(held, InBookKeeper) else not_held(held),
        ", ".join(held.metadata.segments[-1].bookies) if isinstance(held, InBookKeeper) else "",
    ]


def _cursor_line(one: DecodedCursor | BrokenCursor) -> list[Any]:
    if isinstance(one, BrokenCursor):
        return [one.name, "", "", "", "", "", one.why]
    position = one.position
    refers = [f"cursor ledger {one.ledger_id}"] if one.ledger_id >= 0 else []
    refers += [f"{name} {value}" for name, value in position.properties.items()]
    refers += [f"{name.rpartition('.')[2]} {value}" for name, value in one.properties.items()]
    return [
        one.name,
        position.mark_delete,
        position.ranges or "",
        position_from(one),
        show.moment(one.last_active) if one.last_active else "",
        ", ".join(refers),
        "" if one.unread is None else cursor_error(one.ledger_id, one.unread),
    ]
