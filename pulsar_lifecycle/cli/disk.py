# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import.
"""``storage`` and ``bookies``: where the disk goes, as the newest reports say.

Belongs here: the pages. Not here: making a report, which is the Dagster job ``report_storage``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.session import AsJson, cluster_of

if TYPE_CHECKING:
    import pyarrow as pa

TOPICS = 20
_SIZES = ("free", "total", "bytes_placed", "bytes_to_collect", "bytes_to_compact")
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
    from pulsar_lifecycle.lifecycle.storage_run import by_reason, newest_report, totals

    where = cluster_of(context)
    epoch, rows = newest_report(where.lake, where.settings.cluster)
    if namespace:
        known = set(rows.column("namespace").unique().to_pylist())
        if missing := [one for one in namespace if one not in known]:
            raise UsageError(f"the report of scan {epoch.epoch_id} has no namespace {missing[0]}")
        rows = rows.filter(pc.is_in(rows.column("namespace"), pa.array(namespace, pa.string())))
    whole, sums = totals(rows), by_reason(rows)
    if as_json:
        facts = {"ledgers": whole.ledgers, "bytes": whole.bytes, "physical_bytes": whole.physical_bytes}
        scan = {"epoch_id": epoch.epoch_id, "scanned_at": epoch.started_at, "covered": epoch.covered}
        show.json_document({**scan, **facts, "by_reason": dict(sums), "rows": rows.to_pylist()})
        return
    age = show.span(where.clock.now_ms() - epoch.started_at)
    show.text(
        f"{show.size(whole.physical_bytes)} on disk in {show.counted(whole.ledgers, 'ledger')}, by scan "
        f"{epoch.epoch_id}, {age} ago{'' if epoch.covered else ', which is not covered'}"
    )
    show.table(
        ["reason", "ledgers", "of unknown size", "bytes", "on disk"],
        (
            (reason, one["ledgers"], one["ledgers_unsized"] or None, *map(show.size, _sizes(one)))
            for reason, one in sums.items()
        ),
    )
    if not namespace:
        show.text()
        _print_namespaces(rows)
    show.text()
    _print_topics(rows)


def bookies(context: typer.Context, as_json: AsJson = False) -> None:
    """What the bookies' disks hold and what each waits for before it frees more, as they said last."""
    from pulsar_lifecycle.lifecycle.disk_run import forecasts, newest_disks

    where = cluster_of(context)
    rows, days = newest_disks(where), forecasts(where)
    if as_json:
        show.json_document([row | {"days_until_full": days.get(row["bookie"])} for row in rows])
        return
    now = where.clock.now_ms()
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
                f"{show.span(now - row['asked_at'])} ago",
                row["detail"],
            )
            for row in sorted(rows, key=_room)
        ),
    )


def _print_namespaces(rows: pa.Table) -> None:
    sums = rows.group_by("namespace").aggregate([("physical_bytes", "sum"), ("ledgers", "sum")])
    largest = sums.sort_by([("physical_bytes_sum", "descending"), ("namespace", "ascending")]).to_pylist()
    show.table(
        ["namespace", "ledgers", "on disk"],
        (
            (row["namespace"] or "(not known)", row["ledgers_sum"], show.size(row["physical_bytes_sum"]))
            for row in largest[:NAMESPACES]
        ),
    )
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
