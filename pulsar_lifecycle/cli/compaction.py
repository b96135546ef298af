"""``compaction suspend`` and ``compaction resume``: an operator's word to bookies.

Belongs here: the commands. Not here: telling the bookies (``lifecycle/bookies/suspension.py``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from pulsar_lifecycle.cli import show
from pulsar_lifecycle.cli.options import cluster_of

if TYPE_CHECKING:
    from pulsar_lifecycle.lifecycle.bookies.suspension import Told

app = typer.Typer(
    help="Have bookies suspend compaction, or compact by themselves again.", no_args_is_help=True, rich_markup_mode=None
)

Bookies = Annotated[list[str] | None, typer.Argument(metavar="[BOOKIE]...", help="Ids, as `bookies` shows them.")]
Every = Annotated[bool, typer.Option("--all", help="Every registered bookie.")]
Reason = Annotated[str, typer.Option("--why", help="Why; it is journalled.")]


@app.command()
def suspend(context: typer.Context, bookies: Bookies = None, every: Every = False, why: Reason = "") -> None:
    """Have bookies begin no compaction by themselves until `resume`, or until they restart.

    A compaction that runs goes on to its end, and `collect_bookies` compacts all the same. Their disks fill meanwhile:
    the check compaction_not_suspended fails until they are resumed. Exit code 1 if a bookie was not told.
    """
    from pulsar_lifecycle.lifecycle.bookies import suspension

    where, named = cluster_of(context), _named(bookies, every)
    _show(suspension.suspend(where, f"suspend-{where.ids.token(4)}", named, why))


@app.command()
def resume(context: typer.Context, bookies: Bookies = None, every: Every = False, why: Reason = "") -> None:
    """Have bookies compact by themselves again. Exit code 1 if a bookie was not told."""
    from pulsar_lifecycle.lifecycle.bookies import suspension

    where, named = cluster_of(context), _named(bookies, every)
    _show(suspension.resume(where, f"resume-{where.ids.token(4)}", named, why))


def _named(bookies: list[str] | None, every: bool) -> list[str]:
    from pulsar_lifecycle.errors import UsageError

    if every == bool(bookies):
        raise UsageError("compaction: name bookies, or say --all")
    return bookies or []


def _show(done: list[Told]) -> None:
    from pulsar_lifecycle.values.outcomes import Outcome

    show.table(["bookie", "compaction", "why"], ((one.bookie, one.outcome.value, one.text) for one in done))
    if any(one.outcome in (Outcome.NOT_TOLD, Outcome.TELLING) for one in done):
        raise typer.Exit(1)
