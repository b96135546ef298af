"""Offloading and reading back, side by side with the bare transfers that it is made of.

    .venv/bin/python bench/offload.py [--quick] [--mib 128] [--rounds 3] [--data FOLDER]

Starts a sandbox of its own (ZooKeeper, a bookie, S3Proxy; its broker is stopped), and for entries of 1 KB and of 100 KB
writes closed ledgers of messages, moves them with one process and with two, and reads the objects into Spark. Each
round measures, one after the other: ``read`` (``LedgerReader.stream``, digests verified), ``upload`` (multipart, boto3
alone), ``copy`` (``copy_ledger``), ``get`` (the objects, boto3 alone), ``verify`` (of what was copied), ``offload``
(copy and verify, as a task of an offload run does it). The best round counts. One JSON document a line to stdout,
progress and a table to stderr. It fails when a count is wrong, never because something was slow. Linux (``/proc``).
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import google_crc32c
from ground import add_entries, cpu_seconds, data_folder, expect, kazoo, tell

from pulsar_lifecycle._pb import pulsar_message_pb2 as pb
from pulsar_lifecycle.copies.offloaded_ledger import Location
from pulsar_lifecycle.formats import ledger_metadata, offload_data
from pulsar_lifecycle.formats.entry import StoredEntry
from pulsar_lifecycle.formats.ledger_metadata import DigestType, LedgerMetadata, LedgerState, Segment
from pulsar_lifecycle.formats.ledger_path import ledger_path
from pulsar_lifecycle.io.connect import Connections
from pulsar_lifecycle.io.s3.client import open_client
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.ports import Node
from pulsar_lifecycle.runs import cluster as runs_cluster
from pulsar_lifecycle.settings import load_settings
from pulsar_lifecycle.sources.spark_session import prepare
from pulsar_lifecycle.tiered.proof import Origin, verify
from pulsar_lifecycle.tiered.upload import BLOCKS_IN_FLIGHT, Copied, Source, Target, copy_ledger
from resources.lifecycle import LifecycleResource
from sandbox.cluster import BUCKET, Cluster
from sandbox.servers import kinds

ENTRY_SIZES = {"1 KB": 1_000, "100 KB": 100_000}
PROCESSES = (1, 2)
LEDGERS = 4
FIRST_ID = 5_000_000
TOPIC = Topic.parse("persistent://bench/offload/orders")
NAME = "bench"
MOVES = ("read", "upload", "copy", "get", "verify", "offload")
MAKING = ("upload", "copy", "offload")
PIECE = 8 << 20
"""Bytes that boto3 alone is asked for at once."""
PEERS = {
    "broker's offloader, offload": {"1 KB": "18-23 MB/s", "100 KB": "124-142 MB/s"},
    "broker's offloader, scan": {"1 KB": "156-246 MB/s"},
    "single-threaded Python prototype, offload": {"1 KB": "59 MB/s"},
}
"""Measured elsewhere, for scale."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of small ledgers, to see that it runs")
    parser.add_argument("--mib", type=int, default=128, help=f"MiB of each of the {LEDGERS} ledgers (default 128)")
    parser.add_argument("--rounds", type=int, default=3, help="rounds, of which the best counts (default 3)")
    parser.add_argument("--data", type=Path, help="folder for the servers' data (default: a temporary one)")
    options = parser.parse_args()
    mib, rounds = (12, 1) if options.quick else (options.mib, options.rounds)
    block = offload_data.MIN_BLOCK_SIZE if options.quick else offload_data.DEFAULT_BLOCK_SIZE
    with data_folder(options.data) as data:
        lines: list[dict[str, Any]] = []
        for line in run(mib << 20, block, rounds, data):
            print(json.dumps(line), flush=True)
            lines.append(line)
    show(lines)


def run(size: int, block: int, rounds: int, data: Path) -> Iterator[dict[str, Any]]:
    """Measure on one cluster with ledgers of ``size`` bytes; one document each."""
    kinds.MEMORY["s3proxy"] = ("-Xmx512m", "-XX:MaxDirectMemorySize=256m")
    cluster = Cluster(data, tell)
    cluster.start(gc_wait=1800)
    try:
        for name in cluster.running():
            if name.startswith("broker"):
                cluster.kill(name)
        yield {
            "bench": "offload",
            "cpus": os.cpu_count(),
            "ledgers": LEDGERS,
            "ledger_mib": size >> 20,
            "block_mib": block >> 20,
            "blocks_in_flight": BLOCKS_IN_FLIGHT,
            "rounds": rounds,
            "measured_elsewhere": PEERS,
        }
        where = LifecycleResource(config_file=str(cluster.config)).cluster()
        where.spark.range(1).count()
        ids = count(FIRST_ID)
        for label, length in ENTRY_SIZES.items():
            tell(f"{label}: writing {LEDGERS} ledgers of {size >> 20} MiB")
            ledgers = [write_ledger(cluster, next(ids), length, size) for _ in range(LEDGERS)]
            for processes in PROCESSES:
                with closing(_Team(cluster, block, ledgers, processes)) as team:
                    yield measure(team, label, rounds)
                    if processes == PROCESSES[-1]:
                        yield measure_scan(cluster, where, label, team, rounds)
                    team.again()
    finally:
        cluster.stop(purge=True)


# --------------------------------------------------------------------------------------------------------------- data


@dataclass(frozen=True)
class Ledger:
    """A closed ledger on the bookie; ``length`` in bytes."""

    ledger_id: int
    entries: int
    length: int


def write_ledger(cluster: Cluster, ledger_id: int, entry_length: int, size: int) -> Ledger:
    """About ``size`` bytes of entries of ``entry_length`` bytes, one message in each, then the z-node."""
    noise = os.urandom(8 << 20)
    entries = size // entry_length
    payloads = (_message(number, noise, entry_length) for number in range(entries))
    bookie = cluster.bookies[0]
    add_entries(
        bookie,
        (StoredEntry(ledger_id, i, i - 1, (i + 1) * entry_length, payload) for i, payload in enumerate(payloads)),
    )
    tags = {"application": b"pulsar", "component": b"managed-ledger"}
    metadata = LedgerMetadata(
        LedgerState.CLOSED,
        1,
        1,
        1,
        (Segment(0, (bookie,)),),
        length=entries * entry_length,
        last_entry_id=entries - 1,
        digest_type=DigestType.CRC32C,
        custom_metadata={**tags, "pulsar/managed-ledger": TOPIC.managed_ledger.encode()},
    )
    with kazoo(cluster.zookeeper) as zk:
        zk.create(ledger_path(ledger_id), ledger_metadata.encode(metadata), makepath=True)
    return Ledger(ledger_id, entries, metadata.length)


def _message(number: int, noise: bytes, length: int) -> bytes:
    """An entry of exactly ``length`` bytes as a broker stores an unbatched message that nothing can compress."""
    described = pb.MessageMetadata(producer_name=NAME, sequence_id=number, publish_time=1_700_000_000_000)
    metadata = described.SerializeToString()
    rest = length - 10 - len(metadata)
    begin = number * 997 % (len(noise) - rest)
    covered = len(metadata).to_bytes(4, "big") + metadata + noise[begin : begin + rest]
    return b"\x0e\x01" + google_crc32c.value(covered).to_bytes(4, "big") + covered


# -------------------------------------------------------------------------------------------------------- one process


class _Mover:
    """What one process does with its ledgers, as a task of an offload run would."""

    def __init__(self, opened: ExitStack, file: Path, block: int) -> None:
        settings = load_settings(file)
        assert settings.object_store is not None
        ports = opened.enter_context(Connections(settings, read_only=True))
        self._store, self._reader, self._objects = ports.store, ports.reader, ports.objects
        self._bare = opened.enter_context(closing(open_client(settings.object_store)))
        self._block = block
        self._part = os.urandom(block)
        self._copied: dict[int, tuple[Target, Source, Copied]] = {}

    def read(self, ledgers: list[tuple[int, UUID]]) -> None:
        """Every entry from the bookie."""
        for ledger_id, _ in ledgers:
            metadata = self._source(ledger_id).metadata
            stream = self._reader.stream(ledger_id, metadata, 0, metadata.last_entry_id)
            expect("entries read", sum(len(batch.payloads) for batch in stream), metadata.last_entry_id + 1)

    def upload(self, ledgers: list[tuple[int, UUID]]) -> None:
        """As many bytes in parts of a block, as many at once as a copy has under way."""
        for ledger_id, uuid in ledgers:
            left = self._source(ledger_id).metadata.length
            where = {"Bucket": BUCKET, "Key": f"bare-{uuid}"}
            upload = {**where, "UploadId": self._bare.create_multipart_upload(**where)["UploadId"]}

            def send(number: int, size: int, upload: dict[str, Any] = upload) -> dict[str, Any]:
                answer = self._bare.upload_part(**upload, PartNumber=number, Body=self._part[:size])
                return {"ETag": answer["ETag"], "PartNumber": number}

            sizes = [min(self._block, left - begin) for begin in range(0, left, self._block)]
            with ThreadPoolExecutor(BLOCKS_IN_FLIGHT) as pool:
                parts = list(pool.map(send, range(1, len(sizes) + 1), sizes))
            self._bare.complete_multipart_upload(**upload, MultipartUpload={"Parts": parts})

    def copy(self, ledgers: list[tuple[int, UUID]]) -> None:
        """Both objects of each ledger; what was copied is kept for :meth:`verify`."""
        for ledger_id, uuid in ledgers:
            source = self._source(ledger_id)
            target = Target(Location(BUCKET, uuid, ledger_id), NAME, TOPIC.managed_ledger, self._block)
            self._copied[ledger_id] = target, source, copy_ledger(self._reader, self._objects, source, target)

    def get(self, ledgers: list[tuple[int, UUID]]) -> None:
        """The data objects."""
        for ledger_id, _ in ledgers:
            target, _, copied = self._copied[ledger_id]
            body = self._bare.get_object(Bucket=BUCKET, Key=target.location.data_key)["Body"]
            size = 0
            while piece := body.read(PIECE):
                size += len(piece)
            expect("bytes of the object", size, copied.index.data_object_length)

    def verify(self, ledgers: list[tuple[int, UUID]]) -> None:
        """The copies made last."""
        for ledger_id, _ in ledgers:
            target, source, copied = self._copied[ledger_id]
            self._verify(target, source, copied)

    def offload(self, ledgers: list[tuple[int, UUID]]) -> None:
        """Copy a ledger and verify it, one after the other."""
        for one in ledgers:
            self.copy([one])
            self.verify([one])

    def drop(self, ledgers: list[tuple[int, UUID]]) -> None:
        """Remove what these moves made in the bucket."""
        keys = [f"bare-{uuid}" for _, uuid in ledgers]
        for ledger_id, uuid in ledgers:
            location = Location(BUCKET, uuid, ledger_id)
            keys += [location.data_key, location.index_key]
        for key in keys:
            self._bare.delete_object(Bucket=BUCKET, Key=key)

    def _source(self, ledger_id: int) -> Source:
        (node,) = self._store.read([ledger_path(ledger_id)])
        assert isinstance(node, Node)
        return Source(ledger_metadata.decode(node.data), node.stat.ctime)

    def _verify(self, target: Target, source: Source, copied: Copied) -> None:
        origin = Origin(NAME, TOPIC.managed_ledger)
        verified = verify(self._objects, target.location, source, copied=copied, origin=origin)
        expect("entries verified", verified.entries, source.metadata.last_entry_id + 1)


def _work(pipe: Connection, file: Path, block: int) -> None:
    """Do what is asked; answer with CPU seconds, and with how many resident bytes came on top of those when idle."""
    with ExitStack() as opened:
        mover = _Mover(opened, file, block)
        pipe.send(None)
        idle = _peak()
        while order := pipe.recv():
            move, ledgers = order
            Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew (proc(5))
            used = cpu_seconds()
            getattr(mover, move)(ledgers)
            pipe.send((cpu_seconds() - used, _peak() - idle))


def _peak() -> int:
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


# ---------------------------------------------------------------------------------------------------------- measuring


@dataclass
class Cost:
    """Seconds on the clock; CPU seconds of ours and of the servers; resident bytes that a process took; load."""

    clock: float
    ours: float
    bookie: float
    s3proxy: float
    peak: int
    load: float = field(default_factory=lambda: os.getloadavg()[0])


class _Team:
    """Processes that share some ledgers."""

    def __init__(self, cluster: Cluster, block: int, ledgers: list[Ledger], processes: int) -> None:
        self.ledgers = ledgers
        self.processes = processes
        self._pids = {
            kind: [server.pid for server in cluster.state.of_kind(kind) if server.pid] for kind in ("bookie", "s3proxy")
        }
        self._uuids = {ledger.ledger_id: uuid4() for ledger in ledgers}
        self._members: list[tuple[Any, Connection]] = []
        context = get_context("spawn")
        for _ in range(processes):
            pipe, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, cluster.config, block), daemon=True)
            process.start()
            theirs.close()
            self._members.append((process, pipe))
        for _, pipe in self._members:
            pipe.recv()

    def do(self, move: str) -> Cost:
        """One move of all ledgers, shared out; raises EOFError if a process failed."""
        used = {kind: sum(map(cpu_seconds, pids)) for kind, pids in self._pids.items()}
        began = time.monotonic()
        for n, (_, pipe) in enumerate(self._members):
            mine = self.ledgers[n :: self.processes]
            pipe.send((move, [(one.ledger_id, self._uuids[one.ledger_id]) for one in mine]))
        answers = [pipe.recv() for _, pipe in self._members]
        clock = time.monotonic() - began
        spent = {kind: sum(map(cpu_seconds, pids)) - used[kind] for kind, pids in self._pids.items()}
        ours = sum(cpu for cpu, _ in answers)
        return Cost(clock, ours, spent["bookie"], spent["s3proxy"], max(peak for _, peak in answers))

    @property
    def keys(self) -> list[str]:
        """The data objects."""
        return [Location(BUCKET, uuid, ledger_id).data_key for ledger_id, uuid in self._uuids.items()]

    def again(self) -> None:
        """Drop what is in the bucket; what follows makes new objects."""
        self.do("drop")
        self._uuids = {ledger.ledger_id: uuid4() for ledger in self.ledgers}

    def close(self) -> None:
        """End the processes."""
        for process, pipe in self._members:
            pipe.send(None)
            process.join()
            pipe.close()


def measure(team: _Team, label: str, rounds: int) -> dict[str, Any]:
    """All moves with one team."""
    size, entries = _totals(team.ledgers)
    best: dict[str, Cost] = {}
    for turn in range(rounds):
        for move in MOVES:
            if move in MAKING:
                team.again()
            cost = team.do(move)
            if move not in best or cost.clock < best[move].clock:
                best[move] = cost
        tell(
            f"{label}, {team.processes} processes, round {turn + 1}: "
            + ", ".join(f"{move} {size / best[move].clock / 1e6:.0f}" for move in MOVES)
            + f" MB/s (load {os.getloadavg()[0]:.1f})"
        )
    read, upload, get = (best[move].clock for move in ("read", "upload", "get"))
    return {
        "entries_of": label,
        "processes": team.processes,
        "megabytes": round(size / 1e6),
        "entries": entries,
        "moves": {move: _rates(cost, size, entries) for move, cost in best.items()},
        "copy_over_bound": round((read + upload) / best["copy"].clock, 2),
        "copy_over_the_slower": round(max(read, upload) / best["copy"].clock, 2),
        "offload_over_bound_with_get": round((read + upload + get) / best["offload"].clock, 2),
        "verify_time_over_get": round(best["verify"].clock / get, 2),
    }


def measure_scan(cluster: Cluster, where: runs_cluster.Cluster, label: str, team: _Team, rounds: int) -> dict[str, Any]:
    """The objects as Spark tables."""
    size, entries = _totals(team.ledgers)
    pid = cluster.state.of_kind("s3proxy")[0].pid or 0
    found: dict[str, Any] = {}
    for rows in ("entries", "messages"):
        options = {"settings": where.settings_file, "ledgers": ",".join(team.keys), "as": rows}
        table = prepare(where.spark).read.format("pulsar_offload").options(**options).load()
        expect(f"rows of {rows}", table.count(), entries)  # also warms the workers
        costs: list[Cost] = []
        for _ in range(rounds):
            used, began = cpu_seconds(pid), time.monotonic()
            table.write.format("noop").mode("overwrite").save()
            costs.append(Cost(time.monotonic() - began, 0.0, 0.0, cpu_seconds(pid) - used, 0))
        cost = min(costs, key=lambda one: one.clock)
        tell(f"{label}, scan as {rows}: {size / cost.clock / 1e6:.0f} MB/s (load {cost.load:.1f})")
        found[rows] = {
            "mb_per_second": round(size / cost.clock / 1e6),
            "entries_per_second": round(entries / cost.clock),
            "s3proxy_cpu": round(cost.s3proxy, 2),
            "load": round(cost.load, 1),
        }
    return {"entries_of": label, "scan": found, "spark": "local[2]", "megabytes": round(size / 1e6), "entries": entries}


def _totals(ledgers: list[Ledger]) -> tuple[int, int]:
    return sum(one.length for one in ledgers), sum(one.entries for one in ledgers)


def _rates(cost: Cost, size: int, entries: int) -> dict[str, float]:
    return {
        "mb_per_second": round(size / cost.clock / 1e6),
        "entries_per_second": round(entries / cost.clock),
        "seconds": round(cost.clock, 2),
        "cpu": round(cost.ours, 2),
        "bookie_cpu": round(cost.bookie, 2),
        "s3proxy_cpu": round(cost.s3proxy, 2),
        "resident_mib": cost.peak >> 20,
        "load": round(cost.load, 1),
    }


def show(lines: list[dict[str, Any]]) -> None:
    """The tables, on stderr."""
    tell("MB/s (CPU seconds: ours, bookie, S3Proxy; load)")
    tell(f"{'entries':>8} {'procs':>5} " + " ".join(f"{move:>27}" for move in MOVES))
    for line in (line for line in lines if "moves" in line):
        cells = [
            f"{m['mb_per_second']} ({m['cpu']:.1f}, {m['bookie_cpu']:.1f}, {m['s3proxy_cpu']:.1f}; {m['load']})"
            for m in (line["moves"][move] for move in MOVES)
        ]
        tell(f"{line['entries_of']:>8} {line['processes']:>5} " + " ".join(f"{cell:>27}" for cell in cells))
        ratios = ("copy_over_bound", "copy_over_the_slower", "offload_over_bound_with_get", "verify_time_over_get")
        peak = max(line["moves"][move]["resident_mib"] for move in ("copy", "verify", "offload"))
        tell(" " * 15 + ", ".join(f"{name} {line[name]}" for name in ratios) + f", {peak} MiB resident above idle")
    for line in (line for line in lines if "scan" in line):
        scans = ", ".join(
            f"as {rows} {one['mb_per_second']} MB/s, {one['entries_per_second']} entries/s (load {one['load']})"
            for rows, one in line["scan"].items()
        )
        tell(f"scan of {line['entries_of']} entries: {scans}")
    for peer, figures in PEERS.items():
        tell(f"measured elsewhere, {peer}: " + ", ".join(f"{of}: {figure}" for of, figure in figures.items()))


if __name__ == "__main__":
    main()
