"""One run of the product in a process of its own, struck by a fault at a chosen step:
``python -m tests.integration.killed_run SETTINGS TASK ARGUMENTS FAULT``, the last two as JSON.

The run is the one the jobs take, with Spark and real servers; only the port that takes the step strikes there. Not
here: what must be true afterwards (``test_kills.py``).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pulsar_lifecycle.io.lake.journal import FileJournal
from pulsar_lifecycle.io.pulsar.queue import PulsarDeletionQueue
from pulsar_lifecycle.io.s3.objects import S3ObjectStore
from pulsar_lifecycle.io.zookeeper.store import KazooStore
from pulsar_lifecycle.model import Topic
from pulsar_lifecycle.runs.caps import Order
from pulsar_lifecycle.runs.cluster import Cluster
from pulsar_lifecycle.runs.tasks import Counter, SparkTasks, Tasks
from pulsar_lifecycle.tiered import offload_run
from pulsar_lifecycle.trimming import trim_run
from pulsar_lifecycle.trimming.trim import TrimOrder
from tests.integration.pipeline import NO_CAPS, Pipeline

PORTS: dict[str, type] = {
    "store": KazooStore,
    "journal": FileJournal,
    "queue": PulsarDeletionQueue,
    "objects": S3ObjectStore,
}


@dataclass(frozen=True)
class Fault:
    """Strikes at the first call of a port's method, before it or ``after``; once, for ``flag`` is then there.

    Only calls whose arguments, written out, contain ``about`` count.
    ``victim``: ``driver`` kills the run's whole process group, ``executor`` the JVM that this worker belongs to and
    the worker, ``nobody`` only waits, so that a test can kill a server meanwhile.
    """

    port: str
    method: str
    after: bool
    victim: str
    driver: int
    flag: str
    about: str = ""

    def arm(self) -> None:
        """Put the fault into this process."""
        port = PORTS[self.port]
        original = getattr(port, self.method)

        def struck(*args: Any, **options: Any) -> Any:
            if self.about and self.about not in repr(args):
                return original(*args, **options)
            if self.after:
                result = original(*args, **options)  # one that fails is no step to strike after
                self.strike()
                return result
            self.strike()
            return original(*args, **options)

        setattr(port, self.method, struck)

    def strike(self) -> None:
        """Do the damage, unless it was done already."""
        try:
            Path(self.flag).touch(exist_ok=False)
        except FileExistsError:
            return
        if self.victim == "nobody":
            time.sleep(5)
            return
        if self.victim == "driver":
            os.killpg(self.driver, signal.SIGKILL)
        else:
            daemon = os.getppid()
            os.kill(_parent(daemon), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class StruckTasks:
    """Tasks, each of which arms the fault in the process it comes to."""

    tasks: Tasks
    fault: Fault

    @property
    def at_once(self) -> int:
        return self.tasks.at_once

    def map(self, work: Callable[[Any], Any], pieces: Sequence[Any]) -> Iterator[Any]:
        fault = self.fault

        def struck(piece: Any) -> Any:
            fault.arm()
            return work(piece)

        return self.tasks.map(struck, pieces)

    def counter(self) -> Counter:
        return self.tasks.counter()


def _parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def main(settings: str, task: str, arguments: dict[str, Any], fault: Fault) -> None:
    """Run one task."""
    pipeline = Pipeline(Path(settings))
    Cluster.tasks = property(lambda cluster: StruckTasks(SparkTasks(cluster.spark), fault))  # type: ignore[assignment]
    where = pipeline.where
    if task == "delete":  # not in the driver: its session deletes nothing but the lease
        print(pipeline.delete_pending(arguments["run_id"]))
        return
    fault.arm()
    if task == "apply":
        print(pipeline.apply(Order(arguments["plan_id"], arguments["digest"], NO_CAPS), arguments["run_id"]))
    elif task == "offload":
        order = offload_run.OffloadOrder(arguments["plan_id"], arguments["digest"])
        print(offload_run.offload_now(where, arguments["run_id"], order, print))
    elif task == "trim":
        orders = [TrimOrder(Topic.parse(arguments["topic"]), up_to=arguments["up_to"])]
        print(trim_run.trim(where, arguments["run_id"], orders, dry_run=False))
    else:
        raise SystemExit(f"unknown task {task}")


if __name__ == "__main__":
    path, what, options, struck = sys.argv[1:]
    main(path, what, json.loads(options), Fault(**json.loads(struck), driver=os.getpgid(0)))
