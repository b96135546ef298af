"""What the benchmarks stand on: our settings for a sandbox, a scan as the assets run it, a kazoo client, progress.

Not here: what is measured, and the data it is measured on.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from assets.names import METASTORE
from pulsar_lifecycle.io.clock import SystemClock
from pulsar_lifecycle.plan.coverage import Census, Epoch
from pulsar_lifecycle.spark import findings, scan
from sandbox.cluster import Cluster


def write_settings(cluster: Cluster, **sections: Mapping[str, Any]) -> Path:
    """A settings file for a sandbox without read budget and waiting times; ``sections`` add to it and override it."""
    base: dict[str, dict[str, Any]] = {
        "zookeeper": {"hosts": cluster.zookeeper, "reads_per_second": 100_000_000},
        "pulsar": {"admin_url": cluster.admin_url, "service_url": cluster.service_url},
        "bookkeeper": {"shared_with": []},
        "lake": {"path": str(cluster.data / "lake")},
        "spark": {"master": "local[*]", "scan_partitions": os.cpu_count()},
        "orphans": {"grace_period": "0s", "confirm_after": "0s"},
    }
    lines = ['cluster = "bench"']
    for name in {**base, **sections}:
        values = {**base.get(name, {}), **sections.get(name, {})}
        lines += [f"[{name}]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
    path = cluster.data / "bench.toml"
    path.write_text("\n".join([*lines, ""]))
    return path


def take_epoch(
    where: scan.Cluster, step: Callable[[str, Callable[[], Any]], Any] = lambda _, work: work()
) -> tuple[Epoch, list[Census]]:
    """The five tables, references, coverage and findings, each through ``step``; fails if the scan is not covered."""
    now = SystemClock().now_ms()
    epoch_id = scan.new_epoch_id(now)
    where.lake.begin_epoch(epoch_id, now, "")
    census = [step(table, lambda table=table: scan.scan_table(where, epoch_id, table)) for table in METASTORE]
    step("ledger_references", lambda: scan.build_references(where, epoch_id))
    epoch = step("coverage", lambda: findings.close_epoch(where, epoch_id, now, census, SystemClock().now_ms()))
    step("findings", lambda: findings.build_findings(where, epoch_id))
    if epoch.gaps:
        raise SystemExit(f"the scan is not covered: {epoch.gaps[:3]}")
    return epoch, census


@contextmanager
def kazoo(hosts: str) -> Iterator[KazooClient]:
    """A plain client, connected."""
    client = KazooClient(hosts=hosts, timeout=30)
    client.start(timeout=30)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def expect(what: str, found: int, expected: int) -> None:
    """Fail when a count is wrong."""
    if found != expected:
        raise SystemExit(f"{what}: {found}, expected {expected}")


def number(text: str) -> int:
    """``10k`` or ``1M`` -> int."""
    factors = {"k": 1_000, "M": 1_000_000}
    return int(text[:-1]) * factors[text[-1]] if text[-1:] in factors else int(text)


def tell(line: str) -> None:
    """Progress, on stderr."""
    print(line, file=sys.stderr, flush=True)
