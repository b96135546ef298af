"""``delete-records``: everything of partitions before a position, a time or their end; a plan first, then its answer.

Belongs here: options to a request, and the pages. Not here: what is done (``delete_records/``). In the shape of Kafka's
``kafka-delete-records``; without ``--apply`` nothing is written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.options import AsJson, cluster_of

if TYPE_CHECKING:
    from pulsar_lifecycle.delete_records.offset_file import RequestedOffset
    from pulsar_lifecycle.delete_records.request import DeleteRecordsResult, TopicPartition
    from pulsar_lifecycle.runs.cluster import Cluster
    from pulsar_lifecycle.values.plans.plan_summary import PlanSummary

READERS = 4
"""Threads that read entries for times, and that scan and delete with --finish."""
A_YEAR = 31_536_000.0
"""Seconds; nobody waits longer."""


def delete_records(
    context: typer.Context,
    offset_json_file: Annotated[
        Path | None,
        typer.Option(
            "--offset-json-file",
            help='As kafka-delete-records takes it: {"partitions": [{"topic", "partition", "offset"}], "version": 1}.',
        ),
    ] = None,
    topic: Annotated[
        list[str] | None, typer.Option("--topic", help="A topic with all its partitions, or one partition.")
    ] = None,
    before: Annotated[
        str | None,
        typer.Option("--before", help="LEDGER:ENTRY, LEDGER:ENTRY:BATCH-INDEX, @TIME, or -1 for the end; for --topic."),
    ] = None,
    apply: Annotated[
        tuple[str, str] | None, typer.Option("--apply", metavar="PLAN DIGEST", help="Delete what this plan says.")
    ] = None,
    move_cursors: Annotated[
        bool, typer.Option("--move-cursors", help="Move subscriptions below a position up to it.")
    ] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Refuse what would leave messages below a position readable.")
    ] = False,
    any_order: Annotated[
        bool, typer.Option("--any-order", help="Take a time although publish times go back within what goes.")
    ] = False,
    no_undo: Annotated[bool, typer.Option("--no-undo", help="No undo brings back what goes.")] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=0.001, max=A_YEAR, help="Seconds for each broker, for all its partitions.")
    ] = 300.0,
    wait: Annotated[
        float, typer.Option("--wait", min=0.0, max=A_YEAR, help="Seconds to wait until everything is proven gone.")
    ] = 0.0,
    wait_for_bookies: Annotated[
        bool, typer.Option("--wait-for-bookies", help="Every bookie must say that it has no entry of what went.")
    ] = False,
    finish: Annotated[
        bool,
        typer.Option(
            "--finish", help="Scan and delete meanwhile, for --wait seconds or an hour, and end with the answer."
        ),
    ] = False,
    collect: Annotated[
        bool, typer.Option("--collect", help="With --wait-for-bookies and --finish: have the bookies collect.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Delete everything before a position: plan it, then --apply the plan. Exit code 1 if a partition has an error."""
    from pulsar_lifecycle.delete_records.apply_run import FINISHED_WITHIN, Patience
    from pulsar_lifecycle.delete_records.request import Options
    from pulsar_lifecycle.errors import UsageError
    from pulsar_lifecycle.runs.tasks import LocalTasks

    asked = [offset_json_file is not None, bool(topic) or before is not None, apply is not None]
    if asked.count(True) != 1:
        raise UsageError("delete-records: give one of --offset-json-file, --topic with --before, --apply")
    where = replace(cluster_of(context), given=LocalTasks(READERS))
    if apply is not None:
        if move_cursors or exact or any_order or no_undo:
            raise UsageError(
                "delete-records: --move-cursors, --exact, --any-order and --no-undo belong to the plan: make one anew"
            )
        wait = wait or (FINISHED_WITHIN if finish else 0.0)
        _apply(where, *apply, Patience(timeout, wait, wait_for_bookies, finish, collect), as_json=as_json)
    elif finish or wait or wait_for_bookies or collect:
        raise UsageError(
            "delete-records: --finish, --wait, --wait-for-bookies and --collect belong to --apply: plan without them"
        )
    else:
        requested = _requested(offset_json_file, topic or [], before)
        _plan(where, requested, Options(move_cursors, exact, any_order, no_undo), as_json=as_json)


def _requested(file: Path | None, topics: Sequence[str], before: str | None) -> list[RequestedOffset]:
    from pulsar_lifecycle.delete_records.offset_file import RequestedOffset, parse_offset_file
    from pulsar_lifecycle.delete_records.request import parse_offset, parse_topic
    from pulsar_lifecycle.errors import UsageError

    if file is not None:
        try:
            return parse_offset_file(file.read_text(encoding="utf-8-sig"), str(file))
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{file}: cannot be read: {error}") from error
    if not topics or before is None:
        raise UsageError("delete-records: --topic and --before go together")
    try:
        offset = parse_offset(before)
    except UsageError as error:
        raise UsageError(f"--before: {error}") from error
    found: list[RequestedOffset] = []
    for name in topics:
        try:
            found.append(RequestedOffset(parse_topic(name), None, offset, "--topic"))
        except UsageError as error:
            raise UsageError(f"--topic: {error}") from error
    return found


def _plan(where: Cluster, requested: Sequence[RequestedOffset], options: Any, *, as_json: bool) -> None:
    from pulsar_lifecycle.delete_records.records_planning import plan_delete_records, run_config
    from pulsar_lifecycle.delete_records.requested_partitions import not_asked_for, requested_partitions

    with where.ports(read_only=True) as ports:
        found = requested_partitions(ports.store, ports.configuration, requested)
    summary, rows = plan_delete_records(where, found.offsets, options, unread=found.unread)
    listed = sorted(rows.to_pylist(), key=lambda row: row["topic"])
    if as_json:
        applied = {"run_config": run_config(summary), "partitions": listed, "not_asked_for": [*map(str, found.others)]}
        show.json_document({**summary.to_json(), **applied})
    else:
        _print_plan(summary, listed, not_asked_for(found.others))
    if any(row["error"] for row in listed) or not summary.actionable:
        raise typer.Exit(1)


def _print_plan(summary: PlanSummary, rows: Sequence[Mapping[str, Any]], others: str) -> None:
    from pulsar_lifecycle.values.plans.records_table import COLUMNS, RecordsTable, undo_of

    going = [row for row in rows if row["error"] is None]
    shown = RecordsTable(show.size, show.moment)
    show.table(COLUMNS, [shown.line(row) for row in rows])
    for row in rows:
        for note in shown.notes(row):
            show.text(f"{row['topic']}: {note}")
    if others:
        show.text(others)
    show.facts(
        [
            ("plan", summary.plan_id),
            ("digest", summary.digest),
            ("partitions", f"{len(rows)}, {len(rows) - len(going)} with an error"),
            ("frees", show.size(summary.physical_bytes)),
            ("undo", undo_of(rows)),
            ("gaps", [gap.line for gap in summary.gaps]),
        ]
    )
    if going and summary.actionable:
        show.text("to delete it, for good once the bookies have collected:", "bold cyan")
        show.text(f"  {_command(summary.plan_id, summary.digest)}")


def _command(plan_id: str, digest: str) -> str:
    return f"pulsar-lifecycle delete-records --apply {plan_id} {digest}"


def _apply(where: Cluster, plan_id: str, digest: str, patience: Any, *, as_json: bool) -> None:
    from pulsar_lifecycle.delete_records.apply_run import apply_delete_records
    from pulsar_lifecycle.runs.caps import Order

    run_id = f"delete-records-{where.ids.token(4)}"
    try:
        results = apply_delete_records(
            where, run_id, Order(plan_id, digest), dry_run=False, patience=patience, progress=show.note
        )
    except KeyboardInterrupt:
        show.note(f"interrupted: with the same options this goes on from there: {_command(plan_id, digest)}")
        raise
    if as_json:
        document = [_document(topic, result) for topic, result in results.items()]
        show.json_document({"plan_id": plan_id, "run_id": run_id, "partitions": document})
    else:
        _print_results(results)
    if any(result.error for result in results.values()):
        raise typer.Exit(1)


def _document(topic: TopicPartition, result: DeleteRecordsResult) -> dict[str, Any]:
    watermark = result.low_watermark if isinstance(result.low_watermark, int) else str(result.low_watermark)
    first = str(result.first_readable) if result.first_readable else None
    return {
        "partition": str(topic),
        "low_watermark": watermark,
        "first_readable": first,
        "error": result.error,
        "code": result.code or None,
        "reason": result.reason or None,
        "remaining": [asdict(one) for one in result.remaining],
        "lost_copies": result.lost_copies,
        "not_asked": list(result.not_asked),
    }


def _print_results(results: Mapping[TopicPartition, DeleteRecordsResult]) -> None:
    from pulsar_lifecycle.delete_records.request import NotAsked
    from pulsar_lifecycle.values.plans.records_table import LOST

    show.table(
        ["partition", "low watermark", "first readable", "error"],
        [
            (str(topic), str(one.low_watermark), str(one.first_readable or ""), one.error)
            for topic, one in results.items()
        ],
    )
    for topic, result in results.items():
        if said := result.reason or result.readable_below:
            show.text(f"{topic}: {said}")
        if result.lost_copies:
            show.text(f"{topic}: {LOST.format(result.lost_copies)}")
    not_asked = {
        NotAsked.TRIMMED: "what brokers trimmed and deleted before the plan, and kept scans do not show",
        NotAsked.COPIES: "copies of what brokers trimmed since the plan, if it was offloaded in between",
        NotAsked.OTHERS: "what another installation deleted below the low watermark that was there before",
    }
    for code, text in not_asked.items():
        if topics := [topic for topic, result in results.items() if code in result.not_asked]:
            show.text(f"nobody was asked for {text}: {show.counted(len(topics), 'partition')}, the first {topics[0]}")
