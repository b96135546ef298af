"""``table``: a table of a scan, the journal or the archive, whole.

Belongs here: the page. Not here: reading (``inspect/lake_tables.py``).
"""

from __future__ import annotations

from typing import Annotated

import typer

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.options import AsJson, cluster_of

ROWS = 50
NEWEST = "newest"


def table(
    context: typer.Context,
    name: Annotated[str, typer.Argument(help="As the pages of assets name it, such as findings or storage_report.")],
    epoch: Annotated[str, typer.Option("--epoch", help="A scan's id.")] = NEWEST,
    column: Annotated[
        list[str] | None, typer.Option("--column", help="Only this column; may be given several times.")
    ] = None,
    csv: Annotated[str, typer.Option("--csv", help="Write all rows into this file.")] = "",
    as_json: AsJson = False,
) -> None:
    """A table of a scan, `journal` or `archive`: the first rows, or all of them as JSON or CSV."""
    from pulsar_lifecycle.inspect.lake_tables import whole_table

    rows = whole_table(cluster_of(context), name, epoch, column)
    if csv:
        rows.to_pandas().to_csv(csv, index=False)
        show.text(f"{show.counted(rows.num_rows, 'row')} in {csv}")
        return
    if as_json:
        show.json_document(rows.to_pylist())
        return
    if not rows.num_rows:
        show.text("nothing")
        return
    some = rows.slice(0, ROWS)
    show.table(some.column_names, [tuple(row.values()) for row in some.to_pylist()])
    if rows.num_rows > ROWS:
        show.text(f"the first {ROWS} of {rows.num_rows}; --json or --csv has all of them")
