"""``offload``: plan the offload of topics or namespaces, and where the offload of a topic stands.

Belongs here: options, and the pages. Not here: what is done (``tiered/``), and doing it, which is the Dagster job
``offload``.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.options import AsJson, cluster_of

app = typer.Typer(help="Plan an offload, and see where one stands.", no_args_is_help=True)

READERS = 4
"""Threads that judge ledgers."""


@app.command()
def status(
    context: typer.Context,
    topic: Annotated[str, typer.Argument(help="A topic that is not partitioned, or one partition.")],
    as_json: AsJson = False,
) -> None:
    """NOT_RUN, RUNNING, SUCCESS or ERROR, by metadata and journal; loads no topic. Exit code 1 for ERROR."""
    from pulsar_lifecycle.errors import CorruptFormat, UsageError
    from pulsar_lifecycle.inspect.offload_status import OffloadState, offload_status
    from pulsar_lifecycle.model import Topic

    try:
        subject = Topic.parse(topic)
    except CorruptFormat as error:
        raise UsageError(f"TOPIC: {error}") from error
    found = offload_status(cluster_of(context), subject)
    first = found.first_not_offloaded
    if as_json:
        show.json_document(
            {
                "topic": str(found.topic),
                "status": found.state.value,
                "code": found.code.value,
                "lastError": found.detail if found.state is OffloadState.ERROR else "",
                "detail": found.detail,
                "at": found.at,
                "ledgers": found.ledgers,
                "offloaded": found.offloaded,
                "firstUnoffloadedMessage": first and str(first),
            }
        )
    else:
        show.facts(
            [
                ("topic", str(found.topic)),
                ("status", f"{found.state} ({found.code})"),
                ("detail", found.detail or None),
                ("at", show.moment(found.at) if found.at else None),
                ("offloaded", f"{found.offloaded} of {show.counted(found.ledgers, 'ledger')}"),
                ("first not offloaded", str(first) if first else None),
            ]
        )
    if found.state is OffloadState.ERROR:
        raise typer.Exit(1)


@app.command()
def plan(
    context: typer.Context,
    namespace: Annotated[
        list[str] | None, typer.Option("--namespace", help="All of this namespace; may be given several times.")
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="A topic with all its partitions, or one partition.")
    ] = None,
    upto: Annotated[
        str, typer.Option("--upto", help="LEDGER:ENTRY of the only topic: what is in ledgers before it goes.")
    ] = "",
    thresholds: Annotated[
        bool, typer.Option("--thresholds", help="Of the namespaces only what their thresholds say.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Plan an offload by order, from the newest scan; writes nothing to the cluster. Exit code 1 if report-only."""
    from pulsar_lifecycle.errors import UsageError
    from pulsar_lifecycle.metastore.fingerprint import cluster_fingerprint
    from pulsar_lifecycle.runs.tasks import LocalTasks
    from pulsar_lifecycle.scan.evidence import newest_epoch
    from pulsar_lifecycle.tiered.planning.offload_planning import make_offload_plan

    if not namespace and not topic:
        raise UsageError("offload plan: give --namespace or --topic")
    if thresholds and topic:
        raise UsageError("offload plan: --thresholds goes with --namespace")
    where = replace(cluster_of(context), given=LocalTasks(READERS))
    with where.ports(read_only=True) as ports:
        fingerprint = cluster_fingerprint(ports.store, where.settings.bookkeeper.ledgers_root)
    epoch = newest_epoch(where, fingerprint)
    found, rows = make_offload_plan(
        where, epoch, namespace or (), everything=not thresholds, topics=topic or (), upto=upto
    )
    if as_json:
        show.json_document({**found.to_json(), "rows": rows.to_pylist()})
    else:
        show.facts(
            [
                ("plan", found.plan_id),
                ("digest", found.digest),
                ("to offload", f"{show.counted(found.ledgers, 'ledger')}, {show.size(found.bytes)}"),
                ("to delete", f"{show.counted(found.copies, 'copy', 'copies')}, {show.size(found.copies_bytes)}"),
                ("left to brokers", found.left_to_broker or None),
                ("warnings", list(found.warnings)),
                ("report only", [gap.line for gap in found.gaps]),
                ("apply with", "job offload, configured with plan_id and digest" if found.actionable else None),
            ]
        )
    if not found.actionable:
        raise typer.Exit(1)
