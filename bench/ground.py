"""What the benchmarks stand on: settings, a scan as the assets run it, clients, CPU time of a process, progress.

Not here: what is measured, and the data it is measured on.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

from kazoo.client import KazooClient

from pulsar_lifecycle.deletion.planning import judged_scan
from pulsar_lifecycle.formats import entry
from pulsar_lifecycle.formats.ledger_metadata import DigestType
from pulsar_lifecycle.runs import cluster as runs_cluster
from pulsar_lifecycle.values.epoch import Epoch
from pulsar_lifecycle.values.gaps import in_words
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
        lines += [f"[{name}]", *(f"{key} = {_as_toml(value)}" for key, value in values.items())]
    path = cluster.data / "bench.toml"
    path.write_text("\n".join([*lines, ""]))
    return path


def _as_toml(value: Any) -> str:
    """TOML writes all of JSON alike but its objects."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{key} = {_as_toml(one)}" for key, one in value.items()) + " }"
    return json.dumps(value)


def take_epoch(
    where: runs_cluster.Cluster, step: Callable[[str], AbstractContextManager[object]] = nullcontext
) -> Epoch:
    """A scan, each of its steps within ``step``; fails if it is not covered."""
    epoch = judged_scan.scan(where, "", step)
    if epoch.gaps:
        raise SystemExit(f"the scan is not covered: {in_words(epoch.gaps)}")
    return epoch


@contextmanager
def data_folder(given: Path | None) -> Iterator[Path]:
    """Where the servers' data go: the folder that was given, else a temporary one."""
    with tempfile.TemporaryDirectory(prefix="pulsar-lifecycle-bench-") as temporary:
        yield given or Path(temporary) / "sandbox"


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


ID_GENERATOR = "/ledgers/idgen/ID-"


def new_ids(hosts: str, count: int) -> list[int]:
    """Ids that BookKeeper gives nobody else: a broker deletes no ledger whose id is above its current one."""
    found: list[int] = []
    with kazoo(hosts) as zk:
        for start in range(0, count, 1_000):
            transaction = zk.transaction()
            for _ in range(min(1_000, count - start)):
                transaction.create(ID_GENERATOR, b"", ephemeral=True, sequence=True)
            found += [int(str(path).removeprefix(ID_GENERATOR)) for path in transaction.commit()]
    return found


_ADD = struct.Struct("!Ii20s")
_ADDED = struct.Struct("!Iiiqq")
_ADD_HEADER = 2 << 24 | 1 << 16  # BookieProtocol: version 2, ADDENTRY
_ADD_BYTES = 1 << 20
"""Sent to the bookie before its answers are read."""


def add_entries(bookie: str, entries: Iterable[entry.StoredEntry]) -> None:
    """Write entries to a bookie (BookieProtocol v2, ADDENTRY), with CRC32C digests and an empty password."""
    host, _, port = bookie.rpartition(":")
    key = entry.master_key(b"")
    with socket.create_connection((host, int(port)), timeout=30) as connection, connection.makefile("rb") as answers:

        def send(requests: list[bytes]) -> None:
            connection.sendall(b"".join(requests))
            for _ in requests:
                _, _, code, ledger_id, _ = _ADDED.unpack(answers.read(_ADDED.size))
                if code:
                    raise RuntimeError(f"bookie {bookie}: adding to ledger {ledger_id} failed with {code}")

        waiting: list[bytes] = []
        size = 0
        for one in entries:
            stored = entry.encode(one, DigestType.CRC32C)
            waiting.append(_ADD.pack(_ADD.size - 4 + len(stored), _ADD_HEADER, key) + stored)
            size += len(stored)
            if size >= _ADD_BYTES:
                send(waiting)
                waiting, size = [], 0
        send(waiting)


def cpu_seconds(pid: int | str = "self") -> float:
    """User and system time of a process, in hundredths (proc(5))."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def expect(what: str, found: int, expected: int) -> None:
    """Fail when a count is wrong."""
    if found != expected:
        raise SystemExit(f"{what}: {found}, expected {expected}")


def number(text: str) -> int:
    """``10k`` or ``1M`` -> int."""
    factors = {"k": 1_000, "M": 1_000_000}
    return int(text[:-1]) * factors[text[-1]] if text[-1:] in factors else int(text)


def ascending(parser: argparse.ArgumentParser, text: str, multiple: int) -> list[int]:
    """Option ``--sizes``: numbers separated by commas, ascending multiples of ``multiple``; none if empty."""
    sizes = [number(size) for size in text.split(",") if size]
    if sizes != sorted(sizes) or any(size % multiple for size in sizes):
        parser.error(f"--sizes: ascending multiples of {multiple}")
    return sizes


def tell(line: str) -> None:
    """Progress, on stderr."""
    print(line, file=sys.stderr, flush=True)
