"""``storage``, ``open-ledgers``, ``backlog`` and ``bookies``: where the disk goes, as the newest reports say.

Belongs here: the pages. Not here: making a report, which is the Dagster job ``report_storage``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.options import AsJson, cluster_of

if TYPE_CHECKING:
    import pyarrow as pa

Row = dict[str, Any]
Rows = Sequence[Row]
Columns = Mapping[str, Callable[[Row, int], Any]]
"""How a cell is made of a row, at a time (ms), by the column's head."""

TOPICS = 20
NAMESPACES = 20


def storage(
    context: typer.Context,
    namespace: Annotated[
        list[str] | None, typer.Option("--namespace", help="Only this namespace; may be given several times.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Why ledgers are on the bookies' disks, by reason, namespace and topic, as the newest report says.

    A namespace has rows of its own for its largest topics; the others are summed up. Exit code 2 for a namespace that
    the report does not have.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from pulsar_lifecycle.errors import UsageError
    from pulsar_lifecycle.lifecycle.held.held_run import open_on_disk
    from pulsar_lifecycle.lifecycle.storage_run import by_reason, newest_report, totals

    where = cluster_of(context)
    epoch, rows = newest_report(where.lake, where.settings.cluster)
    if namespace:
        known = set(rows.column("namespace").unique().to_pylist())
        if missing := [one for one in namespace if one not in known]:
            raise UsageError(f"the report of scan {epoch.epoch_id} has no namespace {missing[0]}")
        rows = rows.filter(pc.is_in(rows.column("namespace"), pa.array(namespace, pa.string())))
    whole, sums = totals(rows), by_reason(rows)
    opened, opened_unsized, opened_bytes = open_on_disk(where.lake, epoch.epoch_id, namespace or ())
    if as_json:
        facts = {"ledgers": whole.ledgers, "bytes": whole.bytes, "physical_bytes": whole.physical_bytes}
        scan = {"epoch_id": epoch.epoch_id, "scanned_at": epoch.started_at, "covered": epoch.covered}
        beside = {
            "open_ledgers": {"ledgers": opened, "ledgers_unsized": opened_unsized, "physical_bytes": opened_bytes}
        }
        show.json_document({**scan, **facts, **beside, "by_reason": dict(sums), "rows": rows.to_pylist()})
        return
    begun = show.ago(epoch.started_at, where.clock.now_ms())
    unsized = sum(one["ledgers_unsized"] for one in sums.values())
    sized = show.counted(whole.ledgers - unsized, "ledger")
    show.text(
        f"{show.size(whole.physical_bytes)} on disk in {sized}{_unsized(unsized)}, by scan "
        f"{epoch.epoch_id}, {begun}{'' if epoch.covered else ', which is not covered'}"
    )
    show.table(
        ["reason", "ledgers", "of unknown size", "bytes", "on disk"],
        (
            (reason, one["ledgers"], one["ledgers_unsized"] or None, *map(show.size, _sizes(one)))
            for reason, one in sums.items()
        ),
    )
    if opened:
        sized = show.counted(opened - opened_unsized, "open ledger") + _unsized(opened_unsized)
        show.text(
            f"beside these, by the bookies: {show.size(opened_bytes)} on disk in {sized}, "
            "whose size no metadata has: `pulsar-lifecycle open-ledgers`"
        )
    if not namespace:
        show.text()
        _print_namespaces(rows)
    show.text()
    _print_topics(rows)


def _unsized(ledgers: int) -> str:
    return f" and {show.counted(ledgers, 'ledger')} of unknown size" if ledgers else ""


def open_ledgers(
    context: typer.Context,
    expired: Annotated[bool, typer.Option("--expired", help="Only what is past its retention by its age.")] = False,
    as_json: AsJson = False,
) -> None:
    """Last ledgers that were never closed, the largest first, and which settings of rollover leave them open."""
    from pulsar_lifecycle.lifecycle.held.held_run import OPEN_TABLE

    def head(rows: Rows) -> str:
        sizes = [row["bytes"] for row in rows if row["bytes"] is not None]
        sized = f"{show.counted(len(sizes), 'open ledger')}, {show.size(sum(sizes))}"
        return f"{sized}{_unsized(len(rows) - len(sizes))}"

    columns: Columns = {
        "topic": lambda row, _: row["topic"],
        "ledger": lambda row, _: row["ledger_id"],
        "made": lambda row, now: show.ago(row["made_at"], now),
        "bytes": lambda row, _: row["problem"] if row["bytes"] is None else show.size(row["bytes"]),
        "expired": lambda row, _: "yes" if row["expired"] else None,
        "causes": lambda row, _: ", ".join(row["causes"]),
    }
    _show_held(context, OPEN_TABLE, lambda row: row["expired"] or not expired, head, columns, as_json=as_json)


def backlog(
    context: typer.Context,
    expired: Annotated[bool, typer.Option("--expired", help="Only what a load would take away.")] = False,
    as_json: AsJson = False,
) -> None:
    """What durable cursors have not acknowledged, the most first, and what takes it away."""
    from pulsar_lifecycle.lifecycle.held.backlog import BacklogEnds
    from pulsar_lifecycle.lifecycle.held.held_run import BACKLOG_TABLE

    columns: Columns = {
        "topic": lambda row, _: row["topic"],
        "cursor": lambda row, _: row["cursor"],
        "unacknowledged": lambda row, _: "not known" if row["bytes"] is None else show.size(row["bytes"]),
        "past its TTL": lambda row, _: show.size(row["expired_bytes"]) if row["expired_bytes"] else None,
        "ends by": lambda row, _: row["ends"],
    }
    _show_held(
        context,
        BACKLOG_TABLE,
        lambda row: row["expired_bytes"] or row["ends"] == BacklogEnds.SUBSCRIPTION_EXPIRED or not expired,
        lambda rows: show.counted(len(rows), "cursor"),
        columns,
        as_json=as_json,
    )


def bookies(context: typer.Context, as_json: AsJson = False) -> None:
    """What the bookies' disks hold and what each waits for before it frees more, as they said last.

    Exit code 1 where one takes no entries, or will not in a week.
    """
    from pulsar_lifecycle.lifecycle.bookies.bookie_disk import FULL_WITHIN_DAYS, UNWRITABLE
    from pulsar_lifecycle.lifecycle.bookies.disk_run import forecasts, newest_disks

    where = cluster_of(context)
    rows, days = newest_disks(where), forecasts(where)
    if as_json:
        show.json_document([row | {"days_until_full": days.get(row["bookie"])} for row in rows])
    else:
        _print_bookies(rows, days, where.clock.now_ms())
    if any(row["verdict"] in UNWRITABLE for row in rows) or any(left < FULL_WITHIN_DAYS for left in days.values()):
        raise typer.Exit(1)


def _print_bookies(rows: Rows, days: Mapping[str, float], now: int) -> None:
    columns = ["bookie", "verdict", "free", "of", "placed by metadata", "to collect", "to compact", "full in", "asked"]
    show.table(
        [*columns, "detail"],
        (
            (
                row["bookie"],
                row["verdict"],
                *(
                    _size(row[name])
                    for name in ("free", "total", "bytes_placed", "bytes_to_collect", "bytes_to_compact")
                ),
                f"{days[row['bookie']]:.1f} days" if row["bookie"] in days else None,
                show.ago(row["asked_at"], now),
                row["detail"],
            )
            for row in sorted(rows, key=_room)
        ),
    )


def _print_namespaces(rows: pa.Table) -> None:
    from pulsar_lifecycle.lifecycle.storage_run import namespaces_by_size

    largest = namespaces_by_size(rows)
    cells = ((name or "(not known)", ledgers, show.size(size)) for name, ledgers, size in largest[:NAMESPACES])
    show.table(["namespace", "ledgers", "on disk"], cells)
    if len(largest) > NAMESPACES:
        show.text(f"... {len(largest) - NAMESPACES} more; --json has all of them")


def _print_topics(rows: pa.Table) -> None:
    from pulsar_lifecycle.lifecycle.storage_run import largest_topics

    show.table(
        ["topic", "on disk", "why"],
        (
            (topic, show.size(size), ", ".join(f"{reason} {show.size(part)}" for reason, part in reasons.items()))
            for topic, size, reasons in largest_topics(rows, TOPICS)
        ),
    )


def _sizes(one: Any) -> tuple[int, int]:
    return one["bytes"], one["physical_bytes"]


def _size(count: int | None) -> str | None:
    return None if count is None else show.size(count)


def _room(row: dict[str, Any]) -> float:
    return row["free"] / row["total"] if row["free"] is not None and row["total"] else 0.0


def _show_held(
    context: typer.Context,
    table: str,
    wanted: Callable[[Row], Any],
    head: Callable[[Rows], str],
    columns: Columns,
    *,
    as_json: bool,
) -> None:
    """The newest report of what is held: its wanted rows, of which a table has the first."""
    from pulsar_lifecycle.lifecycle.held.held_run import held_rows, newest_held

    where = cluster_of(context)
    epoch = newest_held(where.lake, where.settings.cluster)
    rows = [row for row in held_rows(where.lake, epoch.epoch_id, table).to_pylist() if wanted(row)]
    if as_json:
        show.json_document({"epoch_id": epoch.epoch_id, "rows": rows})
        return
    now = where.clock.now_ms()
    show.text(f"{head(rows)}, by scan {epoch.epoch_id}, {show.ago(epoch.started_at, now)}")
    show.table([*columns], ([cell(row, now) for cell in columns.values()] for row in rows[:TOPICS]))
    if len(rows) > TOPICS:
        show.text(f"... {len(rows) - TOPICS} more; --json has all of them")
