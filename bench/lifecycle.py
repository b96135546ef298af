"""The retention plan and the storage report, side by side with the scan they stand on and with the admin API.

    .venv/bin/python bench/lifecycle.py [--sizes 100k,1M] [--rule 10M] [--data FOLDER]

Starts a sandbox of its own, fills it (``dataset.py``: every subscription's position is in a real cursor ledger), and
at each size takes a scan, the retention plan twice and the storage report, as the assets do. Then it asks the broker
for ``stats-internal`` of a sample of topics, as a loop over the admin API would of all. ``--rule`` measures the rules
alone, over tables in memory, in a process of their own. Progress and a table go to stderr, one JSON document to stdout.
It fails when a count is wrong, never because something was slow.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import dataset
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from dataset import LEDGERS_PER_TOPIC, Contents
from ground import ascending, data_folder, expect, number, take_epoch, tell, write_settings
from metastore import Cost, cost_since, cpu_used, resident, servers_are, timed

from pulsar_lifecycle.lifecycle.reasons import LEDGER_REASONS, Reason
from pulsar_lifecycle.lifecycle.retention import judge
from pulsar_lifecycle.lifecycle.retention_planning import make_retention_plan
from pulsar_lifecycle.lifecycle.storage import shortened, summed
from pulsar_lifecycle.lifecycle.storage_run import build_storage_report, scanned, totals
from pulsar_lifecycle.lifecycle.verdicts import GOING, RETENTION_LEDGER, RETENTION_TOPICS
from pulsar_lifecycle.runs import cluster as runs_cluster
from resources.lifecycle import LifecycleResource
from sandbox.clients import Admin
from sandbox.cluster import Cluster
from sandbox.servers import kinds

ASKED = 400
"""Topics of which the broker is asked."""
AT_ONCE = 8
"""Requests that the loop over the admin API has in flight."""
UNTIL_UNLOADED = 10.0
"""Seconds after which the youngest topic counts as unloaded: three intervals of the sandbox's broker statistics."""
AIM = 0.25
"""What the plan may cost on top of the scan."""
_NOW = 1_800_000_000_000


def main() -> None:
    """Run every size and print the document."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", default="100k,1M", help="ledgers, ascending (default 100k,1M); empty: none")
    parser.add_argument("--rule", default="10M", help="ledgers for the rules alone (default 10M); empty: not at all")
    parser.add_argument("--data", type=Path, help="folder for the servers' data (default: a temporary one)")
    options = parser.parse_args()
    sizes = ascending(parser, options.sizes, 100 * LEDGERS_PER_TOPIC)
    document: dict[str, Any] = {"bench": "lifecycle", "cpus": os.cpu_count(), "load_average": [os.getloadavg()[0]]}
    if options.rule:
        document["rules"] = rules_alone(number(options.rule))
    if sizes:
        with data_folder(options.data) as data:
            document |= run(sizes, data)
    document["load_average"].append(os.getloadavg()[0])
    print(json.dumps(document))
    show(document)


def run(sizes: list[int], data: Path) -> dict[str, Any]:
    """Measure every size on one growing cluster; returns its part of the document."""
    kinds.MEMORY["zookeeper"] = ("-Xmx2g", "-XX:MaxDirectMemorySize=64m")
    cluster = Cluster(data, tell)
    cluster.start(gc_wait=1800)
    try:
        servers_are(cluster)
        with Admin(cluster.admin_url) as admin:
            for namespace in dataset.NAMESPACES:
                admin.create_namespace(namespace)
                nothing = {"retentionTimeInMinutes": 60, "retentionSizeInMB": -1}
                admin.call("POST", f"/v2/namespaces/{namespace}/retention", nothing)
        settings = write_settings(cluster, zookeeper={"slow_above": "30s", "stop_above": "60s"})
        where = LifecycleResource(config_file=str(settings)).cluster()
        where.spark.range(1).count()
        rows: list[dict[str, Any]] = []
        topics = 0
        for size in sizes:
            contents = Contents(size // LEDGERS_PER_TOPIC)
            tell(f"{size} ledgers: writing {contents.topics - topics} more topics")
            dataset.grow(cluster.zookeeper, cluster.bookies[0], topics, contents.topics, positions=True)
            topics = contents.topics
            rows.append(measure(where, size, contents))
        asked = ask_broker(cluster.admin_url, topics)
        for row in rows:
            extrapolated = asked.clock / ASKED * row["topics"]
            row["admin_api_seconds_extrapolated"] = round(extrapolated, 1)
            row["admin_api_over_scan_and_plan"] = round(extrapolated / (row["scan"]["clock"] + row["plan"]["clock"]), 1)
        return {
            "data": "subscriptions have their positions in real cursor ledgers of one entry each, none in its z-node",
            "settings": "read budget and latency limits lifted; grace period and confirmation interval 0",
            "admin_api": {"topics_asked": ASKED, "at_once": AT_ONCE, **asdict(asked)},
            "sizes": rows,
        }
    finally:
        cluster.stop(purge=True)


def measure(where: runs_cluster.Cluster, size: int, contents: Contents) -> dict[str, Any]:
    """One size: the scan, the plan on it twice, the report."""
    time.sleep(UNTIL_UNLOADED)
    scan_stages: dict[str, Cost] = {}
    stages: dict[str, Cost] = {}
    with resident() as scan_peak:
        epoch, scan = timed(lambda: take_epoch(where, lambda name: _step(scan_stages, name)))
    tell(f"{size} ledgers: scan {scan.clock:.1f} s")
    with resident() as peak:
        _, first = timed(lambda: make_retention_plan(where, epoch))
        (summary, _), plan = timed(lambda: make_retention_plan(where, epoch, lambda name: _step(stages, name)))
    tell(f"{size} ledgers: plan {first.clock:.1f} s, again {plan.clock:.1f} s")
    expect("ledgers planned", summary.ledgers, contents.acknowledged)
    with resident() as report_peak:
        (report, _), reported = timed(lambda: build_storage_report(where, epoch))
    tell(f"{size} ledgers: report {reported.clock:.1f} s")
    if totals(report) != scanned(where, epoch.epoch_id):
        raise SystemExit(f"the report adds up to {totals(report)}, the scan to {scanned(where, epoch.epoch_id)}")
    return {
        "ledgers": contents.ledgers,
        "topics": contents.topics,
        "planned": summary.ledgers,
        "scan": asdict(scan),
        "scan_stages": {name: asdict(cost) for name, cost in scan_stages.items()},
        "first_plan": asdict(first),
        "plan": asdict(plan),
        "plan_stages": {name: asdict(cost) for name, cost in stages.items()},
        "plan_over_scan": {name: round(_of(plan, name) / _of(scan, name), 2) for name in ("clock", "cpu")},
        "within_aim": plan.clock <= AIM * scan.clock,
        "report": asdict(reported),
        "report_over_scan": round(reported.clock / scan.clock, 2),
        "scan_peak_resident_mib": scan_peak[0] >> 20,
        "plan_peak_resident_mib": peak[0] >> 20,
        "report_peak_resident_mib": report_peak[0] >> 20,
    }


def _of(cost: Cost, name: str) -> float:
    return float(getattr(cost, name))


@contextmanager
def _step(stages: dict[str, Cost], name: str) -> Iterator[None]:
    used, began = cpu_used(), time.monotonic()
    yield
    stages[name] = cost_since(used, began)


# ----------------------------------------------------------------------------------------------------- the admin API


def ask_broker(admin_url: str, topics: int) -> Cost:
    """What ``stats-internal`` of a sample costs, spread over all namespaces; it loads each topic."""
    names = [dataset.name_of(topic) for topic in range(0, topics, topics // ASKED) if topic % 100 < 50][:ASKED]
    more = [dataset.name_of(topic) for topic in range(1, topics, topics // ASKED) if topic % 100 < 50]
    asked = (names + more)[:ASKED]
    expect("topics to ask for", len(set(asked)), ASKED)
    with Admin(admin_url) as admin, ThreadPoolExecutor(AT_ONCE) as pool:

        def ask(topic: str) -> int:
            return len(admin.topic("GET", topic, "/internalStats")["ledgers"])

        _, cost = timed(lambda: list(pool.map(ask, asked)))
    tell(f"the broker: {ASKED} topics in {cost.clock:.1f} s")
    return cost


# ---------------------------------------------------------------------------------------------------- the rules alone


def rules_alone(ledgers: int) -> dict[str, Any]:
    """Seconds and memory of both rules, each in a process of its own."""
    found: dict[str, Any] = {"ledgers": ledgers, "topics": ledgers // LEDGERS_PER_TOPIC}
    for work in (retention_rule, storage_sums):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            found[work.__name__] = pool.submit(work, ledgers).result()
        tell(f"{work.__name__} over {ledgers} ledgers: {found[work.__name__]}")
    return found


def retention_rule(ledgers: int) -> dict[str, Any]:
    """``judge`` over all of them at once; a run has one file of ``managed_ledgers`` at a time."""
    topics = ledgers // LEDGERS_PER_TOPIC
    ids = np.arange(ledgers)
    columns = [pa.array(ids), *(pa.array(np.full(ledgers, n)) for n in (50_000, 50_000_000, _NOW - 7_200_000))]
    structs = pa.StructArray.from_arrays(columns, fields=list(RETENTION_LEDGER))
    begin = pa.array(np.arange(0, ledgers + 1, LEDGERS_PER_TOPIC), pa.int32())
    names = pa.array([f"bench/ns/persistent/orders-topic-{n:07d}" for n in range(topics)])
    inputs = pa.table(
        [
            names,
            pa.ListArray.from_arrays(begin, structs),
            *(pa.array(np.full(topics, n)) for n in (60, -1)),
            pa.array(np.ones(topics, np.int32)),
            pa.array(ids[dataset.ACKNOWLEDGED :: LEDGERS_PER_TOPIC]),
            pa.array(np.full(topics, -1)),
            pa.nulls(topics, pa.string()),
        ],
        schema=RETENTION_TOPICS,
    )
    before = _peak()
    began = time.monotonic()
    verdicts = judge(inputs, _NOW)
    seconds = time.monotonic() - began
    counts = {str(one["values"]): one["counts"] for one in verdicts.column("verdict").value_counts().to_pylist()}
    expect("ledgers that go", sum(counts.get(code, 0) for code in GOING), dataset.ACKNOWLEDGED * topics)
    return {"seconds": round(seconds, 1), "peak_mib": _peak(), "inputs_mib": before}


def storage_sums(ledgers: int) -> dict[str, Any]:
    """``summed`` and ``shortened`` over a ledger list and a reason for each."""
    ids = np.arange(ledgers)
    listed = pa.table(
        {
            "ledger_id": ids,
            "length": np.full(ledgers, 50_000_000),
            "write_quorum": np.full(ledgers, 2, np.int32),
            "problem": pa.nulls(ledgers, pa.string()),
        }
    )
    before = _peak()
    began = time.monotonic()
    found = shortened(summed(listed, _reasons(ledgers)))
    seconds = time.monotonic() - began
    expect("ledgers reported", int(pc.sum(found.column("ledgers")).as_py()), ledgers)
    return {"seconds": round(seconds, 1), "peak_mib": _peak(), "inputs_mib": before, "rows": found.num_rows}


def _reasons(ledgers: int) -> Iterator[pa.RecordBatch]:
    """As a run reads them from its files, a row group at a time."""
    step = 100_000
    for start in range(0, ledgers, step):
        ids = np.arange(start, min(start + step, ledgers))
        topics = [f"persistent://bench/ns-{n % 10}/orders-topic-{n:07d}" for n in range(start // 10, ids[-1] // 10 + 1)]
        spaces = pa.array([name.removeprefix("persistent://").rpartition("/")[0] for name in topics])
        place = pa.array(ids // LEDGERS_PER_TOPIC - start // 10)
        reasons = pa.array([str(Reason.EXPIRED), str(Reason.BACKLOG)]).take(pa.array(ids % LEDGERS_PER_TOPIC // 6))
        columns = [pa.array(ids), reasons, spaces.take(place), pa.array(topics).take(place)]
        yield pa.RecordBatch.from_arrays(columns, schema=LEDGER_REASONS)


def _peak() -> int:
    """Highest resident MiB of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> (20 if sys.platform == "darwin" else 10)


def show(document: dict[str, Any]) -> None:
    """The table, on stderr."""
    tell("seconds on the clock (CPU seconds)")
    heads = ("scan", "retention plan", "storage report", "admin API")
    tell(" ".join([f"{'ledgers':>9}", *(f"{head:>16}" for head in heads), f"{'plan / scan':>12}"]))
    for row in document.get("sizes", ()):
        costs = [row[name] for name in ("scan", "plan", "report")]
        cells = [f"{c['clock']:>8.1f} ({c['cpu']:>5.1f})" for c in costs]
        cells.append(f"{row['admin_api_seconds_extrapolated']:.0f} extrapolated")
        ratio = f"{row['plan_over_scan']['clock']:>12}"
        tell(" ".join([f"{row['ledgers']:>9}", *(f"{cell:>16}" for cell in cells), ratio]))
        tell(f"          {row['plan_stages']}")


if __name__ == "__main__":
    main()
