"""``inspect znode | ledger | topic | object | file``: what cluster, bucket, or a dumped file holds, decoded.

Belongs here: arguments and exit codes. Not here: reading and decoding (``inspect/decoded``), JSON
(``inspect_documents.py``), tables (``inspect_pages.py``).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    from pulsar_lifecycle.cli.look.inspect_documents import znode_document
    from pulsar_lifecycle.cli.look.inspect_pages import print_znode
    from pulsar_lifecycle.errors import UsageError
    from pulsar_lifecycle.inspect.decoded.decoded_znode import decoded_znode

    if not path.startswith("/"):
        raise UsageError(f"expected an absolute path, found {path!r}")
    where = cluster_of(context)
    with where.ports(read_only=True) as ports:
        root = where.settings.bookkeeper.ledgers_root
        found = decoded_znode(ports.store, path.rstrip("/") or "/", root)
    if as_json:
        show.json_document(znode_document(found))
    else:
        print_znode(found)
    if found.broken is not None:
        raise typer.Exit(1)


@app.command()
def ledger(
    context: typer.Context,
    ledger_id: Annotated[int, typer.Argument(min=0, max=MAX_LEDGER_ID)],
    as_json: AsJson = False,
) -> None:
    """A ledger: metadata, owner, replicas, last entry, and what its owner says of it. Exit code 1 if it is broken."""
    from pulsar_lifecycle.cli.look.inspect_documents import ledger_document
    from pulsar_lifecycle.cli.look.inspect_pages import print_ledger
    from pulsar_lifecycle.inspect.decoded.decoded_ledger import BrokenLedger, decoded_ledger

    where = cluster_of(context)
    with where.ports(read_only=True) as ports:
        root = where.settings.bookkeeper.ledgers_root
        found = decoded_ledger(ports.store, ports.reader, ledger_id, root)
    if as_json:
        show.json_document(ledger_document(found))
    else:
        print_ledger(found)
    if isinstance(found, BrokenLedger):
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
    from pulsar_lifecycle.cli.look.inspect_documents import topic_document
    from pulsar_lifecycle.cli.look.inspect_pages import print_topic
    from pulsar_lifecycle.inspect.decoded.decoded_topic import decoded_topic

    subject = topic_named(name)
    where = cluster_of(context)
    brokers = brokers_of(where)
    with where.ports(read_only=True) as ports:
        now, root = ports.clock.now_ms(), where.settings.bookkeeper.ledgers_root
        found = decoded_topic(ports.store, ports.reader, brokers, subject, now, root)
    if as_json:
        show.json_document(topic_document(found))
    else:
        print_topic(found)
    if found.unread:
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
    from pulsar_lifecycle.cli.look.inspect_documents import index_document
    from pulsar_lifecycle.delayed_index.broker_settings import DelayedIndexSettings
    from pulsar_lifecycle.inspect.decoded.delayed import delayed_index

    subject = topic_named(name)
    where = cluster_of(context)
    with where.ports(read_only=True) as ports:
        now = ports.clock.now_ms()
        root = where.settings.bookkeeper.ledgers_root
        broker = DelayedIndexSettings.from_settings(where.settings.delayed_index.brokers)
        found = delayed_index(ports, subject, root, now, broker, subscription, whole=whole)
    if as_json:
        show.json_document(index_document(found))
    else:
        print_index(found)
    if found.findings:
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
    from pulsar_lifecycle.cli.look.inspect_documents import pair_document
    from pulsar_lifecycle.cli.look.inspect_pages import print_pair
    from pulsar_lifecycle.errors import UsageError
    from pulsar_lifecycle.inspect.decoded.offload_objects import offloaded

    where = cluster_of(context)
    declared = where.settings.object_store
    with where.ports(read_only=True) as ports:
        objects, names = ports.objects, declared.buckets if declared else ()
        if not bucket and len(names) != 1:
            raise UsageError(f"give --bucket, one of {', '.join(names)}")
        found = offloaded(objects, bucket or "".join(names), key)
    if as_json:
        show.json_document(pair_document(found))
    else:
        print_pair(found)
    if not found.whole:
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
    from pulsar_lifecycle.inspect.decoded.decoded_znode import described

    data = path.read_bytes()
    document = described(format_name, data)
    if not data:  # to Protobuf a message without fields
        raise CorruptFormat(format_name, 0, "data, and the file is empty")
    if as_json:
        show.json_document(document)
    else:
        show.fields(document)


def topic_named(name: str) -> Topic:
    """A topic by its name. Raises UsageError for what is none."""
    from pulsar_lifecycle.errors import CorruptFormat, UsageError
    from pulsar_lifecycle.inspect.decoded.decoded_znode import parse_topic

    try:
        return parse_topic(name)
    except CorruptFormat as error:
        raise UsageError(f"no topic name: expected {error.expected}") from None
