"""``pulsar-lifecycle``: look at a cluster, explain a ledger, stop and resume, read plans and the journal.

Belongs here: the command tree, global options, exit codes. Not here: what a command does: its module beside this one,
thin over the library. Exit codes: 0 done, 1 a finding, a refusal or a failure, 2 wrong usage or settings. Commands
import what they need when they run, so that ``--help`` answers at once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from pulsar_lifecycle.cli import automation, compaction, delete_records, offload, output, plans, queue, show, status
from pulsar_lifecycle.cli.look import code, disk, explain, inactive, inspect, table
from pulsar_lifecycle.cli.options import GlobalOptions
from pulsar_lifecycle.errors import ConfigError, LifecycleError, RefusedBy, UsageError
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.ports import Connect
from sandbox.cli import app as sandbox_app

app = typer.Typer(
    help="Control plane for the data lifecycle of an Apache Pulsar cluster. "
    "Scans, plans and deletions are Dagster jobs; these commands look, explain, approve and stop them. "
    "One of them deletes: delete-records --apply.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,  # it would swallow what stands in brackets
    pretty_exceptions_enable=False,  # it would print local variables, secrets among them
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(inspect.app, name="inspect")
app.command()(explain.explain)
app.command()(explain.findings)
app.command()(code.code)
app.command()(disk.storage)
app.command()(disk.bookies)
app.command(name="open-ledgers")(disk.open_ledgers)
app.command()(disk.backlog)
app.command()(inactive.inactive)
app.command()(delete_records.delete_records)
app.add_typer(compaction.app, name="compaction")
app.add_typer(offload.app, name="offload")
app.command()(status.status)
app.command()(status.pause)
app.command()(status.resume)
app.command()(status.accept_restore)
app.add_typer(queue.app, name="queue")
app.command()(plans.plans)
app.command()(plans.plan)
app.command()(plans.journal)
app.command()(automation.automation)
app.command()(automation.approve)
app.command()(table.table)
app.add_typer(sandbox_app, name="sandbox")


@app.callback()
def options(
    context: typer.Context,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="The cluster's lifecycle.toml. [default: $PULSAR_LIFECYCLE_CONFIG]"),
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show warnings, and a traceback on errors.")] = False,
) -> None:
    """Options of every command."""
    given = context.ensure_object(GlobalOptions)
    given.config, given.verbose = config, verbose
    if verbose:
        logging.basicConfig(level=logging.WARNING)
    else:
        logging.getLogger().addHandler(logging.NullHandler())  # else Python prints the warnings of libraries itself


def main(arguments: Sequence[str] | None = None, connect: Connect = Connections) -> None:
    """The entry point; ends the process. ``connect`` opens the ports of the cluster that the options name."""
    given = GlobalOptions(connect=connect)
    with output.to_the_end():
        try:
            app(args=arguments, prog_name="pulsar-lifecycle", obj=given)
        except LifecycleError as error:
            if given.verbose:
                raise
            refused = f"refused ({error.code.value}): " if isinstance(error, RefusedBy) else ""
            show.note(f"{refused}{error}")
            sys.exit(2 if isinstance(error, ConfigError | UsageError) else 1)
