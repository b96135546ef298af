"""``pulsar-lifecycle sandbox``: start, stop, status, seed, ui.

Thin over :mod:`sandbox.cluster` and :mod:`sandbox.planting.seed`.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from sandbox.cluster import Cluster
from sandbox.planting.seed import live_file, planted_file
from sandbox.planting.seed import seed as seed_cluster
from sandbox.servers.toolchain import SandboxError

app = typer.Typer(help="A real Pulsar 4.0 cluster in miniature on this machine.", no_args_is_help=True)

Data = Annotated[
    Path | None,
    typer.Option("--data", envvar="PULSAR_LIFECYCLE_SANDBOX", help="Data folder. [default: .run/sandbox]"),
]


@app.command()
def start(
    data: Data = None,
    bookies: Annotated[int, typer.Option(min=1, max=9, help="Number of bookies.")] = 1,
    brokers: Annotated[int, typer.Option(min=1, max=5, help="Number of brokers.")] = 1,
    gc_wait: Annotated[float, typer.Option(min=1, help="Seconds between the bookies' garbage collections.")] = 60.0,
    offloader: Annotated[bool, typer.Option("--offloader", help="Give the brokers an offloader to S3.")] = False,
    production: Annotated[
        bool, typer.Option("--production", help="A new cluster's brokers delete, split, shed and expire by themselves.")
    ] = False,
) -> None:
    """Start the cluster, or whatever part of it is not running."""
    with _one_line_errors():
        begun = time.monotonic()
        cluster = Cluster(data)
        started = cluster.start(bookies, brokers, gc_wait, offloader=offloader, production=production)
        took = f"ready in {time.monotonic() - begun:.0f} s" if started else "already running"
        print(f"sandbox {took}: admin {cluster.admin_url}, service {cluster.service_url}, state {cluster.state_file}")


@app.command()
def stop(
    data: Data = None,
    purge: Annotated[bool, typer.Option(help="Remove the data folder too.")] = False,
) -> None:
    """Stop what `start` and `ui` started; data is kept."""
    with _one_line_errors():
        if not Cluster(data).stop(purge=purge):
            print("nothing was running")


@app.command()
def status(
    data: Data = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the state file's document.")] = False,
) -> None:
    """Show each server, and where the UI is; exit code 1 unless all servers run."""
    with _one_line_errors():
        cluster = Cluster(data)
        rows = cluster.status()
        if as_json:
            print(json.dumps(cluster.state.as_json(), indent=2))
        else:
            for row in rows:
                state = f"pid {row['pid']}, {row['resident'] >> 20} MB" if row["pid"] else "not running"
                print(f"{row['name']:<10} {row['address']:<16} {row['http']:<23} {state}")
            print(f"{'ui':<10} {cluster.ui_url or 'not running: `pulsar-lifecycle sandbox ui` starts it'}")
    if not all(row["pid"] for row in rows):
        raise typer.Exit(1)


@app.command()
def seed(data: Data = None) -> None:
    """Fill the cluster with topics of every kind, and with leaks of every kind; once."""
    with _one_line_errors():
        begun = time.monotonic()
        cluster = Cluster(data)
        if len(cluster.running()) < len(cluster.state.servers):
            raise SandboxError("not all of its servers run: `pulsar-lifecycle sandbox start` first")
        seeded = seed_cluster(cluster)
        took = time.monotonic() - begun
        print(f"seeded in {took:.0f} s: {len(seeded.live)} live topics, {len(seeded.planted)} planted ledgers")
        print(f"written down in {live_file(cluster)} and {planted_file(cluster)}")


@app.command()
def ui(data: Data = None) -> None:
    """Start the Dagster UI on the sandbox, and say where it is; `stop` stops it."""
    with _one_line_errors():
        print(f"the Dagster UI: {Cluster(data).serve()} (`pulsar-lifecycle sandbox stop` stops it, and the cluster)")


@contextmanager
def _one_line_errors() -> Iterator[None]:
    try:
        yield
    except SandboxError as error:
        print(f"sandbox: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


if __name__ == "__main__":
    app()
