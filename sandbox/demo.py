"""``make demo``: the main jobs on a sandbox, from leaks to late messages, and proof that nothing live was touched.

Belongs here: driving the Dagster jobs as an operator would, and checking the outcome against what was planted. The
product itself never sees what was planted. Exit code 0 only if exactly what was planted to go is gone and every live
topic still reads back whole.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

import dagster as dg
import pyarrow as pa
from rich.console import Console
from rich.table import Table

from assets.names import PLAN, key
from pulsar_lifecycle.delayed_index.repair import repair_planning
from pulsar_lifecycle.errors import LifecycleError
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.journal.queries import journal_rows
from pulsar_lifecycle.lifecycle import retention_planning, storage_run
from pulsar_lifecycle.lifecycle.load import load_planning
from pulsar_lifecycle.ports import JournalReader, Lake
from pulsar_lifecycle.scan.references import KINDS
from pulsar_lifecycle.settings import CONFIG_VARIABLE, Settings, load_settings
from pulsar_lifecycle.tiered.buckets import bucket_runs
from pulsar_lifecycle.values.gaps import in_words
from pulsar_lifecycle.values.outcomes import Outcome
from pulsar_lifecycle.values.plans.plan_summary import PlanSummary
from sandbox.acts import delayed, expired, tiered
from sandbox.acts.expired import Expired
from sandbox.cluster import Cluster
from sandbox.jobs import Jobs
from sandbox.planting import znodes
from sandbox.planting.seed import Seeded, seed
from sandbox.planting.verify import read_back
from sandbox.servers import ui
from sandbox.servers.toolchain import SandboxError

console = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


UNLOADED_AFTER = 4.0
"""Seconds: three of the sandbox brokers' statistics intervals, and one."""
DUE_IN = 120.0
"""Seconds at least until the first delayed message is due: its index is repaired by then."""
SCANS = 4.0
"""So many times as long as a scan took, a busy machine needs from the first delayed message to the repair's end."""
MARK = "demo"
"""The file in a sandbox's folder that says that a demo is, or was, at work in it."""
EXPIRED_BYTES = 190 << 20
"""What :mod:`sandbox.acts.expired` plans to see freed."""


@dataclass(frozen=True)
class Verdict:
    """One thing the demo proves."""

    what: str
    holds: bool
    detail: str


def main() -> int:
    """Run the demo on the sandbox in ``$PULSAR_LIFECYCLE_SANDBOX`` (default ``.run/sandbox``)."""
    warnings.filterwarnings("ignore", category=dg.BetaWarning)
    begun = time.monotonic()
    try:
        return _demo(Cluster(None, lambda line: None), begun)
    except LifecycleError as error:
        console.print(f"[red]demo: {error}[/red]")
        return 1


def _demo(cluster: Cluster, begun: float) -> int:
    def say(text: str) -> None:
        console.print(f"[dim]{time.monotonic() - begun:5.0f} s[/dim]  {text}")

    begin_afresh(cluster, say)
    say(f"cluster is up: {cluster.admin_url}; seeding topics and leaks")
    seeded = seed(cluster, lambda line: None)
    say(f"{len(seeded.live)} live topics, {len(seeded.planted)} planted ledgers")
    config = str(cluster.data / "lifecycle.toml")
    os.environ[CONFIG_VARIABLE] = config
    settings = load_settings(config)
    archive = tiered.seed(cluster, settings)
    say(f"{len(archive)} topics for tiered storage, an interrupted attempt to offload one, a leaked copy")
    jobs = Jobs(config, say)
    _wait_for_grace(cluster, seeded, settings, say)
    before = _there(cluster)
    expected = {p.ledger_id for p in seeded.planted if p.verdict == "orphan"} & before
    jobs.run("scan", "first scan: read the metastore, find who refers to what, judge every ledger")
    seeded = seed(cluster, lambda line: None)
    jobs.run("scan", "second scan: confirm, and plan")
    ports = Connections(settings)
    lake, journal = ports.lake, ports.journal_reader
    summary, rows = lake.plan(lake.plans()[-1].plan_id)
    say(f"plan {summary.plan_id}: {summary.ledgers} ledgers, actionable: {summary.actionable}")
    if summary.ledgers:
        jobs.apply(summary)
        time.sleep(settings.deletion.deliver_after + 1)
        jobs.run("delete_pending", "deletion run: scan again, then delete what the queue holds")
    _tier(jobs, lake, settings)
    tiered_verdicts = _tiered_verdicts(cluster, jobs, settings, config, archive)
    freed, disk_verdicts = _free_disk(cluster, jobs, lake, settings, say)
    late_verdicts = _remind(cluster, jobs, lake, settings, say)
    say("reading every live topic back through the broker")
    wrong = read_back(cluster, [*seeded.live, *freed.live])
    late = {row["ledger_id"] for row in rows.to_pylist() if row["topic"] == delayed.TOPIC}  # what repairs replaced
    planned = set(rows.column("ledger_id").to_pylist()) - late
    others = {ledger for one in archive for ledger in one.ids} | freed.ledgers | late
    deleted = {
        row["ledger_id"]
        for run_id in jobs.run_ids
        for row in journal_rows(journal, run_id=run_id).to_pylist()
        if row["outcome"] == Outcome.DELETED and row["ledger_id"] not in others
    }
    left = expected & _there(cluster)
    verdicts = [
        Verdict("the plan may be applied", summary.actionable, in_words(summary.gaps)),
        Verdict(
            "planned exactly the leaked ledgers",
            planned == expected,
            f"{len(planned)} of {len(expected)}",
        ),
        Verdict(
            "deleted exactly those, and they are gone",
            deleted == expected and not left,
            f"{len(deleted)} of {len(expected)}, {len(left)} still there",
        ),
        Verdict(
            "every live topic reads back whole",
            not wrong,
            "; ".join(wrong[:3]) or f"{len(seeded.live) + len(freed.live)} topics",
        ),
        *tiered_verdicts,
        *disk_verdicts,
        *late_verdicts,
    ]
    _report(lake, journal, summary, jobs.run_ids, verdicts)
    lead_on(cluster, settings.cluster, summary.plan_id)
    return 0 if all(v.holds for v in verdicts) else 1


def begin_afresh(cluster: Cluster, say: Callable[[str], None]) -> None:
    """Start a sandbox; where an earlier demo was at work in it, a new one in its place.

    What that demo left has changed since: retention goes on, messages fall due, and somebody may have tried something.
    """
    mark = cluster.data / MARK
    if mark.exists():
        say(f"removing the sandbox of an earlier demo, with all that is in it: {cluster.data}")
        cluster.stop(purge=True)
    say("starting ZooKeeper, a bookie, a broker and an S3 server")
    cluster.start()
    mark.touch()


def _tier(jobs: Jobs, lake: Lake, settings: Settings) -> None:
    """Offload the archive's closed ledgers, and delete their copies in BookKeeper through the queue."""
    ops = {"sandbox_offload_plan": {"config": {"namespaces": [tiered.NAMESPACE], "everything": True}}}
    jobs.run("plan_offload", "offload plan: which closed ledgers go to the bucket", ops)
    jobs.offload(lake.offload_plans()[-1], "offloading: copy, read back whole, compare every entry, commit")
    time.sleep(UNLOADED_AFTER)  # a topic whose z-node was just written counts as loaded
    jobs.run("scan", "scan: what is offloaded now")
    jobs.run("plan_offload", "offload plan: which copies in BookKeeper are due to go", ops)
    plan = lake.offload_plans()[-1]
    if plan.copies:
        jobs.offload(plan, "deleting the copies in BookKeeper: their objects are read back whole once more")
    found = jobs.run("inventory_objects", "inventory of the bucket: what nothing names any more")
    (made,) = (
        event.materialization
        for event in found.get_asset_materialization_events()
        if event.materialization.asset_key == key(settings.cluster, "orphan_objects")
    )
    leaked, _ = lake.object_plan(str(made.metadata["plan id"].value))
    if leaked.ledgers:
        jobs.launch("sweep_objects", bucket_runs.run_config(leaked), "applying it: one message per leaked copy")
    if plan.copies or leaked.ledgers:
        time.sleep(settings.deletion.deliver_after + 1)
        jobs.run("delete_pending", "deletion run: the copies in BookKeeper go, and the leaked one in the bucket")


def _tiered_verdicts(
    cluster: Cluster, jobs: Jobs, settings: Settings, config: str, archive: list[tiered.Tiered]
) -> list[Verdict]:
    wrong = tiered.offloaded(cluster, settings, archive)
    left = tiered.in_bookkeeper(cluster, archive)
    count = sum(len(one.ledgers) for one in archive)
    unread = tiered.read_back(jobs.spark, config, archive)
    return [
        Verdict(
            "every closed ledger of the archive is offloaded, and nothing else is in the bucket",
            not wrong,
            "; ".join(wrong[:3]) or f"{count} ledgers; the interrupted attempt is finished, what was leaked is gone",
        ),
        Verdict("their copies in BookKeeper are gone", not left, f"{count - len(left)} of {count}"),
        Verdict(
            "Spark reads from the bucket what was produced",
            not unread,
            "; ".join(unread[:3]) or f"{sum(sum(one.ledgers.values()) for one in archive)} messages",
        ),
    ]


def _free_disk(
    cluster: Cluster, jobs: Jobs, lake: Lake, settings: Settings, say: Callable[[str], None]
) -> tuple[Expired, list[Verdict]]:
    """Free what retention policies no longer ask for, first by metadata, then by the broker; then have bookies collect.

    Returns the act's topics and its verdicts.
    """
    say("190 MB past their retention in topics that no broker has loaded, one of them open since its broker was killed")
    made = expired.seed(cluster, settings)
    time.sleep(UNLOADED_AFTER)
    jobs.run("scan", "scan: what is there now")
    jobs.run("report_storage", "where the disk goes, and why")
    reports = [storage_run.newest_report(lake, settings.cluster)[1]]
    jobs.run("plan_retention", "retention plan: what is past its retention and needs no broker to go")
    plan = lake.retention_plans()[-1]
    before = expired.loaded(cluster)
    if plan.ledgers:
        jobs.launch("apply_retention", retention_planning.run_config(plan), "applying it: no topic is loaded")
    needless = sorted(expired.loaded(cluster) - before)
    jobs.run("plan_load", "load plan: what only a broker can free")
    plan = lake.load_plans()[-1]
    if plan.ledgers:
        jobs.launch("load_topics", load_planning.run_config(plan), "applying it: load, expire, trim, unload")
    time.sleep(settings.deletion.deliver_after + 1)
    jobs.run("delete_pending", "deletion run: the ledgers that left their topics go")
    left = expired.left(cluster, made)
    jobs.run("scan", "scan: what the bookie may free")
    jobs.launch("collect_bookies", {"ops": {"collect": {"config": {}}}}, "having the bookie collect")
    jobs.run("report_storage", "where the disk goes now")
    reports.append(storage_run.newest_report(lake, settings.cluster)[1])
    console.print(_disk_table(reports))
    now = expired.entry_log_bytes(cluster)
    return made, [
        Verdict(
            "what was past its retention is gone", not left, f"{len(made.ledgers) - len(left)} of {len(made.ledgers)}"
        ),
        Verdict("no topic was loaded that did not need it", not needless, ", ".join(needless)),
        Verdict(
            "the entry logs on disk are smaller by most of it",
            made.entry_logs - now > EXPIRED_BYTES // 2,
            f"{made.entry_logs >> 20} MiB before, {now >> 20} after",
        ),
    ]


def _remind(cluster: Cluster, jobs: Jobs, lake: Lake, settings: Settings, say: Callable[[str], None]) -> list[Verdict]:
    """Find three broken indexes of delayed messages, repair them while no broker has the topic, and read it back."""
    say(f"{delayed.COUNT:,} delayed messages for three subscriptions; the index of each is broken in another way")
    made = delayed.seed(cluster, settings, max(DUE_IN, SCANS * jobs.took["scan"]))
    time.sleep(UNLOADED_AFTER)
    jobs.run("scan", "scan: which subscriptions have an index now")
    checked = jobs.run("check_delayed_index", "reading every index and the messages behind it")
    pages = {
        event.materialization.asset_key.path[-1]: event.materialization.metadata
        for event in checked.get_asset_materialization_events()
    }
    epoch_id = lake.epochs(cluster=settings.cluster)[-1].epoch_id
    found: dict[str, set[str]] = {}
    for row in lake.read_epoch_table(epoch_id, "delayed_index_findings").to_pylist():
        if row["topic"] == delayed.TOPIC:
            found.setdefault(row["subscription"], set()).add(row["code"])
    unnamed = [name for name, code in delayed.FOUND.items() if code not in found.get(name, ())]
    plan, repairs = lake.repair_plan(str(pages["delayed_index_plan"]["plan id"].value))
    planned = sum(row["topic"] == delayed.TOPIC for row in repairs.to_pylist())
    due_rows = lake.read_epoch_table(epoch_id, "delayed_messages_due").to_pylist()
    forecast = sum(row["messages"] for row in due_rows if row["topic"] == delayed.TOPIC)
    if plan.ledgers:
        jobs.launch("repair_delayed_index", repair_planning.run_config(plan), "repairing them: no topic is loaded")
    in_time = time.time() * 1000 < made.first_due
    say("waiting until they are due, and reading them back")
    wrong = delayed.read_back(cluster, made)
    due = 3 * delayed.COUNT
    return [
        Verdict(
            "findings name each broken index",
            not unnamed and planned == len(delayed.FOUND),
            ", ".join(unnamed) or "; ".join(f"{name}: {code}" for name, code in delayed.FOUND.items()),
        ),
        Verdict(
            "the forecast has every message",
            forecast == due and "by hour" in pages["delayed_messages_due"],
            f"{forecast:,} of {due:,}, with a picture by hour",
        ),
        Verdict(
            "every delayed message came once, and none early",
            in_time and not wrong,
            "; ".join(wrong) or (f"{due:,} messages" if in_time else "the repair was too late to mean anything"),
        ),
    ]


def _disk_table(reports: list[pa.Table]) -> Table:
    """Two storage reports side by side."""
    before, after = map(storage_run.by_reason, reports)
    table = Table(title="Where the disk goes", title_justify="left")
    table.add_column("reason")
    for name in ("ledgers before", "after", "MiB before", "after"):
        table.add_column(name, justify="right")
    for reason in {**before, **after}:
        ledgers = (str(found[reason]["ledgers"] if reason in found else 0) for found in (before, after))
        sizes = (found[reason]["physical_bytes"] if reason in found else 0 for found in (before, after))
        table.add_row(reason, *ledgers, *(f"{size / (1 << 20):.1f}" for size in sizes))
    return table


def _wait_for_grace(cluster: Cluster, seeded: Seeded, settings: Settings, say: Callable[[str], None]) -> None:
    """Planted orphans must be older than the sandbox's short grace period."""
    with cluster.metadata() as zk:
        paths = [znodes.ledger_znode(p.ledger_id) for p in seeded.planted if p.verdict == "orphan"]
        stats = [zk.exists(path) for path in paths]
    youngest = max((s.ctime / 1000 for s in stats if s), default=0.0)
    wait = youngest + settings.orphans.grace_period + 1 - time.time()
    if wait > 0:
        say(f"waiting {wait:.0f} s: the leaks must be older than the grace period")
        time.sleep(wait)


def _there(cluster: Cluster) -> set[int]:
    """Ids of every ledger z-node there is, read independently of the product."""
    with cluster.metadata() as zk:
        return {
            int(a + b + c[1:])
            for a in zk.get_children("/ledgers") or ()
            if a.isdecimal() and len(a) == 2
            for b in zk.get_children(f"/ledgers/{a}") or ()
            for c in zk.get_children(f"/ledgers/{a}/{b}") or ()
        }


def _report(
    lake: Lake, journal: JournalReader, summary: PlanSummary, run_ids: Iterable[str], verdicts: list[Verdict]
) -> None:
    epoch = lake.epoch(summary.epoch_id)
    table = Table(title="What was found, planned and done", title_justify="left", show_header=True)
    table.add_column("what")
    table.add_column("which")
    table.add_column("ledgers", justify="right")
    table.add_column("bytes", justify="right")
    table.add_row("scanned", "every ledger z-node", str(epoch.ledgers), "")
    kinds = Counter(lake.read_epoch_table(epoch.epoch_id, "references", ["kind"]).column("kind").to_pylist())
    for kind, count in sorted(kinds.items()):
        table.add_row("references", f"{kind} {KINDS[kind].name}", str(count), "")
    for (finding, code), (count, size) in _grouped(
        lake.read_epoch_table(epoch.epoch_id, "findings"), "finding", "code", "physical_bytes"
    ).items():
        table.add_row(f"finding: {finding}", code, str(count), str(size))
    table.add_row("planned", summary.plan_id, str(summary.ledgers), str(summary.physical_bytes))
    rows = pa.concat_tables([journal_rows(journal, run_id=run_id) for run_id in run_ids])
    for (outcome, code), (count, size) in _grouped(rows, "outcome", "code", "bytes").items():
        table.add_row(f"journal: {outcome}", code, str(count), str(size))
    console.print(table)
    for verdict in verdicts:
        mark = "[green]yes[/green]" if verdict.holds else "[red]NO[/red] "
        console.print(f"{mark}  {verdict.what}  [dim]{verdict.detail}[/dim]")


def lead_on(cluster: Cluster, name: str, plan_id: str) -> None:
    """Where to look at all of it, in a UI that goes on running. Without one, the demo has proven what it proves."""
    try:
        url = cluster.serve()
    except SandboxError as error:
        console.print(f"\n[red]{error}[/red]; `make ui` tries again")
        return
    console.print(f"\nThe Dagster UI runs: {url}", soft_wrap=True)
    asset, runs = f"{url}/assets/{name}", f"{url}/runs"
    for page, what in (
        (f"{asset}/deletion_plan?view=lineage&lineageScope=upstream&lineageDepth=4", "where a plan comes from"),
        (f"{asset}/deletion_plan?view=events", "each plan: what it would delete, and why"),
        (f"{runs}?q%5B0%5D={quote(f'tag:{PLAN}={plan_id}', safe='')}", "the runs that applied this plan"),
        (f"{asset}/deletion_plan?view=overview", "its health: the newest checks, and whether it is fresh"),
        (f"{asset}/ledger_deletions", "what was deleted, over time"),
        (f"{asset}/storage_report", "where the disk goes, and why"),
        (runs, "every run of this demo"),
        (f"{url}/automation", "its schedules and sensors"),
    ):
        console.print(f"  {what}", style="dim")
        console.print(f"  {page}", soft_wrap=True)
    try:
        ui.switch_on(url, schedules=["hourly_scan"], sensors=["after_scan"])
        said = "It scans each hour, and what follows a scan is made; sensor `automation`, for all with effects, is off."
    except SandboxError as error:
        said = f"[red]{error}[/red]: its page Automation can"
    console.print(said, style="dim")
    stop = f"{Path(sys.executable).with_name('pulsar-lifecycle')} sandbox stop --data {cluster.data}"
    console.print("It and the cluster run until you stop them; `make ui` starts both again:", style="dim")
    console.print(f"  {stop}", soft_wrap=True)


def _grouped(rows: pa.Table, first: str, second: str, size: str) -> dict[tuple[str, str], tuple[int, int]]:
    found: dict[tuple[str, str], tuple[int, int]] = {}
    for row in rows.select([first, second, size]).to_pylist():
        key = row[first], row[second] or ""
        count, total = found.get(key, (0, 0))
        found[key] = (count + 1, total + (row[size] or 0))
    return dict(sorted(found.items()))


if __name__ == "__main__":
    logging.getLogger("kazoo").setLevel(logging.ERROR)
    sys.exit(main())
